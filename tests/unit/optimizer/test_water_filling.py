import pytest
from problems import Setting, build, shares_of

from optimizer.decision import Shares, Status
from optimizer.policies.max_min_fairness import WaterFilling
from optimizer.problem import Problem


def decide(setting: Setting, *, aware: bool = True) -> tuple[Problem, Shares]:
    problem = build(setting)
    return problem, WaterFilling(aware=aware).decide(problem, None)[0]


def test_what_a_level_leaves_is_levelled_again():
    """Three jobs crowd one pool, two others share the other one, and each level states its prices."""
    _, shares = decide(Setting([[1, None]] * 3 + [[None, 1]] * 4, [1, 2]))
    assert shares.x == pytest.approx([1 / 3] * 3 + [1 / 2] * 4)
    assert len(shares.stages) == 2
    assert shares.certificate.status is Status.OPTIMAL


def test_agnostic_counts_accelerators():
    """With all speeds taken for equal, three jobs on two unlike pools have 2/3 of an accelerator each."""
    problem, shares = decide(Setting([[9, 1], [1, 1], [1, 1]], [1, 1]), aware=False)
    assert shares_of(problem, shares.x).sum(axis=1) == pytest.approx([2 / 3] * 3)


@pytest.mark.parametrize("setting", [Setting([], [4]), Setting([[1]], [0]), Setting([[None]], [1])])
def test_nothing_to_decide_is_an_answer(setting: Setting):
    """An empty problem ends in a certificate that says so."""
    _, shares = decide(setting)
    assert shares.certificate.status is Status.EMPTY
