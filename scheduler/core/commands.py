"""Commands: what the shells are to do, as the core decided. Treated as immutable."""

from dataclasses import dataclass

from optimizer.decision import Memory
from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from scheduler.core.budget_limits import BudgetUnit
from walras.cluster import NodeId, Placement, PoolId, Rendezvous
from walras.job_request import JobId
from walras.states import AttemptState, JobState, Reason


@dataclass(slots=True)
class WakeAt:
    """Send `Woke` at this instant. Only the earliest outstanding one counts; after every `Woke` the core asks again."""

    at: float


@dataclass(slots=True)
class Solve:
    """Answer with `Solved(request_id, ...)` or `SolveFailed`. At most one is outstanding."""

    request_id: int
    problem: Problem
    policy: PolicySpec
    memory: Memory
    #: What an hour of a job is worth (for renting) if neither job nor project says so, USD.
    delay_usd_per_h: float


@dataclass(slots=True)
class Prepare:
    """Hold the places of a gang over several machines; every machine answers `Prepared` or `StartRefused`."""

    job_id: JobId
    attempt: int
    placement: Placement


@dataclass(slots=True)
class Start:
    """Start the ranks. `rendezvous` is None for a gang on one machine, which meets on its own loopback."""

    job_id: JobId
    attempt: int
    placement: Placement
    rendezvous: Rendezvous | None
    #: Steps the job has behind it by its last recorded checkpoint.
    resume_steps: float
    #: True: started to learn the speed of this kind on this accelerator.
    profiling: bool
    #: The job whose accelerators it shares.
    beside: JobId | None = None
    #: Work for so long before each checkpoint, seconds; None: as the script has it.
    checkpoint_every_s: float | None = None


@dataclass(slots=True)
class CheckpointEvery:
    """From now on the attempt is to work for so long before each checkpoint."""

    job_id: JobId
    attempt: int
    every_s: float


@dataclass(slots=True)
class BeginRound:
    """Let every attempt go on for a round of this length, as the world counts it; `RoundEnded` follows.

    Only mechanisms that move in step with the world send it (`RoundRules.mechanism`).
    """

    round_s: float


@dataclass(slots=True)
class Revoke:
    """Ask the attempt to checkpoint and stop within `grace_s`; `AttemptEnded` follows."""

    job_id: JobId
    attempt: int
    reason: Reason
    grace_s: float


@dataclass(slots=True)
class Rent:
    """Rent `machines` machines of the pool. The token makes the request idempotent."""

    token: str
    pool_id: PoolId
    machines: int


@dataclass(slots=True)
class ReleaseNode:
    """Give a rented machine back: it is empty."""

    node_id: NodeId
    #: Why, for people.
    detail: str = ""


@dataclass(slots=True)
class JobTransitioned:
    """The job's state changed (shells persist, show and count it)."""

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
    #: Set with LEASED: where it is to run.
    placement: Placement | None = None


@dataclass(slots=True)
class NodeCordoned:
    """The machine takes no new jobs (it is leaving, or distinct jobs failed on it)."""

    node_id: NodeId
    detail: str


@dataclass(slots=True)
class BudgetWarned:
    """So much of a budget is used that people should know: once a budget, and once a period."""

    #: Project, "job 7", "group students", or empty for the whole cluster.
    account: str
    #: In `unit`.
    spent_usd: float
    limit_usd: float
    #: Such as "80% this month".
    detail: str
    unit: BudgetUnit = BudgetUnit.USD


Command = (
    WakeAt
    | Solve
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
    | BudgetWarned
)
