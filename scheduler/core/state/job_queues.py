"""Queues of waiting jobs: one per pool and resource shape, most urgent job first.

A queue is a sorted array, filled once a round and read once, and a heap of jobs that came since. Both are cleaned
lazily: an entry whose job no longer waits, or came again with another key, is dropped when it reaches the head. So a
free place finds its next job in time linear in the number of shapes, not of jobs.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Set
from heapq import heappop, heappush, merge
from itertools import islice

from scheduler.core.state.ledger import JobRecord, Ledger
from walras.job_request import JobId
from walras.states import JobState

#: Smallest first. Keys end in the job id, so no two are equal.
QueueKey = tuple[float, ...]


class ShapeQueue:
    """One pool's queue of jobs of one resource shape."""

    __slots__ = ("_at", "_coming", "_late", "_newest", "_planned", "count", "part")

    def __init__(self, count: int, part: int) -> None:
        #: Accelerators of its gangs: in total, and at most on one machine.
        self.count = count
        self.part = part
        #: Sorted entries read so far, and an iterator over the rest.
        self._planned: list[tuple[QueueKey, JobId]] = []
        self._coming: Iterator[tuple[QueueKey, JobId]] = iter(())
        self._at = 0
        self._late: list[tuple[QueueKey, JobId]] = []
        #: Newest key of each job that came since; entries of the job with another key are stale.
        self._newest: dict[JobId, QueueKey] = {}

    def plan(self, entries: Iterable[tuple[QueueKey, JobId]]) -> None:
        """Replaces all entries by these sorted ones. They are read lazily, because few are read of most queues."""
        self._planned, self._coming, self._at = [], iter(entries), 0
        self._late.clear()
        self._newest.clear()

    def push(self, key: QueueKey, job_id: JobId) -> None:
        heappush(self._late, (key, job_id))
        self._newest[job_id] = key

    def head(self, is_waiting: Callable[[JobId], bool]) -> tuple[QueueKey, JobId] | None:
        """Returns the most urgent entry whose job still waits; None if there is none."""
        planned, late, newest = self._planned, self._late, self._newest
        while self._at < len(planned) or self._draws():
            job_id = planned[self._at][1]
            if job_id not in newest and is_waiting(job_id):
                break
            self._at += 1
        while late:
            key, job_id = late[0]
            is_newest = newest.get(job_id) == key
            if is_newest and is_waiting(job_id):
                break
            if is_newest:
                del newest[job_id]
            heappop(late)
        if self._at < len(planned) and (not late or planned[self._at] <= late[0]):
            return planned[self._at]
        return late[0] if late else None

    def floor(self) -> QueueKey | None:
        """Returns the key of the first entry, stale ones included: `head` has none before it. None without entries."""
        late = self._late
        if self._at < len(self._planned) or self._draws():
            first = self._planned[self._at][0]
            return first if not late or first <= late[0][0] else late[0][0]
        return late[0][0] if late else None

    def _draws(self) -> bool:
        """Reads one more entry of the sorted ones. Returns False if there is none."""
        entry = next(self._coming, None)
        if entry is None:
            return False
        self._planned.append(entry)
        return True

    def first(self, most: int) -> Iterator[tuple[QueueKey, JobId]]:
        """Yields the first entries in order, stale ones included and counted."""
        yield from islice(merge(self._read(), _ascending(self._late)), most)

    def _read(self) -> Iterator[tuple[QueueKey, JobId]]:
        """Yields the sorted entries as far as they are asked for; ends if they are replaced meanwhile."""
        planned, at = self._planned, self._at
        while planned is self._planned and (at < len(planned) or self._draws()):
            yield planned[at]
            at += 1

    def is_stale(self, key: QueueKey, job_id: JobId) -> bool:
        """Returns whether the job came again with another key."""
        return self._newest.get(job_id, key) != key

    def before(self, key: QueueKey) -> Iterator[JobId]:
        """Yields jobs of entries before this key in no order, stale ones included."""
        self._planned.extend(self._coming)
        end = bisect_left(self._planned, (key,), lo=self._at)
        yield from (job_id for _, job_id in islice(self._planned, self._at, end))
        yield from (job_id for other, job_id in self._late if other < key)


def _ascending(heap: list[tuple[QueueKey, JobId]]) -> Iterator[tuple[QueueKey, JobId]]:
    """Yields a heap's entries in order without changing it: k entries cost O(k log k)."""
    frontier = [(heap[0], 0)] if heap else []
    while frontier:
        entry, at = heappop(frontier)
        yield entry
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(frontier, (heap[child], child))


