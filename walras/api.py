"""Bodies of the REST API (`/api/v1`): what the server answers and the client reads.

Instants are RFC 3339 text in UTC; lengths are seconds; money is USD. Errors are RFC 9457 problem+json (`Problem`).
Lists are pages: `items` and an opaque `next` cursor (absent on the last page).
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from walras.device_samples import DeviceSample
from walras.people import DefaultView, EntityPriceView
from walras.states import AttemptState, JobState, Reason


class Body(BaseModel):
    """Unknown fields in an answer are ignored: an older client reads a newer server."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def _repr_html_(self) -> str:
        from walras.notebook_views import answer_html

        return answer_html(self)


class ProblemDetail(Body):
    """RFC 9457. `code` is stable; `field` and `fix` tell a person what to change."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str = ""
    field: str = ""
    fix: str = ""
    #: The cluster's id and its incarnation, for agents (with `other_incarnation`).
    cluster: dict[str, str] | None = None


class AttemptView(Body):
    job_id: int
    attempt: int
    state: AttemptState
    reason: Reason | None = None
    pool: str
    accelerator: str
    #: Whether the accelerator is emulated: real steps are paced to a speed table.
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
    #: The step of the newest checkpoint recorded under this attempt's fence.
    checkpoint_step: float | None = None
    profiling: bool = False
    accelerator_s: float = 0.0
    usd: float = 0.0


class TargetOutlook(StrEnum):
    """Forecast of a job's target."""

    #: No forecast: too few values, values that do not fall, or the job is over; `detail` says which.
    UNKNOWN = "unknown"
    #: The best-fitting curve predicts late or never, but curves that predict better fit nearly as well.
    UNCLEAR = "unclear"
    EXPECTED = "expected"
    #: Expected only after the steps that the job declares.
    LATE = "late"
    OUT_OF_REACH = "out_of_reach"
    REACHED = "reached"


class TargetView(Body):
    """How far a job is from its target. Steps are counted from the beginning of the job."""

    #: Name of the value that the job reports, and what it shall fall to.
    value: str
    at_most: float
    outlook: TargetOutlook
    detail: str
    newest: float | None = None
    newest_step: float | None = None
    reached_step: float | None = None
    #: The step at which the curve reaches the target; null: the curve does not reach it.
    steps_expected: float | None = None
    steps_declared: float | None = None
    #: Time until then at the speed of the running attempt, and the instant.
    left_s: float | None = None
    expected_at: str | None = None
    levels_off_at: float | None = None
    #: Number of points that the curve is fitted to, and the step of the newest of them.
    points: int = 0
    foreseen_at_step: float | None = None


class ForecastView(Body):
    """When a job is expected to start and end: (p10, p50, p90) each, Unix seconds; four in five fall in between."""

    #: The instant of the state from which the forecast was simulated.
    as_of: float
    #: Null if the job runs. A start or end that most futures do not reach is null.
    start: tuple[float, float, float] | None = None
    end: tuple[float, float, float] | None = None
    #: Where the start is null for that reason, the instant before which it does not come in nine futures of ten.
    starts_after: float | None = None
    ends_after: float | None = None


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
    #: Null: the job has ended, is held, or has no forecast within the time looked ahead.
    forecast: ForecastView | None = None
    #: The first job of its sweep, and its index there; null where it belongs to no sweep.
    sweep: int | None = None
    sweep_index: int | None = None
    #: How many jobs of the sweep are in each state, where the newest stands for all of them (`?sweeps=folded`).
    sweep_states: dict[str, int] = Field(default_factory=dict)
    #: What the job did not state, with what it got and whose default that is.
    defaults: list[DefaultView] = Field(default_factory=list)


class CheckpointView(Body):
    """The checkpoint from which a job would continue."""

    step: float
    attempt: int
    recorded_at: str
    #: Whether it is in a store of its own, and not only in a folder that machines share.
    stored: bool = False
    #: Seconds that sending it to the store took, and seconds after the commit at which the store had it.
    upload_s: float = 0.0
    lag_s: float = 0.0


