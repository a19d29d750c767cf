"""The allocation problem as arrays: jobs, configurations (columns), pools, entities.

Shapes: n jobs, c columns, u uses, p pools, k entities. A column is one way to run one job (or two jobs packed); a use
says how many accelerators of a pool that column takes. A rigid job on three pools has three columns of one use each; a
mixed gang has one column of several uses. Every array is read-only by convention: a problem is a value.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def _floats(size: int = 0) -> FloatArray:
    return np.zeros(size)


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """Active jobs, one row each, in a fixed order (ascending id)."""

    job_id: IntArray
    weight: FloatArray
    #: Accelerators of the whole gang (the smallest count among its columns).
    gang: FloatArray
    #: Work left, steps; inf when unknown.
    remaining_steps: FloatArray
    submitted_at: FloatArray
    #: Accelerator-seconds received so far.
    attained_s: FloatArray
    #: Instant by which it should end; inf without a deadline.
    deadline_at: FloatArray
    #: What an hour of this job at its best speed is worth, USD; nan when nobody said.
    value_usd_per_h: FloatArray
    priority_class: IntArray
    #: Row of `Entities` (the project).
    entity: IntArray

    def __len__(self) -> int:
        return len(self.job_id)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Configurations, grouped by job (ascending row)."""

    #: Row of `Jobs` (c,).
    job: IntArray
    #: Steps per second of the whole gang in this configuration (c,).
    steps_per_s: FloatArray
    #: Where the column uses accelerators: three parallel arrays (u,), grouped by column (ascending).
    use_column: IntArray
    use_pool: IntArray
    use_count: FloatArray
    #: The configuration the job runs in now (c,).
    running: BoolArray
    #: Second job of a packed column, -1 for a column of one job (c,), and its speed (c,).
    partner: IntArray
    partner_steps_per_s: FloatArray

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """Pools, in a fixed order (ascending id)."""

    pool_id: tuple[str, ...]
    accelerator: tuple[str, ...]
    #: Accelerators there now (p,).
    capacity: FloatArray
    #: Accelerators that may be rented in all, those rented now included (p,).
    rentable: FloatArray
    #: Accelerators on one machine (p,).
    machine_size: FloatArray
    #: Market price of one accelerator-hour, USD (p,).
    usd_per_h: FloatArray
    #: Of `capacity`: accelerators rented now, which may be given back (p,). Empty: none.
    rented: FloatArray = field(default_factory=_floats)

    def __len__(self) -> int:
        return len(self.pool_id)

    @property
    def held(self) -> FloatArray:
        """Accelerators rented now, one entry per pool (p,)."""
        return self.rented if len(self.rented) else np.zeros(len(self))


@dataclass(frozen=True, slots=True, eq=False)
class Entities:
    """Projects that share the fleet. Limits and guarantees are fractions of all accelerators."""

    name: tuple[str, ...] = ()
    weight: FloatArray = field(default_factory=_floats)

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Everything a policy may know at one instant."""

    at: float
    jobs: Jobs
    columns: Columns
    pools: Pools
    entities: Entities
