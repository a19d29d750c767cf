"""Attempts over several pools: plans that jobs state, forks and mixed gangs."""

import json
from dataclasses import replace
from itertools import product

import pytest
from fake_fleet import FakeFleet, job, revoked
from planned_fleet import QUICK, carried_out, planning, sits, submit

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.events import JobRestored
from scheduler.core.explain.feasibility import PoolLimit, infeasibility, possible_remedies
from scheduler.core.explain.pending_reasons import dominant_reason, pending_reasons
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.core.state.job_classes import GANGS_MAX, POOLS_MAX, gangs_over_pools
from scheduler.core.state.remaining_work import remaining_here_s
from scheduler.live.store.event_journal import dump_json, parse_request
from walras.cluster import Market, NodeId, PoolId
from walras.job_request import Demand, GangPlan, JobId, JobRequest, Kind
from walras.states import Reason

J1, J2, J3 = JobId(1), JobId(2), JobId(3)


def plan(steps_per_s: float, **counts: int) -> GangPlan:
    return GangPlan(tuple(Demand(name, counts[name]) for name in sorted(counts)), steps_per_s)


MENU = (plan(9.0, a=4), plan(14.0, a=4, b=2), plan(5.0, a=2), plan(8.0, a=2, b=2))


def menu_job(job_id: int = 1, plans: tuple[GangPlan, ...] = MENU, **more: object) -> JobRequest:
    alone = next(each.uses for each in plans if len(each.uses) == 1)
    return JobRequest(JobId(job_id), Kind("model"), demands=alone, plans=plans, **{"steps": 1e5, **more})  # type: ignore[arg-type]


def held(fleet: FakeFleet, job_id: JobId) -> dict[str, int]:
    """Accelerators of the job by pool."""
    return dict(fleet.attempts[job_id].placement.by_pool)


def test_a_plan_holds_its_accelerators_in_every_pool_at_its_rate() -> None:
    """So in a core that takes over, and in the next plan; without its second type it goes on with another."""
    fleet = planning()
    submit(fleet, fleet.at, menu_job(), runs=True)
    assert held(fleet, J1) == {"a": 4, "b": 2}
    ledger = fleet.core.ledger
    assert ledger.rate_of(ledger.jobs[J1]) == 14.0
    assert dominant_reason(fleet.core, J1) == "has 4 x a + 2 x b: plans[1] of 4, which states 14 steps/s"
    record = fleet.core.ledger.jobs[J1]
    request = parse_request(dump_json(record.request))
    assert request == record.request
    fresh = planning()
    told = JobRestored(10.0, request, 0.0, record.state, 1, placement=record.placement, leased_at=0.0, running_at=1.0)
    fresh.tell(told)
    again = fresh.core.ledger.jobs[J1]
    assert fresh.core.ledger.parts_of(again) == fleet.core.ledger.parts_of(record)
    assert fresh.core.ledger.rate_of(again) == 14.0
    fleet.tell(ev.Woke(500.0))
    fleet.wake()
    columns = fleet.solves[-1].problem.columns
    assert len(columns) == len(MENU)
    running = columns.running.nonzero()[0].tolist()
    assert columns.steps_per_s[running].tolist() == [14.0]
    assert not revoked(carried_out(fleet))
    fleet.lose(NodeId("b2"))
    fleet.end(J1, 1, 100.0)
    fleet.tell(ev.Woke(fleet.at + 200.0))
    carried_out(fleet)
    assert held(fleet, J1) == {"a": 4}


