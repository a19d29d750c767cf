"""How long the policies take from problem to decision, and against the plain program of the same policy.

    python -m benchmarks policies

Synthetic problems (`benchmarks.problems`), one warm process, medians. The last rows compare within one run: the policy
against its own definition as a vectorised cvxpy program over every job, solved by Clarabel.
"""

from collections.abc import Sequence
from statistics import median, quantiles
from time import perf_counter

import numpy as np

from benchmarks.policy_definitions import definition
from benchmarks.problems import Size, random_problem, without
from benchmarks.tables import Measured
from optimizer.answer import answer_problem
from optimizer.decision import Shares
from optimizer.lp.exact_solver import solve_by_clarabel
from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from optimizer.registry import make

_REPEATS = 5
_DAILY_EVENTS = 40
SUM: dict[str, object] = {"then": "sum"}


def measure(scale: float) -> list[Measured]:
    """The figures; the problems have at most `scale` of their jobs."""
    timed("throughput", {}, random_problem(Size(30, 3)), 1)  # imports the solvers
    return [_daily(scale), _distinct(scale), _classes(scale), _levels(scale), _against_definitions(scale)]


def timed(policy: str, parameters: dict[str, object], problem: Problem, repeats: int = _REPEATS) -> tuple[float, float]:
    """Median seconds of one decision, and the largest gap."""
    chosen, seconds, gaps = make(PolicySpec(policy, parameters)), [], []
    for _ in range(repeats):
        began = perf_counter()
        decision, _, _ = answer_problem(chosen, problem, None, 0.0)
        seconds.append(perf_counter() - began)
        assert isinstance(decision, Shares)
        gaps.append(decision.certificate.gap)
    return median(seconds), max(gaps)


def _jobs(count: int, scale: float) -> int:
    return max(30, int(count * min(1.0, scale)))


def _daily(scale: float) -> Measured:
    jobs = _jobs(10_000, scale)
    problem, seconds = random_problem(Size(jobs, 16, 300, 20, 3.0)), []
    timed("max_min_fairness", {}, problem, 2)
    for event in range(_DAILY_EVENTS):
        problem = without(problem, (7919 * event) % len(problem.jobs))
        seconds.append(timed("max_min_fairness", {}, problem, 1)[0])
    measured = Measured("the daily case: max-min fairness", f"{jobs:,} jobs in 300 kinds x 20 columns over 16 pools")
    measured.add("problem to decision, median", median(seconds), "s", at_most=0.05)
    measured.add("   99th percentile", quantiles(seconds, n=100)[-1], "s", at_most=0.2)
    return measured


def _rows(measured: Measured, problem: Problem, policies: Sequence[tuple[str, dict[str, object], float]]) -> None:
    for policy, parameters, target in policies:
        seconds, gap = timed(policy, parameters, problem)
        measured.add(policy, seconds, "s", at_most=target)
        measured.add("   gap", gap, "", at_most=1e-4)


def _distinct(scale: float) -> Measured:
    jobs = _jobs(10_000, scale)
    measured = Measured("every job its own speeds", f"{jobs:,} jobs x 8 pools, problem to decision")
    problem = random_problem(Size(jobs, 8, deadlines=0.2))
    quick: list[tuple[str, dict[str, object], float]] = [
        ("max_min_fairness", SUM, 0.05),
        ("throughput", {}, 0.05),
        ("proportional_fairness", {}, 0.05),
        ("cost_with_slos", {}, 0.05),
        ("finish_time_fairness", {}, 0.25),
        ("makespan", {}, 0.25),
        ("water_filling", {}, 2.0),
    ]
    _rows(measured, problem, quick)
    _rows(measured, random_problem(Size(jobs, 8, projects=8, users=5)), [("hierarchical", {}, 2.0)])
    return measured


def _classes(scale: float) -> Measured:
    jobs, many = _jobs(10_000, scale), _jobs(1_000_000, scale)
    measured = Measured("jobs in 500 kinds", f"{jobs:,} jobs x 8 pools; {many:,} x 16")
    problem = random_problem(Size(jobs, 8, 500, projects=8, users=5))
    _rows(measured, problem, [("water_filling", {}, 0.3), ("hierarchical", {}, 0.3)])
    measured.add("   classes: a kind of one user is one", _told_apart(problem), "")
    _rows(measured, random_problem(Size(jobs, 8, 500, projects=8, users=5, shared=False)), [("hierarchical", {}, 0.3)])
    _rows(measured, random_problem(Size(many, 16, 480)), [("throughput", {}, 0.25)])
    return measured


def _told_apart(problem: Problem) -> float:
    """Kinds of jobs, counted once for each user who has some."""
    columns, entity = problem.columns, problem.jobs.entity
    fastest = np.maximum.reduceat(columns.steps_per_s, np.flatnonzero(np.diff(columns.job, prepend=-1)))
    return float(len(np.unique(np.stack((fastest, entity.astype(np.float64))), axis=1).T))


def _levels(scale: float) -> Measured:
    jobs = _jobs(2_048, scale)
    measured = Measured("levels", f"512 jobs x 3 pools; {jobs:,} jobs in 3 levels of a tree x 8 pools")
    _rows(measured, random_problem(Size(_jobs(512, scale), 3, load=1.5)), [("water_filling", {}, 0.1)])
    _rows(measured, random_problem(Size(jobs, 8, projects=8, users=5)), [("hierarchical", {}, 3.0)])
    _rows(measured, random_problem(Size(jobs, 8, 150, projects=8, users=5)), [("hierarchical", {}, 0.5)])
    return measured


def _against_definitions(scale: float) -> Measured:
    large, small = _jobs(32_768, scale), _jobs(1_024, scale)
    measured = Measured("against the plain program", f"{large:,} x 8 max-min; {small:,} x 3 finish-time fairness")
    for policy, problem, repeats, target in (
        ("max_min_fairness", random_problem(Size(large, 8)), 1, 80.0),
        ("finish_time_fairness", random_problem(Size(small, 3)), 3, 8.0),
    ):
        ours, _ = timed(policy, SUM, problem, 3)
        plain = median(_plain(policy, problem) for _ in range(repeats))
        measured.add(f"{policy}: ours", ours, "s")
        measured.add("   vectorised cvxpy + Clarabel", plain, "s")
        measured.add("   times faster", plain / ours, "", at_least=target)
    return measured


def _plain(policy: str, problem: Problem) -> float:
    """Seconds that the policy's definition takes, compilation included."""
    chosen = make(PolicySpec(policy, SUM))
    began = perf_counter()
    solve_by_clarabel(definition(chosen, problem))
    return perf_counter() - began
