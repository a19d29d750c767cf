"""Deciding about distinct jobs with counts is deciding about the jobs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build
from strategies_problems import settings_of_problems

from optimizer.answer import answer
from optimizer.certificate import check
from optimizer.decision import Shares
from optimizer.market.distinct import distinct_jobs
from optimizer.policy import PolicySpec, SharePolicy, TellsApart
from optimizer.registry import make, names

POLICIES = [name for name in names() if isinstance(make(PolicySpec(name)), TellsApart)]


def test_the_policies_that_can_do_so():
    """Most of the linear family."""
    assert {"max_min_fairness", "throughput", "water_filling"} <= set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(setting=settings_of_problems(max_jobs=12), deadline=st.sampled_from([np.inf, 3600.0]))
def test_equal_jobs_are_decided_about_once(name: str, setting: Setting, deadline: float):
    """Objective, bound, prices, rates and surpluses are those of a decision about every job; the checker agrees."""
    policy = make(PolicySpec(name))
    assert isinstance(policy, SharePolicy)
    problem = build(setting)
    n = len(problem.jobs)
    problem = replace(
        problem,
        jobs=replace(problem.jobs, remaining_steps=np.full(n, 900.0), deadline_at=np.full(n, deadline)),
        pools=replace(problem.pools, usd_per_h=np.arange(1.0, 1.0 + len(problem.pools))),
    )
    each, _ = policy.decide(problem, None)
    once, _, _ = answer(policy, problem, None, 0.0)
    assert isinstance(once, Shares)
    assert once.certificate.objective == pytest.approx(each.certificate.objective, rel=1e-6, abs=1e-9)
    assert once.certificate.bound == pytest.approx(each.certificate.bound, rel=1e-6, abs=1e-9)
    assert once.unplaceable.tolist() == each.unplaceable.tolist()
    assert once.relaxed.tolist() == each.relaxed.tolist()
    assert once.certificate.violation <= 1e-9
    assert check(problem, PolicySpec(name), once).complaints == ()
    member = distinct_jobs(problem, policy.told_apart_by).member
    for group in range(int(member.max(initial=-1)) + 1):
        assert np.ptp(once.surplus[member == group]) == 0
