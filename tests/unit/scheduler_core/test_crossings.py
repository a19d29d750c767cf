"""Gangs whose machines are further apart than they could be: priced, kept together, made to wait, and told."""

from dataclasses import replace
from math import inf

import pytest
from fake_fleet import FakeFleet, fleet_of, job, pool, revoked
from planned_fleet import carried_out

from scheduler.core import events as ev
from scheduler.core.explain.job_conditions import job_conditions
from scheduler.core.speed_events import FactsTold, NetworkMeasured, ThroughputMeasured
from walras.cluster import NodeId, Pool, PoolId
from walras.job_request import JobId, JobRequest, Kind
from walras.machines.topology import Topology
from walras.model_facts import ModelFacts

KIND, GBIT = Kind("k"), 1e9 / 8
RACKS = Topology((("machine", 100 * GBIT), ("rack", 10 * GBIT)), (("r1", "a[1-3]"), ("r2", "a[4-6]")))
STEPS_PER_S = 1.0
#: A gang of two machines exchanges for a tenth of a step in one rack: over two it has 1 / 1.9 of its speed.
FACTS = ModelFacts(gradient_bytes=0.1 * 100 * GBIT)
ACROSS = 1 / 1.9


def racks(policy: str = "fifo", declared: Pool | None = None, *, facts: bool = True, **rules: object) -> FakeFleet:
    """Two racks of three machines with four accelerators, and the speeds and facts of a kind."""
    declared = declared or replace(pool("a", 4), topology=RACKS)
    rules = {"round_s": 10, "resolve_min_s": 0, "min_runtime_s": 0, "restart_default_s": 10, **rules}
    fleet = fleet_of(declared, policy=policy, **rules)
    for number in range(1, 7):
        fleet.tell(ev.NodeJoined(0.0, NodeId(f"a{number}"), PoolId("a")))
    for count in (1, 4, 8, 12, 16):
        fleet.tell(ThroughputMeasured(0.0, KIND, "a", count, STEPS_PER_S))
    if facts:
        fleet.tell(FactsTold(0.0, KIND, FACTS))
    return fleet


def submit(fleet: FakeFleet, number: int, count: int, *, at: float = 0.0, steps: float | None = 1000.0) -> JobRequest:
    request = job(number, "a", count, steps=steps)
    fleet.tell(ev.JobSubmitted(at, request))
    carried_out(fleet)
    return request


def told_of(fleet: FakeFleet, number: int) -> list[str]:
    return [each.detail for each in job_conditions(fleet.core, JobId(number)) if each.type == "speed_differs"]


@pytest.mark.parametrize("policy", ["fifo", "srtf", "max_min_fairness", "walras"])
def test_gangs_stay_in_one_rack_and_leave_whole_racks_free(policy: str):
    """A job on one machine goes to the rack that is in use, so the gang after it has a rack."""
    fleet = racks(policy)
    for number, count in enumerate((8, 4, 12), 1):
        submit(fleet, number, count)
    assert [fleet.where(number) for number in (1, 2, 3)] == [{"a1", "a2"}, {"a3"}, {"a4", "a5", "a6"}]


def across(fleet: FakeFleet, *, steps: float | None = 1000.0) -> None:
    """Jobs 1 and 2 leave one free machine in each rack, which job 3 may have."""
    for number in (1, 2):
        submit(fleet, number, 8, steps=steps)
        fleet.run(number)
    submit(fleet, 3, 8)


def test_a_gang_over_two_racks_counts_as_slower_until_it_is_measured_and_its_kind_does_not():
    fleet = racks()
    across(fleet, steps=None)  # nobody knows when a rack is free, so it starts
    assert fleet.where(3) == {"a3", "a6"}
    ledger = fleet.core.ledger
    record = ledger.jobs[JobId(3)]
    assert ledger.rate_of(record) == pytest.approx(ACROSS, rel=0.01)
    assert told_of(fleet, 3) == ["2 racks: 47% slower than on machines close together"]
    fleet.run(3)
    fleet.tell(NetworkMeasured(1.0, JobId(3), 1, 10 * GBIT))  # as expected there: no usual network of the pool
    assert ledger.networks.planned("default", PoolId("a")) is None
    for at in range(2, 12):
        fleet.tell(ev.AttemptProgressed(float(at), JobId(3), 1, float(at), steps_per_s=0.4, samples=9))
    assert ledger.rate_of(record) == pytest.approx(0.4)
    assert told_of(fleet, 3) == ["2 racks: 60% slower than on machines close together"]
    assert ledger.table.measured(KIND, "a", 8) == STEPS_PER_S
    fleet.end(JobId(1))
    submit(fleet, 4, 8, at=fleet.at)
    assert ledger.rate_of(ledger.jobs[JobId(4)]) == STEPS_PER_S
    fleet.restart()
    assert told_of(fleet, 3)[0].startswith("2 racks: ")
    assert fleet.core.ledger.kind_of(fleet.core.ledger.jobs[JobId(3)]) == "k across racks"


