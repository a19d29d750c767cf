"""The summary of a run as data and as JSON, and the metrics by which runs are compared.

`docs/simulator.md` defines the metrics. `RUN_METRICS` gives each a name, a unit, and which direction is better.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields
from math import isfinite, nan
from typing import Any

import numpy as np

from simulator.metrics import JobMetrics, PoolMeter
from simulator.reports.baselines import (
    BoundsChoice,
    FairnessMetrics,
    JobBaselines,
    LowerBounds,
    fairness_metrics,
    lower_bounds,
    themis_rho,
)
from simulator.simulation import SimulationResult
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import JobId
from walras.states import JobState


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """One pool over the run."""

    pool_id: str
    accelerator: str
    market: str
    #: Accelerator-hours that existed, that attempts held, and in which all ranks were running.
    there_h: float
    held_h: float
    running_h: float
    #: Held over existing accelerator-hours.
    utilisation: float
    usd: float


@dataclass(frozen=True, slots=True)
class ProjectSummary:
    """One project over the run."""

    project: str
    jobs: int
    succeeded: int
    avg_jct_s: float
    accelerator_h: float
    usd: float
    #: Mean finish-time fairness of its jobs (Themis' definition).
    rho_mean: float


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The metrics of one run. Times are in seconds; nan for means over nothing."""

    outcome: str
    jobs: int
    by_state: dict[str, int]
    unfinished: int
    avg_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    makespan_s: float
    avg_queueing_s: float
    utilisation: float
    accelerator_h: dict[str, float]
    usd: float
    usd_of_jobs: float
    preemptions: int
    losses: int
    attempts: int
    #: Part of the held accelerator time in which not all ranks were up (starting, saving at a stop).
    overhead: float
    worked_steps: float
    lost_steps: float
    events: int
    solves: int
    solve_mean_s: float
    wall_s: float
    pools: tuple[PoolSummary, ...]
    violations: tuple[str, ...]
    geometric_jct_s: float = nan
    #: Completion time / time alone in the fleet, on the fastest pool.
    slowdown_mean: float = nan
    slowdown_max: float = nan
    p99_queueing_s: float = nan
    #: Jobs with a deadline, and the number of them that had not succeeded by their deadline.
    deadlines: int = 0
    deadline_misses: int = 0
    solve_total_s: float = 0.0
    solve_max_s: float = 0.0
    projects: tuple[ProjectSummary, ...] = ()
    fairness: FairnessMetrics = field(default_factory=FairnessMetrics)
    bounds: LowerBounds = field(default_factory=LowerBounds)
    #: Number of workload rows that could not be read and were left out.
    skipped_rows: int = 0
    #: Number of jobs that the metrics over jobs cover, ended or not; 0: not counted.
    measured_jobs: int = 0
    #: Number of those that succeeded.
    finished: int = 0

    @property
    def usd_by_market(self) -> dict[str, float]:
        """Cost of the machines of each market, USD."""
        markets: dict[str, float] = {}
        for pool in self.pools:
            markets[pool.market] = markets.get(pool.market, 0.0) + pool.usd
        return dict(sorted(markets.items()))


@dataclass(frozen=True, slots=True)
class SummaryContext:
    """The input of a summary besides the events and commands of a run; without it some metrics do not exist."""

    baselines: JobBaselines
    bounds: BoundsChoice = BoundsChoice.NONE
    #: Completion times of the same jobs under the policy `isolated`, if that was simulated too.
    isolated_jct_s: Mapping[JobId, float] | None = None
    skipped_rows: int = 0
    #: Metrics over jobs cover those with these numbers (from, to), in order of arrival; None: all jobs.
    window: tuple[int, int] | None = None

    def counts(self, job: JobMetrics) -> bool:
        """Returns whether the job counts in metrics over jobs."""
        return self.window is None or self.window[0] <= job.job_id <= self.window[1]


def _counted(jobs: Sequence[JobMetrics], context: SummaryContext | None) -> list[JobMetrics]:
    return [job for job in jobs if context is None or context.counts(job)]


