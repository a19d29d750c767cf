"""Levels filled one after another, told as the stages of a decision."""

from dataclasses import replace

from optimizer.filling.fill import Rule, fill
from optimizer.market.objective import Level, Solution
from optimizer.market.reached import in_levels
from optimizer.staged.stages import Asked, Staged, told


def filled(asked: Asked, rule: Rule) -> Staged:
    """Raise the rule's targets until everybody has what it can get. Without any level: no method found the first."""
    classes = asked.classes
    worth = classes.per_column(asked.utility.worth)
    filling = fill(classes.market, worth, rule)
    stages = []
    for level in filling.levels:
        reached, objective = min(filling.reached(level), level.bound), Level(worth, level.targets)
        prices = in_levels(classes.market, objective, level.prices, level.bound)
        stage = told(
            classes, Solution(filling.status, filling.x, prices, reached, level.bound, filling.path), objective
        )
        stages.append(replace(stage, active=classes.to_jobs(level.active.astype(float)) > 0))
    return Staged(asked, filling.status, filling.path, classes.to_columns(filling.x), tuple(stages))
