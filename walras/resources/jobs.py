"""Jobs: what the server tells of them and takes from their owners, and the calls of `walras.client.Client`.

Instants are RFC 3339 text in UTC, those of forecasts Unix seconds; lengths are seconds; money is USD. Lists are pages:
`items` and an opaque `next` cursor (absent on the last page).

Beside jobs stand the facts of their kinds other than speed: what is known, and what people state. What a job was
planned to do (`plan` of its spec) is compared with what its ranks report, speed and bandwidth: the server shows it as
the condition `off_plan`, the commands in one line of a job.
"""

import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator

from walras.connection.body import Body, ProblemDetail, RequestBody
from walras.connection.remote_session import SessionAsked
from walras.contract import BANDWIDTH_VALUE
from walras.job_request import DEFAULT_PROJECT
from walras.model_facts import MOST_SAMPLES
from walras.resources.endpoint import API, BINARY, LARGE_BODY_BYTES, Call, Calls, Endpoint, Stream
from walras.resources.people import DefaultView
from walras.spec.field_types import MAX_NODES, DeclaredThroughput, Number, ShownName, WholeNumber
from walras.spec.file_model import FileModel
from walras.spec.job_groups import FactsSpec, PlanSpec, ResourcesSpec, with_secret_values
from walras.spec.job_spec import JobSpec, spec_mapping
from walras.states import AttemptState, JobState, Reason

#: The items of one page of a listing; the server may send fewer.
_PAGE = 500
#: The most jobs of one request, and the largest job number.
JOBS_IN_ONE, LARGEST_NUMBER = 1000, 2**53
AnySpec = JobSpec | Mapping[str, Any]


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
    """When a job is expected to start and end: (p10, p50, p90) each, Unix seconds; four in five fall in between.

    A p90 of `as_of` + 14 days is the end of what is looked ahead: the start or end may come later.
    """

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
    #: target_late | target_out_of_reach | waits_for_data | fetches_inputs | length_corrected (by its user's record) |
    #: policy_failed (and was replaced)
    type: str
    detail: str


class SpeedView(Body):
    """The estimated speed of a job on a pool, in steps per second of the whole gang."""

    pool: str
    accelerator: str
    accelerators: int
    steps_per_s: float
    #: measured | declared | shared (measured by another project) | predicted
    source: str
    #: Bounds of the 80 % interval; null if the source gives none.
    low: float | None = None
    high: float | None = None
    #: The predictors that contributed to a prediction, such as `analytic`.
    by: list[str] = Field(default=[])


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


class JobBatch(RequestBody):
    """`POST /jobs:batch`."""

    jobs: list[Any] = Field(min_length=1, max_length=JOBS_IN_ONE)


class JobsCancelled(RequestBody, strict=True):
    """`POST /jobs:cancel`."""

    jobs: list[Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]] = Field(min_length=1, max_length=JOBS_IN_ONE)


class Patch(RequestBody, strict=True):
    """`PATCH /jobs/{id}`."""

    priority: int | None = Field(default=None, ge=0, le=100)
    budget_usd: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)  # over all attempts
    deadline: str | None = Field(default=None, max_length=64)  # as in a job file; `none`: it has none any more
    project: str | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _says_something(self) -> "Patch":
        if not self.model_dump(exclude_none=True):
            raise ValueError("say what to change: priority, budget_usd, deadline or project")
        return self


class Redirection(FileModel):
    """The fields of a job's spec that are to be others, as in a job file; each that is left out becomes its default."""

    resources: ResourcesSpec
    num_nodes: WholeNumber = Field(default=1, ge=1, le=MAX_NODES)
    throughput: Annotated[DeclaredThroughput, Field(max_length=64)] = Field(default_factory=dict)
    value_usd_per_h: Annotated[Number, Field(ge=0, le=1e9)] | None = None
    plan: PlanSpec | None = None


