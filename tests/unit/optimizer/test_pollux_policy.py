"""Pollux: speedup over a fair part of the fleet, and the mean that makes it fair."""

import numpy as np
import pytest
from elastic_problems import Elastic, places_of, problem_of

from optimizer.decision import Quote
from optimizer.policies.goodput import Pollux
from optimizer.policy import Newcomer

#: Twice the accelerators, 1.5 times the goodput; four, 2 times.
SPEEDS = {(0, 1): 1.0, (0, 2): 1.5, (0, 4): 2.0}
#: Both jobs have run on four.
GROWN = {"jobs": [[1, 4.0, 1, None], [2, 4.0, 1, None]]}


def test_equal_jobs_have_equal_parts() -> None:
    """Two and two are a speedup of 1 each: the fitness is twice that of 1 against that of waiting."""
    problem = problem_of(Elastic([SPEEDS] * 2, [4]))
    plan, _ = Pollux().decide(problem, GROWN)
    assert places_of(problem, plan) == [(0, 2), (0, 2)]
    assert plan.yardstick.objective == pytest.approx(2 * (1 / 0.004 - 1 / 1.004))
    assert plan.yardstick.gap < 1e-6


def test_speed_is_counted_against_the_jobs_own_fair_part() -> None:
    """A job that scales well gets the rest; how fast its steps are does not matter."""
    well, badly = {(0, 1): 1e-3, (0, 3): 2.9e-3}, {(0, 1): 100.0, (0, 3): 110.0}
    problem = problem_of(Elastic([badly, well], [4]))
    assert places_of(problem, Pollux().decide(problem, GROWN)[0]) == [(0, 1), (0, 3)]


def test_nobody_waits_while_there_is_an_accelerator_for_each() -> None:
    """A job without accelerators costs more than all others can gain."""
    problem = problem_of(Elastic([{(0, 1): 1.0, (0, 4): 4.0}, *([{(0, 1): 1.0}] * 3)], [4]))
    assert places_of(problem, Pollux().decide(problem, GROWN)[0]) == [(0, 1)] * 4


def test_a_running_job_is_not_changed_for_little() -> None:
    """The change counts 100 / (100 + 30) of its speed; with a restart behind it, 70 / 130."""
    setting = Elastic([{(0, 1): 1.0, (0, 2): 1.5}], [2], running={0: (0, 1)}, restart_s=30.0, at=100.0)
    problem = problem_of(setting)
    assert places_of(problem, Pollux().decide(problem, None)[0]) == [(0, 2)]
    again = {"jobs": [[1, 1.0, 2, ["pool-0", 1.0]]]}
    assert places_of(problem, Pollux().decide(problem, again)[0]) == [(0, 1)]


def test_a_newcomer_is_worth_its_least_gang() -> None:
    """Its own speed is taken for fair."""
    newcomer = Newcomer(np.array([1.0, 1.5]), np.array([0, 0]), np.array([1.0, 2.0]), 1.0, np.array([4.0]))
    value = Pollux().value(newcomer, Quote(np.zeros(1), "", 1.0))
    assert value.tolist() == pytest.approx([1 / 0.004 - 1 / 1.004, 0.0])