def test_the_menu_is_in_the_problem_with_what_each_plan_takes() -> None:
    """Four columns, those of two types with a use of each; the smallest gang counts as the job's."""
    fleet = planning()
    fleet.tell(ev.JobSubmitted(0.0, menu_job()))
    problem = fleet.solves[-1].problem
    columns = problem.columns
    uses = [
        dict(zip(columns.use_pool[here].tolist(), columns.use_count[here].tolist(), strict=True))
        for here in (columns.use_column == row for row in range(len(columns)))
    ]
    found = sorted(zip(columns.steps_per_s.tolist(), map(str, uses), strict=True))
    assert found == [(5.0, "{0: 2.0}"), (8.0, "{0: 2.0, 1: 2.0}"), (9.0, "{0: 4.0}"), (14.0, "{0: 4.0, 1: 2.0}")]
    assert problem.jobs.gang.tolist() == [2.0]
    stored = json.loads(dump_json(menu_job()))
    stored.pop("plans")
    assert parse_request(json.dumps(stored)).plans == ()


def test_a_plan_that_no_machine_is_left_for_is_no_column() -> None:
    """Without pool b the menu is what a alone can do."""
    fleet = planning("a")
    submit(fleet, fleet.at, menu_job(), runs=True)
    assert held(fleet, J1) == {"a": 4}
    assert sorted(fleet.core.ledger.classes.plan_ways(fleet.core.ledger.jobs[J1].class_row)) == [
        (((0, 2),), 5.0), (((0, 2), (1, 2)), 8.0), (((0, 4), (1, 2)), 14.0),
    ]  # fmt: skip
    fleet.tell(ev.Woke(300.0))
    fleet.wake()
    assert sorted(fleet.solves[-1].problem.columns.steps_per_s.tolist()) == [5.0, 9.0]


def test_rented_pools_are_for_the_plan_of_one_type() -> None:
    """Machines that cost money are decided pool by pool: a plan over several takes owned ones."""
    fleet = planning()
    state = next(each for each in fleet.core.ledger.fleet.pools if each.pool.pool_id == "b")
    fleet.tell(ev.PoolDeclared(0.0, replace(state.pool, market=Market.ON_DEMAND, quota=1, usd_per_h=1.0)))
    fleet.tell(ev.JobSubmitted(0.0, menu_job()))
    row = fleet.core.ledger.jobs[J1].class_row
    assert [parts for parts, _ in fleet.core.ledger.classes.plan_ways(row)] == [((0, 2),)]


def test_a_menu_is_feasible_if_any_plan_is() -> None:
    """Its single type may be larger than any pool, and a mixture fits; where nothing does, the menu is named."""
    fleet = planning()
    pools = [
        PoolLimit(state.pool, {"a": 4.0, "b": 2.0}.get(state.pool.pool_id, 0.0))
        for state in fleet.core.ledger.fleet.pools
    ]
    mixed = menu_job(plans=(plan(9.0, a=64), plan(8.0, a=4, b=2)))
    assert infeasibility(mixed, pools) is None
    fleet.tell(ev.JobSubmitted(0.0, mixed))
    carried_out(fleet)
    assert held(fleet, J1) == {"a": 4, "b": 2}
    never = infeasibility(menu_job(plans=(plan(9.0, a=64), plan(8.0, a=4, b=64))), pools)
    assert never.reason is Reason.CONFIG_EXCEEDS_FLEET
    assert "64 x a or 4 x a + 64 x b" in never.detail


def test_a_waiting_menu_is_told_why_and_nobody_offers_it_other_accelerators() -> None:
    """Who waits behind a job that cannot be stopped is told so; a gang without a stated speed is no remedy."""
    fleet = planning("a")
    sits(fleet, 2, "a", 4, preemptible=False)
    fleet.tell(ev.JobSubmitted(1.0, menu_job()))
    carried_out(fleet)
    assert pending_reasons(fleet.core, J1)
    assert dominant_reason(fleet.core, J1)
    assert not [each for each in possible_remedies(fleet.core, fleet.core.ledger.jobs[J1]) if each.demands]


