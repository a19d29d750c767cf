"""Levels filled one after another, told as the stages of a decision."""

from dataclasses import replace

from optimizer.decision import Status
from optimizer.filling.fill import Rule, fill
from optimizer.objective import Level, Solution
from optimizer.stages import Asked, Staged, told


def filled(asked: Asked, rule: Rule) -> Staged:
    """Raise the rule's targets until everybody has what it can get. Without any level: no method found the first."""
    classes = asked.classes
    worth = classes.per_column(asked.utility.worth)
    filling = fill(classes.market, worth, rule)
    stages = []
    for level in filling.levels:
        reached = min(filling.reached(level), level.bound)
        found = Solution(Status.OPTIMAL, filling.x, level.prices, reached, level.bound, filling.path)
        stage = told(classes, found, Level(worth, level.targets))
        stages.append(replace(stage, active=classes.to_jobs(level.active.astype(float)) > 0))
    return Staged(asked, filling.status, filling.path, classes.to_columns(filling.x), tuple(stages))
