"""Levels filled one after another, told as the stages of a decision."""

from dataclasses import replace

from optimizer.decision import Status
from optimizer.filling.fill import Filled, Rule, fill
from optimizer.filling.response import responses
from optimizer.market import Market
from optimizer.objective import Level, Solution
from optimizer.problem import FloatArray
from optimizer.stages import Asked, Staged, told


def filled(asked: Asked, rule: Rule) -> Staged:
    """Raise the rule's targets until everybody has what it can get. Without any level: no method found the first."""
    classes = asked.classes
    worth = classes.per_column(asked.utility.worth)
    filling = fill(classes.market, worth, rule)
    stages = []
    for level in filling.levels:
        reached = min(filling.reached(level), level.bound)
        prices = _in_its_unit(classes.market, worth, level)
        found = Solution(Status.OPTIMAL, filling.x, prices, reached, level.bound, filling.path)
        stage = told(classes, found, Level(worth, level.targets))
        stages.append(replace(stage, active=classes.to_jobs(level.active.astype(float)) > 0))
    return Staged(asked, filling.status, filling.path, classes.to_columns(filling.x), tuple(stages))


def _in_its_unit(market: Market, worth: FloatArray, level: Filled) -> FloatArray:
    """The prices scaled so that one more unit of the level costs 1, as dual values do: a proof needs no scale (r,)."""
    target, slope = level.targets.at(level.bound)
    unit = float((market.size * responses(market, worth, level.prices).marginal(target)) @ slope)
    return level.prices / unit if unit > 0 else level.prices
