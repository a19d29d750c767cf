"""Booked machines are empty of others in time, serve their project alone, and return; whatever the policy is."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import measured, settle

from scheduler.core import events as ev
from scheduler.core.commands import Revoke
from scheduler.core.events import NOBODY, Booking, BookingsDeclared
from scheduler.core.explain.pending_reasons import dominant_reason, pending_reasons
from scheduler.core.handlers.booking_windows import booking_outlooks, check_machines, choose_machines
from scheduler.core.rules import RoundRules
from scheduler.core.state.bookings import STOP_WITHIN_S, leaves_at, notice_s
from scheduler.core.state.fleet import MachineCondition
from walras.cluster import NodeId
from walras.job_request import JobId, JobRequest
from walras.states import Reason

QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2)
POLICIES = ("fifo", "walras", "max_min_fairness")
J1, J2, J3 = JobId(1), JobId(2), JobId(3)
A1, A2 = NodeId("a1"), NodeId("a2")


def fleet_of(policy: str, machines: str = "aa") -> FakeFleet:
    return measured(cluster(policy, rules=QUICK, machines=machines))


def settled(fleet: FakeFleet) -> None:
    """Solves are answered, ranks come up, and who was asked to stop has saved its work and gone."""
    for _ in range(10):
        settle(fleet)
        stopping = [each.job_id for each in fleet.attempts.values() if each.started and each.stopping]
        for job_id in stopping:
            fleet.end(job_id, exit_code=85)
        if not stopping and not fleet.solves:
            return
    raise AssertionError("the fleet does not come to rest")


def submit(fleet: FakeFleet, *requests: JobRequest) -> None:
    for request in requests:
        fleet.tell(ev.JobSubmitted(fleet.at, request))
        settled(fleet)


def book(fleet: FakeFleet, *bookings: Booking) -> None:
    fleet.tell(BookingsDeclared(fleet.at, bookings))
    settled(fleet)


def until(fleet: FakeFleet, at: float) -> None:
    """Let the core wake as it asks until this instant."""
    while fleet.wake_at <= at:
        fleet.wake()
        settled(fleet)
    fleet.tell(ev.Woke(at))
    settled(fleet)


def condition(fleet: FakeFleet, node_id: NodeId) -> MachineCondition:
    machine = fleet.core.ledger.fleet.machine(node_id)
    return machine.condition


VISION = Booking(1, "vision", (A1,), 1000.0, 2000.0, "a", 4, "a demo")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_running_job_leaves_with_notice_before_the_booking_begins(policy: str) -> None:
    """It is asked its grace and a minute before, and is gone when the project's job starts on the dot."""
    fleet = fleet_of(policy, "a")
    submit(fleet, job(1, "a", 4, project="other", steps=1e6))
    book(fleet, VISION)
    submit(fleet, job(2, "a", 4, project="vision", steps=1e6))
    until(fleet, 1000.0 - 30.0 - STOP_WITHIN_S - 1.0)
    assert fleet.where(J1) | fleet.where(J2) == {A1}
    foreign = fleet.core.ledger.jobs[J1]
    if foreign.holds:
        until(fleet, 1000.0 - 30.0 - STOP_WITHIN_S)
        assert not fleet.where(J1), "it was not asked to leave in time"
    until(fleet, 1000.0)
    assert fleet.where(J2) == {A1}
    assert not fleet.where(J1)
    assert condition(fleet, A1) is MachineCondition.BOOKED


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_else_has_an_idle_booked_machine_and_it_returns(policy: str) -> None:
    fleet = fleet_of(policy)
    book(fleet, VISION)
    until(fleet, 1000.0)
    submit(fleet, job(1, "a", 4, project="other", steps=1e6), job(2, "a", 4, project="other", steps=1e6))
    assert sorted([fleet.where(J1), fleet.where(J2)], key=len) == [set(), {A2}]
    waiting = J1 if fleet.where(J2) else J2
    first = pending_reasons(fleet.core, waiting)[0]
    assert first.reason is Reason.WAIT_BOOKED
    assert first.detail == (
        "reservation 1 of project vision (a demo) keeps 4 accelerators of a on a1 for jobs of project vision alone; "
        "it ends in 16m40s"
    )
    assert "reservation 1 of project vision" in dominant_reason(fleet.core, waiting)
    until(fleet, 2000.0)
    assert fleet.where(J1) | fleet.where(J2) == {A1, A2}
    assert condition(fleet, A1) is MachineCondition.UP


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_would_not_be_gone_in_time_is_not_started(policy: str) -> None:
    """Of the same shape it starts where its work or its limit ends before, or where it saves its work."""
    fleet = fleet_of(policy, "a")
    book(fleet, VISION)
    submit(fleet, job(1, "a", 4, project="other", steps=16.0 * 2000, preemptible=False))
    assert not fleet.where(J1)
    first = pending_reasons(fleet.core, J1)[0]
    assert first.reason is Reason.WAIT_BOOKED
    assert "takes 4 accelerators of a on a1 in 16m40s" in first.detail
    assert "may not be stopped (`preemptible: false`), and would not have ended by then" in first.detail
    submit(fleet, job(2, "a", 4, project="other", steps=16.0 * 500, preemptible=False))
    assert fleet.where(J2) == {A1}
    fleet = fleet_of(policy, "a")
    book(fleet, VISION)
    submit(fleet, job(1, "a", 4, project="other", duration_s=1000.0, preemptible=False))
    assert not fleet.where(J1)
    submit(fleet, job(2, "a", 4, project="other", duration_s=500.0, preemptible=False))
    assert fleet.where(J2) == {A1}
    fleet = fleet_of(policy, "aaa")
    book(fleet, replace(VISION, node_ids=(A1, A2, NodeId("a3"))))
    submit(fleet, job(1, "a", 4, project="other", preemptible=False))
    submit(fleet, job(2, "a", 4, project="other", preemptible=False, max_runtime_s=600.0))
    submit(fleet, job(3, "a", 4, project="other"))
    assert [bool(fleet.where(each)) for each in (J1, J2, J3)] == [False, True, True]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_is_kept_off_does_not_keep_the_place_idle(policy: str) -> None:
    """It is first in every line, and a plan would give it the place; the one that ends in time has it all the same."""
    fleet = fleet_of(policy, "a")
    book(fleet, VISION)
    submit(fleet, job(1, "a", 4, project="other", steps=16.0 * 200, preemptible=False))
    submit(fleet, job(2, "a", 4, project="other", steps=16.0 * 2000, preemptible=False, priority=79, weight=9.0))
    submit(fleet, job(3, "a", 4, project="other", steps=16.0 * 500, preemptible=False))
    until(fleet, 200.0)
    fleet.end(J1)
    settled(fleet)
    until(fleet, 230.0)
    assert (fleet.where(J2), fleet.where(J3)) == (set(), {A1})


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "bound",
    [{"steps": 4.0 * 4 * 50}, {"duration_s": 930.0}, {"steps": 1e6, "max_runtime_s": 900.0}],
    ids=["its work", "its estimate", "its limit"],
)
def test_a_job_that_ends_by_itself_is_not_asked_to_leave(policy: str, bound: dict[str, float]) -> None:
    """By its work or its limit, used up in part before: it is left alone though a stop would have been due."""
    fleet = fleet_of(policy, "a")
    submit(fleet, job(1, "a", 4, project="other", preemptible=True, **bound))
    fleet.tell(ev.JobHeld(880.0, J1))
    settled(fleet)
    book(fleet, VISION)
    fleet.tell(ev.JobReleased(890.0, J1))
    settled(fleet)
    assert fleet.where(J1) == {A1}
    until(fleet, 945.0)
    asked = [each.reason for _, commands in fleet.log for each in commands if isinstance(each, Revoke)]
    assert Reason.POLICY_PREEMPTED not in asked
    assert (fleet.where(J1) == {A1}) is ("max_runtime_s" not in bound)


