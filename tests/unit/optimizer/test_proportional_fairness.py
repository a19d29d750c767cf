import pytest
from problems import Setting, build, rates_of

from optimizer.decision import StageKind
from optimizer.policies.proportional_fairness import ProportionalFairness

AWARE = ProportionalFairness()


def test_time_is_divided_by_weight():
    """On one pool the largest product gives each its weight's part, however unlike the speeds."""
    problem = build(Setting([[9], [1], [2]], [1], weights=[2, 1, 1]))
    shares, _ = AWARE.decide(problem, None)
    assert shares.x == pytest.approx([0.5, 0.25, 0.25], rel=1e-6)


def test_two_pools_by_hand():
    """u = .4 + 1.2 a against 4/3 - 2/3 a: the product is largest at a = 5/6, where the first has 1.4, the other 7/9."""
    problem = build(Setting([[4, 1], [2, 1]], [1, 1]))
    shares, _ = AWARE.decide(problem, None)
    assert rates_of(problem, shares.x) / [2.5, 1.5] == pytest.approx([1.4, 7 / 9], rel=1e-5)
    assert shares.certificate.objective == pytest.approx((1.4 * 7 / 9) ** 0.5, rel=1e-6)
    assert shares.certificate.gap <= 1e-6


def test_projects_divide_their_weight():
    """Two projects of equal weight have equal halves of one accelerator."""
    problem = build(Setting([[1]] * 3, [1], entity=[0, 1, 1], entity_weights=[1, 1]))
    shares, _ = AWARE.decide(problem, None)
    assert shares.x == pytest.approx([0.5, 0.25, 0.25], rel=1e-6)


def test_weightless_jobs_take_what_is_left():
    """Nothing while others want it, all of what they cannot use, and the fleet if nobody is entitled."""
    shares, _ = AWARE.decide(build(Setting([[1], [1]], [1], weights=[1, 0])), None)
    assert shares.x == pytest.approx([1, 0], abs=1e-6)
    shares, _ = AWARE.decide(build(Setting([[1], [1]], [2], weights=[1, 0])), None)
    assert shares.x == pytest.approx([1, 1], rel=1e-6)
    assert [stage.kind for stage in shares.stages] == [StageKind.LOG, StageKind.SUM]
    shares, _ = AWARE.decide(build(Setting([[1], [1]], [1], weights=[0, 0])), None)
    assert shares.x.sum() == pytest.approx(1)


def test_agnostic_divides_accelerators():
    """Blind to speed, equal weights have equal numbers of accelerators."""
    problem = build(Setting([[9, 1], [1, 1], [1, 5]], [1, 1]))
    shares, _ = ProportionalFairness(aware=False).decide(problem, None)
    assert shares.x.reshape(3, 2).sum(axis=1) == pytest.approx([2 / 3] * 3, rel=1e-6)
