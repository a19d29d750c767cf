"""Slow machines are a pool of their own in problems: with their speed, capacity and price, and only while they are."""

import pickle
from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, job, remembered_state
from planned_fleet import QUICK, carried_out, planning

from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from scheduler.core import events as ev
from scheduler.core.cycle.slow_pools import slow_machine_text
from scheduler.core.events import Booking, BookingsDeclared, EntityShare, ShareLimit, SharesDeclared
from scheduler.core.explain.job_conditions import believed_speeds, job_conditions
from scheduler.forecast.core_copy import CoreCopy, snapshot_at_once
from scheduler.forecast.job_forecasts import ForecastQuestion, forecast_jobs
from scheduler.forecast.past_jobs import PastJobs
from tests.support.core_invariants import check_invariants
from walras.cluster import NodeId
from walras.job_request import JobId, Kind

APART = "c~slow"


def reported(fleet: FakeFleet, paces: dict[str, float], first_job: int = 900) -> None:
    """Jobs of a kind that is not here now report these paces on these machines, and the usual one on others."""
    known = fleet.core.ledger.slow_machines
    for number in range(first_job, first_job + 3):
        for machine in fleet.core.ledger.fleet.machines:
            for _ in range(6):
                speed = paces.get(machine.node_id, 1.0)
                known.saw(JobId(100 * number + machine.row), machine.node_id, (Kind("past"), 2, 1), speed)


def capacities(fleet: FakeFleet) -> list[int]:
    """Accelerators of the pool c and, once there is one, of the pool beside it."""
    return [state.capacity for state in fleet.core.ledger.fleet.pools[2:]]


def submitted(fleet: FakeFleet, *numbers: int, count: int = 1, **more: object) -> None:
    """Jobs that take hours, the shortest first; all is carried out and their ranks are up."""
    for number in numbers:
        fleet.tell(ev.JobSubmitted(fleet.at, job(number, "c", count, steps=10_000.0 * number, **more)))
    settled(fleet)


def beside_a_slow_one(*numbers: int, count: int = 1) -> FakeFleet:
    """These jobs, on four machines of which c2 is found to be slow."""
    fleet = planning("cccc")
    reported(fleet, {"c2": 0.6})
    submitted(fleet, *numbers, count=count)
    return fleet


def settled(fleet: FakeFleet) -> Problem | None:
    """Rounds end until nothing is asked or stopped any more. Returns the last problem."""
    problem = None
    for _ in range(6):
        if fleet.wake_at <= fleet.at + 1_000.0:
            fleet.wake()
        while fleet.solves:
            problem = fleet.solves[-1].problem
            carried_out(fleet)
        for job_id, attempt in list(fleet.attempts.items()):
            if attempt.stopping:
                fleet.end(job_id, exit_code=85)
            elif not attempt.started:
                fleet.prepare_all(job_id)
            elif attempt.started and fleet.core.ledger.jobs[job_id].running_at > fleet.at:
                fleet.tell(ev.AttemptProgressed(fleet.at, job_id, attempt.number, 1.0, saves=True))
    return problem


def held_on(fleet: FakeFleet) -> dict[str, list[int]]:
    """Which jobs hold which machine."""
    machines = filter(None, fleet.core.ledger.fleet.machines)
    return {str(each.node_id): sorted(map(int, each.holders)) for each in machines}


