"""What must hold of every allocation problem, whatever it looks like."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build, rates_of
from strategies_problems import settings_of_problems

from optimizer.answer import answer_problem
from optimizer.check.certificate import check_decision
from optimizer.decision import Shares
from optimizer.policies.fairness import Isolated, MaxMinFairness
from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from optimizer.utility.fair_share import fair_share_utility, max_min_level

AWARE = MaxMinFairness()
pytestmark = pytest.mark.filterwarnings("error")
EXAMPLES = settings(max_examples=60, deadline=None)


def decide(problem: Problem, policy: MaxMinFairness = AWARE) -> Shares:
    return policy.decide(problem, None)[0]


@EXAMPLES
@given(settings_of_problems(), st.booleans())
def test_every_answer_is_feasible_certified_and_checked(setting: Setting, aware: bool):
    """Capacity and time are respected to 1e-9, the gap is at most 1e-6, and the independent checker agrees."""
    problem = build(setting)
    shares = decide(problem, MaxMinFairness(aware=aware))
    assert shares.certificate.violation <= 1e-9
    assert shares.certificate.gap <= 1e-6
    assert check_decision(problem, PolicySpec("max_min_fairness", {"aware": aware}), shares).complaints == ()


@EXAMPLES
@given(settings_of_problems(projects=False), st.randoms(use_true_random=False))
def test_the_order_of_jobs_does_not_matter(setting: Setting, random):
    """Permuted jobs get the same rates, permuted."""
    order = list(range(len(setting.speeds)))
    random.shuffle(order)
    permuted = replace(
        setting, speeds=[setting.speeds[j] for j in order], gangs=[setting.gangs[j] for j in order],
        weights=[setting.weights[j] for j in order],
    )  # fmt: skip
    first, second = build(setting), build(permuted)
    one, other = decide(first), decide(second)
    assert other.certificate.objective == pytest.approx(one.certificate.objective, rel=1e-6)
    assert rates_of(second, other.x) == pytest.approx(rates_of(first, one.x)[order], rel=1e-5, abs=1e-7)


@EXAMPLES
@given(settings_of_problems(), st.lists(st.floats(0.01, 100), min_size=8, max_size=8))
def test_units_of_work_do_not_matter(setting: Setting, factors: list[float]):
    """Counting a job's steps in another unit changes its rate by that factor, and nothing else."""
    scaled = replace(
        setting,
        speeds=[[None if s is None else s * f for s in row] for row, f in zip(setting.speeds, factors, strict=False)],
    )
    first, second = build(setting), build(scaled)
    one, other = decide(first), decide(second)
    assert other.certificate.objective == pytest.approx(one.certificate.objective, rel=1e-6)
    factor = np.array(factors[: len(setting.speeds)])
    assert rates_of(second, other.x) == pytest.approx(factor * rates_of(first, one.x), rel=1e-5, abs=1e-6)


@EXAMPLES
@given(settings_of_problems(projects=False))
def test_splitting_a_class_changes_nothing(setting: Setting):
    """Jobs that are equal but for 1e-8 of their weight are solved one by one, to the same objective."""
    distinct = replace(setting, weights=[w * (1 + 1e-8 * j) for j, w in enumerate(setting.weights)])
    together, apart = decide(build(setting)), decide(build(distinct))
    assert apart.certificate.objective == pytest.approx(together.certificate.objective, rel=2e-6)


@EXAMPLES
@given(settings_of_problems())
def test_knowing_speeds_never_hurts_the_worst_off(setting: Setting):
    """In the aware objective, aware is at least as good as agnostic."""
    problem = build(setting)
    aware, agnostic = decide(problem), decide(problem, MaxMinFairness(aware=False))
    utility = fair_share_utility(problem, aware=True)
    gained = np.bincount(problem.columns.job, weights=utility.worth * agnostic.x, minlength=len(problem.jobs))
    reached = max_min_level(gained, utility.weight, utility.best) if utility.usable.any() else 0.0
    assert reached <= aware.certificate.bound * (1 + 1e-6)


@EXAMPLES
@given(settings_of_problems(), st.integers(1, 5))
def test_a_pool_that_nobody_can_use_changes_no_rate(setting: Setting, size: int):
    """It is in the equal split, so all levels rise alike, and every job runs as before."""
    wider = replace(setting, speeds=[[*row, 0.0] for row in setting.speeds], capacity=[*setting.capacity, float(size)])
    first, second = build(setting), build(wider)
    one, other = decide(first), decide(second)
    assert rates_of(second, other.x) == pytest.approx(rates_of(first, one.x), rel=1e-5, abs=1e-6)


@EXAMPLES
@given(settings_of_problems(whole=True, single=True, projects=False, max_jobs=12))
def test_sharing_is_no_worse_than_an_isolated_part(setting: Setting):
    """Sharing incentive: with as many jobs as accelerators or more, nobody does better with 1/M of every pool."""
    problem = build(setting)
    if len(problem.jobs) < problem.pools.capacity.sum():
        return
    alone, _ = Isolated().decide(problem, None)
    assert (rates_of(problem, decide(problem).x) >= rates_of(problem, alone.x) * (1 - 1e-6)).all()


@settings(max_examples=30, deadline=None)
@given(settings_of_problems(), st.floats(0, 5), st.data())
def test_rentals_stay_within_quota_and_pay_for_themselves(setting: Setting, delay: float, data: st.DataObject):
    """Machines are whole, within the quota, no worse than renting nothing, and the shares check out."""
    pools = len(setting.capacity)
    numbers = st.lists(st.integers(0, 3), min_size=pools, max_size=pools)
    setting = replace(
        setting,
        rentable=[float(count) for count in data.draw(numbers)],
        usd_per_h=[0.5 + price for price in data.draw(numbers)],
    )
    problem = build(setting)
    shares, _, rental = answer_problem(AWARE, problem, None, delay)
    assert check_decision(problem, PolicySpec("max_min_fairness"), shares).complaints == ()
    if rental is not None:
        assert (rental.machines >= 0).all()
        assert (rental.accelerators <= problem.pools.rentable).all()
        assert (shares.rent == rental.accelerators).all()
        assert rental.net_usd_per_h <= rental.bound_usd_per_h + 1e-6
        assert rental.net_usd_per_h >= -1e-9
