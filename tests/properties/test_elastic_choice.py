"""The choice of configurations by prices and a core program, against the whole integer program."""

import numpy as np
import pytest
from elastic_problems import Elastic, elastic_settings, permuted, problem_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.assignment.multiple_choice_knapsack import solve_knapsack
from optimizer.check.certificate import plan_complaints
from optimizer.policy import PolicySpec
from optimizer.registry import make

POLICIES = ["elasticflow", "optimus", "pollux", "shockwave", "sia"]


def random_choice(seed: int, jobs: int, load: float) -> AssignmentProblem:
    """Jobs of unlike scaling on four pools, values as Sia states them; demand is `load` times the fleet."""
    rng = np.random.default_rng(seed)
    capacity = np.maximum(np.round(jobs / load * rng.uniform(0.1, 0.6, 4)), 1.0)
    job, value, pool, count = [], [], [], []
    for row in range(jobs):
        scaling, speed = rng.uniform(0.2, 1.0), rng.uniform(1.0, 6.0, 4)
        for r in range(4):
            for k in (1, 2, 4, 8):
                if k <= capacity[r]:
                    job.append(row)
                    value.append(1.1 - (speed[r] * k**scaling) ** -0.5 * rng.uniform(0.9, 1.0))
                    pool.append(r)
                    count.append(float(k))
    kept = np.array(value) > 0
    rows = np.unique(np.array(job)[kept], return_inverse=True)[1]
    return AssignmentProblem(
        job=rows, value=np.array(value)[kept], use_column=np.arange(int(kept.sum())), use_pool=np.array(pool)[kept],
        use_count=np.array(count)[kept], capacity=capacity,
    )  # fmt: skip


def by_highs(choice: AssignmentProblem) -> float:
    """The best choice, by the whole program."""
    c = len(choice.job)
    time = sparse.csr_array((np.ones(c), (choice.job, np.arange(c))))
    load = sparse.csr_array((choice.use_count, (choice.use_pool, choice.use_column)), shape=(len(choice.capacity), c))
    limits = np.concatenate([np.ones(choice.jobs), choice.capacity])
    found = milp(
        -choice.value, constraints=LinearConstraint(sparse.vstack([time, load]), ub=limits), integrality=np.ones(c),
        bounds=Bounds(0, 1), options={"mip_rel_gap": 1e-6},
    )  # fmt: skip
    return float(-found.fun)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 3, 8, 20, 40]), st.sampled_from([0.3, 1.0, 3.0, 8.0]))
def test_as_good_as_the_whole_integer_program(seed: int, jobs: int, load: float) -> None:
    """Within 1e-4 of HiGHS on all jobs at once, feasible, and below its own bound."""
    choice = random_choice(seed, jobs, load)
    found = solve_knapsack(choice)
    best = by_highs(choice)
    assert found.value >= best * (1 - 1e-4) - 1e-9
    assert found.bound >= best * (1 - 1e-6)
    assert found.value <= found.bound * (1 + 1e-9)
    assert (choice.used(found.column) <= choice.capacity + 1e-9).all()


@pytest.mark.parametrize("load", [1.5, 4.0])
def test_a_core_is_enough_where_jobs_are_many(load: float) -> None:
    """Hundreds of jobs, of whom a hundred compete: the prices alone prove the gap."""
    choice = random_choice(7, 400, load)
    found = solve_knapsack(choice)
    assert found.gap <= 1e-4
    assert found.value >= by_highs(choice) * (1 - 1e-4)


def test_without_a_solver_jobs_are_placed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of work is an outcome: a feasible choice, with the gap that prices prove."""
    from optimizer.assignment import multiple_choice_knapsack

    monkeypatch.setattr(multiple_choice_knapsack, "solve_integer", lambda program, tolerance: (None, np.inf))
    monkeypatch.setattr(multiple_choice_knapsack, "solve_relaxation", lambda program: None)
    choice = random_choice(3, 30, 2.0)
    found = solve_knapsack(choice)
    assert (choice.used(found.column) <= choice.capacity + 1e-9).all()
    assert 0.8 < found.value / found.bound <= 1.0


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40, deadline=None)
@given(setting=elastic_settings(), data=st.data())
def test_plans_are_possible_repeatable_and_blind_to_rows(policy: str, setting: Elastic, data: st.DataObject) -> None:
    """Capacity, one column a job, pinned jobs left alone, one answer; rows in another order reach as much."""
    problem = problem_of(setting)
    planner = make(PolicySpec(policy))
    plan, memory = planner.decide(problem, None)
    assert list(plan_complaints(problem, plan)) == []
    for row in setting.pinned:
        assert problem.columns.running[plan.column[row]]
    again, same = planner.decide(problem, None)
    assert (again.column.tolist(), again.rows.tolist(), same) == (plan.column.tolist(), plan.rows.tolist(), memory)
    assert plan.yardstick is not None or plan.no_yardstick
    order = data.draw(st.permutations(range(len(problem.jobs))))
    other, _ = planner.decide(permuted(problem, order), None)
    if plan.yardstick is not None and other.yardstick is not None:
        assert other.yardstick.objective == pytest.approx(plan.yardstick.objective, rel=2e-4)