def test_a_slow_machine_is_a_pool_with_its_speed_and_its_price() -> None:
    """Four jobs on four machines of which one is slow; with a fifth, its accelerators cost less."""
    fleet = beside_a_slow_one(1, 2, 3, 4)
    problem = settled(fleet)
    assert problem.pools.pool_id == ("a", "b", "c", APART)
    assert problem.pools.capacity.tolist() == [0.0, 0.0, 3.0, 1.0]
    speeds = problem.columns.steps_per_s.reshape(4, 2)
    assert speeds == pytest.approx(speeds[:, :1] * [[1.0, 0.6]])
    assert sorted(jobs[0] for jobs in held_on(fleet).values()) == [1, 2, 3, 4]
    assert {attempt.placement.pool_id for attempt in fleet.attempts.values()} == {"c"}
    fleet.tell(ev.JobSubmitted(fleet.at, job(5, "c", steps=90_000.0)))
    settled(fleet)
    quote = fleet.core.cycle.policy.quote
    assert 0 < quote.prices[3] < quote.prices[2]
    told = slow_machine_text(fleet.core.ledger, NodeId("c2"))
    words = "40 % slower than others of its pool, by what jobs report; its accelerators have a price of their own, as "
    assert told == words + APART
    (job_id,) = map(JobId, held_on(fleet)["c2"])
    assert [each.detail for each in job_conditions(fleet.core, job_id)][:1] == [f"c2 is {told}"]
    assert [(each.pool_id, each.speed.steps_per_s) for each in believed_speeds(fleet.core, job_id)] == [
        ("c", 1.0),
        (APART, pytest.approx(0.6)),
    ]


def test_a_job_that_is_on_a_machine_found_slow_is_moved_where_that_pays() -> None:
    """It runs on, counted there, until a better place is free; then it moves, as it would to any faster type."""
    fleet = planning("cccc")
    submitted(fleet, 1, 2, 3, 4)
    (slow,) = (node for node, jobs in held_on(fleet).items() if jobs == [3])
    (other,) = (JobId(jobs[0]) for node, jobs in held_on(fleet).items() if jobs == [1])
    reported(fleet, {slow: 0.5})
    fleet.end(other)
    settled(fleet)
    assert 3 not in held_on(fleet)[slow]
    assert held_on(fleet)[slow] == []


def test_a_machine_that_is_as_fast_as_the_others_again_goes_back() -> None:
    fleet = beside_a_slow_one(1, 2)
    reported(fleet, {"c2": 1.0}, first_job=2000)
    assert not fleet.core.ledger.slow_machines.slow
    submitted(fleet, 3, 4)
    assert capacities(fleet) == [4, 0]
    fleet.tell(ev.JobSubmitted(fleet.at, job(5, "c", steps=90_000.0)))
    problem = settled(fleet)
    assert problem.pools.capacity.tolist() == [0.0, 0.0, 4.0, 0.0]
    assert len(problem.columns) == 5


def test_a_gang_that_needs_all_machines_keeps_them_together() -> None:
    """While it is there the slow machine is used as one of the pool; afterwards it is apart."""
    fleet = beside_a_slow_one(1, count=4)
    assert capacities(fleet) == [4]
    assert all(jobs == [1] for jobs in held_on(fleet).values())
    fleet.end(JobId(1))
    submitted(fleet, 2)
    assert capacities(fleet) == [3, 1]
    submitted(fleet, 3, count=4)
    assert capacities(fleet) == [4, 0]


def test_gangs_are_on_slow_machines_or_on_others() -> None:
    """Two slow machines and four others: each gang of two has two alike, the longest the slow ones."""
    fleet = planning("cccccc")
    reported(fleet, {"c1": 0.6, "c3": 0.6})
    submitted(fleet, 1, 2, 3, count=2)
    held = held_on(fleet)
    assert held["c1"] == held["c3"] == [3]
    assert sorted(jobs[0] for jobs in held.values()) == [1, 1, 2, 2, 3, 3]


def test_an_order_has_no_prices_so_the_machines_stay_together() -> None:
    """Also where a policy with prices was in force before; and so do machines that are booked."""
    fleet = planning("cccc", policy="fifo")
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2)
    assert capacities(fleet) == [4]
    fleet = beside_a_slow_one(1, 2, 3, 4)
    fleet.tell(ev.PolicyChanged(fleet.at, PolicySpec("fifo"), QUICK))
    settled(fleet)
    assert capacities(fleet) == [4, 0]
    assert sorted(jobs[0] for jobs in held_on(fleet).values()) == [1, 2, 3, 4]
    fleet = planning("cccc")
    reported(fleet, {"c2": 0.6})
    booking = Booking(1, "web", (NodeId("c1"),), 5_000.0, 9_000.0)
    fleet.tell(BookingsDeclared(fleet.at, (booking,)))
    submitted(fleet, 1, 2)
    assert capacities(fleet) == [4]