class JobDetail(JobView):
    """`GET /jobs/{id}`."""

    #: The one reason why the job waits, in a sentence that names jobs and times; the outcome of a job that is over; a
    #: note on a running job that is idle; else empty.
    why: str = ""
    spec: dict[str, Any]
    #: The incarnation of the server's database in which the job was submitted, if that is not the present one (a backup
    #: was restored in between); else empty.
    incarnation: str = ""
    #: Work before each checkpoint of the running attempt, seconds, as the scheduler plans it or the job file states it
    #: (null: neither), and why, in one line. A script may state an interval of its own, which it keeps.
    checkpoint_every_s: float | None = None
    checkpoint_detail: str = ""
    #: Null if the job has no target.
    target: TargetView | None = None
    #: What an hour of the job is worth in USD (null once it is over), and who states it: job, user, project or policy;
    #: empty where none does.
    value_usd_per_h: float | None = None
    value_by: str = ""
    #: Null before the first checkpoint.
    checkpoint: CheckpointView | None = None
    attempt_list: list[AttemptView] = Field(default_factory=list)


class JobPage(Body):
    items: list[JobView]
    next: str | None = None


class SubmitResult(Body):
    """`POST /jobs` (201), and one item of `POST /jobs:batch`."""

    id: int | None = None
    name: str = ""
    error: ProblemDetail | None = None
    #: What the owner should know of the job now; empty where there is nothing.
    note: str = ""
    #: The number of jobs of the sweep whose first job is `id`; 1 for a single job.
    jobs: int = 1
    defaults: list[DefaultView] = Field(default_factory=list)


class BatchResult(Body):
    items: list[SubmitResult]


class CancelResult(Body):
    """One item of `POST /jobs:cancel`: the job's state then, or why it was not cancelled."""

    id: int
    state: JobState | None = None
    error: ProblemDetail | None = None


class CancelResults(Body):
    items: list[CancelResult]


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
    #: What an hour of the job is worth in USD, and who states it: job, user, project or policy; empty where none does.
    value_usd_per_h: float = 0.0
    value_by: str = ""
    #: What the owner should know of the job beforehand; empty where there is nothing.
    note: str = ""
    #: When the job would start and end if it were submitted now; null where it has no forecast.
    forecast: ForecastView | None = None
    defaults: list[DefaultView] = Field(default_factory=list)


class ReasonView(Body):
    """One reason for a job's state, with its numbers, and what would change it (empty: only time)."""

    reason: Reason
    detail: str = ""
    fix: str = ""
    #: Worth and price of the place in the policy's own units; empty where it has none.
    figures: str = ""


class ConditionView(Body):
    """A warning about a job that runs or waits; it does not change the job's state."""

    #: at_risk (of its deadline) | budget_low | speed_differs (from its kind's) | no_steps | idle | off_plan |
    #: target_late | target_out_of_reach | waits_for_data | fetches_inputs | length_corrected (by its user's record)
    type: str
    detail: str


class SpeedView(Body):
    """The estimated speed of a job on a pool, in steps per second of the whole gang."""

    pool: str
    accelerator: str
    accelerators: int
    steps_per_s: float
    #: measured | declared | predicted
    source: str
    #: Bounds of the 80 % interval; null if the source gives none.
    low: float | None = None
    high: float | None = None
    #: The predictors that contributed to a prediction, such as `analytic`.
    by: list[str] = []


class FactsView(Body):
    """Facts of one kind of job besides its speed."""

    kind: str
    #: counted (by a job of the kind) | stated (by people)
    source: str
    facts: dict[str, float]
    #: Arithmetic of most operations; null if unknown.
    precision: str | None = None


class Explanation(Body):
    """`GET /jobs/{id}/explain`: every reason that holds now, the deciding one first. Empty for a job that runs."""

    job_id: int
    state: JobState
    #: The deciding reason as a sentence that names jobs and times; of a job that runs, its plan if it has a menu.
    why: str = ""
    reasons: list[ReasonView] = Field(default_factory=list)
    conditions: list[ConditionView] = Field(default_factory=list)
    #: Null if the job has no target.
    target: TargetView | None = None
    #: Speeds on the pools where it can run, fastest first; empty once the job is over.
    speeds: list[SpeedView] = Field(default_factory=list)


