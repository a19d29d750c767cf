"""Bodies of the REST API (`/api/v1`): what the server answers and the client reads.

Instants are RFC 3339 text in UTC; lengths are seconds; money is USD. Errors are RFC 9457 problem+json (`Problem`).
Lists are pages: `items` and an opaque `next` cursor (absent on the last page).
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from walras.states import AttemptState, JobState, Reason


class Body(BaseModel):
    """Unknown fields in an answer are ignored: an older client reads a newer server."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ProblemDetail(Body):
    """RFC 9457. `code` is stable; `field` and `fix` tell a person what to change."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str = ""
    field: str = ""
    fix: str = ""


class AttemptView(Body):
    job_id: int
    attempt: int
    state: AttemptState
    reason: Reason | None = None
    pool: str
    accelerator: str
    #: True where the accelerator is emulated: real steps paced to a speed table.
    emulated: bool = False
    #: "node:0,1" for every machine, in node-rank order.
    placement: list[str]
    accelerators: int
    leased_at: str
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    failed_rank: int | None = None
    #: Step of the newest checkpoint recorded under this attempt's fence.
    checkpoint_step: float | None = None
    profiling: bool = False
    accelerator_s: float = 0.0
    usd: float = 0.0


class TargetOutlook(StrEnum):
    """What may be said of a job's target."""

    #: Nothing: no value or too few, they do not fall, or the job is over; `detail` says which.
    UNKNOWN = "unknown"
    #: The best curve says that it will be late or not at all, and others that say better fit nearly as well.
    UNCLEAR = "unclear"
    EXPECTED = "expected"
    #: After the steps that the job declares.
    LATE = "late"
    OUT_OF_REACH = "out_of_reach"
    REACHED = "reached"


class TargetView(Body):
    """How far a job is from its target. Steps are counted from the beginning of the job."""

    #: Name of the value that the job reports, and what it shall fall to.
    value: str
    at_most: float
    outlook: TargetOutlook
    #: All of it in one line.
    detail: str
    newest: float | None = None
    newest_step: float | None = None
    #: The first step at which the value was at the target.
    reached_step: float | None = None
    #: At which step it will be, by its curve; null: none is foreseen.
    steps_expected: float | None = None
    steps_declared: float | None = None
    #: Until then at the rate of the attempt that runs, and the instant.
    left_s: float | None = None
    expected_at: str | None = None
    #: What the curve does not fall below.
    levels_off_at: float | None = None
    #: Points that the curve is fitted to, and the step of the newest report that it knows of.
    points: int = 0
    foreseen_at_step: float | None = None


class JobView(Body):
    id: int
    name: str
    project: str
    user: str
    kind: str
    state: JobState
    reason: Reason | None = None
    #: The reason with its numbers, one line.
    detail: str = ""
    priority: int
    accelerators: int
    #: Attempts so far, and restarts charged against `retry.max_restarts`.
    attempts: int = 0
    restarts: int = 0
    pool: str | None = None
    accelerator: str | None = None
    steps: float = 0.0
    steps_total: float | None = None
    steps_per_s: float | None = None
    submitted_at: str
    started_at: str | None = None
    ended_at: str | None = None
    accelerator_s: dict[str, float] = Field(default_factory=dict)
    usd: float = 0.0
    #: Named values the job reported (`loss`): the first seen in its first attempt, and the newest.
    first_values: dict[str, float] = Field(default_factory=dict)
    last_values: dict[str, float] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)


class JobDetail(JobView):
    """`GET /jobs/{id}`."""

    spec: dict[str, Any]
    #: Null: the job has none.
    target: TargetView | None = None
    attempt_list: list[AttemptView] = Field(default_factory=list)


class JobPage(Body):
    items: list[JobView]
    next: str | None = None


class SubmitResult(Body):
    """`POST /jobs` (201), and one item of `POST /jobs:batch`."""

    id: int | None = None
    name: str = ""
    error: ProblemDetail | None = None


class BatchResult(Body):
    items: list[SubmitResult]


class DryRun(Body):
    """`POST /jobs:dryrun`: what would happen now. Nothing is stored."""

    kind: str
    accelerators: int
    #: Each configuration with its speed, where that speed comes from, price and whether it is free now.
    configurations: list[dict[str, Any]]
    #: The configuration the arrival rule would choose, or None, and why.
    chosen: dict[str, Any] | None = None
    reason: Reason | None = None
    detail: str = ""


