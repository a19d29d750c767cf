from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build

from optimizer.certificate import check
from optimizer.decision import Shares
from optimizer.policies.isolated import Isolated
from optimizer.policies.max_min_fairness import MaxMinFairness
from optimizer.policy import PolicySpec

SPEC = PolicySpec("max_min_fairness")
#: Scarce, in two levels, with a gang, weights and projects; and one with room for everybody.
SCARCE = build(
    Setting(
        [[4, 2, None], [3, 2.5, None], [2, 2, None], [None, None, 1], [None, None, 3], [5, 1, 0], [4, 2, None]],
        [2, 1, 1],
        gangs=[1, 1, 1, 1, 1, 2, 1],
        weights=[1, 2, 1, 1, 1, 1, 1],
        entity=[0, 0, 1, 1, 1, 0, 0],
        entity_weights=[2, 1],
    )
)
IDLE = build(Setting([[4, 2], [1, 3]], [3, 3]))
PROBLEMS = pytest.mark.parametrize("problem", [SCARCE, IDLE], ids=["scarce", "idle"])


def solve(problem) -> Shares:
    return MaxMinFairness().decide(problem, None)[0]


@PROBLEMS
@pytest.mark.parametrize("aware", [True, False])
def test_an_honest_answer_holds(problem, aware: bool):
    """What the policy states is what the checker finds."""
    shares, _ = MaxMinFairness(aware=aware).decide(problem, None)
    checked = check(problem, PolicySpec("max_min_fairness", {"aware": aware}), shares)
    assert checked.complaints == ()
    assert checked.holds
    assert checked.gap <= 1e-6
    assert checked.violation <= 1e-9


@PROBLEMS
@pytest.mark.parametrize("factor", [1.01, 0.99])
def test_shares_off_by_one_percent_are_noticed(problem, factor: float):
    """Too much breaks a constraint or the stated objective, too little the objective."""
    shares = solve(problem)
    assert not check(problem, SPEC, replace(shares, x=shares.x * factor)).holds


def test_a_single_share_off_by_one_percent_is_noticed():
    """Whichever job it is."""
    shares = solve(SCARCE)
    for column in np.flatnonzero(shares.x > 1e-6):
        x = shares.x.copy()
        x[column] *= 1.01
        assert not check(SCARCE, SPEC, replace(shares, x=x)).holds, column


def test_a_halved_price_is_noticed():
    """In the quote, and in the proof of whichever stage."""
    shares = solve(SCARCE)
    for pool in np.flatnonzero(shares.quote.prices > 0):
        prices = shares.quote.prices.copy()
        prices[pool] /= 2
        assert not check(SCARCE, SPEC, replace(shares, quote=replace(shares.quote, prices=prices))).holds, pool
    for index, stage in enumerate(shares.stages):
        for pool in np.flatnonzero(stage.prices > 1e-9):
            prices = stage.prices.copy()
            prices[pool] /= 2
            stages = list(shares.stages)
            stages[index] = replace(stage, prices=prices)
            assert not check(SCARCE, SPEC, replace(shares, stages=tuple(stages))).holds, (index, pool)


def test_swapped_rows_are_noticed():
    """The shares of two jobs that differ, exchanged."""
    shares = solve(SCARCE)
    for one, other in [(0, 1), (0, 2), (1, 2), (3, 4), (2, 5)]:
        first, second = (np.flatnonzero(SCARCE.columns.job == job) for job in (one, other))
        if len(first) != len(second) or np.allclose(shares.x[first], shares.x[second]):
            continue
        x = shares.x.copy()
        x[first], x[second] = shares.x[second], shares.x[first]
        assert not check(SCARCE, SPEC, replace(shares, x=x)).holds, (one, other)


@PROBLEMS
@pytest.mark.parametrize("factor", [1 - 1e-3, 1 + 1e-3])
def test_a_moved_bound_is_noticed(problem, factor: float):
    """In the certificate, and in the stage that it comes from."""
    shares = solve(problem)
    moved = replace(shares.certificate, bound=shares.certificate.bound * factor)
    assert not check(problem, SPEC, replace(shares, certificate=moved)).holds
    stage = replace(shares.stages[0], bound=shares.stages[0].bound * factor)
    assert not check(problem, SPEC, replace(shares, stages=(stage, *shares.stages[1:]), certificate=moved)).holds


@pytest.mark.parametrize("name", ["objective", "gap", "violation"])
def test_any_other_false_number_is_noticed(name: str):
    """Objective and gap are recomputed; a violation may not be understated."""
    shares = solve(SCARCE)
    wrong = {"objective": shares.certificate.objective * 0.999, "gap": 0.01, "violation": -1e-6}[name]
    assert not check(SCARCE, SPEC, replace(shares, certificate=replace(shares.certificate, **{name: wrong}))).holds


def test_doctored_stages_are_noticed():
    """Jobs left out of a level, floors raised or dropped, duals negative, surpluses and listings false."""
    shares = solve(SCARCE)
    assert len(shares.stages) == 2
    first, last = shares.stages
    active = first.active.copy()
    active[0] = False
    for stages in (
        (replace(first, active=active), last),
        (first, replace(last, floor=last.floor * 0.9)),
        (first, replace(last, floor=last.floor + 0.01)),
        (first, replace(last, cap=last.cap * 1.1)),
        (replace(first, multiplier=-first.multiplier), last),
        (replace(first, multiplier=first.multiplier * np.linspace(1, 2, len(first.multiplier))), last),
        (first,),
    ):
        assert not check(SCARCE, SPEC, replace(shares, stages=stages)).holds
    assert not check(SCARCE, SPEC, replace(shares, surplus=shares.surplus + 0.1)).holds
    assert not check(SCARCE, SPEC, replace(shares, unplaceable=np.array([1]))).holds
    assert not check(SCARCE, SPEC, replace(shares, quote=replace(shares.quote, exchange=2.0))).holds


def test_an_answer_to_another_question_is_noticed():
    """Aware shares do not pass for agnostic ones, nor does an empty answer where something can run."""
    shares = solve(SCARCE)
    assert not check(SCARCE, PolicySpec("max_min_fairness", {"aware": False}), shares).holds
    empty = solve(build(Setting([[None]] * 7, [2, 1, 1])))
    nothing = replace(empty, x=np.zeros(len(SCARCE.columns)), unplaceable=np.zeros(0, dtype=np.int64))
    assert not check(SCARCE, SPEC, nothing).holds


def test_isolated_is_held_to_its_formula():
    """The right shares pass; other shares, or a bound below what they reach, do not."""
    shares, _ = Isolated().decide(SCARCE, None)
    spec = PolicySpec("isolated")
    assert check(SCARCE, spec, shares).complaints == ()
    assert not check(SCARCE, spec, replace(shares, x=shares.x * 0.99)).holds
    low = replace(shares.certificate, bound=shares.certificate.objective * 0.5)
    assert not check(SCARCE, spec, replace(shares, certificate=low)).holds
