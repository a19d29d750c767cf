"""Events: what happened, as shells report it to the core. Events are treated as immutable.

An attempt is named by (job id, attempt number); a report about an attempt that is not the job's current one is ignored.
Instants (`at`) are seconds since the cluster's epoch. Events about speeds are in `speed_events.py`, those about shares
of projects and users in `share_events.py`, changes of a job by people in `job_change_events.py`,
those that restore a core in `restore_events.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any

from optimizer.policy import PolicySpec
from scheduler.core.booking_events import BookingEvent
from scheduler.core.budget_limits import BudgetState
from scheduler.core.job_change_events import JobChangeEvent
from scheduler.core.restore_events import JobRestored, RentRestored, StateRestored
from scheduler.core.rules import RoundRules
from scheduler.core.share_events import ShareEvent
from scheduler.core.speed_events import RestartMeasured, SpeedEvent, ThroughputMeasured, WorkRestated
from walras.cluster import NodeId, Pool, PoolId
from walras.job_request import JobId, JobRequest
from walras.states import Reason


@dataclass(slots=True)
class MoneyRestated:
    """States what has been spent by the accounts, because a month has begun or this core has just started."""

    at: float
    #: (project, USD in total, USD this month); project "" is the whole cluster. Projects not named have spent nothing.
    spent: tuple[tuple[str, float, float], ...]
    #: (project, user, USD in total, USD this month) of users with a budget; project "" means all their projects.
    users: tuple[tuple[str, str, float, float], ...] = ()
    next_month_at: float = inf  # when monthly budgets are refilled; inf: unknown
    budgets: tuple[BudgetState, ...] = ()  # limits with other periods or units, and credits


@dataclass(slots=True)
class PolicyChanged:
    at: float
    policy: PolicySpec
    rules: RoundRules
    #: Why the former policy was replaced, if it failed and this is the last good one. Empty: a person chose this one.
    put_back: str = ""


@dataclass(slots=True)
class PoolDeclared:
    """A pool exists, its market price or quota changed, or its drain began or ended."""

    at: float
    pool: Pool


@dataclass(slots=True)
class PoolRemoved:
    """An administrator removed a pool without machines from the cluster."""

    at: float
    pool_id: PoolId


@dataclass(slots=True)
class NodeJoined:
    at: float
    node_id: NodeId
    pool_id: PoolId
    #: The `Rent.token` that this machine answers; empty for owned machines.
    token: str = ""
    #: Of a rented machine: since when it is paid for, if not from now on; USD of that which the core has not counted.
    paid_since: float | None = None
    paid_usd: float = 0.0
    #: Tools that jobs may need and the machine has (`walras.machine_tools`); None: not reported, taken to have all.
    tools: tuple[str, ...] | None = None
    machine: str = ""  # machine with several accelerator types of which this is a part; empty: a whole machine
    #: An administrator had drained it before it was lost: it takes no jobs until it is resumed.
    drained: bool = False


@dataclass(slots=True)
class NodeUnreachable:
    """Heartbeats of the machine are missing; its ranks may be alive."""

    at: float
    node_id: NodeId


@dataclass(slots=True)
class NodeBack:
    at: float
    node_id: NodeId


@dataclass(slots=True)
class NodeLost:
    """Every attempt on the machine has certainly ended: its lease ran out, or the machine is known to be down."""

    at: float
    node_id: NodeId
    reason: Reason = Reason.INFRA_NODE_LOST


@dataclass(slots=True)
class NodeLeaving:
    """The machine will be gone at `gone_at`: spot notice, or a drain by an administrator (`gone_at` = inf)."""

    at: float
    node_id: NodeId
    gone_at: float
    reason: Reason = Reason.INFRA_SPOT_RECLAIM
    #: If True, jobs that would lose their work or may not be stopped run on until they end, at most until `gone_at`.
    gentle: bool = False


@dataclass(slots=True)
class NodeUncordoned:
    """An administrator lets a quarantined or draining machine take jobs again."""

    at: float
    node_id: NodeId


@dataclass(slots=True)
class NodePrivate:
    """States whether checkpoints that jobs save on the machine can be read there only (`private`)."""

    at: float
    node_id: NodeId
    private: bool


@dataclass(slots=True)
class NodeTools:
    """A machine of the fleet reports which tools it offers to jobs. Jobs that run there stay."""

    at: float
    node_id: NodeId
    tools: tuple[str, ...]


@dataclass(slots=True)
class NodeData:
    """States all data in the machine's cache, by the keys that requests use (`JobRequest.data`)."""

    at: float
    node_id: NodeId
    data: tuple[str, ...]
    fetched: tuple[tuple[str, int, float], ...] = ()  # for some of them: key, bytes, seconds of the download


@dataclass(slots=True)
class RentFailed:
    """The provider will not deliver machines that were requested under `token`; `reason` says why."""

    at: float
    token: str
    reason: str
    machines: int | None = None  # how many of them; None: all that have not come yet


@dataclass(slots=True)
class JobSubmitted:
    at: float
    job: JobRequest


@dataclass(slots=True)
class NodeQuarantined:
    """A machine that was quarantined before this core started still takes no jobs."""

    at: float
    node_id: NodeId
    detail: str = ""