def test_shares_are_of_both_pools() -> None:
    """Max-min fairness divides the time of the slow machine too, by its speed; a limit on the pool counts both."""
    fleet = planning("cccc", policy="max_min_fairness")
    reported(fleet, {"c2": 0.5})
    submitted(fleet, 1, 2, 3, 4)
    problem = settled(fleet)
    assert problem is None or APART in problem.pools.pool_id
    fleet.tell(ev.JobSubmitted(fleet.at, job(5, "c", steps=90_000.0)))
    problem = settled(fleet)
    assert problem.pools.capacity.tolist() == [0.0, 0.0, 3.0, 1.0]
    shares = fleet.core.ledger.columns.entitled.sum(axis=0)[2:]
    assert shares == pytest.approx([3.0, 1.0])
    fleet = planning("cccc")
    limits = (ShareLimit("c", 2),)
    fleet.tell(SharesDeclared(fleet.at, (EntityShare("web", limits=limits),)))
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2, 3, 4, project="web")
    assert sum(map(len, held_on(fleet).values())) == 2


def test_a_successor_has_the_pools_prices_and_jobs_of_slow_machines() -> None:
    """Before it plans anything, so that its first plan does not count a slow machine as one of the others."""
    fleet = beside_a_slow_one(1, 2, 3, 4, 5)
    prices, told = fleet.core.cycle.policy.quote, remembered_state(fleet.core.ledger)
    held = held_on(fleet)
    (on_slow,) = map(JobId, held["c2"])
    fleet.restart(told)
    ledger = fleet.core.ledger
    assert capacities(fleet) == [3, 1]
    assert ledger.rate_of(ledger.jobs[on_slow]) == pytest.approx(0.6)
    asked = fleet.solves[-1].problem.pools
    assert (asked.pool_id[2:], asked.capacity[2:].tolist()) == (("c", APART), [3.0, 1.0])
    told_prices = dict(told.prices)
    assert [told_prices[name] for name in ("c", APART)] == prices.prices[2:].tolist()
    settled(fleet)
    assert capacities(fleet) == [3, 1]
    assert held_on(fleet) == held
    assert slow_machine_text(ledger, NodeId("c2")).startswith("40 % slower")
    fleet.restart(replace(remembered_state(ledger), paces=()))  # as of a release that knew no slow machines
    settled(fleet)
    assert capacities(fleet) == [4]
    assert sorted(jobs[0] for jobs in held_on(fleet).values()) == [1, 2, 3, 4]


def test_a_successor_counts_the_evidence_before_it() -> None:
    """One slow job then and one now make a machine slow; two at the usual pace take it back."""
    fleet = planning("cccc")
    reported(fleet, {"c2": 0.6})
    known = fleet.core.ledger.slow_machines
    for number, speed in ((1, 0.6), (2, 1.0)):
        for _ in range(6):
            known.saw(JobId(7000 + number), NodeId("c3"), (Kind("past"), 2, 1), speed)
    for _ in range(6):
        known.saw(JobId(7003), NodeId("c3"), (Kind("past"), 2, 1), 0.6)
    assert known.slow.keys() == {"c2"}
    fleet.restart(remembered_state(fleet.core.ledger))
    known = fleet.core.ledger.slow_machines
    assert known.slow == {"c2": {"default": 0.6}}
    reported(fleet, {"c2": 1.0, "c3": 0.6}, first_job=8000)
    assert known.slow.keys() == {"c3"}


def test_a_gang_that_took_both_kinds_since_then_is_restored_and_brings_them_together() -> None:
    """What was written down is some seconds older than the gang."""
    fleet = beside_a_slow_one(2)
    told = remembered_state(fleet.core.ledger)
    submitted(fleet, 1, count=4)
    if JobId(2) in fleet.attempts:
        fleet.end(JobId(2))
    settled(fleet)
    assert all(jobs == [1] for jobs in held_on(fleet).values())
    fleet.restart(told)
    assert capacities(fleet) == [4, 0]
    settled(fleet)
    assert all(jobs == [1] for jobs in held_on(fleet).values())


