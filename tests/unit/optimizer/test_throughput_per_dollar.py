import numpy as np
import pytest
from problems import Setting, build, shares_of

from optimizer.policies.throughput import ThroughputPerDollar, prices_or_default


def test_a_slow_cheap_pool_can_be_worth_more_than_a_fast_dear_one():
    """Twice as fast for four times the money: the only job goes to the cheap pool."""
    problem = build(Setting([[2, 1]], [1, 1], usd_per_h=[4, 1]))
    shares, _ = ThroughputPerDollar(normalised=False).decide(problem, None)
    assert shares_of(problem, shares.x) == pytest.approx(np.array([[0, 1]]))
    assert shares.certificate.objective == pytest.approx(1)


def test_the_price_of_a_gang_is_that_of_all_its_accelerators():
    """Gavel's sum divides by the price of one; here a gang of four at 8 steps/s for 4 USD/h is worth 2."""
    problem = build(Setting([[8]], [4], gangs=[4], usd_per_h=[1]))
    shares, _ = ThroughputPerDollar(normalised=False).decide(problem, None)
    assert shares.certificate.objective == pytest.approx(2)


def test_free_accelerators_count_at_the_lowest_price():
    """What is owned is as good as the cheapest for sale, never infinitely good; the number can be set."""
    assert prices_or_default(np.array([0.0, 3.0, 2.0]), None).tolist() == [2, 3, 2]
    assert prices_or_default(np.array([0.0, 3.0]), 0.5).tolist() == [0.5, 3]
    assert prices_or_default(np.zeros(2), None).tolist() == [1, 1]
    problem = build(Setting([[5, 3]], [1, 1], usd_per_h=[2, 0]))
    shares, _ = ThroughputPerDollar().decide(problem, None)
    assert shares_of(problem, shares.x) == pytest.approx(np.array([[1, 0]]))
    shares, _ = ThroughputPerDollar(free_usd_per_h=0.1).decide(problem, None)
    assert shares_of(problem, shares.x) == pytest.approx(np.array([[0, 1]]))