@dataclass(slots=True)
class NodeUnfit:
    """The machine's agent finds its devices at fault: `detail` says which, and why."""

    at: float
    node_id: NodeId
    detail: str


@dataclass(slots=True)
class NodeFit:
    """The machine's devices have passed the agent's check, after a fault."""

    at: float
    node_id: NodeId


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
    """One machine of a gang holds its place; node rank 0 also reports where the ranks will meet."""

    at: float
    job_id: JobId
    attempt: int
    node_id: NodeId
    address: str = ""
    port: int = 0


@dataclass(slots=True)
class StartRefused:
    """A machine cannot take the attempt (foreign process, full disk, or the start failed before any rank ran)."""

    at: float
    job_id: JobId
    attempt: int
    node_id: NodeId
    detail: str = ""


@dataclass(slots=True)
class AttemptStarted:
    """All ranks of the attempt are up."""

    at: float
    job_id: JobId
    attempt: int


@dataclass(slots=True)
class AttemptProgressed:
    """Progress of an attempt: at most once per job and round, but the first report at once, with `start_s`."""

    at: float
    job_id: JobId
    attempt: int
    #: Steps that the job has done over all attempts.
    steps: float
    #: Gang steps per second, median over undisturbed windows; None while unknown.
    steps_per_s: float | None = None
    samples: int = 0
    #: Seconds from the start command to the first step done; with the first report only.
    start_s: float | None = None
    #: Whether the script has a checkpoint open, so that it can save its work when it is asked to stop.
    saves: bool = False


@dataclass(slots=True)
class CheckpointRecorded:
    """A manifest is recorded under the attempt's fence: these steps survive. `lost`: later steps no longer do."""

    at: float
    job_id: JobId
    attempt: int
    steps: float
    took_s: float = 0.0
    lost: bool = False
    #: Seconds from the end of writing until the checkpoint was stored where it survives the loss of its machine.
    lag_s: float = 0.0


class EndCause(StrEnum):
    """How an attempt ended, as its supervisor observed it."""

    EXITED = "exited"
    #: The supervisor's own lease timer stopped the ranks.
    LEASE_EXPIRED = "lease_expired"
    #: The supervisor itself died, and its ranks with it.
    SUPERVISOR_LOST = "supervisor_lost"


@dataclass(slots=True)
class AttemptEnded:
    """No process of the attempt is left on any machine."""

    at: float
    job_id: JobId
    attempt: int
    cause: EndCause
    #: Exit code of the first failing rank, else 0; None if a signal killed that rank.
    exit_code: int | None = None
    signal: int | None = None
    node_id: NodeId | None = None  # machine of the first failing rank
    #: Steps that the job has done; None: as last reported.
    steps: float | None = None
    #: Whether the supervisor died while its machine and agent lived on, so that the job itself most likely caused it.
    witnessed: bool = False
    exceeded: str = ""  # limit ("memory", "disk") for which its machine ended it; empty: none
    #: Whether its ranks were told to stop before they ended, and did not say that their work was done.
    unfinished: bool = False
    own_fault: bool = False  # whether its output shows that the job is at fault, whatever the machine


@dataclass(slots=True)
class RoundEnded:
    """Every attempt has made the steps of its round (`BeginRound`) and has stopped, its work saved.

    Parallel: attempts that have not ended, steps of their jobs, when each stopped. Empty: jobs arrived, or none will.
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
    """A compact decision: what a solve returns and the journal keeps. A plan is expressed as shares of 1.
    Shares: parallel tuples of the columns with a positive share (job id, row in `pools`, accelerators, share).
    """

    pools: tuple[PoolId, ...]
    job_ids: tuple[JobId, ...]
    pool_rows: tuple[int, ...]
    counts: tuple[int, ...]
    shares: tuple[float, ...]
    #: Jobs that the policy was asked about; one without a share above gets none. A plan lists the most important first.
    asked: tuple[JobId, ...]
    prices: tuple[float, ...]
    price_unit: str
    exchange: float
    #: Number of whole machines to hold rented in each pool.
    rent_machines: tuple[int, ...]
    status: str
    objective: float
    bound: float
    gap: float
    path: str
    memory: Any = None
    #: Shares of two jobs on the same accelerators: (job, job, pool row, share).
    packed: tuple[tuple[JobId, JobId, int, float], ...] = ()
    #: Jobs of a plan that use machines paid for anyway: no machine is kept for them.
    riders: tuple[JobId, ...] = ()
    marginal: tuple[JobId, ...] = ()  # by pool, the job on it with the least surplus at the prices; 0: no job is on it
    worth_usd: tuple[float, ...] = ()  # USD/h of one accelerator more, by pool; empty: no values are stated
    usd_per_h: tuple[float, float] | None = None  # value that a plan earns, and its bound; None: no values are stated
    entity_prices: tuple[tuple[str, float, float], ...] = ()  # name, price of its limit, of its guarantee; those > 0
    holds_until_at: float | None = None  # until when time alone changes no place and no price; None: it may at once


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
    | NodeUnfit
    | NodeFit
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
