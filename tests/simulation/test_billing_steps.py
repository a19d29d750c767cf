"""Machines billed by the hour, in virtual time: used up before they go, and the bill to the cent."""

from dataclasses import replace
from random import Random

import pytest

from scheduler.core.commands import Command, ReleaseNode, Rent
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from tests.simulation.rented_market import HOUR_S, SURE, job, rented, run, scenario
from walras.cluster import Pool
from walras.states import JobState

POOL = replace(SURE, usd_per_h=2.0)
RULES = RoundRules(round_s=300.0, resolve_min_s=5.0, restart_default_s=5.0, delay_usd_per_h=50.0, rent_keep_s=120.0)


def billed(pool: Pool, jobs: list[SimulatedJob]) -> tuple[float, float, int, list[float]]:
    """The provider's bill, the core's own account, machines asked for, and when machines were given back."""
    core, asked, given_back = SchedulerCore(), 0, []

    def watch(event: Event, commands: list[Command]) -> None:
        nonlocal asked
        for command in commands:
            if isinstance(command, Rent):
                asked += command.machines
            elif isinstance(command, ReleaseNode):
                given_back.append(event.at)

    result = run(scenario(rented(pool), rules=RULES, costs=AttemptCosts(2.0, 1.0, 600.0)), jobs, watch, core)
    assert [each.state for each in result.jobs] == [JobState.SUCCEEDED] * len(jobs)
    spending = core.cycle.spending
    spending.everything.settle(core.ledger.now)
    # A run ends with its last job: of machines that are there then, what is begun is on the bill.
    account_usd = spending.everything.used + spending.committed(spending.everything)
    return result.bills[pool.pool_id], account_usd, asked, given_back


@pytest.mark.parametrize(("step_s", "asked"), [(0.0, 3), (HOUR_S, 2)])
def test_an_hour_that_is_paid_for_serves_the_next_job(step_s: float, asked: int) -> None:
    """Jobs of 500 s at 0, 2000 and 9000 s: billed by the second each gets a machine; by the hour the first two one."""
    jobs = [job(number, 500.0 / HOUR_S, at) for number, at in enumerate((0.0, 2000.0, 9000.0), 1)]
    bill, account, came, given_back = billed(replace(POOL, billing_step_s=step_s), jobs)
    assert came == asked
    assert bill == pytest.approx(account, abs=0.005)
    if step_s:
        assert bill == pytest.approx(2 * 2.0)
        assert given_back == [pytest.approx(100.0 + HOUR_S - 30.0)]


@pytest.mark.parametrize("seed", range(6))
def test_the_account_is_the_bill_to_the_cent(seed: int) -> None:
    """Random jobs, minimum billing and steps: what the core counts is what the provider asks."""
    random = Random(seed)
    pool = replace(
        POOL, minimum_billing_s=random.choice((0.0, 60.0, 900.0)), billing_step_s=random.choice((0.0, 60.0, HOUR_S))
    )
    jobs = [job(n, random.uniform(30.0, 4000.0) / HOUR_S, random.uniform(0.0, 4 * HOUR_S)) for n in range(1, 13)]
    bill, account, _, _ = billed(pool, jobs)
    assert bill == pytest.approx(account, abs=0.005)
