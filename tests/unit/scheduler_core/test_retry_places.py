"""Failures: where a job is tried again, who is held, and which machines are put aside."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from fake_fleet import FakeFleet, cluster, job, remembered_state
from planned_fleet import QUICK, carried_out, measured

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.events import EntityShare, ShareLimit, SharesDeclared
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.placement.retry_waits import DELAY_MOST_S
from scheduler.core.rules import RoundRules, parse_rules
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.core.state.fleet import TRIAL_AFTER_S, FleetMachine, MachineCondition
from scheduler.forecast.core_copy import snapshot_at_once
from walras.cluster import NodeId, PoolId
from walras.errors import ConfigError
from walras.job_request import JobId, Kind, RetryRule
from walras.states import Reason

J1, J2, J3 = JobId(1), JobId(2), JobId(3)
ROUND_S = 20.0
RULES = RoundRules(round_s=ROUND_S, backoff_s=0.0)


def fleet_of(machines: str, policy: str = "fifo") -> FakeFleet:
    return cluster(policy, machines=machines, rules=RULES)


def submit(fleet: FakeFleet, number: int, accelerator: str = "c", count: int = 1) -> None:
    fleet.tell(ev.JobSubmitted(fleet.at, job(number, accelerator, count, retry=RetryRule(9))))


def test_a_retry_goes_to_another_machine_that_is_free() -> None:
    """It, and the gang, would start on the first machine again but for the failure."""
    fleet = fleet_of("cc")
    submit(fleet, 1)
    assert fleet.where(J1) == {"c1"}
    fleet.end(J1, exit_code=3)
    assert fleet.where(J1) == {"c2"}
    fleet = fleet_of("bbb")
    submit(fleet, 1, "b", 4)
    fleet.prepare_all(J1)
    assert fleet.where(J1) == {"b1", "b2"}
    fleet.end(J1, exit_code=3)
    assert fleet.where(J1) == {"b2", "b3"}


def test_failures_of_the_world_count_and_stops_on_demand_do_not() -> None:
    fleet = fleet_of("ccc")
    submit(fleet, 1)
    fleet.attempts.pop(J1)
    fleet.tell(ev.StartRefused(fleet.at, J1, 1, NodeId("c1"), "full disk"))
    assert fleet.where(J1) == {"c2"}
    fleet.attempts.pop(J1)
    fleet.tell(ev.AttemptEnded(fleet.at, J1, 2, ev.EndCause.LEASE_EXPIRED))
    assert fleet.where(J1) == {"c3"}
    fleet.tell(ev.JobHeld(fleet.at, J1))
    fleet.end(J1, exit_code=85)
    assert set(fleet.core.ledger.retries.failed[J1]) == {"c1", "c2"}


def test_it_waits_a_round_at_most_for_another_machine() -> None:
    """Half a minute under long rounds. What it leaves alone is free for others, of its own kind too."""
    fleet = fleet_of("cc")
    submit(fleet, 2)
    submit(fleet, 1)
    assert (fleet.where(J2), fleet.where(J1)) == ({"c1"}, {"c2"})
    fleet.end(J1, exit_code=3)
    assert not fleet.where(J1)
    told = pending_reasons(fleet.core, J1)[0]
    assert told.reason is Reason.WAIT_CAPACITY
    assert "but only on c2, where it failed: it waits for another machine, for 20s at most" in told.detail
    while fleet.at < ROUND_S:
        assert not fleet.where(J1)
        fleet.wake()
    assert (fleet.at, fleet.where(J1)) == (ROUND_S, {"c2"})
    fleet = cluster(machines="cc", rules=RoundRules(round_s=3600.0, backoff_s=0.0))
    submit(fleet, 2)
    submit(fleet, 1)
    fleet.end(J1, exit_code=3)
    fleet.tell(ev.Woke(DELAY_MOST_S - 1.0))
    assert not fleet.where(J1)
    fleet.tell(ev.Woke(DELAY_MOST_S))
    assert fleet.where(J1) == {"c2"}


def test_after_two_failures_it_insists_on_another_machine() -> None:
    """Others have the free one; it starts as soon as another is free, however long that takes."""
    fleet = fleet_of("cc")
    submit(fleet, 2)
    submit(fleet, 1)
    fleet.end(J1, exit_code=3)
    fleet.tell(ev.Woke(ROUND_S))
    assert fleet.where(J1) == {"c2"}
    fleet.end(J1, exit_code=3)
    fleet.tell(ev.Woke(100 * ROUND_S))
    assert not fleet.where(J1)
    assert "as long as there is one" in pending_reasons(fleet.core, J1)[0].detail
    submit(fleet, 3)
    assert fleet.where(J3) == {"c2"}
    fleet.end(J2)
    assert fleet.where(J1) == {"c1"}


@pytest.mark.parametrize("gone", ["lost", "drained", "forbidden"])
def test_the_last_machine_is_good_enough(gone: str) -> None:
    """Where the other machine is gone, takes no jobs, or is beyond what the job's project may hold."""
    fleet = fleet_of("cb")
    submit(fleet, 2, "b", 2)
    fleet.tell(ev.JobSubmitted(fleet.at, job(1, "*", retry=RetryRule(9), project="p")))
    for _ in range(2):
        while not fleet.where(J1):
            fleet.wake()
        assert fleet.where(J1) == {"c1"}
        fleet.end(J1, exit_code=3)
    assert not fleet.where(J1)
    if gone == "lost":
        fleet.lose(NodeId("b2"))
    elif gone == "drained":
        fleet.tell(ev.NodeLeaving(fleet.at, NodeId("b2"), fleet.at + 900.0))
    else:
        fleet.tell(SharesDeclared(fleet.at, (EntityShare("p", limits=(ShareLimit("b", 0),)),)))
    assert fleet.where(J1) == {"c1"}


