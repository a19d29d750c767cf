"""The parts of a machine with several types: one fault puts all of it aside, and a gang may use all of it."""

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import carried_out, measured

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.core.state.fleet import MachineCondition
from scheduler.forecast.core_copy import snapshot_at_once
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId, Kind

QUICK = RoundRules(round_s=100, resolve_min_s=0, restart_default_s=2, profiling_share=0)


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
    fleet = mixed_machines(cluster(machines="", rules=RoundRules(quarantine_jobs=3)), "m1", "m2")
    one_fails(fleet, 1, "a", 4)
    one_fails(fleet, 2, "a", 4)
    fleet.tell(ev.JobSubmitted(1.0, job(3, "b", 2)))
    fleet.end(JobId(3))
    one_fails(fleet, 4, "a", 4)
    assert MachineCondition.QUARANTINED.value not in conditions(fleet).values()


def test_the_last_machine_of_any_of_its_types_is_not_put_aside() -> None:
    """Another machine has the one type, none has the other: faulty jobs must not take the last places of that."""
    fleet = mixed_machines(cluster(machines="a", rules=RoundRules(quarantine_jobs=1)), "m1")
    for number in range(1, 6):
        one_fails(fleet, number, "b", 2)
    assert set(conditions(fleet).values()) == {"up"}


def test_what_is_held_on_one_part_leaves_the_other_as_it_is() -> None:
    """Processors and memory are those of the part: a job that takes all of one's leaves all of the other's."""
    fleet = mixed_machines(cluster(machines=""), "m1")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4, cpus_per_accelerator=4.0)))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "b", 2, cpus_per_accelerator=4.0)))
    held = {int(job_id): [(p.node_id, p.devices) for p in a.placement.parts] for job_id, a in fleet.attempts.items()}
    assert held == {1: [("m1.a", (0, 1, 2, 3))], 2: [("m1.b", (0, 1))]}


def test_a_copy_of_the_core_knows_which_parts_are_one_machine() -> None:
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
