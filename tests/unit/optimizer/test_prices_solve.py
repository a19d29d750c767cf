"""Whole solves by prices: hundreds of jobs, hard cases, and outcomes that are no optimum."""

from dataclasses import replace

import numpy as np
import pytest
from markets import CappedTargets, LinearTargets, exact, market_of

from benchmarks.instances import optimality_gap
from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective
from optimizer.decision import Status
from optimizer.lp.dual_newton.dual_bound import compiled_engine
from optimizer.lp.dual_newton.dual_task import cheapest_choice, largest_worth, make_task, sample_classes
from optimizer.lp.dual_newton.newton import DualPoint, evaluate_dual
from optimizer.lp.dual_newton.price_solver import SolveLimits, solve_by_prices, solve_from

JOBS, POOLS = 400, 4


def _market(rng: np.random.Generator, jobs: int = JOBS, members: float = 1.0) -> ClassProblem:
    gang = rng.choice([1.0, 2.0, 4.0], jobs, p=[0.7, 0.2, 0.1])
    return ClassProblem(
        size=np.full(jobs, members), first=np.arange(jobs + 1) * POOLS, use_first=np.arange(jobs * POOLS + 1),
        use_row=np.tile(np.arange(POOLS, dtype=np.int32), jobs), use_count=np.repeat(gang, POOLS),
        capacity=np.round(gang.sum() * members * np.array([0.1, 0.05, 0.05, 0.02])),
    )  # fmt: skip


def _objective(kind: str, market: ClassProblem, rng: np.random.Generator) -> Objective:
    """`ties`: every job is worth 1 on its best pool, so that whole pools of unlike jobs are indifferent."""
    speed = rng.lognormal(0, 0.5, (market.classes, POOLS)) * np.array([1.0, 2.0, 3.0, 5.0])
    speed[rng.random(speed.shape) < 0.1] = 0.0
    speed[:, 0] = np.maximum(speed[:, 0], 0.1)
    own = (speed / speed.max(axis=1, keepdims=True)).ravel()
    best, flat, none = speed.max(axis=1), speed.ravel(), np.zeros(market.classes)
    weight = rng.choice([1.0, 2.0], market.classes)
    cap = CappedTargets(weight, best, none, float((best / weight).max()))
    made: dict[str, Objective] = {
        "total": MaxSum(flat, flat, none),
        "ties": MaxSum(own, own, none),
        "floors": MaxSum(flat, flat, np.where(rng.random(market.classes) < 0.2, 0.05 * best, 0.0)),
        "level": MaxMin(flat, LinearTargets(weight, float((best / weight).min()))),
        "capped": MaxMin(flat, cap),
        "nash": NashWelfare(flat, weight),
    }
    return made[kind]


