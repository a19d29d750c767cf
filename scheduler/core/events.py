"""Events: what happened, as shells report it to the core. Events are treated as immutable.

An attempt is named by (job id, attempt number); a report about an attempt that is not the job's current one is ignored,
as is an event about a job that has ended. Instants (`at`) are seconds since the cluster's epoch. The journal names
events by their classes, in whichever module these are; those about speeds are in `speed_events.py`.

*Bookings* are whole machines that people reserve for a period (`walras admin add reservation`), because one accelerator
cannot be shielded from the jobs on the others of its machine. In the core, a reservation is a place kept for one
waiting gang; what people reserve is called a booking.

*Changes* that people make to jobs (priority, budget, deadline, machines, project) take effect at their instant: earlier
decisions stand until the next round, and the change alone takes away no place that a job holds.

A shell *restores* a new core with machines first, then `StateRestored`, then jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

from optimizer.policy import PolicySpec, PolicyTraits
from optimizer.renting.lifetime_laws import RememberedLives
from scheduler.core.budget_limits import BudgetState
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import RestartMeasured, SpeedEvent, ThroughputMeasured, WorkRestated
from walras.cluster import NodeId, Placement, Pool, PoolId, Rendezvous
from walras.job_request import GangRequest, JobId, JobRequest, Kind
from walras.spec.accelerator_names import covers
from walras.states import JobState, Reason

#: The project of a booking for maintenance. No real project has an empty name.
NOBODY = ""


@dataclass(frozen=True, slots=True)
class Booking:
    """A period in which some machines are for one project's jobs only, or for maintenance (`NOBODY`)."""

    booking_id: int
    #: Project whose jobs may use the machines; `NOBODY`: no jobs.
    project: str
    node_ids: tuple[NodeId, ...]
    #: Seconds since the cluster's epoch.
    from_at: float
    until_at: float
    #: Set if the booking is for a number of accelerators of this type on any machines: a machine that is lost is
    #: replaced. Empty if it is for exactly these machines.
    accelerator: str = ""
    accelerators: int = 0
    reason: str = ""

    def is_open_to(self, project: str) -> bool:
        """Returns whether jobs of the project may run on the machines during the booking."""
        return self.project != NOBODY and self.project == project

    def is_active(self, at: float) -> bool:
        """Returns whether the booking has begun and has not ended at `at`."""
        return self.from_at <= at < self.until_at

    def overlaps(self, from_at: float, until_at: float) -> bool:
        """Returns whether the booking overlaps with this period."""
        return self.from_at < until_at and from_at < self.until_at

    @property
    def words(self) -> str:
        """Returns the booking's name for people: `reservation 3 of project vision`, `reservation 4 (maintenance)`."""
        if self.project == NOBODY:
            return f"reservation {self.booking_id} (maintenance)"
        return f"reservation {self.booking_id} of project {self.project}"


@dataclass(slots=True)
class BookingsDeclared:
    """Replaces all bookings declared before by these. Bookings that have ended are dropped."""

    at: float
    bookings: tuple[Booking, ...] = ()


@dataclass(slots=True)
class JobBudgetChanged:
    """Sets a job's total budget. `spent_usd` is what it has cost so far, if it had no budget before."""

    at: float
    job_id: JobId
    budget_usd: float
    spent_usd: float = 0.0


@dataclass(slots=True)
class JobReprioritised:
    """Sets a job's priority (0-100), which may change its priority class or its order inside that class."""

    at: float
    job_id: JobId
    priority: int


@dataclass(slots=True)
class JobRedirected:
    """Sets the gang, value and declared speeds with which a held job is to run on other machines."""

    at: float
    job_id: JobId
    gang: GangRequest
    #: USD per hour at its best speed; None: the project's value.
    value_usd_per_h: float | None = None
    #: Accelerator type and steps per second, used until a speed is measured.
    declared: tuple[tuple[str, float], ...] = ()


@dataclass(slots=True)
class JobDeadlineChanged:
    """Sets a job's deadline; inf: it no longer has one.

    A job that was moved for the former deadline keeps its place; it is assigned to no pool for the new one before the
    last moment for that has come.
    """

    at: float
    job_id: JobId
    deadline_at: float = inf


@dataclass(slots=True)
class JobProjectChanged:
    """Moves a waiting job to another project, whose shares, limits, bookings and budgets apply from now on.

    Past use and cost stay where they were counted. For a job that holds a place the event changes nothing.
    """

    at: float
    job_id: JobId
    project: str
    #: Priority as its owner states it, or the new project's default.
    priority: int
    weight: float = 1.0
    #: USD per hour at its best speed; None: the project's value.
    value_usd_per_h: float | None = None
    #: Its kind there; None: the same.
    kind: Kind | None = None


