"""The policy walras and elastic jobs: growth at prices, restarts in the choice, and the guard."""

from dataclasses import replace

import numpy as np
import pytest
from elastic_problems import Elastic, places_of, problem_of

from optimizer.assignment.remaining_time import (
    _most_thrifty,
    best_rates_of,
    modest_columns,
    reference_configurations,
)
from optimizer.policies.walras import Walras
from optimizer.policy import Newcomer
from optimizer.problem import Problem

#: Twice the accelerators, 1.8 times the goodput; four, 3 times; eight, 4 times.
SPEEDS = {(0, 1): 1.0, (0, 2): 1.8, (0, 4): 3.0, (0, 8): 4.0}


def places(setting: Elastic) -> list[tuple[int, int] | None]:
    problem = problem_of(setting)
    return places_of(problem, Walras().decide(problem, None)[0])


def test_a_job_alone_grows_to_where_it_is_fastest() -> None:
    """What nobody else wants costs nothing."""
    assert places(Elastic([SPEEDS], [8], remaining_steps=[1e4])) == [(0, 8)]


def test_a_job_does_not_grow_where_it_gains_nothing() -> None:
    """More accelerators that make no more steps are worth nothing."""
    assert places(Elastic([{(0, 1): 1.0, (0, 4): 3.0, (0, 8): 2.9}], [8], remaining_steps=[1e4])) == [(0, 4)]


def test_a_job_shrinks_when_another_arrives() -> None:
    """It ran on all; its like comes, and each has half."""
    alone = Elastic([SPEEDS], [8], remaining_steps=[1e4], running={0: (0, 8)}, restart_s=30.0)
    assert places(alone) == [(0, 8)]
    both = replace(alone, speeds=[SPEEDS] * 2, remaining_steps=[1e4] * 2)
    assert places(both) == [(0, 4), (0, 4)]


def test_many_jobs_have_their_least_gangs() -> None:
    """Nobody waits while everybody could have one."""
    assert places(Elastic([SPEEDS] * 8, [8], remaining_steps=[1e4] * 8)) == [(0, 1)] * 8


def test_who_scales_better_gets_more() -> None:
    """The next accelerators go to where they add most."""
    badly = {(0, 1): 1.0, (0, 2): 1.05, (0, 4): 1.1}
    found = places(Elastic([badly, SPEEDS], [5], remaining_steps=[1e4] * 2))
    assert found == [(0, 1), (0, 4)]


def test_one_that_can_only_have_one_does_not_wait_for_those_who_grow() -> None:
    """A rigid job is worth as much as the least gang of an elastic one of its length."""
    found = places(Elastic([SPEEDS, {(0, 1): 1.0}], [8], remaining_steps=[1e4] * 2, running={0: (0, 8)}))
    assert found == [(0, 4), (0, 1)]


def test_a_job_nearly_through_does_not_pay_for_a_restart() -> None:
    """Growing from one to two would end it sooner only if it had longer to go."""
    setting = Elastic([{(0, 1): 1.0, (0, 2): 1.8}], [2], running={0: (0, 1)}, restart_s=60.0, remaining_steps=[100.0])
    assert places(setting) == [(0, 1)]
    assert places(replace(setting, remaining_steps=[1e4])) == [(0, 2)]


def test_lengths_that_nobody_knows_are_measured_in_the_least_gang() -> None:
    """Two jobs, one of which has had much: the newcomer counts as shorter and gets the only place."""
    problem = problem_of(Elastic([SPEEDS] * 2, [1], at=1e5))
    problem = replace(problem, jobs=replace(problem.jobs, done_steps=np.array([5e4, 0.0])))
    assert places_of(problem, Walras().decide(problem, None)[0]) == [None, (0, 1)]


def test_the_reference_is_the_most_efficient_configuration() -> None:
    """Most steps per accelerator, the fewest accelerators among equals; of a rigid job the fastest."""
    efficient = {(0, 1): 1.0, (0, 2): 2.0, (0, 8): 6.0, (1, 1): 0.5}
    problem = problem_of(Elastic([efficient, {(0, 1): 1.0, (1, 1): 3.0}], [8, 1]))
    reference = reference_configurations(problem)
    assert reference.elastic.tolist() == [True, False]
    assert reference.rate.tolist() == [1.0, 3.0]
    assert reference.size[0] == 1.0


def test_of_equally_efficient_configurations_the_reference_is_the_smallest() -> None:
    """As if the columns of each job were sorted by steps per accelerator-second, then by size."""
    random = np.random.default_rng(4)
    for _ in range(30):
        job = np.sort(random.integers(0, 8, 40))
        size, each = random.choice([1.0, 2.0, 4.0], 40), random.choice([0.5, 1.0, 1.5], 40)
        order = np.lexsort((size, -each, job))
        wanted = order[np.unique(job[order], return_index=True)[1]]
        np.testing.assert_array_equal(_most_thrifty(job, each, size), wanted)


def test_rigid_jobs_are_measured_as_if_there_were_no_elastic_ones() -> None:
    """Two counts on two types do not make a job elastic."""
    problem = problem_of(Elastic([{(0, 1): 1.0, (1, 2): 3.0}], [1, 2]))
    reference = reference_configurations(problem)
    assert not reference.elastic.any()
    assert np.array_equal(reference.rate, best_rates_of(problem))
    assert modest_columns(problem, reference).all()


def test_an_overdue_job_is_not_given_more_than_its_part() -> None:
    """It has waited ten times its length: first it is served, but no larger than an equal part of the fleet."""
    setting = Elastic([SPEEDS] * 4, [8], remaining_steps=[100.0] * 4, at=1000.0)
    late = problem_of(replace(setting, submitted_at=[0.0, 999.0, 999.0, 999.0]))
    plan, memory = Walras().decide(late, None)
    assert memory == {"overdue": [1], "urgent": [1]}
    assert plan.rows.tolist()[0] == 0
    assert places_of(late, plan) == [(0, 2)] * 4


def test_a_newcomer_is_worth_more_the_faster_it_would_run() -> None:
    """By the root of its speed, against what it is worth in its most efficient configuration."""
    newcomer = Newcomer(
        np.array([1.0, 1.8]), np.array([0, 0]), np.array([1.0, 2.0]), 1.0, np.array([4.0]), remaining_steps=1e4
    )
    plan, _ = Walras().decide(_one(), None)
    value = Walras().value(newcomer, plan.quote)
    assert value[1] == pytest.approx(value[0] * 1.8**0.5)


def _one() -> Problem:
    return problem_of(Elastic([SPEEDS], [8], remaining_steps=[1e4]))
