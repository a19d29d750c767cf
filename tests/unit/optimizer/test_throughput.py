import numpy as np
import pytest
from problems import Setting, build, rates_of, shares_of

from optimizer.policies.throughput import Throughput


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