def test_who_waits_is_told_its_menu_and_what_is_free_of_it() -> None:
    """Before any machine has joined too, and of a job without a menu."""
    empty = FakeFleet()
    empty.tell(ev.PolicyChanged(0.0, PolicySpec("walras", {}), QUICK))
    empty.tell(ev.JobSubmitted(0.0, menu_job()))
    empty.tell(ev.JobSubmitted(0.0, JobRequest(J2, Kind("k"), demands=(Demand("a", 2),), steps=1e6)))
    assert dominant_reason(empty.core, J1) == (
        "it needs 4 x a or 4 x a + 2 x b or 2 x a or 2 x a + 2 x b; no machine has joined this cluster yet"
    )
    assert dominant_reason(empty.core, J2) == "it needs 2 x a; no machine has joined this cluster yet"


def test_a_type_in_several_pools_gives_a_plan_several_places() -> None:
    """Two pools of type b: the plan over a and b may have either, and takes the one that is free."""
    fleet = planning("ab")
    b = next(state.pool for state in fleet.core.ledger.fleet.pools if state.pool.pool_id == "b")
    fleet.tell(ev.PoolDeclared(0.0, replace(b, pool_id=PoolId("b-east"))))
    fleet.tell(ev.NodeJoined(0.0, NodeId("e1"), PoolId("b-east")))
    sits(fleet, 2, "b", 2, pools=("b",), preemptible=False)
    submit(fleet, fleet.at, menu_job(), runs=True)
    assert held(fleet, J1) == {"a": 4, "b-east": 2}


def forked(fleet: FakeFleet, parts: int = 5, **more: object) -> None:
    """Job 1 runs, forked over what is free."""
    submit(fleet, fleet.at, job(1, "*", 1, steps=1e6, fork_max=parts, **more), runs=True)


def test_a_fork_holds_a_gang_in_each_of_its_pools() -> None:
    """The fastest first, as many as it may, at the speed of all together; a fresh core that is told counts the same."""
    fleet = planning("ab", "hadar")
    forked(fleet)
    assert held(fleet, J1) == {"a": 4, "b": 1}
    record = fleet.core.ledger.jobs[J1]
    assert fleet.core.ledger.rate_of(record) == pytest.approx(0.95 * (4 * 4.0 + 2.0))
    assert remaining_here_s(fleet.core.ledger, record) == pytest.approx(1e6 / (0.95 * 18.0))
    fresh = planning("ab", "hadar")
    fresh.tell(
        JobRestored(
            10.0, record.request, submitted_at=0.0, state=record.state, attempt=record.attempt,
            placement=record.placement, leased_at=0.0, running_at=1.0,
        )
    )  # fmt: skip
    again = fresh.core.ledger.jobs[J1]
    assert fresh.core.ledger.parts_of(again) == fleet.core.ledger.parts_of(record)
    assert fresh.core.ledger.rate_of(again) == fleet.core.ledger.rate_of(record)


def test_several_gangs_in_one_pool_are_a_fork_too() -> None:
    """As fast as its parts, less the averaging; what they make together says nothing of one speed in step."""
    fleet = planning("a", "hadar")
    forked(fleet, 3)
    assert held(fleet, J1) == {"a": 3}
    assert fleet.core.ledger.rate_of(fleet.core.ledger.jobs[J1]) == pytest.approx(0.95 * 12.0)
    number = fleet.attempts[J1].number
    fleet.tell(ev.AttemptProgressed(50.0, J1, number, 500.0, 1.0, 5))
    assert fleet.core.ledger.class_of(fleet.core.ledger.jobs[J1]).speeds[0] == 4.0