def summarise_run(result: SimulationResult, context: SummaryContext | None = None) -> RunSummary:
    """Returns the summary of a run whose jobs were collected in the result."""
    jobs = [*result.jobs, *result.unfinished]
    counted = _counted(jobs, context)
    done = [job for job in _counted(result.jobs, context) if job.state is JobState.SUCCEEDED]
    jcts = np.array([job.jct_s for job in done])
    queueing = np.array([job.queueing_s for job in counted if isfinite(job.queueing_s)])
    rho = finish_time_fairness(result, jobs, context.baselines) if context is not None else {}
    pools = tuple(_pool_summary(meter, result.bills[meter.pool.pool_id]) for meter in result.pools)
    there, held, running = (sum(getattr(pool, name) for pool in pools) for name in ("there_h", "held_h", "running_h"))
    by_state: dict[str, int] = {}
    accelerator_h: dict[str, float] = {}
    for job in jobs:
        by_state[job.state.value] = by_state.get(job.state.value, 0) + 1
        for accelerator, seconds in job.accelerator_s.items():
            accelerator_h[accelerator] = accelerator_h.get(accelerator, 0.0) + seconds / SECONDS_PER_HOUR
    solves = result.solves
    return RunSummary(
        outcome=result.outcome.value,
        jobs=len(jobs),
        by_state=dict(sorted(by_state.items())),
        unfinished=len(result.unfinished),
        avg_jct_s=float(jcts.mean()) if len(jcts) else nan,
        geometric_jct_s=float(np.exp(np.log(jcts).mean())) if len(jcts) and jcts.min() > 0 else nan,
        median_jct_s=_percentile(jcts, 50),
        p95_jct_s=_percentile(jcts, 95),
        p99_jct_s=_percentile(jcts, 99),
        makespan_s=result.last_ended_at - result.first_submitted_at,
        avg_queueing_s=float(queueing.mean()) if len(queueing) else nan,
        p99_queueing_s=_percentile(queueing, 99),
        utilisation=held / there if there else nan,
        accelerator_h=dict(sorted(accelerator_h.items())),
        usd=sum(pool.usd for pool in pools),
        usd_of_jobs=sum(job.usd for job in jobs),
        preemptions=sum(job.preemptions for job in jobs),
        losses=sum(job.losses for job in jobs),
        attempts=sum(job.attempts for job in jobs),
        overhead=1.0 - running / held if held else nan,
        worked_steps=result.worked_steps,
        lost_steps=result.lost_steps,
        events=result.events,
        solves=solves.solves,
        solve_mean_s=solves.real_s / solves.solves if solves.solves else nan,
        solve_max_s=solves.real_s_max,
        solve_total_s=solves.real_s,
        wall_s=result.wall_s,
        pools=pools,
        violations=tuple(result.violations),
        finished=len(done),
        projects=_project_summaries(jobs, rho, {job.job_id for job in done}),
        **(_context_metrics(result, done, rho, context) if context is not None else {}),
    )


def finish_time_fairness(
    result: SimulationResult, jobs: Sequence[JobMetrics], baselines: JobBaselines
) -> dict[JobId, float]:
    """Returns Themis' finish-time fairness of each job that ended, against the mean number of accelerators."""
    if not jobs:
        return {}
    there = sum(meter.there_s for meter in result.pools) / result.ended_at if result.ended_at > 0 else 0.0
    return themis_rho(jobs, baselines, there, result.ended_at)


def _context_metrics(
    result: SimulationResult, done: Sequence[JobMetrics], rho: Mapping[JobId, float], context: SummaryContext
) -> dict[str, Any]:
    baselines = context.baselines
    slowdowns = np.array([job.jct_s / baselines.alone_s(job.job_id) for job in done])
    counted = _counted([*result.jobs, *result.unfinished], context)
    bound_by = [job for job in counted if isfinite(baselines.deadline_at(job.job_id))]
    return {
        "slowdown_mean": float(slowdowns.mean()) if len(slowdowns) else nan,
        "slowdown_max": float(slowdowns.max()) if len(slowdowns) else nan,
        "deadlines": len(bound_by),
        "deadline_misses": sum(missed_deadline(job, baselines) for job in bound_by),
        "fairness": fairness_metrics(done, rho, baselines, context.isolated_jct_s),
        "bounds": lower_bounds(done, baselines, context.bounds, is_whole=context.window is None),
        "skipped_rows": context.skipped_rows,
        "measured_jobs": len(counted),
    }


