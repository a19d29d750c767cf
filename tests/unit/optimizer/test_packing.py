"""Two jobs on one accelerator: what policies gain by it, and which pairs make sense."""

import json
from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from packing import Listed, max_min, packable_problems, with_pairs
from policies import told_by_definition, with_times
from problems import Setting, build

from benchmarks.policy_definitions import definition
from optimizer.decision import Shares, Status
from optimizer.lp.staged_solution import colocated_violation, shares_per_column
from optimizer.policy import PolicySpec
from optimizer.problem import Pairs, Problem
from optimizer.registry import make
from optimizer.utility.fair_share import fair_share_utility
from optimizer.validate import ProblemError, validate_problem
from walras.errors import UserError

PACKED = [
    PolicySpec("max_min_fairness", {"then": "nothing", "packed": True}),
    PolicySpec("max_min_fairness", {"then": "nothing", "packed": True, "aware": False}),
    PolicySpec("finish_time_fairness", {"packed": True}),
    PolicySpec("makespan", {"packed": True}),
    PolicySpec("throughput", {"packed": True}),
    PolicySpec("throughput", {"packed": True, "normalised": False}),
]


def decide(problem: Problem, spec: PolicySpec) -> Shares:
    decision, _ = make(spec).decide(problem, None)
    assert isinstance(decision, Shares)
    return decision


def one_pool(jobs: int, keeps: float, capacity: float = 1.0) -> Problem:
    """Equal jobs of one kind on one pool."""
    return with_pairs(build(Setting([[2.0]] * jobs, [capacity])), [0] * jobs, [(0, 0, 0, keeps, keeps)])


@pytest.mark.parametrize("jobs", [2, 3, 4, 5, 6])
def test_equal_jobs_share_one_accelerator_two_by_two(jobs: int):
    """Each pair keeps .8 of both, so the accelerator does the work of 1.6; nobody meets itself, whatever the count."""
    shares = decide(one_pool(jobs, 0.8), PolicySpec("max_min_fairness", {"packed": True}))
    assert shares.certificate.objective == pytest.approx(1.6 / jobs)
    assert np.all(shares.packed.first != shares.packed.second)
    time = np.bincount(np.concatenate((shares.packed.first, shares.packed.second)), np.tile(shares.packed.share, 2))
    assert time == pytest.approx(np.full(jobs, 2 / jobs))
    assert len(shares.packed) <= jobs


def test_a_pair_that_keeps_less_than_one_is_never_run():
    """Taking turns is as good, with fewer jobs to a machine."""
    shares = decide(one_pool(4, 0.5), PolicySpec("max_min_fairness", {"packed": True}))
    assert not len(shares.packed)
    assert shares.certificate.objective == pytest.approx(0.25)


def test_a_job_alone_of_its_kind_never_shares_with_itself():
    """Though its kind is listed beside itself."""
    shares = decide(one_pool(1, 1.0), PolicySpec("max_min_fairness", {"packed": True}))
    assert not len(shares.packed)
    assert shares.x == pytest.approx([1.0])


def test_unequal_gangs_never_share():
    """Two accelerators cannot be one job's gang of one and another's gang of two."""
    problem = with_pairs(build(Setting([[1.0], [1.0]], [2.0], gangs=[1, 2])), [0, 0], [(0, 0, 0, 1.0, 1.0)])
    assert not len(decide(problem, PolicySpec("throughput", {"packed": True})).packed)


def test_without_the_parameter_pairs_are_left_alone():
    """Packing is asked for, not found."""
    assert not len(decide(one_pool(4, 0.9), PolicySpec("max_min_fairness")).packed)


def test_a_job_that_would_hold_most_of_its_kinds_time_is_held_to_half():
    """Three jobs of one kind, one of which could use all the sharing there is: it shares with two others at most."""
    speeds = [[8.0, 0.1], [1.0, 8.0], [1.0, 8.0]]
    problem = with_pairs(build(Setting(speeds, [1.0, 1.0])), [0, 0, 0], [(0, 0, 0, 0.9, 0.9)])
    staged, _ = max_min(problem)
    packed = staged.packed
    assert np.all(packed.first != packed.second)
    assert colocated_violation(problem, staged.request.utility.usable, staged.x, packed) <= 1e-9


@pytest.mark.parametrize("spec", PACKED, ids=lambda spec: f"{spec.name}-{len(spec.parameters)}-{spec.parameters}")
@settings(max_examples=25, deadline=None)
@given(problem=packable_problems(max_jobs=6))
def test_a_policy_with_sharing_reaches_the_value_of_its_definition(spec: PolicySpec, problem: Problem):
    """Which names every pair of two jobs."""
    n = len(problem.jobs)
    problem = with_times(problem, [400.0 + 100 * j for j in range(n)], [10.0 * j for j in range(n)], [None] * n)
    if not np.all(fair_share_utility(problem, aware=True).best > 0):
        return
    program = definition(make(spec), problem)
    program.solve(solver=cp.CLARABEL)
    shares = decide(problem, spec)
    expected = told_by_definition(problem, spec, program.value)
    assert shares.certificate.objective == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert shares.certificate.violation <= 1e-9
    assert shares.certificate.status is Status.OPTIMAL