def test_of_two_pools_the_other_is_taken() -> None:
    """Under an order that would choose the faster pool again, and under shares, whose problem leaves the pool out."""
    for policy in ("fifo", "max_min_fairness"):
        fleet = fleet_of("ab", policy)
        submit(fleet, 1, "*")
        first = fleet.where(J1)
        fleet.end(J1, exit_code=3)
        while not fleet.where(J1) and fleet.at < ROUND_S:
            fleet.wake()
        assert len(fleet.where(J1)) == 1
        assert fleet.where(J1) != first, policy


def test_a_checkpoint_clears_the_machine_and_a_restart_does_not() -> None:
    fleet = fleet_of("cc")
    submit(fleet, 1)
    fleet.end(J1, exit_code=3)
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 2))
    fleet.end(J1, exit_code=3)
    fleet.restart(remembered_state(fleet.core.ledger))
    assert set(fleet.core.ledger.retries.failed[J1]) == {"c1", "c2"}
    fleet.tell(ev.Woke(fleet.at + ROUND_S))
    (here,) = fleet.where(J1)
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 3))
    fleet.tell(ev.CheckpointRecorded(fleet.at, J1, 3, 10.0, 0.1))
    assert here not in fleet.core.ledger.retries.failed[J1]
    commands = fleet.end(J1)
    assert [each.state for each in commands if isinstance(each, cmd.JobTransitioned)] == ["SUCCEEDED"]
    assert not fleet.core.ledger.retries.failed


def lose(fleet: FakeFleet, *, witnessed: bool = True) -> list[cmd.Command]:
    """The supervisor of the newest attempt is killed."""
    number = fleet.attempts.pop(J1).number
    lost = ev.EndCause.SUPERVISOR_LOST
    return fleet.tell(ev.AttemptEnded(fleet.at, J1, number, lost, node_id=NodeId("a1"), witnessed=witnessed))


def wait(fleet: FakeFleet) -> None:
    """Until the next attempt starts; the end of a wait for another machine wakes the core, too."""
    fleet.wake()
    while J1 not in fleet.attempts:
        fleet.wake()


def begun(**rules: int) -> FakeFleet:
    fleet = cluster(machines="aa", rules=RoundRules(backoff_s=10, **rules))  # type: ignore[arg-type]
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a")))
    return fleet


def test_it_waits_longer_each_time_and_is_held_with_the_reason() -> None:
    """Five tries, not one a second for ever; no machine is put aside for it, no retry used; a person can release it."""
    fleet = begun()
    instants = []
    for number in range(1, 6):
        instants.append(fleet.at)
        commands = lose(fleet)
        assert fleet.core.ledger.jobs[J1].attempt == number
        assert not [c for c in commands if isinstance(c, cmd.Start | cmd.NodeCordoned)]
        if number < 5:
            wait(fleet)
    assert [after - before for before, after in pairwise(instants)] == [10, 20, 40, 80]
    assert fleet.states[J1][-1] == "HELD"
    (held,) = [c for c in commands if isinstance(c, cmd.JobTransitioned)]
    assert held.reason == "HOLD:REPEATED_FAILURE"
    assert "its supervisor was killed, while the machine lived on; 5 times in a row, last on a1" in held.detail
    assert fleet.core.ledger.jobs[J1].restarts == 0
    fleet.tell(ev.JobReleased(fleet.at + 1000.0, J1))
    lose(fleet)
    assert fleet.states[J1][-1] == "PENDING"


