"""How long a decision takes, problem to shares, prices and certificate.

    [WALRAS_DATA=...] python -m benchmarks optimizer

Synthetic jobs: lognormal speeds around each pool's, one in ten configurations missing, gangs of 1/2/4/8. `load` is the
demand in accelerators over the capacity. Times are medians of several runs in one warm process.

With the reference data also the instances of two published solvers, from several seeds. Recorded on this kind of
machine: Soroush's adaptive water filler takes .22 to .85 s and comes to .88 of exact fairness, DeDe 140 s and 76 % of
the optimum.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.solver_instances import dede_problem, endless_jobs, soroush_problem
from benchmarks.tables import Measured
from optimizer.policies.fairness import MaxMinFairness
from optimizer.problem import Problem


@dataclass(frozen=True)
class Case:
    """`classes` 0: every job has its own speeds."""

    jobs: int
    pools: int
    classes: int
    load: float


CASES = (
    Case(10, 3, 0, 2.0),
    Case(200, 3, 0, 3.0),
    Case(2048, 3, 200, 6.0),
    Case(2048, 3, 200, 3.0),
    Case(2048, 3, 200, 1.0),
    Case(2048, 3, 200, 0.5),
    Case(2048, 3, 0, 6.0),
    Case(10_000, 8, 200, 6.0),
)


def synthetic(case: Case, seed: int = 0) -> Problem:
    """A problem of the case's size."""
    rng = np.random.default_rng(seed)
    n, p, kinds = case.jobs, case.pools, case.classes or case.jobs
    speeds = rng.lognormal(0, 0.6, (kinds, p)) * np.resize([4.0, 2.0, 1.0, 3.0, 1.5, 0.7, 5.0, 6.0], p)
    speeds[rng.random((kinds, p)) < 0.1] = 0.0
    kind = rng.integers(0, kinds, n) if case.classes else np.arange(n)
    speeds = speeds[kind]
    gang = rng.choice([1.0, 2.0, 4.0, 8.0], kinds, p=[0.7, 0.1, 0.15, 0.05])[kind]
    weight = rng.choice([1.0, 2.0], kinds)[kind]
    capacity = np.full(p, max(8.0, round(gang.sum() / case.load / p)))
    return endless_jobs(speeds, gang, weight, capacity)


def measure(scale: float, repeats: int = 5) -> list[Measured]:
    """Median seconds and the gap of every case; the cases have at most `scale` of their jobs."""
    policy = MaxMinFairness()
    policy.decide(synthetic(CASES[0]), None)  # imports the solvers
    measured = Measured("max-min fairness, problem to decision", f"medians of {repeats}, one warm process")
    for case in CASES:
        case = replace(case, jobs=max(10, int(case.jobs * min(1.0, scale))))
        problem, times, gaps = synthetic(case), [], []
        for _ in range(repeats):
            began = perf_counter()
            shares, _ = policy.decide(problem, None)
            times.append(perf_counter() - began)
            gaps.append(shares.certificate.gap)
        like = f"in {case.classes} classes" if case.classes else "all different"
        what = f"{case.jobs:,} jobs x {case.pools} pools, {like}, load {case.load:g}"
        measured.add(what, median(times), "s")
        measured.add("   gap, the largest", max(gaps), "", at_most=1e-4)
    given = os.environ.get("WALRAS_DATA")
    return [measured, *([_of_others(Path(given), scale, repeats)] if given else [])]


#: Seconds that a decision about the instances of others may take, and its gap.
_SOROUSH_S, _DEDE_S, _EXACT = 0.22, 1.0, 1e-6
_SEEDS = 3


def _of_others(data: Path, scale: float, repeats: int) -> Measured:
    """Soroush's and DeDe's instances: means over the seeds of medians, and the worst."""
    policy = MaxMinFairness()
    measured = Measured(
        "instances of other solvers, max-min fairness", f"seeds 0 to {_SEEDS - 1}, medians of {repeats}"
    )
    instances: tuple[tuple[str, int, float, Callable[[int, int], Problem]], ...] = (
        ("Soroush's generator, 3 types", 8192, _SOROUSH_S, partial(soroush_problem, data)),
        ("DeDe's example, 10 types", 200, _DEDE_S, partial(dede_problem, data)),
    )
    for name, most, limit_s, make in instances:
        jobs, times, gaps = max(10, int(most * min(1.0, scale))), [], []
        for seed in range(_SEEDS):
            problem, own = make(jobs, seed), []
            for _ in range(repeats):
                began = perf_counter()
                shares, _ = policy.decide(problem, None)
                own.append(perf_counter() - began)
            times.append(median(own))
            gaps.append(shares.certificate.gap)
        measured.add(f"{name}, {jobs:,} jobs, mean", sum(times) / len(times), "s")
        measured.add("   the slowest seed", max(times), "s", at_most=limit_s)
        measured.add("   gap, the largest", max(gaps), "", at_most=_EXACT)
    return measured
