"""Shockwave-style: rounds of a window shared out by Nash welfare, and who runs in the first of them."""

from dataclasses import replace

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
    """One accelerator, two rounds, two jobs: one round each, worth log 2 each, rather than two for one (log 3)."""
    problem = problem_of(Elastic([ONE] * 2, [1], remaining_steps=[1000.0] * 2))
    plan, memory = TWO.decide(problem, None)
    assert (places_of(problem, plan), memory) == ([(0, 1), None], None)
    assert plan.yardstick is not None
    assert plan.yardstick.objective == pytest.approx(2 * np.log(2))
    assert plan.yardstick.gap <= 1e-4


def test_who_has_done_little_comes_first() -> None:
    """A round more is a larger part of its progress."""
    problem = problem_of(Elastic([ONE] * 2, [1], remaining_steps=[1000.0] * 2))
    problem = replace(problem, jobs=replace(problem.jobs, done_steps=np.array([5000.0, 0.0])))
    assert places_of(problem, Shockwave(round_s=100.0, rounds=2, lateness=0.0).decide(problem, None)[0]) == [
        None,
        (0, 1),
    ]


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


def test_a_newcomer_is_worth_a_round_of_its_speed() -> None:
    """In the unit of the prices."""
    newcomer = Newcomer(np.array([1.0, 2.0]), np.array([0, 0]), np.array([1.0, 2.0]), 1.0, np.array([4.0]))
    value = TWO.value(newcomer, Quote(np.zeros(1), "", 1.0))
    assert value.tolist() == pytest.approx([np.log(2) / 2, np.log(3) / 2])
