"""The least share of a fleet with which a job ends by its deadline, beside what is promised to others already.

A promise is a number of accelerators of one pool in every interval from now on. With a share k, a job has in each
interval its largest configuration of at most k accelerators that are left there; every change costs it a restart. The
minimum satisfactory share (ElasticFlow, ASPLOS 2023) is the smallest k with which it ends in time. Times are in seconds
from now.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from math import inf

from optimizer.problem import FloatArray

_TINY = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class ScalingCurve:
    """A job's configurations in one pool, ascending (k,): row of `Columns`, accelerators, steps per second."""

    pool: int
    column: tuple[int, ...]
    count: tuple[float, ...]
    speed: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DeadlineNeed:
    """The work that a job has left, and the instant by which it must be done."""

    steps: float
    due_s: float
    restart_s: float
    #: The column in which the job runs now, -1: none.
    running: int


@dataclass(frozen=True, slots=True)
class PromisedInterval:
    """An interval of time in which a job keeps one configuration (rung -1: it has none)."""

    start_s: float
    end_s: float
    rung: int


@dataclass(frozen=True, slots=True)
class SharePromise:
    """A share of one pool promised to a job: its configuration in each interval, and when the job ends (inf: never)."""

    ladder: ScalingCurve
    stretches: tuple[PromisedInterval, ...]
    ends_s: float

    @property
    def cost(self) -> float:
        """Accelerator-seconds that the job holds until its end."""
        return sum(
            (each.end_s - each.start_s) * self.ladder.count[each.rung] for each in self.stretches if each.rung >= 0
        )

    @property
    def column(self) -> int:
        """Column in which the job is now, -1: none."""
        first = self.stretches[0].rung if self.stretches else -1
        return self.ladder.column[first] if first >= 0 else -1


@dataclass(slots=True, eq=False)
class PoolTimeline:
    """What is left of a pool: `free[i]` accelerators from `start_s[i]` to the next."""

    start_s: list[float]
    free: list[float]

    def take(self, start_s: float, end_s: float, count: float) -> None:
        """Promises `count` accelerators in an interval, and takes them from what is left."""
        for instant in (start_s, end_s):
            self._cut(instant)
        for at in range(bisect_left(self.start_s, start_s), bisect_left(self.start_s, end_s)):
            self.free[at] -= count

    def _cut(self, instant: float) -> None:
        if instant == inf:
            return
        at = bisect_right(self.start_s, instant) - 1
        if self.start_s[at] < instant:
            insort(self.start_s, instant)
            self.free.insert(at + 1, self.free[at])


@dataclass(slots=True, eq=False)
class PromisedShares:
    """What is left in every pool after all promises so far."""

    timelines: list[PoolTimeline] = field(default_factory=list)

    @classmethod
    def of(cls, capacity: FloatArray) -> "PromisedShares":
        """Returns pools of this capacity (p,) in which nothing is promised yet."""
        return cls([PoolTimeline([0.0], [float(count)]) for count in capacity])

    def least(self, ladders: list[ScalingCurve], need: DeadlineNeed) -> SharePromise | None:
        """Returns the cheapest of the minimum satisfactory shares, one per curve; None where no share ends the job in
        time.
        """
        found = [promise for ladder in ladders if (promise := self._least_in(ladder, need)) is not None]
        return min(found, key=lambda promise: promise.cost, default=None)

    def soonest(self, ladders: list[ScalingCurve], need: DeadlineNeed) -> SharePromise | None:
        """Returns the share with which the job ends soonest, in time or not; None where no share ever ends it."""
        found = [self._follow(ladder, rung, need) for ladder in ladders for rung in range(len(ladder.count))]
        best = min(found, key=lambda promise: (promise.ends_s, promise.cost), default=None)
        return best if best is not None and best.ends_s < inf else None

    def keep(self, promise: SharePromise) -> None:
        """Subtracts the promised accelerators from what is left."""
        timeline = self.timelines[promise.ladder.pool]
        for each in promise.stretches:
            if each.rung >= 0:
                timeline.take(each.start_s, each.end_s, promise.ladder.count[each.rung])

    def _least_in(self, ladder: ScalingCurve, need: DeadlineNeed) -> SharePromise | None:
        fastest = 0.0
        for rung, speed in enumerate(ladder.speed):
            fastest = max(fastest, speed)
            if need.steps > fastest * need.due_s:
                continue  # The job misses its deadline even with the whole pool to itself.
            promise = self._follow(ladder, rung, need)
            if promise.ends_s <= need.due_s + _TINY:
                return promise
        return None

    def _follow(self, ladder: ScalingCurve, most: int, need: DeadlineNeed) -> SharePromise:
        """Returns the promise that follows from a share as large as the curve's rung `most`."""
        timeline = self.timelines[ladder.pool]
        left, held, owed_s = need.steps, need.running, 0.0
        stretches: list[PromisedInterval] = []
        for at, start_s in enumerate(timeline.start_s):
            end_s = timeline.start_s[at + 1] if at + 1 < len(timeline.start_s) else inf
            rung = bisect_right(ladder.count, timeline.free[at] + _TINY, 0, most + 1) - 1
            if rung < 0:
                stretches.append(PromisedInterval(start_s, end_s, -1))
                held = -1
                continue
            if ladder.column[rung] != held:
                held, owed_s = ladder.column[rung], need.restart_s
            ends_s = start_s + owed_s + left / ladder.speed[rung]
            stretches.append(PromisedInterval(start_s, min(end_s, ends_s), rung))
            if ends_s <= end_s:
                return SharePromise(ladder, tuple(stretches), ends_s)
            left -= max(end_s - start_s - owed_s, 0.0) * ladder.speed[rung]
            owed_s = max(owed_s - (end_s - start_s), 0.0)
        return SharePromise(ladder, tuple(stretches), inf)