def test_losses_that_nobody_witnessed_do_not_count() -> None:
    """A machine that rebooted starts the job elsewhere at once, for ever; nor is a job held that gets on."""
    fleet = begun()
    for _ in range(20):
        commands = lose(fleet, witnessed=False)
        assert [c for c in commands if isinstance(c, cmd.Start)]
    fleet = begun()
    for number in range(1, 20):
        fleet.tell(ev.CheckpointRecorded(fleet.at, J1, number, float(number)))
        lose(fleet)
        wait(fleet)
    assert "HELD" not in fleet.states[J1]


def test_the_rule_can_be_changed() -> None:
    fleet = begun(supervisor_losses_held=2)
    lose(fleet)
    fleet.wake()
    lose(fleet)
    assert fleet.states[J1][-1] == "HELD"
    never = begun(supervisor_losses_held=0)
    for _ in range(20):
        lose(never)
        wait(never)
    assert "HELD" not in never.states[J1]
    with pytest.raises(ConfigError):
        parse_rules({"supervisor_losses_held": -1})


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


def quarantined(first: int = 1) -> tuple[FakeFleet, FleetMachine]:
    fleet = cluster(machines="aa", rules=RoundRules(quarantine_jobs=2, backoff_s=0))
    for number in (first, first + 1):
        fails_of(fleet, number, f"user{number}")
    assert fleet.core.ledger.fleet.pools[0].capacity == 4
    machine = next(each for each in fleet.core.ledger.fleet.machines if each is not None and each.failures)
    return fleet, machine


def test_a_quarantine_ends_by_itself_after_a_clean_trial() -> None:
    """After ten minutes it takes jobs again, and says so; a success ends the trial."""
    fleet, machine = quarantined()
    commands = fleet.tell(ev.Woke(fleet.at + TRIAL_AFTER_S))
    assert [c.node_id for c in commands if isinstance(c, cmd.NodeReadmitted)] == [machine.node_id]
    assert (machine.condition, machine.standing.on_trial) == (MachineCondition.UP, True)
    assert "trial" in machine.detail
    for number in (3, 4):
        fleet.tell(ev.JobSubmitted(fleet.at, job(number, "a", 4)))
    for number in (3, 4):
        fleet.end(JobId(number))
    assert (machine.standing.on_trial, machine.standing.times_aside) == (False, 0)


def test_a_failure_on_trial_puts_a_machine_aside_for_twice_as_long() -> None:
    fleet, machine = quarantined()
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
    node_id = placement.parts[0].node_id
    fleet.tell(ev.CheckpointRecorded(1.0, J1, 1, 10.0))
    commands = fleet.tell(ev.NodeUnfit(2.0, node_id, "GPU 0: Xid 79, it fell off the bus"))
    assert [c.detail for c in commands if isinstance(c, cmd.NodeCordoned)] == ["GPU 0: Xid 79, it fell off the bus"]
    assert (J1, Reason.INFRA_DEVICE_FAULT) in [(c.job_id, c.reason) for c in commands if isinstance(c, cmd.Revoke)]
    fleet.tell(ev.Woke(2.0 + 100 * TRIAL_AFTER_S))  # no trial helps against a fault
    machine = fleet.core.ledger.fleet.machine(node_id)
    assert machine.condition is MachineCondition.QUARANTINED
    commands = fleet.tell(ev.NodeFit(fleet.at, node_id))
    assert [c.node_id for c in commands if isinstance(c, cmd.NodeReadmitted)] == [node_id]
    assert machine.condition is MachineCondition.UP
    fleet.tell(ev.NodeFit(fleet.at, node_id))  # said twice


def mixed_machines(fleet: FakeFleet, *names: str) -> FakeFleet:
    """Machines with four accelerators of pool a and two of pool b."""
    for name in names:
        for pool in "ab":
            fleet.tell(ev.NodeJoined(0.0, NodeId(f"{name}.{pool}"), PoolId(pool), machine=name))
    return fleet


def conditions(fleet: FakeFleet) -> dict[str, str]:
    machines = fleet.core.ledger.fleet.machines
    return {str(each.node_id): each.condition.value for each in machines if each is not None}


def one_fails(fleet: FakeFleet, number: int, pool: str, count: int) -> list[cmd.Command]:
    fleet.tell(ev.JobSubmitted(1.0, job(number, pool, count)))
    return fleet.end(JobId(number), exit_code=1)