@pytest.mark.parametrize(
    ("steps_left", "facts", "waits"),
    [
        (200.0, True, True),  # a rack is free in 200 s, and the crossing would cost it 900
        (950.0, True, False),  # the rack takes longer than that
        (None, True, False),  # unknown
        (200.0, False, False),  # what it exchanges is unknown
    ],
)
def test_a_gang_waits_for_its_rack_only_where_that_is_known_to_be_shorter(
    steps_left: float | None, facts: bool, waits: bool
):
    fleet = racks("srtf", facts=facts)
    across(fleet, steps=steps_left)
    assert (JobId(3) not in fleet.attempts) == waits
    if waits:
        assert told_of(fleet, 3) == ["waits for machines close together, 15m00s at most"]
        fleet.at = 200.0
        fleet.end(JobId(2))
        assert fleet.where(3) < {"a4", "a5", "a6"}


def test_it_waits_no_longer_than_the_crossing_costs_it_however_late_others_end():
    """Jobs in the racks that overstay say nothing more of their end, and at last the gang starts where it can."""
    fleet = racks("srtf")
    across(fleet, steps=200.0)
    assert JobId(3) not in fleet.attempts
    while JobId(3) not in fleet.attempts and fleet.wake_at < inf and fleet.at < 2000:
        fleet.wake()
        carried_out(fleet)
    assert fleet.where(3) == {"a3", "a6"}
    assert fleet.at <= 910.0


def test_it_waits_no_longer_however_often_the_ends_of_others_move():
    """They are 200 s away at every report."""
    fleet = racks("srtf")
    across(fleet, steps=200.0)
    while JobId(3) not in fleet.attempts and fleet.at < 2000:
        at = fleet.at + 50.0
        for number in (1, 2):
            fleet.tell(ev.AttemptProgressed(at, JobId(number), 1, 1.0))
        fleet.tell(ev.Woke(at))
        carried_out(fleet)
    assert 700.0 <= fleet.at <= 950.0


def test_a_gang_that_runs_faster_over_racks_than_was_known_is_not_slower():
    fleet = racks()
    across(fleet, steps=None)
    fleet.run(3)
    for at in range(2, 12):
        fleet.tell(ev.AttemptProgressed(float(at), JobId(3), 1, float(at), steps_per_s=2.0, samples=9))
    assert told_of(fleet, 3) == ["2 racks: 0% slower than on machines close together"]


def test_a_rack_with_a_machine_that_others_booked_or_without_processors_is_none():
    """Neither for a gang that would be there when they come, nor for a job that leaves whole racks free."""
    fleet = racks()
    fleet.tell(ev.BookingsDeclared(0.0, (ev.Booking(1, "other", (NodeId("a1"), NodeId("a2")), 100.0, inf),)))
    submit(fleet, 1, 8)
    assert fleet.where(1) < {"a4", "a5", "a6"}
    fleet = racks()
    cpus = fleet.core.ledger.fleet.pools[0].pool.shape.cpus
    for number, part in ((2, 0.75), (3, 0.5), (4, 0.5)):
        fleet.tell(ev.JobSubmitted(0.0, replace(job(number, "a", 1), cpus_per_accelerator=part * cpus)))
    assert [fleet.where(number) for number in (2, 3, 4)] == [{"a1"}, {"a2"}, {"a2"}]


def test_jobs_leave_one_rack_for_a_gang_rather_than_a_machine_in_each():
    """Preemption frees a block: of jobs alike, those that together leave one."""
    fleet = racks("srtf")
    for number in range(1, 7):
        submit(fleet, number, 4, steps=1e6)
        fleet.run(number)
        fleet.tell(ev.AttemptProgressed(0.0, JobId(number), 1, 1.0, saves=True))
    left = set(revoked(fleet.tell(ev.JobSubmitted(100.0, job(9, "a", 12, steps=10.0)))))
    assert left in ({1, 2, 3}, {4, 5, 6})


def test_without_a_topology_every_place_is_equally_near():
    fleet = racks(declared=pool("a", 4))
    across(fleet)
    assert fleet.core.ledger.rate_of(fleet.core.ledger.jobs[JobId(3)]) == STEPS_PER_S
    assert told_of(fleet, 3) == []