KINDS = ("total", "ties", "floors", "level", "capped", "nash")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_jobs_are_certified_and_agree_with_a_general_solver(kind: str) -> None:
    """The gap is met, the bound holds, and the shares fit to 1e-12."""
    rng = np.random.default_rng(3)
    market = _market(rng)
    objective = _objective(kind, market, rng)
    solution = solve_by_prices(market, objective)
    optimum = exact(market, objective).objective
    assert solution.status is Status.OPTIMAL
    assert optimum is not None
    assert solution.bound >= optimum - 1e-6 * abs(optimum)
    assert optimality_gap(market, objective, solution.objective, optimum) <= 1e-4
    assert (market.used(solution.x) <= market.capacity * (1 + 1e-12)).all()
    assert (solution.x.reshape(-1, POOLS).sum(axis=1) <= 1 + 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_derivatives_of_demand_are_exact(kind: str) -> None:
    """By each price, by the level and by the softness, against differences."""
    rng = np.random.default_rng(5)
    market = _market(rng, jobs=40)
    task = make_task(market, _objective(kind, market, rng))
    at = DualPoint(rng.uniform(0.5, 2.0, POOLS), 0.05, 0.3, np.ones(POOLS))
    engine, step = compiled_engine(), 1e-6
    seen = evaluate_dual(engine, task, at)

    def change(up: DualPoint, down: DualPoint) -> np.ndarray:
        return evaluate_dual(engine, task, up).sums.demand - evaluate_dual(engine, task, down).sums.demand

    for row in range(POOLS):
        up, down = at.prices.copy(), at.prices.copy()
        up[row], down[row] = up[row] + step, down[row] - step
        slope = change(replace(at, prices=up), replace(at, prices=down)) / (2 * step)
        assert slope == pytest.approx(-seen.sums.stiffness[row], abs=1e-4 * abs(seen.sums.stiffness).max())
    softer = change(replace(at, softness=0.3 * (1 + step)), replace(at, softness=0.3 * (1 - step))) / (2 * step)
    assert softer == pytest.approx(seen.sums.by_softness, abs=1e-4 * max(1.0, abs(seen.sums.by_softness).max()))
    if task.is_level:
        slope = change(replace(at, z=at.z + step), replace(at, z=at.z - step)) / (2 * step)
        assert slope == pytest.approx(seen.sums.by_level, rel=1e-4)


def test_a_sample_wants_about_what_all_want() -> None:
    """An eighth of the classes stands for all: its demand per row is that of all, within a few percent of the sum."""
    rng = np.random.default_rng(6)
    market = _market(rng, jobs=8000)
    task = make_task(market, _objective("total", market, rng))
    part = sample_classes(task, 1000)
    at = DualPoint(np.full(POOLS, 0.5), 0.0, 0.1, np.ones(POOLS))
    whole, some = (evaluate_dual(compiled_engine(), one, at).sums.demand for one in (task, part))
    assert some == pytest.approx(whole, abs=0.05 * whole.sum())
    assert part.problem.classes <= 1000


def test_a_solve_goes_on_from_where_another_stood() -> None:
    """After a small change the old standing needs fewer passes than a fresh start, and is certified as well."""
    rng = np.random.default_rng(7)
    market = _market(rng)
    objective = _objective("total", market, rng)
    standing = solve_from(None, market, objective).end
    changed = replace(market, capacity=market.capacity * 1.01)
    warm, cold = (solve_from(start, changed, objective).solution for start in (standing, None))
    assert warm.status is cold.status is Status.OPTIMAL
    assert warm.work < cold.work


def test_members_of_a_class_count_like_so_many_jobs() -> None:
    """A thousand members each and a thousand times the capacity are worth a thousand times as much."""
    one, many = (_market(np.random.default_rng(8), jobs=50, members=size) for size in (1.0, 1000.0))
    objective = _objective("total", one, np.random.default_rng(9))
    small = solve_by_prices(one, objective)
    large = solve_by_prices(replace(many, capacity=one.capacity * 1000), objective)
    assert large.objective == pytest.approx(1000 * small.objective, rel=2e-4)


def test_floors_that_no_column_reaches_are_infeasible() -> None:
    """No work is done; the classes are named by `unreachable`."""
    market, _ = market_of([1.0], [[[(0, 1.0)]]], [1.0])
    solution = solve_by_prices(market, MaxSum(np.ones(1), np.ones(1), np.array([2.0])))
    assert solution.status is Status.INFEASIBLE
    assert solution.work == 0


def test_floors_that_do_not_fit_together_are_infeasible() -> None:
    """Two members that each need the one accelerator all the time."""
    market, _ = market_of([2.0], [[[(0, 1.0)]]], [1.0])
    solution = solve_by_prices(market, MaxSum(np.ones(1), np.ones(1), np.ones(1)))
    assert solution.status is Status.INFEASIBLE
    assert solution.bound == -np.inf
    assert solution.prices[0] > 0


def test_a_weight_without_a_column_is_infeasible() -> None:
    """The logarithm of nothing is not finite."""
    market, _ = market_of([1.0, 1.0], [[[(0, 1.0)]], [[(0, 1.0)]]], [1.0])
    assert solve_by_prices(market, NashWelfare(np.array([1.0, 0.0]), np.ones(2))).status is Status.INFEASIBLE


def test_an_empty_market_is_empty() -> None:
    """No columns, nothing wanted: nothing to decide."""
    market, _ = market_of([1.0], [[]], [1.0])
    assert solve_by_prices(market, MaxSum(np.zeros(0), np.zeros(0), np.zeros(1))).status is Status.EMPTY


def test_plenty_costs_nothing() -> None:
    """Where capacity is left over its price is about 0 and everybody has the best."""
    rng = np.random.default_rng(10)
    market = replace(_market(rng), capacity=np.full(POOLS, 1e5))
    objective = _objective("total", market, rng)
    solution = solve_by_prices(market, objective)
    assert solution.objective == pytest.approx(largest_worth(market, objective.worth).sum(), rel=1e-4)
    assert solution.prices @ market.capacity <= 1e-3 * solution.objective


def test_a_finer_gap_takes_more_passes() -> None:
    """The gap is a parameter."""
    rng = np.random.default_rng(11)
    market = _market(rng)
    objective = _objective("ties", market, rng)
    coarse, fine = (solve_by_prices(market, objective, SolveLimits(gap=gap)) for gap in (1e-2, 1e-6))
    assert coarse.status is fine.status is Status.OPTIMAL
    assert coarse.work < fine.work
    assert optimality_gap(market, objective, fine.objective, fine.bound) <= 1e-6


def test_a_target_above_every_column_is_told_by_class():
    """Which class it is; a target at the best column is reached."""
    market, _ = market_of([1.0, 1.0], [[[(0, 1.0)], [(1, 1.0)]]] * 2, [1.0, 1.0])
    choice = cheapest_choice(market, np.array([1.0, 3.0] * 2), market.cost(np.ones(2)), np.array([3.5, 3.0]))
    assert choice.reached.tolist() == [False, True]
