"""Shockwave-style: rounds of a window shared out by Nash welfare, and who runs in the first of them."""

import numpy as np
import pytest
from elastic_problems import Elastic, places_of, problem_of

from optimizer.decision import Quote
from optimizer.policies.shockwave import Shockwave
from optimizer.policy import Newcomer

ONE = {(0, 1): 1.0}
#: Two rounds of 100 s.
TWO = Shockwave(round_s=100.0, rounds=2)


def test_equal_jobs_share_the_window() -> None:
    """One accelerator, two rounds, two jobs: a tenth of what each has left, rather than two tenths for one."""
    problem = problem_of(Elastic([ONE] * 2, [1], remaining_steps=[1000.0] * 2))
    plan, memory = Shockwave(round_s=100.0, rounds=2, makespan=2.0).decide(problem, None)
    assert (places_of(problem, plan), memory) == ([(0, 1), None], None)
    assert plan.yardstick.objective == pytest.approx(2 * np.log(1.1))
    assert plan.yardstick.gap <= 1e-4


def test_who_is_soon_through_comes_first() -> None:
    """A round more is a larger part of what it has left."""
    problem = problem_of(Elastic([ONE] * 3, [1], remaining_steps=[1000.0, 5000.0, 300.0]))
    assert places_of(problem, TWO.decide(problem, None)[0]) == [None, None, (0, 1)]


def test_the_job_on_which_the_end_of_all_depends_runs_before_shorter_ones() -> None:
    """Two accelerators and 7,300 s of work: 5,000 s of it one after the other, whatever the others do."""
    problem = problem_of(Elastic([ONE] * 4, [2], remaining_steps=[1000.0, 1000.0, 5000.0, 300.0]))
    assert places_of(problem, TWO.decide(problem, None)[0]) == [None, None, (0, 1), (0, 1)]
    careless = Shockwave(round_s=100.0, rounds=2, makespan=2.0)
    assert places_of(problem, careless.decide(problem, None)[0]) == [(0, 1), None, None, (0, 1)]


def test_nobody_of_unknown_length_is_critical() -> None:
    """Nothing says that the end depends on it; it comes by its guessed rank."""
    problem = problem_of(Elastic([ONE] * 2, [1], remaining_steps=[np.inf, 100.0]))
    assert places_of(problem, TWO.decide(problem, None)[0]) == [None, (0, 1)]


def test_who_is_predicted_to_be_late_weighs_more() -> None:
    """Of equal jobs the one that has waited longer runs; with no weight on lateness, the first by number."""
    setting = Elastic([ONE] * 2, [1], remaining_steps=[1000.0] * 2, submitted_at=[900.0, 0.0], at=900.0)
    problem = problem_of(setting)
    one = Shockwave(round_s=100.0, rounds=1)
    assert places_of(problem, one.decide(problem, None)[0]) == [None, (0, 1)]


def test_whoever_runs_goes_on_among_equals() -> None:
    """A restart costs a part of the round."""
    setting = Elastic([ONE] * 2, [1], remaining_steps=[1000.0] * 2, running={1: (0, 1)}, restart_s=10.0)
    assert places_of(problem_of(setting), TWO.decide(problem_of(setting), None)[0]) == [None, (0, 1)]


def test_what_nobody_has_rounds_in_is_used_all_the_same() -> None:
    """Accelerators for all: a job that is nearly through runs beside one that is not."""
    problem = problem_of(Elastic([ONE, ONE], [2], remaining_steps=[10.0, 1000.0]))
    assert places_of(problem, TWO.decide(problem, None)[0]) == [(0, 1), (0, 1)]


def test_a_newcomer_is_worth_a_window_of_its_speed() -> None:
    """Part of what it has left, in the unit of the prices; of unknown length, a window is all that it has left."""
    speed, pool, count = np.array([1.0, 2.0]), np.array([0, 0]), np.array([1.0, 2.0])
    quote = Quote(np.zeros(1), "", 1.0)
    told = Newcomer(speed, pool, count, 1.0, np.array([4.0]), remaining_steps=800.0)
    assert TWO.value(told, quote).tolist() == pytest.approx([np.log(1.25) / 2, np.log(1.5) / 2])
    untold = Newcomer(speed, pool, count, 1.0, np.array([4.0]))
    assert TWO.value(untold, quote).tolist() == pytest.approx([np.log(1.5) / 2, np.log(2) / 2])
