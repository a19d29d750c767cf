"""The lower bound on completion times that orders and AlloX are measured by."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build

from optimizer.answer import rank_jobs
from optimizer.assignment.list_schedule import completion_bound_s as lower_bound_of_columns
from optimizer.assignment.list_schedule import ends_s
from optimizer.policies.queue_orders import Fifo, Srtf
from optimizer.problem import Problem
from optimizer.utility.fair_share import usable_columns


def problem_of(setting: Setting, steps: list[float]) -> Problem:
    """A problem whose jobs have that many steps left."""
    problem = build(setting)
    return replace(problem, jobs=replace(problem.jobs, remaining_steps=np.array(steps, dtype=float)))


def lower_bound_s(problem: Problem) -> float:
    """Over all jobs that can run."""
    return lower_bound_of_columns(problem, usable_columns(problem.columns, problem.pools.capacity))


def best_of_all(problem: Problem) -> float:
    """The best list schedule: every order, with every choice of one configuration for each job."""
    columns, usable = problem.columns, usable_columns(problem.columns, problem.pools.capacity)
    choices = [np.flatnonzero((columns.job == row) & usable).tolist() or [None] for row in range(len(problem.jobs))]
    best = np.inf
    for chosen in product(*choices):
        only = np.zeros(len(columns), dtype=bool)
        only[[column for column in chosen if column is not None]] = True
        for rows in permutations(range(len(problem.jobs))):
            for strict in (False, True):
                ends = ends_s(problem, rows, columns.steps_per_s, only, strict=strict)
                best = min(best, float(ends[np.isfinite(ends)].sum()))
    return best


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_schedule_ends_sooner_than_the_bound(data: st.DataObject) -> None:
    """On every small fleet, the best of all list schedules is at least the bound."""
    pools = data.draw(st.integers(1, 2))
    capacity = data.draw(st.lists(st.integers(1, 3), min_size=pools, max_size=pools))
    n = data.draw(st.integers(1, 4))
    speed = st.sampled_from([None, 0.0, 0.5, 1.0, 3.0])
    speeds = data.draw(st.lists(st.lists(speed, min_size=pools, max_size=pools), min_size=n, max_size=n))
    gangs = data.draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    steps = data.draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    problem = problem_of(Setting(speeds, capacity, gangs=gangs), steps)
    assert lower_bound_s(problem) <= best_of_all(problem) * (1 + 1e-9) + 1e-9


def test_the_bound_is_tight_on_one_machine() -> None:
    """Shortest first on one accelerator reaches it exactly."""
    problem = problem_of(Setting([[1.0]] * 4, [1]), [7, 1, 4, 2])
    assert lower_bound_s(problem) == pytest.approx(1 + 3 + 7 + 14)
    assert rank_jobs(Srtf(), problem).yardstick.gap == pytest.approx(0.0, abs=1e-9)  # type: ignore[union-attr]


def test_the_bound_is_tight_where_there_is_room_for_everybody() -> None:
    """Then every job takes its best time."""
    problem = problem_of(Setting([[1.0, 2.0], [1.0, 0.5], [3.0, 1.0]], [4, 4]), [10, 10, 9])
    assert lower_bound_s(problem) == pytest.approx(5 + 10 + 3)


def test_good_prices_see_that_fast_accelerators_are_scarce() -> None:
    """The fast ones cost ten times as much, and the bound is what the whole fleet, 20 + 20 slow ones, could do."""
    problem = problem_of(Setting([[1.0, 10.0]] * 40, [20, 2]), [100.0] * 40)
    together = sum((k - 0.5) * 100.0 / 40 for k in range(1, 41)) + 0.5 * 40 * 10.0
    assert lower_bound_s(problem) >= 0.99 * together


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_price_steps_come_close_to_the_best_constant_prices(seed: int) -> None:
    """Within 3 % of what a fine grid of prices finds on two pools."""
    random = np.random.default_rng(seed)
    problem = problem_of(Setting(random.uniform(0.1, 4.0, (30, 2)).tolist(), [3, 5]), random.pareto(1.2, 30) + 0.1)
    remaining, speed = problem.jobs.remaining_steps, problem.columns.steps_per_s.reshape(30, 2)
    shortest = remaining / speed.max(axis=1)
    best = 0.0
    for part in np.linspace(0.001, 0.999, 999):
        work = np.sort((remaining[:, None] / speed * np.array([part / 3, (1 - part) / 5])).min(axis=1))
        best = max(best, float(np.cumsum(work).sum() - 0.5 * work.sum() + 0.5 * shortest.sum()))
    assert lower_bound_s(problem) >= 0.97 * best


def test_an_order_states_its_distance() -> None:
    """Long before short costs what it costs: 10 + 11 against 1 + 11 seconds."""
    problem = problem_of(Setting([[1.0], [1.0]], [1], submitted_at=[0.0, 1.0]), [10, 1])
    found = rank_jobs(Fifo(), problem).yardstick
    assert (found.objective, found.bound, found.unit) == (pytest.approx(10.5), pytest.approx(6.0), "s")
    assert found.gap == pytest.approx(0.75)


def test_a_strict_order_is_measured_as_it_is_followed() -> None:
    """The gang at the head holds up the single job behind it, in the list schedule as in the cluster."""
    setting = Setting([[1.0]] * 3, [2], gangs=[1, 2, 1], submitted_at=[0.0, 1.0, 2.0])
    problem = problem_of(setting, [10, 10, 10])
    strict, free = rank_jobs(Fifo(), problem).yardstick, rank_jobs(Fifo(strict=False), problem).yardstick
    assert strict.objective * 3 == pytest.approx(10 + 20 + 30)
    assert free.objective * 3 == pytest.approx(10 + 10 + 20)


@pytest.mark.parametrize(
    ("speeds", "steps", "why"),
    [([[1.0], [1.0]], [5.0, np.inf], "1 jobs of unknown length"), ([[0.0]], [5.0], "no job has a configuration")],
)
def test_where_there_is_no_yardstick_the_order_says_why(
    speeds: list[list[float]], steps: list[float], why: str
) -> None:
    """Nothing is made up about a job of unknown length; one that can never run does not count."""
    order = rank_jobs(Fifo(), problem_of(Setting(speeds, [1]), steps))
    assert order.yardstick is None
    assert why in order.no_yardstick
    assert lower_bound_s(problem_of(Setting([[0.0]], [1]), [5.0])) == 0.0
