"""Levels filled one after another, told as the stages of a decision."""

from dataclasses import replace

from optimizer.decision import Memory
from optimizer.filling.compiled import columns_before
from optimizer.filling.fill import Rule, fill
from optimizer.market.objective import Level, Solution
from optimizer.market.reached import in_levels
from optimizer.staged.stages import Asked, Staged, told


def filled(asked: Asked, rule: Rule, memory: Memory) -> Staged:
    """Raise the rule's targets until everybody has what it can get. Without any level: no method found the first.

    `memory`: what the policy's last solve left (`optimizer.filling.compiled`).
    """
    classes = asked.classes
    worth = classes.per_column(asked.utility.worth)
    filling = fill(classes.market, worth, rule, columns_before(memory))
    stages = []
    for level in filling.levels:
        reached, objective = min(filling.reached(level), level.bound), Level(worth, level.targets)
        prices = in_levels(classes.market, objective, level.prices, level.bound)
        stage = told(
            classes, Solution(filling.status, filling.x, prices, reached, level.bound, filling.path), objective
        )
        stages.append(replace(stage, active=classes.to_jobs(level.active.astype(float)) > 0))
    return Staged(asked, filling.status, filling.path, classes.to_columns(filling.x), tuple(stages))
