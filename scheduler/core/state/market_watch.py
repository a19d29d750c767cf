"""What is known of spot markets by requesting machines, and the jobs that hold machines by their slack.

A market is a set of spot pools, the zones in which a job may run. Whether it has machines is observed when one is held,
arrives, or is refused; `optimizer.planning.slack_policy` models what follows for the next hours. All jobs share the
observations.
"""

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from walras.job_request import JobId

if TYPE_CHECKING:  # loaded by the first job that spends its slack: most clusters have none
    from optimizer.planning.slack_policy import MarketBelief, SlackPlans

#: An observation made at this fraction of a slot or later counts as one slot later.
_EARLY = 0.9
#: Maximum of markets kept at once; the oldest are dropped.
_MARKETS_MOST = 1000


@dataclass(slots=True)
class WatchedMarket:
    """A set of spot pools, observed as one market."""

    belief: "MarketBelief"
    #: Length of a slot, seconds.
    slot_s: float
    seen_at: float = -inf
    #: Whether it had a machine at the last observation; None: there was none yet.
    available: bool | None = None

    def see(self, now: float, *, available: bool) -> None:
        """Records an observation: at most once a slot, but at once if availability changed."""
        if self._is_news(now, available):
            self.belief.see(available, self._slots(now))
            self.seen_at, self.available = now, available

    def if_it_were(self, now: float, *, available: bool) -> "MarketBelief":
        """Returns the belief that would follow from this observation now."""
        return self.belief.seen(available, self._slots(now)) if self._is_news(now, available) else self.belief

    def _is_news(self, now: float, available: bool) -> bool:
        return available != self.available or now >= self.seen_at + _EARLY * self.slot_s

    def _slots(self, now: float) -> int:
        """Returns the slots since the last observation, at least 1."""
        return 1 if self.available is None else max(1, round((now - self.seen_at) / self.slot_s))


@dataclass(slots=True)
class SpotHold:
    """State of a job that holds spot machines, on-demand machines or none by its slack."""

    #: When the choice is made again.
    look_at: float = -inf
    #: Row of the spot pool of an open request, -1: none; and when the request was made.
    asked: int = -1
    asked_at: float = -inf
    #: Row of the class, and so the gang size, as which the job is to run there.
    asked_as: int = -1
    #: Rows of the on-demand pools of the last choice, by row of the class.
    sure: dict[int, int] = field(default_factory=dict)
    #: When the market reclaimed its machine; -inf: never.
    lost_at: float = -inf
    #: Rows of spot pools that refused a machine since the last choice.
    refused: set[int] = field(default_factory=set)
    #: Basis of the choice: USD per machine-hour by pool row, and the job's steps per second there.
    prices: dict[int, float] = field(default_factory=dict)
    steps_per_s: float = 0.0
    #: Why it holds what it holds, in words; empty before the first choice.
    why: str = ""


@dataclass(slots=True)
class SpotWatch:
    """The markets, and the jobs on them."""

    holds: dict[JobId, SpotHold] = field(default_factory=dict)
    #: When each spot pool was last asked for a deadline's sake, by row.
    asked_at: dict[int, float] = field(default_factory=dict)
    #: When an unfinished plan was last computed further.
    planned_at: float = -inf
    _markets: dict[tuple[int, ...], WatchedMarket] = field(default_factory=dict)
    _plans: "SlackPlans | None" = None

    @property
    def plans(self) -> "SlackPlans":
        """Returns the plans of what to hold by slack, shared by equal jobs."""
        if self._plans is None:
            from optimizer.planning.slack_policy import SlackPlans

            self._plans = SlackPlans()
        return self._plans

    def market(self, zones: tuple[int, ...]) -> WatchedMarket:
        """Returns these pools (rows, ascending) as one market; makes it on first use."""
        known = self._markets.get(zones)
        if known is None:
            from optimizer.planning.slack_policy import WATCH_S, market_belief

            if len(self._markets) >= _MARKETS_MOST:
                del self._markets[next(iter(self._markets))]
            known = self._markets[zones] = WatchedMarket(market_belief(len(zones)), WATCH_S)
        return known

    def may_ask(self, row: int, now: float) -> bool:
        """Returns whether a pool that refused a machine may be asked again, which is once a slot."""
        from optimizer.planning.slack_policy import WATCH_S

        return now >= self.asked_at.get(row, -inf) + _EARLY * WATCH_S
