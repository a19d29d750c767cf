"""What is solved in stages, how it ended, and how a solution over classes is told over jobs. Decides nothing."""

from dataclasses import dataclass, field

import numpy as np

from optimizer.arrays.owners import best_by, sum_by
from optimizer.decision import Packed, Stage, StageKind, Status, nobody_packed
from optimizer.fairness.utility import Utility
from optimizer.market.class_market import ClassMarket
from optimizer.market.market import Market
from optimizer.market.objective import Level, Nash, Objective, Solution, Total
from optimizer.packing.shares import over_columns
from optimizer.problem import BoolArray, FloatArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a policy solves: a problem of n jobs and c columns, its utilities, its k classes with C columns."""

    problem: Problem
    utility: Utility
    classes: ClassMarket
    #: True: jobs may be packed two by two; the classes are then of one kind each.
    packed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """How the stages of one decision ended: shares per column of the problem (c,), and the stages told per job."""

    asked: Asked
    status: Status
    path: str
    x: FloatArray
    stages: tuple[Stage, ...]
    #: Shares of jobs that run two by two, beside those in `x`.
    packed: Packed = field(default_factory=nobody_packed)

    def worth_of(self, worth: FloatArray) -> FloatArray:
        """What the shares are worth to each job, at so much for each column run all the time: (c,) -> (n,)."""
        problem = self.asked.problem
        gives, _ = over_columns(problem, self.asked.utility.usable, self.x, self.packed)
        return sum_by(problem.columns.job, worth * gives, len(problem.jobs))

    def first(self) -> tuple[float, float]:
        """What the first stage reached and what is proved about it; 0 where there was nothing to reach."""
        return (self.stages[0].objective, self.stages[0].bound) if self.stages else (0.0, 0.0)


def told(classes: ClassMarket, found: Solution, objective: Objective) -> Stage:
    """A solution over classes as a stage over jobs."""
    market = classes.market
    kind, floor = StageKind.LOG, np.zeros(market.classes)
    cap = best_by(market.owner(), objective.worth, market.classes)
    if isinstance(objective, Level):
        targets = objective.targets
        kind, floor, cap = StageKind.LEVEL, targets.at(0.0)[0], targets.at(targets.highest)[0]
    elif isinstance(objective, Total):
        kind, floor = StageKind.SUM, objective.floor
    return Stage(
        kind=kind,
        active=classes.to_jobs(rising(market, objective).astype(np.float64)) > 0,
        floor=classes.to_jobs(floor),
        cap=classes.to_jobs(cap),
        prices=found.prices,
        objective=found.objective,
        bound=found.bound,
    )


def rising(market: Market, objective: Objective) -> BoolArray:
    """Classes that the objective does something for (k,)."""
    if isinstance(objective, Level):
        targets = objective.targets
        return np.asarray(targets.at(targets.highest)[0] > targets.at(0.0)[0])
    if isinstance(objective, Nash):
        return np.asarray(objective.weight > 0)
    return np.ones(market.classes, dtype=bool)
