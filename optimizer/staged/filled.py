"""Levels filled one after another, told as the stages of a decision."""

from dataclasses import replace

import numpy as np

from optimizer.decision import Memory
from optimizer.filling.fill import Rule, fill
from optimizer.filling.series import left_by, start_from
from optimizer.market.objective import Level, Solution
from optimizer.prices.bound import in_levels
from optimizer.staged.told import Asked, Staged, told


def filled(asked: Asked, rule: Rule, memory: Memory) -> tuple[Staged, Memory]:
    """Raise the rule's targets until everybody has what it can get. Without any level: no method found the first.

    `memory`: what the policy's last solve left, and what this one leaves (`optimizer.filling.series`).
    """
    classes = asked.classes
    worth = classes.per_column(asked.utility.worth)
    filling = fill(classes.market, worth, rule, start_from(memory, asked.problem.pools))
    stages = []
    for level in filling.levels:
        reached, objective = min(filling.reached(level), level.bound), Level(worth, level.targets)
        prices = in_levels(classes.market, objective, level.prices, level.bound)
        stage = told(
            classes, Solution(filling.status, filling.x, prices, reached, level.bound, filling.path), objective
        )
        stages.append(replace(stage, active=classes.to_jobs(level.active.astype(float)) > 0))
    problem, prices = asked.problem, filling.levels[0].prices if filling.levels else np.zeros(0)
    memory = left_by(memory, len(problem.columns), prices, problem.pools)
    return Staged(asked, filling.status, filling.path, classes.to_columns(filling.x), tuple(stages)), memory
