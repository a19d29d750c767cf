"""What gangs over several pools change under `walras`, and Hadar against Gavel's max-min fairness.

    python -m benchmarks mixed [--row instants runs gavel]

Grounds: the jobs and the cluster of `hadar-60` (gangs of 1, 2, 4 and 8 on three pools of 20, types up to ten times
apart); the same jobs with gangs of 3, 5, 6 and 12, which leave odd accelerators over; and those on types that are
nearly alike (1 : .9 : .8), where a gang over several pools loses least.

Instants: 20 to 60 of the jobs, each with a part of its work left, all to be placed at once. The plan with such gangs
against the plan without, and the bound that covers every gang over several pools against the plan without: what they
could bring at most. Runs: the policy alone in exact rounds of an hour (`bench_hadar`), all jobs at once, a start 10 s.
"""

from dataclasses import replace

import numpy as np

from benchmarks.bench_hadar import Work, problem_at, serve, work_of
from benchmarks.tables import Measured
from optimizer.policies.walras import Walras
from optimizer.problem import Problem
from optimizer.renting.plan_relaxation import with_relaxed_bound
from simulator.reports.baselines import BoundsChoice
from simulator.reports.policy_comparison import compare_policies
from simulator.reports.repeated_runs import ParallelWorkers, estimate_mean, paired_difference
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource

ROWS = ("instants", "runs", "gavel")
_ODD = {1: 3, 2: 5, 4: 6, 8: 12}
_NEAR = {"v100": 1.0, "p100": 0.9, "k80": 0.8}
#: Whether gangs are odd, and types near.
_GROUNDS = {"hadar-60": (False, False), "odd gangs": (True, False), "odd gangs, near types": (True, True)}
_INSTANTS, _SEEDS, _JOBS = 100, range(5), 60
_HOUR_S = 3600.0


def measure(scale: float, row: str) -> list[Measured]:
    """The figures of one row."""
    if row == "gavel":
        return [_against_gavel(scale)]
    told = _instants if row == "instants" else _runs
    return [told(name, scale) for name in _GROUNDS]


def _instants(name: str, scale: float) -> Measured:
    count = max(10, round(_INSTANTS * scale))
    measured = Measured(f"plans at instants, {name}", f"{count} instants, each of a seed of its own")
    gained, could = [], []
    for seed in range(count):
        problem = _instant(name, seed)
        whole = replace(problem, jobs=replace(problem.jobs, mixes=np.zeros(len(problem.jobs), dtype=np.bool_)))
        apart, _ = _reached(whole)
        reached, bound = _reached(problem)
        gained.append(100 * (reached / apart - 1))
        could.append(100 * (bound / apart - 1))
    for what, percent in (("plan with them against without", gained), ("bound of all of them against without", could)):
        found = estimate_mean(percent)
        measured.add(f"{what}: mean", found.mean, "%")
        measured.add(f"{what}: 95 % interval, +-", found.high - found.mean, "%")
        measured.add(f"{what}: least", min(percent), "%")
        measured.add(f"{what}: largest", max(percent), "%")
    measured.add("instants at which they gain", 100 * float(np.mean(np.array(gained) > 1e-6)), "%")
    return measured


def _instant(name: str, seed: int) -> Problem:
    """Some of the jobs, each with a part of its work left, none of them running."""
    rng = np.random.default_rng((7, seed))
    work = _work(name, int(rng.integers(20, 61)), seed)
    left = work.steps * rng.uniform(0.05, 1.0, len(work.steps))
    return problem_at(work, np.arange(len(work.steps)), 0.0, left, np.zeros(work.steps_per_s.shape))


def _work(name: str, jobs: int, seed: int) -> Work:
    odd, near = _GROUNDS[name]
    work = work_of(jobs, 0.0, seed)
    if odd:
        work = replace(work, gang=np.array([float(_ODD[int(gang)]) for gang in work.gang]))
    return replace(work, steps_per_s=np.tile(list(_NEAR.values()), (jobs, 1))) if near else work


def _reached(problem: Problem) -> tuple[float, float]:
    plan = with_relaxed_bound(Walras().decide(problem, None)[0])
    assert plan.yardstick is not None
    return plan.yardstick.objective, plan.yardstick.bound


def _runs(name: str, scale: float) -> Measured:
    jobs = max(10, round(_JOBS * scale))
    measured = Measured(f"walras in exact rounds, {name}", f"{jobs} jobs, {len(_SEEDS)} seeds")
    works = [_work(name, jobs, seed) for seed in _SEEDS]
    whole = [serve(replace(work, mixes=False), Walras(), _HOUR_S) for work in works]
    mixed = [serve(work, Walras(), _HOUR_S) for work in works]
    measured.add("JCT, one pool a gang", float(np.mean([run.mean_s for run in whole])) / _HOUR_S, "h")
    measured.add("JCT, gangs over several pools", float(np.mean([run.mean_s for run in mixed])) / _HOUR_S, "h")
    measured.add("time in these", 100 * float(np.mean([run.mixed for run in mixed])), "%")
    for what in ("mean_s", "makespan_s"):
        pairs = zip(mixed, whole, strict=True)
        change = [100 * (getattr(after, what) / getattr(before, what) - 1) for after, before in pairs]
        found, named = estimate_mean(change), "JCT" if what == "mean_s" else "makespan"
        measured.add(f"change of {named}: mean", found.mean, "%")
        measured.add(f"change of {named}: lower end", found.low, "%")
        measured.add(f"change of {named}: upper end", found.high, "%")
        measured.add(f"change of {named}: worst seed", max(change), "%")
    return measured


def _against_gavel(scale: float) -> Measured:
    """Mean completion times under Hadar, Gavel's max-min fairness (heterogeneity-aware), and `walras`."""
    jobs, seeds = max(10, round(_JOBS * scale)), tuple(_SEEDS)
    measured = Measured("Hadar against Gavel, hadar-60", f"{jobs} jobs all at once, {len(seeds)} seeds, 95 % intervals")
    source = WorkloadSource("generate:hadar-60", made=GeneratorOptions(jobs=jobs, rate_per_h=0.0))
    names = ("max_min_fairness", "hadar", "walras")
    cell = RunSpec(source, "hadar-60", names[0], bounds=BoundsChoice.NONE)
    found = compare_policies(cell, names, seeds, ParallelWorkers(1))
    assert found.violations == []
    hours = {name: [row.values["avg_jct_s"] / 3600 for row in found.rows[name]] for name in names}
    for name in names:
        measured.add(f"{name}: JCT", float(np.mean(hours[name])), "h")
    for name in names[1:]:
        change = paired_difference(hours[name], hours[names[0]])
        ratio = [100 * (own / fair - 1) for own, fair in zip(hours[name], hours[names[0]], strict=True)]
        measured.add(f"{name} against max-min: mean", change.mean, "h")
        measured.add(f"{name} against max-min: lower end", change.low, "h")
        measured.add(f"{name} against max-min: upper end", change.high, "h")
        measured.add(f"{name} against max-min: worst seed", max(ratio), "%")
    return measured
