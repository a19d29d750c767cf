"""Slow machines are a pool of their own in problems: with their speed, capacity and price, and only while they are."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import carried_out, measured

from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from scheduler.core import events as ev
from scheduler.core.booking_events import Booking, BookingsDeclared
from scheduler.core.cycle.slow_pools import slow_machine_text
from scheduler.core.explain.job_conditions import believed_speeds, job_conditions
from scheduler.core.handlers.restored_state import gather_state
from scheduler.core.rules import RoundRules
from scheduler.core.share_events import EntityShare, ShareLimit, SharesDeclared
from walras.cluster import NodeId
from walras.job_request import JobId, Kind

RULES = RoundRules(round_s=100, resolve_min_s=0, restart_default_s=2, profiling_share=0)
APART = "c~slow"


def planning(machines: str = "cccc", policy: str = "walras", rules: RoundRules = RULES) -> FakeFleet:
    """A fleet of one type that knows its speeds."""
    return measured(cluster(policy, rules=rules, machines=machines))


def reported(fleet: FakeFleet, paces: dict[str, float], first_job: int = 900) -> None:
    """Jobs of a kind that is not here now report these paces on these machines, and the usual one on others."""
    known = fleet.core.ledger.slow_machines
    for number in range(first_job, first_job + 3):
        for machine in fleet.core.ledger.fleet.machines:
            assert machine is not None
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


def remembered(fleet: FakeFleet) -> ev.StateRestored:
    """What the core would tell a successor."""
    pieces = gather_state(fleet.core.ledger)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            found: ev.StateRestored = end.value
            return found


def test_a_slow_machine_is_a_pool_with_its_speed_and_its_price() -> None:
    """Four jobs on four machines of which one is slow; with a fifth, accelerators have prices, the slow one a lower."""
    fleet = planning()
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2, 3, 4)
    problem = settled(fleet)
    assert problem is not None
    assert problem.pools.pool_id == ("a", "b", "c", APART)
    assert problem.pools.capacity.tolist() == [0.0, 0.0, 3.0, 1.0]
    speeds = problem.columns.steps_per_s.reshape(4, 2)
    assert speeds == pytest.approx(speeds[:, :1] * [[1.0, 0.6]])
    assert sorted(jobs[0] for jobs in held_on(fleet).values()) == [1, 2, 3, 4]
    assert {attempt.placement.pool_id for attempt in fleet.attempts.values()} == {"c"}
    fleet.tell(ev.JobSubmitted(fleet.at, job(5, "c", steps=90_000.0)))
    settled(fleet)
    quote = fleet.core.cycle.policy.quote
    assert quote is not None
    assert 0 < quote.prices[3] < quote.prices[2]


def test_people_are_told_in_words() -> None:
    """The machine, the job on it and what a job would have there."""
    fleet = planning()
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2, 3, 4)
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
    fleet = planning()
    submitted(fleet, 1, 2, 3, 4)
    (slow,) = (node for node, jobs in held_on(fleet).items() if jobs == [3])
    (other,) = (JobId(jobs[0]) for node, jobs in held_on(fleet).items() if jobs == [1])
    reported(fleet, {slow: 0.5})
    fleet.end(other)
    settled(fleet)
    assert 3 not in held_on(fleet)[slow]
    assert held_on(fleet)[slow] == []


def test_a_machine_that_is_as_fast_as_the_others_again_goes_back() -> None:
    fleet = planning()
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2)
    reported(fleet, {"c2": 1.0}, first_job=2000)
    assert not fleet.core.ledger.slow_machines.slow
    submitted(fleet, 3, 4)
    assert capacities(fleet) == [4, 0]
    fleet.tell(ev.JobSubmitted(fleet.at, job(5, "c", steps=90_000.0)))
    problem = settled(fleet)
    assert problem is not None
    assert problem.pools.capacity.tolist() == [0.0, 0.0, 4.0, 0.0]
    assert len(problem.columns) == 5


def test_a_gang_that_needs_all_machines_keeps_them_together() -> None:
    """While it is there the slow machine is used as one of the pool; afterwards it is apart."""
    fleet = planning()
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, count=4)
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
    """Also where a policy with prices was in force before."""
    fleet = planning(policy="fifo")
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2)
    assert capacities(fleet) == [4]
    fleet = planning()
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2, 3, 4)
    fleet.tell(ev.PolicyChanged(fleet.at, PolicySpec("fifo"), RULES))
    settled(fleet)
    assert capacities(fleet) == [4, 0]
    assert sorted(jobs[0] for jobs in held_on(fleet).values()) == [1, 2, 3, 4]


def test_shares_are_of_both_pools() -> None:
    """Max-min fairness divides the time of the slow machine too, by its speed."""
    fleet = planning(policy="max_min_fairness")
    reported(fleet, {"c2": 0.5})
    submitted(fleet, 1, 2, 3, 4)
    problem = settled(fleet)
    assert problem is None or APART in problem.pools.pool_id
    fleet.tell(ev.JobSubmitted(fleet.at, job(5, "c", steps=90_000.0)))
    problem = settled(fleet)
    assert problem is not None
    assert problem.pools.capacity.tolist() == [0.0, 0.0, 3.0, 1.0]
    shares = fleet.core.ledger.columns.entitled.sum(axis=0)[2:]
    assert shares == pytest.approx([3.0, 1.0])


def test_a_limit_on_the_pool_counts_its_slow_machines() -> None:
    fleet = planning()
    limits = (ShareLimit("c", 2),)
    fleet.tell(SharesDeclared(fleet.at, (EntityShare("web", limits=limits),)))
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2, 3, 4, project="web")
    assert sum(map(len, held_on(fleet).values())) == 2


def test_machines_that_are_booked_stay_together() -> None:
    fleet = planning()
    reported(fleet, {"c2": 0.6})
    booking = Booking(1, "web", (NodeId("c1"),), 5_000.0, 9_000.0)
    fleet.tell(BookingsDeclared(fleet.at, (booking,)))
    submitted(fleet, 1, 2)
    assert capacities(fleet) == [4]


def test_a_successor_that_knows_no_slow_machine_takes_over() -> None:
    fleet = planning()
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2, 3, 4)
    fleet.restart(remembered(fleet))
    settled(fleet)
    assert capacities(fleet) == [4]
    assert sorted(jobs[0] for jobs in held_on(fleet).values()) == [1, 2, 3, 4]


def test_the_machine_leaves_and_comes_back_as_any_other() -> None:
    fleet = planning()
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2, 3, 4)
    fleet.lose(NodeId("c2"))
    settled(fleet)
    assert [state.machines for state in fleet.core.ledger.fleet.pools[2:]] == [3, 0]
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("c2"), fleet.core.ledger.fleet.pools[2].pool.pool_id))
    settled(fleet)
    assert capacities(fleet) == [4, 0]


def test_a_pool_is_drained_with_its_slow_machines_and_repriced_with_them() -> None:
    fleet = planning()
    reported(fleet, {"c2": 0.6})
    submitted(fleet, 1, 2, 3, 4)
    declared = fleet.core.ledger.fleet.pools[2].pool
    fleet.tell(ev.PoolDeclared(fleet.at, replace(declared, usd_per_h=2.0)))
    settled(fleet)
    assert [state.pool.usd_per_h for state in fleet.core.ledger.fleet.pools[2:]] == [2.0, 2.0]
    fleet.tell(ev.PoolDeclared(fleet.at, replace(declared, drained=True)))
    settled(fleet)
    assert capacities(fleet) == [0, 0]
