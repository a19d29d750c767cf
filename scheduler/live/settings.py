"""The live server's own numbers, each with what it is for. The policy's numbers are in `RoundRules`."""

from dataclasses import dataclass, field

from walras.cluster import Market


def _lease_s() -> dict[str, float]:
    # An owned machine comes back more often than not; a silent spot machine is probably gone.
    return {Market.OWNED: 600.0, Market.ON_DEMAND: 600.0, Market.SPOT: 120.0}


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """Lengths in seconds unless said."""

    #: How long an attempt lives on after the last word between agent and server, by market.
    lease_s: dict[str, float] = field(default_factory=_lease_s)
    #: Added before a silent machine is given up: clocks of machines differ a little, answers travel.
    lease_margin_s: float = 5.0
    #: Pace of heartbeats when there is nothing to say.
    heartbeat_s: float = 5.0
    #: Silence after which a machine is shown as unreachable and gets no new jobs.
    unreachable_s: float = 15.0
    #: How long after a request its machines may still enrol with the request's own token.
    enrol_s: float = 1800.0
    #: A solve that takes longer is given up (the policy keeps its last answer).
    solve_timeout_s: float = 120.0
    #: Steps waiting for the loop; further requests are refused with 429.
    inbox_limit: int = 10_000
    #: Steps taken together in one transaction.
    batch_limit: int = 500
    #: Requests under way at once (waiting ones excepted).
    concurrency: int = 256
    #: Log kept of one rank; what comes later is dropped and said so.
    log_limit_bytes: int = 256 * 1024 * 1024
