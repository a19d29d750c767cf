"""A run's figures: a summary as data, as a table, as JSON. `docs/metrics.md` defines each."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite, nan
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from simulator.metrics import JobMeasure, PoolMeter
from simulator.simulate import Result
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


def summarise(result: Result) -> Summary:
    """The figures of a run whose jobs were collected in the result."""
    jobs = [*result.jobs, *result.unfinished]
    jcts = np.array([job.jct_s for job in result.jobs if job.state is JobState.SUCCEEDED])
    queueing = [job.queueing_s for job in jobs if isfinite(job.queueing_s)]
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
        median_jct_s=_percentile(jcts, 50),
        p95_jct_s=_percentile(jcts, 95),
        p99_jct_s=_percentile(jcts, 99),
        makespan_s=result.last_ended_at - result.first_submitted_at,
        avg_queueing_s=float(np.mean(queueing)) if queueing else nan,
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
        wall_s=result.wall_s,
        pools=pools,
        violations=tuple(result.violations),
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


def to_json(summary: Summary, jobs: Sequence[JobMeasure] = ()) -> str:
    """The summary, and the jobs if given, as JSON; figures that do not exist are null."""
    body: dict[str, Any] = asdict(summary)
    if jobs:
        body["per_job"] = [{**asdict(job), "jct_s": job.jct_s, "queueing_s": job.queueing_s} for job in jobs]
    return json.dumps(_finite(body), indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def print_tables(summary: Summary, console: Console) -> None:
    """The summary for people."""
    figures = Table(title=f"{summary.jobs} jobs, run {summary.outcome}", show_header=False)
    for name, text in _lines(summary):
        figures.add_row(name, text)
    console.print(figures)
    pools = Table("pool", "accelerator", "market", "there h", "held h", "utilisation", "USD", title="pools")
    for pool in summary.pools:
        numbers = (f"{pool.there_h:.1f}", f"{pool.held_h:.1f}", _share(pool.utilisation), f"{pool.usd:.2f}")
        pools.add_row(pool.pool_id, pool.accelerator, pool.market, *numbers)
    console.print(pools)
    for violation in summary.violations:
        console.print(f"conservation violated: {violation}", style="red", markup=False)


def _lines(summary: Summary) -> list[tuple[str, str]]:
    return [
        ("states", ", ".join(f"{count} {state}" for state, count in summary.by_state.items())),
        ("JCT avg / median / p99", " / ".join(_seconds(s) for s in _jcts(summary))),
        ("makespan", _seconds(summary.makespan_s)),
        ("queueing avg", _seconds(summary.avg_queueing_s)),
        ("utilisation", _share(summary.utilisation)),
        ("accelerator-hours", ", ".join(f"{name} {hours:.1f}" for name, hours in summary.accelerator_h.items())),
        ("money", f"{summary.usd:.2f} USD, of which {summary.usd_of_jobs:.2f} USD under jobs"),
        ("preemptions / losses", f"{summary.preemptions} / {summary.losses} in {summary.attempts} attempts"),
        ("overhead", _share(summary.overhead)),
        ("steps lost", f"{summary.lost_steps:.6g} of {summary.worked_steps:.6g}"),
        ("events / solves", f"{summary.events} / {summary.solves}"),
        ("took", f"{summary.wall_s:.2f} s"),
    ]


def _jcts(summary: Summary) -> tuple[float, float, float]:
    return summary.avg_jct_s, summary.median_jct_s, summary.p99_jct_s


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if isfinite(value) else "-"


def _share(value: float) -> str:
    return f"{value:.1%}" if isfinite(value) else "-"
