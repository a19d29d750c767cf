"""Guarantees of projects and users as rows of a plan: kept as whole gangs allow, priced, and bounded three ways."""

from dataclasses import replace
from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from problems import Setting, build

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.assignment.guarantee_rows import (
    GuaranteedEntities,
    GuaranteeQuestion,
    assign_with_guarantees,
    guaranteed_entities,
)
from optimizer.assignment.transportation import assign_by_search
from optimizer.assignment.whole_gang_bound import whole_assignment_bound
from optimizer.policies.walras import Walras
from optimizer.problem import Problem
from optimizer.renting.market_plan import plan_in_market
from optimizer.renting.usd_certificate import relaxed_optimum, usd_certificate

SAME = 1e-6
#: Of one project, of another with two users, and of these.
GUARANTEED = np.array([0.3, 0.5, 0.2, 0.1])


def random_problem(seed: int) -> tuple[Problem, np.ndarray]:
    """Jobs of two projects, the second with two users, with guarantees; and what each column is worth: every other
    time jobs of the first are worth little. Every third problem has no gangs.
    """
    random = np.random.default_rng(seed)
    jobs, pools = int(random.integers(4, 24)), int(random.integers(1, 4))
    gangs = np.ones(jobs, dtype=np.int64) if seed % 3 == 0 else random.choice([1, 2, 4], jobs)
    entity = random.choice([0, 2, 3], jobs)
    problem = build(
        Setting(
            random.uniform(0.5, 2.0, (jobs, pools)).tolist(), random.integers(4, 9, pools).tolist(),
            gangs=gangs.tolist(), entity=entity.tolist(), entity_weights=[1, 1, 1, 1],
        )
    )  # fmt: skip
    value = (
        random.uniform(0.2, 3.0, len(problem.columns)) * np.where(entity == seed % 2 * 3, 0.1, 1)[problem.columns.job]
    )
    entities = replace(problem.entities, parent=np.array([-1, -1, 1, 1]), guaranteed=GUARANTEED)
    return replace(problem, entities=entities), value


def asked(seed: int) -> tuple[GuaranteeQuestion, GuaranteedEntities] | None:
    problem, value = random_problem(seed)
    columns, guarantees = problem.columns, guaranteed_entities(problem)
    if guarantees is None:
        return None
    question = AssignmentProblem(
        columns.job, value, columns.use_column, columns.use_pool, columns.use_count, problem.pools.capacity
    )
    nobody = np.full(len(problem.jobs), -1)
    return GuaranteeQuestion.of(guarantees, question, nobody, np.arange(len(columns))), guarantees


def floor_program(question: AssignmentProblem, use: np.ndarray, floor: np.ndarray) -> float:
    """The definition, stated here in cvxpy: floors as floors."""
    x = cp.Variable(len(question.job), nonneg=True)
    pools = np.zeros((len(question.capacity), len(question.job)))
    np.add.at(pools, (question.use_pool, question.use_column), question.use_count)
    of_jobs = np.equal.outer(np.arange(question.jobs), question.job).astype(float)
    rows = [of_jobs @ x <= 1, pools @ x <= question.capacity, use @ x >= floor]
    return float(cp.Problem(cp.Maximize(question.value @ x), rows).solve(solver=cp.HIGHS))


@pytest.mark.parametrize("seeds", [range(*each) for each in pairwise(range(0, 41, 10))], ids=str)
def test_statement_prices_and_whole_gangs_agree_on_floors(seeds: range) -> None:
    bound_by_a_floor = 0
    for seed in seeds:
        found = asked(seed)
        if found is None:
            continue
        told, _ = found
        kept, floored, prices = assign_with_guarantees(told, assign_by_search)
        held = np.minimum(told.held(kept.column), told.left)
        is_floored = len(floored.capacity) > len(told.question.capacity)
        use = told.inside[:, told.question.job] * told.question.size
        optimum = floor_program(told.question, use, held if is_floored else np.zeros(len(held)))
        scale = SAME * max(1.0, optimum)
        stated = relaxed_optimum(floored)
        assert stated is not None
        assert stated[0] == pytest.approx(optimum, abs=scale), f"seed {seed}: the statement is the definition"
        assert floored.dual_bound(stated[1]) == pytest.approx(optimum, abs=scale), f"seed {seed}: its duals prove it"
        assert kept.value - scale <= optimum <= kept.bound + scale, f"seed {seed}: prices bound it"
        whole = whole_assignment_bound(floored)
        assert kept.value - scale <= whole <= optimum + scale, f"seed {seed}: so does the integer program"
        assert np.all(prices >= 0)
        bound_by_a_floor += bool(prices.any())
    assert bound_by_a_floor >= 2


