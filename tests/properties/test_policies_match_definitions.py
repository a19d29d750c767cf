"""Every policy of the linear family: its fast answer is the optimum of its definition, certified, whoever is asked."""

import warnings
from dataclasses import replace
from random import Random
from unittest.mock import patch

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from policies import SPECS, name_of, published, timed_problems, told_by_definition
from problems import rates_of

from benchmarks.policy_definitions import definition
from optimizer.check.certificate import check_decision
from optimizer.decision import Shares, Status
from optimizer.lp import engine_choice
from optimizer.policy import PolicySpec
from optimizer.problem import Columns, Problem
from optimizer.registry import make
from optimizer.utility.fair_share import fair_share_utility

pytestmark = pytest.mark.filterwarnings("error")
EXAMPLES = settings(max_examples=12, deadline=None)
#: Of what a definition does not look at. That every answer is the optimum of its definition is tested with `EXAMPLES`;
#: what is left to show is that definitions do not look.
UNSEEN = settings(max_examples=8, deadline=None)
POLICIES = pytest.mark.parametrize("spec", SPECS, ids=name_of)
#: Of these, the value does not depend on how many pools stand idle (agnostic, a job's speed is of an equal split).
IDLE_POOL = [
    spec
    for spec in SPECS
    if spec.name in ("throughput", "throughput_per_dollar", "cost_with_slos", "makespan")
    and "aware" not in spec.parameters
]


def decide(problem: Problem, spec: PolicySpec) -> Shares:
    policy = make(spec)
    shares = policy.decide(problem, None)[0]
    assert isinstance(shares, Shares)
    return shares


def same_value(one: Shares, other: Shares, rel: float = 1e-6) -> bool:
    return one.certificate.objective == pytest.approx(other.certificate.objective, rel=rel, abs=1e-9)


def optimum(program: cp.Problem) -> float | None:
    """The value of a definition; None where it has none (nobody entitled, deadlines that cannot all be held)."""
    linear = program.objective.expr.is_pwl()
    for solver in (cp.HIGHS, cp.CLARABEL) if linear else (cp.CLARABEL,):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program.solve(solver=solver)
        if program.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            return float(program.value)
    return None


def entitled(problem: Problem, spec: PolicySpec) -> bool:
    """Somebody is there for the objective to serve."""
    utility = fair_share_utility(problem, aware=True)
    if spec.name in ("finish_time_fairness", "makespan"):
        return bool(np.any((utility.best > 0) & (problem.jobs.remaining_steps > 0)))
    return bool(utility.weight.any())


@POLICIES
@EXAMPLES
@given(problem=timed_problems())
def test_the_answer_is_the_optimum_of_the_definition(spec: PolicySpec, problem: Problem):
    """Within 1e-6 of the program that reads like the formula; the certificate says so and the checker agrees."""
    shares = decide(problem, spec)
    assert shares.certificate.violation <= 1e-9
    assert shares.certificate.gap <= 1e-6
    assert shares.certificate.status in (Status.OPTIMAL, Status.EMPTY)
    if spec.parameters.get("then") != "nothing":
        assert check_decision(problem, spec, shares).complaints == ()
    if shares.certificate.status is Status.EMPTY or not entitled(problem, spec):
        return
    value = optimum(definition(make(spec), problem))
    if value is None:
        assert len(shares.relaxed)
        return
    reached = published(problem, spec, shares.certificate.objective)
    assert reached == pytest.approx(told_by_definition(problem, spec, value), rel=1e-5, abs=1e-6)


@POLICIES
@UNSEEN
@given(problem=timed_problems(), seed=st.integers(0, 2**16))
def test_the_order_of_jobs_does_not_matter(spec: PolicySpec, problem: Problem, seed: int):
    """Permuted jobs reach the same objective."""
    order = list(range(len(problem.jobs)))
    Random(seed).shuffle(order)
    one, other = decide(problem, spec), decide(permuted(problem, np.array(order, dtype=np.int64)), spec)
    assume(not len(one.relaxed))  # which of several deadlines is given up may hang on the order
    assert same_value(one, other)


@POLICIES
@UNSEEN
@given(problem=timed_problems(), factors=st.lists(st.floats(0.01, 100), min_size=8, max_size=8))
def test_units_of_work_do_not_matter(spec: PolicySpec, problem: Problem, factors: list[float]):
    """Counting a job's steps in another unit changes nothing, unless plain steps are summed."""
    factor = np.array(factors[: len(problem.jobs)])
    if spec.parameters.get("normalised") is False:
        factor = np.full(len(problem.jobs), factors[0])
    jobs = replace(problem.jobs, remaining_steps=problem.jobs.remaining_steps * factor)
    columns = replace(problem.columns, steps_per_s=problem.columns.steps_per_s * factor[problem.columns.job])
    one, other = decide(problem, spec), decide(replace(problem, jobs=jobs, columns=columns), spec)
    scale = factors[0] if spec.parameters.get("normalised") is False else 1.0
    assert other.certificate.objective == pytest.approx(one.certificate.objective * scale, rel=1e-6, abs=1e-9)


