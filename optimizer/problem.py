"""The allocation problem as arrays: jobs, configurations (columns), pools, entities, and pairs that may be packed.

Shapes: n jobs, c columns, u uses, p pools, k entities, q pairs of kinds. A column is one way to run one job; a use says
how many accelerators of a pool that column takes. A rigid job on three pools has three columns of one use each; a mixed
gang has one column of several uses. Every array is read-only by convention: a problem is a value.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def _floats(size: int = 0) -> FloatArray:
    return np.zeros(size)


def _indices(size: int = 0) -> IntArray:
    return np.zeros(size, dtype=np.int64)


def _flags(size: int = 0) -> BoolArray:
    return np.zeros(size, dtype=np.bool_)


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
    #: What an hour of this job at its best speed is worth, USD; nan if not stated.
    value_usd_per_h: FloatArray
    priority_class: IntArray
    #: Row of `Entities`: a leaf of its tree.
    entity: IntArray
    #: Equal jobs that each row stands for (n,). Empty: one each.
    count: FloatArray = field(default_factory=_floats)
    #: For plan policies; all empty for others. Steps done (n,).
    done_steps: FloatArray = field(default_factory=_floats)
    #: The submitter's guess of the whole run on the best configuration; inf without one (n,).
    length_s: FloatArray = field(default_factory=_floats)
    #: What a start, or a move, costs the job, seconds (n,).
    restart_s: FloatArray = field(default_factory=_floats)
    #: It cannot be stopped now: it stays in the column in which it runs (n,).
    pinned: BoolArray = field(default_factory=_flags)
    #: Its gang may span several pools, and the scheduler can start it there (n,). Empty: no job's.
    mixes: BoolArray = field(default_factory=_flags)
    #: Parts that it may be forked into, each a whole gang in one pool with steps of its own, by whoever can start them
    #: (n,). Empty: 1.
    fork_max: FloatArray = field(default_factory=_floats)
    #: Once it runs it cannot be stopped, or would lose all its work (n,). Empty: no job's, or it does not matter.
    unstoppable: BoolArray = field(default_factory=_flags)
    #: The weight that the user's jobs usually state, by accelerator time (n,). Empty: 1, or it does not matter.
    usual_weight: FloatArray = field(default_factory=_floats)

    def __len__(self) -> int:
        return len(self.job_id)

    @property
    def relative_weight(self) -> FloatArray:
        """The weight over what the user's jobs usually state: which of his own he means (n,)."""
        return self.weight / self.usual_weight if len(self.usual_weight) else self.weight

    @property
    def stays(self) -> BoolArray:
        """Whether each job is pinned, one entry per job (n,)."""
        return self.pinned if len(self.pinned) else np.zeros(len(self), dtype=np.bool_)

    @property
    def start_s(self) -> FloatArray:
        """What a start costs, one entry per job, seconds (n,)."""
        return self.restart_s if len(self.restart_s) else np.zeros(len(self))

    @property
    def counts(self) -> FloatArray:
        """Jobs that each row stands for (n,)."""
        return self.count if len(self.count) else np.ones(len(self))


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
    #: Accelerators that were asked for and are still on their way, no part of `capacity` (p,). Empty: none.
    coming: FloatArray = field(default_factory=_floats)
    #: Seconds from the request for a machine until it takes jobs, not paid for (p,). Empty: 0.
    boot_s: FloatArray = field(default_factory=_floats)
    #: Seconds that a rented machine is billed for at least (p,). Empty: 0.
    minimum_billing_s: FloatArray = field(default_factory=_floats)
    #: Of `rented`: accelerators that are paid for some time to come, used or not (p,). Empty: 0.
    prepaid: FloatArray = field(default_factory=_floats)
    #: What holding an accelerator counts against the share of its project and user (p,). Empty: 1.
    counted: FloatArray = field(default_factory=_floats)

    def __len__(self) -> int:
        return len(self.pool_id)

    @property
    def held(self) -> FloatArray:
        """Accelerators rented now, one entry per pool (p,)."""
        return self.rented if len(self.rented) else np.zeros(len(self))

    @property
    def paid(self) -> FloatArray:
        """Accelerators rented now or on their way, one entry per pool (p,)."""
        return self.held + self.coming if len(self.coming) else self.held


@dataclass(frozen=True, slots=True, eq=False)
class Entities:
    """Projects that share the fleet, and users inside them. A tree, parents before children; jobs hang on the leaves.

    Every array but `weight` may be empty: then the default named beside it holds for all.
    """

    name: tuple[str, ...] = ()
    #: Part of the parent's share against its siblings with work to do (k,).
    weight: FloatArray = field(default_factory=_floats)
    #: Row of the parent, -1 at the top (k,). Empty: all at the top.
    parent: IntArray = field(default_factory=_indices)
    #: Fraction of all accelerators that it gets before anybody gets more than that (k,). Empty: 0.
    guaranteed: FloatArray = field(default_factory=_floats)
    #: Fraction of all accelerators that it never exceeds (k,). Empty: 1.
    limit: FloatArray = field(default_factory=_floats)
    #: False: it never takes above its own share what others leave unused (k,). Empty: True.
    borrows: BoolArray = field(default_factory=_flags)
    #: True: its jobs are served in order of submission, False: fairly, by weight (k,). Empty: False.
    fifo: BoolArray = field(default_factory=_flags)

    def __len__(self) -> int:
        return len(self.name)

    @property
    def above(self) -> IntArray:
        """Row of the parent of each one, -1 at the top (k,)."""
        return self.parent if len(self.parent) else np.full(len(self), -1, dtype=np.int64)

    @property
    def top(self) -> IntArray:
        """The entity at the top above each one: itself where it has no parent (k,)."""
        top = np.arange(len(self))
        for row in np.flatnonzero(self.parent >= 0):  # parents come first
            top[row] = top[self.parent[row]]
        return top


@dataclass(frozen=True, slots=True, eq=False)
class EntityLimits:
    """Accelerators that entities may hold of some pools: of the fleet, of a type, of one pool. m limits."""

    #: Row of `Entities`; jobs below it count too (m,).
    entity: IntArray
    accelerators: FloatArray
    #: Pools whose accelerators count (m, p).
    pools: BoolArray

    def __len__(self) -> int:
        return len(self.entity)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Which two kinds of job may share accelerators, and what each keeps of its speed (all arrays but `kind` (q,)).

    Both jobs of a pair hold the accelerators of one gang in one pool: a job pairs only with one whose column there
    takes as many as its own. A job's speed in a pair is `factor` times its own speed in that pool, so jobs of one kind
    may differ in speed, and the list is as long as the kinds are many, not the jobs. What holds for gangs of 1 need not
    hold for gangs of 8: they are then of different kinds. Two kinds and a pool are listed once, in either order.
    """

    #: Kind of each job, -1 for one that never shares (n,).
    kind: IntArray
    first: IntArray
    second: IntArray
    pool: IntArray
    #: Part of its own speed that a job of the first kind keeps beside one of the second, and the reverse: in 0..1, and
    #: equal where the kinds are.
    first_factor: FloatArray
    second_factor: FloatArray

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Everything a policy may know at one instant."""

    at: float
    jobs: Jobs
    columns: Columns
    pools: Pools
    entities: Entities
    #: None: accelerators are never shared.
    pairs: Pairs | None = None
    #: How long the newest jobs that succeeded were, in seconds on their best configuration (any number of them).
    finished_s: FloatArray = field(default_factory=_floats)
    #: What administrators let entities hold. That of the whole fleet also stands in `entities.limit`, as a part of it.
    #: None: `entities.limit` is all that is limited.
    limits: EntityLimits | None = None
