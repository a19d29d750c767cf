"""Throughput, plain and per dollar, and cost with deadlines, by hand."""

import numpy as np
import pytest
from policies import with_times
from problems import Setting, build, rates_of, shares_of

from optimizer.check.certificate import check_decision
from optimizer.decision import Shares, Status
from optimizer.policies.throughput import CostWithSlos, Throughput, ThroughputPerDollar, prices_or_default
from optimizer.policy import PolicySpec
from optimizer.problem import Problem


def test_the_fast_pool_goes_to_whom_it_helps_most():
    """u = 1.6 + .4 against 4/3 + 2/3: the first job on the first pool gives 1.6 + 2/3, the most."""
    problem = build(Setting([[4, 1], [2, 1]], [1, 1]))
    shares, memory = Throughput().decide(problem, None)
    assert memory is None
    assert shares_of(problem, shares.x) == pytest.approx(np.eye(2))
    assert shares.certificate.objective == pytest.approx(1.6 + 2 / 3)
    assert shares.certificate.bound == pytest.approx(1.6 + 2 / 3)


def test_nobody_is_promised_anything():
    """One accelerator goes to the heavier of two jobs, whole; its price is what the other would have paid or more."""
    problem = build(Setting([[1], [1]], [1], weights=[2, 1]))
    shares, _ = Throughput().decide(problem, None)
    assert shares.x == pytest.approx([1, 0])
    assert 1 <= shares.quote.prices[0] <= 2
    assert shares.quote.exchange == 1


def test_plain_steps_favour_short_steps():
    """Un-normalised, the job that counts its work in small steps takes all; normalised, both are the same."""
    setting = Setting([[100], [1]], [1], weights=[1, 1.5])
    shares, _ = Throughput(normalised=False).decide(build(setting), None)
    assert shares.x == pytest.approx([1, 0])
    assert shares.quote.unit == "weighted steps/s per accelerator"
    shares, _ = Throughput().decide(build(setting), None)
    assert shares.x == pytest.approx([0, 1])


def test_agnostic_fills_accelerators():
    """Blind to speed, the sum is one of accelerators in use."""
    problem = build(Setting([[4, 1], [2, 1]], [1, 1]))
    shares, _ = Throughput(aware=False).decide(problem, None)
    assert shares.certificate.objective == pytest.approx(2)


def test_jobs_without_weight_add_nothing_and_get_nothing():
    """Even where there is room, and even if nobody has any weight."""
    problem = build(Setting([[1], [1]], [2], weights=[1, 0]))
    shares, _ = Throughput().decide(problem, None)
    assert rates_of(problem, shares.x) == pytest.approx([1, 0])
    assert shares.unplaceable.size == 0
    shares, _ = Throughput().decide(build(Setting([[1]], [1], weights=[0])), None)
    assert shares.x.tolist() == [0]
    assert shares.certificate.objective == shares.certificate.bound == 0


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


def decide(
    setting: Setting, remaining: list[float], left: list[float | None], **parameters: object
) -> tuple[Problem, Shares]:
    problem = with_times(build(setting), remaining, [0.0] * len(remaining), left)
    shares, _ = CostWithSlos(**parameters).decide(problem, None)
    assert check_decision(problem, PolicySpec("cost_with_slos", parameters), shares).complaints == ()
    return problem, shares


def test_a_deadline_takes_what_it_needs_and_no_more():
    """100 steps in 200 s are half a step per second, though the other job is worth twice as much."""
    problem, shares = decide(Setting([[1], [1]], [1], weights=[1, 2]), [100, 100], [200, None])
    assert rates_of(problem, shares.x) == pytest.approx([0.5, 0.5])
    assert shares.relaxed.size == 0


def test_the_least_money_runs_only_what_a_deadline_needs():
    """Cheap and slow does for the deadline; the job without one waits."""
    setting = Setting([[2, 1], [2, 1]], [1, 1], usd_per_h=[5, 1])
    problem, shares = decide(setting, [100, 100], [200, None], goal="cost")
    assert rates_of(problem, shares.x) == pytest.approx([0.5, 0])
    assert shares.certificate.objective == pytest.approx(0.5)
    assert not shares.certificate.maximise


def test_a_deadline_that_cannot_be_met_is_given_up_alone():
    """Past, too near, or of unknown length: the job is listed, and the other's deadline is held."""
    setting = Setting([[1]] * 4, [1], weights=[9, 9, 9, 1])
    problem, shares = decide(setting, [100, 100, np.inf, 100], [-5, 50, 500, 125])
    assert shares.relaxed.tolist() == [0, 1, 2]
    assert rates_of(problem, shares.x)[3] == pytest.approx(0.8)


def test_deadlines_that_are_too_much_together_keep_the_largest_part():
    """Two of three fit (.5 + .5 of one accelerator); one job is short, the others are not."""
    problem, shares = decide(Setting([[1], [1], [1]], [1], weights=[1, 2, 3]), [100] * 3, [200, 200, 190])
    assert len(shares.relaxed) == 1
    held = np.delete(rates_of(problem, shares.x), shares.relaxed)
    needed = np.delete(np.array([0.5, 0.5, 100 / 190]), shares.relaxed)
    assert (held >= needed * (1 - 1e-6)).all()
    assert shares.certificate.status is Status.OPTIMAL


def test_a_job_that_is_done_has_no_deadline():
    """Nothing left to do is no promise broken."""
    _, shares = decide(Setting([[1]], [1]), [0], [-5])
    assert shares.relaxed.size == 0


def test_no_deadlines_at_all_is_throughput_per_dollar():
    """Or, where the least money is sought, nothing."""
    problem, shares = decide(Setting([[1], [2]], [1]), [100, 100], [None, None])
    assert rates_of(problem, shares.x).sum() > 0
    problem, shares = decide(Setting([[1], [2]], [1]), [100, 100], [None, None], goal="cost")
    assert not shares.x.any()
    assert shares.certificate.objective == 0
