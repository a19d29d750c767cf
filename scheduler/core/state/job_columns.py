"""What a solve or a round reads of all active jobs at once, as numpy columns, and the accounting of service.

A row is a slot: a job takes it when it is submitted and frees it when it has ended. Only the core's handlers write
here.
"""

from math import exp, inf

import numpy as np
from numpy.typing import NDArray

from scheduler.core.state.job_classes import PoolParts

#: Seconds after which a start counts as a run where runs are protected: what a job brings may take hours.
START_S = 600.0


class JobColumns:
    """The columns, grown by doubling. Rows of free slots hold leftovers and have `active` False."""

    def __init__(self) -> None:
        size = 64
        self.pools = 0
        #: (job, pool) pairs: the job would have a place there if no machines were booked (`bookings`). No solve gives
        #: the job that pool, or capacity that others could use would stand idle.
        self.kept_off: set[tuple[int, int]] = set()
        self.active: NDArray[np.bool_] = np.zeros(size, bool)
        self.job_id: NDArray[np.int64] = np.zeros(size, np.int64)
        self.class_row: NDArray[np.int64] = np.zeros(size, np.int64)
        #: Class as which the newest attempt was started.
        self.runs_as: NDArray[np.int64] = np.zeros(size, np.int64)
        self.priority_class: NDArray[np.int64] = np.zeros(size, np.int64)
        self.weight: NDArray[np.float64] = np.zeros(size)
        self.value_usd_per_h: NDArray[np.float64] = np.zeros(size)
        self.entity: NDArray[np.int64] = np.zeros(size, np.int64)
        self.submitted_at: NDArray[np.float64] = np.zeros(size)
        self.deadline_at: NDArray[np.float64] = np.zeros(size)
        self.steps_total: NDArray[np.float64] = np.zeros(size)
        self.steps: NDArray[np.float64] = np.zeros(size)
        #: When `steps` was last reported in this attempt (or its ranks came up); inf while none runs.
        self.steps_at: NDArray[np.float64] = np.full(size, inf)
        #: The submitter's guess of the whole run on the best accelerator, seconds; inf without one.
        self.duration_s: NDArray[np.float64] = np.full(size, inf)
        #: True for a job that may be given accelerators: it waits or runs, and lacks nothing but a place.
        self.eligible: NDArray[np.bool_] = np.zeros(size, bool)
        #: Accelerators of the largest gang as which it may run.
        self.gang: NDArray[np.float64] = np.ones(size)
        #: Pool in which it holds accelerators (-1: none; of several the first), and how many in total.
        self.pool: NDArray[np.int64] = np.full(size, -1, np.int64)
        self.count: NDArray[np.float64] = np.zeros(size)
        #: By slot, for the few jobs that hold accelerators in several pools: what they hold in each.
        self.parts: dict[int, PoolParts] = {}
        #: When all ranks of its newest attempt were up (inf: they are not), and until when it is profiling.
        self.running_at: NDArray[np.float64] = np.full(size, inf)
        self.profiling_until: NDArray[np.float64] = np.full(size, -inf)
        #: True if it was stopped once and had saved nothing.
        self.loses_work: NDArray[np.bool_] = np.zeros(size, bool)
        #: Instant from which stopping its attempt would lose more than a move may cost; inf: never (`stopping`).
        self.fixed_at: NDArray[np.float64] = np.full(size, inf)
        #: Attained accelerator-seconds, and the instant up to which the row is settled.
        self.attained_s: NDArray[np.float64] = np.zeros(size)
        self.settled_at: NDArray[np.float64] = np.zeros(size)
        #: What its time on accelerators is worth in seconds on the fastest pool, without the attempt that runs.
        self.worked_s: NDArray[np.float64] = np.zeros(size)
        #: Attained accelerator-seconds when an order policy last reset its attained service.
        self.renewed_at_s: NDArray[np.float64] = np.zeros(size)
        #: When it last began, or ended, to hold accelerators; else its submission.
        self.since_at: NDArray[np.float64] = np.zeros(size)
        self.entitled: NDArray[np.float64] = np.zeros((size, 0))
        self.owed: NDArray[np.float64] = np.zeros((size, 0))
        #: Accelerator-seconds entitled to, and received where entitled, with exponential decay (`settle_all`).
        self.promised: NDArray[np.float64] = np.zeros((size, 0))
        self.delivered: NDArray[np.float64] = np.zeros((size, 0))
        #: Whether owed time is counted: not under an order, nor for a mechanism with its own accounting.
        self.counts_owed = True
        self._forgotten_at = 0.0
        self._free = list(range(size - 1, -1, -1))

    def protected_from(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.float64]:
        """Returns from when on the jobs' present runs are protected: when all ranks were up, or should have been."""
        return np.minimum(self.running_at[rows], self.since_at[rows] + START_S)

    def new_slot(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def free_slot(self, slot: int) -> None:
        self.active[slot] = False
        self.eligible[slot] = False
        self._free.append(slot)

    def waiting_above(self, priority_class: int) -> NDArray[np.int64]:
        """Returns the slots of the jobs of higher classes that may start and hold nothing."""
        waits = self.active & self.eligible & (self.pool < 0)
        return np.flatnonzero(waits & (self.priority_class > priority_class))

    def slots_of(self, job_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the slots of these jobs; -1 for jobs that have ended."""
        rows = self.active.nonzero()[0]
        if not len(rows):
            return np.full(len(job_ids), -1)
        rows = rows[self.job_id[rows].argsort()]
        ids = self.job_id[rows]
        at = np.minimum(ids.searchsorted(job_ids), len(rows) - 1)
        return np.where(ids[at] == job_ids, rows[at], -1)

    def _grow(self) -> None:
        size = len(self.active)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                grown = np.zeros((2 * size, *column.shape[1:]), column.dtype)
                grown[:size] = column
                setattr(self, name, grown)
        self._free.extend(range(2 * size - 1, size - 1, -1))

    def set_pools(self, pools: int) -> None:
        """Adds columns for new pools."""
        more = np.zeros((len(self.active), pools - self.pools))
        grown = (np.hstack([column, more]) for column in self.by_pool)
        self.entitled, self.owed, self.promised, self.delivered = grown
        self.pools = pools

    @property
    def by_pool(self) -> tuple[NDArray[np.float64], ...]:
        """Returns the columns with an entry for each pool (slots, p)."""
        return self.entitled, self.owed, self.promised, self.delivered

    def forget_entitlements(self, at: float, pool: int | None = None) -> None:
        """Settles every row, and drops entitlements and owed time, of all pools or of this one."""
        self.settle_all(at, inf)
        for column in self.by_pool:
            column[:, slice(None) if pool is None else pool] = 0.0

    def hold(self, slot: int, parts: PoolParts) -> None:
        """Records what the row's job holds from now on. The row must be settled."""
        self.pool[slot], self.count[slot] = parts[0][0], sum([count for _, count in parts])
        if len(parts) > 1:
            self.parts[slot] = parts

    def let_go(self, slot: int) -> None:
        """Records that the row's job holds nothing. The row must be settled."""
        self.pool[slot], self.count[slot] = -1, 0.0
        self.parts.pop(slot, None)

    def settle(self, slot: int, at: float) -> None:
        """Brings one row's attained and owed service up to `at`."""
        passed = at - self.settled_at.item(slot)
        if passed <= 0:
            return
        self.settled_at[slot] = at
        pool, count = self.pool.item(slot), self.count.item(slot)
        if pool >= 0:
            self.attained_s[slot] += count * passed
        if not self.counts_owed:
            return
        entitled = self.entitled[slot]
        due = entitled * passed
        self.owed[slot] += due
        self.promised[slot] += due
        if pool >= 0:
            for there, held in self.parts.get(slot, ((pool, count),)):
                if entitled[there] > 0:
                    self.owed[slot, there] -= held * passed
                    self.delivered[slot, there] += held * passed

    def received(
        self, rows: NDArray[np.int64], passed: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Returns the accelerator-seconds that these rows (ascending) received in `passed` seconds, by pool.

        Parallel arrays: index in `rows`, pool, accelerator-seconds. One entry for each part of a row.
        """
        place = np.flatnonzero(self.pool[rows] >= 0)
        if self.parts:
            place = place[~np.isin(rows[place], list(self.parts))]
        pool, seconds = self.pool[rows[place]], self.count[rows[place]] * passed[place]
        if not self.parts:
            return place, pool, seconds
        parts = [(slot, *part) for slot, parts in self.parts.items() for part in parts]
        slots, there, held = (np.array(column, dtype=np.int64) for column in zip(*parts, strict=True))
        at = np.searchsorted(rows, slots)
        return np.append(place, at), np.append(pool, there), np.append(seconds, held * passed[at])

    def owed_at(self, at: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns the active slots, and what each is owed at this instant by pool. Settles nothing."""
        rows = self.active.nonzero()[0]
        passed = np.maximum(at - self.settled_at[rows], 0.0)
        owed: NDArray[np.float64] = self.owed[rows] + self.entitled[rows] * passed[:, None]
        held, pool, received = self.received(rows, passed)
        counted = self.entitled[rows[held], pool] > 0
        owed[held[counted], pool[counted]] -= received[counted]
        return rows, owed

    def settle_all(self, at: float, limit_s: float) -> None:
        """Brings every active row up to `at`; limits owed time to `limit_s` seconds of a gang, positive or negative.

        Promised and delivered time decay at the same pace: time `limit_s` seconds ago counts 1/e.
        """
        if not (self.counts_owed and any(column.any() for column in self.by_pool)):
            # Under an order no job is entitled to anything; `count` is 0 for jobs that hold nothing and for free rows.
            self.attained_s += self.count * np.maximum(at - self.settled_at, 0.0)
            self.settled_at[:] = at
            self._forgotten_at = at
            return
        rows = self.active.nonzero()[0]
        passed = np.maximum(at - self.settled_at[rows], 0.0)
        if self._forgotten_at == at and not passed.any():  # a round's end and a solve at one instant
            self.owed[rows] = self._clipped(self.owed[rows], rows, limit_s)
            return
        self.settled_at[rows] = at
        entitled, owed, delivered = self.entitled[rows], self.owed[rows], self.delivered[rows]
        due = entitled * passed[:, None]
        owed += due
        holding = self.pool[rows] >= 0
        self.attained_s[rows[holding]] += self.count[rows[holding]] * passed[holding]
        held, pool, received = self.received(rows, passed)
        counted = entitled[held, pool] > 0
        held, pool, received = held[counted], pool[counted], received[counted]
        owed[held, pool] -= received
        delivered[held, pool] += received
        kept = exp(-max(at - self._forgotten_at, 0.0) / max(limit_s, 1.0))
        self._forgotten_at = at
        self.promised[rows] = (self.promised[rows] + due) * kept
        self.delivered[rows] = delivered * kept
        self.owed[rows] = self._clipped(owed, rows, limit_s)

    def _clipped(self, owed: NDArray[np.float64], rows: NDArray[np.int64], limit_s: float) -> NDArray[np.float64]:
        """Limits owed time of these rows to `limit_s` seconds of a gang, positive or negative."""
        if limit_s == inf:
            return owed
        bound = limit_s * self.gang[rows][:, None]
        return np.minimum(np.maximum(owed, -bound), bound)
