"""Sia: goodput against each job's least configuration, growth by rounds, restarts that make moves dear."""

from dataclasses import replace

import numpy as np
import pytest
from elastic_problems import Elastic, places_of, problem_of

from optimizer.decision import Quote
from optimizer.policies.goodput import Sia
from optimizer.policy import Newcomer, PolicySpec
from optimizer.registry import make
from walras.errors import ConfigError

#: Twice the accelerators, 1.5 times the goodput; four, 2 times.
SPEEDS = {(0, 1): 1.0, (0, 2): 1.5, (0, 4): 2.0}


def test_a_new_job_begins_with_its_least_gang_and_doubles_by_rounds() -> None:
    """Nobody grows further than twice what it has run on."""
    setting = Elastic(speeds=[SPEEDS], capacity=[4])
    memory = None
    had: list[tuple[int, int] | None] = []
    for _ in range(4):
        problem = problem_of(replace(setting, running={0: had[-1]} if had and had[-1] else {}))
        plan, memory = Sia().decide(problem, memory)
        had += places_of(problem, plan)
    assert had == [(0, 1), (0, 2), (0, 4), (0, 4)]


def test_the_sum_of_the_worked_example() -> None:
    """Two jobs that ran on four each: two and two add 2(1.1 - 1.5^-.5), four alone 1.1 - 2^-.5: both are served."""
    problem = problem_of(Elastic(speeds=[SPEEDS] * 2, capacity=[4]))
    memory = {"jobs": [[1, 4.0, 1, None], [2, 4.0, 1, None]]}
    plan, _ = Sia().decide(problem, memory)
    assert places_of(problem, plan) == [(0, 2), (0, 2)]
    assert plan.yardstick.objective == pytest.approx(2 * (1.1 - 1.5**-0.5))
    assert plan.yardstick.gap <= 1e-4


def test_the_faster_type_goes_to_whom_it_serves_most() -> None:
    """Goodput is counted against a job's own least configuration: steps of different jobs are never compared."""
    speeds = [{(0, 1): 100.0, (1, 1): 150.0}, {(0, 1): 1.0, (1, 1): 4.0}]
    problem = problem_of(Elastic(speeds=speeds, capacity=[1, 1]))
    assert places_of(problem, Sia().decide(problem, None)[0]) == [(0, 1), (1, 1)]


def test_a_move_counts_less_the_more_restarts_there_were() -> None:
    """At age 1000 s, with restarts of 100 s: after eight of them a fifth more speed no longer moves a job."""
    setting = Elastic(
        speeds=[{(0, 1): 1.0, (1, 1): 1.2}], capacity=[1, 1], running={0: (0, 1)}, restart_s=100.0, at=1000.0
    )
    problem = problem_of(setting)
    where = ["pool-0", 1.0]
    assert places_of(problem, Sia().decide(problem, {"jobs": [[1, 1.0, 9, where]]})[0]) == [(0, 1)]
    assert places_of(problem, Sia(restarts=False).decide(problem, {"jobs": [[1, 1.0, 9, where]]})[0]) == [(1, 1)]
    young = problem_of(replace(setting, at=50.0))
    assert places_of(young, Sia().decide(young, {"jobs": [[1, 1.0, 9, where]]})[0]) == [(1, 1)]


def test_starts_are_counted_when_a_job_is_found_elsewhere() -> None:
    """The memory keeps the most accelerators, the starts, and the place; jobs that have ended are forgotten."""
    problem = problem_of(Elastic(speeds=[SPEEDS, SPEEDS], capacity=[4], running={0: (0, 2)}))
    before = {"jobs": [[1, 1.0, 3, ["pool-0", 1.0]], [7, 4.0, 1, None]]}
    assert Sia().decide(problem, before)[1] == {"jobs": [[1, 2.0, 4, ["pool-0", 2.0]]]}


def test_a_job_that_cannot_be_stopped_stays() -> None:
    """Whatever it might gain elsewhere."""
    problem = problem_of(
        Elastic(speeds=[{(0, 1): 1.0, (1, 1): 9.0}], capacity=[1, 1], running={0: (0, 1)}, pinned=[0], at=10.0)
    )
    assert places_of(problem, Sia().decide(problem, None)[0]) == [(0, 1)]


def test_an_empty_problem_has_an_empty_plan() -> None:
    """Nobody, or nobody who can run."""
    assert len(Sia().decide(problem_of(Elastic(speeds=[], capacity=[4])), None)[0].column) == 0
    problem = problem_of(Elastic(speeds=[{(0, 8): 1.0}], capacity=[4]))
    assert places_of(problem, Sia().decide(problem, None)[0]) == [None]


def test_a_newcomer_is_worth_its_least_gang() -> None:
    """Only with that does a job begin."""
    newcomer = Newcomer(
        steps_per_s=np.array([1.0, 1.5, 4.0]), pool=np.array([0, 0, 1]), count=np.array([1.0, 2.0, 1.0]), weight=2.0,
        capacity=np.array([4.0, 4.0]),
    )  # fmt: skip
    value = Sia().value(newcomer, Quote(np.zeros(2), "", 1.0))
    assert value.tolist() == pytest.approx([0.2, 0.0, 2 * (1.1 - 0.5)])


def test_a_power_of_nought_is_refused() -> None:
    """It would tell nothing from anything."""
    with pytest.raises(ConfigError, match="power"):
        make(PolicySpec("sia", {"power": 0.0}))
