import numpy as np
import pytest
from problems import Setting, build

from optimizer.policies.max_min_fairness import MaxMinFairness
from optimizer.policy import Newcomer, best_configuration_at

AWARE = MaxMinFairness()


def quote_of(setting: Setting):
    return AWARE.decide(build(setting), None)[0].quote


def newcomer(speeds, capacity, *, weight=1.0, count=1.0) -> Newcomer:
    pools = np.arange(len(speeds))
    return Newcomer(np.array(speeds, float), pools, np.full(len(speeds), count), weight, np.array(capacity, float))


def test_free_capacity_costs_nothing_so_the_fastest_place_wins():
    """On an idle fleet every price is 0 and a newcomer takes what is best for it."""
    index, surplus = best_configuration_at(AWARE, newcomer([1, 3], [4, 4]), quote_of(Setting([[1, 1]], [4, 4])))
    assert index == 1
    assert (surplus > 0).all()


def test_a_job_like_the_others_is_admitted_at_their_prices():
    """Worth exactly the price: surplus zero, and admitted to either pool."""
    index, surplus = best_configuration_at(AWARE, newcomer([3, 1], [1, 1]), quote_of(Setting([[3, 1]] * 4, [1, 1])))
    assert index == 0
    assert surplus == pytest.approx([0, 0], abs=1e-9)


def test_prices_send_a_job_where_it_has_the_advantage():
    """A job that gains little from the expensive pool goes to the cheap one, though it is slower there."""
    quote = quote_of(Setting([[9, 1]] * 6, [1, 2]))
    index, surplus = best_configuration_at(AWARE, newcomer([1.2, 1.0], [1, 2]), quote)
    assert index == 1
    assert surplus[0] < 0 < surplus[1]


def test_a_light_job_waits_where_heavy_ones_compete():
    """Worth less than the price everywhere: not admitted before the next solve. A heavy one is."""
    quote = quote_of(Setting([[1]] * 4, [1], weights=[1, 1, 1, 1]))
    assert best_configuration_at(AWARE, newcomer([1], [1], weight=0.5), quote)[0] is None
    assert best_configuration_at(AWARE, newcomer([1], [1], weight=3.0), quote)[0] == 0


def test_what_cannot_run_has_no_value():
    """No speed, or a gang larger than the pool: not chosen, even for free."""
    quote = quote_of(Setting([[1, 1]], [1, 4]))
    assert best_configuration_at(AWARE, newcomer([5, 1], [1, 4], count=2), quote)[0] == 1
    assert best_configuration_at(AWARE, newcomer([0, 0], [1, 4]), quote)[0] is None
    assert best_configuration_at(AWARE, newcomer([], []), quote)[0] is None


def test_an_agnostic_policy_values_accelerators_alike():
    """All places are worth the same to it; the cheaper pool wins."""
    quote = AWARE.decide(build(Setting([[3, 1]] * 4, [1, 1])), None)[0].quote
    index, _ = best_configuration_at(MaxMinFairness(aware=False), newcomer([3, 1], [1, 1]), quote)
    assert index == 1
