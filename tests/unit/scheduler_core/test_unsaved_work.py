"""Work that cannot be saved is not interrupted for somebody else's benefit: by shares, by an order, by a plan."""

from math import inf

import pytest
from fake_fleet import FakeFleet, cluster, job, revoked
from planned_fleet import measured, settle

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.job_conditions import CANNOT_BE_MOVED, job_conditions
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from walras.cluster import NodeId
from walras.job_request import JobId, JobRequest, Kind
from walras.states import Reason

QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=60, profiling_share=0)
J1, J2 = JobId(1), JobId(2)


def submit(fleet: FakeFleet, request: JobRequest) -> list[cmd.Command]:
    """Submit; what waits for a plan or for shares is answered, what starts runs."""
    return [*fleet.tell(ev.JobSubmitted(fleet.at, request)), *settle(fleet)]


def revoked_until(fleet: FakeFleet, at: float) -> set[int]:
    """Let time pass; who was asked to leave."""
    commands: list[cmd.Command] = []
    while fleet.wake_at <= at:
        commands += fleet.wake()
        commands += settle(fleet)
    fleet.at = at
    return set(revoked(commands))


def full(policy: str, after_s: float, **fields: object) -> FakeFleet:
    """Job 1 has run for `after_s` on all four accelerators of a when short job 2, which anybody would prefer, comes."""
    parameters = {"margin": 0.0} if policy == "srtf" else {}
    fleet = measured(cluster(policy, rules=QUICK, **parameters))
    submit(fleet, job(1, "a", 4, steps=1e8, **fields))
    assert revoked_until(fleet, after_s) == set()
    submit(fleet, job(2, "a", 4, steps=100.0))
    return fleet


