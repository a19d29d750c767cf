"""What a pool's own machines teach of how long machines live there, and with how much warning they end.

A machine that the market takes, or that is lost, has ended; one that the scheduler or a person gave back was merely
watched until then. Ages count from when a rented machine was first paid for. The law that follows (`learnt_law`) is
rebuilt when there is notably more evidence, so that machines that come and go cost nothing each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from optimizer.renting.checkpoint_interval import CheckpointSchedule
from optimizer.renting.lifetime_laws import (
    MACHINES_REMEMBERED,
    LearntLifetime,
    LifetimeRecord,
    RememberedLives,
    WatchedLife,
    lifetime_of,
)
from optimizer.renting.spot_lifetimes import ExponentialLifetime, Lifetime
from walras.cluster import Market, Pool
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import Kind
from walras.machine_lifetime import parse_lifetime

#: Before anything was seen: ends per machine-hour of spot machines, and of machines that nobody means to take away.
_SPOT_PER_H, _FAILURES_PER_H = 1 / 24, 1 / 2160
#: A law that the pool states is believed like so many ends that were seen.
_STATED_WEIGHT = 200.0
#: A law is rebuilt when ends, or watched hours, have grown by this part.
_NEWS_PART = 0.1
#: Living machines looked at, at most, for the hours that living ones were watched.
_LOOKED_AT = 2000


@dataclass(slots=True)
class MachineLifetimes:
    """Machine-seconds that a pool has lived, including machines that are gone, and how many the market revoked."""

    revocations: int = 0
    #: Of machines that are gone; and of those here: how many, and the sum of when they came.
    past_s: float = 0.0
    here: int = 0
    came_at_sum: float = 0.0
    #: Of machines that are gone.
    record: LifetimeRecord = field(default_factory=LifetimeRecord)
    #: All that ended, remembered or not.
    ends: int = 0
    #: The shortest warning that a machine's end was announced with, seconds; None: none was announced yet.
    shortest_warning_s: float | None = None
    #: Laws of all ends, and of those without a warning, with the ends and hours that each was built from.
    laws: dict[bool, tuple[LearntLifetime, int, float]] = field(default_factory=dict)
    #: Checkpoint schedules of single machines, by law, time of writing (rounded) and price of lost work.
    schedules: dict[tuple[bool, int, float], CheckpointSchedule] = field(default_factory=dict)
    #: Number of an event, and by kind the interval of an attempt on one machine of any age, as planned at that event.
    planned_at_event: int = -1
    planned: dict[Kind, float] = field(default_factory=dict)

    def began(self, at: float) -> None:
        self.here += 1
        self.came_at_sum += at

    def ended(self, at: float, came_at: float, *, taken: bool) -> None:
        """Of a machine that came then. `taken`: the market took it back."""
        self.here -= 1
        self.came_at_sum -= came_at
        self.past_s += at - came_at
        self.revocations += taken

    def lived_s(self, now: float) -> float:
        """Machine-seconds until now."""
        return self.past_s + self.here * now - self.came_at_sum

    def saw_end(self, from_h: float, age_h: float, *, has_ended: bool, warning_s: float | None) -> None:
        """A machine that was watched from one age to another is gone. `warning_s`: how long before it was known."""
        self.record.gone.append(WatchedLife(from_h, age_h, has_ended, warning_s is not None))
        self.ends += has_ended
        if has_ended and warning_s is not None:
            shortest = self.shortest_warning_s
            self.shortest_warning_s = warning_s if shortest is None else min(shortest, warning_s)

    def warning_s(self, pool: Pool) -> float:
        """The warning that can be counted on, seconds: what the pool states, or less where less was seen."""
        seen = self.shortest_warning_s
        return pool.notice_s if seen is None else min(pool.notice_s, seen)


def learnt_law(
    lives: MachineLifetimes, pool: Pool, living: Callable[[], list[WatchedLife]], now: float, *, unwarned: bool
) -> LearntLifetime:
    """The law of the pool's machines. `unwarned`: of ends without a warning only. `living`: those that are here."""
    hours = lives.lived_s(now) / SECONDS_PER_HOUR
    known = lives.laws.get(unwarned)
    if known is not None and lives.ends <= known[1] * (1 + _NEWS_PART) and hours <= known[2] * (1 + _NEWS_PART):
        return known[0]
    weight = _STATED_WEIGHT if pool.lifetime else 1.0
    seen = [*lives.record.gone, *living()[:_LOOKED_AT]]
    law = LearntLifetime.of(_prior(pool, unwarned=unwarned), seen, weight=weight, unwarned=unwarned)
    lives.laws[unwarned] = law, lives.ends, hours
    return law


def _prior(pool: Pool, *, unwarned: bool) -> Lifetime:
    """What holds before anything is seen: what the pool states; or else a constant rate."""
    if pool.market is not Market.SPOT or (unwarned and pool.notice_s > 0):
        return ExponentialLifetime(_FAILURES_PER_H)
    return lifetime_of(parse_lifetime(pool.lifetime)) if pool.lifetime else ExponentialLifetime(_SPOT_PER_H)


def dump_lifetimes(lives: MachineLifetimes, living: list[WatchedLife]) -> RememberedLives:
    """The record as plain numbers: (from, until, whether it ended, whether it was warned) of each machine.

    A machine that is here is told as one that was watched until now; its successor watches it from its age then.
    """
    rows = [(each.from_h, each.until_h, each.has_ended, each.was_warned) for each in (*lives.record.gone, *living)]
    return tuple(rows[-MACHINES_REMEMBERED:]), lives.shortest_warning_s


def recall_lifetimes(lives: MachineLifetimes, told: RememberedLives) -> None:
    """Take in what `dump_lifetimes` wrote."""
    rows, lives.shortest_warning_s = told
    lives.record.gone.extend(WatchedLife(*row) for row in rows)
    lives.ends = sum(life.has_ended for life in lives.record.gone)
