"""A retry avoids the machines on which the job failed: first by preference, then insisting, never for nothing."""

import pytest
from fake_fleet import FakeFleet, cluster, job, remembered_state

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.placement.retry_waits import DELAY_MOST_S
from scheduler.core.rules import RoundRules
from scheduler.core.share_events import EntityShare, ShareLimit, SharesDeclared
from walras.cluster import NodeId
from walras.job_request import JobId, RetryRule
from walras.states import Reason

J1, J2, J3 = JobId(1), JobId(2), JobId(3)
ROUND_S = 20.0
RULES = RoundRules(round_s=ROUND_S, backoff_s=0.0)


def fleet_of(machines: str, policy: str = "fifo") -> FakeFleet:
    return cluster(policy, machines=machines, rules=RULES)


def submit(fleet: FakeFleet, number: int, accelerator: str = "c", count: int = 1) -> None:
    fleet.tell(ev.JobSubmitted(fleet.at, job(number, accelerator, count, retry=RetryRule(9))))


def where(fleet: FakeFleet, job_id: JobId) -> list[str]:
    """The machines on which the job runs; empty: it waits."""
    attempt = fleet.attempts.get(job_id)
    return [] if attempt is None else [str(part.node_id) for part in attempt.placement.parts]


def test_a_retry_goes_to_another_machine_that_is_free() -> None:
    """Were it not for the failure, it would start on the first machine again."""
    fleet = fleet_of("cc")
    submit(fleet, 1)
    assert where(fleet, J1) == ["c1"]
    fleet.end(J1, exit_code=3)
    assert where(fleet, J1) == ["c2"]


def test_failures_of_the_world_count_and_stops_on_demand_do_not() -> None:
    fleet = fleet_of("ccc")
    submit(fleet, 1)
    fleet.attempts.pop(J1)
    fleet.tell(ev.StartRefused(fleet.at, J1, 1, NodeId("c1"), "full disk"))
    assert where(fleet, J1) == ["c2"]
    fleet.attempts.pop(J1)
    fleet.tell(ev.AttemptEnded(fleet.at, J1, 2, ev.EndCause.LEASE_EXPIRED))
    assert where(fleet, J1) == ["c3"]
    fleet.tell(ev.JobHeld(fleet.at, J1))
    fleet.end(J1, exit_code=85)
    assert set(fleet.core.ledger.retries.failed[J1]) == {"c1", "c2"}


def test_it_waits_a_round_at_most_for_another_machine() -> None:
    """What it leaves alone meanwhile is free for others, of its own kind too."""
    fleet = fleet_of("cc")
    submit(fleet, 2)
    submit(fleet, 1)
    assert (where(fleet, J2), where(fleet, J1)) == (["c1"], ["c2"])
    fleet.end(J1, exit_code=3)
    assert where(fleet, J1) == []
    told = pending_reasons(fleet.core, J1)[0]
    assert told.reason is Reason.WAIT_CAPACITY
    assert "but only on c2, where it failed: it waits for another machine, for 20s at most" in told.detail
    while fleet.at < ROUND_S:
        assert where(fleet, J1) == []
        fleet.wake()
    assert (fleet.at, where(fleet, J1)) == (ROUND_S, ["c2"])


def test_under_long_rounds_it_waits_half_a_minute() -> None:
    fleet = cluster(machines="cc", rules=RoundRules(round_s=3600.0, backoff_s=0.0))
    submit(fleet, 2)
    submit(fleet, 1)
    fleet.end(J1, exit_code=3)
    fleet.tell(ev.Woke(DELAY_MOST_S - 1.0))
    assert where(fleet, J1) == []
    fleet.tell(ev.Woke(DELAY_MOST_S))
    assert where(fleet, J1) == ["c2"]


def test_after_two_failures_it_insists_on_another_machine() -> None:
    """Others have the free one; it starts as soon as another is free, however long that takes."""
    fleet = fleet_of("cc")
    submit(fleet, 2)
    submit(fleet, 1)
    fleet.end(J1, exit_code=3)
    fleet.tell(ev.Woke(ROUND_S))
    assert where(fleet, J1) == ["c2"]
    fleet.end(J1, exit_code=3)
    fleet.tell(ev.Woke(100 * ROUND_S))
    assert where(fleet, J1) == []
    assert "as long as there is one" in pending_reasons(fleet.core, J1)[0].detail
    submit(fleet, 3)
    assert where(fleet, J3) == ["c2"]
    fleet.end(J2)
    assert where(fleet, J1) == ["c1"]


@pytest.mark.parametrize("gone", ["lost", "drained", "forbidden"])
def test_the_last_machine_is_good_enough(gone: str) -> None:
    """Where the other machine is gone, takes no jobs, or is beyond what the job's project may hold."""
    fleet = fleet_of("cb")
    submit(fleet, 2, "b", 2)
    fleet.tell(ev.JobSubmitted(fleet.at, job(1, "*", retry=RetryRule(9), project="p")))
    for _ in range(2):
        while where(fleet, J1) == []:
            fleet.wake()
        assert where(fleet, J1) == ["c1"]
        fleet.end(J1, exit_code=3)
    assert where(fleet, J1) == []
    if gone == "lost":
        fleet.lose(NodeId("b2"))
    elif gone == "drained":
        fleet.tell(ev.NodeLeaving(fleet.at, NodeId("b2"), fleet.at + 900.0))
    else:
        fleet.tell(SharesDeclared(fleet.at, (EntityShare("p", limits=(ShareLimit("b", 0),)),)))
    assert where(fleet, J1) == ["c1"]


def test_of_two_pools_the_other_is_taken() -> None:
    """Under an order that would choose the faster pool again, and under shares, whose problem leaves the pool out."""
    for policy in ("fifo", "max_min_fairness"):
        fleet = fleet_of("ab", policy)
        submit(fleet, 1, "*")
        first = where(fleet, J1)
        fleet.end(J1, exit_code=3)
        while where(fleet, J1) == [] and fleet.at < ROUND_S:
            fleet.wake()
        assert len(where(fleet, J1)) == 1
        assert where(fleet, J1) != first, policy


def test_a_gang_leaves_out_the_machine_that_failed_it() -> None:
    fleet = fleet_of("bbb")
    submit(fleet, 1, "b", 4)
    fleet.prepare_all(J1)
    assert where(fleet, J1) == ["b1", "b2"]
    fleet.end(J1, exit_code=3)
    assert where(fleet, J1) == ["b2", "b3"]


def test_a_checkpoint_clears_the_machine_and_a_restart_does_not() -> None:
    fleet = fleet_of("cc")
    submit(fleet, 1)
    fleet.end(J1, exit_code=3)
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 2))
    fleet.end(J1, exit_code=3)
    fleet.restart(remembered_state(fleet.core.ledger))
    assert set(fleet.core.ledger.retries.failed[J1]) == {"c1", "c2"}
    fleet.tell(ev.Woke(fleet.at + ROUND_S))
    (here,) = where(fleet, J1)
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 3))
    fleet.tell(ev.CheckpointRecorded(fleet.at, J1, 3, 10.0, 0.1))
    assert here not in fleet.core.ledger.retries.failed[J1]
    commands = fleet.end(J1)
    assert [each.state for each in commands if isinstance(each, cmd.JobTransitioned)] == ["SUCCEEDED"]
    assert not fleet.core.ledger.retries.failed
