import ast
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
from checking import LOOSE, SPECS, answer, example, lies, spec_id
from problems import Setting, build

from optimizer import registry
from optimizer.check import certificate
from optimizer.check.certificate import check_decision
from optimizer.check.policy_checks import policy_check_of
from optimizer.decision import Order, Status
from optimizer.policy import PolicySpec
from walras.errors import UnknownPolicyError

POLICIES = pytest.mark.parametrize("spec", SPECS, ids=spec_id)
PROBLEMS = pytest.mark.parametrize("name", ["three_pools", "deadlines", "hierarchy", "sharing", "misfits"])


@pytest.mark.parametrize("spec", [*SPECS, LOOSE], ids=spec_id)
@PROBLEMS
def test_an_honest_answer_holds(name: str, spec: PolicySpec):
    """What a policy states is what the checker finds."""
    problem = example(name)
    checked = check_decision(problem, spec, answer(spec, problem))
    assert checked.complaints == ()
    assert checked.violation <= 1e-9


@pytest.mark.slow
@POLICIES
@PROBLEMS
def test_every_lie_is_noticed(name: str, spec: PolicySpec):
    """A share off by 1 %, a price halved, two jobs' rows swapped, a bound moved by 1e-3, a deadline not listed, ..."""
    problem = example(name)
    unnoticed = [
        lie.name
        for lie in lies(problem, spec, answer(spec, problem))
        if check_decision(problem, spec, lie.shares).holds
    ]
    assert unnoticed == []


def test_an_answer_of_another_policy_is_noticed():
    """Shares that maximise one thing do not pass for shares that maximise another."""
    problem = example("three_pools")
    shares = {spec_id(spec): answer(spec, problem) for spec in SPECS}
    # One program by several names where there are no projects, no deadlines, and no pairs.
    alike = ({"max_min_fairness", "water_filling", "hierarchical"}, {"throughput_per_dollar", "cost_with_slos"})
    passed = [
        (spec_id(spec), other)
        for spec in SPECS
        for other in shares
        if spec.name != other.split("-")[0] and not any({spec.name, other.split("-")[0]} <= names for names in alike)
        if check_decision(problem, spec, shares[other]).holds
    ]
    assert passed == []


def test_an_empty_answer_where_something_can_run_is_noticed():
    """Called empty, with nothing listed as unplaceable."""
    problem = example("three_pools")
    empty = answer(PolicySpec("max_min_fairness"), build(Setting([[None]] * 5, [2])))
    assert empty.certificate.status is Status.EMPTY
    nothing = replace(
        empty, x=np.zeros(len(problem.columns)), rent=np.zeros(3), unplaceable=np.zeros(0, dtype=np.int64)
    )
    assert not check_decision(problem, PolicySpec("max_min_fairness"), nothing).holds


def test_more_rented_than_there_is_to_rent_is_noticed():
    """Shares may count on no more than the quota."""
    spec, problem = PolicySpec("throughput"), build(Setting([[4, 2]], [0, 1], rentable=[2, 0]))
    shares = answer(spec, problem)
    assert check_decision(problem, spec, shares).holds
    assert not check_decision(problem, spec, replace(shares, rent=np.array([3.0, 0.0]))).holds


def test_deadlines_that_could_be_held_may_not_be_relaxed():
    """Asking less of a job than its deadline needs, and listing it, is noticed where all could be held."""
    spec, problem = PolicySpec("cost_with_slos", {"goal": "cost"}), example("deadlines")
    shares = answer(spec, problem)
    assert [int(problem.jobs.job_id[row]) for row in shares.relaxed] == [3, 4, 5]
    lazy = replace(problem, jobs=replace(problem.jobs, deadline_at=np.full(5, np.inf)))
    nothing = replace(answer(spec, lazy), relaxed=np.arange(5)[[0, 2, 3, 4]])
    assert any("could be held" in complaint for complaint in check_decision(problem, spec, nothing).complaints)


def test_memory_is_part_of_the_question():
    """Finish-time fairness is judged by what the policy remembered."""
    from optimizer.registry import make

    spec, problem = PolicySpec("finish_time_fairness"), example("three_pools")
    _, memory = make(spec).decide(problem, None)
    jobs = replace(problem.jobs, remaining_steps=problem.jobs.remaining_steps * np.array([0.5, 0.9, 0.99, 1.0, 0.7]))
    later = replace(problem, at=7200.0, jobs=jobs)
    shares, _ = make(spec).decide(later, memory)
    assert check_decision(later, spec, shares, memory).complaints == ()
    assert not check_decision(later, spec, shares, None).holds


def test_a_policy_without_a_measure_is_a_named_error():
    """A policy of others cannot be judged here, and the message says who can be."""
    problem = example("three_pools")
    with pytest.raises(UnknownPolicyError, match="no measure for policy 'mine'"):
        check_decision(problem, PolicySpec("mine"), answer(PolicySpec("throughput"), problem))


@pytest.mark.parametrize("name", sorted({spec.name for spec in SPECS}))
def test_every_policy_that_answers_in_shares_names_its_check(name: str):
    """The policy class says which check judges its answers: a measure of what it maximises, or a formula."""
    check = policy_check_of(PolicySpec(name))
    assert check is not None
    assert (check.measure is None) != (check.formula is None)


def test_a_policy_of_another_package_may_bring_a_check(monkeypatch: pytest.MonkeyPatch):
    """A class that names a check is judged by it, whatever the name under which it is registered."""
    points = EntryPoints([EntryPoint("mine", "optimizer.policies.throughput:Throughput", registry.ENTRY_POINTS)])
    monkeypatch.setattr(registry, "entry_points", lambda **select: points.select(**select))
    problem = example("three_pools")
    shares = answer(PolicySpec("throughput"), problem)
    assert check_decision(problem, PolicySpec("mine"), shares).holds
    assert not check_decision(problem, PolicySpec("mine"), answer(PolicySpec("makespan"), problem)).holds


def test_the_checker_knows_no_policy_by_name():
    """No module of the checker holds the name of a policy that answers in shares as text."""
    folder = Path(certificate.__file__).parent
    texts = [
        node.value
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    ]
    assert set(texts) & {"allox", *(spec.name for spec in SPECS)} == set()


def test_an_order_names_every_job_once():
    """Nobody is left out or comes twice."""
    problem, spec = example("three_pools"), PolicySpec("fifo")
    preference = np.zeros(len(problem.columns))
    assert check_decision(problem, spec, Order((4, 3, 2, 1, 0), preference)).holds
    assert not check_decision(problem, spec, Order((4, 3, 2, 1), preference)).holds
    assert not check_decision(problem, spec, Order((4, 3, 2, 1, 1), preference)).holds
    assert not check_decision(problem, spec, Order((4, 3, 2, 1, 0), preference[1:])).holds
