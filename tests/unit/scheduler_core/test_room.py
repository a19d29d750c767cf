"""A fill looks at no line in vain, and passes over nobody who would have found a place."""

from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.classes import Form
from scheduler.core.room import Room
from scheduler.core.rules import RoundRules
from walras.ids import JobId, Kind

QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2, profiling_share=0)


def form(count: int, nodes: int = 1) -> Form:
    return Form((count,), nodes, 1.0, 1)


def test_a_gang_on_several_machines_needs_its_largest_part_on_one() -> None:
    """However much is free in all: whole machines for what fills them, an even part of a gang spread by request."""
    room = Room(one=3, several=12, lent=0)
    assert not room.may_hold(form(8), 0, machine_size=4)
    assert not room.may_hold(form(8, nodes=2), 0, machine_size=8)
    assert room.may_hold(form(6, nodes=2), 0, machine_size=8)
    assert not room.may_hold(form(15, nodes=5), 0, machine_size=8)
    assert room.may_hold(form(3), 0, machine_size=4)
    assert not room.may_hold(form(4), 0, machine_size=4)
    assert Room(one=0, several=0, lent=4).may_hold(form(4), 0, machine_size=4)


def crowded() -> FakeFleet:
    """One accelerator free on each of three machines, and a gang that has reserved two of them."""
    fleet = cluster("max_min_fairness", rules=QUICK, machines="aaa")
    for count in (1, 2, 3, 4, 8):
        fleet.tell(ev.ThroughputMeasured(0.0, Kind("k"), "a", count, float(count)))
    for number in (1, 2, 3):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", 3, preemptible=False)))
    fleet.tell(ev.JobSubmitted(1.0, job(4, "a", 8)))
    fleet.answer({1: {"a": 0.5}})  # asked for before the others came
    fleet.answer({number: {"a": 0.5} for number in (1, 2, 3, 4)})
    assert [claim.job_id for claim in fleet.core.cycle.claims.values()] == [4]
    return fleet


def test_an_elastic_job_starts_small_behind_a_gang_that_found_no_place() -> None:
    """Its full gang has no room either; a smaller one has."""
    fleet = crowded()
    commands = fleet.tell(ev.JobSubmitted(2.0, job(5, "a", 4, sizes=(1, 2, 4))))
    started = {c.job_id: c.placement.accelerators for c in commands if isinstance(c, cmd.Start)}
    assert started == {JobId(5): 1}
