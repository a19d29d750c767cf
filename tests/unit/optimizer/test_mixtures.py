"""Gangs over several pools, made at prices."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build

from optimizer.answer import answer_as_asked
from optimizer.assignment.mixed_gangs import answer_with_mixed_gangs, improving_mixed_gangs
from optimizer.check.certificate import mixed_gang_complaints
from optimizer.decision import Decision, MultiPoolGangs, Status, append_columns, with_added
from optimizer.documents.answer_conversion import answer_of, check_document, decision_of, problem_answered
from optimizer.policies.fairness import MaxMinFairness, ProportionalFairness
from optimizer.policies.finish_times import FinishTimeFairness, Makespan
from optimizer.policies.throughput import Throughput
from optimizer.policy import PolicySpec, SharePolicy
from optimizer.problem import Problem
from optimizer.registry import make
from walras.errors import ConfigError

POLICIES = [
    MaxMinFairness(then="nothing"), Throughput(), ProportionalFairness(), Makespan(),
    FinishTimeFairness(then="nothing"),
]  # fmt: skip


def every_mixture(problem: Problem) -> Problem:
    """All gangs over several pools, listed."""
    columns, pools = problem.columns, problem.pools
    speed = np.zeros((len(problem.jobs), len(pools)))
    speed[columns.job, columns.use_pool] = columns.steps_per_s
    job, rate, use = [], [], []
    for row in np.flatnonzero(problem.jobs.mixes):
        gang = int(problem.jobs.gang[row])
        for counts in product(*(range(min(int(n), gang) + 1) for n in pools.capacity)):
            taken = np.array(counts, float)
            slowest = speed[row][taken > 0].min(initial=np.inf)
            if taken.sum() == gang and (taken > 0).sum() > 1 and slowest > 0:
                job.append(row)
                rate.append(slowest)
                use.append(taken)
    if not job:
        return problem
    return append_columns(problem, MultiPoolGangs(np.array(job), np.array(rate), np.array(use)).columns)[0]


@st.composite
def mixing(draw: st.DrawFn) -> Problem:
    """Up to five jobs on three pools, gangs up to four, some of which may be spread over pools."""
    jobs = draw(st.integers(1, 5))
    speeds = draw(st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=jobs, max_size=jobs))
    gangs = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0]), min_size=jobs, max_size=jobs))
    setting = Setting(
        speeds=[[s / 4 if s else None for s in row] for row in speeds],
        capacity=draw(st.lists(st.integers(0, 4).map(float), min_size=3, max_size=3)),
        gangs=gangs,
        weights=draw(st.lists(st.sampled_from([1.0, 2.0]), min_size=jobs, max_size=jobs)),
    )
    problem = build(setting)
    mixes = np.array(draw(st.lists(st.booleans(), min_size=jobs, max_size=jobs)))
    length = np.array(draw(st.lists(st.integers(1, 9), min_size=jobs, max_size=jobs)), float) * 1000
    return replace(problem, jobs=replace(problem.jobs, mixes=mixes, remaining_steps=length))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@settings(max_examples=60, deadline=None)
@given(mixing())
def test_made_at_prices_they_are_worth_as_much_as_all_of_them_listed(policy: SharePolicy, problem: Problem):
    """The objective and its bound are those of the problem with every gang over several pools."""
    found, _ = answer_with_mixed_gangs(policy, problem, None)
    listed, _ = policy.decide(every_mixture(problem), None)
    whole, shares = with_added(problem, found)
    assert not len(improving_mixed_gangs(whole, shares))
    ours, all_of_them = shares.certificate, listed.certificate
    assert ours.status is all_of_them.status
    if ours.status is Status.OPTIMAL and np.isfinite(all_of_them.objective):
        assert ours.objective == pytest.approx(all_of_them.objective, rel=2e-5, abs=1e-7)


def test_a_gang_that_fits_no_pool_runs_on_two():
    """Three accelerators of one pool and one of another make a gang of four that no pool could hold."""
    problem = build(Setting(speeds=[[8.0, 4.0]], capacity=[3.0, 1.0], gangs=[4.0], weights=[1.0]))
    problem = replace(problem, jobs=replace(problem.jobs, mixes=np.array([True])))
    found, _ = answer_with_mixed_gangs(Throughput(normalised=False), problem, None)
    whole, shares = with_added(problem, found)
    columns = whole.columns
    assert columns.use_count[columns.use_column == 2].tolist() == [3.0, 1.0]
    assert columns.steps_per_s.tolist() == [8.0, 4.0, 4.0]  # at the pace of the slower
    assert shares.x == pytest.approx([0.0, 0.0, 1.0])


def test_who_does_not_mix_is_left_alone():
    """Nothing is made for jobs whose gang stays in one pool."""
    problem = build(Setting(speeds=[[8.0, 4.0]], capacity=[3.0, 3.0], gangs=[4.0], weights=[1.0]))
    found, _ = answer_with_mixed_gangs(Throughput(), problem, None)
    assert found.added is None
    assert with_added(problem, found) == (problem, found)


def test_a_check_finds_the_gang_that_an_answer_left_out():
    """An answer with listed configurations alone is optimal among them, and a gang over two pools betters it."""
    speeds = [[8.0, 6.0], [8.0, 6.0]]
    problem = build(Setting(speeds=speeds, capacity=[5.0, 3.0], gangs=[4.0, 4.0], weights=[1.0, 1.0]))
    problem = replace(problem, jobs=replace(problem.jobs, mixes=np.array([True, True])))
    spec = PolicySpec("throughput")
    narrow, _ = Throughput().decide(problem, None)
    assert [text for text in mixed_gang_complaints(problem, spec, narrow) if "better gang" in text]
    found, _ = answer_with_mixed_gangs(Throughput(), problem, None)
    assert list(mixed_gang_complaints(*_asked_again(problem, spec, found))) == []


def _asked_again(problem: Problem, spec: PolicySpec, found: Decision) -> tuple[Problem, PolicySpec, Decision]:
    whole, decision = with_added(problem, found)
    return whole, spec, decision


def test_a_plans_forks_are_listed_and_checked() -> None:
    """The answer to a problem in a file names the forks it made; one that is too fast or too many is found out."""
    problem = build(Setting(speeds=[[None, 4.0], [3.0, 1.0]], capacity=[2, 1], remaining_steps=[9000.0, 90000.0]))
    problem = replace(problem, jobs=replace(problem.jobs, fork_max=np.array([1.0, 2.0])))
    spec = PolicySpec("hadar", {})
    found, _, _ = answer_as_asked(make(spec), problem, None, 0.0)
    whole, decision = with_added(problem, found)
    document = answer_of(whole, spec, decision, None, asked=problem)
    assert [(one.id, one.uses, one.steps_per_s) for one in document.mixtures] == [(2, {"pool-0": 2.0}, 0.95 * 6.0)]
    read = problem_answered(document, problem)
    _, plan = decision_of(document, read)
    assert check_document(read, spec, plan, None, document).holds
    made = document.mixtures[0]
    for wrong in ({"steps_per_s": 6.1}, {"uses": {"pool-0": 2.0, "pool-1": 1.0}}, {"id": 1, "uses": {"pool-1": 1.0}}):
        lie = document.model_copy(update={"mixtures": (made.model_copy(update=wrong),)})
        with pytest.raises(ConfigError):
            problem_answered(lie, problem)
