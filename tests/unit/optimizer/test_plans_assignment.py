"""The assignment at prices: exact for single accelerators, near the optimum for gangs, never above its bound."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from optimizer.assignment import local_search as gangs_of
from optimizer.assignment import local_search as prices_of
from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.assignment.guarantee_rows import columns_with_bonuses, rows_of_floors
from optimizer.assignment.local_search import assign_gangs
from optimizer.assignment.transportation import assign_by_search, solve_transportation

WORTHS = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 1.3, 2.0])


@st.composite
def places(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Values of jobs in pools, ties on purpose, and capacities."""
    n, pools = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    value = draw(st.lists(st.lists(WORTHS, min_size=pools, max_size=pools), min_size=n, max_size=n))
    return np.array(value), np.array(draw(st.lists(st.integers(0, 4), min_size=pools, max_size=pools)))


def best_value(value: np.ndarray, capacity: np.ndarray) -> float:
    by_place = np.hstack([np.repeat(value, capacity, axis=1), np.zeros((len(value), len(value)))])
    rows, columns = linear_sum_assignment(-by_place)
    return float(by_place[rows, columns].sum())


@settings(deadline=None)  # the first call compiles
@given(places())
def test_single_accelerators_are_assigned_exactly_and_the_prices_prove_it(case: tuple[np.ndarray, np.ndarray]) -> None:
    """Value = optimum = dual bound at the prices; every job has the place that it would choose at them."""
    value, capacity = case
    place, prices = solve_transportation(value, capacity)
    assert np.all(np.bincount(place[place >= 0], minlength=len(capacity)) <= capacity)
    reached = sum(value[j, r] for j, r in enumerate(place) if r >= 0)
    assert reached == pytest.approx(best_value(value, capacity), abs=1e-9)
    surplus = np.maximum((value - prices).max(axis=1), 0.0)
    assert surplus.sum() + prices @ capacity == pytest.approx(reached, abs=1e-9)
    for j, r in enumerate(place):
        assert surplus[j] == pytest.approx(value[j, r] - prices[r] if r >= 0 else 0.0, abs=1e-9)


@settings(deadline=None)
@given(places())
def test_single_accelerators_as_columns_reach_what_their_bound_says(case: tuple[np.ndarray, np.ndarray]) -> None:
    """Asked by columns, the assignment is worth its dual bound: the prices prove it to be the best."""
    value, capacity = case
    job, pool = np.nonzero(value)
    rows, job = np.unique(job, return_inverse=True)
    if not len(rows):
        return
    question = AssignmentProblem(
        job=job, value=value[value > 0], use_column=np.arange(len(job)), use_pool=pool, use_count=np.ones(len(job)),
        capacity=capacity.astype(float),
    )  # fmt: skip
    found = assign_by_search(question)
    assert found.value == pytest.approx(best_value(value, capacity), abs=1e-9)
    assert found.bound == pytest.approx(found.value, abs=1e-9)
    assert np.all(question.used(found.column) <= capacity)


def some_gangs(rng: np.random.Generator, jobs: int, pools: int, capacity: int) -> AssignmentProblem:
    """Gangs of 1, 2 or 4 that fit any pool."""
    size = rng.choice([1.0, 2.0, 4.0], jobs, p=[0.5, 0.3, 0.2])
    value = (size * rng.random(jobs))[:, None] * (0.3 + 0.7 * rng.random((jobs, pools)))
    columns = jobs * pools
    return AssignmentProblem(
        job=np.repeat(np.arange(jobs), pools), value=value.ravel(), use_column=np.arange(columns),
        use_pool=np.tile(np.arange(pools), jobs), use_count=np.repeat(size, pools),
        capacity=np.full(pools, float(capacity)),
    )  # fmt: skip


def optimum(gangs: AssignmentProblem) -> float:
    """The exact dynamic program over (job, free accelerators)."""

    @cache
    def best(job: int, free: tuple[float, ...]) -> float:
        if job == gangs.jobs:
            return 0.0
        found = best(job + 1, free)
        for c in np.flatnonzero(gangs.job == job).tolist():
            r, count = gangs.use_pool[c], gangs.use_count[c]
            if free[r] >= count:
                left = (*free[:r], free[r] - count, *free[r + 1 :])
                found = max(found, gangs.value[c] + best(job + 1, left))
        return found

    return best(0, tuple(gangs.capacity.tolist()))


def test_gangs_are_within_half_a_percent_of_the_exact_dynamic_program_on_average() -> None:
    """And never above it, nor it above the bound; nobody gets what is not there."""
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(60):
        gangs = some_gangs(rng, int(rng.integers(1, 13)), int(rng.integers(1, 4)), int(rng.integers(4, 9)))
        found = assign_gangs(gangs)
        chosen = found.column[found.column >= 0]
        used = np.bincount(gangs.use_pool[chosen], gangs.use_count[chosen], len(gangs.capacity))
        assert np.all(used <= gangs.capacity + 1e-9)
        reached, best = float(gangs.value[chosen].sum()), optimum(gangs)
        assert reached <= best + 1e-9 <= found.bound + 1e-6
        gaps.append(1.0 - reached / best)
    assert np.mean(gaps) < 0.005