def test_what_waiting_jobs_are_owed_is_remembered_by_pool() -> None:
    """Under shares: of the declared pool and of its slow machines."""
    fleet = planning("cccc", policy="max_min_fairness")
    reported(fleet, {"c2": 0.5})
    submitted(fleet, 1, 2, 3, 4, 5)
    fleet.tell(ev.Woke(fleet.at + 50.0))
    ledger = fleet.core.ledger
    before = {
        int(ledger.columns.job_id[slot]): owed for slot, owed in zip(*ledger.columns.owed_at(fleet.at), strict=True)
    }
    fleet.restart(remembered_state(fleet.core.ledger))
    ledger = fleet.core.ledger
    slots, owed = ledger.columns.owed_at(fleet.at)
    assert len(slots) == 5
    for slot, row in zip(slots, owed, strict=True):
        assert row == pytest.approx(before[int(ledger.columns.job_id[slot])], abs=0.51)


def test_a_copy_to_look_ahead_with_stands_where_the_core_stands() -> None:
    """With the pools of slow machines, and the speed that its job has there; also after it begins to decide."""
    fleet = beside_a_slow_one(1, 2, 3, 4)
    (on_slow,) = map(JobId, held_on(fleet)["c2"])
    snapshot = pickle.loads(pickle.dumps(snapshot_at_once(fleet.core, fleet.at)))
    copy = CoreCopy(snapshot)
    ledger = copy.core.ledger
    assert [(state.name, state.capacity, state.pace) for state in ledger.fleet.pools[2:]] == [
        ("c", 3, 1.0), (APART, 1, pytest.approx(0.6)),
    ]  # fmt: skip
    assert ledger.rate_of(ledger.jobs[on_slow]) == pytest.approx(0.6)
    check_invariants(copy.core)
    copy.open(fleet.at)
    assert [state.capacity for state in ledger.fleet.pools[2:]] == [3, 1]


def test_the_end_of_a_job_on_a_slow_machine_is_foreseen_at_its_speed() -> None:
    fleet = planning("cc")
    reported(fleet, {"c2": 0.5})
    submitted(fleet, 1, 2)
    (on_slow,) = map(JobId, held_on(fleet)["c2"])
    job_ = fleet.core.ledger.jobs[on_slow]
    assert job_.request.steps is not None
    answer = forecast_jobs(ForecastQuestion(snapshot_at_once(fleet.core, fleet.at), PastJobs(), draws=3, cpu_s=60.0))
    # Until the other machine is free and pays for the restart, it goes at half the pace.
    least_s = (job_.request.steps - job_.steps) / 1.0
    assert answer.jobs[on_slow].end.p50 > fleet.at + 1.2 * least_s


def test_the_machine_leaves_and_comes_back_as_any_other() -> None:
    fleet = beside_a_slow_one(1, 2, 3, 4)
    fleet.lose(NodeId("c2"))
    settled(fleet)
    assert [state.machines for state in fleet.core.ledger.fleet.pools[2:]] == [3, 0]
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("c2"), fleet.core.ledger.fleet.pools[2].pool.pool_id))
    settled(fleet)
    assert capacities(fleet) == [4, 0]


def test_a_pool_is_drained_with_its_slow_machines_and_repriced_with_them() -> None:
    fleet = beside_a_slow_one(1, 2, 3, 4)
    declared = fleet.core.ledger.fleet.pools[2].pool
    fleet.tell(ev.PoolDeclared(fleet.at, replace(declared, usd_per_h=2.0)))
    settled(fleet)
    assert [state.pool.usd_per_h for state in fleet.core.ledger.fleet.pools[2:]] == [2.0, 2.0]
    fleet.tell(ev.PoolDeclared(fleet.at, replace(declared, drained=True)))
    settled(fleet)
    assert capacities(fleet) == [0, 0]
