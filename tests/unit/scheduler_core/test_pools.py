"""Pools that are drained and removed, and machines that are given back."""

from dataclasses import replace
from math import inf

import pytest
from fake_fleet import FakeFleet, cluster, fleet_of, job, pool, remembered_state
from planned_fleet import think

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.core import SchedulerCore
from scheduler.core.events import RentRestored
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import MachineCondition
from scheduler.live.store.event_journal import decode_event, encode_command, encode_event
from walras.cluster import Market, NodeId, Pool, PoolId, billed_until
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
    assert "walras admin drain --pool a --off" in reasons_of(fleet, 1)
    drain(fleet, "a", off=True)
    for name in ("a1", "late"):
        fleet.tell(ev.NodeUncordoned(3.0, NodeId(name)))
    think(fleet, 60.0)
    assert fleet.attempts[JobId(1)].placement.pool_id == "a"


def test_what_runs_follows_the_gentle_drain_of_its_machine() -> None:
    """Who may be stopped leaves and waits, who may not runs to its end; nor does a silent machine take jobs again."""
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
    fleet = cluster("fifo", machines="c")
    fleet.tell(ev.NodeUnreachable(1.0, NodeId("c1")))
    drain(fleet, "c")
    fleet.tell(ev.NodeBack(2.0, NodeId("c1")))
    machine = fleet.core.ledger.fleet.machine(NodeId("c1"))
    assert machine.condition is MachineCondition.LEAVING
    assert (machine.gentle_until, machine.detail) == (inf, f"leaves: {Reason.HOLD_ADMIN}")


def rented(policy: str) -> FakeFleet:
    """One spot machine with a job on it that may not be stopped."""
    fleet = fleet_of(SPOT, policy=policy)
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
    fleet.begin(job(1, "s", 2, preemptible=False))
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
    fleet.submit(job(1, "b", 1), job(2, "*", 1))
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
    pools = [
        replace(pool(name, 1, market=Market.ON_DEMAND, quota=2), usd_per_h=usd)
        for name, usd in (("x", 1.0), ("y", 2.0))
    ]
    fleet = fleet_of(*pools, policy="walras")
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


HOUR_S = 3600.0
IDLE_SPOT = pool("s", market=Market.SPOT, quota=3)
HOURLY = replace(IDLE_SPOT, billing_step_s=HOUR_S)


def renting(declared: Pool, machines: int = 1, **rules: float) -> FakeFleet:
    """Rented machines of a pool, under a policy that asks for none."""
    fleet = fleet_of(declared, **rules)
    for number in range(machines):
        fleet.tell(ev.NodeJoined(0.0, NodeId(f"s{number}"), declared.pool_id, "token"))
    return fleet


def released(fleet: FakeFleet, until_at: float) -> list[tuple[float, str]]:
    """(when, which) of the machines given back until then."""
    fleet.until(until_at)
    return [
        (event.at, command.node_id)
        for event, commands in fleet.log
        for command in commands
        if isinstance(command, cmd.ReleaseNode)
    ]


@pytest.mark.parametrize(
    ("minimum_s", "step_s", "at", "paid_until"),
    [
        (0.0, 0.0, 100.0, 100.0), (60.0, 0.0, 20.0, 70.0), (60.0, 0.0, 100.0, 100.0), (0.0, 60.0, 100.0, 130.0),
        (0.0, 60.0, 130.0, 130.0), (0.0, 60.0, 130.5, 190.0), (90.0, 60.0, 20.0, 130.0), (0.0, HOUR_S, 10.0, 10.0),
    ],
)  # fmt: skip
def test_what_is_paid_for(minimum_s: float, step_s: float, at: float, paid_until: float) -> None:
    """The minimum, and whole steps from the beginning; a step that has just ended is one, not two."""
    declared = replace(IDLE_SPOT, minimum_billing_s=minimum_s, billing_step_s=step_s)
    assert billed_until(declared, 10.0, at) == pytest.approx(paid_until)


@pytest.mark.parametrize(
    ("declared", "keep_s", "busy", "given_back_at"),
    [
        (IDLE_SPOT, 300.0, [(10.0, 1000.0)], 1300.0),
        (HOURLY, 300.0, [(10.0, 1000.0)], HOUR_S - 30.0),
        # A step is begun for work alone; that it ended a moment later gives the whole hour to whoever comes.
        (HOURLY, 300.0, [(10.0, 3590.0), (5000.0, 6000.0)], 2 * HOUR_S - 30.0),
        (replace(IDLE_SPOT, minimum_billing_s=600.0), 120.0, [], 570.0),
    ],
    ids=["by the second", "by the hour", "at work when an hour ended", "a minimum"],
)
def test_an_idle_machine_is_given_back_just_before_what_is_paid_for_ends(
    declared: Pool, keep_s: float, busy: list[tuple[float, float]], given_back_at: float
) -> None:
    """And not before it was idle for `rent_keep_s`, counted from when the last job left."""
    fleet = renting(declared, rent_keep_s=keep_s)
    for number, (begins, ends) in enumerate(busy, 1):
        fleet.tell(ev.JobSubmitted(begins, job(number, "s")))
        assert released(fleet, ends) == []
        fleet.tell(ev.Woke(ends))
        fleet.end(JobId(number))
    assert released(fleet, 20_000.0) == [(given_back_at, "s0")]