@pytest.mark.parametrize("policy", ["hadar", "walras"])
def test_a_gang_that_fits_no_pool_starts_over_two_at_the_pace_of_the_slower(policy: str) -> None:
    """One accelerator of a pool and three of another make a gang of four, where the other pool has no fourth."""
    fleet = planning("ab", policy)
    submit(fleet, 0.0, job(1, "a", 1, steps=1e6, preemptible=False), runs=True)
    for name, steps_per_s in (("a", 16.0), ("b", 8.0)):
        fleet.tell(ThroughputMeasured(fleet.at, Kind("k"), name, 4, steps_per_s))
    fleet.tell(ev.NodeJoined(0.0, NodeId("b9"), PoolId("b")))
    fleet.tell(ev.JobSubmitted(1.0, replace(job(2, "b", 1, steps=1e6, preemptible=False))))
    carried_out(fleet)
    fleet.run(J2)
    submit(fleet, 2.0, job(3, "*", 4, steps=1e5, mixed=True))
    assert held(fleet, J3) == {"a": 1, "b": 3}
    assert fleet.core.ledger.rate_of(fleet.core.ledger.jobs[J3]) == 8.0


def test_a_fork_goes_on_where_it_is() -> None:
    """The next plan knows it as running where it is: nothing is stopped for a plan that says the same."""
    fleet = planning("ab", "hadar")
    forked(fleet)
    fleet.tell(ev.Woke(500.0))
    fleet.wake()
    asked = fleet.solves[0].problem
    running_column = asked.columns.running.nonzero()[0].tolist()
    assert [asked.columns.use_count[asked.columns.use_column == row].tolist() for row in running_column] == [[4.0, 1.0]]
    assert not revoked(carried_out(fleet))
    assert held(fleet, J1) == {"a": 4, "b": 1}


def test_a_fork_makes_way_for_another_job_and_goes_on_with_less() -> None:
    """Forks keep nobody out: it is asked to go, the other gets its place, and it starts again with fewer parts."""
    fleet = planning("ab", "hadar")
    forked(fleet, 6)
    fleet.at = 1000.0
    fleet.tell(ev.JobSubmitted(1000.0, job(2, "a", 4, steps=1e4)))
    asked = revoked(carried_out(fleet))
    assert asked == {1: Reason.POLICY_MOVED} or asked == {1: Reason.POLICY_PREEMPTED}
    fleet.end(J1, 85, 100.0)
    carried_out(fleet)
    assert held(fleet, J2) == {"a": 4}
    assert held(fleet, J1) == {"b": 2}


def test_a_running_job_moves_to_become_a_fork_when_others_leave() -> None:
    """What it gains is worth its restart: it saves, stops, and starts again with all its parts."""
    fleet = planning("ab", "hadar")
    submit(fleet, 0.0, job(2, "a", 4, steps=1e5), runs=True)
    submit(fleet, 1.0, job(1, "*", 1, steps=1e6, fork_max=5), runs=True)
    assert held(fleet, J1) in ({"b": 1}, {"b": 2})
    fleet.at = 2000.0
    fleet.end(J2)
    assert revoked(carried_out(fleet)) == {1: Reason.POLICY_MOVED}
    fleet.end(J1, 85, 100.0)
    carried_out(fleet)
    assert held(fleet, J1) == {"a": 4, "b": 1}
    assert not fleet.core.cycle.reservations


def test_losing_one_machine_ends_the_whole_and_frees_every_part() -> None:
    """A spread attempt is whole or none; afterwards the job is forked over what is left."""
    fleet = planning("aab", "hadar")
    forked(fleet, 9)
    assert held(fleet, J1) == {"a": 8, "b": 1}
    fleet.lose(NodeId("b3"))
    fleet.end(J1, None)
    carried_out(fleet)
    assert held(fleet, J1) == {"a": 8}


