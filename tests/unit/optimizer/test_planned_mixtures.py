"""Gangs over several pools in the plans of walras: taken where they pay, and covered by the bound."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build

from optimizer.answer import answer_as_asked, answer_problem
from optimizer.assignment.whole_gang_bound import integral_bound, whole_assignment_bound
from optimizer.check.certificate import check_decision
from optimizer.decision import MultiPoolGangs, Plan, append_columns, with_added
from optimizer.policy import PolicySpec
from optimizer.problem import Entities, EntityLimits, Problem
from optimizer.registry import make
from optimizer.renting.usd_certificate import usd_certificate, with_relaxed_bound

WALRAS = PolicySpec("walras", {"slowdown": 1e9})


def mixing(setting: Setting, *rows: int, running: dict[int, int] | None = None, pinned: bool = True) -> Problem:
    """The problem in which these jobs may mix, and jobs run (pinned) in pools."""
    problem, there = build(setting), running or {}
    runs = [
        there.get(int(job)) == pool for job, pool in zip(problem.columns.job, problem.columns.use_pool, strict=True)
    ]
    n = len(problem.jobs)
    jobs = replace(
        problem.jobs, mixes=np.isin(np.arange(n), rows), pinned=np.isin(np.arange(n), list(there)) & pinned,
        restart_s=np.full(n, 10.0),
    )  # fmt: skip
    made: Problem = replace(
        problem, jobs=jobs, columns=replace(problem.columns, running=np.array(runs, dtype=np.bool_))
    )
    return made


def planned(problem: Problem, policy: PolicySpec = WALRAS) -> tuple[list[dict[int, float]], Plan]:
    """Accelerators of each job by pool, and the plan, checked with the gangs that it made."""
    plan, _ = answer_as_asked(make(policy), problem, None, 0.0)[:2]
    assert isinstance(plan, Plan)
    whole, told = with_added(problem, plan)
    assert check_decision(whole, policy, told).complaints == ()
    columns, places = whole.columns, []
    for column in told.column.tolist():
        uses = columns.use_column == column
        places.append(dict(zip(columns.use_pool[uses].tolist(), columns.use_count[uses].tolist(), strict=True)))
    return places, plan


def every_gang_listed(problem: Problem) -> Problem:
    """All gangs over several pools as configurations."""
    columns, pools = problem.columns, problem.pools
    speed = np.zeros((len(problem.jobs), len(pools)))
    speed[columns.job, columns.use_pool] = columns.steps_per_s
    found = [
        (row, min(speed[row][np.array(counts) > 0]), counts)
        for row in np.flatnonzero(problem.jobs.mixes).tolist()
        for counts in product(*(range(int(n) + 1) for n in pools.capacity))
        if sum(counts) == problem.jobs.gang[row] and sum(count > 0 for count in counts) > 1
    ]
    found = [each for each in found if each[1] > 0]
    none = replace(problem, jobs=replace(problem.jobs, mixes=np.zeros(0, dtype=np.bool_)))
    if not found:
        return none
    job, rate, use = zip(*found, strict=True)
    return append_columns(none, MultiPoolGangs(np.array(job), np.array(rate), np.array(use, float)).columns)[0]


def test_a_waiting_gang_takes_odd_accelerators() -> None:
    """Each pool has one accelerator too few for it; over both it runs at the pace of the slower."""
    setting = Setting([[4.0, 2.0], [4.0, 2.0], [16.0, 8.0]], [4, 4], gangs=[1, 1, 4], remaining_steps=[1e5] * 3)
    apart, _ = planned(mixing(setting, running={0: 0, 1: 1}))
    assert apart[2] == {}
    together, plan = planned(mixing(setting, 2, running={0: 0, 1: 1}))
    assert together[2] == {0: 1, 1: 3}
    assert plan.added.steps_per_s.tolist() == [8.0]


def test_a_gang_that_no_pool_holds_runs_over_several() -> None:
    """Three accelerators of each type, a gang of five."""
    places, _ = planned(mixing(Setting([[5.0, 4.0]], [3, 3], gangs=[5], remaining_steps=[1e5]), 0))
    assert sum(places[0].values()) == 5
    assert max(places[0].values()) == 3


def test_a_gang_takes_accelerators_of_two_types_at_their_prices() -> None:
    """A heavy gang could have either pool alone; over both it is hardly slower, and nobody else has to wait."""
    setting = Setting(
        [[8.0, 7.9], *([[1.0, None]] * 2), *([[None, 1.0]] * 2)], [4, 4], gangs=[4, 1, 1, 1, 1],
        weights=[1e6, 1, 1, 1, 1], remaining_steps=[8e4] + [1e4] * 4,
    )  # fmt: skip
    alone, _ = planned(mixing(setting))
    assert alone[0] == {0: 4}
    assert alone[1:3] == [{}, {}]
    places, plan = planned(mixing(setting, 0))
    assert places[0] == {0: 2, 1: 2}
    assert all(places[1:])
    assert plan.yardstick.gap < 0.01


def test_a_gang_that_gains_nothing_sits_in_one_pool() -> None:
    """With room in the fast pool nobody is spread."""
    places, plan = planned(mixing(Setting([[4.0, 2.0]], [4, 4], gangs=[4], remaining_steps=[1e5]), 0))
    assert places == [{0: 4}]
    assert plan.added is None


def test_who_does_not_mix_waits() -> None:
    """Only jobs that say so are spread."""
    setting = Setting([[4.0, 2.0], [4.0, 2.0]], [3, 3], gangs=[2, 2], remaining_steps=[1e5, 1e5])
    places, _ = planned(mixing(replace(setting, gangs=[4, 4]), 1))
    assert places[0] == {}
    assert sum(places[1].values()) == 4


def test_limits_of_a_user_hold_for_gangs_over_several_pools() -> None:
    """Who may hold three accelerators of seven gets no gang of four made of odd ones."""
    setting = Setting([[4.0, 2.0], [4.0, 2.0], [16.0, 8.0]], [4, 4], gangs=[1, 1, 4], remaining_steps=[1e5] * 3)
    problem = mixing(setting, 2, running={0: 0, 1: 1})
    limited = replace(
        problem,
        jobs=replace(problem.jobs, entity=np.array([0, 0, 1])),
        entities=Entities(("a", "b"), np.ones(2), limit=np.array([1.0, 3 / 8])),
    )
    assert planned(limited)[0][2] == {}


def test_nobody_is_spread_over_rented_machines() -> None:
    """Who has paid machines is decided pool by pool."""
    setting = Setting([[4.0, 2.0], [4.0, 2.0], [16.0, 8.0]], [4, 4], gangs=[1, 1, 4], remaining_steps=[1e5] * 3)
    problem = mixing(setting, 2, running={0: 0, 1: 1})
    paid = np.array([0.0, 4.0])
    rented = replace(problem, pools=replace(problem.pools, rentable=paid, rented=paid, usd_per_h=np.array([0.0, 1.0])))
    plan, _, _ = answer_problem(make(WALRAS), rented, None, 0.0)
    assert plan.added is None
    assert plan.column[2] == -1


def test_what_no_plan_earns_more_than_counts_gangs_over_several_pools() -> None:
    """A gang of five on three accelerators of each of two types earns what no gang in one pool could."""
    problem = mixing(Setting([[5.0, 4.0]], [3, 3], gangs=[5], values=[2.0], remaining_steps=[1e5]), 0)
    _, plan = planned(problem)
    whole, told = with_added(problem, plan)
    value = problem.jobs.value_usd_per_h
    reached, _ = usd_certificate(whole, told.column, value, stated=False)
    assert reached == pytest.approx(2.0 * 4.0 / 5.0)
    nobody = np.full(1, -1)
    assert usd_certificate(problem, nobody, value, stated=False)[1] >= reached * (1 - 1e-9)


@st.composite
def crowded(draw: st.DrawFn) -> Problem:
    """Up to six jobs on three pools, gangs up to four, some of which may be spread over pools."""
    jobs = draw(st.integers(2, 6))
    speeds = draw(st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), min_size=jobs, max_size=jobs))
    setting = Setting(
        speeds=[[s / 2 if s else None for s in row] for row in speeds],
        capacity=draw(st.lists(st.integers(1, 5).map(float), min_size=3, max_size=3)),
        gangs=draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0]), min_size=jobs, max_size=jobs)),
        remaining_steps=draw(st.lists(st.integers(1, 9).map(lambda k: 1000.0 * k), min_size=jobs, max_size=jobs)),
    )
    return mixing(setting, *np.flatnonzero(draw(st.lists(st.booleans(), min_size=jobs, max_size=jobs))).tolist())


@settings(max_examples=30, deadline=None)
@given(crowded())
def test_no_plan_with_any_gang_over_several_pools_exceeds_the_bound(problem: Problem) -> None:
    """The integer program over all gangs, listed one by one, is worth no more than what the prices prove."""
    _, plan = planned(problem)
    exact = exact_worth(problem)
    assert plan.yardstick.objective <= exact * (1 + 1e-6)
    assert plan.yardstick.bound >= exact * (1 - 1e-6)
    tighter = integral_bound(problem, WALRAS, plan)
    assert tighter is None or tighter >= exact * (1 - 1e-6)


def exact_worth(problem: Problem) -> float:
    """What the best plan with every gang over several pools is worth, by the integer program."""
    listed, _ = answer_as_asked(make(WALRAS), every_gang_listed(problem), None, 0.0)[:2]
    return max([whole_assignment_bound(each.question) for each in listed.contests], default=listed.yardstick.objective)


@settings(max_examples=40, deadline=None)
@given(crowded(), st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=3, max_size=3), st.booleans())
def test_the_bound_covers_gangs_over_several_pools_beside_limits(
    problem: Problem, most: list[float], of_fleet: bool
) -> None:
    """A user may hold little of one pool, of two, and of the fleet: an accelerator costs it more in some pools."""
    users = Entities(("a", "b"), np.ones(2), limit=np.array([0.6 if of_fleet else 1.0, 1.0]))
    masks = np.array([[True, False, False], [False, True, True], [True, True, False]])
    limited = replace(
        problem, jobs=replace(problem.jobs, entity=np.arange(len(problem.jobs)) % 2), entities=users,
        limits=EntityLimits(np.array([0, 0, 1]), np.array(most), masks),
    )  # fmt: skip
    places, plan = planned(limited)
    for row, mask in enumerate(masks.tolist()):
        mine = places[(0, 0, 1)[row] :: 2]
        assert sum(count for place in mine for pool, count in place.items() if mask[pool]) <= most[row] + 1e-9
    assert plan.yardstick.bound >= exact_worth(limited) * (1 - 1e-6)


@settings(max_examples=25, deadline=None)
@given(crowded(), st.sampled_from([0.3, 0.6]))
def test_the_certificate_holds_with_guarantees_beside_gangs_over_several_pools(problem: Problem, part: float) -> None:
    """The independent check passes, and the bound is no less than the plan."""
    users = Entities(("a", "b"), np.ones(2), guaranteed=np.array([part, 0.0]))
    promised = replace(problem, jobs=replace(problem.jobs, entity=np.arange(len(problem.jobs)) % 2), entities=users)
    _, plan = planned(promised)
    assert plan.yardstick.bound >= plan.yardstick.objective


def test_a_gang_over_two_pools_has_its_guarantee_from_those_who_run_there() -> None:
    """Six of eight accelerators are guaranteed to its user; another's jobs run on all of them."""
    setting = Setting(
        speeds=[[1.0, 1.0]] * 9, capacity=[4, 4], gangs=[1.0] * 8 + [6.0], remaining_steps=[1e4] * 8 + [1e3]
    )
    problem = mixing(setting, 8, running={row: row // 4 for row in range(8)}, pinned=False)
    users = Entities(("a", "b"), np.ones(2), guaranteed=np.array([0.75, 0.0]))
    promised = replace(problem, jobs=replace(problem.jobs, entity=np.array([1] * 8 + [0])), entities=users)
    places, _ = planned(promised)
    assert sorted(places[8]) == [0, 1]
    assert sum(places[8].values()) == 6.0


@pytest.mark.parametrize("seed", [0, 2])
def test_the_bound_of_the_linear_program_holds_for_gangs_that_it_does_not_list(seed: int) -> None:
    """What unlisted gangs could gain at the prices of the program is added to its bound."""
    rng = np.random.default_rng(seed)
    setting = Setting(
        speeds=rng.integers(1, 12, (7, 3)).astype(float).tolist(), capacity=[5, 4, 3],
        gangs=rng.integers(1, 5, 7).astype(float).tolist(),
        remaining_steps=rng.integers(1, 9, 7).astype(float).tolist(),
    )  # fmt: skip
    problem = mixing(setting, *range(7))
    _, plan = planned(problem)
    tighter = with_relaxed_bound(plan)
    assert tighter.yardstick.bound >= exact_worth(problem) * (1 - 1e-6)
