import numpy as np
import pytest
from problems import Setting, build, shares_of

from optimizer.answer import answer_problem, rank_jobs
from optimizer.decision import Status
from optimizer.policies.fairness import Isolated, MaxMinFairness
from optimizer.policies.queue_orders import Fifo
from optimizer.policy import Newcomer


def test_isolated_gives_an_equal_part_of_every_pool():
    """x = N / (M s), and a job that would exceed all its time is brought down to it."""
    problem = build(Setting([[4, 1], [1, 1], [2, 1]], [3, 1.5], gangs=[1, 2, 1]))
    shares, _ = Isolated().decide(problem, None)
    assert shares_of(problem, shares.x) == pytest.approx(np.array([[2 / 3, 1 / 3], [1 / 2, 0], [2 / 3, 1 / 3]]))
    assert shares.certificate.violation == 0


def test_isolated_states_its_distance_to_what_is_possible():
    """It seeks no optimum: status `defined`, and the bound is what max-min fairness proves."""
    problem = build(Setting([[4, 1], [1, 1.2], [3, 1]] * 2, [1, 1]))
    shares, _ = Isolated().decide(problem, None)
    best, _ = MaxMinFairness().decide(problem, None)
    assert shares.certificate.status is Status.DEFINED
    assert shares.certificate.bound == pytest.approx(best.certificate.bound)
    assert shares.certificate.objective < best.certificate.objective
    assert 0 < shares.certificate.gap < 1


def test_isolated_sends_a_newcomer_where_it_is_fastest():
    """Without prices, value is speed."""
    newcomer = Newcomer(np.array([1.0, 4.0]), np.array([0, 1]), np.ones(2), 1.0, np.ones(2))
    shares, _ = Isolated().decide(build(Setting([[1, 1]], [1, 1])), None)
    assert Isolated().value(newcomer, shares.quote).tolist() == [0.25, 1.0]


def test_isolated_has_nothing_to_decide_without_columns():
    """An empty problem is an empty answer."""
    shares, _ = Isolated().decide(build(Setting([[None]], [1])), None)
    assert shares.certificate.status is Status.EMPTY


def test_fifo_ranks_by_submission_then_number():
    """The earlier first; of two at the same instant, the lower number."""
    problem = build(Setting([[1, 2]] * 4, [1, 1], submitted_at=[5, 3, 5, 1]))
    order, memory, rental = answer_problem(Fifo(), problem, None, 0.0)
    assert order.rows == (3, 1, 0, 2)
    assert memory is None
    assert rental is None
    assert not Fifo().preemptive


def test_an_aware_order_prefers_speed_and_a_blind_one_the_first_pool():
    """Preference ranks a job's configurations, higher first."""
    problem = build(Setting([[1, 2]], [1, 1]))
    assert np.argmax(rank_jobs(Fifo(), problem).preference) == 1
    assert np.argmax(rank_jobs(Fifo(aware=False), problem).preference) == 0


def test_an_order_of_nothing_is_empty():
    """No jobs, no order."""
    assert rank_jobs(Fifo(), build(Setting([], []))).rows == ()