_JOBS = f"{API}/jobs"
#: The path of a job.
JOB_PATH = _JOBS + "/{job_id:[0-9]+}"
SUBMIT = Endpoint(
    "POST", _JOBS, "Submit a job. Its spec as JSON, or (`Content-Type: application/yaml`) the file as it is; a "
    "sweep becomes `jobs` jobs, all or none, of which `id` is the first.", SubmitResult, "user",
    JobSpec, status=201, repeatable=True,
)  # fmt: skip
#: Values: of a thousand specs several hundred each.
SUBMIT_BATCH = Endpoint(
    "POST", f"{_JOBS}:batch", "Submit up to 1000 jobs. Each is accepted or refused on its own.", BatchResult, "user",
    JobBatch, repeatable=True, body_bytes=LARGE_BODY_BYTES, body_values=500_000,
)  # fmt: skip
DRY_RUN = Endpoint(
    "POST", f"{_JOBS}:dryrun", "What would happen to a job. Configurations, speeds and prices now; stores nothing.",
    DryRun, "user", JobSpec, repeatable=True,
)  # fmt: skip
JOBS = Endpoint(
    "GET", _JOBS, "Jobs, newest first. Or by `sort` (`name`, `-priority`, …; `queue`: those that have not ended, "
    "next first); `name`: a part of it; `sweep=ID`: the jobs of one; `sweeps=folded`: of each sweep one job, with "
    "`sweep_states`; `next` is the cursor.", JobPage,
    query=("state", "user", "project", "name", "active", "sweep", "sweeps", "sort", "limit", "cursor"),
)  # fmt: skip
CHANGE_JOB = Endpoint(
    "PATCH", JOB_PATH, "Change a job's priority, budget, deadline or project. `deadline` as in a job file, or `none`; "
    "`project` while it waits or is held.", JobDetail, "owner", Patch,
)  # fmt: skip
CANCEL = Endpoint(
    "POST", f"{JOB_PATH}/cancel", "Cancel a job. Harmless for one that has ended.", JobDetail, "owner", repeatable=True,
)  # fmt: skip
CANCEL_ALL = Endpoint(
    "POST", f"{_JOBS}:cancel", "Cancel up to 1000 jobs. In this order: `items` with `id` and `state`, or `error`.",
    CancelResults, "owner", JobsCancelled, repeatable=True,
)  # fmt: skip
SESSION = Endpoint(
    "GET", f"{JOB_PATH}/session", "A websocket into a running job. `kind`: `exec`, `shell` or `forward`. Binary "
    'messages are a channel byte and bytes, text messages notes such as `{"type": "exit", "code": 0}`; at most 32 of '
    "a job, a day each; in the audit; ended with a note `refused` once the caller may not have it.", BINARY, "owner",
    query=tuple(SessionAsked.model_fields), waits=True,
)  # fmt: skip


