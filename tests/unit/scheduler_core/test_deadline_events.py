"""A job gets another deadline while it waits or runs: it is looked at as one that was submitted with it."""

from dataclasses import replace
from math import inf

import pytest
from fake_fleet import FakeFleet, job, pool

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.explain.job_conditions import job_conditions
from scheduler.core.job_change_events import JobDeadlineChanged
from scheduler.core.rules import RoundRules
from walras.cluster import Market, NodeId, PoolId
from walras.job_request import JobId

J1 = JobId(1)
HOUR_S = 3600.0
SURE = replace(pool("a", quota=2, market=Market.ON_DEMAND), usd_per_h=1.0)


def fleet_of(deadline_at: float, **more: object) -> FakeFleet:
    """An hour of work in a cluster with machines on demand alone, which nobody pays for without a deadline."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(restart_default_s=20.0)))
    fleet.tell(ev.PoolDeclared(0.0, SURE))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", steps=HOUR_S, deadline_at=deadline_at, **more)))
    return fleet


def until(fleet: FakeFleet, at: float) -> None:
    while fleet.wake_at <= at:
        fleet.wake()
    fleet.tell(ev.Woke(at))


@pytest.mark.parametrize("before", [inf, 100 * HOUR_S])
def test_an_earlier_one_is_acted_on_at_once(before: float) -> None:
    """Machines are rented for it as if it had been submitted so."""
    fleet = fleet_of(before)
    until(fleet, 60.0)
    assert not fleet.rents
    fleet.tell(JobDeadlineChanged(fleet.at, J1, fleet.at + HOUR_S + 200.0))
    assert [rent.pool_id for rent in fleet.rents] == [PoolId("a")]


def test_a_later_one_gives_back_what_was_to_be_done_for_the_former() -> None:
    fleet = fleet_of(HOUR_S + 200.0)
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
    fleet = fleet_of(2 * HOUR_S)
    fleet.tell(JobDeadlineChanged(fleet.at, J1, inf))
    until(fleet, 10 * HOUR_S)
    assert not fleet.rents
    assert float(fleet.core.ledger.columns.deadline_at[fleet.core.ledger.jobs[J1].slot]) == inf


def test_many_changes_leave_one_watch() -> None:
    """Or a user could have the core look at one job ever more often."""
    fleet = fleet_of(50 * HOUR_S)
    for change in range(30):
        fleet.tell(JobDeadlineChanged(fleet.at, J1, (60.0 + change) * HOUR_S))
    assert [job_id for _, job_id in fleet.core.cycle.deadlines.heap] == [J1]


def test_what_explains_the_job_has_the_new_one() -> None:
    fleet = fleet_of(100 * HOUR_S)
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("a1"), SURE.pool_id, "token"))
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 1))
    assert not [each for each in job_conditions(fleet.core, J1) if "deadline" in each.detail or each.type == "at_risk"]
    fleet.tell(JobDeadlineChanged(fleet.at, J1, 0.5 * HOUR_S))
    (told,) = (each for each in job_conditions(fleet.core, J1) if each.type == "at_risk")
    assert "needs 1.0" in told.detail


def test_one_that_was_moved_for_it_stays_where_it_is_for_an_earlier_one() -> None:
    """Only a later one frees it for what the policy does."""
    fleet = fleet_of(HOUR_S + 200.0)
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("a1"), SURE.pool_id, fleet.rents[0].token))
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 1))
    record = fleet.core.ledger.jobs[J1]
    assert record.is_secured
    fleet.tell(JobDeadlineChanged(fleet.at, J1, HOUR_S + 100.0))
    assert record.is_secured
    fleet.tell(JobDeadlineChanged(fleet.at, J1, 90 * HOUR_S))
    assert not record.is_secured
    assert J1 in fleet.attempts


def test_a_job_that_is_over_has_none() -> None:
    fleet = fleet_of(inf)
    fleet.tell(ev.JobCancelled(fleet.at, J1))
    assert fleet.tell(JobDeadlineChanged(fleet.at, J1, HOUR_S)) == []
