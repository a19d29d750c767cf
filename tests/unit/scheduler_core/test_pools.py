"""Pools that are drained and removed: nothing new starts or is rented there, and what is left of one is nothing."""

from dataclasses import replace
from math import inf

import pytest

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import MachineCondition
from scheduler.live.store.event_journal import decode_event, encode_command, encode_event
from tests.support.fake_fleet import FakeFleet, cluster, job, pool, remembered_state
from walras.cluster import Market, NodeId, Pool, PoolId
from walras.job_request import JobId
from walras.states import JobState, Reason

POLICIES = ("fifo", "max_min_fairness", "walras")
SPOT = pool("s", 2, market=Market.SPOT, quota=3)


def declared(fleet: FakeFleet, name: str) -> Pool:
    row = fleet.core.ledger.fleet.pool_row(PoolId(name))
    assert row is not None
    return fleet.core.ledger.fleet.pools[row].pool


def drain(fleet: FakeFleet, name: str, *, off: bool = False) -> list[cmd.Command]:
    return fleet.tell(ev.PoolDeclared(fleet.at, replace(declared(fleet, name), drained=not off)))


def think(fleet: FakeFleet, seconds: float = 0.0) -> None:
    """The policy itself answers, over some rounds."""
    until = fleet.at + seconds
    while True:
        while fleet.solves:
            solve = fleet.solves.pop()
            fleet.tell(ev.Solved(fleet.at, solve.request_id, run_solve(solve)))
        if fleet.wake_at > until:
            return
        fleet.wake()


def reasons_of(fleet: FakeFleet, job_id: int) -> str:
    return "; ".join(f"{each.detail} {each.fix}" for each in pending_reasons(fleet.core, JobId(job_id)))


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_starts_on_a_drained_pool_until_it_is_drained_no_more(policy: str) -> None:
    """What waits is told so; the machine takes jobs again once the drain is over."""
    fleet = cluster(policy, machines="a")
    drain(fleet, "a")
    fleet.tell(ev.NodeJoined(1.0, NodeId("late"), PoolId("a")))
    fleet.tell(ev.JobSubmitted(2.0, job(1, "a", 2)))
    assert not fleet.attempts
    assert "is drained" in reasons_of(fleet, 1)
    assert "walras admin pool drain a --off" in reasons_of(fleet, 1)
    drain(fleet, "a", off=True)
    for name in ("a1", "late"):
        fleet.tell(ev.NodeUncordoned(3.0, NodeId(name)))
    think(fleet, 60.0)
    assert fleet.attempts[JobId(1)].placement.pool_id == "a"


def test_what_runs_follows_the_gentle_drain_of_its_machine() -> None:
    """Who may be stopped leaves and waits; who may not runs to its end."""
    fleet = cluster("fifo", machines="aa")
    for job_id, may_stop in ((1, True), (2, False)):
        fleet.tell(ev.JobSubmitted(0.0, job(job_id, "a", 4, preemptible=may_stop)))
        fleet.tell(ev.AttemptStarted(0.0, JobId(job_id), 1))
        fleet.tell(ev.CheckpointRecorded(0.0, JobId(job_id), 1, 10.0))
    commands = drain(fleet, "a")
    assert [each.job_id for each in commands if isinstance(each, cmd.Revoke)] == [1]
    fleet.end(JobId(1), 1)
    assert JobId(1) not in fleet.attempts
    assert fleet.core.ledger.jobs[JobId(1)].state is JobState.PENDING
    fleet.end(JobId(2))
    assert JobId(2) not in fleet.core.ledger.jobs


