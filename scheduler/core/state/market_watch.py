"""What is known of spot markets by asking for machines, and of the jobs that hold machines by their slack.

A market is a set of spot pools, the zones in which a job may be. Whether it has a machine is seen when one is held,
comes, or is refused; what follows for the next hours is believed as `optimizer.planning.slack_grid` has it. All jobs
share what was seen.
"""

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from walras.job_request import JobId

if TYPE_CHECKING:  # loaded by the first job that spends its slack: most clusters and simulations have none
    from optimizer.planning.slack_grid import SlackPlans
    from optimizer.planning.slack_policy import MarketBelief

#: Looks that come a little early still count as one slot later.
_EARLY = 0.9
#: Sets of pools that are watched at once; of more the oldest are forgotten.
_MARKETS_MOST = 1000


@dataclass(slots=True)
class WatchedMarket:
    """Some spot pools as one market."""

    belief: "MarketBelief"
    #: Length of a slot, seconds.
    slot_s: float
    seen_at: float = -inf
    #: Whether it had a machine when it was seen last; None: it was not seen yet.
    available: bool | None = None

    def see(self, now: float, *, available: bool) -> None:
        """Take in what is seen now; once a slot, and at once where it changes."""
        if self._is_news(now, available):
            self.belief.see(available, self._slots(now))
            self.seen_at, self.available = now, available

    def if_it_were(self, now: float, *, available: bool) -> "MarketBelief":
        """What would be believed if it were so now."""
        return self.belief.seen(available, self._slots(now)) if self._is_news(now, available) else self.belief

    def _is_news(self, now: float, available: bool) -> bool:
        return available != self.available or now >= self.seen_at + _EARLY * self.slot_s

    def _slots(self, now: float) -> int:
        """Since it was seen last."""
        return 1 if self.available is None else max(1, round((now - self.seen_at) / self.slot_s))


@dataclass(slots=True)
class SpotHold:
    """A job that holds spot machines, machines on demand or none by its slack."""

    #: When the choice is made again.
    look_at: float = -inf
    #: Row of the spot pool that was asked for a machine, -1: none; and when.
    asked: int = -1
    asked_at: float = -inf
    #: Row of the class as which the job is to run there: the size of its gang.
    asked_as: int = -1
    #: When the market took its machine; -inf: never.
    lost_at: float = -inf
    #: Spot pools that gave none since the last choice.
    refused: set[int] = field(default_factory=set)
    #: What the choice was made for: USD per machine-hour by row of the pool, and its steps per second there.
    prices: dict[int, float] = field(default_factory=dict)
    steps_per_s: float = 0.0
    #: Why it holds what it holds, in words; empty before the first choice.
    why: str = ""


@dataclass(slots=True)
class SpotWatch:
    """Markets, and the jobs on them."""

    holds: dict[JobId, SpotHold] = field(default_factory=dict)
    #: When each spot pool was last asked for the sake of a deadline, by row.
    asked_at: dict[int, float] = field(default_factory=dict)
    #: When a plan that was not ready was gone on with.
    planned_at: float = -inf
    _markets: dict[tuple[int, ...], WatchedMarket] = field(default_factory=dict)
    _plans: "SlackPlans | None" = None

    @property
    def plans(self) -> "SlackPlans":
        """What is worth holding, computed once for jobs that are alike."""
        if self._plans is None:
            from optimizer.planning.slack_grid import SlackPlans

            self._plans = SlackPlans()
        return self._plans

    def market(self, zones: tuple[int, ...]) -> WatchedMarket:
        """These pools (rows, ascending) as one market."""
        known = self._markets.get(zones)
        if known is None:
            from optimizer.planning.slack_grid import WATCH_S, market_belief

            if len(self._markets) >= _MARKETS_MOST:
                del self._markets[next(iter(self._markets))]
            known = self._markets[zones] = WatchedMarket(market_belief(len(zones)), WATCH_S)
        return known

    def may_ask(self, row: int, now: float) -> bool:
        """Whether a pool that gave no machine may be asked again: once a slot."""
        from optimizer.planning.slack_grid import WATCH_S

        return now >= self.asked_at.get(row, -inf) + _EARLY * WATCH_S
