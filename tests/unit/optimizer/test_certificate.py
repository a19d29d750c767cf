"""What the checker of answers finds, the bound in money, and the cheapest ways by which it judges levels."""

import ast
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from checking import LOOSE, SPECS, answer, example, lies, spec_id
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build
from scipy.optimize import linprog

from optimizer import registry
from optimizer.check import certificate
from optimizer.check.certificate import check_decision, policy_check_of
from optimizer.check.jobwise_problem import (
    ResponseMenu,
    cheapest_mixture,
    cheapest_mixture_at_least,
    largest_log_surplus,
)
from optimizer.decision import Order, Status
from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from optimizer.registry import make
from optimizer.renting.usd_certificate import usd_certificate
from scheduler.core.commands import Solve
from scheduler.core.cycle.solve_requests import run_solve
from walras.cli.price_commands import _certificate_line
from walras.errors import UnknownPolicyError
from walras.resources.prices import CertificateView

POLICIES = pytest.mark.parametrize("spec", SPECS, ids=spec_id)
PROBLEMS = pytest.mark.parametrize("name", ["three_pools", "deadlines", "hierarchy", "sharing", "misfits"])


@pytest.mark.parametrize("spec", [*SPECS, LOOSE], ids=spec_id)
@PROBLEMS
def test_an_honest_answer_holds(name: str, spec: PolicySpec):
    """What a policy states is what the checker finds."""
    problem = example(name)
    checked = check_decision(problem, spec, answer(spec, problem))
    assert checked.complaints == ()
    assert checked.violation <= 1e-9


@pytest.mark.slow
@POLICIES
@PROBLEMS
def test_every_lie_is_noticed(name: str, spec: PolicySpec):
    """A share off by 1 %, a price halved, two jobs' rows swapped, a bound moved by 1e-3, a deadline not listed, ..."""
    problem = example(name)
    unnoticed = [
        lie.name
        for lie in lies(problem, spec, answer(spec, problem))
        if check_decision(problem, spec, lie.shares).holds
    ]
    assert unnoticed == []


def test_an_answer_of_another_policy_is_noticed():
    """Shares that maximise one thing do not pass for shares that maximise another."""
    problem = example("three_pools")
    shares = {spec_id(spec): answer(spec, problem) for spec in SPECS}
    # One program by several names where there are no projects, no deadlines, and no pairs.
    alike = ({"max_min_fairness", "water_filling", "hierarchical"}, {"throughput_per_dollar", "cost_with_slos"})
    passed = [
        (spec_id(spec), other)
        for spec in SPECS
        for other in shares
        if spec.name != other.split("-")[0] and not any({spec.name, other.split("-")[0]} <= names for names in alike)
        if check_decision(problem, spec, shares[other]).holds
    ]
    assert passed == []


def test_an_empty_answer_where_something_can_run_is_noticed():
    """Called empty, with nothing listed as unplaceable."""
    problem = example("three_pools")
    empty = answer(PolicySpec("max_min_fairness"), build(Setting([[None]] * 5, [2])))
    assert empty.certificate.status is Status.EMPTY
    nothing = replace(
        empty, x=np.zeros(len(problem.columns)), rent=np.zeros(3), unplaceable=np.zeros(0, dtype=np.int64)
    )
    assert not check_decision(problem, PolicySpec("max_min_fairness"), nothing).holds


def test_more_rented_than_there_is_to_rent_is_noticed():
    """Shares may count on no more than the quota."""
    spec, problem = PolicySpec("throughput"), build(Setting([[4, 2]], [0, 1], rentable=[2, 0]))
    shares = answer(spec, problem)
    assert check_decision(problem, spec, shares).holds
    assert not check_decision(problem, spec, replace(shares, rent=np.array([3.0, 0.0]))).holds


def test_deadlines_that_could_be_held_may_not_be_relaxed():
    """Asking less of a job than its deadline needs, and listing it, is noticed where all could be held."""
    spec, problem = PolicySpec("cost_with_slos", {"goal": "cost"}), example("deadlines")
    shares = answer(spec, problem)
    assert [int(problem.jobs.job_id[row]) for row in shares.relaxed] == [3, 4, 5]
    lazy = replace(problem, jobs=replace(problem.jobs, deadline_at=np.full(5, np.inf)))
    nothing = replace(answer(spec, lazy), relaxed=np.arange(5)[[0, 2, 3, 4]])
    assert any("could be held" in complaint for complaint in check_decision(problem, spec, nothing).complaints)


def test_memory_is_part_of_the_question():
    """Finish-time fairness is judged by what the policy remembered."""
    from optimizer.registry import make

    spec, problem = PolicySpec("finish_time_fairness"), example("three_pools")
    _, memory = make(spec).decide(problem, None)
    jobs = replace(problem.jobs, remaining_steps=problem.jobs.remaining_steps * np.array([0.5, 0.9, 0.99, 1.0, 0.7]))
    later = replace(problem, at=7200.0, jobs=jobs)
    shares, _ = make(spec).decide(later, memory)
    assert check_decision(later, spec, shares, memory).complaints == ()
    assert not check_decision(later, spec, shares, None).holds


