"""What it is worth to tolerate a lag that grows with what a job has received (`RoundRules.tolerated_lag`).

    WALRAS_DATA=... python -m benchmarks lag

Rows 2,000 to 6,000 of Philly on three types of accelerators, max-min fairness with speeds, a restart of 60 s: once with
every exchange that pays for its restarts, and once by the rules as they are shipped. Two minutes.
"""

from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.needs import reference_data
from benchmarks.tables import Measured
from benchmarks.traces import on_three_types
from scheduler.core.rules import RoundRules
from simulator.metrics import JobMetrics
from simulator.reports.baselines import JobBaselines, themis_rho
from simulator.simulation import simulate
from simulator.workloads.formats import read_trace

FIRST, JOBS = 2000, 4000


def measure(scale: float) -> list[Measured]:
    """A table for each rule."""
    shipped = RoundRules().tolerated_lag
    return [_run(reference_data(), lag, max(50, round(JOBS * scale))) for lag in (0.0, shipped)]


def _run(data: Path, lag: float, count: int) -> Measured:
    rows = islice(read_trace(data / "jobs" / "philly_2017.csv.gz").jobs, FIRST, FIRST + count)
    prepared = on_three_types(rows, RoundRules(round_s=360.0, resolve_min_s=360.0, tolerated_lag=lag))
    roster = JobBaselines(prepared.scenario.pools, prepared.scenario.truth)
    ended: list[JobMetrics] = []
    result = simulate(list(roster.recorded(prepared.jobs)), prepared.scenario, sink=ended.append)
    held_s = sum(meter.held_s for meter in result.pools)
    running_s = sum(meter.running_s for meter in result.pools)
    jct_s = np.array([job.jct_s for job in ended])
    fleet = sum(model.machines * model.pool.shape.accelerators for model in prepared.scenario.pools)
    rho = np.array(list(themis_rho(ended, roster, fleet, result.last_ended_at).values()))
    measured = Measured(f"a tolerated lag of {lag:g}", f"{count:,} jobs of Philly on three types, restart 60 s")
    measured.add("starts of a job", sum(job.attempts for job in ended) / len(ended), "")
    measured.add("of held time in restarts", 100 * (1 - running_s / held_s), "%")
    measured.add("completion time, mean", jct_s.mean(), "s")
    measured.add("   95th percentile", float(np.percentile(jct_s, 95)), "s")
    measured.add("Themis' rho, mean", rho.mean(), "")
    measured.add("   99th percentile", float(np.percentile(rho, 99)), "")
    measured.add("   most", rho.max(), "")
    measured.add("events", float(result.events), "")
    return measured
