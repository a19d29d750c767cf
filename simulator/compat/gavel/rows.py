"""What Gavel's round mechanism remembers: one row per job, and one per two jobs that may share accelerators.

Rows are in order of creation (a job's own, then its pairs with the jobs then active, by id), which breaks ties.
All arrays have one column per pool.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.problem import BoolArray, FloatArray, IntArray
from walras.ids import JobId

#: The second member of a row for one job.
ALONE = JobId(-1)

#: Where each selected job is to run: its pool and the job it shares accelerators with.
Selection = dict[JobId, tuple[int, JobId]]


@dataclass(slots=True)
class NewRow:
    """A job, or two of equal gangs, and the pools where (both) members have a speed."""

    first: JobId
    second: JobId
    count: int
    runs: BoolArray


class Rows:
    """Time received, deficit and share of every row on every pool."""

    def __init__(self, pools: int, prior_s: float) -> None:
        self._prior_s = prior_s
        self._index: dict[tuple[int, int], int] = {}
        self.first: IntArray = np.zeros(0, np.int64)
        self.second: IntArray = np.zeros(0, np.int64)
        self.count: IntArray = np.zeros(0, np.int64)
        self.runs: BoolArray = np.zeros((0, pools), bool)
        self.time_s: FloatArray = np.zeros((0, pools))
        #: What all rows had received by the last solve and have since, those included that are gone.
        self.busy_s: FloatArray = np.zeros(pools)
        self.deficit_s: FloatArray = np.zeros((0, pools))
        #: Of the last solve, not rounded: noise of 1e-9 orders the rows that fill what is left.
        self.share: FloatArray = np.zeros((0, pools))
        #: The last solve was about the members.
        self.allocated: BoolArray = np.zeros(0, bool)
        #: (members, gang, allocated) of every row, as the greedy pass reads them; made anew when rows or shares change.
        self._plain: list[tuple[int, int, int, bool]] = []

    def __len__(self) -> int:
        return len(self.first)

    def add(self, new: Sequence[NewRow]) -> None:
        """A new job has half a round to its account before it begins, a new pair nothing."""
        if not new:
            return
        alone = np.array([row.second == ALONE for row in new])
        pools = self.runs.shape[1]
        fresh = np.zeros((len(new), pools))
        self.first = np.append(self.first, [row.first for row in new])
        self.second = np.append(self.second, [row.second for row in new])
        self.count = np.append(self.count, [row.count for row in new])
        self.runs = np.vstack([self.runs, [row.runs for row in new]])
        self.time_s = np.vstack([self.time_s, fresh + np.where(alone, self._prior_s, 0.0)[:, None]])
        self.deficit_s = np.vstack([self.deficit_s, fresh])
        self.share = np.vstack([self.share, fresh])
        self.allocated = np.append(self.allocated, np.zeros(len(new), bool))
        self._reindex()

    def drop(self, ended: Collection[JobId]) -> None:
        """These jobs are over: their rows go, and those of every pair they were in."""
        stays = np.ones(len(self), bool)
        for job_id in ended:  # hardly ever more than one in a round
            stays &= (self.first != job_id) & (self.second != job_id)
        self.first, self.second, self.count = self.first[stays], self.second[stays], self.count[stays]
        self.runs, self.time_s, self.deficit_s = self.runs[stays], self.time_s[stays], self.deficit_s[stays]
        self.share, self.allocated = self.share[stays], self.allocated[stays]
        self._reindex()

    def _reindex(self) -> None:
        pairs = zip(self.first.tolist(), self.second.tolist(), strict=True)
        self._index = {pair: row for row, pair in enumerate(pairs)}
        self._list_plainly()

    def _list_plainly(self) -> None:
        columns = (self.first.tolist(), self.second.tolist(), self.count.tolist(), self.allocated.tolist())
        self._plain = list(zip(*columns, strict=True))

    def find(self, first: JobId, second: JobId) -> int | None:
        """Row of a job, or of a pair in the order of their numbers; None if it is gone."""
        return self._index.get((first, second))

    def row(self, first: JobId, second: JobId = ALONE) -> int:
        """Row of a job or of a pair (members in either order)."""
        return self._index[first, second] if second == ALONE or first < second else self._index[second, first]

    def credit(self, received: Iterable[tuple[int | None, int, float]]) -> None:
        """These (row, pool) received so many seconds in the round that has ended; None: the row is gone.

        A row is there once.
        """
        busy_s, known = self.busy_s.tolist(), []
        for cell in received:
            busy_s[cell[1]] += cell[2]  # one by one: the order of a sum decides its last digit
            if cell[0] is not None:
                known.append(cell)
        self.busy_s[:] = busy_s
        if known:
            rows, pools, times_s = zip(*known, strict=True)
            self.time_s[rows, pools] += times_s

    def settle(self, since_s: float) -> None:
        """Before a solve: what each row should have had in the last `since_s` seconds against what it got."""
        due_s = np.where(self.allocated[:, None], self.share * since_s, 0.0)
        self.deficit_s += due_s - (self.time_s - self._prior_s)
        self.time_s[:] = self._prior_s
        self.busy_s[:] = self._prior_s * len(self)

    def allocate(self, asked: Iterable[JobId], cells: Sequence[tuple[int, int]], shares: Sequence[float]) -> None:
        """The answer of a solve: shares of (row, pool), and whom it was about."""
        known = {ALONE, *asked}
        members = zip(self.first.tolist(), self.second.tolist(), strict=True)
        self.allocated = np.array([first in known and second in known for first, second in members], bool)
        self._list_plainly()
        self.share[:] = 0.0
        if cells:
            rows, pools = np.array(cells).T
            self.share[rows, pools] = np.clip(shares, 0.0, 1.0)

    def select(self, pools: Sequence[int], free: Sequence[int], *, only_shares: bool) -> Selection:
        """Who runs the next round: one greedy pass per pool, by share over time received, then deficit, then share.

        A row that the last solve did not know takes its place like any other, and then leaves it empty.
        `only_shares`: rows without a share fill nothing.
        """
        # Divided twice, as in Gavel: shares that differ in the last digit may be equal afterwards, or not.
        part = self.time_s / np.maximum(self.busy_s, self._prior_s)
        priority = np.divide(self.share, part, out=np.zeros(part.shape), where=part > 0)
        allowed = self.runs & (priority > 0) if only_shares else self.runs
        order = np.lexsort((-self.share, -self.deficit_s, -priority), axis=0)
        taken: set[int] = set()
        chosen: Selection = {}
        rows = self._plain
        for pool in pools:
            ranked = order[:, pool]
            _fill(pool, free[pool], [rows[row] for row in ranked[allowed[ranked, pool]].tolist()], taken, chosen)
        return chosen


def _fill(
    pool: int, free: int, ranked: Sequence[tuple[int, int, int, bool]], taken: set[int], chosen: Selection
) -> None:
    """Give what is free on the pool to these rows (members, gang, known to the last solve), the first first."""
    for first, second, count, allocated in ranked:
        if count > free or first in taken or second in taken:
            continue
        taken.add(first)
        if second != ALONE:
            taken.add(second)
        free -= count
        if allocated:
            chosen[JobId(first)] = pool, JobId(second)
            if second != ALONE:
                chosen[JobId(second)] = pool, JobId(first)
        if not free:
            return
