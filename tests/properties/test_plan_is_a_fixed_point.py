"""A plan that was carried out is the next plan: where nothing has changed, nobody moves, no machine comes or goes."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from optimizer.decision import Memory, Plan
from optimizer.policies.walras import Walras
from optimizer.problem import Entities, Problem
from optimizer.renting.machine_rental import Rental
from optimizer.renting.market_plan import plan_in_market
from tests.support.problems import Setting, build

HOUR_S = 3600.0
OWNED, RENTED = 0, 1


def random_market(seed: int) -> Problem:
    """Owned and rentable machines of unlike speeds, jobs of two projects, half of them worth something in USD."""
    random = Random(seed)
    n = random.randint(2, 14)
    values = [random.choice([np.nan, random.uniform(0.3, 6)]) for _ in range(n)]
    riders = int(np.isnan(values).sum())
    fast = [random.uniform(6, 12) for _ in range(n)]
    setting = Setting(
        [[speed, speed * random.choice([0.6, 0.8, 1.0])] for speed in fast],
        [float(random.choice([random.randint(1, 6), max(riders, 1)])), 0.0],
        remaining_steps=[speed * HOUR_S * random.uniform(0.3, 20) for speed in fast],
        rentable=[0.0, float(random.randint(1, 8))], usd_per_h=[0.0, 1.0], boot_s=[0.0, 120.0], values=values,
        submitted_at=[-random.uniform(0, 4 * HOUR_S) for _ in range(n)],
    )  # fmt: skip
    problem = build(setting)
    by_value = random.random() < 0.5
    entity = np.array([int(value > 0) if by_value else random.randrange(2) for value in values], dtype=np.int64)
    jobs = replace(
        problem.jobs, entity=entity, restart_s=np.full(n, 120.0), length_s=np.full(n, np.inf), done_steps=np.zeros(n)
    )
    tree = Entities(("a", "b"), np.ones(2), np.full(2, -1, dtype=np.int64))
    return replace(problem, jobs=jobs, entities=tree)


def carried_out(problem: Problem, plan: Plan, rental: Rental | None) -> Problem:
    """The problem once jobs run where they are planned, and machines have come and gone."""
    running = np.zeros(len(problem.columns), dtype=np.bool_)
    running[plan.column[plan.column >= 0]] = True
    pools = problem.pools
    if rental is not None:
        rented = rental.accelerators
        pools = replace(pools, capacity=pools.capacity - pools.held + rented, rented=rented)
    return replace(problem, columns=replace(problem.columns, running=running), pools=pools)


def settled(seed: int) -> tuple[Problem, Plan, Memory, Rental | None]:
    """A market after its machines have come: each plan carried out, until no machine comes or goes. One project is
    behind its share from before.
    """
    problem, behind = random_market(seed), {Random(seed).choice("ab"): Random(seed).uniform(0, 20_000)}
    memory: Memory = {"overdue": [], "fair": {"at": 0.0, "deficit": behind, "rate": {}}}
    for _ in range(4):
        plan, memory, rental = plan_in_market(Walras(), problem, memory, 0.0)
        problem = carried_out(problem, plan, rental)
    return problem, plan, memory, rental


@pytest.mark.parametrize("seed", range(120))
def test_the_present_plan_is_the_next_one(seed: int) -> None:
    """After the machines that money decided on have come and every job is where it was planned, the same question at
    the same instant has the same answer.
    """
    problem, before, memory, rental = settled(seed)
    again, _, rental_again = plan_in_market(Walras(), problem, memory, 0.0)
    assert again.column.tolist() == before.column.tolist()
    assert rental_again.machines.tolist() == rental.machines.tolist()


@pytest.mark.parametrize("seed", range(80))
def test_a_turn_is_kept_by_whoever_has_just_been_given_it(seed: int) -> None:
    """One or two accelerators, two projects with two users each, all of them behind, some jobs long overdue: who is
    given a place has it in the next plan too, and who waits waits.
    """
    random, n = Random(f"turns/{seed}"), 5
    hours = [random.uniform(1, 12) for _ in range(n)]
    problem = build(
        Setting([[10.0]] * n, [float(random.randint(1, 2))], remaining_steps=[36_000 * each for each in hours],
                submitted_at=[-HOUR_S * random.uniform(0, 40) for _ in range(n)])
    )  # fmt: skip
    tree = Entities(("p", "q", "p/a", "p/b", "q/c", "q/d"), np.ones(6), np.array([-1, -1, 0, 0, 1, 1]))
    jobs = replace(
        problem.jobs, entity=np.array([random.randrange(2, 6) for _ in range(n)]), restart_s=np.full(n, 150.0),
        length_s=np.full(n, np.inf), done_steps=np.zeros(n),
    )  # fmt: skip
    problem = replace(problem, jobs=jobs, entities=tree)
    owed = {name: random.uniform(0, random.choice([4_000, 20_000])) for name in tree.name}
    memory: Memory = {"overdue": [], "fair": {"at": 0.0, "deficit": owed, "rate": {}}}
    for _ in range(3):
        before, told = Walras().decide(problem, memory)
        problem, memory = carried_out(problem, before, None), {**told, "fair": memory["fair"]}
    after, _ = Walras().decide(problem, memory)
    assert after.column.tolist() == before.column.tolist()


@pytest.mark.parametrize("seed", range(30))
def test_a_payer_above_the_price_keeps_its_machine(seed: int) -> None:
    """Whoever is on a rented machine and worth more than its price is not left out by the next plan."""
    problem, before, memory, _ = settled(1000 + seed)
    value, columns = problem.jobs.value_usd_per_h, problem.columns
    again, _, _ = plan_in_market(Walras(), problem, memory, 0.0)
    for row, column in enumerate(before.column.tolist()):
        on_rented = column >= 0 and columns.use_pool[column] == RENTED
        best = columns.steps_per_s[columns.job == row].max()
        if on_rented and value[row] * columns.steps_per_s[column] / best > 1.05:
            assert again.column[row] >= 0
