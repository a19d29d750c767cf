"""Where a job with a deadline would end in time for sure."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, job, pool

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.handlers.deadlines import deadline_outlook
from scheduler.core.rules import RoundRules
from walras.cluster import Market, NodeId, PoolId
from walras.job_request import JobId

CHEAP = replace(pool("a", quota=2, market=Market.ON_DEMAND), usd_per_h=1.0)
FAST = replace(pool("b", quota=2, market=Market.ON_DEMAND, speed=4.0), usd_per_h=30.0)
HOUR_S = 3600.0


def running(deadline_at: float) -> FakeFleet:
    """An hour of work that began at 0 on the cheap machine."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(restart_default_s=20.0)))
    for each in (CHEAP, FAST):
        fleet.tell(ev.PoolDeclared(0.0, each))
    fleet.tell(ev.NodeJoined(0.0, NodeId("a1"), CHEAP.pool_id, "token"))
    fleet.tell(ev.JobSubmitted(0.0, job(1, steps=HOUR_S, deadline_at=deadline_at)))
    fleet.tell(ev.AttemptStarted(0.0, JobId(1), 1))
    return fleet


@pytest.mark.parametrize(("spare_s", "where"), [(1200.0, "a"), (250.0, "a"), (70.0, "b"), (-600.0, "b")])
def test_machines_where_a_little_more_work_would_be_late_are_not_chosen(spare_s: float, where: str) -> None:
    """Checkpoints and warm-ups are in no speed: the cheapest with 30 s and 5 % to spare, dear as another may be."""
    fleet = running(HOUR_S + spare_s)
    found = deadline_outlook(fleet.core.ledger, fleet.core.ledger.jobs[JobId(1)])
    assert found is not None
    assert (found.pool_id, found.is_safe) == (PoolId(where), True)


def test_where_nothing_is_safe_the_one_that_may_be_in_time_is_chosen() -> None:
    """Better cut fine than given up."""
    fleet = running(HOUR_S + 10.0)
    fleet.tell(ev.PoolDeclared(0.0, replace(FAST, boot_s=3000.0)))
    found = deadline_outlook(fleet.core.ledger, fleet.core.ledger.jobs[JobId(1)])
    assert found is not None
    assert (found.pool_id, found.is_safe, found.is_feasible) == (CHEAP.pool_id, False, True)
