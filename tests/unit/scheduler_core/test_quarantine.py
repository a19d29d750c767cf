"""Which failures put a machine aside, how a trial brings it back, and machines whose devices are at fault."""

from dataclasses import replace
from typing import Any

import pytest
from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import MachineCondition
from scheduler.core.state.standing import TRIAL_AFTER_S
from walras.job_request import JobId
from walras.states import Reason

J1 = JobId(1)


def fails_of(fleet: FakeFleet, number: int, user: str, **end: Any) -> None:
    """A job of the user fails on the first machine of pool a that takes jobs."""
    fleet.tell(ev.JobSubmitted(fleet.at, replace(job(number, "a", 4), user=user)))
    fleet.end(JobId(number), **({"exit_code": 1} | end))


def test_one_user_cannot_put_a_machine_aside() -> None:
    """However many jobs of a single user fail there; one of somebody else is what makes it evidence."""
    fleet = cluster(machines="aa", rules=RoundRules(quarantine_jobs=3, backoff_s=0))
    for number in range(1, 7):
        fails_of(fleet, number, "ada")
    assert fleet.core.ledger.fleet.pools[0].capacity == 8
    fails_of(fleet, 7, "bob")
    assert fleet.core.ledger.fleet.pools[0].capacity == 4


@pytest.mark.parametrize("end", [{"exit_code": 127}, {"exit_code": 126}, {"own_fault": True}, {"exit_code": 87}])
def test_failures_that_are_the_jobs_own_are_no_evidence(end: dict[str, Any]) -> None:
    """A command that is not there, a module that is missing, a setup that fails: on any machine they would."""
    fleet = cluster(machines="aa", rules=RoundRules(quarantine_jobs=3, backoff_s=0))
    for number in range(1, 7):
        fails_of(fleet, number, f"user{number}", **end)
    assert fleet.core.ledger.fleet.pools[0].capacity == 8


def quarantined(first: int = 1) -> FakeFleet:
    fleet = cluster(machines="aa", rules=RoundRules(quarantine_jobs=2, backoff_s=0))
    for number in (first, first + 1):
        fails_of(fleet, number, f"user{number}")
    assert fleet.core.ledger.fleet.pools[0].capacity == 4
    return fleet


def test_a_quarantine_ends_by_itself_after_a_clean_trial() -> None:
    """After ten minutes it takes jobs again, and says so; a success ends the trial."""
    fleet = quarantined()
    machine = next(each for each in fleet.core.ledger.fleet.machines if each is not None and each.failures)
    commands = fleet.tell(ev.Woke(fleet.at + TRIAL_AFTER_S))
    assert [c.node_id for c in commands if isinstance(c, cmd.NodeReadmitted)] == [machine.node_id]
    assert (machine.condition, machine.standing.on_trial, "trial" in machine.detail) == (
        MachineCondition.UP,
        True,
        True,
    )
    for number in (3, 4):
        fleet.tell(ev.JobSubmitted(fleet.at, job(number, "a", 4)))
    for number in (3, 4):
        fleet.end(JobId(number))
    assert not machine.standing.on_trial
    assert machine.standing.times_aside == 0


def test_a_failure_on_trial_puts_a_machine_aside_for_twice_as_long() -> None:
    fleet = quarantined()
    machine = next(each for each in fleet.core.ledger.fleet.machines if each is not None and each.failures)
    fleet.tell(ev.Woke(fleet.at + TRIAL_AFTER_S))
    for number in (3, 4):
        fleet.tell(ev.JobSubmitted(fleet.at, replace(job(number, "a", 4), user=f"user{number}")))
    for number in (3, 4):
        fleet.end(JobId(number), exit_code=1)
    assert machine.condition is MachineCondition.QUARANTINED
    assert "on trial" in machine.detail
    aside_at = fleet.at
    fleet.tell(ev.Woke(aside_at + TRIAL_AFTER_S))
    assert machine.condition is MachineCondition.QUARANTINED
    fleet.tell(ev.Woke(aside_at + 2 * TRIAL_AFTER_S))
    assert machine.condition is MachineCondition.UP


def test_a_machine_with_faulty_devices_takes_no_jobs_until_they_are_checked() -> None:
    """It says why; a job that saves moves away by its checkpoint, one that would lose its work runs on."""
    fleet = cluster(machines="aa")
    for number in (1, 2):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", 2)))
        fleet.tell(ev.AttemptStarted(0.0, JobId(number), 1))
    placement = fleet.attempts[J1].placement
    assert placement is not None
    node_id = placement.parts[0].node_id
    fleet.tell(ev.CheckpointRecorded(1.0, J1, 1, 10.0))
    commands = fleet.tell(ev.NodeUnfit(2.0, node_id, "GPU 0: Xid 79, it fell off the bus"))
    assert [c.detail for c in commands if isinstance(c, cmd.NodeCordoned)] == ["GPU 0: Xid 79, it fell off the bus"]
    assert (J1, Reason.INFRA_DEVICE_FAULT) in [(c.job_id, c.reason) for c in commands if isinstance(c, cmd.Revoke)]
    fleet.tell(ev.Woke(2.0 + 100 * TRIAL_AFTER_S))  # no trial helps against a fault
    machine = fleet.core.ledger.fleet.machine(node_id)
    assert machine is not None
    assert machine.condition is MachineCondition.QUARANTINED
    commands = fleet.tell(ev.NodeFit(fleet.at, node_id))
    assert [c.node_id for c in commands if isinstance(c, cmd.NodeReadmitted)] == [node_id]
    assert machine.condition is MachineCondition.UP
    fleet.tell(ev.NodeFit(fleet.at, node_id))  # said twice