JobChangeEvent = JobBudgetChanged | JobReprioritised | JobRedirected | JobDeadlineChanged | JobProjectChanged


#: Scope of a limit over all pools; other scopes are an accelerator type or a pool id. Nobody owns parts of the fleet.
FLEET = "fleet"


def scope_covers(scope: str, pool: Pool) -> bool:
    """Returns whether accelerators of the pool belong to this scope; `h100` has every H100 in it."""
    return scope in (FLEET, pool.pool_id) or covers(scope, pool.shape.accelerator)


@dataclass(frozen=True, slots=True)
class ShareLimit:
    """A number of accelerators of a scope: the most that are held at once, or those that are owned."""

    scope: str
    accelerators: int


@dataclass(frozen=True, slots=True)
class EntityShare:
    """Share of a project ("vision"), or of a user inside one ("vision/ada")."""

    name: str
    #: Weight against siblings that have work to do, in dividing the parent's share.
    weight: float = 1.0
    #: Fraction of all accelerators that it gets before others get more than their guarantees.
    guaranteed: float = 0.0
    limits: tuple[ShareLimit, ...] = ()
    #: Accelerators of a type or a pool, on owned machines, that are its own: kept for its jobs, lent meanwhile.
    owned: tuple[ShareLimit, ...] = ()


@dataclass(slots=True)
class SharesDeclared:
    """Replaces all shares declared before by these. A project or user that is not named has weight 1 and no limit."""

    at: float
    shares: tuple[EntityShare, ...] = ()


class RememberedUse(NamedTuple):
    """Recorded use of a project or user, as of its last change, so that nothing is stored while nothing changes."""

    name: str
    #: `at` is the instant of the next four: decayed accelerator-seconds, accelerators held then; both in fair-share
    #: units.
    at: float
    used_s: float
    units_s: float
    held: float
    units: float
    #: Instant of the next two: accelerator-seconds behind its share, and their growth per second; 0 under policies that
    #: do not count it.
    behind_at: float = 0.0
    behind_s: float = 0.0
    behind_rate: float = 0.0


class RememberedLengths(NamedTuple):
    """How a user's stated lengths compare with true ones (`statement_records`), as of the user's last ended job."""

    name: str
    at: float
    #: Decayed sums over ended jobs: accelerator-seconds, the same times log(true / stated length), and number of jobs.
    used_s: float
    said_s: float
    jobs: float


class RememberedWeights(NamedTuple):
    """Weights that a user stated for ended jobs (`statement_records`)."""

    name: str
    at: float
    #: Decayed sums over ended jobs: accelerator-seconds, and the same times log(weight).
    used_s: float
    said_s: float


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
    #: Seconds that its ended attempts ran.
    held_s: float = 0.0
    #: Whether the attempt is a profiling lease.
    profiling: bool = False


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
_Paces = tuple[tuple[JobId, float, bool], ...]
RememberedPace = tuple[NodeId, float | None, bool, _Paces, str] | tuple[NodeId, float | None, bool, _Paces]

#: Of a project's speed of a program (`state.throughput`): program, project, accelerator type, accelerators, steps/s.
RememberedProgram = tuple[str, str, str, int, float]


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
    programs: tuple[RememberedProgram, ...] = ()


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
    #: Of a policy that runs in another process: what it says of itself. It is never called here, but asked.
    asked: PolicyTraits | None = None


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
    #: Tools of the machine (`walras.machines.machine_facts`); None: not reported, taken to have all.
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
    """A machine cannot take the attempt (foreign process, full disk, or the start failed before any rank ran).

    `node_id` None: no machine is at fault.
    """

    at: float
    job_id: JobId
    attempt: int
    node_id: NodeId | None
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
class JobsRanked:
    """Answers `RankJobs`: the jobs' key, as columns most significant first, and whose service counts anew."""

    at: float
    request_id: int
    job_ids: tuple[JobId, ...]
    key: tuple[tuple[float, ...], ...]
    renewed: tuple[JobId, ...] = ()


@dataclass(slots=True)
class SolveFailed:
    at: float
    request_id: int
    reason: str = ""
    #: File and line of the policy, if known.
    where: str = ""


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
    | SharesDeclared
    | BookingsDeclared
    | RestartMeasured
    | Woke
    | Solved
    | JobsRanked
    | SolveFailed
)