def test_service_is_counted_where_it_was_given() -> None:
    """Accelerator-seconds and money, all together for the job and by pool."""
    fleet = planning("ab", "hadar")
    forked(fleet)
    fleet.tell(ev.Woke(100.0))
    columns, slot = fleet.core.ledger.columns, fleet.core.ledger.jobs[J1].slot
    columns.settle(slot, 100.0)
    assert columns.attained_s[slot] == pytest.approx(500.0)
    assert columns.delivered[slot, 0] == pytest.approx(4 * columns.delivered[slot, 1]) != 0.0
    fleet.tell(ev.Woke(200.0))
    columns.settle_all(200.0, 1e9)
    assert columns.attained_s[slot] == pytest.approx(1000.0)
    assert columns.owed[slot].tolist() == pytest.approx([0.0, 0.0, 0.0])
    fleet = planning("ab", "hadar")
    for name, usd_per_h in (("a", 8.0), ("b", 3.0)):
        declared = next(state.pool for state in fleet.core.ledger.fleet.pools if state.pool.pool_id == name)
        fleet.tell(ev.PoolDeclared(0.0, replace(declared, usd_per_h=usd_per_h)))
    forked(fleet)
    assert fleet.core.cycle.spending.everything.per_h == pytest.approx(4 * 8.0 / 4 + 3.0 / 2)
    fleet.end(J1)
    assert fleet.core.cycle.spending.everything.per_h == 0.0


def test_a_waiting_spread_is_told_what_it_waits_for() -> None:
    """The places of all its pools are named, with what is missing."""
    fleet = planning("ab", "hadar")
    submit(fleet, 0.0, job(2, "a", 4, steps=1e5), runs=True)
    submit(fleet, 1.0, job(1, "*", 1, steps=1e6, fork_max=6), runs=True)
    fleet.at = 2000.0
    submit(fleet, 2000.0, job(3, "a", 4, steps=10.0))
    assert pending_reasons(fleet.core, JobId(3))


def sharing(machines: str = "abc") -> FakeFleet:
    """A fleet under the default policy, which knows kind k alone of gangs of three: 12, 6 and 3 steps per second."""
    fleet = planning(machines)
    for name, steps_per_s in (("a", 12.0), ("b", 6.0), ("c", 3.0)):
        fleet.tell(ThroughputMeasured(fleet.at, Kind("k"), name, 3, steps_per_s))
    return fleet


@pytest.mark.parametrize(("shares", "rate"), [(True, 4.0 + 2.0 + 1.0), (False, 3.0)])
def test_a_gang_that_may_be_mixed_runs_over_what_no_pool_holds_alone(shares: bool, rate: float) -> None:
    """One accelerator of each of three pools: at the sum of their speeds if it shares batches, else at the pace of the
    slowest. Where its machines went, it goes on over others."""
    fleet = sharing("abc")
    sits(fleet, 1, "a", 3, preemptible=False)
    sits(fleet, 2, "b", 1, preemptible=False)
    submit(fleet, 0.0, job(3, "*", 3, steps=1e5, mixed=True, shares=shares), runs=True)
    assert held(fleet, J3) == {"a": 1, "b": 1, "c": 1}
    ledger = fleet.core.ledger
    assert ledger.rate_of(ledger.jobs[J3]) == pytest.approx(rate)
    assert dominant_reason(fleet.core, J3) == f"has 1 x a + 1 x b + 1 x c, planned at {rate:.3g} steps/s"
    fleet.end(J2)
    fleet.lose(NodeId("c3"))
    fleet.end(J3, None)
    carried_out(fleet)
    assert held(fleet, J3) == {"a": 1, "b": 2}