class JobQueues:
    """Queues by pool and resource shape."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._queues: list[dict[int, ShapeQueue]] = []
        #: Jobs for which running jobs were preempted; they wait for that place and must not be given another.
        self.nominated: set[JobId] = set()
        #: Jobs that wait until their project or user may hold more (`placement_limits`).
        self.parked: Container[JobId] = ()
        #: (job, pool): the job waits until its project or user may hold more of that pool.
        self.barred: Set[tuple[JobId, int]] = frozenset()
        #: (job, pool): the job waits there until booked machines take it again (`bookings`).
        self.kept_off: Set[tuple[int, int]] = frozenset()
        #: (job, pool): the job waits there for another machine than those on which it failed (`retry_places`).
        self.avoiding: Set[tuple[JobId, int]] = frozenset()

    def clear(self) -> None:
        """Empties every queue, because pools, shapes or the policy changed, or the ordering is about to fill them."""
        self._queues = [{} for _ in self._ledger.fleet.pools]

    def queue(self, pool: int, shape: int) -> ShapeQueue:
        """Returns the queue of this pool and shape; makes it on first use."""
        queues = self._queues[pool]
        found = queues.get(shape)
        if found is None:
            taken, size = self._ledger.classes.shapes[shape], self._ledger.fleet.pools[pool].pool.shape.accelerators
            count = taken.counts[pool]
            found = queues[shape] = ShapeQueue(count, count // taken.nodes if taken.nodes > 1 else min(count, size))
        return found

    def push(self, job: JobRecord, pool: int, key: QueueKey) -> None:
        self.queue(pool, self._ledger.class_of(job).shape).push(key, job.job_id)

    def busy(self, pools: Iterable[int]) -> list[int]:
        """Returns the pools among these in which a job may be queued."""
        queues = self._queues
        return [pool for pool in pools if queues[pool]]

    def of(self, pool: int) -> list[tuple[int, ShapeQueue]]:
        """Returns (shape, queue) of every shape that may have a job queued on this pool."""
        return list(self._queues[pool].items())

    def head(self, pool: int, shape: int, queue: ShapeQueue) -> tuple[QueueKey, JobRecord] | None:
        """Returns (key, job) of the first waiting job in this queue of the pool; None if none waits."""
        is_any_passed_by = self.barred or self.kept_off or self.avoiding
        head = queue.head(self._waiting_on(pool) if is_any_passed_by else self.is_waiting)
        if head is not None:
            return head[0], self._ledger.jobs[head[1]]
        del self._queues[pool][shape]  # the next job makes it again; most events find it empty
        return None

    def _waiting_on(self, pool: int) -> Callable[[JobId], bool]:
        passed_by = self.barred, self.kept_off, self.avoiding
        return lambda job_id: self.is_waiting(job_id) and not any((job_id, pool) in each for each in passed_by)

    def behind(self, job: JobRecord, pool: int, most: int) -> Iterator[JobRecord]:
        """Yields waiting jobs of the same shape on this pool, in order, among the first `most` entries of its queue."""
        queue = self.queue(pool, self._ledger.class_of(job).shape)
        for _, job_id in queue.first(most):
            if job_id != job.job_id and self.is_waiting(job_id):
                yield self._ledger.jobs[job_id]

    def ahead(self, pool: int, key: QueueKey, most: int) -> int:
        """Returns the number of waiting jobs before this key in the pool's queues, counted up to `most`."""
        found: set[JobId] = set()  # a job may be queued twice, with its old key and its new one
        for queue in self._queues[pool].values():
            for job_id in queue.before(key):
                if self.is_waiting(job_id):
                    found.add(job_id)
                    if len(found) >= most:
                        return most
        return len(found)

    def in_order(self, most: int) -> Iterator[JobId]:
        """Yields waiting jobs by their most urgent key, each once, from the first `most` entries of each queue."""
        entries = (
            ((key, job_id) for key, job_id in queue.first(most) if not queue.is_stale(key, job_id))
            for queues in self._queues
            for queue in queues.values()
        )
        seen: set[JobId] = set()
        for _, job_id in merge(*entries):
            if job_id not in seen and self.is_waiting(job_id):
                seen.add(job_id)
                yield job_id

    def is_waiting(self, job_id: JobId) -> bool:
        """Returns whether the job may be started from a queue."""
        job = self._ledger.jobs.get(job_id)
        if job is None or job.state is not JobState.PENDING or job.place or job.blocked_by or job.over_budget:
            return False  # same as `waits`, inlined
        if job.awaits_turn:
            return False
        return job.ready_at <= self._ledger.now and job_id not in self.nominated and job_id not in self.parked
