"""What a plan earns in money, and what none earns more than."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from problems import Setting, build

from optimizer.decision import Plan
from optimizer.policy import PlanPolicy, PolicySpec
from optimizer.problem import Problem
from optimizer.registry import make
from optimizer.renting.usd_certificate import usd_certificate
from scheduler.core.commands import Solve
from scheduler.core.cycle.solve_requests import run_solve
from walras.api import CertificateView
from walras.cli.price_commands import _certificate_line


def some_problem(seed: int) -> Problem:
    """Up to five gangs on two pools, of which one runs and may not be moved."""
    random = np.random.default_rng(seed)
    jobs = int(random.integers(1, 6))
    gangs = random.choice([1, 2], jobs) if seed % 2 else np.ones(jobs)
    setting = Setting(
        random.uniform(0.5, 4.0, (jobs, 2)).round(3).tolist(), [3.0, 2.0], gangs=gangs.tolist(),
        values=random.uniform(0.0, 8.0, jobs).round(3).tolist(), remaining_steps=[1000.0] * jobs,
    )  # fmt: skip
    problem = build(setting)
    running = np.zeros(len(problem.columns), dtype=np.bool_)
    running[1] = True
    pinned = np.zeros(jobs, dtype=np.bool_)
    pinned[0] = True
    return replace(
        problem, jobs=replace(problem.jobs, pinned=pinned), columns=replace(problem.columns, running=running)
    )


def most_usd_per_h(problem: Problem) -> float:
    """By trying every plan that leaves the pinned job where it is."""
    columns, best = problem.columns, 0.0
    for chosen in product(*([-1, *np.flatnonzero(columns.job == row)] for row in range(len(problem.jobs)))):
        taken = [c for c in chosen if c >= 0]
        used = np.zeros(2)
        for c in taken:
            used[columns.use_pool[c]] += columns.use_count[c]
        if chosen[0] == 1 and np.all(used <= problem.pools.capacity):
            best = max(best, sum(earned(problem, c) for c in taken))
    return best


def earned(problem: Problem, column: int) -> float:
    job = problem.columns.job[column]
    speeds = problem.columns.steps_per_s
    value: float = problem.jobs.value_usd_per_h[job] * speeds[column] / speeds[problem.columns.job == job].max()
    return value


@pytest.mark.parametrize("seed", range(24))
def test_no_plan_earns_more_than_the_bound(seed: int) -> None:
    """Nor does the policy's own; pinned jobs are in both, and for one accelerator each the bound is exact."""
    problem = some_problem(seed)
    policy = make(PolicySpec("walras"))
    assert isinstance(policy, PlanPolicy)
    plan, _ = policy.decide(problem, None)
    assert isinstance(plan, Plan)
    assert plan.column[0] == 1
    optimum = most_usd_per_h(problem)
    for stated in (False, True):
        reached, bound = usd_certificate(problem, plan.column, problem.jobs.value_usd_per_h, stated=stated)
        assert reached == pytest.approx(sum(earned(problem, c) for c in plan.column if c >= 0))
        assert reached <= optimum + 1e-9 <= bound + 1e-6
        if seed % 2 == 0:
            assert bound == pytest.approx(optimum, abs=1e-6)


def test_a_proposal_says_it_and_prices_show_it() -> None:
    """Only where somebody states a value."""
    problem = some_problem(3)
    proposal = run_solve(Solve(1, problem, PolicySpec("walras"), None, 0.0))
    assert proposal.usd_per_h is not None
    reached, bound = proposal.usd_per_h
    view = CertificateView(
        status="defined", objective=1.0, bound=1.0, gap=0.0, path="x", solved_at="now", usd_per_h=proposal.usd_per_h
    )
    assert f"{reached:.4g} USD/h of at most {bound:.4g}" in _certificate_line(view)
    nobody = replace(problem, jobs=replace(problem.jobs, value_usd_per_h=np.full(len(problem.jobs), np.nan)))
    assert run_solve(Solve(1, nobody, PolicySpec("walras"), None, 0.0)).usd_per_h is None
    assert "USD" not in _certificate_line(view.model_copy(update={"usd_per_h": None}))
