import pytest
from problems import Setting, build, rates_of

from optimizer.decision import StageKind
from optimizer.policies.fairness import ProportionalFairness

AWARE = ProportionalFairness()


def test_two_pools_by_hand():
    """u = .4 + 1.2 a against 4/3 - 2/3 a: the product is largest at a = 5/6, where the first has 1.4, the other 7/9."""
    problem = build(Setting([[4, 1], [2, 1]], [1, 1]))
    shares, _ = AWARE.decide(problem, None)
    assert rates_of(problem, shares.x) / [2.5, 1.5] == pytest.approx([1.4, 7 / 9], rel=1e-5)
    assert shares.certificate.objective == pytest.approx((1.4 * 7 / 9) ** 0.5, rel=1e-6)
    assert shares.certificate.gap <= 1e-6


def test_weightless_jobs_take_what_is_left():
    """Nothing while others want it, all of what they cannot use, and the fleet if nobody is entitled."""
    shares, _ = AWARE.decide(build(Setting([[1], [1]], [1], weights=[1, 0])), None)
    assert shares.x == pytest.approx([1, 0], abs=1e-6)
    shares, _ = AWARE.decide(build(Setting([[1], [1]], [2], weights=[1, 0])), None)
    assert shares.x == pytest.approx([1, 1], rel=1e-6)
    assert [stage.kind for stage in shares.stages] == [StageKind.LOG, StageKind.SUM]
    shares, _ = AWARE.decide(build(Setting([[1], [1]], [1], weights=[0, 0])), None)
    assert shares.x.sum() == pytest.approx(1)
