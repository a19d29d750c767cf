"""A run's figures: a summary as data, as a table, as JSON. `docs/metrics.md` defines each."""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from typing import Any

import numpy as np

from simulator.metrics import JobMeasure, PoolMeter
from simulator.simulate import Result
from simulator.study.bounds import Bounds, BoundsAsked, bounds_of
from simulator.study.fairness import Fairness, fairness_of, themis_rho
from simulator.study.roster import Roster
from walras.ids import JobId
from walras.states import JobState


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """One pool over the run."""

    pool_id: str
    accelerator: str
    market: str
    #: Accelerator-hours that were there, held by attempts, and with all ranks up.
    there_h: float
    held_h: float
    running_h: float
    #: held / there.
    utilisation: float
    usd: float


@dataclass(frozen=True, slots=True)
class ProjectFigures:
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
class Summary:
    """The figures of one run. Times in seconds; nan where there is nothing to take a mean of."""

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
    pools: tuple[PoolFigures, ...]
    violations: tuple[str, ...]
    geometric_jct_s: float = nan
    #: Completion time / time alone in the fleet, on the fastest pool.
    slowdown_mean: float = nan
    slowdown_max: float = nan
    p99_queueing_s: float = nan
    #: Jobs with a deadline, and those of them that had not succeeded by then.
    deadlines: int = 0
    deadline_misses: int = 0
    solve_total_s: float = 0.0
    solve_max_s: float = 0.0
    projects: tuple[ProjectFigures, ...] = ()
    fairness: Fairness = field(default_factory=Fairness)
    bounds: Bounds = field(default_factory=Bounds)
    #: Rows of the workload that could not be read and were left out.
    skipped_rows: int = 0
    #: Jobs that figures over jobs are over, whatever became of them; 0: nobody counted them apart.
    measured_jobs: int = 0

    @property
    def usd_by_market(self) -> dict[str, float]:
        """What the machines of each market cost."""
        markets: dict[str, float] = {}
        for pool in self.pools:
            markets[pool.market] = markets.get(pool.market, 0.0) + pool.usd
        return dict(sorted(markets.items()))


#: Figures that this machine's clock makes: two equal runs differ in them, and in nothing else.
COSTS = frozenset({"wall_s", "solve_mean_s", "solve_max_s", "solve_total_s"})


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known beside the events and commands of a run; without it, some figures do not exist."""

    roster: Roster
    bounds: BoundsAsked = BoundsAsked.NONE
    #: Completion times of the same jobs under the policy `isolated`, if that was simulated too.
    isolated_jct_s: Mapping[JobId, float] | None = None
    skipped_rows: int = 0
    #: Figures over jobs are over those with these numbers (from, to), in order of arrival; None: over all.
    window: tuple[int, int] | None = None

    def counts(self, job: JobMeasure) -> bool:
        """Whether the job takes part in figures over jobs."""
        return self.window is None or self.window[0] <= job.job_id <= self.window[1]


def _counted(jobs: Sequence[JobMeasure], beside: Beside | None) -> list[JobMeasure]:
    return [job for job in jobs if beside is None or beside.counts(job)]


def summarise(result: Result, beside: Beside | None = None) -> Summary:
    """The figures of a run whose jobs were collected in the result."""
    jobs = [*result.jobs, *result.unfinished]
    counted = _counted(jobs, beside)
    done = [job for job in _counted(result.jobs, beside) if job.state is JobState.SUCCEEDED]
    jcts = np.array([job.jct_s for job in done])
    queueing = np.array([job.queueing_s for job in counted if isfinite(job.queueing_s)])
    rho = _rho(result, jobs, beside)
    pools = tuple(_pool_figures(meter, result.bills[meter.pool.pool_id]) for meter in result.pools)
    there, held, running = (sum(getattr(pool, name) for pool in pools) for name in ("there_h", "held_h", "running_h"))
    by_state: dict[str, int] = {}
    accelerator_h: dict[str, float] = {}
    for job in jobs:
        by_state[job.state.value] = by_state.get(job.state.value, 0) + 1
        for accelerator, seconds in job.accelerator_s.items():
            accelerator_h[accelerator] = accelerator_h.get(accelerator, 0.0) + seconds / 3600.0
    solves = result.solves
    return Summary(
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
        projects=_projects(jobs, rho, {job.job_id for job in done}),
        **(_known_beside(result, done, rho, beside) if beside is not None else {}),
    )


def _rho(result: Result, jobs: Sequence[JobMeasure], beside: Beside | None) -> dict[JobId, float]:
    """Themis' finish-time fairness of each job that ended, against the accelerators that were there on average."""
    if beside is None or not jobs:
        return {}
    there = sum(meter.there_s for meter in result.pools) / result.ended_at if result.ended_at > 0 else 0.0
    return themis_rho(jobs, beside.roster, there, result.ended_at)