def prices_as_defined(gangs: AssignmentProblem) -> tuple[np.ndarray, float]:
    """The prices of the smallest bound of 40 subgradient steps, each over all columns; that bound."""
    prices, top = np.zeros(len(gangs.capacity)), float((gangs.value / gangs.size).max())
    quoted, bound = prices, np.inf
    for step in range(prices_of.PRICE_STEPS + 1):
        net, load = gangs.net(prices), np.zeros(len(prices))
        for j, first in enumerate(gangs.first.tolist()):
            columns = np.flatnonzero(gangs.job == j)
            wanted = first + int(np.argmax(net[columns]))
            if net[wanted] > 0:
                uses = gangs.use_column == wanted
                np.add.at(load, gangs.use_pool[uses], gangs.use_count[uses])
        if gangs.dual_bound(prices) < bound:
            quoted, bound = prices, gangs.dual_bound(prices)
        excess = np.clip((load - gangs.capacity) / np.abs(gangs.capacity), -1.0, 1.0)
        prices = np.clip(prices + excess * top / 4.0 / (1.0 + step / 2.0), 0.0, top)
    return quoted, bound


@pytest.mark.parametrize("floor", [0.0, 3.0])
def test_jobs_that_are_left_out_of_a_step_would_have_wanted_nothing(floor: float) -> None:
    """In a crowd most jobs are; prices and bound are those of all jobs at every step, of floors as well."""
    rng = np.random.default_rng(2)
    for _ in range(4):
        gangs = some_gangs(rng, 300, 3, 12)
        if floor:
            gangs = rows_of_floors(gangs, np.arange(300)[None, :] < 40, np.array([floor]))
        prices, bound = prices_of.prices_of_gangs(gangs)
        wanted, least = prices_as_defined(gangs)
        np.testing.assert_allclose(prices, wanted, rtol=1e-9, atol=1e-12)
        assert bound == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("guaranteed", [False, True])
def test_a_crowd_is_filled_as_if_every_job_were_looked_at(monkeypatch: pytest.MonkeyPatch, guaranteed: bool) -> None:
    """To the bit: fill, prices, bound and order, with rows of guarantees beside those of pools as well."""
    rng = np.random.default_rng(5)
    for _ in range(3):
        gangs = some_gangs(rng, 300, 3, 12)
        gangs = replace(gangs, running=rng.random(len(gangs.job)) < 0.05)
        if guaranteed:
            below = rng.random((2, 300)) < 0.4
            gangs, _ = columns_with_bonuses(gangs, below, np.array([2.0, 6.0]), 8.0)
        start = gangs.start if len(gangs.start) else np.zeros(len(gangs.capacity))
        told = gangs.table, prices_of.running_column(gangs), True, start, 0.0
        found = prices_of._loops.compiled("_at_prices")(*told)
        with monkeypatch.context() as patched:
            patched.setattr(prices_of, "CROWD", 10**9)
            wanted = prices_of._at_prices(*told)
        assert len(gangs.value) // 3 > prices_of.CROWD
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_what_is_left_out_of_a_search_would_have_gained_nothing() -> None:
    """A search that ended by itself, begun again at its end with nothing remembered, changes nothing."""
    rng = np.random.default_rng(3)
    improved = 0
    for _ in range(12):
        gangs = some_gangs(rng, 120, 3, 12)
        column, _, _, order = prices_of.fill_at_prices(gangs)
        margins, effort = gangs_of.Margins(np.zeros(len(gangs.value)), 1e9, 1e-9), gangs_of.Effort(50, 10**9)
        begun = column.copy()
        search = gangs_of._loops.compiled("_search")
        search(gangs.table, column, order, margins, effort)
        improved += bool((column != begun).any())
        ended = column.copy()
        search(gangs.table, column, order, margins, effort)
        np.testing.assert_array_equal(column, ended)
    assert improved >= 3


def test_who_runs_stays_where_nothing_better_is_to_be_had() -> None:
    """Of equal assignments, the one that is there already."""
    gangs = AssignmentProblem(
        job=np.array([0, 0, 1, 1]), value=np.array([2.0, 2.0, 2.0, 2.0]), use_column=np.arange(4),
        use_pool=np.array([0, 1, 0, 1]), use_count=np.full(4, 2.0), capacity=np.array([2.0, 2.0]),
        running=np.array([False, True, True, False]),
    )  # fmt: skip
    assert assign_gangs(gangs).column.tolist() == [1, 2]


def test_a_mixed_gang_takes_part_in_the_assignment() -> None:
    """A column of several pools is placed where all of it fits."""
    gangs = AssignmentProblem(
        job=np.array([0, 1]), value=np.array([3.0, 1.0]), use_column=np.array([0, 0, 1]), use_pool=np.array([0, 1, 1]),
        use_count=np.array([2.0, 1.0, 1.0]), capacity=np.array([2.0, 1.0]),
    )  # fmt: skip
    found = assign_gangs(gangs)
    assert found.column.tolist() == [0, -1]
    assert found.bound >= 3.0


@pytest.mark.parametrize(("worth", "placed"), [(0.53, True), (0.24, False)])
def test_a_mixed_gang_displaces_jobs_of_its_pools_where_it_is_worth_more(worth: float, placed: bool) -> None:
    """Six of seven accelerators, on which three jobs run: two of them, worth .25 together, have to leave."""
    gangs = AssignmentProblem(
        job=np.array([0, 0, 1, 1, 2, 2, 3, 3]), value=np.array([0.127, 0.124] * 3 + [worth] * 2),
        use_column=np.array([0, 1, 2, 3, 4, 5, 6, 6, 7, 7]), use_pool=np.array([0, 1] * 5),
        use_count=np.array([1.0] * 6 + [4.0, 2.0, 3.0, 3.0]), capacity=np.array([4.0, 3.0]),
        running=np.array([True, False] * 3 + [False] * 2),
    )  # fmt: skip
    found = assign_gangs(gangs).column
    assert (found[3] >= 0, np.count_nonzero(found[:3] >= 0)) == (placed, 1 if placed else 3)
