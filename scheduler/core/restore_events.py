"""Events by which a shell restores a new core: jobs, requested machines and the memory of the core before it.

The shell sends `StateRestored` after the machines and before the jobs. Instants (`at`) are seconds since the cluster's
epoch.
"""

from dataclasses import dataclass
from math import inf

from optimizer.renting.lifetime_laws import RememberedLives
from scheduler.core.share_events import RememberedLengths, RememberedUse, RememberedWeights
from walras.cluster import NodeId, Placement, PoolId, Rendezvous
from walras.job_request import JobId, JobRequest, Kind
from walras.states import JobState, Reason


@dataclass(slots=True)
class JobRestored:
    """A job that was active before this core started: it waits, is held, or has a placement and may be running."""

    at: float
    job: JobRequest
    submitted_at: float
    state: JobState
    attempt: int = 0
    restarts: int = 0
    steps: float = 0.0
    safe_steps: float = 0.0
    attained_s: float = 0.0
    hold_reason: Reason | None = None
    placement: Placement | None = None
    leased_at: float = 0.0
    #: When all ranks were up; inf if they were not yet.
    running_at: float = inf
    #: Machines that have prepared their part of a gang that is not started, and where its ranks will meet.
    prepared: tuple[NodeId, ...] = ()
    rendezvous: Rendezvous | None = None
    #: Why the attempt was told to stop; None if it was not.
    revoked: Reason | None = None
    #: Cost so far, USD.
    spent_usd: float = 0.0
    #: Whether the job has shown that it can save its work.
    saves: bool = False
    #: Machines of the placement that were lost, and may have joined again since, while the rest of the gang goes on.
    lost: tuple[NodeId, ...] = ()


@dataclass(slots=True)
class RentRestored:
    """Machines that were requested before this core started and have not joined yet."""

    at: float
    token: str
    pool_id: PoolId
    machines: int


#: Of a job: not to start before, refused starts in a row, infrastructure failures, idle yields in a row, whether it has
#: lost work, whether it has shown that it saves, and accelerator-seconds owed by pool.
RememberedJob = tuple[JobId, float, int, int, int, bool, bool, tuple[tuple[PoolId, float], ...]]
#: Of a pool: failed requests for machines in a row, not to be requested before, and why the last request failed.
RememberedPool = tuple[PoolId, int, float, str]
#: Of a machine: its pace relative to others of its pool if it is slow, else None; whether it is counted to the pool of
#: slow machines; and its newest jobs, each with its pace there and whether that is significantly slow.
RememberedPace = tuple[NodeId, float | None, bool, tuple[tuple[JobId, float, bool], ...]]


@dataclass(slots=True)
class StateRestored:
    """What the core before this one knew beyond jobs and machines. Sent after the machines and before the jobs."""

    at: float
    jobs: tuple[RememberedJob, ...] = ()
    pools: tuple[RememberedPool, ...] = ()
    #: (machine, (instant, job) of each failure there that may be the machine's fault).
    failures: tuple[tuple[NodeId, tuple[tuple[float, JobId] | tuple[float, JobId, str], ...]], ...] = ()
    #: (job, (machine, its failures there in a row, when it may start there again if that was one)).
    retries: tuple[tuple[JobId, tuple[tuple[NodeId, int, float], ...]], ...] = ()
    saving_kinds: tuple[Kind, ...] = ()
    policy: str = ""  # policy of the last prices; below: prices by pool, their unit, and the value of that unit
    prices: tuple[tuple[PoolId, float], ...] = ()
    price_unit: str = ""
    exchange: float = 1.0
    shares: tuple[RememberedUse, ...] = ()
    lifetimes: tuple[tuple[PoolId, RememberedLives], ...] = ()  # by pool (`machine_lifetimes.dump_lifetimes`)
    lengths: tuple[RememberedLengths, ...] = ()
    weights: tuple[RememberedWeights, ...] = ()
    paces: tuple[RememberedPace, ...] = ()