class JobCalls(Calls):
    """The client's calls about jobs."""

    @Call
    async def submit(self, spec: AnySpec, *, idempotency_key: str | None = None) -> SubmitResult:
        """Submit one job. With the same key the server returns the same job, even to another client."""
        found: SubmitResult = await SUBMIT.ask(self, {"spec": _with_secrets(spec)}, _key(idempotency_key))
        return found

    @Call
    async def submit_batch(self, specs: Sequence[AnySpec], *, idempotency_key: str | None = None) -> BatchResult:
        """Submit up to 1000 jobs; each is accepted or refused on its own, in the order given."""
        jobs = [_with_secrets(spec) for spec in specs]
        found: BatchResult = await SUBMIT_BATCH.ask(self, {"jobs": jobs}, _key(idempotency_key))
        return found

    @Call
    async def dry_run(self, spec: AnySpec) -> DryRun:
        """Returns what would happen to the job now. Nothing is stored."""
        found: DryRun = await DRY_RUN.ask(self, {"spec": _mapping(spec)})
        return found

    @Stream
    async def jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        user: str | None = None,
        project: str | None = None,
        active: bool = False,
        sweep: int | None = None,
        fold_sweeps: bool = False,
        sort: str = "-id",
        limit: int | None = None,
    ) -> AsyncIterator[JobView]:
        """Yields jobs, newest first, fetched a page at a time; at most `limit`.

        `sweep`: only those of this one; `fold_sweeps`: one job for each sweep, with `sweep_states`; `sort`: as of
        `GET /jobs`, such as `queue`.
        """
        asked = {"state": ",".join(states), "user": user, "project": project, "active": active, "sweep": sweep}
        asked |= {"sweeps": "folded" if fold_sweeps else "", "sort": sort, "cursor": ""}
        left = limit if limit is not None else 2**62
        while left > 0:
            page: JobPage = await JOBS.ask(self, asked | {"limit": min(left, _PAGE)})
            for job in page.items[:left]:
                yield job
            left -= len(page.items)
            if not page.next or not page.items:
                return
            asked["cursor"] = page.next

    @Endpoint("GET", JOB_PATH, who="viewer or job")
    async def job(self, job_id: int) -> JobDetail:
        """One job."""

    @Endpoint("GET", f"{JOB_PATH}/attempts", who="viewer or job")
    async def attempts(self, job_id: int) -> list[AttemptView]:
        """Attempts of a job, oldest first."""

    @Endpoint("GET", f"{JOB_PATH}/explain")
    async def explain(self, job_id: int) -> Explanation:
        """Why a job is where it is. Every reason, with numbers and fix; conditions: `at_risk`, `spends_slack`,
        `budget_low`, `speed_differs`, `no_steps`, `target_late`, `target_out_of_reach`, `waits_for_data`,
        `fetches_inputs`, `length_corrected`, `idle`, `off_plan`, `policy_failed`; its speed on each pool,
        and from where that is known; `target`: how far it is from its target.
        """

    @Call
    async def cancel(self, job_id: int) -> JobState:
        """Request the job's end; returns its present state. Harmless if the job has ended already."""
        found: JobDetail = await CANCEL.ask(self, {"job_id": job_id})
        return found.state

    @Call
    async def cancel_all(self, job_ids: Sequence[int]) -> list[CancelResult]:
        """Request the end of up to 1000 jobs in one call; each is cancelled or refused on its own, in this order."""
        found: CancelResults = await CANCEL_ALL.ask(self, {"jobs": list(job_ids)})
        return found.items

    @Endpoint("POST", f"{JOB_PATH}/hold", who="owner", repeatable=True)
    async def hold(self, job_id: int) -> JobDetail:
        """Hold a job. It does not start until it is released."""

    @Endpoint("POST", f"{JOB_PATH}/release", who="owner", repeatable=True)
    async def release(self, job_id: int) -> JobDetail:
        """Release a held job."""

    @Endpoint("POST", f"{JOB_PATH}/redirect", who="owner", body=Redirection, repeatable=True)
    async def redirect(self, job_id: int, machines: Mapping[str, Any]) -> JobDetail:
        """Send a held job to other machines. With the fields of a job file; once released, it goes on there from its
        checkpoint; 409 for a job that is not held.
        """

    @CHANGE_JOB
    async def reprioritise(self, job_id: int, priority: int) -> JobDetail:
        """Give a job that has not ended another priority (0-100)."""

    @CHANGE_JOB
    async def rebudget(self, job_id: int, budget_usd: float) -> JobDetail:
        """Set the total budget of a job that has not ended; a job held for its budget goes on if it is larger."""

    @CHANGE_JOB
    async def redate(self, job_id: int, deadline: str) -> JobDetail:
        """Set the deadline of a job that has not ended, as in a job file (`+6h`, an instant); `none` takes it away."""

    @CHANGE_JOB
    async def reassign(self, job_id: int, project: str, priority: int | None = None) -> JobDetail:
        """Give a job that waits or is held to another project of the token and of its owner; its cost stays behind.

        `priority`: the one that it is to have there; None: the one that it has, or the new project's default.
        """


def _mapping(spec: AnySpec) -> dict[str, Any]:
    return spec_mapping(spec) if isinstance(spec, JobSpec) else dict(spec)


def _with_secrets(spec: AnySpec) -> dict[str, Any]:
    """Returns the job with the values of its secrets, from this process's environment and files."""
    return with_secret_values(_mapping(spec), os.environ)


def _key(given: str | None) -> dict[str, str]:
    return {"Idempotency-Key": given or uuid.uuid4().hex}


class FactsView(Body):
    """Facts of one kind of job besides its speed."""

    kind: str
    project: str = DEFAULT_PROJECT
    #: counted (by a job of the kind) | stated (by people)
    source: str
    facts: dict[str, float]
    #: Arithmetic of most operations; null if unknown.
    precision: str | None = None
    #: transformer | convolution; null if unknown.
    family: str | None = None


