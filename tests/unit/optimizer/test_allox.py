"""AlloX: the assignment is the exact minimum, small and large; who stays, who starts, and what is said of it."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build
from scipy.optimize import linear_sum_assignment

from optimizer.decision import Shares, Status
from optimizer.policies.allox import Allox, assign_positions, queue_heads, split_into_queues
from optimizer.policy import Newcomer
from optimizer.problem import Problem


def problem_of(setting: Setting, steps: list[float], running: dict[int, int] | None = None) -> Problem:
    """Steps left of each job; `running`: job -> pool."""
    problem = build(setting)
    columns = problem.columns
    now = np.array([(running or {}).get(int(j)) == p for j, p in zip(columns.job, columns.use_pool, strict=True)], bool)
    return replace(
        problem,
        jobs=replace(problem.jobs, remaining_steps=np.array(steps, dtype=float)),
        columns=replace(columns, running=now),
    )


def started(problem: Problem, shares: Shares) -> dict[int, int]:
    """Job -> pool, where the share is 1."""
    columns = problem.columns
    assert set(np.unique(shares.x)) <= {0.0, 1.0}
    return {int(columns.job[c]): int(columns.use_pool[c]) for c in np.flatnonzero(shares.x)}


def plain_gavel(length_s: np.ndarray, lanes: np.ndarray) -> float:
    """The whole matrix: every job against every position of every accelerator."""
    jobs = len(length_s)
    single = np.repeat(length_s, lanes, axis=1)
    cost = np.hstack([k * single for k in range(1, jobs + 1)])
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].sum())


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_levels_added_as_needed_give_the_minimum_of_the_whole_matrix(data: st.DataObject) -> None:
    """The reduced assignment has the same sum as all positions of all accelerators, unusable types included."""
    kinds, jobs = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 16))
    lanes = np.array(data.draw(st.lists(st.integers(1, 4), min_size=kinds, max_size=kinds)))
    length = st.sampled_from([0.0, 1.0, 2.0, 5.0, 30.0, np.inf])
    table = np.array(
        data.draw(st.lists(st.lists(length, min_size=kinds, max_size=kinds), min_size=jobs, max_size=jobs))
    )
    table[~np.isfinite(table).any(axis=1)] = 3.0
    seats = assign_positions(table, lanes)
    assert seats.total_s == pytest.approx(plain_gavel(table, lanes))
    levels = np.zeros((kinds, jobs + 1), dtype=int)
    np.add.at(levels, (seats.kind, seats.from_end), 1)
    assert (levels <= lanes[:, None]).all()
    assert seats.total_s == pytest.approx((seats.from_end * table[np.arange(jobs), seats.kind]).sum())


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_minimum_is_that_of_all_schedules(data: st.DataObject) -> None:
    """Against every order and every choice of accelerator, one job after another."""
    lanes = np.array(data.draw(st.lists(st.integers(1, 2), min_size=2, max_size=2)))
    table = np.array(data.draw(st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=2), min_size=4, max_size=4)))
    single = np.repeat(table, lanes, axis=1)
    best = np.inf
    for places in product(range(single.shape[1]), repeat=4):
        for order in permutations(range(4)):
            busy, total = np.zeros(single.shape[1]), 0.0
            for row in order:
                busy[places[row]] += single[row, places[row]]
                total += busy[places[row]]
            best = min(best, total)
    assert assign_positions(table.astype(float), lanes).total_s == pytest.approx(best)


def test_a_thousand_jobs_on_three_hundred_accelerators_need_a_small_matrix() -> None:
    """The whole matrix would have 3e8 entries; this takes a fraction of a second, and starts 300 jobs."""
    random = np.random.default_rng(1)
    table = (
        (random.pareto(1.2, 1000) * 1000 + 10)[:, None] / np.array([1.0, 2.0, 4.0]) * random.uniform(0.5, 2, (1000, 3))
    )
    lanes = np.array([100, 100, 100])
    seats = assign_positions(table, lanes)
    assert len(queue_heads(seats, table, lanes)) == 300
    # Inside a kind the shortest go first: farthest from the end.
    for kind in range(3):
        own = np.flatnonzero(seats.kind == kind)
        by_length = own[np.argsort(table[own, kind])]
        assert (np.diff(seats.from_end[by_length]) <= 0).all()


@pytest.mark.parametrize(
    ("free", "sizes", "work", "jobs", "lanes"),
    [
        (10, [1], [5.0], [20], [10]), (10, [1], [5.0], [2], [2]), (10, [4], [5.0], [20], [2]),
        (16, [1, 8], [1.0, 1.0], [20, 20], [8, 1]), (8, [1, 8], [9.0, 1.0], [20, 20], [8, 0]),
        (8, [1, 8], [0.0, 0.0], [20, 20], [8, 0]), (12, [1, 4], [1.0, 5.0], [20, 20], [4, 2]),
        (6, [1, 4], [1.0, 1.0], [2, 2], [2, 1]), (0, [1], [1.0], [1], [0]),
    ],
)  # fmt: skip
def test_lanes_follow_the_work_and_never_exceed_what_is_free(
    free: float, sizes: list[float], work: list[float], jobs: list[int], lanes: list[int]
) -> None:
    """Each size gets its part of the accelerators, in whole lanes."""
    found = split_into_queues(free, np.array(sizes, float), np.array(work), np.array(jobs))
    assert found @ np.array(sizes) <= free
    assert found.tolist() == lanes


def test_the_job_that_gains_most_gets_the_fast_accelerator() -> None:
    """The advantage counts, not the length: the first is ten times as fast there, the second hardly."""
    problem = problem_of(Setting([[1.0, 10.0], [1.0, 1.1]], [1, 1]), [100.0, 50.0])
    shares, _ = Allox().decide(problem, None)
    assert started(problem, shares) == {0: 1, 1: 0}
    assert shares.certificate.status is Status.DEFINED
    assert shares.certificate.objective == pytest.approx(10.0 + 50.0)
    assert not shares.certificate.maximise
    assert shares.certificate.bound <= shares.certificate.objective
    assert "squashed area" in shares.certificate.path
    assert shares.quote.prices.tolist() == [0.0, 0.0]


def test_the_shortest_starts_and_the_others_wait_for_it() -> None:
    """On one accelerator the assignment is shortest first."""
    problem = problem_of(Setting([[1.0]] * 3, [1]), [30.0, 10.0, 20.0])
    shares, memory = Allox().decide(problem, None)
    assert started(problem, shares) == {1: 0}
    assert shares.certificate.objective == pytest.approx(10 + 30 + 60)
    assert shares.certificate.gap == pytest.approx(0.0, abs=1e-9)
    assert memory == {"placed": [[2, "pool-0", 1.0]], "newest": 3}


def test_who_was_placed_stays_and_who_only_uses_what_is_free_does_not() -> None:
    """Non-preemptive: the memory says who was placed; running alone is no right once there is a memory."""
    problem = problem_of(Setting([[1.0]] * 2, [1]), [1000.0, 10.0], running={0: 0})
    assert started(problem, Allox().decide(problem, None)[0]) == {0: 0}
    assert started(problem, Allox().decide(problem, {"placed": [[1, "pool-0", 1.0]], "newest": 2})[0]) == {0: 0}
    assert started(problem, Allox().decide(problem, {"placed": [], "newest": 2})[0]) == {1: 0}
    # One that came after the last decision and was let in stays.
    assert started(problem, Allox().decide(problem, {"placed": [], "newest": 0})[0]) == {0: 0}
    # Of a job or a pool that is gone nothing is remembered.
    gone = {"placed": [[9, "pool-0", 1.0], [1, "gone", 1.0]], "newest": 9}
    assert started(problem, Allox().decide(problem, gone)[0]) == {1: 0}


def test_lost_capacity_lets_the_first_placed_stay() -> None:
    """Shares never exceed what is there."""
    problem = problem_of(Setting([[1.0]] * 3, [1], gangs=[1, 1, 1]), [9.0, 9.0, 9.0], running={1: 0, 2: 0})
    shares, _ = Allox().decide(problem, None)
    assert started(problem, shares) == {1: 0}
    assert shares.certificate.violation == 0.0


def test_gangs_start_whole_in_lanes_of_their_size() -> None:
    """Six accelerators, work half and half: one gang of four at most, and the single jobs beside it."""
    problem = problem_of(Setting([[1.0]] * 4, [6], gangs=[4, 4, 1, 1]), [10.0, 20.0, 60.0, 60.0])
    shares, _ = Allox().decide(problem, None)
    assert started(problem, shares) == {0: 0, 2: 0, 3: 0}
    assert shares.certificate.violation == 0.0


def test_unknown_lengths_are_guessed_and_said_to_be() -> None:
    """As long again as it has run, an hour at least: the old job is taken for the longer one."""
    problem = problem_of(Setting([[2.0]] * 2, [1]), [np.inf, np.inf])
    problem = replace(problem, jobs=replace(problem.jobs, attained_s=np.array([8000.0, 0.0])))
    shares, _ = Allox().decide(problem, {"placed": [], "newest": 2})
    assert started(problem, shares) == {1: 0}
    assert shares.certificate.objective == pytest.approx(3600 + 3600 + 8000)
    assert "2 lengths guessed" in shares.certificate.path


def test_nothing_to_decide_is_an_answer() -> None:
    """No job, or none that can run."""
    for setting, steps in ((Setting([], [1]), []), (Setting([[0.0], [None]], [1]), [1.0, 1.0])):
        problem = problem_of(setting, steps)
        shares, memory = Allox().decide(problem, None)
        assert shares.certificate.status is Status.EMPTY
        assert shares.unplaceable.tolist() == list(range(len(steps)))
        assert memory == {"placed": [], "newest": max([-1, *problem.jobs.job_id])}


def test_a_newcomer_takes_the_fastest_free_place() -> None:
    """Until the next solve."""
    newcomer = Newcomer(np.array([1.0, 4.0]), np.array([0, 1]), np.ones(2), 1.0, np.ones(2))
    problem = problem_of(Setting([[1.0, 1.0]], [1, 1]), [1.0])
    quote = Allox().decide(problem, None)[0].quote
    assert Allox().value(newcomer, quote).tolist() == [0.25, 1.0]