def test_jobs_that_fail_on_any_part_put_the_whole_machine_aside() -> None:
    """Two failed on the one type, one on the other: three distinct jobs on one machine."""
    fleet = mixed_machines(cluster(machines="", rules=RoundRules(quarantine_jobs=3, backoff_s=0)), "m1", "m2")
    for number, (pool, count) in enumerate((("a", 4), ("a", 4), ("b", 2)), 1):
        commands = one_fails(fleet, number, pool, count)
    cordoned = sorted(str(each.node_id) for each in commands if isinstance(each, cmd.NodeCordoned))
    assert cordoned == ["m1.a", "m1.b"]
    aside = {"m1.a": "quarantined", "m1.b": "quarantined", "m2.a": "up", "m2.b": "up"}
    assert conditions(fleet) == aside
    fleet.tell(ev.JobSubmitted(2.0, job(9, "b", 4)))
    told = str(pending_reasons(fleet.core, JobId(9)))
    assert "m1 is quarantined" in told
    assert "m1.b" not in told


def test_a_success_on_one_part_clears_the_machine() -> None:
    """Nor is the last machine of any of its types put aside: faulty jobs must not take the last places of that."""
    fleet = mixed_machines(cluster(machines="", rules=RoundRules(quarantine_jobs=3)), "m1", "m2")
    one_fails(fleet, 1, "a", 4)
    one_fails(fleet, 2, "a", 4)
    fleet.tell(ev.JobSubmitted(1.0, job(3, "b", 2)))
    fleet.end(JobId(3))
    one_fails(fleet, 4, "a", 4)
    assert MachineCondition.QUARANTINED.value not in conditions(fleet).values()
    fleet = mixed_machines(cluster(machines="a", rules=RoundRules(quarantine_jobs=1)), "m1")
    for number in range(1, 6):
        one_fails(fleet, number, "b", 2)
    assert set(conditions(fleet).values()) == {"up"}


def test_what_is_held_on_one_part_leaves_the_other_as_it_is() -> None:
    """A job that takes all processors of one's leaves all of the other's; a copy knows that they are one machine."""
    fleet = mixed_machines(cluster(machines=""), "m1")
    fleet.submit(job(1, "a", 4, cpus_per_accelerator=4.0), job(2, "b", 2, cpus_per_accelerator=4.0))
    held = {int(job_id): [(p.node_id, p.devices) for p in a.placement.parts] for job_id, a in fleet.attempts.items()}
    assert held == {1: [("m1.a", (0, 1, 2, 3))], 2: [("m1.b", (0, 1))]}
    fleet = mixed_machines(cluster(machines="c"), "m1")
    told = [each for each in snapshot_at_once(fleet.core, 1.0).fleet if isinstance(each, ev.NodeJoined)]
    assert {str(each.node_id): each.machine for each in told} == {"c1": "", "m1.a": "m1", "m1.b": "m1"}


@pytest.mark.parametrize("name", ["", "m1"])
def test_parts_of_other_machines_are_none_of_its(name: str) -> None:
    """Machines that are no parts are not all parts of one machine without a name."""
    fleet = cluster(machines="aa", rules=RoundRules(quarantine_jobs=1, backoff_s=0))
    fleet.tell(ev.NodeJoined(0.0, NodeId("x"), PoolId("b"), machine=name))
    one_fails(fleet, 1, "a", 4)
    assert sorted(conditions(fleet).values()) == ["quarantined", "up", "up"]


def test_a_gang_that_may_mix_types_uses_both_parts_of_one_machine() -> None:
    """One accelerator of each type is left: a gang of two runs on these two."""
    fleet = measured(mixed_machines(cluster("hadar", rules=QUICK, machines=""), "m1"))
    for number, pool, count in ((1, "a", 3), (2, "b", 1)):
        fleet.tell(ev.JobSubmitted(fleet.at, job(number, pool, count, steps=1e6, preemptible=False)))
        carried_out(fleet)
        fleet.tell(ev.AttemptStarted(fleet.at, JobId(number), fleet.attempts[JobId(number)].number))
    for name in ("a", "b"):
        fleet.tell(ThroughputMeasured(fleet.at, Kind("k"), name, 2, 16.0))
    fleet.tell(ev.JobSubmitted(1.0, job(3, "*", 2, steps=1e5, mixed=True)))
    carried_out(fleet)
    parts = {str(each.node_id): len(each.devices) for each in fleet.attempts[JobId(3)].placement.parts}
    assert parts == {"m1.a": 1, "m1.b": 1}
