"""A fill looks at no line in vain, and passes over nobody who would have found a place."""

from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.placement.reservations import FreeCapacityBound
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.core.state.job_queues import ShapeQueue
from walras.job_request import JobId, Kind

QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2, profiling_share=0)


def test_a_gang_on_several_machines_needs_its_largest_part_on_one() -> None:
    """However much is free in all: whole machines for what fills them, an even part of a gang spread by request."""
    room = FreeCapacityBound(one=3, several=12, lent=0)
    assert not room.may_hold(ShapeQueue(8, part=4))
    assert room.may_hold(ShapeQueue(6, part=3))
    assert not room.may_hold(ShapeQueue(15, part=3))
    assert room.may_hold(ShapeQueue(3, part=3))
    assert not room.may_hold(ShapeQueue(4, part=4))
    assert FreeCapacityBound(one=0, several=0, lent=4).may_hold(ShapeQueue(4, part=4))


def test_a_line_knows_the_largest_part_of_its_gangs() -> None:
    """Whole machines for what fills them, an even part of a gang that is spread by request."""
    fleet = cluster("fifo", rules=QUICK, machines="aa")
    for number, nodes in ((1, 1), (2, 2)):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", 6, nodes=nodes)))
    queues, ledger = fleet.core.cycle.queues, fleet.core.ledger
    rows = [ledger.classes.row(job(number, "a", 6, nodes=nodes)) for number, nodes in ((1, 1), (2, 2))]
    found = [queues.queue(0, ledger.classes.classes[row].shape) for row in rows]
    assert [(line.count, line.part) for line in found] == [(6, 4), (6, 3)]


def crowded() -> FakeFleet:
    """One accelerator free on each of three machines, and a gang that has reserved two of them."""
    fleet = cluster("max_min_fairness", rules=QUICK, machines="aaa")
    for count in (1, 2, 3, 4, 8):
        fleet.tell(ThroughputMeasured(0.0, Kind("k"), "a", count, float(count)))
    for number in (1, 2, 3):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", 3, preemptible=False)))
    fleet.tell(ev.JobSubmitted(1.0, job(4, "a", 8)))
    fleet.answer({1: {"a": 0.5}})  # asked for before the others came
    fleet.answer({number: {"a": 0.5} for number in (1, 2, 3, 4)})
    assert [claim.job_id for claim in fleet.core.cycle.reservations.values()] == [4]
    return fleet


def test_an_elastic_job_starts_small_behind_a_gang_that_found_no_place() -> None:
    """Its full gang has no room either; a smaller one has."""
    fleet = crowded()
    commands = fleet.tell(ev.JobSubmitted(2.0, job(5, "a", 4, sizes=(1, 2, 4))))
    started = {c.job_id: c.placement.accelerators for c in commands if isinstance(c, cmd.Start)}
    assert started == {JobId(5): 1}