def test_hours_are_counted_from_the_rent_after_a_restart_too() -> None:
    """A core that takes over at 2000 s gives the machine back before its first hour ends, not before its own."""
    fleet = fleet_of(HOURLY, rent_keep_s=300.0)
    fleet.tell(ev.NodeJoined(2000.0, NodeId("s0"), HOURLY.pool_id, "token", paid_since=100.0))
    assert released(fleet, 20_000.0) == [(HOUR_S + 100.0 - 30.0, "s0")]


def test_what_a_solve_wants_stays_and_what_it_does_not_goes_at_its_own_step() -> None:
    """Of two machines rented 900 s apart one is wanted: the one whose hour ends first goes then."""
    rules = {"round_s": 100_000, "resolve_min_s": 0, "rent_keep_s": 300.0, "profiling_share": 0}
    fleet = fleet_of(HOURLY, policy="max_min_fairness", **rules)
    for number, at in enumerate((0.0, 900.0)):
        fleet.tell(ev.NodeJoined(at, NodeId(f"s{number}"), HOURLY.pool_id, "token"))
    while fleet.solves:
        fleet.answer({}, rent={"s": 1})
    assert released(fleet, 30_000.0) == [(HOUR_S - 30.0, "s0")]


def test_a_rented_machine_on_which_jobs_fail_is_given_back_once_it_is_empty() -> None:
    """It takes no jobs and costs money; an owned one stays for an administrator."""
    fleet = renting(replace(HOURLY, shape=replace(HOURLY.shape, accelerators=2)), quarantine_jobs=2)
    for number in (1, 2, 3):
        fleet.tell(ev.JobSubmitted(1.0, job(number, "s")))
    fleet.end(JobId(1), exit_code=3)
    assert JobId(3) in fleet.attempts
    fleet.end(JobId(2), exit_code=3)
    assert fleet.released == []
    fleet.end(JobId(3))
    assert fleet.released == ["s0"]
    (detail,) = [c.detail for _, commands in fleet.log for c in commands if isinstance(c, cmd.ReleaseNode)]
    assert detail == "given back: 2 distinct jobs failed here within 3600 s"
    fleet = fleet_of(pool("a"), quarantine_jobs=1)
    for name in ("a1", "a2"):
        fleet.tell(ev.NodeJoined(0.0, NodeId(name), pool("a").pool_id))
    fleet.tell(ev.JobSubmitted(1.0, job(1, "a")))
    commands = fleet.end(JobId(1), exit_code=3)
    assert any(isinstance(c, cmd.NodeCordoned) for c in commands)
    assert fleet.released == []


@pytest.mark.parametrize("notice", [False, True])
def test_what_the_scheduler_gave_back_itself_is_no_revocation(notice: bool) -> None:
    """A provider may call the end of any spot machine a reclaim; only those that were wanted count against the pool."""
    core = SchedulerCore()
    core.handle(ev.PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(rent_keep_s=120.0)))
    core.handle(ev.PoolDeclared(0.0, IDLE_SPOT))
    for name in ("s0", "s1"):
        core.handle(ev.NodeJoined(0.0, NodeId(name), IDLE_SPOT.pool_id, "token"))
    core.handle(ev.NodeLost(10.0, NodeId("s1"), Reason.INFRA_SPOT_RECLAIM))
    lives = core.ledger.fleet.pools[0].lives
    assert lives.revocations == 1
    told = [command for command in core.handle(ev.Woke(5000.0)) if isinstance(command, cmd.ReleaseNode)]
    assert [command.node_id for command in told] == ["s0"]
    if notice:
        core.handle(ev.NodeLeaving(5001.0, NodeId("s0"), 5003.0, Reason.INFRA_SPOT_RECLAIM))
    core.handle(ev.NodeLost(5003.0, NodeId("s0"), Reason.INFRA_SPOT_RECLAIM))
    assert lives.revocations == 1


def test_a_pool_holds_its_least_whatever_machines_are_worth() -> None:
    """Asked for once without any job; a lost one is asked for again; a drained pool holds none."""
    declared = replace(IDLE_SPOT, least=2)
    fleet = renting(declared, machines=0, rent_keep_s=60.0, rent_backoff_s=10.0)
    fleet.wake()
    assert [rent.machines for rent in fleet.rents] == [2]
    token = fleet.rents.pop().token
    for number in range(3):
        fleet.tell(ev.NodeJoined(fleet.at, NodeId(f"s{number}"), declared.pool_id, token if number < 2 else "more"))
    ((_, given_back),) = released(fleet, fleet.at + 1000.0)
    assert fleet.rents == []
    fleet.tell(ev.NodeLost(fleet.at, NodeId(given_back), Reason.POLICY_RELEASED))
    lost = next(iter(fleet.core.ledger.fleet.pools[0].members.values()))
    fleet.tell(ev.NodeLost(fleet.at, lost.node_id, Reason.INFRA_NODE_LOST))
    fleet.wake()
    assert [rent.machines for rent in fleet.rents] == [1]
    fleet.tell(ev.RentFailed(fleet.at, fleet.rents.pop().token, "refused"))
    while not fleet.rents and fleet.wake_at < 1e6:
        fleet.wake()
    assert [rent.machines for rent in fleet.rents] == [1]
    fleet.tell(ev.PoolDeclared(fleet.at, replace(declared, drained=True)))
    assert len(released(fleet, fleet.at + 1000.0)) == 2
    assert len(fleet.rents) == 1
    declared = replace(IDLE_SPOT, least=2)
    fleet = renting(declared, machines=1)
    fleet.tell(RentRestored(fleet.at, "coming", declared.pool_id, 1))
    fleet.wake()
    assert fleet.rents == []