def test_a_limit_counts_from_when_all_ranks_were_up() -> None:
    """They came up late, so the limit stops the job after the booking begins: it is asked to leave before."""
    fleet = fleet_of("fifo", "a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4, project="other", max_runtime_s=600.0)))
    fleet.tell(BookingsDeclared(0.0, (replace(VISION, from_at=700.0),)))
    fleet.tell(ev.AttemptStarted(400.0, J1, 1))
    record = fleet.core.ledger.jobs[J1]
    assert leaves_at(fleet.core.ledger, record, replace(VISION, from_at=700.0)) == 700.0 - notice_s(record)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_has_not_ended_as_it_would_is_asked_to_leave(policy: str) -> None:
    """It states 50 s of work; a tenth beyond that the statement was wrong, and the booking gets its machine."""
    fleet = fleet_of(policy, "a")
    fleet.tell(ev.Woke(890.0))
    submit(fleet, job(1, "a", 4, project="other", steps=4.0 * 4 * 50))
    book(fleet, VISION)
    until(fleet, 946.0)
    assert fleet.where(J1) == {A1}
    until(fleet, 950.0)
    assert not fleet.where(J1)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_projects_own_job_stays_where_it_is(policy: str) -> None:
    """It runs there before, during and after, without a restart, though nobody could stop it."""
    fleet = fleet_of(policy, "a")
    book(fleet, VISION)
    submit(fleet, job(1, "a", 4, project="vision", preemptible=False))
    for at in (500.0, 1500.0, 2500.0):
        until(fleet, at)
        assert fleet.where(J1) == {A1}
        assert fleet.core.ledger.jobs[J1].attempt == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_maintenance_window_empties_the_machine_and_gives_it_back(policy: str) -> None:
    """It is empty at the start, may be rebooted meanwhile, and takes jobs by itself at the end."""
    fleet = fleet_of(policy, "a")
    submit(fleet, job(1, "a", 2, project="vision", steps=1e6))
    book(fleet, Booking(7, NOBODY, (A1,), 1000.0, 2000.0, reason="firmware"))
    until(fleet, 1000.0)
    machine = fleet.core.ledger.fleet.machine(A1)
    assert not machine.holders
    fleet.lose(A1)
    fleet.tell(ev.NodeJoined(1500.0, A1, fleet.core.ledger.fleet.pools[0].pool.pool_id))
    settled(fleet)
    assert condition(fleet, A1) is MachineCondition.BOOKED
    assert not fleet.where(J1)
    assert "reservation 7 (maintenance) (firmware)" in pending_reasons(fleet.core, J1)[0].detail
    until(fleet, 2000.0)
    assert fleet.where(J1) == {A1}


def test_a_job_for_which_a_place_is_being_cleared_takes_none_on_its_projects_booked_machine() -> None:
    """It would leave at once for the place that is cleared."""
    fleet = fleet_of("fifo")
    book(fleet, replace(VISION, from_at=0.0))
    submit(fleet, job(1, "a", 4, project="vision"), job(2, "a", 4, project="other"))
    fleet.tell(ev.JobSubmitted(1.0, job(3, "a", 4, project="vision", priority=80)))
    assert fleet.attempts[J2].stopping
    fleet.end(J1)
    assert not fleet.where(J3)
    fleet.end(J2, exit_code=85)
    assert fleet.where(J3) == {A2}


def test_a_booking_keeps_its_machine_through_silence_a_drain_and_a_loss() -> None:
    """Silence across either end of it, a drain of its pool, and a loss, after which another of its type is booked."""
    fleet = fleet_of("fifo", "a")
    book(fleet, VISION)
    fleet.tell(ev.NodeUnreachable(900.0, A1))
    until(fleet, 1000.0)
    fleet.tell(ev.NodeBack(1100.0, A1))
    assert condition(fleet, A1) is MachineCondition.BOOKED
    fleet.tell(ev.NodeUnreachable(1900.0, A1))
    until(fleet, 2000.0)
    fleet.tell(ev.NodeBack(2100.0, A1))
    assert condition(fleet, A1) is MachineCondition.UP
    fleet = fleet_of("fifo", "a")
    book(fleet, Booking(1, "vision", (A1,), 1000.0, 2000.0))
    until(fleet, 1000.0)
    drained = replace(fleet.core.ledger.fleet.pools[0].pool, drained=True)
    fleet.tell(ev.PoolDeclared(1500.0, drained))
    assert condition(fleet, A1) is MachineCondition.LEAVING
    until(fleet, 2000.0)
    assert condition(fleet, A1) is MachineCondition.LEAVING
    fleet = fleet_of("fifo", "aa")
    book(fleet, VISION)
    fleet.lose(A1)
    assert fleet.core.cycle.bookings.declared[0].node_ids == (A2,)
    until(fleet, 1000.0)
    assert condition(fleet, A2) is MachineCondition.BOOKED


@pytest.mark.parametrize("policy", POLICIES)
def test_a_restart_in_the_window_changes_nothing(policy: str) -> None:
    fleet = fleet_of(policy)
    book(fleet, VISION)
    submit(fleet, job(1, "a", 4, project="vision", steps=1e6))
    until(fleet, 1000.0)
    submit(fleet, job(2, "a", 4, project="other", steps=1e6), job(3, "a", 4, project="other", steps=1e6))
    before = {each: fleet.where(each) for each in (J1, J2, J3)}
    fleet.restart()
    settled(fleet)
    assert fleet.core.cycle.bookings.declared == (VISION,)
    assert condition(fleet, A1) is MachineCondition.BOOKED
    assert {each: fleet.where(each) for each in (J1, J2, J3)} == before


def test_a_job_that_a_booking_keeps_off_is_passed_and_starts_when_it_is_cancelled() -> None:
    fleet = fleet_of("fifo", "a")
    book(fleet, VISION)
    submit(fleet, job(1, "a", 4, project="other", preemptible=False))
    assert not fleet.where(J1)
    book(fleet)
    assert fleet.where(J1) == {A1}
    fleet = measured(cluster("fifo", rules=QUICK, machines="a", strict=True))
    book(fleet, VISION)
    submit(fleet, job(1, "a", 4, project="other", preemptible=False))
    submit(fleet, job(2, "a", 4, project="other", preemptible=False, max_runtime_s=60.0))
    assert fleet.where(J2) == {A1}


def wanted(accelerators: int, **more: object) -> Booking:
    asked = Booking(0, "vision", (), 1000.0, 2000.0, "a", accelerators)
    return replace(asked, **more)  # type: ignore[arg-type]


def test_machines_are_chosen_on_which_nobody_loses_anything_and_the_outlook_says_who_is_there() -> None:
    fleet = fleet_of("fifo", "aa")
    submit(fleet, job(1, "a", 4, project="other"))
    (busy,) = fleet.where(J1)
    ledger = fleet.core.ledger
    assert choose_machines(ledger, (), wanted(3)) == (tuple({A1, A2} - {busy}), "")
    both, why = choose_machines(ledger, (), wanted(8))
    assert (set(both), why) == ({A1, A2}, "")
    fleet = fleet_of("fifo", "a")
    submit(fleet, job(1, "a", 2, project="other"))
    (outlook,) = booking_outlooks(fleet.core.ledger, (VISION,))
    assert (outlook.accelerators, outlook.machines[0].others, outlook.ready_at) == (4, (J1,), 1000.0)


def test_what_cannot_be_honoured_is_refused_in_numbers() -> None:
    """More than there is, what others have booked, and who may not be stopped."""
    fleet = fleet_of("fifo", "aa")
    ledger = fleet.core.ledger
    assert choose_machines(ledger, (), wanted(9)) == ((), "8 of 8 a on owned machines can be had for that time")
    submit(fleet, job(1, "a", 2, project="other", preemptible=False))
    (busy,) = fleet.where(J1)
    (idle,) = {A1, A2} - {busy}
    taken = replace(VISION, node_ids=(idle,), from_at=1500.0)
    nodes, why = choose_machines(ledger, (taken,), wanted(4))
    assert nodes == ()
    assert why.startswith("0 of 8 a on owned machines can be had for that time")
    assert "4 are booked by reservation 1 of project vision" in why
    assert "job 1, which may not be stopped" in why
    assert choose_machines(ledger, (taken,), wanted(4, until_at=1400.0)) == ((idle,), "")
    assert "job 1" in check_machines(ledger, (), wanted(0, project=NOBODY, node_ids=(busy,), accelerator=""))
    assert check_machines(ledger, (), wanted(0, node_ids=(NodeId("x"),), accelerator="")) == "there is no machine x"
