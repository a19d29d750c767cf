"""A workload as the bounds see it: arrivals, work, gangs and speeds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """n jobs on p pools of constant capacity."""

    #: Instants of arrival, seconds (n,).
    arrival_at: FloatArray
    #: Work of each job, steps > 0 (n,).
    steps: FloatArray
    #: Accelerators of each gang (n,).
    gang: FloatArray
    #: Steps per second of the whole gang on each pool; 0 where it cannot run (n, p).
    steps_per_s: FloatArray
    #: Accelerators of each pool (p,).
    capacity: FloatArray

    def __post_init__(self) -> None:
        if not (self.steps_per_s.max(axis=1, initial=0.0) > 0).all():
            raise ValueError(
                f"job row {int(np.argmin(self.steps_per_s.max(axis=1)))} can run nowhere: nothing bounds it"
            )

    @property
    def alone_s(self) -> FloatArray:
        """How long each job takes alone in the fleet, on its best pool (n,)."""
        alone: FloatArray = self.steps / self.steps_per_s.max(axis=1)
        return alone


def no_contention_s(instance: Instance) -> float:
    """Mean completion time if every job had the fleet to itself."""
    return float(instance.alone_s.mean())