class ReasonView(Body):
    """One cause why a job is where it is, with its numbers, and what would change it (empty: only time)."""

    reason: Reason
    detail: str = ""
    fix: str = ""


class ConditionView(Body):
    """Something people should know of a job that runs or waits: it changes neither."""

    #: at_risk (of missing its deadline) | budget_low | speed_differs (from that of its kind) | no_steps |
    #: target_late (after the declared steps) | target_out_of_reach
    type: str
    detail: str


class SpeedView(Body):
    """What is believed of a job's speed on a pool, steps per second of the whole gang."""

    pool: str
    accelerator: str
    accelerators: int
    steps_per_s: float
    #: measured | declared | predicted
    source: str
    #: The truth lies between them four times out of five; null where nobody says.
    low: float | None = None
    high: float | None = None
    #: Of a prediction: the predictors that could tell, such as `analytic`.
    by: list[str] = []


class FactsView(Body):
    """What is believed of one kind of job besides its speed."""

    kind: str
    #: counted (by a job of the kind) | stated (by people)
    source: str
    facts: dict[str, float]
    #: Arithmetic of most operations; None: nobody knows.
    precision: str | None = None


class Explanation(Body):
    """`GET /jobs/{id}/explain`: every cause that holds now, the deciding one first. Empty for a job that runs."""

    job_id: int
    state: JobState
    reasons: list[ReasonView] = Field(default_factory=list)
    conditions: list[ConditionView] = Field(default_factory=list)
    #: Null: the job has none.
    target: TargetView | None = None
    #: On each pool where it can run, fastest first; none once the job is over.
    speeds: list[SpeedView] = Field(default_factory=list)


class NodeView(Body):
    node_id: str
    pool: str
    accelerator: str
    emulated: bool
    market: str
    zone: str
    #: up | unreachable | leaving | quarantined | lost | released
    state: str
    detail: str = ""
    accelerators: int
    free: int
    jobs: list[int]
    last_heard_s: float | None = None


class PriceView(Body):
    pool: str
    accelerator: str
    market: str
    capacity: float
    free: float
    #: Price of one accelerator held all the time, in `unit`, from the last solve.
    price: float
    unit: str
    market_usd_per_h: float
    rented_machines: int = 0
    quota_machines: int = 0


class CertificateView(Body):
    status: str
    objective: float
    bound: float
    gap: float
    path: str
    solved_at: str
    #: What really ran over the last rounds, as a part of the bound: gangs are whole, restarts take time.
    realised: float | None = None
    #: What whole gangs can reach at best, in the unit of the objective, if it was asked for (`?whole=true`); null: more
    #: than 64 accelerators, a policy that ranks, or not found in time.
    integral_bound: float | None = None


class PriceList(Body):
    items: list[PriceView]
    certificate: CertificateView | None = None


class MoneyRow(Body):
    """What one project, user, job, pool or month has cost."""

    #: Name or number of what is summed.
    key: str
    accelerator_s: float
    #: Used by jobs.
    usd: float
    #: Of rented machines, what no job held; by pool and month only: else nobody knows whose it is.
    idle_usd: float = 0.0
    #: What the same would have cost on demand.
    on_demand_usd: float = 0.0


class MoneyReport(Body):
    """`GET /money`: the ledger of money until now. `total_usd` = `used_usd` + `idle_usd`."""

    #: project | user | job | pool | month
    by: str
    #: Dearest first.
    items: list[MoneyRow]
    used_usd: float
    #: Of rented machines, what no job held. 0 in the answer to people who see only some projects.
    idle_usd: float
    total_usd: float
    on_demand_usd: float


class PolicyView(Body):
    """The policy in force (`GET /policy`) and its place in the history."""

    version: int
    name: str
    parameters: dict[str, Any]
    rules: dict[str, Any]
    changed_at: str
    changed_by: str


class TokenCreated(Body):
    """`POST /tokens`: the secret is shown once."""

    token: str
    prefix: str
    user: str
    role: str


class Health(Body):
    ok: bool
    #: Checks by name: "event_loop", "database", "solver".
    checks: dict[str, str]
    version: str