def most_kept(told: GuaranteeQuestion) -> float:
    """The most that any assignment of whole gangs keeps of all guarantees together, in gangs that fit them whole."""
    with_bonuses, origin = told.with_bonuses()
    is_bonus = with_bonuses.value > told.question.value[origin] + SAME
    rows = np.zeros(len(origin))
    of_entities = with_bonuses.use_pool >= len(told.question.capacity)
    np.add.at(rows, with_bonuses.use_column[of_entities], with_bonuses.use_count[of_entities])
    return whole_assignment_bound(replace(with_bonuses, value=np.where(is_bonus, rows, 1e-9)))


def test_as_much_is_kept_as_whole_gangs_allow() -> None:
    """Of 40 problems: what the best integer program keeps, or all but a gang of it; and mostly just that."""
    exact = counted = 0
    for seed in range(40):
        found = asked(seed)
        if found is None:
            continue
        told, _ = found
        kept, _, _ = assign_with_guarantees(told, assign_by_search)
        reached, most = float(np.minimum(told.held(kept.column), told.left).sum()), most_kept(told)
        assert reached >= most - 4 - SAME, f"seed {seed}"
        exact += reached >= most - SAME
        counted += 1
    assert exact >= 0.95 * counted


def test_without_a_job_that_waits_for_its_guarantee_the_plan_is_what_it_was() -> None:
    """To the bit, its certificate among it."""
    same = 0
    for seed in range(40):
        found = asked(seed)
        if found is None:
            continue
        told, _ = found
        plain = assign_by_search(told.question)
        kept, question, prices = assign_with_guarantees(told, assign_by_search)
        if told.is_short(plain.column):
            continue
        assert np.array_equal(kept.column, plain.column)
        assert (kept.bound, question, prices.any()) == (plain.bound, told.question, False)
        same += 1
    assert same >= 10