def test_more_pairs_than_the_limit_are_refused():
    """With the number, and what to do."""
    rng = np.random.default_rng(1)
    problem = build(Setting(rng.lognormal(0, 0.5, (180, 2)).tolist(), [64.0, 64.0]))
    problem = with_pairs(problem, [0] * 180, [(0, 0, pool, 0.9, 0.9) for pool in (0, 1)])
    with pytest.raises(UserError, match="180 different jobs make more than 30,000 pairs") as refused:
        decide(problem, PolicySpec("max_min_fairness", {"packed": True}))
    assert "equal jobs count once" in refused.value.fix


def test_shares_told_of_columns_add_up():
    """What pairs give and hold is what their columns give and hold."""
    problem = one_pool(4, 0.75)
    shares = decide(problem, PolicySpec("max_min_fairness", {"packed": True}))
    gives, holds = shares_per_column(problem, np.ones(4, dtype=bool), shares.x, shares.packed)
    assert gives.sum() == pytest.approx(1.5)
    assert holds.sum() == pytest.approx(1.0)


def gavel_problem(folder: Path, jobs: int) -> Problem:
    """Jobs of the published table on three pools, kinds as published, speeds of its own for every job."""
    table = json.loads((folder / "gavel/throughputs/simulation_throughputs.json").read_text())
    pools = ("k80", "p100", "v100")
    keys = sorted(table["v100"], key=literal_eval)
    speed = np.array([[table[pool][key]["null"] for pool in pools] for key in keys])
    listed: list[Listed] = []
    for r, pool in enumerate(pools):
        for a, one in enumerate(keys):
            for b, other in enumerate(keys[: a + 1]):
                both = table[pool][one].get(other)
                if both and min(speed[a, r], speed[b, r]) > 0:
                    kept = np.minimum(np.array(both) / speed[[a, b], r], 1.0)
                    listed.append((a, b, r, float(kept[0]), float(kept[1])))
    rng = np.random.default_rng(1)
    kind = rng.integers(0, len(keys), jobs)
    gangs = [float(literal_eval(keys[k])[1]) for k in kind]
    capacity = [max(8.0, float(sum(gangs) // 15))] * 3
    return with_pairs(build(Setting(speed[kind].tolist(), capacity, gangs=gangs)), kind.tolist(), listed)


def test_the_published_table_of_pairs_raises_the_level(reference_data: Path):
    """By the same amount as the program over all pairs says."""
    problem = gavel_problem(reference_data, 24)
    shares = decide(problem, PolicySpec("max_min_fairness", {"then": "nothing", "packed": True}))
    policy = make(PolicySpec("max_min_fairness", {"then": "nothing", "packed": True}))
    program = definition(policy, problem)
    program.solve(solver=cp.CLARABEL)
    assert shares.certificate.objective == pytest.approx(program.value, rel=1e-6)
    apart = decide(replace(problem, pairs=None), PolicySpec("max_min_fairness", {"then": "nothing", "packed": True}))
    assert shares.certificate.objective > apart.certificate.objective * 1.001


PAIRS = Pairs(
    kind=np.array([0, 1, -1]), first=np.array([0, 0, 1]), second=np.array([1, 0, 0]), pool=np.array([0, 0, 1]),
    first_factor=np.array([0.5, 0.6, 0.7]), second_factor=np.array([0.8, 0.6, 0.0]),
)  # fmt: skip
GOOD = replace(build(Setting([[1, 2], [3, 4], [5, 6]], [1, 1])), pairs=PAIRS)


def spoil(name: str, value: Any) -> Problem:
    return replace(GOOD, pairs=replace(PAIRS, **{name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", np.array([0, 1])), ("kind", np.array([0, 1, -2])), ("first", np.array([0, -1, 1])),
        ("second", np.array([1, 0])), ("second", np.array([0, 0, 0])), ("second", np.array([1, 0, -1])),
        ("pool", np.array([0, 0, 2])), ("pool", np.array([0, 0, 0])), ("first_factor", np.array([0.5, 0.6, np.nan])),
        ("first_factor", np.array([0.5, 0.6, -0.1])), ("first_factor", np.array([1.01, 0.6, 0.5])),
        ("second_factor", np.array([0.5, 0.6, np.inf])), ("second_factor", np.array([0.5])),
        ("second_factor", np.array([0.8, 0.7, 0.0])),
    ],
)  # fmt: skip
def test_malformed_pairs_are_an_error_that_names_the_array(name: str, value: Any):
    """Shapes, ranges, and the same two kinds twice in one pool, in whichever order."""
    with pytest.raises(ProblemError) as caught:
        validate_problem(spoil(name, value))
    assert caught.value.field.startswith("pairs.")


def test_good_pairs_pass():
    """Kinds without a job, kinds with themselves, factors of 0, and no pairs at all are allowed."""
    validate_problem(GOOD)
    validate_problem(spoil("kind", np.array([5, -1, -1])))
    none = np.zeros(0, dtype=np.int64)
    validate_problem(replace(GOOD, pairs=Pairs(PAIRS.kind, none, none, none, np.zeros(0), np.zeros(0))))
