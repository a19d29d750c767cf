"""What a pool's own machines show of how long machines live there, and with how much notice they end.

A machine that the market reclaims, or that is lost, has ended; the lifetime of one that the scheduler or a person
returned is censored. Ages count from when a rented machine was first paid for. The lifetime distribution (`learnt_law`)
is rebuilt only when there is notably more data, so that single machines that come and go cost nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from optimizer.renting.lifetime_laws import (
    MACHINES_REMEMBERED,
    CheckpointSchedule,
    ExponentialLifetime,
    LearntLifetime,
    Lifetime,
    LifetimeRecord,
    RememberedLives,
    WatchedLife,
    lifetime_of,
)
from walras.cluster import Market, Pool, parse_lifetime
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import Kind

#: Prior rates before any observation, ends per machine-hour: of spot machines, and of machines that are not reclaimed.
_SPOT_PER_H, _FAILURES_PER_H = 1 / 24, 1 / 2160
#: Number of observed ends that a distribution stated for the pool counts as.
_STATED_WEIGHT = 200.0
#: The distribution is rebuilt when ends, or observed hours, have grown by this fraction.
_NEWS_PART = 0.1
#: Maximum of living machines whose observed hours are used.
_LOOKED_AT = 2000


@dataclass(slots=True)
class MachineLifetimes:
    """Machine-seconds lived in a pool, including machines that are gone, and how many the market reclaimed."""

    revocations: int = 0
    #: Seconds lived by machines that are gone; number of present machines, and the sum of their arrival instants.
    past_s: float = 0.0
    here: int = 0
    came_at_sum: float = 0.0
    #: Lifetimes of machines that are gone.
    record: LifetimeRecord = field(default_factory=LifetimeRecord)
    #: Number of all ends, including those beyond the record's limit.
    ends: int = 0
    #: Shortest notice given before a machine's end, seconds; None: none was given yet.
    shortest_warning_s: float | None = None
    #: Distributions of all ends, and of ends without notice, each with the ends and hours from which it was built.
    laws: dict[bool, tuple[LearntLifetime, int, float]] = field(default_factory=dict)
    #: Checkpoint schedules of single machines, by distribution, time of writing (rounded) and price of lost work.
    schedules: dict[tuple[bool, int, float], CheckpointSchedule] = field(default_factory=dict)
    #: Number of an event, and by kind the interval planned at that event for an attempt on one machine of any age.
    planned_at_event: int = -1
    planned: dict[Kind, float] = field(default_factory=dict)

    def began(self, at: float) -> None:
        self.here += 1
        self.came_at_sum += at

    def ended(self, at: float, came_at: float, *, taken: bool) -> None:
        """Records the end of a machine that arrived at `came_at`. `taken`: the market reclaimed it."""
        self.here -= 1
        self.came_at_sum -= came_at
        self.past_s += at - came_at
        self.revocations += taken

    def lived_s(self, now: float) -> float:
        """Returns the machine-seconds lived until now."""
        return self.past_s + self.here * now - self.came_at_sum

    def saw_end(self, from_h: float, age_h: float, *, has_ended: bool, warning_s: float | None) -> None:
        """Records a machine that is gone, observed between two ages (hours).

        `warning_s`: its notice; None without one.
        """
        self.record.gone.append(WatchedLife(from_h, age_h, has_ended, warning_s is not None))
        self.ends += has_ended
        if has_ended and warning_s is not None:
            shortest = self.shortest_warning_s
            self.shortest_warning_s = warning_s if shortest is None else min(shortest, warning_s)

    def warning_s(self, pool: Pool) -> float:
        """Returns the notice to count on, seconds: what the pool states, or the shortest observed if that is less."""
        seen = self.shortest_warning_s
        return pool.notice_s if seen is None else min(pool.notice_s, seen)


def learnt_law(
    lives: MachineLifetimes, pool: Pool, living: Callable[[], list[WatchedLife]], now: float, *, unwarned: bool
) -> LearntLifetime:
    """Returns the lifetime distribution of the pool's machines.

    `unwarned` counts only ends without notice. `living` returns the present machines.
    """
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
    """Returns the prior: the distribution that the pool states, else a constant rate."""
    if pool.market is not Market.SPOT or (unwarned and pool.notice_s > 0):
        return ExponentialLifetime(_FAILURES_PER_H)
    return lifetime_of(parse_lifetime(pool.lifetime)) if pool.lifetime else ExponentialLifetime(_SPOT_PER_H)


def dump_lifetimes(lives: MachineLifetimes, living: list[WatchedLife]) -> RememberedLives:
    """Returns the record as plain numbers: (from, until, whether it ended, whether with notice) of each machine.

    A present machine is recorded as observed until now; a successor observes it from that age on.
    """
    rows = [(each.from_h, each.until_h, each.has_ended, each.was_warned) for each in (*lives.record.gone, *living)]
    return tuple(rows[-MACHINES_REMEMBERED:]), lives.shortest_warning_s


def recall_lifetimes(lives: MachineLifetimes, told: RememberedLives) -> None:
    """Restores what `dump_lifetimes` returned."""
    rows, lives.shortest_warning_s = told
    lives.record.gone.extend(WatchedLife(*row) for row in rows)
    lives.ends = sum(life.has_ended for life in lives.record.gone)
