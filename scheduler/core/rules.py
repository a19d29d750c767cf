"""How shares of time become starts and stops. A value: another scheduler's mechanism is other numbers, never a flag."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field


class Backfill(StrEnum):
    """Who may use places that the first job in line cannot use."""

    NONE = "none"
    #: Jobs that end, or can be stopped, before the reservation needs the place.
    EASY = "easy"
    #: Anybody; the first in line is not protected.
    FREE = "free"


#: Our own mechanism (`rounds.py`): whoever is owed most runs.
OWED = "owed"


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent (`budgets.py`)."""

    #: Whose jobs' money; empty: all money of the cluster, rented machines that idle included.
    project: str = ""
    #: In all, and in a month of the calendar (UTC), USD; None: no limit.
    usd: float | None = None
    month_usd: float | None = None
    #: The part of a limit at which people are warned.
    warn_at: float = 0.8


@dataclass(frozen=True, slots=True)
class RoundRules:
    """The round mechanism (seconds unless said)."""

    #: Which mechanism these numbers are for. A server knows "owed"; a simulation may be handed others.
    mechanism: str = OWED
    #: Length of a round: running jobs are compared with waiting ones once a round. 0: at every event.
    round_s: float = 360.0
    #: A dirty core asks for a new solve no sooner than this after the last request.
    resolve_min_s: float = 60.0
    #: An accelerator whose job ended stays idle until the round ends (other schedulers' mechanism).
    idle_to_round_end: bool = False
    backfill: Backfill = Backfill.EASY
    #: A challenger must be owed this many times the cost of the exchange more than the incumbent. Under an order: the
    #: incumbent must have run this many times that long.
    hysteresis: float = 2.0
    #: Under shares: the part of what a job has received by which it may lag behind its share while others keep the
    #: place that it waits for; at most half of what is remembered of owed time. 0: none, however long the jobs are.
    tolerated_lag: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    #: An incumbent is safe from challengers of its class for this long.
    min_runtime_s: float = 60.0
    #: Reservations for gangs that fit nowhere, per pool.
    max_reservations: int = 1
    #: A place where the job has no share may be used while free if the speed there is at least this part of its best.
    opportunistic_rate: float = 0.25
    #: Cost of a restart (checkpoint + start + warm-up) until it is measured for the kind.
    restart_default_s: float = 60.0
    #: Entitlements not received (or received in advance) are remembered up to this many rounds.
    owed_limit_rounds: float = 10.0
    #: Length of a profiling lease, and the largest part of the fleet that may profile at once.
    profiling_s: float = 60.0
    profiling_share: float = 0.25
    #: A kind is sent to an unmeasured pool only if its jobs have this many times the cost of a restart left to run.
    profiling_payback: float = 10.0
    #: A gang must be prepared on all machines within this time.
    prepare_timeout_s: float = 60.0
    #: Wait after a failed attempt: this long, doubled with each failure, at most 32 times.
    backoff_s: float = 5.0
    #: A machine on which this many distinct jobs failed within `quarantine_window_s`, and none succeeded since, takes
    #: no more jobs; at most a quarter of a pool's owned machines.
    quarantine_jobs: int = 3
    quarantine_window_s: float = 3600.0
    #: What an hour of a job is worth, USD, where neither job nor project says; 0: never rent for it.
    delay_usd_per_h: float = 0.0
    #: A rented machine is kept idle this long before it is released.
    rent_keep_s: float = 300.0
    #: After a request for machines that failed, the next one waits: this long, doubled with each failure in a row, at
    #: most `rent_backoff_max_s`. A machine that comes begins anew.
    rent_backoff_s: float = 30.0
    rent_backoff_max_s: float = 1800.0
    #: What may be spent; a job may have a budget of its own besides.
    budgets: tuple[Budget, ...] = ()

    @property
    def owed_limit_s(self) -> float:
        """Seconds of a gang that are remembered of owed time, either way."""
        return self.owed_limit_rounds * max(self.round_s, 1.0)
