"""The columns of the ledger: what a solve or a round plan reads of all jobs at once, and service settled in them.

A row is a slot: taken when a job comes, free again when it has ended. Only the core's handlers write here.
"""

from math import exp, inf

import numpy as np
from numpy.typing import NDArray


class Columns:
    """The columns, grown by doubling. Rows of free slots hold leftovers and have `active` False."""

    def __init__(self) -> None:
        size = 64
        self.pools = 0
        self.active: NDArray[np.bool_] = np.zeros(size, bool)
        self.job_id: NDArray[np.int64] = np.zeros(size, np.int64)
        self.class_row: NDArray[np.int64] = np.zeros(size, np.int64)
        #: The class as which its newest attempt was started.
        self.runs_as: NDArray[np.int64] = np.zeros(size, np.int64)
        self.priority_class: NDArray[np.int64] = np.zeros(size, np.int64)
        self.weight: NDArray[np.float64] = np.zeros(size)
        self.value_usd_per_h: NDArray[np.float64] = np.zeros(size)
        self.entity: NDArray[np.int64] = np.zeros(size, np.int64)
        self.submitted_at: NDArray[np.float64] = np.zeros(size)
        self.deadline_at: NDArray[np.float64] = np.zeros(size)
        self.steps_total: NDArray[np.float64] = np.zeros(size)
        self.steps: NDArray[np.float64] = np.zeros(size)
        #: When `steps` was last heard of in this attempt (or its ranks came up); inf while none runs.
        self.steps_at: NDArray[np.float64] = np.full(size, inf)
        #: The submitter's guess of the whole run on the best accelerator; inf without one.
        self.duration_s: NDArray[np.float64] = np.full(size, inf)
        #: True for a job that may be given accelerators: it waits or runs, and nothing but a place is missing.
        self.eligible: NDArray[np.bool_] = np.zeros(size, bool)
        #: Accelerators of the largest gang it may run as.
        self.gang: NDArray[np.float64] = np.ones(size)
        #: Pool it holds accelerators in (-1: none), how many, and whether it is entitled there.
        self.pool: NDArray[np.int64] = np.full(size, -1, np.int64)
        self.count: NDArray[np.float64] = np.zeros(size)
        #: When all ranks of its newest attempt were up (inf: they are not), and until when it learns a speed.
        self.running_at: NDArray[np.float64] = np.full(size, inf)
        self.profiling_until: NDArray[np.float64] = np.full(size, -inf)
        #: It was stopped once and had saved nothing.
        self.loses_work: NDArray[np.bool_] = np.zeros(size, bool)
        #: Accelerator-seconds received, and the instant up to which the row is settled.
        self.attained_s: NDArray[np.float64] = np.zeros(size)
        self.settled_at: NDArray[np.float64] = np.zeros(size)
        #: What it had received when an order policy last began to count its service anew.
        self.renewed_at_s: NDArray[np.float64] = np.zeros(size)
        #: When it last began, or ended, to hold accelerators; else its submission.
        self.since_at: NDArray[np.float64] = np.zeros(size)
        self.entitled: NDArray[np.float64] = np.zeros((size, 0))
        self.owed: NDArray[np.float64] = np.zeros((size, 0))
        #: Accelerator-seconds entitled to and received where entitled, old ones slowly forgotten (`settle_all`).
        self.promised: NDArray[np.float64] = np.zeros((size, 0))
        self.delivered: NDArray[np.float64] = np.zeros((size, 0))
        #: Whether it matters who is entitled to what: not under an order, nor to a mechanism with its own account.
        self.counts_owed = True
        self._forgotten_at = 0.0
        self._free = list(range(size - 1, -1, -1))

    def new_slot(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def free_slot(self, slot: int) -> None:
        self.active[slot] = False
        self.eligible[slot] = False
        self._free.append(slot)

    def _grow(self) -> None:
        size = len(self.active)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                grown = np.zeros((2 * size, *column.shape[1:]), column.dtype)
                grown[:size] = column
                setattr(self, name, grown)
        self._free.extend(range(2 * size - 1, size - 1, -1))

    def set_pools(self, pools: int) -> None:
        """Add columns for new pools."""
        more = np.zeros((len(self.active), pools - self.pools))
        self.entitled = np.hstack([self.entitled, more])
        self.owed = np.hstack([self.owed, more])
        self.promised = np.hstack([self.promised, more])
        self.delivered = np.hstack([self.delivered, more])
        self.pools = pools

    def settle(self, slot: int, at: float) -> None:
        """Bring one row's attained and owed service up to `at`."""
        passed = at - self.settled_at[slot]
        if passed <= 0:
            return
        self.settled_at[slot] = at
        pool, count = self.pool[slot], self.count[slot]
        if not self.counts_owed:
            if pool >= 0:
                self.attained_s[slot] += count * passed
            return
        entitled = self.entitled[slot]
        due = entitled * passed
        self.owed[slot] += due
        self.promised[slot] += due
        if pool >= 0:
            self.attained_s[slot] += count * passed
            if entitled[pool] > 0:
                self.owed[slot, pool] -= count * passed
                self.delivered[slot, pool] += count * passed

    def settle_all(self, at: float, limit_s: float) -> None:
        """Bring every active row up to `at`; remember at most `limit_s` seconds of a gang either way.

        What was promised and delivered is forgotten at the same pace: `limit_s` seconds ago counts 1/e.
        """
        rows = self.active.nonzero()[0]
        passed = np.maximum(at - self.settled_at[rows], 0.0)
        self.settled_at[rows] = at
        columns = (self.entitled, self.owed, self.promised, self.delivered)
        if not (self.counts_owed and any(column.any() for column in columns)):
            self.attained_s[rows] += np.where(self.pool[rows] >= 0, self.count[rows] * passed, 0.0)
            self._forgotten_at = at
            return  # an order: nobody is entitled to anything
        due = self.entitled[rows] * passed[:, None]
        self.owed[rows] += due
        self.promised[rows] += due
        holding = self.pool[rows] >= 0
        held, pool = rows[holding], self.pool[rows][holding]
        received = self.count[held] * passed[holding]
        self.attained_s[held] += received
        counted = self.entitled[held, pool] > 0
        self.owed[held[counted], pool[counted]] -= received[counted]
        self.delivered[held[counted], pool[counted]] += received[counted]
        kept = exp(-max(at - self._forgotten_at, 0.0) / max(limit_s, 1.0))
        self._forgotten_at = at
        self.promised[rows] *= kept
        self.delivered[rows] *= kept
        bound = limit_s * self.gang[rows][:, None]
        self.owed[rows] = np.clip(self.owed[rows], -bound, bound)