class NodeView(Body):
    node_id: str
    machine: str = ""  # the machine of several accelerator types that it is a part of; empty: of none
    pool: str
    accelerator: str
    emulated: bool
    market: str
    zone: str
    #: One of up | unreachable | leaving | quarantined | lost | released
    state: str
    detail: str = ""
    accelerators: int
    free: int
    jobs: list[int]
    last_heard_s: float | None = None
    #: Release of its agent; empty while it has not said.
    version: str = ""
    #: The boot of the machine during which its agent runs; empty until the agent has stated it.
    boot: str = ""
    #: The version of the agents' protocol that it speaks; null until this process has heard from it.
    protocol: int | None = None
    #: What keeps its agent from taking more work; empty where nothing does.
    problem: str = ""
    #: Whether it cannot reach the store of checkpoints: then no job is moved off it for others.
    private: bool = False
    #: The tools that it has of those jobs may need: uv, git, docker, ...; null until its agent has stated them.
    tools: list[str] | None = None
    devices: list[DeviceSample] = Field(default_factory=list)


class PriceView(Body):
    pool: str
    accelerator: str
    market: str
    capacity: float
    free: float
    #: Dual price of one accelerator held all the time, in `unit`, from the last solve.
    price: float
    unit: str
    market_usd_per_h: float
    rented_machines: int = 0
    quota_machines: int = 0
    #: The gain of the job on it that gains least at the prices, 0 without jobs: with one accelerator less, it would go.
    marginal_job: int = 0


class CertificateView(Body):
    status: str
    objective: float
    bound: float
    gap: float
    path: str
    solved_at: str
    #: Utility realised over the last rounds, as a fraction of the bound: gangs are whole, restarts take time.
    realised: float | None = None
    #: Bound for whole gangs (`?whole=true`); null: more than 64 accelerators, a policy that ranks jobs, or out of time.
    integral_bound: float | None = None
    usd_per_h: tuple[float, float] | None = None  # earned by the plan, and at most; null: nobody states values


class PriceList(Body):
    items: list[PriceView]
    certificate: CertificateView | None = None
    entities: list[EntityPriceView] = Field(default_factory=list)  # of the projects that the caller sees


class MoneyRow(Body):
    """The cost of one project, user, job, pool or month."""

    #: Name or number of the project, user, job, pool or month.
    key: str
    accelerator_s: float
    #: Cost of time that jobs held.
    usd: float
    #: Cost of rented time that no job held; only by pool and month, because it belongs to no project, user or job.
    idle_usd: float = 0.0
    #: Cost of the same time at on-demand prices.
    on_demand_usd: float = 0.0


class MoneyReport(Body):
    """`GET /money`: the ledger of money until now. `total_usd` = `used_usd` + `idle_usd`."""

    #: project | user | job | pool | month
    by: str
    #: Most expensive first, at most `limit` of them.
    items: list[MoneyRow]
    #: The sum of all others and how many these are; None and 0 where there are no more.
    rest: MoneyRow | None = None
    rest_of: int = 0
    used_usd: float
    #: Cost of rented time that no job held. 0 for users who see only some projects.
    idle_usd: float
    total_usd: float
    on_demand_usd: float


class PoolView(Body):
    """A pool of machines (`GET /pools`)."""

    pool_id: str
    shape: str
    accelerator: str
    #: Accelerators of one machine.
    accelerators: int
    market: str
    zone: str
    #: The price of one machine.
    usd_per_h: float
    #: The most machines that may be rented.
    quota: int
    #: Machines that are held rented whether or not they are worth their price.
    least: int = 0
    #: Whether it is being drained: no new jobs start and nothing is rented there.
    drained: bool
    #: Machines that are present, and machines that were requested and are not.
    machines: int
    coming: int
    #: The number of jobs that run there.
    jobs: list[int]
    #: The provider that rents out its machines; empty for owned machines.
    provider: str = ""
    #: Seconds from a request until the machine takes jobs, and seconds that it is billed for at least.
    boot_s: float = 0.0
    minimum_billing_s: float = 0.0
    #: The tools that every machine there has: uv, git, docker, ...; null while one of them has not stated its tools.
    tools: list[str] | None = None


class PoolRemoval(Body):
    """A pool that is gone, and the waiting jobs that no other pool could run (`DELETE /pools/{pool_id}`)."""

    pool_id: str
    stranded_jobs: list[int]


class Health(Body):
    ok: bool
    #: Checks by name: "event_loop", "database", "solver".
    checks: dict[str, str]
    version: str


class LogAccepted(Body):
    """Answer to `POST /agent/v1/logs?job_id=J&attempt=A&rank=R&offset=N` (the body is the raw bytes from offset N on).

    Sending the same bytes again is harmless; bytes beyond a gap are not taken.
    """

    next: int  # the offset from which the agent has to continue
    #: Whether the rank has used up its log quota, so that further bytes are dropped.
    full: bool = False
