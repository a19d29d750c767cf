"""What one more accelerator is worth: by hand, and exactly what the best plan gains by it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from optimizer.problem import IntArray, Problem
from optimizer.renting.usd_certificate import worth_of_one_more
from tests.support.problems import Setting, build


def worth(problem: Problem, column: list[int] | IntArray) -> list[float]:
    found: list[float] = worth_of_one_more(
        problem, np.array(column, dtype=np.int64), problem.jobs.value_usd_per_h
    ).tolist()
    return found


def test_one_more_is_worth_the_move_up_and_the_place_that_it_leaves() -> None:
    """Job 0 has the fast place, job 1 the slow one at half its speed, job 2 waits.

    One more fast: job 1 moves up (2 of its 4 USD/h) and job 2 takes its place (half of 3); or job 2 comes there: 3.
    One more slow: job 2 comes, at half its speed.
    """
    problem = build(Setting([[2.0, 1.0]] * 3, [1, 1], values=[5.0, 4.0, 3.0]))
    assert worth(problem, [0, 3, -1]) == pytest.approx([3.5, 1.5])
    # Nobody waits: a slow one more is worth nothing, though the last one there is.
    assert worth(build(Setting([[2.0, 1.0]] * 2, [1, 1], values=[5.0, 4.0])), [0, 3]) == pytest.approx([2.0, 0.0])


def test_what_is_free_already_is_not_due_to_one_more() -> None:
    """And jobs that cannot be moved, or state no value, gain nothing."""
    problem = build(Setting([[2.0, 1.0]] * 2, [2, 1], values=[5.0, 4.0]))
    assert worth(problem, [0, 3]) == [0.0, 0.0]
    full = build(Setting([[2.0, 1.0]] * 2, [1, 1], values=[5.0, 4.0]))
    pinned = replace(full, jobs=replace(full.jobs, pinned=np.array([True, True])))
    assert worth(pinned, [0, 3]) == [0.0, 0.0]
    nobody = worth_of_one_more(full, np.array([0, -1]), np.zeros(2))
    assert nobody.tolist() == [0.0, 0.0]


def test_a_gang_s_worth_is_by_accelerator() -> None:
    """A gang of four at 8 USD/h that waits makes each of its accelerators worth 2."""
    problem = build(Setting([[1.0], [1.0]], [4], gangs=[4, 4], values=[9.0, 8.0]))
    assert worth(problem, [0, -1]) == pytest.approx([2.0])


def test_nothing_is_worth_nothing() -> None:
    """No jobs, and a job whose speed nobody knows."""
    assert worth(build(Setting([], [3, 1])), []) == [0.0, 0.0]
    assert worth(build(Setting([[float("nan")]], [1], values=[5.0])), [-1]) == [0.0]


def best_plan(problem: Problem, speeds: list[list[float]], capacity: list[int]) -> tuple[float, list[int]]:
    """The most value that jobs on one accelerator each can have, and the column of each job."""
    places = [pool for pool, count in enumerate(capacity) for _ in range(count)]
    value = problem.jobs.value_usd_per_h
    table = np.array(
        [[value[job] * row[pool] / max(row) for pool in places] + [0.0] * len(speeds) for job, row in enumerate(speeds)]
    )
    jobs, chosen = linear_sum_assignment(table, maximize=True)
    column = [-1] * len(speeds)
    for job, place in zip(jobs.tolist(), chosen.tolist(), strict=True):
        if place < len(places):
            column[job] = job * len(capacity) + places[place]
    return float(table[jobs, chosen].sum()), column


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_it_is_what_the_best_plan_gains(data: st.DataObject) -> None:
    """For jobs on one accelerator, in a plan that is the best: the best plan with one more, less it."""
    pools, jobs = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    speed, usd = st.floats(0.1, 4.0), st.floats(0.1, 5.0)
    speeds = [[data.draw(speed) for _ in range(pools)] for _ in range(jobs)]
    capacity = [data.draw(st.integers(0, 3)) for _ in range(pools)]
    problem = build(Setting(speeds, capacity, values=[data.draw(usd) for _ in range(jobs)]))
    before, column = best_plan(problem, speeds, capacity)
    for pool, found in enumerate(worth(problem, column)):
        more = [count + (pool == each) for each, count in enumerate(capacity)]
        assert found == pytest.approx(best_plan(problem, speeds, more)[0] - before, abs=1e-6)
