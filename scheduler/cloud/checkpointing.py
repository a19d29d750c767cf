"""How often to write checkpoints on machines whose age tells when they may go: a dynamic programme. Lengths in hours.

Where age tells nothing, Young and Daly's interval is as good (`optimizer.renting.risk`).
"""

from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from optimizer.renting.risk import Costs
from scheduler.cloud.lifetimes import Lifetime, survival_from

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Chances below this count as this: a segment that nothing outlasts is merely never chosen.
_RAREST = 1e-12
#: Parts of a step in which ages are counted at most, and how near the checkpoint then has to be to whole ones.
_FINEST, _NEAR = 120, 0.01
#: What would take longer does not end.
_LONGEST_H = 1e8


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Work between checkpoints for one job on machines whose age matters; means, from the age it was asked for."""

    #: Hours of work before each checkpoint of a job that is not interrupted, in order.
    segments_h: tuple[float, ...]
    #: Hours until all work is done and saved; infinite where no machine outlasts a segment.
    expected_h: float
    #: Machines that are taken until then, and hours in which checkpoints that last are written.
    revocations: float
    writing_h: float
    #: Hours whose work was lost, half-written checkpoints included.
    lost_h: float


def plan_checkpoints(
    law: Lifetime, work_h: float, costs: Costs, age_h: float, step_h: float, interval_h: float | None = None
) -> CheckpointPlan:
    """The segments that end soonest in the mean (after Kadupitiya and others, HPDC'20).

        M(J, a) = min over i of  E[min(T, i + C)] + P M(J - i, a + i + C) + (1 - P) (R + M(J, 0))

    T the life left at age a, P the chance that it outlasts the segment and its checkpoint. Work is in whole steps of
    `step_h`, ages and the checkpoint in parts of a step; no age beyond what all segments of one step would reach is
    told apart. `interval_h`: what segments of just this length come to (the last may be shorter), not the best.
    """
    grid = _Grid.of(law, work_h, costs, age_h, step_h)
    only = None if interval_h is None else max(1, round(interval_h / step_h))
    restart = costs.restart_h / step_h
    spent, choice = np.zeros((grid.work + 1, grid.ages)), np.zeros((grid.work + 1, grid.ages), dtype=np.int64)
    taken, written = np.zeros_like(spent), np.zeros_like(spent)
    for left in range(1, grid.work + 1):
        sizes = np.arange(1, left + 1) if only is None else np.array([min(only, left)])
        chance = grid.outlasts[sizes - 1]
        ahead = grid.spent[sizes - 1] + chance * spent[(left - sizes)[:, None], grid.after[sizes - 1]]
        # On a new machine a lost segment comes back to where it began: the equation is solved for M(J, 0).
        fresh = np.min((ahead[:, 0] + (1 - chance[:, 0]) * restart) / np.maximum(chance[:, 0], _RAREST))
        worth = ahead + (1 - chance) * (restart + fresh)
        choice[left], spent[left] = sizes[worth.argmin(axis=0)], worth.min(axis=0)
        taken[left] = grid.counted(choice[left], left, taken, kept=0.0, lost=1.0)
        written[left] = grid.counted(choice[left], left, written, kept=1.0, lost=0.0)
    begun = grid.work, grid.age
    segments_h = tuple(size * step_h for size in grid.walk(choice))
    expected_h, writing_h = float(spent[begun]) * step_h, float(written[begun]) * costs.checkpoint_h
    if expected_h > _LONGEST_H:
        return CheckpointPlan(segments_h, inf, inf, inf, inf)
    lost_h = expected_h - grid.work * step_h - writing_h - float(taken[begun]) * costs.restart_h
    return CheckpointPlan(segments_h, expected_h, float(taken[begun]), writing_h, max(lost_h, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """Segments of one step and more with their checkpoints, begun at each age (sizes, ages); time in steps."""

    #: Steps of work, ages that are told apart, and the age to begin with.
    work: int
    ages: int
    age: int
    #: Time until a segment ends or the machine is taken, and the chance that it ends.
    spent: FloatArray
    outlasts: FloatArray
    #: Age afterwards.
    after: IntArray

    @classmethod
    def of(cls, law: Lifetime, work_h: float, costs: Costs, age_h: float, step_h: float) -> "_Grid":
        parts = _parts(costs.checkpoint_h / step_h)
        work, age = max(1, round(work_h / step_h)), round(age_h / step_h * parts)
        writing = round(costs.checkpoint_h / step_h * parts) or int(costs.checkpoint_h > 0)
        ages = work * (parts + writing) + age + 1
        lasts = np.arange(1, work + 1) * parts + writing
        survival = np.array([law.survival(number * step_h / parts) for number in range(ages + int(lasts[-1]))])
        lived = np.concatenate([[0.0], np.cumsum((survival[1:] + survival[:-1]) / 2)]) / parts
        ends = np.arange(ages) + lasts[:, None]
        reached = np.maximum(survival[:ages], _RAREST)
        spent = (lived[ends] - lived[:ages]) / reached
        return cls(work, ages, age, spent, survival[ends] / reached, np.minimum(ends, ages - 1))

    def counted(self, sizes: IntArray, left: int, known: FloatArray, *, kept: float, lost: float) -> FloatArray:
        """Mean sum of `kept` per segment that ends and `lost` per one that does not, by age, with the sizes chosen."""
        age = np.arange(self.ages)
        chance = self.outlasts[sizes - 1, age]
        ahead = chance * (kept + known[left - sizes, self.after[sizes - 1, age]]) + (1 - chance) * lost
        found: FloatArray = ahead + (1 - chance) * (ahead[0] / max(float(chance[0]), _RAREST))
        return found

    def walk(self, choice: IntArray) -> list[int]:
        """Sizes of the segments of a job that is not interrupted."""
        found, left, age = list[int](), self.work, self.age
        while left:
            found.append(int(choice[left, age]))
            age = int(self.after[found[-1] - 1, age])
            left -= found[-1]
        return found


def _parts(checkpoint: float) -> int:
    """Parts of a step that the checkpoint, in steps, is nearly a whole number of; as few as will do."""
    if checkpoint <= 0:
        return 1
    fewest = min(max(1, ceil(1 / checkpoint - _NEAR)), _FINEST)
    errors = {parts: abs(checkpoint * parts - round(checkpoint * parts)) for parts in range(fewest, _FINEST + 1)}
    near = (parts for parts, error in errors.items() if error <= _NEAR * checkpoint * parts)
    return next(near, min(errors, key=lambda parts: errors[parts] / parts))


def reuse(law: Lifetime, work_h: float, age_h: float) -> bool:
    """Whether a job is likelier to end on a machine of an age than on a new one."""
    return survival_from(law, age_h, work_h) >= law.survival(work_h)
