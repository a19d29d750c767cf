"""The jobs of a run one by one, and its levels over time, which figures and resampling use.

They are computed on request, because a comparison of metrics needs neither.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite, nan

import numpy as np

from simulator.metrics import JobMetrics
from simulator.reports.charts import series_means
from simulator.reports.run_spec import CompletedRun, RunSpec, RunWatcher, execute_run, parse_window
from simulator.reports.run_summary import finish_time_fairness
from simulator.reports.timeline import AttemptSpan, StepSeries, Timeline
from walras.states import JobState


class RunDepth(StrEnum):
    """What is kept of a run beside its metrics."""

    JOBS = "jobs"
    #: Its jobs and its levels.
    LEVELS = "levels"


@dataclass(frozen=True, slots=True)
class JobOutcomes:
    """The jobs that count in the metrics, in order of arrival; nan for values that do not exist."""

    job_id: tuple[int, ...]
    project: tuple[str, ...]
    #: For jobs that succeeded: completion time, and its ratios to the time alone and to that in an equal share
    #: (Themis).
    jct_s: tuple[float, ...]
    slowdown: tuple[float, ...]
    rho: tuple[float, ...]
    queueing_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LevelCurve:
    """A level over time: its value from each instant on, or its mean until the next instant."""

    at: tuple[float, ...]
    value: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunLevels:
    """Levels over time, by pool if there are several."""

    ended_at: float
    #: Jobs in the system that hold no accelerator.
    waiting: LevelCurve
    #: Accelerators that exist, and accelerators that are held.
    there: dict[str, LevelCurve]
    held: dict[str, LevelCurve]
    #: The optimizer's price of an accelerator, in `price_unit`, and the market price of a machine, USD/h.
    price: dict[str, LevelCurve]
    usd_per_h: dict[str, LevelCurve]
    price_unit: str
    usd_by_market: dict[str, float]
    #: By pool, in order of lease: job, accelerators, start, end.
    attempts: dict[str, tuple[tuple[int, int, float, float], ...]] = field(default_factory=dict)
    #: All attempts that were leased before this instant are included.
    attempts_until: float = 0.0


@dataclass(frozen=True, slots=True)
class RunDetail:
    """The jobs of a run, and its levels if they were requested."""

    jobs: JobOutcomes
    levels: RunLevels | None = None


#: Largest number of values that are kept of a distribution.
SPREAD_POINTS = 201
#: Largest number of attempts that are kept of a run.
ATTEMPTS_KEPT = 4_000
#: The distributions that are kept of a run.
SPREADS = ("jct_s", "slowdown", "rho", "queueing_s")


def spread_of(values: Sequence[float]) -> tuple[float, ...]:
    """Returns the finite values sorted; if there are many, their quantiles, the least and largest included."""
    known = np.sort(np.array([value for value in values if isfinite(value)]))
    if len(known) > SPREAD_POINTS:
        known = np.quantile(known, np.linspace(0.0, 1.0, SPREAD_POINTS))
    return tuple(float(f"{value:.6g}") for value in known.tolist())


def job_spreads(jobs: JobOutcomes) -> dict[str, tuple[float, ...]]:
    """Returns the distributions of the jobs, by name."""
    return {name: spread_of(getattr(jobs, name)) for name in SPREADS}


def execute_in_detail(run: RunSpec, depth: RunDepth, watch: RunWatcher | None = None) -> tuple[CompletedRun, RunDetail]:
    """Simulates a run and keeps more than the metrics. Raises what `execute_run` raises."""
    if depth is not RunDepth.LEVELS:
        ran = execute_run(run, watch=watch)
        return ran, RunDetail(_job_outcomes(ran))
    timeline = Timeline()
    ran = execute_run(run, timeline.record, watch)
    return ran, RunDetail(_job_outcomes(ran), _run_levels(timeline, ran.summary.usd_by_market))


def _job_outcomes(ran: CompletedRun) -> JobOutcomes:
    jobs = [*ran.result.jobs, *ran.result.unfinished]
    rho = finish_time_fairness(ran.result, jobs, ran.baselines)
    window = parse_window(ran.spec.window)
    counted = [job for job in jobs if window is None or window[0] <= job.job_id <= window[1]]
    counted.sort(key=lambda job: job.job_id)

    def of_done(value: Callable[[JobMetrics], float]) -> tuple[float, ...]:
        return tuple(value(job) if job.state is JobState.SUCCEEDED else nan for job in counted)

    return JobOutcomes(
        tuple(int(job.job_id) for job in counted),
        tuple(job.project for job in counted),
        of_done(lambda job: job.jct_s),
        of_done(lambda job: job.jct_s / ran.baselines.alone_s(job.job_id)),
        of_done(lambda job: rho.get(job.job_id, nan)),
        tuple(job.queueing_s for job in counted),
    )


def _run_levels(timeline: Timeline, usd_by_market: Mapping[str, float]) -> RunLevels:
    def curves(name: str) -> dict[str, LevelCurve]:
        series = {str(pool_id): getattr(track, name) for pool_id, track in timeline.pools.items()}
        return {pool: thinned_curve(each, timeline.ended_at) for pool, each in series.items() if each.at}

    return RunLevels(
        timeline.ended_at,
        thinned_curve(timeline.waiting, timeline.ended_at),
        curves("there"),
        curves("held"),
        curves("price"),
        curves("usd_per_h"),
        timeline.price_unit,
        dict(usd_by_market),
        _attempts_by_pool(timeline.spans[:ATTEMPTS_KEPT], timeline.ended_at),
        timeline.spans[ATTEMPTS_KEPT].leased_at if len(timeline.spans) > ATTEMPTS_KEPT else timeline.ended_at,
    )


def _attempts_by_pool(
    spans: Sequence[AttemptSpan], ended_at: float
) -> dict[str, tuple[tuple[int, int, float, float], ...]]:
    found: dict[str, list[tuple[int, int, float, float]]] = {}
    for span in spans:
        until = span.ended_at if isfinite(span.ended_at) else ended_at
        row = (int(span.job_id), span.accelerators, span.leased_at, until)
        found.setdefault(str(span.pool_id), []).append(row)
    return {pool: tuple(rows) for pool, rows in found.items()}


def thinned_curve(series: StepSeries, until_at: float) -> LevelCurve:
    """Returns the series with few points: means over equal intervals if it has many, starting with its first value."""
    at, value = series_means(series, until_at)
    known = [(a, v) for a, v in zip(at.tolist(), value.tolist(), strict=True) if isfinite(v) and a >= series.at[0]]
    return LevelCurve(tuple(a for a, _ in known), tuple(v for _, v in known))
