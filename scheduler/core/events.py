"""What happened, as shells tell the core. Treated as immutable.

An attempt is named by (job id, attempt number); a report about an attempt that is not the job's current one is
ignored. Instants (`at`) are seconds since the cluster's epoch. Events about speeds are in `speed_events.py`, those
about what projects and users have in `share_events.py`, what people change of a job in `job_change_events.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any

from optimizer.policy import PolicySpec
from optimizer.renting.lifetime_laws import RememberedLives
from scheduler.core.booking_events import BookingEvent
from scheduler.core.budget_limits import BudgetState
from scheduler.core.job_change_events import JobChangeEvent
from scheduler.core.rules import RoundRules
from scheduler.core.share_events import RememberedLengths, RememberedUse, RememberedWeights, ShareEvent
from scheduler.core.speed_events import RestartMeasured, SpeedEvent, ThroughputMeasured, WorkRestated
from walras.cluster import NodeId, Placement, Pool, PoolId, Rendezvous
from walras.job_request import JobId, JobRequest, Kind
from walras.states import JobState, Reason


@dataclass(slots=True)
class MoneyRestated:
    """What has been spent by the books: a month has begun, or this core has just begun."""

    at: float
    #: (project, USD in all, USD this month), project "" being everything; who is not named has spent nothing.
    spent: tuple[tuple[str, float, float], ...]
    #: (project, user, USD in all, USD this month) of users with a budget, project "" being all of theirs.
    users: tuple[tuple[str, str, float, float], ...] = ()
    next_month_at: float = inf  # when budgets of a month begin anew; inf: nobody knows
    budgets: tuple[BudgetState, ...] = ()  # of limits that are counted otherwise, and credits


@dataclass(slots=True)
class PolicyChanged:
    at: float
    policy: PolicySpec
    rules: RoundRules
    #: Why the one before it left: it failed, and this is the last good one. Empty: somebody wanted it so.
    put_back: str = ""


@dataclass(slots=True)
class PoolDeclared:
    """A pool exists, or its market price or quota changed, or it is drained, or it is so no longer."""

    at: float
    pool: Pool


@dataclass(slots=True)
class PoolRemoved:
    """An administrator takes a pool without machines out of the cluster."""

    at: float
    pool_id: PoolId


@dataclass(slots=True)
class NodeJoined:
    at: float
    node_id: NodeId
    pool_id: PoolId
    #: The `Rent.token` that this machine answers; empty for owned machines.
    token: str = ""
    #: Rented: since when it is paid for, if not from now on; and what of that no account of the core has seen, USD.
    paid_since: float | None = None
    paid_usd: float = 0.0
    #: What it has of what jobs may need (`walras.machine_tools`); None: it has not said, and is taken to have all.
    tools: tuple[str, ...] | None = None
    machine: str = ""  # that it is a part of, one of several types of accelerator; empty: it is a whole machine


@dataclass(slots=True)
class NodeUnreachable:
    """No word from the machine; its ranks may well be alive."""

    at: float
    node_id: NodeId


@dataclass(slots=True)
class NodeBack:
    at: float
    node_id: NodeId


@dataclass(slots=True)
class NodeLost:
    """Every attempt on the machine is certainly over: the lease ran out, or the machine is proved dead."""

    at: float
    node_id: NodeId
    reason: Reason = Reason.INFRA_NODE_LOST


@dataclass(slots=True)
class NodeLeaving:
    """The machine will be gone at `gone_at` (spot notice, or an administrator drains it: `gone_at` = inf)."""

    at: float
    node_id: NodeId
    gone_at: float
    reason: Reason = Reason.INFRA_SPOT_RECLAIM
    #: Jobs that would lose their work, or may not be stopped, go on there until they end, at most until `gone_at`.
    gentle: bool = False


@dataclass(slots=True)
class NodeUncordoned:
    """An administrator lets a quarantined or draining machine take jobs again."""

    at: float
    node_id: NodeId


@dataclass(slots=True)
class NodePrivate:
    """What jobs save on the machine can be had there alone (`private`), or elsewhere too."""

    at: float
    node_id: NodeId
    private: bool


@dataclass(slots=True)
class NodeTools:
    """A machine that is here says what it has of what jobs may need; what runs there stays."""

    at: float
    node_id: NodeId
    tools: tuple[str, ...]


@dataclass(slots=True)
class NodeData:
    """Data that a machine has in its cache, by the keys that requests have (`JobRequest.data`), and no other."""

    at: float
    node_id: NodeId
    data: tuple[str, ...]
    fetched: tuple[tuple[str, int, float], ...] = ()  # of some: key, bytes, seconds that it took to fetch them


@dataclass(slots=True)
class RentFailed:
    """Machines that were asked for will not come."""

    at: float
    token: str
    reason: str
    machines: int | None = None  # how many of them; None: all that have not come yet


@dataclass(slots=True)
class JobSubmitted:
    at: float
    job: JobRequest


@dataclass(slots=True)
class JobRestored:
    """A job that was active before this core began: it waits or is held, or has a placement and may be alive."""

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
    #: When all ranks were up; inf before.
    running_at: float = inf
    #: Machines that hold their part of a gang which has not been started, and where its ranks will meet.
    prepared: tuple[NodeId, ...] = ()
    rendezvous: Rendezvous | None = None
    #: Why the attempt was told to stop, if it was.
    revoked: Reason | None = None
    #: What it has cost.
    spent_usd: float = 0.0
    #: It has shown that it can save its work.
    saves: bool = False


@dataclass(slots=True)
class RentRestored:
    """Machines that were asked for before this core began and are not here yet."""

    at: float
    token: str
    pool_id: PoolId
    machines: int


#: Of a job: not before, refused starts in a row, failures of the world, idle yields in a row, whether it has lost work,
#: whether it has shown that it saves, and accelerator-seconds owed by pool.
RememberedJob = tuple[JobId, float, int, int, int, bool, bool, tuple[tuple[PoolId, float], ...]]
#: Of a pool: failed requests for machines in a row, not asked again before, and why the last one failed.
RememberedPool = tuple[PoolId, int, float, str]


@dataclass(slots=True)
class StateRestored:
    """What the core before this one knew beyond jobs and machines. After those of machines, before those of jobs."""

    at: float
    jobs: tuple[RememberedJob, ...] = ()
    pools: tuple[RememberedPool, ...] = ()
    #: (machine, (instant, job) of failures there that may be the machine's fault).
    failures: tuple[tuple[NodeId, tuple[tuple[float, JobId], ...]], ...] = ()
    #: (job, (machine, its failures there in a row, when it may start there again if that was one)).
    retries: tuple[tuple[JobId, tuple[tuple[NodeId, int, float], ...]], ...] = ()
    saving_kinds: tuple[Kind, ...] = ()
    policy: str = ""  # of the last prices, by pool, in which unit, and worth how much
    prices: tuple[tuple[PoolId, float], ...] = ()
    price_unit: str = ""
    exchange: float = 1.0
    shares: tuple[RememberedUse, ...] = ()
    lifetimes: tuple[tuple[PoolId, RememberedLives], ...] = ()  # by pool (`machine_lifetimes.dump_lifetimes`)
    lengths: tuple[RememberedLengths, ...] = ()
    weights: tuple[RememberedWeights, ...] = ()


@dataclass(slots=True)
class NodeQuarantined:
    """A machine on which jobs failed before this core began still takes none."""

    at: float
    node_id: NodeId
    detail: str = ""


@dataclass(slots=True)
class JobCancelled:
    at: float
    job_id: JobId
    by: str = ""


@dataclass(slots=True)
class JobHeld:
    at: float
    job_id: JobId
    reason: Reason = Reason.HOLD_USER


@dataclass(slots=True)
class JobReleased:
    at: float
    job_id: JobId


@dataclass(slots=True)
class Prepared:
    """One machine of a gang holds its place; node rank 0 also tells where the ranks will meet."""

    at: float
    job_id: JobId
    attempt: int
    node_id: NodeId
    address: str = ""
    port: int = 0


@dataclass(slots=True)
class StartRefused:
    """A machine cannot take the attempt (foreign process, no disk, start failed before any rank ran)."""

    at: float
    job_id: JobId
    attempt: int
    node_id: NodeId
    detail: str = ""


@dataclass(slots=True)
class AttemptStarted:
    """All ranks are up."""

    at: float
    job_id: JobId
    attempt: int


@dataclass(slots=True)
class AttemptProgressed:
    """Coalesced: at most once per job and round, except for the first, which carries `start_s`."""

    at: float
    job_id: JobId
    attempt: int
    #: Steps done by the job over all attempts.
    steps: float
    #: Median over undisturbed windows, gang steps per second; None while unknown.
    steps_per_s: float | None = None
    samples: int = 0
    #: Start command to first step done, seconds; with the first report only.
    start_s: float | None = None
    #: The script says that it has a checkpoint open: it can save its work when it is asked to stop.
    saves: bool = False


@dataclass(slots=True)
class CheckpointRecorded:
    """A manifest is recorded under the attempt's fence: these steps survive. `lost`: those after them do no longer."""

    at: float
    job_id: JobId
    attempt: int
    steps: float
    took_s: float = 0.0
    lost: bool = False
    #: From the end of writing until it was where the end of its machine does no harm, seconds.
    lag_s: float = 0.0