def rented(policy: str) -> FakeFleet:
    """One spot machine with a job on it that may not be stopped."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec(policy), RoundRules()))
    fleet.tell(ev.PoolDeclared(0.0, SPOT))
    fleet.tell(ev.NodeJoined(0.0, NodeId("m1"), SPOT.pool_id, "t"))
    return fleet


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drained_pool_rents_nothing_and_gives_back_what_is_empty(policy: str) -> None:
    """The machine with work goes when that has ended, the empty one within seconds; no request is made."""
    fleet = rented(policy)
    fleet.tell(ev.JobSubmitted(0.0, job(1, "s", 2, preemptible=False, value_usd_per_h=50.0)))
    think(fleet, 60.0)
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("m2"), SPOT.pool_id, "u"))
    asked = len(fleet.rents)
    drain(fleet, "s")
    fleet.tell(ev.JobSubmitted(fleet.at, job(2, "s", 2, value_usd_per_h=50.0)))
    think(fleet, 60.0)
    assert fleet.released == ["m2"]
    fleet.end(JobId(1))
    think(fleet, 60.0)
    assert fleet.released == ["m2", "m1"]
    assert len(fleet.rents) == asked
    assert not fleet.attempts


def test_a_core_that_takes_over_keeps_the_machine_whose_job_it_has_not_heard_of() -> None:
    """Machines of a drained pool are restored before their jobs: what runs there is not given back under them."""
    fleet = rented("fifo")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "s", 2, preemptible=False)))
    fleet.tell(ev.AttemptStarted(0.0, JobId(1), 1))
    drain(fleet, "s")
    fleet.at = 30.0
    old, pools = fleet.core.ledger, declared(fleet, "s")
    fleet.restart()
    assert pools.drained
    fleet.tell(ev.Woke(60.0))
    assert old is not fleet.core.ledger
    assert not fleet.released
    assert fleet.core.ledger.jobs[JobId(1)].place


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_left_of_a_removed_pool(policy: str) -> None:
    """Jobs that only it could run are told so; others go on; the problem and what a successor hears name it no more."""
    fleet = cluster(policy, machines="ac")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "b", 1)))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "*", 1)))
    think(fleet)
    fleet.tell(ev.PoolRemoved(fleet.at, PoolId("b")))
    assert "b, which it accepts, was removed" in reasons_of(fleet, 1)
    assert fleet.core.ledger.fleet.pool_row(PoolId("b")) is None
    fleet.tell(ev.JobSubmitted(fleet.at + 40.0, job(3, "c", 1)))
    if fleet.solves:
        problem = fleet.solves[-1].problem
        row = list(problem.pools.pool_id).index("b")
        assert (problem.pools.capacity[row], problem.pools.rentable[row], problem.pools.usd_per_h[row]) == (0, 0, 0)
        assert row not in problem.columns.use_pool
    think(fleet, 60.0)
    assert "b" not in dict(remembered_state(fleet.core.ledger).prices)
    assert JobId(3) in fleet.attempts


@pytest.mark.parametrize("policy", POLICIES)
def test_a_removed_pool_comes_back_in_its_row(policy: str) -> None:
    """Added and removed again and again, rows do not pile up; the pool works, whatever its machines are now."""
    fleet = cluster(policy, machines="c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "b", 1)))
    for number in range(1, 5):
        fleet.tell(ev.PoolRemoved(float(number), PoolId("b")))
        fleet.tell(ev.PoolDeclared(float(number), replace(pool("b", number), pool_id=PoolId("b"))))
    assert len(fleet.core.ledger.fleet.pools) == 3
    fleet.tell(ev.NodeJoined(10.0, NodeId("b9"), PoolId("b")))
    think(fleet, 60.0)
    assert fleet.attempts[JobId(1)].placement.pool_id == "b"


def test_a_solve_under_way_when_a_pool_is_removed_gives_nothing_there() -> None:
    """Its answer names the pool; its shares elsewhere hold."""
    fleet = cluster("max_min_fairness", machines="ac")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "*", 1)))
    assert fleet.solves
    fleet.tell(ev.PoolRemoved(0.0, PoolId("b")))
    fleet.answer({1: {"b": 0.5, "c": 0.5}}, {"b": 2})
    row = next(state.row for state in fleet.core.ledger.fleet.pools if state.pool.removed)
    assert not fleet.core.ledger.columns.entitled[:, row].any()
    assert not fleet.rents


def test_a_job_on_its_way_to_a_drained_pool_looks_for_another() -> None:
    """A deadline is not left waiting for machines that never come."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("walras"), RoundRules()))
    for name, usd in (("x", 1.0), ("y", 2.0)):
        each = pool(name, 1, market=Market.ON_DEMAND, quota=2)
        fleet.tell(ev.PoolDeclared(0.0, replace(each, usd_per_h=usd)))
    urgent = job(1, "*", 1, steps=1000.0, deadline_at=2000.0, declared=(("x", 1.0), ("y", 1.0)))
    fleet.tell(ev.JobSubmitted(0.0, urgent))
    for at in range(10, 1000, 10):
        if fleet.rents:
            break
        fleet.tell(ev.Woke(float(at)))
        if fleet.solves:
            fleet.answer({})
    assert [each.pool_id for each in fleet.rents] == ["x"]
    drain(fleet, "x")
    assert [each.pool_id for each in fleet.rents] == ["x", "y"]


def test_the_journal_holds_the_removal() -> None:
    """Written, read and replayed to the same commands."""
    fleet = cluster("fifo", machines="c")
    drain(fleet, "b")
    fleet.tell(ev.PoolRemoved(1.0, PoolId("b")))
    fleet.tell(ev.JobSubmitted(2.0, job(1, "c", 1)))
    again = FakeFleet()
    for event, commands in fleet.log:
        read = decode_event(encode_event(event))
        assert read == event
        replayed = again.tell(read)
        assert [encode_command(0.0, each) for each in replayed] == [encode_command(0.0, each) for each in commands]
    assert declared(again, "c") == declared(fleet, "c")


def test_an_unreachable_machine_of_a_drained_pool_takes_no_jobs_when_it_is_back() -> None:
    fleet = cluster("fifo", machines="c")
    fleet.tell(ev.NodeUnreachable(1.0, NodeId("c1")))
    drain(fleet, "c")
    fleet.tell(ev.NodeBack(2.0, NodeId("c1")))
    machine = fleet.core.ledger.fleet.machine(NodeId("c1"))
    assert machine is not None
    assert machine.condition is MachineCondition.LEAVING
    assert (machine.gentle_until, machine.detail) == (inf, f"leaves: {Reason.HOLD_ADMIN}")