def test_a_policy_without_a_measure_is_a_named_error():
    """A policy of others cannot be judged here, and the message says who can be."""
    problem = example("three_pools")
    with pytest.raises(UnknownPolicyError, match="no measure for policy 'mine'"):
        check_decision(problem, PolicySpec("mine"), answer(PolicySpec("throughput"), problem))


@pytest.mark.parametrize("name", sorted({spec.name for spec in SPECS}))
def test_every_policy_that_answers_in_shares_names_its_check(name: str):
    """The policy class says which check judges its answers: a measure of what it maximises, or a formula."""
    check = policy_check_of(PolicySpec(name))
    assert (check.measure is None) != (check.formula is None)


def test_a_policy_of_another_package_may_bring_a_check(monkeypatch: pytest.MonkeyPatch):
    """A class that names a check is judged by it, whatever the name under which it is registered."""
    points = EntryPoints([EntryPoint("mine", "optimizer.policies.throughput:Throughput", registry.ENTRY_POINTS)])
    monkeypatch.setattr(registry, "entry_points", lambda **select: points.select(**select))
    problem = example("three_pools")
    shares = answer(PolicySpec("throughput"), problem)
    assert check_decision(problem, PolicySpec("mine"), shares).holds
    assert not check_decision(problem, PolicySpec("mine"), answer(PolicySpec("makespan"), problem)).holds


def test_the_checker_knows_no_policy_by_name():
    """No module of the checker holds the name of a policy that answers in shares as text."""
    folder = Path(certificate.__file__).parent
    texts = [
        node.value
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    ]
    assert set(texts) & {"allox", *(spec.name for spec in SPECS)} == set()


def test_an_order_names_every_job_once():
    """Nobody is left out or comes twice."""
    problem, spec = example("three_pools"), PolicySpec("fifo")
    preference = np.zeros(len(problem.columns))
    assert check_decision(problem, spec, Order((4, 3, 2, 1, 0), preference)).holds
    assert not check_decision(problem, spec, Order((4, 3, 2, 1), preference)).holds
    assert not check_decision(problem, spec, Order((4, 3, 2, 1, 1), preference)).holds
    assert not check_decision(problem, spec, Order((4, 3, 2, 1, 0), preference[1:])).holds


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
    plan, _ = policy.decide(problem, None)
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


_WORTH = st.integers(0, 20).map(float)


@st.composite
def menus(draw: st.DrawFn, least_cost: int = -10) -> ResponseMenu:
    """One job with up to five configurations."""
    size = draw(st.integers(1, 5))
    worth = [0.0, *(draw(_WORTH) for _ in range(size))]
    cost = [0.0, *(draw(st.integers(least_cost, 20).map(float)) for _ in range(size))]
    return ResponseMenu(np.array([worth]), np.array([cost]))


def by_linprog(menu: ResponseMenu, target: float, *, exactly: bool) -> float:
    row = menu.worth[:, 1:]
    limits = {"A_eq": row, "b_eq": [target]} if exactly else {}
    rows = np.vstack([np.ones_like(row), *([] if exactly else [-row])])
    bounds = [1.0, *([] if exactly else [-target])]
    found = linprog(menu.cost[0, 1:], A_ub=rows, b_ub=bounds, method="highs", **limits)
    return float(found.fun) if found.status == 0 else np.inf


@given(menus(), st.integers(0, 22).map(float))
@settings(deadline=None)
def test_the_cheapest_way_to_a_target_is_the_linear_programs(menu: ResponseMenu, target: float):
    """Exactly the target, and at least the target; out of reach is infinite."""
    np.testing.assert_allclose(
        cheapest_mixture(menu, np.array([target]))[0], by_linprog(menu, target, exactly=True), atol=1e-9
    )
    np.testing.assert_allclose(
        cheapest_mixture_at_least(menu, np.array([target]))[0], by_linprog(menu, target, exactly=False), atol=1e-9
    )


@given(menus(least_cost=0), st.sampled_from([0.0, 0.5, 1.0, 7.0]))
@settings(deadline=None)
def test_the_best_logarithm_is_that_of_a_fine_search(menu: ResponseMenu, weight: float):
    """Over every utility that the job can reach, at its cheapest cost."""
    most = float(menu.most[0])
    found = largest_log_surplus(menu, np.array([weight]))[0]
    if weight == 0 or most == 0:
        assert found == (0.0 if weight == 0 else -np.inf)
        return

    grid = np.unique(np.concatenate([np.linspace(most / 20_000, most, 20_000), menu.worth[0][menu.worth[0] > 0]]))
    table = ResponseMenu(np.repeat(menu.worth, len(grid), axis=0), np.repeat(menu.cost, len(grid), axis=0))
    searched = float((weight * np.log(grid) - cheapest_mixture(table, grid)).max())
    assert searched - 1e-9 <= found <= searched + 1e-3
