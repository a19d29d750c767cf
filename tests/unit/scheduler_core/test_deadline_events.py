"""A job gets another deadline: it is looked at as one submitted with it; and where it would end in time for sure."""

from dataclasses import replace
from math import inf

import pytest
from fake_fleet import FakeFleet, fleet_of, job, pool

from scheduler.core import events as ev
from scheduler.core.events import JobDeadlineChanged
from scheduler.core.explain.job_conditions import job_conditions
from scheduler.core.handlers.deadlines import deadline_outlook
from walras.cluster import Market, NodeId, PoolId
from walras.job_request import JobId

J1 = JobId(1)
HOUR_S = 3600.0
SURE = replace(pool("a", quota=2, market=Market.ON_DEMAND), usd_per_h=1.0)


def renting(deadline_at: float, **more: object) -> FakeFleet:
    """An hour of work in a cluster with machines on demand alone, which nobody pays for without a deadline."""
    fleet = fleet_of(SURE, restart_default_s=20.0)
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", steps=HOUR_S, deadline_at=deadline_at, **more)))
    return fleet


def until(fleet: FakeFleet, at: float) -> None:
    fleet.until(at)
    fleet.tell(ev.Woke(at))


@pytest.mark.parametrize("before", [inf, 100 * HOUR_S])
def test_an_earlier_one_is_acted_on_at_once(before: float) -> None:
    """Machines are rented for it as if it had been submitted so."""
    fleet = renting(before)
    until(fleet, 60.0)
    assert not fleet.rents
    fleet.tell(JobDeadlineChanged(fleet.at, J1, fleet.at + HOUR_S + 200.0))
    assert [rent.pool_id for rent in fleet.rents] == [PoolId("a")]


def test_a_later_one_gives_back_what_was_to_be_done_for_the_former() -> None:
    fleet = renting(HOUR_S + 200.0)
    assert len(fleet.rents) == 1
    record = fleet.core.ledger.jobs[J1]
    assert record.deadline_pool >= 0
    fleet.tell(JobDeadlineChanged(fleet.at, J1, 100 * HOUR_S))
    assert record.deadline_pool < 0
    fleet.tell(ev.RentFailed(fleet.at, fleet.rents[0].token, "no capacity"))
    until(fleet, 10 * HOUR_S)
    assert len(fleet.rents) == 1
    until(fleet, 99.5 * HOUR_S)
    assert len(fleet.rents) > 1


def test_without_one_it_waits_as_others_do() -> None:
    """Many changes leave one watch, or one user could have the core look ever more often; one that is over has none."""
    fleet = renting(2 * HOUR_S)
    fleet.tell(JobDeadlineChanged(fleet.at, J1, inf))
    until(fleet, 10 * HOUR_S)
    assert not fleet.rents
    assert float(fleet.core.ledger.columns.deadline_at[fleet.core.ledger.jobs[J1].slot]) == inf
    fleet = renting(50 * HOUR_S)
    for change in range(30):
        fleet.tell(JobDeadlineChanged(fleet.at, J1, (60.0 + change) * HOUR_S))
    assert [job_id for _, job_id in fleet.core.cycle.deadlines.heap] == [J1]
    fleet = renting(inf)
    fleet.tell(ev.JobCancelled(fleet.at, J1))
    assert fleet.tell(JobDeadlineChanged(fleet.at, J1, HOUR_S)) == []


def test_what_explains_the_job_has_the_new_one() -> None:
    """One that was moved for its deadline stays for an earlier one; a later one frees it for what the policy does."""
    fleet = renting(100 * HOUR_S)
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("a1"), SURE.pool_id, "token"))
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 1))
    assert not [each for each in job_conditions(fleet.core, J1) if "deadline" in each.detail or each.type == "at_risk"]
    fleet.tell(JobDeadlineChanged(fleet.at, J1, 0.5 * HOUR_S))
    (told,) = (each for each in job_conditions(fleet.core, J1) if each.type == "at_risk")
    assert told.detail == "its deadline cannot be met: it needs 1h00m more on a; has 30m00s left"
    fleet = renting(HOUR_S + 200.0)
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("a1"), SURE.pool_id, fleet.rents[0].token))
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 1))
    record = fleet.core.ledger.jobs[J1]
    assert record.is_secured
    fleet.tell(JobDeadlineChanged(fleet.at, J1, HOUR_S + 100.0))
    assert record.is_secured
    fleet.tell(JobDeadlineChanged(fleet.at, J1, 90 * HOUR_S))
    assert not record.is_secured
    assert J1 in fleet.attempts


@pytest.mark.parametrize("count", [1, 2])
def test_a_free_place_goes_to_a_higher_class_that_fits_before_a_late_job(count: int) -> None:
    """It has room for one: whoever of the higher class can start has it, else the job whose machine has not come."""
    fleet = fleet_of(SURE, pool("o"), restart_default_s=20.0)
    fleet.tell(ev.JobSubmitted(0.0, job(1, steps=HOUR_S, deadline_at=HOUR_S + 200.0)))
    assert len(fleet.rents) == 1
    for number in (2, 3, 4):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "o", count, priority=90, held=number == 2)))
    fleet.tell(ev.NodeJoined(0.0, NodeId("o1"), PoolId("o")))
    assert list(fleet.attempts) == [JobId(3 if count == 1 else 1)]


FAST = replace(pool("b", quota=2, market=Market.ON_DEMAND, speed=4.0), usd_per_h=30.0)


def running(deadline_at: float) -> FakeFleet:
    """An hour of work that began at 0 on the cheap machine."""
    fleet = fleet_of(SURE, FAST, restart_default_s=20.0)
    fleet.tell(ev.NodeJoined(0.0, NodeId("a1"), SURE.pool_id, "token"))
    fleet.tell(ev.JobSubmitted(0.0, job(1, steps=HOUR_S, deadline_at=deadline_at)))
    fleet.run(1)
    return fleet


@pytest.mark.parametrize(("spare_s", "where"), [(1200.0, "a"), (250.0, "a"), (70.0, "b"), (-600.0, "b")])
def test_machines_where_a_little_more_work_would_be_late_are_not_chosen(spare_s: float, where: str) -> None:
    """Checkpoints and warm-ups are in no speed: the cheapest with 30 s and 5 % to spare, dear as another may be."""
    fleet = running(HOUR_S + spare_s)
    found = deadline_outlook(fleet.core.cycle, fleet.core.ledger.jobs[JobId(1)])
    assert (found.pool_id, found.is_safe) == (PoolId(where), True)


def test_where_nothing_is_safe_the_one_that_may_be_in_time_is_chosen() -> None:
    """Better cut fine than given up."""
    fleet = running(HOUR_S + 10.0)
    fleet.tell(ev.PoolDeclared(0.0, replace(FAST, boot_s=3000.0)))
    found = deadline_outlook(fleet.core.cycle, fleet.core.ledger.jobs[JobId(1)])
    assert (found.pool_id, found.is_safe, found.is_feasible) == (SURE.pool_id, False, True)
