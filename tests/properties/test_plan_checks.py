"""The checker on random plans of `walras`: honest ones hold in every part, doctored ones do not."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from problems import Setting, build

from optimizer.check.certificate import check_decision
from optimizer.decision import BoundReport, Memory, Plan
from optimizer.policies.hadar import Hadar
from optimizer.policies.walras import Walras
from optimizer.policy import PolicySpec
from optimizer.problem import BoolArray, Columns, Entities, Problem

PROJECTS = Entities(("a", "b", "b/x", "b/y"), np.array([1.0, 2.0, 1.0, 1.0]), np.array([-1, -1, 1, 1]))


def asked(seed: int) -> tuple[Problem, Memory, PolicySpec]:
    """Jobs that run, wait, are overdue, cannot be moved, have no known length or may take two counts; of two projects
    with users, with limits or guarantees, behind their shares; of one priority class or two.
    """
    draw, random = Random(seed), np.random.default_rng(seed)
    n, p = draw.randint(1, 21), draw.randint(1, 3)
    gangs = [1.0] * n if seed % 5 < 2 else [float(draw.choice([1, 2, 4])) for _ in range(n)]
    setting = Setting(
        random.uniform(0.5, 2, (n, p)).tolist(),
        [draw.randint(2, 8) for _ in range(p)],
        gangs=gangs,
        remaining_steps=[draw.choice([draw.uniform(0, 9e3)] * 4 + [np.inf]) for _ in range(n)],
        entity=[draw.choice([0, 2, 3]) for _ in range(n)],
        entity_weights=[1.0] * 4,
        submitted_at=[draw.uniform(0, 9000) for _ in range(n)],
    )
    problem = build(setting)
    running, columns = _running(problem, draw), problem.columns
    if seed % 3 == 0:
        columns = replace(columns, use_count=columns.use_count * np.where(random.random(len(columns)) < 0.2, 2.0, 1.0))
        running &= columns.use_count == problem.columns.use_count
    runs = np.isin(np.arange(n), columns.job[running])
    jobs = replace(
        problem.jobs,
        priority_class=np.array([draw.choice([50, 80]) if seed % 4 == 0 else 50 for _ in range(n)]),
        restart_s=np.full(n, draw.choice([0.0, 30.0, 120.0])),
        done_steps=np.where(runs, random.uniform(0, 4000, n), 0.0),
        attained_s=np.where(runs, random.uniform(0, 4000, n), 0.0),
        length_s=np.array([draw.choice([np.inf, 3000.0]) for _ in range(n)]),
        pinned=runs & (random.random(n) < 0.3),
    )
    tree = replace(PROJECTS, limit=np.array([0.3, 0.6, 1, 0.25])) if seed % 3 == 1 else PROJECTS
    tree = replace(tree, guaranteed=np.array([0.3, 0.5, 0.2, 0.1])) if seed % 5 == 2 else tree
    ended_s = random.uniform(60, 9000, 6)
    problem = replace(
        problem, at=10_000.0, jobs=jobs, columns=replace(columns, running=running), entities=tree, finished_s=ended_s
    )
    deficit = {"a": draw.uniform(0, 2e4), "b/x": draw.uniform(0, 2e4)}
    fair = {"at": 9000.0, "deficit": deficit, "rate": {"b/x": 1.0}}
    memory = {"overdue": [int(jobs.job_id[draw.randrange(n)])], "fair": fair} if seed % 2 else None
    return problem, memory, PolicySpec("walras", {} if seed % 6 else {"slowdown": 3.0, "usd": 0.1, "reserve": 0.3})


def _running(problem: Problem, draw: Random) -> BoolArray:
    """Some jobs in one of their columns each, within the capacity."""
    columns, free = problem.columns, problem.pools.capacity.copy()
    running = np.zeros(len(columns), dtype=np.bool_)
    for c in draw.sample(range(len(columns)), len(columns)):
        pool, count = columns.use_pool[c], columns.use_count[c]
        if draw.random() < 0.3 and count <= free[pool] and not running[columns.job == columns.job[c]].any():
            running[c] = True
            free[pool] -= count
    return running


def planned(seed: int) -> tuple[Problem, Memory, PolicySpec, Plan]:
    problem, memory, policy = asked(seed)
    return problem, memory, policy, Walras(**policy.parameters).decide(problem, memory)[0]


@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 300, 50)], ids=str)
def test_honest_plans_hold(seeds: range) -> None:
    """Objective, bound, gap, surpluses, places given before others and the order are what the checker finds."""
    for seed in seeds:
        problem, memory, policy, plan = planned(seed)
        checked = check_decision(problem, policy, plan, memory)
        assert checked.complaints == (), f"seed {seed}"
        assert checked.objective == pytest.approx(plan.yardstick.objective)


@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 200, 50)], ids=str)
def test_plans_of_hadar_hold_and_doctored_ones_do_not(seeds: range) -> None:
    for seed in seeds:
        problem, policy = asked(seed)[0], PolicySpec("hadar", {"round_s": 300.0})
        plan = Hadar(round_s=300.0).decide(problem, None)[0]
        assert check_decision(problem, policy, plan, None).complaints == (), f"seed {seed}"
        missed = [
            name
            for name, lie in _lies(plan, exact=True)
            if name != "order" and check_decision(problem, policy, lie, None).holds
        ]
        assert missed == [], f"seed {seed}"


def test_doctored_plans_are_noticed() -> None:
    """In 80 plans: an objective or an exact bound off by 1 %, halved prices, a job left out, a doubled surplus, ..."""
    tried, missed = 0, []
    for seed in range(400, 480):
        problem, memory, policy, plan = planned(seed)
        for name, lie in _lies(plan, exact=len(set(problem.jobs.priority_class.tolist())) == 1):
            tried += 1
            if check_decision(problem, policy, lie, memory).holds:
                missed.append((seed, name))
    assert tried > 400
    assert missed == []


def _lies(plan: Plan, *, exact: bool) -> Iterator[tuple[str, Plan]]:
    """Doctored plans. With one priority class the prices tell the bound and the costs exactly."""
    report, prices, placed = plan.yardstick, plan.quote.prices, np.flatnonzero(plan.column >= 0)
    gainers = np.flatnonzero(plan.surplus > 1e-6)
    if report.objective > 0:
        higher = report.objective * 1.01
        yield "objective", replace(plan, yardstick=_told(report, higher, max(report.bound, higher)))
        dropped = plan.column.copy()
        dropped[placed[0]] = -1
        yield "a job left out", replace(plan, column=dropped)
    if report.gap > 0.01:
        yield "gap", replace(plan, yardstick=replace(report, gap=report.gap / 2))
    if exact and report.bound > report.objective * 1.02:
        yield "bound lowered", replace(plan, yardstick=_told(report, report.objective, report.bound * 0.99))
    if exact and report.bound > 0:
        yield "bound raised", replace(plan, yardstick=_told(report, report.objective, report.bound * 1.01))
    if exact and prices.any() and len(gainers):
        yield "prices", replace(plan, quote=replace(plan.quote, prices=prices * 0.5, entities=()))
    if exact and len(gainers):
        doubled = plan.surplus.copy()
        doubled[gainers[0]] *= 2
        yield "surplus", replace(plan, surplus=doubled)
    if len(set(plan.surplus.tolist())) > 2:
        yield "order", replace(plan, rows=plan.rows[::-1].copy())


def _told(report: BoundReport, objective: float, bound: float) -> BoundReport:
    return replace(report, objective=objective, bound=bound, gap=abs(bound - objective) / max(1e-12, abs(bound)))


@pytest.mark.parametrize("seed", range(401, 409))
def test_two_gangs_of_one_job_in_a_pool_are_measured_by_the_thriftier(seed: int) -> None:
    """An elastic job: the checker follows its reference configuration, and what its restarts leave of its time."""
    problem, memory, policy = asked(seed)
    columns = problem.columns
    twice = Columns(
        np.repeat(columns.job, 2), np.repeat(columns.steps_per_s, 2) * np.tile([1.0, 1.6], len(columns)),
        np.arange(2 * len(columns)), np.repeat(columns.use_pool, 2),
        np.repeat(columns.use_count, 2) * np.tile([1.0, 2.0], len(columns)),
        np.repeat(columns.running, 2) & np.tile([True, False], len(columns)),
    )  # fmt: skip
    elastic = replace(problem, columns=twice)
    for starts in (0, 1, 30, 400):
        history = [[job, 2.0, starts, [problem.pools.pool_id[0], 1.0]] for job in problem.jobs.job_id.tolist()]
        told = (memory or {"overdue": []}) | {"jobs": history}
        plan, _ = Walras(**policy.parameters).decide(elastic, told)
        assert check_decision(elastic, policy, plan, told).complaints == ()
