"""Deciding about distinct jobs with counts is deciding about the jobs."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build
from strategies_problems import settings_of_problems

from optimizer import answer
from optimizer.answer import answer_problem
from optimizer.check.certificate import check_decision
from optimizer.classes import aggregation
from optimizer.classes.aggregation import distinct_jobs
from optimizer.policy import AggregatesJobs, PolicySpec
from optimizer.registry import make, names
from optimizer.validate import ProblemError

POLICIES = [name for name in names() if isinstance(make(PolicySpec(name)), AggregatesJobs)]


def test_the_policies_that_can_do_so():
    """Most of the linear family."""
    assert {"max_min_fairness", "throughput", "water_filling"} <= set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(setting=settings_of_problems(max_jobs=12), deadline=st.sampled_from([np.inf, 3600.0]))
def test_equal_jobs_are_decided_about_once(name: str, setting: Setting, deadline: float):
    """Objective, bound, prices, rates and surpluses are those of a decision about every job; the checker agrees."""
    policy = make(PolicySpec(name))
    problem = build(setting)
    n = len(problem.jobs)
    problem = replace(
        problem,
        jobs=replace(problem.jobs, remaining_steps=np.full(n, 900.0), deadline_at=np.full(n, deadline)),
        pools=replace(problem.pools, usd_per_h=np.arange(1.0, 1.0 + len(problem.pools))),
    )
    each, _ = policy.decide(problem, None)
    once, _, _ = answer_problem(policy, problem, None, 0.0)
    assert once.certificate.objective == pytest.approx(each.certificate.objective, rel=1e-6, abs=1e-9)
    assert once.certificate.bound == pytest.approx(each.certificate.bound, rel=1e-6, abs=1e-9)
    assert once.unplaceable.tolist() == each.unplaceable.tolist()
    assert once.relaxed.tolist() == each.relaxed.tolist()
    assert once.certificate.violation <= 1e-9
    assert check_decision(problem, PolicySpec(name), once).complaints == ()
    member = distinct_jobs(problem, policy.job_key_fields).member
    for group in range(int(member.max(initial=-1)) + 1):
        assert np.ptp(once.surplus[member == group]) == 0


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(setting=settings_of_problems(max_jobs=12))
def test_checking_and_grouping_in_one_walk_changes_no_answer(setting: Setting):
    """A large problem is looked at once where a small one is looked at twice: answers agree to the last bit."""
    problem, policy, answers = build(setting), make(PolicySpec("throughput")), []
    for compiled_from in (0, 10**12):
        with pytest.MonkeyPatch.context() as patch:
            for module in (answer, aggregation):
                patch.setattr(module, "COMPILED_COLUMNS", compiled_from)
            answers.append(answer_problem(policy, problem, None, 0.0)[0])
    walked, plain = answers
    assert np.array_equal(walked.x, plain.x)
    assert np.array_equal(walked.surplus, plain.surplus)
    assert astuple(walked.certificate) == astuple(plain.certificate)


@pytest.mark.parametrize("speed", [-1.0, np.nan, np.inf])
def test_a_large_malformed_problem_is_named(speed: float, monkeypatch):
    """What the walk does not vouch for is found and named by the full check."""
    for module in (answer, aggregation):
        monkeypatch.setattr(module, "COMPILED_COLUMNS", 0)
    problem = build(Setting(speeds=[[1.0, 3.0]] * 4, capacity=[4.0, 4.0]))
    wrong = problem.columns.steps_per_s.copy()
    wrong[3] = speed
    with pytest.raises(ProblemError, match=r"columns\.steps_per_s\[3\]"):
        answer_problem(
            make(PolicySpec("throughput")), replace(problem, columns=replace(problem.columns, steps_per_s=wrong)), None,
            0.0,
        )  # fmt: skip