def crowd(seed: int) -> GuaranteeQuestion:
    """2,000 gangs on three pools of 100; of eight projects three have jobs worth less: two are guaranteed
    30 each, the third has had its part already.
    """
    random, jobs = np.random.default_rng(seed), 2000
    size = random.choice([1.0, 2.0, 4.0, 8.0], jobs, p=[0.7, 0.1, 0.15, 0.05])
    project = random.integers(0, 8, jobs)
    worth = size**0.8 * random.lognormal(0.0, 0.2, jobs) * np.where(project < 3, 0.7, 1.0)
    value = worth[:, None] * random.uniform(0.3, 1.0, (jobs, 3))
    columns, size = np.arange(3 * jobs), np.repeat(size, 3)
    question = AssignmentProblem(columns // 3, value.ravel(), columns, columns % 3, size, np.full(3, 100.0))
    return GuaranteeQuestion(question, np.array([30.0, 30.0, 0.0]), project == np.arange(3)[:, None])


@pytest.mark.parametrize("seed", range(3))
def test_prices_with_guarantees_prove_no_more_than_prices_without(seed: int) -> None:
    """In a crowd too: what must be kept only lowers what a plan could be worth, and its bound with it."""
    told = crowd(seed)
    plain = assign_by_search(told.question)
    kept, _, prices = assign_with_guarantees(told, assign_by_search)
    assert told.is_short(plain.column)
    assert prices[:2].any()
    assert prices[2] == 0
    assert kept.value <= kept.bound <= plain.bound * (1 + SAME)
    assert kept.gap <= 0.02


def flooded(guaranteed: float) -> Problem:
    """Two long jobs of the first project, eight short ones of the second, on four accelerators."""
    setting = Setting(
        [[1.0]] * 10, [4], entity=[0, 0] + [1] * 8, entity_weights=[1, 1], remaining_steps=[9e5, 8e5, *[1e3] * 8]
    )
    problem = build(setting)
    return replace(problem, entities=replace(problem.entities, guaranteed=np.array([guaranteed, 0.0])))


def test_a_guarantee_is_kept_at_once_and_has_a_price() -> None:
    """Others would pay more for the place: what the job need not pay is the price of the guarantee."""
    without, _ = Walras(slowdown=1e9).decide(flooded(0.0), None)
    assert (without.column[:2] < 0).all(), "short jobs are worth more"
    plan, _ = Walras(slowdown=1e9).decide(flooded(0.25), None)
    assert (plan.column[:2] >= 0).tolist() == [False, True], "one accelerator of four: its shorter job"
    assert plan.yardstick.gap <= 0.02
    assert plan.yardstick.objective < (without.yardstick.objective if without.yardstick else 0.0)
    assert plan.quote.prices[0] > 0
    assert plan.surplus[1] >= 0
    (told,) = plan.quote.entities
    assert (told.name, told.limit) == (flooded(0.25).entities.name[0], 0.0)
    assert 0 < told.guarantee <= plan.quote.prices[0]
    assert without.quote.entities == ()


def test_of_jobs_worth_the_same_others_have_what_is_beyond_the_guarantee() -> None:
    """Two jobs of b came first and six of a, whose guarantee is one of two accelerators: each project has one."""
    setting = Setting([[1.0]] * 8, [2], entity=[1, 1, *[0] * 6], entity_weights=[1, 1], remaining_steps=[1e4] * 8)
    problem = build(setting)
    problem = replace(problem, entities=replace(problem.entities, guaranteed=np.array([0.5, 0.0])))
    plan, _ = Walras().decide(problem, None)
    assert (plan.column >= 0)[:2].sum() == 1
    assert (plan.column >= 0)[2:].sum() == 1


def test_what_cannot_be_moved_counts_against_a_guarantee() -> None:
    """Its jobs that run fill it; those of others that cannot be moved leave nothing to give."""
    problem = flooded(0.25)
    for held, gets in ((range(1), 0), (range(2, 6), 0), (range(2, 5), 1)):
        running, pinned = np.zeros(10, dtype=np.bool_), np.zeros(10, dtype=np.bool_)
        running[list(held)] = pinned[list(held)] = True
        told = replace(
            problem, jobs=replace(problem.jobs, pinned=pinned), columns=replace(problem.columns, running=running)
        )
        plan, _ = Walras(slowdown=1e9).decide(told, None)
        assert sum(plan.column[row] >= 0 for row in (0, 1) if row not in held) == gets, list(held)


def test_a_gang_larger_than_its_guarantee_has_no_right_to_part_of_it() -> None:
    setting = Setting(
        [[1.0]] * 5, [4], gangs=[4, 1, 1, 1, 1], entity=[0, 1, 1, 1, 1], entity_weights=[1, 1],
        remaining_steps=[1e6, 1e3, 1e3, 1e3, 1e3],
    )  # fmt: skip
    problem = build(setting)
    for guaranteed, has in ((0.75, False), (1.0, True)):
        entities = replace(problem.entities, guaranteed=np.array([guaranteed, 0.0]))
        plan, _ = Walras(slowdown=1e9).decide(replace(problem, entities=entities), None)
        assert bool(plan.column[0] >= 0) == has, guaranteed


def test_a_guarantee_of_a_user_holds_inside_its_project() -> None:
    """Both users of the project flood it, one with long jobs: its guarantee takes from the other."""
    setting = Setting(
        [[1.0]] * 12, [4], entity=[1] * 4 + [2] * 4 + [3] * 4, entity_weights=[1, 1, 1, 1],
        remaining_steps=[9e5] * 4 + [1e3] * 4 + [1e2] * 4,
    )  # fmt: skip
    problem = build(setting)
    entities = replace(problem.entities, parent=np.array([-1, 0, 0, -1]), guaranteed=np.array([0.5, 0.25, 0.0, 0.0]))
    plan, _ = Walras(slowdown=1e9).decide(replace(problem, entities=entities), None)
    placed = plan.column >= 0
    assert [int(placed[rows].sum()) for rows in (slice(0, 4), slice(4, 8), slice(8, 12))] == [1, 1, 2]


def test_a_guarantee_counts_of_owned_machines_where_others_pay_for_the_rest() -> None:
    """Four owned and four rented: half is guaranteed to one whose riders are worth little; it has two owned places."""
    setting = Setting(
        [[1.0, 1.0]] * 16, [4, 4], entity=[0] * 6 + [1] * 10, entity_weights=[1, 1],
        remaining_steps=[9e5] * 6 + [1e3] * 10, values=[np.nan] * 12 + [5.0] * 4, rentable=[0, 4], rented=[0, 4],
        usd_per_h=[0.0, 1.0],
    )  # fmt: skip
    problem = build(setting)
    problem = replace(problem, entities=replace(problem.entities, guaranteed=np.array([0.5, 0.0])))
    plan, _, rental = plan_in_market(Walras(slowdown=1e9), problem, None, 0.0)
    assert rental is not None
    pool = np.where(plan.column >= 0, plan.column % 2, -1)
    assert (pool[:6] == 0).sum() == 2, "half of what is owned, not half of all"
    assert not (pool[:12] == 1).any(), "riders have no rented place that payers want"
    assert (pool[12:] >= 0).all()


def test_money_is_bounded_with_guarantees_as_rows() -> None:
    """What a plan that keeps a guarantee earns is next to what it could: without the floor the bound is far above."""
    problem = flooded(0.25)
    plan, _ = Walras(slowdown=1e9).decide(problem, None)
    value = np.array([1.0, 1.0] + [5.0] * 8)
    reached, bound = usd_certificate(problem, plan.column, value, stated=True)
    free = replace(problem, entities=replace(problem.entities, guaranteed=np.zeros(2)))
    assert (reached, bound) == pytest.approx((16.0, 16.0))
    assert usd_certificate(free, plan.column, value, stated=True)[1] == pytest.approx(20.0)
