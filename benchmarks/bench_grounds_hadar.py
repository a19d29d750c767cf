"""The jobs of Hadar's simulations, through the scheduler: FIFO > LAS > Hadar > `walras` in mean completion time.

    python -m benchmarks grounds_hadar [--row static load-0.8 load-1.2]

480 generated jobs of `hadar-60`, five seeds, all at once and at .8 and 1.2 of the load that the fluid fleet bears. The
order must hold for the means, and the intervals of the differences between neighbours are told.
"""

from itertools import pairwise

from benchmarks.tables import Measured
from simulator.reports.baselines import BoundsChoice
from simulator.reports.policy_comparison import compare_policies
from simulator.reports.repeated_runs import ParallelWorkers, estimate_mean, paired_difference
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource
from simulator.reports.run_summary import RUN_METRICS

_JOBS = 480
#: Arrivals per hour at which the fluid fleet is just busy.
_FULL_PER_H = 1.5
_LOADS = {"static": 0.0, "load-0.8": 0.8 * _FULL_PER_H, "load-1.2": 1.2 * _FULL_PER_H}
#: Rows that can be measured alone.
ROWS = tuple(_LOADS)
_POLICIES = ("fifo", "las", "hadar", "walras")
_JCT = next(measure for measure in RUN_METRICS if measure.name == "avg_jct_s")


def measure(scale: float, row: str | None = None) -> list[Measured]:
    """A table for every load, or for one. Below a scale of 1 jobs and seeds are too few for the order to show."""
    jobs, seeds = max(40, round(_JOBS * scale)), range(5 if scale >= 1 else 2)
    return [_at_load(name, _LOADS[name], jobs, tuple(seeds)) for name in ([row] if row else ROWS)]


def _at_load(name: str, rate_per_h: float, jobs: int, seeds: tuple[int, ...]) -> Measured:
    measured = Measured(f"hadar-60, {name}", f"{jobs} jobs, mean of {len(seeds)} seeds, 95 % intervals")
    cell = RunSpec(
        WorkloadSource("generate:hadar-60", made=GeneratorOptions(jobs=jobs, rate_per_h=rate_per_h)),
        "hadar-60",
        "fifo",
        bounds=BoundsChoice.NONE,
    )
    found = compare_policies(cell, _POLICIES, seeds, ParallelWorkers())
    assert found.violations == []
    hours = {policy: [row.values[_JCT.name] / 3600 for row in found.rows[policy]] for policy in _POLICIES}
    before = None
    for policy in _POLICIES:
        mean = estimate_mean(hours[policy]).mean
        measured.add(f"{policy}: JCT", mean, "h", at_most=before)
        before = mean
    for slow, fast in pairwise(_POLICIES):
        difference = paired_difference(hours[fast], hours[slow])
        measured.add(f"{fast} against {slow}", difference.mean, "h")
        measured.add(f"{fast} against {slow}, lower end", difference.low, "h")
        measured.add(f"{fast} against {slow}, upper end", difference.high, "h")
    for policy in _POLICIES:
        worst = [row.values["slowdown_max"] for row in found.rows[policy]]
        measured.add(f"{policy}: worst slowdown, mean of the seeds", sum(worst) / len(worst), "")
    return measured