class EndCause(StrEnum):
    """What the supervisor saw."""

    EXITED = "exited"
    #: The supervisor's own lease timer stopped the ranks.
    LEASE_EXPIRED = "lease_expired"
    #: The supervisor itself died and its ranks with it.
    SUPERVISOR_LOST = "supervisor_lost"


@dataclass(slots=True)
class AttemptEnded:
    """No process of the attempt is left on any machine."""

    at: float
    job_id: JobId
    attempt: int
    cause: EndCause
    #: Of the first failing rank, else 0. A rank killed by a signal has exit_code None.
    exit_code: int | None = None
    signal: int | None = None
    node_id: NodeId | None = None  # of the first failing rank
    #: Steps done by the job, as far as anybody knows; None: as last reported.
    steps: float | None = None
    #: The supervisor was lost while its machine and its agent lived on: the job's own doing, as far as anybody saw.
    witnessed: bool = False
    exceeded: str = ""  # the limit ("memory", "disk") for which it was ended on its machine; empty: none


@dataclass(slots=True)
class RoundEnded:
    """Every attempt has made the steps of its round (`BeginRound`) and stands still, its work saved.

    Parallel: attempts that have not ended, steps of their jobs, when each stopped. Empty: jobs came, or none will.
    """

    at: float
    job_ids: Sequence[JobId]
    steps: Sequence[float]
    stopped_at: Sequence[float]