def missed_deadline(job: JobMetrics, baselines: JobBaselines) -> bool:
    """Returns whether the job had a deadline and had not succeeded by it. A cancelled job misses no deadline."""
    deadline_at = baselines.deadline_at(job.job_id)
    if not isfinite(deadline_at) or job.state is JobState.CANCELLED:
        return False
    return not (job.state is JobState.SUCCEEDED and job.ended_at <= deadline_at)


def _project_summaries(
    jobs: Sequence[JobMetrics], rho: Mapping[JobId, float], done: Set[JobId]
) -> tuple[ProjectSummary, ...]:
    by_project: dict[str, list[JobMetrics]] = {}
    for job in jobs:
        by_project.setdefault(job.project, []).append(job)
    return tuple(_project_summary(name, by_project[name], rho, done) for name in sorted(by_project))


def _project_summary(
    name: str, jobs: Sequence[JobMetrics], rho: Mapping[JobId, float], done_ids: Set[JobId]
) -> ProjectSummary:
    done = [job for job in jobs if job.job_id in done_ids]
    rhos = [rho[job.job_id] for job in done if job.job_id in rho]
    return ProjectSummary(
        name,
        len(jobs),
        sum(job.state is JobState.SUCCEEDED for job in jobs),
        float(np.mean([job.jct_s for job in done])) if done else nan,
        sum(sum(job.accelerator_s.values()) for job in jobs) / SECONDS_PER_HOUR,
        sum(job.usd for job in jobs),
        float(np.mean(rhos)) if rhos else nan,
    )


