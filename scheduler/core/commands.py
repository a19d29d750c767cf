"""Commands: what the shells must do, as the core decided. Commands are treated as immutable."""

from dataclasses import dataclass

from optimizer.decision import Memory
from optimizer.policy import GivenOrderFacts, PolicySpec
from optimizer.problem import BoolArray, IntArray, Problem
from scheduler.core.budget_limits import BudgetUnit
from walras.cluster import NodeId, Placement, PoolId, Rendezvous
from walras.job_request import JobId
from walras.states import AttemptState, JobState, Reason


@dataclass(slots=True)
class WakeAt:
    """Asks for a `Woke` at this instant.

    Only the earliest outstanding one counts; after every `Woke` the core asks again.
    """

    at: float


@dataclass(slots=True)
class Solve:
    """Asks for a solve, answered by `Solved(request_id, ...)` or `SolveFailed`. At most one is outstanding."""

    request_id: int
    problem: Problem
    policy: PolicySpec
    memory: Memory
    #: Value of one hour of a job in USD, used to decide on renting, if neither job nor project states one.
    delay_usd_per_h: float


@dataclass(slots=True)
class RankJobs:
    """Asks an order policy in another process for keys of jobs: answered by `JobsRanked(request_id, ...)` or
    `SolveFailed`. At most one is outstanding.
    """

    request_id: int
    policy: PolicySpec
    #: The jobs (n,), what the policy may know of them, and which of them may be counted anew (`ResetsService`).
    job_ids: IntArray
    facts: GivenOrderFacts
    waiting: BoolArray


@dataclass(slots=True)
class Prepare:
    """Holds the places of a gang over several machines; every machine answers `Prepared` or `StartRefused`."""

    job_id: JobId
    attempt: int
    placement: Placement


@dataclass(slots=True)
class Start:
    """Starts the ranks. `rendezvous` is None for a gang on one machine, whose ranks meet on the loopback interface."""

    job_id: JobId
    attempt: int
    placement: Placement
    rendezvous: Rendezvous | None
    #: Steps that the job's newest recorded checkpoint contains.
    resume_steps: float
    #: True if the attempt is a profiling lease: it measures the speed of this kind on this accelerator.
    profiling: bool
    #: The job with which this one shares its accelerators (co-location); None: it has its own.
    beside: JobId | None = None
    #: Seconds of work between checkpoints; None: the script's own interval.
    checkpoint_every_s: float | None = None


@dataclass(slots=True)
class CheckpointEvery:
    """Sets the attempt's interval between checkpoints, in seconds of work."""

    job_id: JobId
    attempt: int
    every_s: float


@dataclass(slots=True)
class BeginRound:
    """Lets every attempt go on for one round of this length, in simulated or real seconds; `RoundEnded` follows.

    Only mechanisms in which all jobs move in lockstep, round by round, send it (`RoundRules.mechanism`).
    """

    round_s: float


@dataclass(slots=True)
class Revoke:
    """Asks the attempt to checkpoint and stop within `grace_s` seconds; `AttemptEnded` follows."""

    job_id: JobId
    attempt: int
    reason: Reason
    grace_s: float


@dataclass(slots=True)
class Rent:
    """Rents `machines` machines of the pool. The token makes the request idempotent."""

    token: str
    pool_id: PoolId
    machines: int


@dataclass(slots=True)
class ReleaseNode:
    """Returns an empty rented machine to its provider."""

    node_id: NodeId
    #: The reason, for people.
    detail: str = ""


@dataclass(slots=True)
class JobTransitioned:
    """States that the job's state changed. Shells store, show and count it."""

    job_id: JobId
    state: JobState
    reason: Reason | None
    detail: str = ""


@dataclass(slots=True)
class AttemptTransitioned:
    job_id: JobId
    attempt: int
    state: AttemptState
    reason: Reason | None
    #: Where the attempt will run; set with LEASED.
    placement: Placement | None = None


@dataclass(slots=True)
class NodeCordoned:
    """States that the machine takes no new jobs, because it is leaving or because several jobs failed on it."""

    node_id: NodeId
    detail: str


@dataclass(slots=True)
class NodeReadmitted:
    """States that a machine that was put aside takes jobs again; `detail`: on trial, or empty."""

    node_id: NodeId
    detail: str


@dataclass(slots=True)
class BudgetWarned:
    """Warns people that part of a budget is used. Sent once per budget, or once per period of it."""

    #: Owner of the budget: a project, "job 7", "group students", or empty for the whole cluster.
    account: str
    #: Amount used, in `unit` (USD unless stated otherwise).
    spent_usd: float
    limit_usd: float
    #: What was reached, such as "80% this month".
    detail: str
    unit: BudgetUnit = BudgetUnit.USD


Command = (
    WakeAt
    | Solve
    | RankJobs
    | Prepare
    | Start
    | CheckpointEvery
    | BeginRound
    | Revoke
    | Rent
    | ReleaseNode
    | JobTransitioned
    | AttemptTransitioned
    | NodeCordoned
    | NodeReadmitted
    | BudgetWarned
)
