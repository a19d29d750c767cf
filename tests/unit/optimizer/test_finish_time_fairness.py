import json
from dataclasses import replace

import numpy as np
import pytest
from policies import NOW, with_times
from problems import Setting, build, rates_of

from optimizer.decision import Shares, Status
from optimizer.policies.finish_times import FinishTimeFairness
from optimizer.problem import Problem
from optimizer.utility.fair_share import fair_share_utility, finish_time_facts

AWARE = FinishTimeFairness()


def problem_of(setting: Setting, remaining: list[float], since: list[float] | None = None) -> Problem:
    n = len(setting.speeds)
    return with_times(build(setting), remaining, since or [0.0] * n, [None] * n)


def decide(problem: Problem, memory=None) -> tuple[Shares, object]:
    return AWARE.decide(problem, memory)


def test_jobs_that_just_came_have_their_isolated_speed_or_better():
    """Two equal jobs on one accelerator end exactly when they would have ended with half of it each: rho is 1."""
    problem = problem_of(Setting([[2], [2]], [1]), [100, 100])
    shares, _ = decide(problem)
    assert shares.certificate.objective == pytest.approx(1.0)
    assert not shares.certificate.maximise
    assert rates_of(problem, shares.x) == pytest.approx([1, 1])


def test_a_job_that_has_waited_catches_up():
    """t = 100 without a step done: rho = (100 + 100 / r) / 200 against (0 + 100 / (1 - r)) / 200 by hand."""
    problem = problem_of(Setting([[1], [1]], [1]), [100, 100], since=[100, 0])
    memory = {"job": [1, 2], "remaining": [100, 100], "isolated_rate": [0.5, 0.5], "isolated_s": [0.0, 0.0]}
    shares, _ = decide(problem, memory)
    rate = rates_of(problem, shares.x)[0]
    assert 100 + 100 / rate == pytest.approx(100 / (1 - rate))
    assert rate == pytest.approx((1 + np.sqrt(5)) / 2 - 1)  # r^2 + r - 1 = 0


def test_isolated_time_accumulates_over_solves():
    """Steps done since the last solve count at the isolated rate of then; the memory is plain JSON."""
    problem = problem_of(Setting([[2], [2]], [1]), [100, np.inf])
    _, memory = decide(problem)
    memory = json.loads(json.dumps(memory))
    assert memory == {"job": [1, 2], "remaining": [100.0, None], "isolated_rate": [1.0, 1.0], "isolated_s": [0.0, 0.0]}
    later = replace(problem, at=NOW + 50, jobs=replace(problem.jobs, remaining_steps=np.array([40.0, np.inf])))
    times = finish_time_facts(later, fair_share_utility(later, aware=True), memory)
    assert times.isolated_s == pytest.approx([60, 0])
    assert times.past == pytest.approx([50 / (60 + 40), 0])


def test_without_memory_everybody_had_its_part():
    """A policy that starts amid running jobs takes their time so far for time well spent."""
    problem = problem_of(Setting([[1], [1]], [1]), [100, 100], since=[80, 0])
    for memory in (None, {"of": "another policy"}):
        times = finish_time_facts(problem, fair_share_utility(problem, aware=True), memory)
        assert times.isolated_s.tolist() == [80, 0]


def test_a_job_that_came_between_solves_has_done_nothing_alone():
    """Who is not in the memory starts at 0."""
    problem = problem_of(Setting([[1], [1]], [1]), [100, 100], since=[80, 5])
    memory = {"job": [1], "remaining": [120], "isolated_rate": [0.5], "isolated_s": [10.0]}
    times = finish_time_facts(problem, fair_share_utility(problem, aware=True), memory)
    assert times.isolated_s.tolist() == [50, 0]


def test_an_unknown_length_counts_as_endless():
    """rho is the isolated rate over the rate: the limit of jobs ever longer."""
    problem = problem_of(Setting([[4, 1], [1, 4]], [1, 1]), [np.inf, np.inf], since=[70, 0])
    shares, _ = decide(problem)
    assert shares.certificate.objective == pytest.approx(5 / 8)


def test_a_job_that_is_full_does_not_hold_back_the_others():
    """The first job is full at rho 1; the others, crowded elsewhere, still share what there is evenly."""
    problem = problem_of(Setting([[1, None], [None, 1], [None, 1], [None, 1]], [1, 1]), [10, 10, 10, 10])
    shares, _ = decide(problem)
    assert rates_of(problem, shares.x) == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])


def test_jobs_with_nothing_left_ask_for_nothing():
    """Done but not gone: they get what the others leave, and the certificate speaks of the others."""
    problem = problem_of(Setting([[1], [1]], [1]), [0, 100])
    shares, _ = decide(problem)
    assert rates_of(problem, shares.x)[1] == pytest.approx(1)
    only_done = problem_of(Setting([[1]], [1]), [0])
    shares, _ = decide(only_done)
    assert shares.certificate.status is Status.OPTIMAL
    assert shares.certificate.objective == 0


def test_a_mixed_gang_alone_is_compared_with_its_best_part_of_the_fleet():
    """A job without a pool of its own has an isolated rate all the same."""
    problem = problem_of(Setting([[1, 1]], [1, 1], gangs=[2]), [100])
    columns = replace(
        problem.columns, job=np.array([0]), steps_per_s=np.array([3.0]), use_column=np.array([0, 0]),
        use_pool=np.array([0, 1]), use_count=np.array([1.0, 1.0]), running=np.array([False]),
    )  # fmt: skip
    shares, memory = decide(replace(problem, columns=columns))
    assert memory["isolated_rate"] == [3.0]
    assert shares.certificate.objective == pytest.approx(1.0)
