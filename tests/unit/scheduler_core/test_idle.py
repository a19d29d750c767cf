"""When rented machines that nobody uses are given back."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, job, pool

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.core import SchedulerCore
from scheduler.core.restore_events import RentRestored
from scheduler.core.rules import RoundRules
from walras.cluster import Market, NodeId, Pool, billed_until
from walras.job_request import JobId
from walras.states import Reason

HOUR_S = 3600.0
SPOT = pool("s", market=Market.SPOT, quota=3)
HOURLY = replace(SPOT, billing_step_s=HOUR_S)


def fleet_of(declared: Pool, machines: int = 1, **rules: float) -> FakeFleet:
    """Rented machines of a pool, under a policy that asks for none."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(**rules)))  # type: ignore[arg-type]
    fleet.tell(ev.PoolDeclared(0.0, declared))
    for number in range(machines):
        fleet.tell(ev.NodeJoined(0.0, NodeId(f"s{number}"), declared.pool_id, "token"))
    return fleet


def released(fleet: FakeFleet, until_at: float) -> list[tuple[float, str]]:
    """(when, which) of the machines given back until then."""
    while fleet.wake_at <= until_at:
        fleet.wake()
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
    declared = replace(SPOT, minimum_billing_s=minimum_s, billing_step_s=step_s)
    assert billed_until(declared, 10.0, at) == pytest.approx(paid_until)


def test_machines_billed_by_the_second_go_when_they_were_idle_for_long_enough() -> None:
    """After `rent_keep_s`, counted from when the last job left."""
    fleet = fleet_of(SPOT, rent_keep_s=300.0)
    fleet.tell(ev.JobSubmitted(10.0, job(1, "s")))
    assert released(fleet, 1000.0) == []
    fleet.tell(ev.Woke(1000.0))
    fleet.end(JobId(1))
    assert released(fleet, 5000.0) == [(1300.0, "s0")]


def test_machines_billed_by_the_hour_go_just_before_an_hour_ends() -> None:
    """What is paid for is kept: idle from 1000 s, given back half a minute before 3600 s."""
    fleet = fleet_of(HOURLY, rent_keep_s=300.0)
    fleet.tell(ev.JobSubmitted(10.0, job(1, "s")))
    fleet.tell(ev.Woke(1000.0))
    fleet.end(JobId(1))
    assert released(fleet, 9000.0) == [(HOUR_S - 30.0, "s0")]


def test_a_machine_that_works_at_the_end_of_an_hour_is_kept_through_the_next() -> None:
    """A step is begun for work alone; that it ended a moment later gives the whole hour to whoever comes."""
    fleet = fleet_of(HOURLY, rent_keep_s=300.0)
    fleet.tell(ev.JobSubmitted(10.0, job(1, "s")))
    assert released(fleet, 3590.0) == []
    fleet.tell(ev.Woke(3590.0))
    fleet.end(JobId(1))
    fleet.tell(ev.JobSubmitted(5000.0, job(2, "s")))
    fleet.tell(ev.Woke(6000.0))
    fleet.end(JobId(2))
    assert released(fleet, 20_000.0) == [(2 * HOUR_S - 30.0, "s0")]


def test_a_minimum_that_is_paid_is_kept_too() -> None:
    """Idle from the start, with ten minutes to pay: given back at the end of these, not after two."""
    fleet = fleet_of(replace(SPOT, minimum_billing_s=600.0), rent_keep_s=120.0)
    assert released(fleet, 9000.0) == [(570.0, "s0")]


def test_hours_are_counted_from_the_rent_after_a_restart_too() -> None:
    """A core that takes over at 2000 s gives the machine back before its first hour ends, not before its own."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(2000.0, PolicySpec("fifo"), RoundRules(rent_keep_s=300.0)))
    fleet.tell(ev.PoolDeclared(2000.0, HOURLY))
    fleet.tell(ev.NodeJoined(2000.0, NodeId("s0"), HOURLY.pool_id, "token", paid_since=100.0))
    assert released(fleet, 20_000.0) == [(HOUR_S + 100.0 - 30.0, "s0")]


def test_what_a_solve_wants_stays_and_what_it_does_not_goes_at_its_own_step() -> None:
    """Of two machines rented 900 s apart one is wanted: the one whose hour ends first goes then."""
    fleet = FakeFleet()
    rules = RoundRules(round_s=100_000, resolve_min_s=0, rent_keep_s=300.0, profiling_share=0)
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("max_min_fairness"), rules))
    fleet.tell(ev.PoolDeclared(0.0, HOURLY))
    for number, at in enumerate((0.0, 900.0)):
        fleet.tell(ev.NodeJoined(at, NodeId(f"s{number}"), HOURLY.pool_id, "token"))
    while fleet.solves:
        fleet.answer({}, rent={"s": 1})
    assert released(fleet, 30_000.0) == [(HOUR_S - 30.0, "s0")]


def test_a_rented_machine_on_which_jobs_fail_is_given_back_once_it_is_empty() -> None:
    """It takes no jobs and costs money: it goes when the last of them has left, and says why."""
    fleet = fleet_of(replace(HOURLY, shape=replace(HOURLY.shape, accelerators=2)), quarantine_jobs=2)
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


def test_an_owned_machine_on_which_jobs_fail_stays_for_an_administrator() -> None:
    """Nobody pays by the hour for it."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(quarantine_jobs=1)))
    fleet.tell(ev.PoolDeclared(0.0, pool("a")))
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
    core.handle(ev.PoolDeclared(0.0, SPOT))
    for name in ("s0", "s1"):
        core.handle(ev.NodeJoined(0.0, NodeId(name), SPOT.pool_id, "token"))
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
    """Asked for without any job or solve, once; those above it go when idle; one that is lost is asked for again; a
    drained pool holds none."""
    declared = replace(SPOT, least=2)
    fleet = fleet_of(declared, machines=0, rent_keep_s=60.0, rent_backoff_s=10.0)
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


def test_a_core_that_takes_over_does_not_ask_for_its_least_again() -> None:
    """Pools are declared before their machines and requests are told of."""
    declared = replace(SPOT, least=2)
    fleet = fleet_of(declared, machines=1)
    fleet.tell(RentRestored(fleet.at, "coming", declared.pool_id, 1))
    fleet.wake()
    assert fleet.rents == []