def _percentile(values: "np.ndarray[Any, np.dtype[np.float64]]", q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else nan


def _pool_summary(meter: PoolMeter, usd: float) -> PoolSummary:
    pool = meter.pool
    return PoolSummary(
        str(pool.pool_id),
        pool.shape.accelerator,
        pool.market.value,
        meter.there_s / SECONDS_PER_HOUR,
        meter.held_s / SECONDS_PER_HOUR,
        meter.running_s / SECONDS_PER_HOUR,
        meter.held_s / meter.there_s if meter.there_s else nan,
        usd,
    )


_JOB_FIELDS = tuple(field.name for field in fields(JobMetrics))


def job_data(job: JobMetrics, baselines: JobBaselines | None = None) -> dict[str, Any]:
    """Returns one job as plain data; with `baselines` also what only the workload says of it."""
    body = {name: getattr(job, name) for name in _JOB_FIELDS}
    body |= {"jct_s": job.jct_s, "queueing_s": job.queueing_s}
    if baselines is None:
        return body
    alone_s, deadline_at = baselines.alone_s(job.job_id), baselines.deadline_at(job.job_id)
    more = {
        "name": baselines.name(job.job_id),
        "gang": baselines.gang(job.job_id),
        "alone_s": alone_s,
        "slowdown": job.jct_s / alone_s,
        "deadline_at": deadline_at if isfinite(deadline_at) else nan,
        "missed": missed_deadline(job, baselines),
    }
    return body | more


def summary_data(summary: RunSummary) -> dict[str, Any]:
    """Returns the summary as plain data; metrics that do not exist are None."""
    return nonfinite_to_none({**asdict(summary), "usd_by_market": summary.usd_by_market})


def summary_document(
    summary: RunSummary,
    jobs: Sequence[JobMetrics] = (),
    baselines: JobBaselines | None = None,
    run: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the summary with the description of the run and the jobs, if given, for `stream_json`.

    `per_job` is an iterator, so that a run of a hundred thousand jobs is written one job at a time.
    """
    body = summary_data(summary)
    if run is not None:
        body["run"] = dict(run)
    if jobs:
        body["per_job"] = (job_data(job, baselines) for job in jobs)
    return body


def nonfinite_to_none(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same data with None in place of every number that is not finite."""
    return {key: _finite(item) for key, item in data.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return nonfinite_to_none(value)
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def none_to_nan(data: Mapping[str, Any], kept: Set[str] = frozenset()) -> dict[str, Any]:
    """Returns the same data with nan in place of None, except under the names `kept`."""
    return {key: _nan(item, kept) if item is not None or key not in kept else None for key, item in data.items()}


def _nan(value: Any, kept: Set[str]) -> Any:
    if isinstance(value, Mapping):
        return none_to_nan(value, kept)
    if isinstance(value, list):
        return [_nan(item, kept) for item in value]
    return nan if value is None else value


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric of a run. `path` leads to it in the summary's data."""

    name: str
    title: str
    unit: str
    #: None: neither direction is better.
    lower_is_better: bool | None = True
    path: str = ""


RUN_METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition("avg_jct_s", "JCT avg", "s"),
    MetricDefinition("median_jct_s", "JCT median", "s"),
    MetricDefinition("p95_jct_s", "JCT p95", "s"),
    MetricDefinition("p99_jct_s", "JCT p99", "s"),
    MetricDefinition("geometric_jct_s", "JCT geometric", "s"),
    MetricDefinition("slowdown_mean", "slowdown mean", ""),
    MetricDefinition("slowdown_max", "slowdown max", ""),
    MetricDefinition("makespan_s", "makespan", "s"),
    MetricDefinition("avg_queueing_s", "queueing avg", "s"),
    MetricDefinition("p99_queueing_s", "queueing p99", "s"),
    MetricDefinition("rho_mean", "fairness rho mean", "", path="fairness.rho_mean"),
    MetricDefinition("rho_max", "fairness rho max", "", path="fairness.rho_max"),
    MetricDefinition("unfair", "unfair jobs", "part", path="fairness.unfair"),
    MetricDefinition("isolated_mean", "fairness vs isolated, mean", "", path="fairness.isolated_mean"),
    MetricDefinition("isolated_max", "fairness vs isolated, max", "", path="fairness.isolated_max"),
    MetricDefinition("jain", "Jain's index", "", lower_is_better=False, path="fairness.jain"),
    MetricDefinition("utilisation", "utilisation", "part", lower_is_better=None),
    MetricDefinition("usd", "money", "USD"),
    MetricDefinition("usd_of_jobs", "money under jobs", "USD"),
    MetricDefinition("preemptions", "preemptions", ""),
    MetricDefinition("losses", "losses", ""),
    MetricDefinition("overhead", "restart overhead", "part"),
    MetricDefinition("lost_steps", "steps lost", "steps"),
    MetricDefinition("deadline_misses", "deadlines missed", "jobs"),
    MetricDefinition("finished", "finished", "jobs", lower_is_better=False),
    MetricDefinition("unfinished", "unfinished", "jobs"),
    MetricDefinition("skipped_rows", "rows skipped", "rows", lower_is_better=None),
    MetricDefinition("solves", "solves", "", lower_is_better=None),
    MetricDefinition("jct_bound_s", "JCT bound by prices", "s", None, "bounds.jct_s"),
    MetricDefinition("jct_gap", "JCT above that bound", "part", path="bounds.jct_gap"),
    MetricDefinition("no_contention_s", "JCT without contention", "s", None, "bounds.no_contention_s"),
    MetricDefinition("no_contention_gap", "JCT above that", "part", path="bounds.no_contention_gap"),
    MetricDefinition("makespan_bound_s", "makespan bound", "s", None, "bounds.makespan_s"),
    MetricDefinition("makespan_gap", "makespan above that", "part", path="bounds.makespan_gap"),
)
#: Metrics measured by this machine's clock: never compared, and not determined by a cell's key.
TIME_METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition("solve_total_s", "policy time", "s", None),
    MetricDefinition("solve_mean_s", "policy time per solve", "s", None),
    MetricDefinition("solve_max_s", "policy time, longest", "s", None),
    MetricDefinition("wall_s", "took", "s", None),
)


def metric_values(summary: RunSummary, measures: Iterable[MetricDefinition] = RUN_METRICS) -> dict[str, float]:
    """Returns the metrics by name; nan for one that does not exist."""
    data = summary_data(summary)
    return {measure.name: _value_at_path(data, measure.path or measure.name) for measure in measures}


def _value_at_path(data: dict[str, Any], path: str) -> float:
    value: Any = data
    for part in path.split("."):
        value = value[part]
    return nan if value is None else float(value)