def _known_beside(
    result: Result, done: Sequence[JobMeasure], rho: Mapping[JobId, float], beside: Beside
) -> dict[str, Any]:
    roster = beside.roster
    slowdowns = np.array([job.jct_s / roster.alone_s(job.job_id) for job in done])
    counted = _counted([*result.jobs, *result.unfinished], beside)
    bound_by = [job for job in counted if isfinite(roster.deadline_at(job.job_id))]
    return {
        "slowdown_mean": float(slowdowns.mean()) if len(slowdowns) else nan,
        "slowdown_max": float(slowdowns.max()) if len(slowdowns) else nan,
        "deadlines": len(bound_by),
        "deadline_misses": sum(missed(job, roster) for job in bound_by),
        "fairness": fairness_of(done, rho, roster, beside.isolated_jct_s),
        "bounds": bounds_of(done, roster, beside.bounds, is_whole=beside.window is None),
        "skipped_rows": beside.skipped_rows,
        "measured_jobs": len(counted),
    }


def missed(job: JobMeasure, roster: Roster) -> bool:
    """Whether the job had a deadline and had not succeeded by then. What its user cancelled missed nothing."""
    deadline_at = roster.deadline_at(job.job_id)
    if not isfinite(deadline_at) or job.state is JobState.CANCELLED:
        return False
    return not (job.state is JobState.SUCCEEDED and job.ended_at <= deadline_at)


def _projects(jobs: Sequence[JobMeasure], rho: Mapping[JobId, float], done: Set[JobId]) -> tuple[ProjectFigures, ...]:
    by_project: dict[str, list[JobMeasure]] = {}
    for job in jobs:
        by_project.setdefault(job.project, []).append(job)
    return tuple(_project(name, by_project[name], rho, done) for name in sorted(by_project))


def _project(name: str, jobs: Sequence[JobMeasure], rho: Mapping[JobId, float], done_ids: Set[JobId]) -> ProjectFigures:
    done = [job for job in jobs if job.job_id in done_ids]
    rhos = [rho[job.job_id] for job in done if job.job_id in rho]
    return ProjectFigures(
        name,
        len(jobs),
        sum(job.state is JobState.SUCCEEDED for job in jobs),
        float(np.mean([job.jct_s for job in done])) if done else nan,
        sum(sum(job.accelerator_s.values()) for job in jobs) / 3600.0,
        sum(job.usd for job in jobs),
        float(np.mean(rhos)) if rhos else nan,
    )


def _percentile(values: "np.ndarray[Any, np.dtype[np.float64]]", q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else nan


def _pool_figures(meter: PoolMeter, usd: float) -> PoolFigures:
    pool = meter.pool
    return PoolFigures(
        str(pool.pool_id),
        pool.shape.accelerator,
        pool.market.value,
        meter.there_s / 3600.0,
        meter.held_s / 3600.0,
        meter.running_s / 3600.0,
        meter.held_s / meter.there_s if meter.there_s else nan,
        usd,
    )


def per_job(job: JobMeasure, roster: Roster | None = None) -> dict[str, Any]:
    """One job as plain data; what only the workload knows is there if a roster is."""
    body = {**asdict(job), "jct_s": job.jct_s, "queueing_s": job.queueing_s}
    if roster is None:
        return body
    alone_s, deadline_at = roster.alone_s(job.job_id), roster.deadline_at(job.job_id)
    more = {
        "name": roster.name(job.job_id),
        "gang": roster.gang(job.job_id),
        "alone_s": alone_s,
        "slowdown": job.jct_s / alone_s,
        "deadline_at": deadline_at if isfinite(deadline_at) else nan,
        "missed": missed(job, roster),
    }
    return {**body, **more}


def as_data(summary: Summary) -> dict[str, Any]:
    """The summary as plain data; figures that do not exist are None."""
    data: dict[str, Any] = finite({**asdict(summary), "usd_by_market": summary.usd_by_market})
    return data


def to_json(
    summary: Summary,
    jobs: Sequence[JobMeasure] = (),
    roster: Roster | None = None,
    run: Mapping[str, Any] | None = None,
) -> str:
    """The summary as JSON, and if given what decided the run and the jobs; figures that do not exist are null."""
    body = as_data(summary)
    if run is not None:
        body["run"] = finite(dict(run))
    if jobs:
        body["per_job"] = [finite(per_job(job, roster)) for job in jobs]
    return json.dumps(body, indent=2)


def finite(value: Any) -> Any:
    """The same data with None for every number that is not finite."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
