"""How often to write checkpoints on machines whose age tells when they may go: a dynamic programme. Lengths in hours.

Where age tells nothing, Young and Daly's interval is as good (`optimizer.renting.risk`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.renting.risk import Costs
from scheduler.cloud.lifetimes import Lifetime, survival_from

FloatArray = NDArray[np.float64]
#: Chances below this count as this: a segment that nothing outlasts is merely never chosen.
_RAREST = 1e-12


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Work between checkpoints for one job on machines whose age matters."""

    #: Hours of work before each checkpoint of a job that is not interrupted, in order.
    segments_h: tuple[float, ...]
    #: Expected hours until all work is done, from a machine of the age it was asked for.
    expected_h: float


def plan_checkpoints(law: Lifetime, work_h: float, costs: Costs, age_h: float, step_h: float) -> CheckpointPlan:
    """The segments that end soonest in the mean (after Kadupitiya and others, HPDC'20).

        M(J, a) = min over i of  E[min(T, i + C)] + P M(J - i, a + i + C) + (1 - P) (R + M(J, 0))

    T the life left at age a, P the chance that it outlasts the segment and its checkpoint. Work, ages and the
    checkpoint are in whole steps of `step_h`; no age beyond what all segments of one step would reach is told apart.
    """
    work, writing = max(1, round(work_h / step_h)), max(1, round(costs.checkpoint_h / step_h))
    ages = work * (1 + writing) + round(age_h / step_h) + 1
    survival = np.array([law.survival(number * step_h) for number in range(ages + work + writing)])
    lived = np.concatenate([[0.0], np.cumsum((survival[1:] + survival[:-1]) / 2)])
    segments = [_Segment.of(size, size + writing, ages, survival, lived) for size in range(1, work + 1)]
    restart = costs.restart_h / step_h
    left_to_go = np.zeros((work + 1, ages))
    choice = np.zeros((work + 1, ages), dtype=np.int64)
    for left in range(1, work + 1):
        ahead = np.array(
            [part.spent + part.outlasts * left_to_go[left - part.size, part.after] for part in segments[:left]]
        )
        chance = np.array([part.outlasts for part in segments[:left]])
        # On a new machine a lost segment comes back to where it began: the equation is solved for M(J, 0).
        fresh = np.min((ahead[:, 0] + (1 - chance[:, 0]) * restart) / np.maximum(chance[:, 0], _RAREST))
        worth = ahead + (1 - chance) * (restart + fresh)
        choice[left], left_to_go[left] = worth.argmin(axis=0) + 1, worth.min(axis=0)
    chosen, left, age = [], work, round(age_h / step_h)
    while left:
        size = int(choice[left, age])
        chosen.append(size * step_h)
        left, age = left - size, min(age + size + writing, ages - 1)
    return CheckpointPlan(tuple(chosen), float(left_to_go[work, round(age_h / step_h)]) * step_h)


@dataclass(frozen=True, slots=True, eq=False)
class _Segment:
    """A segment of work and its checkpoint, begun at each age."""

    size: int
    #: Expected steps until it ends or the machine is taken, and the chance that it ends (ages,).
    spent: FloatArray
    outlasts: FloatArray
    #: Age afterwards (ages,).
    after: NDArray[np.int64]

    @classmethod
    def of(cls, size: int, lasts: int, ages: int, survival: FloatArray, lived: FloatArray) -> "_Segment":
        age = np.arange(ages)
        reached = np.maximum(survival[:ages], _RAREST)
        outlasts = survival[age + lasts] / reached
        spent = (lived[age + lasts] - lived[:ages]) / reached
        return cls(size, spent, outlasts, np.minimum(age + lasts, ages - 1))


def reuse(law: Lifetime, work_h: float, age_h: float) -> bool:
    """Whether a job is likelier to end on a machine of an age than on a new one."""
    return survival_from(law, age_h, work_h) >= law.survival(work_h)