def test_a_mix_is_planned_as_it_ran_and_left_where_it_loses() -> None:
    """Over a slow link three types make less than their sum: other mixes are believed to lose as much, and the gang
    leaves for the one pool that is faster."""
    fleet = sharing("aabc")
    sits(fleet, 1, "a", 4, preemptible=False)
    sits(fleet, 2, "a", 2, preemptible=False)
    submit(fleet, 0.0, job(3, "*", 3, steps=1e6, mixed=True, shares=True), runs=True)
    ledger, record = fleet.core.ledger, fleet.core.ledger.jobs[J3]
    assert held(fleet, J3) == {"a": 2, "b": 1}
    number = fleet.attempts[J3].number
    for at in range(100, 140):
        fleet.tell(ev.AttemptProgressed(float(at), J3, number, 10.0 * at, 1.0, 5))
    assert ledger.rate_of(record) == 1.0
    capacity = [state.capacity for state in ledger.fleet.pools]
    rates = dict(ledger.classes.mixes(record.class_row, capacity))
    assert rates[((0, 2), (1, 1))] == 1.0
    assert rates[((0, 1), (1, 1), (2, 1))] == pytest.approx(7.0 / 10.0)
    assert ledger.classes.mixes(record.class_row, [9, 6, 3]) == (), "whole gangs leave nothing over"
    carried_out(fleet)
    fleet.at = 2000.0
    fleet.end(J1)
    assert revoked(carried_out(fleet)) == {3: Reason.POLICY_MOVED}
    fleet.end(J3, 85, 100.0)
    carried_out(fleet)
    assert held(fleet, J3) == {"a": 3}


@pytest.mark.parametrize(
    ("way", "lacks"),
    [
        ({}, "mixed: shares"), ({"mixed": True}, ""), ({"nodes": 3}, "ask for fewer"),
        ({"mixed": True, "pools": ("a", "b")}, "ask for fewer"),
    ],
)  # fmt: skip
def test_a_gang_that_only_several_pools_hold_is_refused_unless_it_mixes(way: dict[str, object], lacks: str) -> None:
    """Who could be mixed is told what to write; machines on which a gang may not be do not count."""
    pools = [PoolLimit(state.pool, 1.0) for state in sharing().core.ledger.fleet.pools]
    found = infeasibility(job(1, "*", 3, **way), pools)
    assert (found is None) == (not lacks)
    assert found is None or found.fix.startswith(lacks) or found.fix.startswith(f"write `{lacks}`")


SPEEDS = [4.0, 2.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("gang", "most"),
    [
        (2, (1, 1, 0, 0)), (3, (1, 1, 1, 0)), (4, (4, 4, 4, 0)), (5, (2, 2, 2, 2)), (16, (6, 5, 5, 0)),
        (64, (40, 40, 8, 8)), (9, (8, 8, 8, 8)), (3, (9, 0, 0, 0)), (30, (1, 1, 1, 1)),
    ],
)  # fmt: skip
def test_each_is_whole_fits_and_is_listed_once(gang: int, most: tuple[int, ...]) -> None:
    """A bounded number; over two pools or more; the fewest pools first; some wherever there is one."""
    found = gangs_over_pools(gang, SPEEDS, most)
    assert len(found) == len(set(found)) <= GANGS_MAX
    for parts in found:
        assert sum(count for _, count in parts) == gang
        assert len(parts) > 1
        assert all(0 < count <= most[row] for row, count in parts)
    assert [len(parts) for parts in found] == sorted(len(parts) for parts in found)
    assert bool(found) == (sum(most) >= gang and sorted(most)[-2] > 0)


def test_small_gangs_are_listed_in_every_way() -> None:
    """Of four over three pools of four: all cuts, the fastest of equally many pools first."""
    found = gangs_over_pools(4, SPEEDS[:3], (4, 4, 4))
    ways = [each for each in product(range(5), repeat=3) if sum(each) == 4 and sum(map(bool, each)) > 1]
    assert {tuple(dict(parts).get(row, 0) for row in range(3)) for parts in found} == set(ways)
    assert (found[0], found[9]) == (((0, 3), (1, 1)), ((0, 2), (1, 1), (2, 1)))


def test_a_gang_over_more_pools_than_are_tried_takes_the_fastest() -> None:
    """Ten machines of one accelerator each, of unlike types."""
    ten = POOLS_MAX + 4
    assert gangs_over_pools(8, [float(row) for row in range(1, ten + 1)], [1] * ten) == [
        tuple((row, 1) for row in range(ten - 8, ten))
    ]
