"""`walras` against max-min at events on generated jobs of Gavel's kind (needs `WALRAS_DATA` for its speeds).

    WALRAS_DATA=... python -m benchmarks grounds_loads [--row single-0.6 gangs-1.1 gangs-bound-0.8 ...]

Poisson arrivals at .6, .8, .95 and 1.1 of what the fluid fleet bears, 300 jobs of one accelerator or of several, five
seeds; both policies meet the same jobs. Targets are for the means and the upper ends of 95 % intervals of the paired
differences. Rows of bounds: 100 gangs, eight seeds of their own; x is what a mean completion time is above no
contention, over the same of max-min, and its least is where the priced bound stands, below which no scheduler could
come. Rows of losses (`gangs-lost-0.8`): the same jobs and seeds; what lies between x and the bound, by the rule of the
policy in whole gangs and in divided ones, and in whole gangs with all arrivals known (`benchmarks/gang_losses.py`).
Below a scale of 1 there are fewer jobs.
"""

from functools import cache
from statistics import fmean

import numpy as np

from benchmarks.gang_losses import completion_times, divided, in_hindsight, whole
from benchmarks.grounds import Served, excess, instance_of, priced_bound_s, reference_b, serve
from benchmarks.grounds_loads import CLUSTER, at_load, full_per_h
from benchmarks.tables import Measured
from simulator.reports.repeated_runs import paired_difference

_CELLS = {
    f"{'gangs' if gangs else 'single'}-{load}": (gangs, load)
    for gangs in (False, True)
    for load in (0.6, 0.8, 0.95, 1.1)
}
_BOUNDS = {f"gangs-bound-{load}": load for load in (0.5, 0.65, 0.8)}
_LOSSES = {f"gangs-lost-{load}": load for load in (0.5, 0.8)}
#: Cells that can be measured alone.
ROWS = (*_CELLS, *_BOUNDS, *_LOSSES)
_JOBS, _SEEDS = 300, range(5)
_BOUND_JOBS, _BOUND_SEEDS = 100, range(300, 308)
_HINDSIGHT_STEPS = 60
#: Mean x of gangs that is wanted.
_X = 0.28
_AWARE = "max_min_fairness"
_SLOWDOWN, _SLOWDOWN_OVERLOADED = 3.0, 4.0
_full_per_h = cache(full_per_h)


def measure(scale: float, row: str | None = None) -> list[Measured]:
    """A table for every cell, or for one."""
    jobs, bounded = max(30, round(_JOBS * scale)), max(30, round(_BOUND_JOBS * scale))
    tables = []
    for name in [row] if row else ROWS:
        if name in _CELLS:
            tables.append(_cell(jobs, *_CELLS[name]))
        else:
            tables.append(_bounds(bounded, _BOUNDS[name]) if name in _BOUNDS else _lost(bounded, _LOSSES[name]))
    return tables


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


def _bounds(jobs: int, load: float) -> Measured:
    seeds = f"seeds {_BOUND_SEEDS[0]}-{_BOUND_SEEDS[-1]}"
    setting = f"{jobs} jobs, {CLUSTER}, {seeds}, free restarts; x of max-min at events"
    measured = Measured(f"gangs, load {load:g}: x, and the least that it could be", setting)
    source = at_load(load, jobs, True, _full_per_h(jobs, True, _SEEDS))
    reached, least, worst, cpu_s = [], [], 0.0, 0.0
    for seed in _BOUND_SEEDS:
        ours = serve(source, CLUSTER, "walras", seed=seed)
        theirs = serve(source, CLUSTER, _AWARE, seed=seed, change=reference_b)
        reached.append(excess(ours, theirs.mean_s))
        least.append(_excess_of(theirs, priced_bound_s(source, CLUSTER, seed)))
        worst, cpu_s = max(worst, *ours.slowdowns), cpu_s + ours.cpu_s + theirs.cpu_s
    measured.add("x, mean", fmean(reached), "", at_most=_X)
    measured.add("x, worst seed", max(reached), "")
    measured.add("least x by the bound, mean", fmean(least), "", at_most=_X)
    measured.add("least x by the bound, its largest", max(least), "")
    measured.add("x above the bound, mean", fmean(x - low for x, low in zip(reached, least, strict=True)), "")
    measured.add("seeds whose bound excludes the goal", sum(low > _X for low in least), "")
    measured.add("worst slowdown", worst, "", _SLOWDOWN)
    measured.add("processor time of the runs", cpu_s, "s")
    return measured


def _lost(jobs: int, load: float) -> Measured:
    seeds = f"seeds {_BOUND_SEEDS[0]}-{_BOUND_SEEDS[-1]}"
    measured = Measured(f"gangs, load {load:g}: where x is lost", f"{jobs} jobs, {CLUSTER}, {seeds}; mean x, worst")
    source = at_load(load, jobs, True, _full_per_h(jobs, True, _SEEDS))
    found: dict[str, list[float]] = {}
    for seed in _BOUND_SEEDS:
        instance = instance_of(source, CLUSTER, seed)
        reference = serve(source, CLUSTER, _AWARE, seed=seed, change=reference_b)
        alike = np.ones(len(instance.steps))
        for what, mean_s in (
            ("the policy", serve(source, CLUSTER, "walras", seed=seed).mean_s),
            ("its values in whole gangs, nobody overdue", float(completion_times(instance, whole, alike).mean())),
            ("whole gangs, arrivals known", in_hindsight(instance, whole, _HINDSIGHT_STEPS, seed)),
            ("its values in divided gangs", float(completion_times(instance, divided, alike).mean())),
            ("the bound: divided gangs, arrivals known", priced_bound_s(source, CLUSTER, seed)),
        ):
            found.setdefault(what, []).append(_excess_of(reference, mean_s))
    for what, told in found.items():
        measured.add(f"x: {what}", fmean(told), "")
        measured.add(f"x: {what}, worst seed", max(told), "")
    return measured


def _excess_of(reference: Served, mean_s: float) -> float:
    """x of a mean completion time on the jobs of a reference."""
    alone_s = reference.no_contention_s
    return max(mean_s - alone_s, 0.0) / (reference.mean_s - alone_s)