@POLICIES
@UNSEEN
@given(problem=timed_problems())
def test_splitting_a_class_changes_nothing(spec: PolicySpec, problem: Problem):
    """Jobs that are equal but for 1e-8 of their speed are solved one by one, to the same objective."""
    nudge = 1 + 1e-8 * np.arange(len(problem.jobs))
    columns = replace(problem.columns, steps_per_s=problem.columns.steps_per_s * nudge[problem.columns.job])
    one, other = decide(problem, spec), decide(replace(problem, columns=columns), spec)
    assume(not len(one.relaxed) and not len(other.relaxed))
    assert same_value(one, other, rel=2e-6)


@pytest.mark.parametrize("spec", IDLE_POOL, ids=name_of)
@EXAMPLES
@given(problem=timed_problems(), size=st.integers(1, 5))
def test_an_idle_pool_changes_nothing(spec: PolicySpec, problem: Problem, size: int):
    """A pool that nobody can use moves no job (utilities count the whole fleet, so their unit grows with it)."""
    pools = problem.pools
    wider = replace(
        pools, pool_id=(*pools.pool_id, "idle"), accelerator=(*pools.accelerator, "idle"),
        capacity=np.append(pools.capacity, float(size)), rentable=np.append(pools.rentable, 0.0),
        machine_size=np.append(pools.machine_size, 1.0), usd_per_h=np.append(pools.usd_per_h, pools.usd_per_h.max()),
        rented=np.append(pools.held, 0.0),
    )  # fmt: skip
    one, other = decide(problem, spec), decide(replace(problem, pools=wider), spec)
    in_utility = spec.name != "makespan" and spec.parameters.get("normalised", True) and "goal" not in spec.parameters
    unit = wider.capacity.sum() / max(pools.capacity.sum(), 1.0) if in_utility else 1.0
    if spec.name == "makespan":
        assume(np.isfinite(problem.jobs.remaining_steps).all())  # an unknown length is told in equal-split seconds
    assert other.certificate.objective == pytest.approx(one.certificate.objective * unit, rel=1e-6, abs=1e-9)


@POLICIES
@EXAMPLES
@given(problem=timed_problems(whole=True))
def test_prices_are_those_that_newcomers_meet(spec: PolicySpec, problem: Problem):
    """A newcomer like a job that is there is worth the job's surplus and prices together, as `value` tells it."""
    from optimizer.policy import Newcomer

    shares, policy, columns = decide(problem, spec), make(spec), problem.columns
    for job in np.flatnonzero(np.isin(np.arange(len(problem.jobs)), shares.unplaceable, invert=True)):
        mine = np.flatnonzero(columns.job == job)
        mine = mine[
            np.all(columns.use_count[mine, None] <= problem.pools.capacity[columns.use_pool[mine, None]], axis=1)
        ]
        count, pool = columns.use_count[mine], columns.use_pool[mine]
        weight = float(problem.jobs.weight[job])
        newcomer = Newcomer(
            columns.steps_per_s[mine], pool, count, weight, problem.pools.capacity, problem.pools.usd_per_h
        )
        net = policy.value(newcomer, shares.quote) - count * shares.quote.prices[pool]
        assert max(net.max(initial=0.0), 0.0) == pytest.approx(shares.surplus[job], rel=1e-6, abs=1e-6)


def permuted(problem: Problem, order: np.ndarray) -> Problem:
    """The same jobs in another order, with their columns."""
    columns = problem.columns
    where = np.empty(len(order), dtype=np.int64)
    where[order] = np.arange(len(order))
    rows = np.argsort(where[columns.job], kind="stable")
    jobs = replace(
        problem.jobs,
        **{
            name: getattr(problem.jobs, name)[order]
            for name in problem.jobs.__dataclass_fields__
            if name not in ("job_id", "count") and len(getattr(problem.jobs, name))
        },
    )
    return replace(
        problem,
        jobs=jobs,
        columns=Columns(
            job=where[columns.job][rows], steps_per_s=columns.steps_per_s[rows], use_column=np.arange(len(rows)),
            use_pool=columns.use_pool[rows], use_count=columns.use_count[rows], running=columns.running[rows],
        ),
    )  # fmt: skip


def test_permuting_keeps_what_a_job_is():
    """The helper above moves a job's columns with it."""
    from problems import Setting, build

    problem = build(Setting([[1, 2], [3, None]], [1, 1]))
    turned = permuted(problem, np.array([1, 0]))
    assert rates_of(turned, np.ones(3)).tolist() == [3, 3]
    assert turned.columns.job.tolist() == [0, 1, 1]


@POLICIES
@EXAMPLES
@given(problem=timed_problems())
def test_prices_find_what_the_exact_program_finds(spec: PolicySpec, problem: Problem):
    """The way for large markets, taken on small ones: the same objective within the gap that is called optimal."""
    exact = decide(problem, spec)
    with (
        patch.object(engine_choice, "EXACT_ONE_PROGRAM_COLUMNS", 0),
        patch.object(engine_choice, "EXACT_SEVERAL_PROGRAMS_COLUMNS", 0),
    ):
        priced = decide(problem, spec)
    assert priced.certificate.violation <= 1e-9
    assert priced.certificate.gap <= 1e-4
    assert priced.certificate.status is exact.certificate.status
    assert same_value(priced, exact, rel=2e-4)