class KindStated(FileModel):
    """`POST /facts`. `batch`: samples of one step over a gang of whatever size; else those of each accelerator."""

    kind: ShownName
    #: Whose kind it is; null: the project of jobs that name none.
    project: ShownName | None = None
    facts: FactsSpec
    batch: float | None = Field(default=None, gt=0, le=MOST_SAMPLES)

    def model_post_init(self, context: object) -> None:
        self.facts.facts(self.batch)


class FactCalls(Calls):
    """The client's calls about facts of kinds of jobs."""

    @Endpoint("POST", f"{API}/facts", who="user", body=KindStated, repeatable=True)
    async def state_facts(
        self, kind: str, facts: Mapping[str, Any], batch: float | None = None, project: str | None = None
    ) -> FactsView:
        """State facts of a kind of jobs. As a job file's `facts`; `batch`: samples of a step over the whole gang;
        `project`: whose kind, else that of jobs that name none. The answer has the facts now in force.
        """

    @Endpoint("GET", f"{API}/facts")
    async def facts(self, kind: str | None = None) -> list[FactsView]:
        """What is known of kinds of jobs. Besides their speed, and from whom."""


#: The part of the plan by which a measurement may differ before another plan is worth making (after Srifty).
OFF_PLAN = 0.15
#: The number of windows of steps after which an attempt's median speed counts as warmed up.
WARM_REPORTS = 10


@dataclass(frozen=True, slots=True)
class PlannedSpeed:
    """A plan and its measurements so far; None: nothing was measured."""

    machines: int
    accelerator: str
    accelerators: int
    pool: str
    planned_steps_per_s: float
    low: float
    high: float
    planned_bytes_per_s: float | None = None
    steps_per_s: float | None = None
    bytes_per_s: float | None = None

    @property
    def off(self) -> float | None:
        """Measured speed against the planned one: -0.18 is 18 % slower. None: nothing was measured."""
        return None if self.steps_per_s is None else self.steps_per_s / self.planned_steps_per_s - 1.0

    @property
    def network_off(self) -> float | None:
        """Measured bandwidth between machines relative to the planned one; None: nothing was measured."""
        if self.bytes_per_s is None or self.planned_bytes_per_s is None:
            return None
        return self.bytes_per_s / self.planned_bytes_per_s - 1.0

    @property
    def differs(self) -> bool:
        """Whether another plan is worth making: a speed off by more than `OFF_PLAN`, or so much bandwidth missing."""
        is_slower_network = self.network_off is not None and self.network_off < -OFF_PLAN
        return is_slower_network or (self.off is not None and abs(self.off) > OFF_PLAN)

    @property
    def text(self) -> str:
        """Plan and measurement in one line."""
        where = f"{self.accelerators} x {self.accelerator} of {self.pool}"
        words = f"planned {self.planned_steps_per_s:.3g} steps/s on {where} ({self.low:.3g} to {self.high:.3g})"
        if self.steps_per_s is not None and self.off is not None:
            words += f", measured {self.steps_per_s:.3g} ({100 * self.off:+.0f} %)"
        if self.bytes_per_s is not None and self.network_off is not None:
            words += f"; {8e-9 * self.bytes_per_s:.3g} Gbit/s between machines ({100 * self.network_off:+.0f} %)"
        return words


def planned_speed(
    spec: Mapping[str, Any], steps_per_s: float | None, values: Mapping[str, float] | None = None
) -> PlannedSpeed | None:
    """Returns the plan in a job's spec and what was measured, or None for a job without a plan.

    Args:
        spec: the job's spec as JSON.
        steps_per_s: of the whole gang on the planned machines; None: not measured yet.
        values: what the ranks reported by name.
    """
    plan = spec.get("plan")
    if not isinstance(plan, Mapping):
        return None
    return PlannedSpeed(
        machines=int(plan["machines"]),
        accelerator=str(plan["accelerator"]),
        accelerators=int(plan["accelerators"]),
        pool=str(plan["pool"]),
        planned_steps_per_s=float(plan["steps_per_s"]),
        low=float(plan["low"]),
        high=float(plan["high"]),
        planned_bytes_per_s=plan.get("network_bytes_per_s"),
        steps_per_s=steps_per_s or None,
        bytes_per_s=(values or {}).get(BANDWIDTH_VALUE) or None,
    )
