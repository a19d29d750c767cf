"""`walras` against max-min at events on generated jobs of Gavel's kind (needs `WALRAS_DATA` for its speeds).

    WALRAS_DATA=... python -m benchmarks grounds_loads [--row single-0.6 gangs-1.1 ...]

Poisson arrivals at .6, .8, .95 and 1.1 of what the fluid fleet bears, 300 jobs of one accelerator or of several, five
seeds; both policies meet the same jobs. Targets are for the means and the upper ends of 95 % intervals of the paired
differences. Below a scale of 1 there are fewer jobs.
"""

from functools import cache
from statistics import fmean

from benchmarks.grounds import reference_b, serve
from benchmarks.grounds_loads import CLUSTER, at_load, full_per_h
from benchmarks.tables import Measured
from simulator.reports.repeated_runs import paired_difference

_CELLS = {
    f"{'gangs' if gangs else 'single'}-{load}": (gangs, load)
    for gangs in (False, True)
    for load in (0.6, 0.8, 0.95, 1.1)
}
#: Cells that can be measured alone.
ROWS = tuple(_CELLS)
_JOBS, _SEEDS = 300, range(5)
_AWARE = "max_min_fairness"
_SLOWDOWN, _SLOWDOWN_OVERLOADED = 3.0, 4.0
_full_per_h = cache(full_per_h)


def measure(scale: float, row: str | None = None) -> list[Measured]:
    """A table for every cell, or for one."""
    jobs = max(30, round(_JOBS * scale))
    return [_cell(jobs, *_CELLS[name]) for name in ([row] if row else ROWS)]


def _cell(jobs: int, gangs: bool, load: float) -> Measured:
    setting = f"{jobs} jobs, {CLUSTER}, {len(_SEEDS)} seeds, free restarts; % of max-min at events"
    measured = Measured(f"{'gangs' if gangs else 'one accelerator a job'}, load {load:g}", setting)
    full = _full_per_h(jobs, gangs, _SEEDS)
    measured.add("load 1", full, "jobs/h")
    source = at_load(load, jobs, gangs, full)
    ours = [serve(source, CLUSTER, "walras", seed=seed) for seed in _SEEDS]
    theirs = [serve(source, CLUSTER, _AWARE, seed=seed, change=reference_b) for seed in _SEEDS]
    measured.add("JCT", fmean(run.mean_s for run in ours), "s")
    for what, told in (
        ("JCT", [[run.mean_s for run in runs] for runs in (ours, theirs)]),
        ("mean slowdown", [[fmean(run.slowdowns) for run in runs] for runs in (ours, theirs)]),
    ):
        scale = 100.0 / fmean(told[1])
        difference = paired_difference([scale * value for value in told[0]], [scale * value for value in told[1]])
        measured.add(f"{what} against max-min", difference.mean, "%", at_most=0.0)
        measured.add(f"{what} against max-min, lower end", difference.low, "%")
        measured.add(f"{what} against max-min, upper end", difference.high, "%", at_most=0.0)
        below = sum(mine < other for mine, other in zip(*told, strict=True))
        measured.add(f"{what} below that of max-min", below, "seeds", at_least=len(_SEEDS))
    worst = max(max(run.slowdowns) for run in ours)
    measured.add("worst slowdown", worst, "", _SLOWDOWN if load < 1 else _SLOWDOWN_OVERLOADED)
    measured.add("worst slowdown under max-min", max(max(run.slowdowns) for run in theirs), "")
    measured.add("processor time, both", sum(run.cpu_s for run in (*ours, *theirs)), "s")
    return measured