POLICIES = ["walras", "max_min_fairness", "srtf"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_has_saved_nothing_keeps_its_place(policy: str) -> None:
    """Without the rule it is asked to leave: the same job without `unproven` is, in the next test."""
    fleet = full(policy, 3600.0, unproven=True)
    assert revoked_until(fleet, 3600.0 + 600.0) == set()
    assert any(
        "cannot be moved without loss" in line.detail or "cannot be stopped" in line.detail
        for line in pending_reasons(fleet.core, J2)
    )
    assert CANNOT_BE_MOVED in [each.type for each in job_conditions(fleet.core, J1)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("evidence", ["declared", "its word", "checkpoint", "another of its kind", "restored"])
def test_a_job_that_can_save_its_work_makes_room(policy: str, evidence: str) -> None:
    fleet = full(policy, 3600.0, unproven=evidence != "declared")
    if evidence == "its word":
        fleet.tell(ev.AttemptProgressed(fleet.at, J1, 1, 10.0, saves=True))
    elif evidence == "checkpoint":
        fleet.tell(ev.CheckpointRecorded(fleet.at, J1, 1, 10.0, 1.0))
    elif evidence == "another of its kind":
        other = job(3, "b", 1, unproven=True)
        submit(fleet, other)
        fleet.tell(ev.NodeJoined(fleet.at, "b1", "b"))
        settle(fleet)
        fleet.tell(ev.CheckpointRecorded(fleet.at, JobId(3), 1, 10.0, 1.0))
    elif evidence == "restored":
        fleet.core.ledger.jobs[J1].saves = True  # as the tables say: there is a checkpoint
        fleet.restart()
    revoked_until(fleet, fleet.at + 600.0)
    assert fleet.attempts[J1].stopping
    assert CANNOT_BE_MOVED not in [each.type for each in job_conditions(fleet.core, J1)]


def test_a_young_job_may_still_be_moved_once() -> None:
    """While it has run for less than a restart costs, the loss is that of any move; a second time it stays."""
    fleet = full("walras", 20.0, unproven=True)
    revoked_until(fleet, 60.0)
    assert fleet.attempts[J1].stopping
    fleet.end(J1, 1, 0.0)
    settle(fleet)
    fleet.end(J2)
    settle(fleet)
    submit(fleet, job(4, "a", 4, steps=100.0))
    revoked_until(fleet, fleet.at + 600.0)
    assert not fleet.attempts[J1].stopping


@pytest.mark.parametrize(("after_s", "may_leave_again"), [(20.0, True), (3600.0, False)])
def test_a_script_that_was_still_starting_when_it_was_stopped_is_not_taken_to_save_nothing(
    after_s: float, may_leave_again: bool
) -> None:
    """The job says that it saves. Killed while it imported torch it shows nothing; after an hour it does."""
    fleet = full("walras", after_s)
    revoked_until(fleet, after_s + 30.0)
    assert fleet.attempts[J1].stopping
    fleet.end(J1, 143, 0.0)
    settle(fleet)
    fleet.end(J2)
    settle(fleet)
    revoked_until(fleet, fleet.at + 600.0)
    submit(fleet, job(4, "a", 4, steps=100.0))
    revoked_until(fleet, fleet.at + 600.0)
    assert fleet.attempts[J1].stopping == may_leave_again


def test_a_higher_class_does_not_take_the_place_either() -> None:
    """Its owner may hold it all the same: that is no benefit of somebody else."""
    fleet = full("max_min_fairness", 3600.0, unproven=True)
    commands = submit(fleet, job(5, "a", 4, priority=90))
    assert not [each for each in commands if isinstance(each, cmd.Revoke)]
    assert "--priority high" not in " ".join(line.fix for line in pending_reasons(fleet.core, J2))
    commands = fleet.tell(ev.JobHeld(fleet.at, J1))
    assert [each.job_id for each in commands if isinstance(each, cmd.Revoke)] == [1]


def test_it_does_not_borrow_what_it_would_have_to_give_back() -> None:
    """A reserved place is lent to jobs that can be stopped, or that end in time: of this one neither is known."""
    for unproven in (True, False):
        fleet = measured(cluster("max_min_fairness", rules=QUICK, machines="a"))
        submit(fleet, job(1, "a", 2, steps=1e6, preemptible=False))
        submit(fleet, job(2, "a", 4, steps=1e6))
        assert JobId(2) in fleet.core.cycle.reservations
        submit(fleet, job(3, "a", 1, kind=Kind("other"), unproven=unproven))
        assert (JobId(3) in fleet.attempts) == (not unproven)


def drained(gone_at: float = inf, **fields: object) -> FakeFleet:
    """Job 1 runs on the only machine, which is drained gently."""
    fleet = measured(cluster("fifo", rules=QUICK))
    submit(fleet, job(1, "a", 4, steps=1e8, **fields))
    fleet.at = 3600.0
    fleet.tell(ev.NodeLeaving(fleet.at, NodeId("a1"), gone_at, Reason.HOLD_ADMIN, gentle=True))
    return fleet


def test_a_gentle_drain_lets_what_cannot_be_saved_run_to_its_end() -> None:
    """What can be saved, or has just been, is moved."""
    fleet = drained(unproven=True)
    submit(fleet, job(2, "a", 1))
    assert revoked_until(fleet, 1e6) == set()
    assert J2 not in fleet.attempts  # no new jobs there
    fleet.end(J1)
    assert fleet.states[J1][-1] == "SUCCEEDED"
    assert J2 not in fleet.attempts
    assert drained().attempts[J1].stopping
    fleet = drained(unproven=True)
    fleet.tell(ev.CheckpointRecorded(fleet.at, J1, 1, 10.0, 1.0))
    assert fleet.attempts[J1].stopping
    assert not drained(preemptible=False).attempts[J1].stopping


def test_a_drain_with_a_deadline_or_at_once_stops_all() -> None:
    fleet = drained(gone_at=7200.0, unproven=True)
    assert revoked_until(fleet, 7199.0) == set()
    assert revoked_until(fleet, 7201.0) == {1}
    fleet = drained(unproven=True)
    fleet.tell(ev.NodeLeaving(fleet.at, NodeId("a1"), inf, Reason.HOLD_ADMIN))
    assert fleet.attempts[J1].stopping
    fleet = drained(gone_at=7200.0, unproven=True)
    fleet.tell(ev.NodeUncordoned(fleet.at, NodeId("a1")))
    assert revoked_until(fleet, 8000.0) == set()


@pytest.mark.parametrize("stop", ["at once", "when it saves", "at the end of its time"])
def test_a_drain_is_no_hold_of_the_jobs_there(stop: str) -> None:
    """They are told that their machine is drained, not that an operator holds them."""
    fleet = drained(gone_at=7200.0, unproven=stop != "at once")
    if stop == "when it saves":
        fleet.tell(ev.CheckpointRecorded(fleet.at, J1, 1, 10.0, 1.0))
    revoked_until(fleet, 7201.0)
    assert fleet.core.ledger.jobs[J1].revoked is Reason.POLICY_DRAINED
    fleet.end(J1, 85)
    assert fleet.states[J1][-1] == "PENDING"


def test_the_loss_of_a_machine_that_an_operator_removes_is_no_hold() -> None:
    fleet = measured(cluster("fifo", rules=QUICK))
    submit(fleet, job(1, "a", 4, steps=1e8))
    commands = fleet.tell(ev.NodeLost(fleet.at, NodeId("a1"), Reason.HOLD_ADMIN))
    told = {c.reason for c in commands if isinstance(c, cmd.JobTransitioned | cmd.AttemptTransitioned)}
    assert told == {Reason.INFRA_NODE_LOST}


@pytest.mark.parametrize("policy", ["walras", "max_min_fairness"])
def test_what_runs_on_where_a_machine_is_drained_takes_nothing_from_the_others(policy: str) -> None:
    """Its machine is no capacity any more, so it must not use up that of the other machine in a plan."""
    fleet = measured(cluster(policy, rules=QUICK, machines="aa"))
    submit(fleet, job(1, "a", 4, steps=1e8, unproven=True))
    fleet.at = 3600.0
    (where,) = fleet.where(J1)
    fleet.tell(ev.NodeLeaving(fleet.at, where, inf, Reason.HOLD_ADMIN, gentle=True))
    settle(fleet)
    submit(fleet, job(2, "a", 4, steps=100.0))
    revoked_until(fleet, 3700.0)
    assert J2 in fleet.attempts
    assert not fleet.attempts[J1].stopping


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_on_a_private_machine_keeps_its_place_though_it_saves(policy: str) -> None:
    """Nobody else can read what it saves there. Once the machine has shown that others can, it may leave."""
    fleet = measured(cluster(policy, rules=QUICK, **({"margin": 0.0} if policy == "srtf" else {})))
    submit(fleet, job(1, "a", 4, steps=1e8))
    (node_id,) = fleet.where(J1)
    fleet.tell(ev.NodePrivate(fleet.at, node_id, private=True))
    fleet.tell(ev.CheckpointRecorded(fleet.at, J1, 1, 5.0))
    assert revoked_until(fleet, 3600.0) == set()
    submit(fleet, job(2, "a", 4, steps=100.0))
    assert revoked_until(fleet, 3600.0 + 600.0) == set()
    told = [reason.detail for reason in pending_reasons(fleet.core, J2)]
    assert any("private" in each for each in told), told
    assert any(each.type == CANNOT_BE_MOVED and "private" in each.detail for each in job_conditions(fleet.core, J1))
    fleet.tell(ev.NodePrivate(fleet.at, node_id, private=False))
    assert 1 in revoked_until(fleet, 3600.0 + 1500.0)


def test_a_private_machine_that_is_drained_by_a_person_is_left() -> None:
    """Force is a person's to use; a gentle drain waits for the job's end."""
    for gentle in (False, True):
        fleet = measured(cluster("srtf", rules=QUICK, margin=0.0))
        submit(fleet, job(1, "a", 4, steps=1e8))
        (node_id,) = fleet.where(J1)
        fleet.tell(ev.NodePrivate(fleet.at, node_id, private=True))
        commands = fleet.tell(ev.NodeLeaving(fleet.at, node_id, inf, Reason.HOLD_ADMIN, gentle=gentle))
        assert any(isinstance(each, cmd.Revoke) for each in commands) is not gentle