@dataclass(slots=True)
class Woke:
    """The instant of a `WakeAt` has come."""

    at: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """A decision made compact: what a solve sends back, and what the journal keeps. A plan is shares of 1.
    Shares: parallel tuples of the columns with a positive share (job id, row in `pools`, accelerators, share).
    """

    pools: tuple[PoolId, ...]
    job_ids: tuple[JobId, ...]
    pool_rows: tuple[int, ...]
    counts: tuple[int, ...]
    shares: tuple[float, ...]
    #: Jobs that the policy was asked about; one absent above has no share. Of a plan: most important first, as above.
    asked: tuple[JobId, ...]
    prices: tuple[float, ...]
    price_unit: str
    exchange: float
    #: Whole machines to hold rented in each pool.
    rent_machines: tuple[int, ...]
    status: str
    objective: float
    bound: float
    gap: float
    path: str
    memory: Any = None
    #: Shares of two jobs on the same accelerators: (job, job, pool row, share).
    packed: tuple[tuple[JobId, JobId, int, float], ...] = ()
    #: Jobs of a plan that ride on paid machines: no reason to keep them.
    riders: tuple[JobId, ...] = ()
    marginal: tuple[JobId, ...] = ()  # of each pool, the job on it that gains least at the prices; 0: nobody is on it
    worth_usd: tuple[float, ...] = ()  # of one accelerator more of each pool, USD/h; empty: nobody states values
    usd_per_h: tuple[float, float] | None = None  # earned by a plan, and at most; None: nobody states values
    entity_prices: tuple[tuple[str, float, float], ...] = ()  # name, price of its limit, of its guarantee, where > 0


@dataclass(slots=True)
class Solved:
    at: float
    request_id: int
    proposal: Proposal
    took_s: float = 0.0


@dataclass(slots=True)
class SolveFailed:
    at: float
    request_id: int
    reason: str = field(default="")


NodeFacts = NodePrivate | NodeTools | NodeData
NodeEvent = NodeJoined | NodeUnreachable | NodeBack | NodeLost | NodeLeaving | NodeUncordoned | NodeFacts
JobEvent = JobSubmitted | JobRestored | JobCancelled | JobHeld | JobReleased | JobChangeEvent
AttemptEvent = Prepared | StartRefused | AttemptStarted | AttemptProgressed | CheckpointRecorded | AttemptEnded
PoolEvent = PoolDeclared | PoolRemoved | RentFailed | RentRestored
Event = (
    PolicyChanged
    | PoolEvent
    | NodeQuarantined
    | StateRestored
    | MoneyRestated
    | NodeEvent
    | JobEvent
    | WorkRestated
    | AttemptEvent
    | RoundEnded
    | ThroughputMeasured
    | SpeedEvent
    | ShareEvent
    | BookingEvent
    | RestartMeasured
    | Woke
    | Solved
    | SolveFailed
)
