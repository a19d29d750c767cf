"""`walras` against max-min at events on generated jobs of Gavel's kind (needs `WALRAS_DATA` for its speeds).

    WALRAS_DATA=... python -m benchmarks grounds_loads

Poisson arrivals at .6, .8, .95 and 1.1 of what the fluid fleet bears, jobs of one accelerator and of several, five
seeds; both policies meet the same jobs. Targets are for the means and the upper ends of 95 % intervals of the paired
differences. Below a scale of 1 there are fewer jobs.
"""

from statistics import fmean

from benchmarks.grounds import reference_b, serve
from benchmarks.grounds_loads import CLUSTER, at_load, full_per_h
from benchmarks.tables import Measured
from simulator.study.statistics import paired

LOADS = (0.6, 0.8, 0.95, 1.1)
_JOBS, _SEEDS = 200, range(5)
_AWARE = "max_min_fairness"
_SLOWDOWN, _SLOWDOWN_OVERLOADED = 3.0, 4.0


def measure(scale: float) -> list[Measured]:
    """Jobs of one accelerator, then gangs."""
    jobs = max(30, round(_JOBS * scale))
    return [_grid(jobs, gangs) for gangs in (False, True)]


def _grid(jobs: int, gangs: bool) -> Measured:
    setting = f"{jobs} jobs, {CLUSTER}, {len(_SEEDS)} seeds, free restarts; % of max-min at events"
    measured = Measured(f"generated loads, {'gangs' if gangs else 'one accelerator a job'}", setting)
    full = full_per_h(jobs, gangs, _SEEDS)
    measured.add("load 1", full, "jobs/h")
    for load in LOADS:
        source = at_load(load, jobs, gangs, full)
        ours = [serve(source, CLUSTER, "walras", seed=seed) for seed in _SEEDS]
        theirs = [serve(source, CLUSTER, _AWARE, seed=seed, change=reference_b) for seed in _SEEDS]
        for what, told in (
            ("JCT", [[run.mean_s for run in runs] for runs in (ours, theirs)]),
            ("mean slowdown", [[fmean(run.slowdowns) for run in runs] for runs in (ours, theirs)]),
        ):
            scale = 100.0 / fmean(told[1])
            difference = paired([scale * value for value in told[0]], [scale * value for value in told[1]])
            measured.add(f"load {load:g}: {what}", difference.mean, "%", at_most=0.0)
            measured.add(f"load {load:g}: {what}, upper end", difference.high, "%", at_most=0.0)
        worst = max(max(run.slowdowns) for run in ours)
        measured.add(f"load {load:g}: worst slowdown", worst, "", _SLOWDOWN if load < 1 else _SLOWDOWN_OVERLOADED)
    return measured
