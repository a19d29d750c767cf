"""Optimus: least gangs first, then one accelerator more for the largest gain in remaining time."""

import numpy as np
import pytest
from elastic_problems import Elastic, places_of, problem_of

from optimizer.decision import Quote
from optimizer.policies.optimus import Optimus
from optimizer.policy import Newcomer

#: Twice the accelerators, 1.5 times the speed; four, 2 times.
SPEEDS = {(0, 1): 1.0, (0, 2): 1.5, (0, 4): 2.0}


def test_everybody_has_one_before_anybody_has_two() -> None:
    """By submission, while there is room."""
    problem = problem_of(
        Elastic([SPEEDS] * 3, [2], remaining_steps=[9e9, 10.0, 10.0], submitted_at=[2.0, 0.0, 1.0], at=9.0)
    )
    assert places_of(problem, Optimus().decide(problem, None)[0]) == [None, (0, 1), (0, 1)]


def test_the_longest_gains_most_seconds() -> None:
    """Of 300 and 90 steps, a second accelerator saves 100 s and 30 s; then 25 s each for two more, so 30 is next."""
    problem = problem_of(Elastic([SPEEDS] * 2, [4], remaining_steps=[300.0, 90.0]))
    plan, _ = Optimus().decide(problem, None)
    assert places_of(problem, plan) == [(0, 2), (0, 2)]
    assert plan.yardstick.objective == pytest.approx(600 - 200 + 180 - 60)
    assert plan.yardstick.gap < 0.05


def test_growth_ends_where_nobody_gains() -> None:
    """A configuration that is slower is not taken, though accelerators are free."""
    problem = problem_of(Elastic([{(0, 1): 1.0, (0, 2): 0.9}], [4], remaining_steps=[100.0]))
    assert places_of(problem, Optimus().decide(problem, None)[0]) == [(0, 1)]


def test_a_restart_is_part_of_the_time() -> None:
    """20 s saved do not pay for a restart of 30 s; 100 s do."""
    for steps, had in ((60.0, (0, 1)), (300.0, (0, 2))):
        setting = Elastic(
            [{(0, 1): 1.0, (0, 2): 1.5}], [2], remaining_steps=[steps], running={0: (0, 1)}, restart_s=30.0
        )
        assert places_of(problem_of(setting), Optimus().decide(problem_of(setting), None)[0]) == [had]


def test_a_newcomer_is_worth_the_seconds_it_saves() -> None:
    """Against twice its slowest configuration; without a length, nothing is known."""
    pools = (np.array([1.0, 2.0]), np.array([0, 0]), np.array([1.0, 2.0]), 1.0, np.array([4.0]))
    value = Optimus().value(Newcomer(*pools, remaining_steps=100.0), Quote(np.zeros(1), "", 1.0))
    assert value.tolist() == [100.0, 150.0]
    assert Optimus().value(Newcomer(*pools), Quote(np.zeros(1), "", 1.0)).tolist() == [0.0, 0.0]
