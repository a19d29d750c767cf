"""ElasticFlow: least shares for deadlines, admission, and marginal returns on what is left."""

import numpy as np
from elastic_problems import Elastic, places_of, problem_of

from optimizer.decision import Quote
from optimizer.policies.elasticflow import ElasticFlow
from optimizer.policy import Newcomer

INF = float("inf")
#: Twice the accelerators, 1.5 times the speed; four, 2 times.
SPEEDS = {(0, 1): 1.0, (0, 2): 1.5, (0, 4): 2.0}


def test_a_deadline_gets_the_least_share_that_keeps_it() -> None:
    """150 steps in 100 s need two accelerators; the job without a deadline has one of the others, then both."""
    problem = problem_of(Elastic([SPEEDS, SPEEDS], [4], remaining_steps=[150.0, 1e6], deadline_at=[100.0, INF]))
    plan, memory = ElasticFlow().decide(problem, None)
    assert places_of(problem, plan) == [(0, 2), (0, 2)]
    assert memory == {"admitted": [1], "refused": []}
    assert (plan.yardstick.objective, plan.yardstick.bound) == (1.0, 1.0)


def test_a_share_may_wait_for_those_who_are_due_sooner() -> None:
    """One accelerator: 50 steps due at 60 s, then 50 due at 100 s: both are admitted, the second waits."""
    one = {(0, 1): 1.0}
    problem = problem_of(Elastic([one, one], [1], remaining_steps=[50.0, 50.0], deadline_at=[100.0, 60.0]))
    plan, memory = ElasticFlow().decide(problem, None)
    assert places_of(problem, plan) == [None, (0, 1)]
    assert memory["admitted"] == [1, 2]
    assert plan.rows.tolist() == [1, 0]


def test_a_newcomer_is_refused_if_somebody_admitted_would_be_late() -> None:
    """Though it would be in time itself; later it is not asked again, and runs on what is left."""
    one = {(0, 1): 1.0}
    setting = Elastic([one, one], [1], remaining_steps=[50.0, 50.0], deadline_at=[90.0, 60.0])
    plan, memory = ElasticFlow().decide(problem_of(setting), {"admitted": [1], "refused": []})
    assert memory == {"admitted": [1], "refused": [2]}
    assert places_of(problem_of(setting), plan) == [(0, 1), None]
    room = Elastic([one, one], [2], remaining_steps=[50.0, 50.0], deadline_at=[90.0, 60.0])
    plan, again = ElasticFlow().decide(problem_of(room), memory)
    assert again == memory
    assert places_of(problem_of(room), plan) == [(0, 1), (0, 1)]


def test_an_admitted_job_that_is_late_is_served_as_soon_as_can_be() -> None:
    """A promise that cannot be kept any more is not dropped."""
    problem = problem_of(Elastic([SPEEDS], [4], remaining_steps=[1000.0], deadline_at=[10.0]))
    plan, memory = ElasticFlow().decide(problem, {"admitted": [1], "refused": []})
    assert places_of(problem, plan) == [(0, 4)]
    assert memory["admitted"] == [1]
    assert plan.yardstick.objective == 0.0


def test_what_is_left_goes_where_it_returns_most() -> None:
    """A job that scales well takes the fourth and the third accelerator before one that hardly gains."""
    well, badly = {(0, 1): 1.0, (0, 3): 2.9}, {(0, 1): 1.0, (0, 3): 1.1}
    problem = problem_of(Elastic([badly, well], [4]))
    assert places_of(problem, ElasticFlow().decide(problem, None)[0]) == [(0, 1), (0, 3)]


def test_a_start_counts_against_the_deadline() -> None:
    """100 steps in 100 s on one accelerator: only for a job that runs there."""
    setting = Elastic([SPEEDS], [1], remaining_steps=[100.0], deadline_at=[100.0], restart_s=20.0)
    assert ElasticFlow().decide(problem_of(setting), None)[1]["refused"] == [1]
    runs = Elastic([SPEEDS], [1], remaining_steps=[100.0], deadline_at=[100.0], restart_s=20.0, running={0: (0, 1)})
    assert ElasticFlow().decide(problem_of(runs), None)[1]["admitted"] == [1]


def test_of_too_many_newcomers_some_are_judged_next_time() -> None:
    """They are neither admitted nor refused before the next decision; the first to come are the first admitted."""
    one = {(0, 1): 1.0}
    problem = problem_of(Elastic([one] * 40, [2], remaining_steps=[50.0] * 40, deadline_at=[120.0] * 40))
    memory = ElasticFlow().decide(problem, None)[1]
    assert memory["admitted"] == [1, 2, 3, 4]
    assert memory["refused"] == list(range(5, 5 + len(memory["refused"])))
    assert 0 < len(memory["refused"]) < 36
    for _ in range(2):
        memory = ElasticFlow().decide(problem, memory)[1]
    assert memory == {"admitted": [1, 2, 3, 4], "refused": list(range(5, 41))}


def test_a_newcomer_is_worth_its_relative_speed() -> None:
    """In units of its best accelerator."""
    newcomer = Newcomer(np.array([1.0, 1.5]), np.array([0, 0]), np.array([1.0, 2.0]), 1.0, np.array([4.0]))
    assert ElasticFlow().value(newcomer, Quote(np.zeros(1), "", 1.0)).tolist() == [1.0, 1.5]
