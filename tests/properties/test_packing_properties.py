from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from packing import all_columns, max_min, most, packable_problems, throughput
from problems import rates_of

from optimizer.classes.class_problem import FULL
from optimizer.decision import ColocatedJobs
from optimizer.lp.staged_solution import StagedSolution, colocated_violation
from optimizer.problem import Problem
from optimizer.utility.fair_share import fair_share_utility


def runs(problem: Problem) -> bool:
    return bool(fair_share_utility(problem, aware=True).usable.any())


def check_pairs(problem: Problem, packed: ColocatedJobs) -> None:
    pairs = problem.pairs
    assert np.all(packed.first != packed.second)
    assert np.all(packed.share > 0)
    assert np.all(pairs.kind[packed.first] == pairs.first[packed.pair])
    assert np.all(pairs.kind[packed.second] == pairs.second[packed.pair])


def check_feasible(staged: StagedSolution) -> None:
    problem = staged.request.problem
    assert colocated_violation(problem, staged.request.utility.usable, staged.x, staged.packed) <= 1e-9
    check_pairs(problem, staged.packed)


@settings(max_examples=150, deadline=None)
@given(packable_problems())
def test_the_level_with_sharing_is_that_of_the_program_over_all_pairs(problem: Problem):
    """The shares reach it, no pair of two jobs is forgotten, and nobody can go further."""
    if not runs(problem):
        return
    staged, targets = max_min(problem)
    if not staged.stages:
        return
    check_feasible(staged)
    worth = staged.request.utility.worth
    level, bound = staged.first()
    assert bound >= level * (1 - 1e-8)
    assert bound <= level * (1 + 1e-6) + 1e-9
    reached = targets.at(level)[0]
    assert np.all(staged.worth_of(worth) >= reached * (1 - 2 * FULL))
    further = min(level * 1.01 + 1e-3, targets.highest)
    if further > level * (1 + 1e-6):
        theta = most(problem, worth, reached * (1 - 2 * FULL), targets.at(further)[0] - reached)
        assert theta * (further - level) <= 1e-6 * max(level, 1e-3)


@settings(max_examples=100, deadline=None)
@given(packable_problems())
def test_the_sum_with_sharing_is_that_of_the_program_over_all_pairs(problem: Problem):
    """To 1e-6, with a bound as close."""
    if not runs(problem):
        return
    staged = throughput(problem)
    check_feasible(staged)
    nothing, worth = np.zeros(len(problem.jobs)), staged.request.utility.worth
    exact = most(problem, worth, nothing, nothing, value=1.0)
    assert abs(float(staged.worth_of(worth).sum()) - exact) <= 1e-6 * max(exact, 1e-6)
    assert abs(staged.first()[1] - exact) <= 1e-6 * max(exact, 1e-6)


@settings(max_examples=60, deadline=None)
@given(packable_problems())
def test_sharing_never_lowers_the_level_nor_the_sum(problem: Problem):
    """What can be reached alone can be reached with sharing allowed."""
    if not runs(problem):
        return
    assert problem.pairs is not None
    apart = replace(problem, pairs=replace(problem.pairs, kind=np.full(len(problem.jobs), -1)))
    assert max_min(problem)[0].first()[0] >= max_min(apart)[0].first()[0] * (1 - 1e-7)
    assert throughput(problem).first()[0] >= throughput(apart).first()[0] * (1 - 1e-7)


@settings(max_examples=60, deadline=None)
@given(packable_problems())
def test_every_stage_is_proved_by_its_own_dual_values(problem: Problem):
    """No column and no pair of two jobs is worth more than it costs, and what is paid gives the bound."""
    if not runs(problem):
        return
    staged, targets = max_min(problem, leftover=True)
    if not staged.stages or not len(staged.stages[0].multiplier):
        return
    check_feasible(staged)
    for stage in staged.stages:
        value = 1.0 if stage.kind.value == "sum" else 0.0
        most_paid = max(1.0, float(stage.time.max()))
        for column in all_columns(problem, staged.request.utility, staged.request.utility.worth):
            gain = sum((value + stage.multiplier[job]) * amount for job, amount in column.gains)
            cost = sum(stage.time[job] for job, _ in column.gains)
            cost += sum(stage.prices[pool] * count for pool, count in column.uses)
            assert gain <= cost + 1e-7 * most_paid
        income = float(stage.time.sum() + stage.prices @ problem.pools.capacity)
        if stage.kind.value == "sum":
            bound = income - float(stage.multiplier @ stage.floor)
            assert abs(bound - stage.bound) <= 1e-7 * max(1.0, abs(bound))
        elif stage.bound < targets.highest:
            assert abs(stage.multiplier @ targets.at(stage.bound)[0] - income) <= 1e-6 * max(1.0, income)


@settings(max_examples=40, deadline=None)
@given(packable_problems())
def test_the_order_of_the_jobs_does_not_matter(problem: Problem):
    """Objectives of the problem with its jobs reversed are the same."""
    if not runs(problem):
        return
    n, columns, pairs = len(problem.jobs), problem.columns, problem.pairs
    order = np.argsort(n - 1 - columns.job, kind="stable")  # single-pool columns: one use each, in the same order
    turned = replace(
        problem,
        jobs=replace(problem.jobs, weight=problem.jobs.weight[::-1].copy(), gang=problem.jobs.gang[::-1].copy()),
        columns=replace(
            columns, job=(n - 1 - columns.job)[order], steps_per_s=columns.steps_per_s[order],
            use_pool=columns.use_pool[order], use_count=columns.use_count[order], running=columns.running[order],
        ),
        pairs=replace(pairs, kind=pairs.kind[::-1].copy()),
    )  # fmt: skip
    assert rates_of(turned, columns.running[order] + 1.0).sum() == rates_of(problem, columns.running + 1.0).sum()
    one, other = max_min(problem)[0].first()[0], max_min(turned)[0].first()[0]
    assert abs(one - other) <= 1e-7 * max(one, 1e-3)
    one, other = throughput(problem).first()[0], throughput(turned).first()[0]
    assert abs(one - other) <= 1e-7 * max(one, 1e-3)
