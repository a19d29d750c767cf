"""Plans carried out: started where planned, exchanged, dropped where they no longer fit, explained by prices."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_fleet import FakeFleet, cluster, job, pool, revoked, starts
from planned_fleet import QUICK, carried_out, planning, submit

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.events import JobReprioritised
from scheduler.core.explain.pending_reasons import dominant_reason, pending_reasons
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from walras.cluster import Market, NodeId, PoolId
from walras.job_request import JobId, Kind
from walras.states import Reason

J1, J2, J3 = JobId(1), JobId(2), JobId(3)
#: The next plan is far.
RARELY = RoundRules(round_s=1000, resolve_min_s=100, restart_default_s=2, profiling_share=0)


def test_a_job_waits_for_the_plan_and_starts_where_it_says() -> None:
    """At an event the policy is asked; a gang over two machines is planned where there are two."""
    fleet = planning("ab")
    assert starts(fleet.tell(ev.JobSubmitted(0.0, job(1, steps=100.0)))) == {}
    assert starts(carried_out(fleet)) == {1: "a"}
    fleet = planning("acc")
    fleet.tell(ev.JobSubmitted(0.0, job(1, count=2, nodes=2, steps=100.0)))
    prepared = {c.job_id: c.placement.pool_id for c in carried_out(fleet) if isinstance(c, cmd.Prepare)}
    assert prepared == {1: "c"}


def test_a_gang_over_two_machines_is_not_planned_on_one_that_is_rented() -> None:
    """Of a pool that may have more it takes two whole machines; if these are not worth it, it goes elsewhere."""
    fleet = planning("cc")
    dear = replace(pool("s", 2, market=Market.SPOT, quota=3), usd_per_h=1e6)
    fleet.tell(ev.PoolDeclared(0.0, dear))
    fleet.tell(ev.NodeJoined(0.0, NodeId("s1"), dear.pool_id, "token"))
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "s", 2, 9.0))
    fleet.tell(ev.JobSubmitted(0.0, job(1, count=2, nodes=2, steps=100.0)))
    columns = build_problem(fleet.core.ledger).columns
    assert list(zip(columns.use_pool, columns.use_count, strict=True)) == [(2, 2.0), (3, 4.0)]
    prepared = {c.job_id: c.placement.pool_id for c in carried_out(fleet) if isinstance(c, cmd.Prepare)}
    assert prepared == {1: "c"}
    fleet.tell(ev.NodeJoined(1.0, NodeId("s2"), dear.pool_id, "token"))
    fleet.tell(ev.JobSubmitted(1.0, job(2, "s", 2, nodes=2, steps=100.0)))
    columns = build_problem(fleet.core.ledger).columns
    assert columns.use_count[columns.use_pool == 3].tolist() == [2.0, 2.0]


def test_a_gang_that_runs_has_its_machines_though_one_takes_no_more_jobs() -> None:
    """It takes what it held before: no more machines are rented for it, and it is not sent away."""
    fleet = planning("c")
    spot = pool("s", 2, market=Market.SPOT, quota=3)
    fleet.tell(ev.PoolDeclared(0.0, spot))
    for name in ("s1", "s2"):
        fleet.tell(ev.NodeJoined(0.0, NodeId(name), spot.pool_id, "token"))
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "s", 2, 9.0))
    submit(fleet, 0.0, job(1, "s", 2, nodes=2, steps=1e6))
    fleet.prepare_all(J1)
    fleet.run(J1)
    fleet.tell(ev.NodeQuarantined(fleet.at, NodeId("s2"), "a start failed there"))
    columns = build_problem(fleet.core.ledger).columns
    assert (columns.use_count.tolist(), columns.running.tolist()) == ([2.0], [True])


def test_who_is_planned_takes_the_place_of_who_is_not() -> None:
    """The incumbent is asked to go, and its place is kept for the other: the next plan takes that as done."""
    fleet = planning("a")
    submit(fleet, 0.0, job(1, "a", 4, steps=1e6), runs=True)
    fleet.tell(ev.JobSubmitted(10.0, job(2, "a", 4, steps=10.0)))
    assert revoked(carried_out(fleet)) == {1: Reason.POLICY_PREEMPTED}
    fleet.tell(ev.PoolDeclared(10.0, pool("d", 1)))
    fleet.tell(ev.JobSubmitted(11.0, job(3, "a", 4, steps=1e7)))
    columns = fleet.solves[0].problem.columns
    assert [columns.running[columns.job == row].tolist() for row in (0, 1)] == [[False], [True]]
    assert revoked(carried_out(fleet)) == {}
    assert 2 in starts(fleet.end(J1, 85, 100.0))
    fleet.run(J2)
    carried_out(fleet)
    assert not fleet.core.cycle.reservations


def test_no_job_of_a_higher_class_leaves_for_a_lower_one_whatever_the_plan_says() -> None:
    """Where a plan leaves it out, or gives it a place that it may not have now."""
    fleet = planning("a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4, steps=1e6)))
    carried_out(fleet)
    fleet.run(1)
    fleet.tell(ev.JobSubmitted(10.0, job(2, "a", 4, steps=10.0, priority=20)))
    assert revoked(fleet.answer({2: {"a": 1.0}})) == {}
    assert revoked(fleet.tell(JobReprioritised(20.0, J2, 50)) + fleet.answer({2: {"a": 1.0}})) == {
        1: Reason.POLICY_PREEMPTED
    }


def test_a_job_moves_to_a_faster_place_that_is_worth_the_restart() -> None:
    fleet = planning("ab")
    submit(fleet, 0.0, job(1, "a", 4, steps=1e4), runs=True)
    fleet.tell(ev.JobSubmitted(1.0, job(2, "*", 2, steps=1e6)))
    assert starts(carried_out(fleet)) == {2: "b"}
    fleet.run(J2)
    fleet.at = 2000.0
    fleet.end(J1)
    assert revoked(carried_out(fleet)) == {2: Reason.POLICY_MOVED}
    assert starts(fleet.end(J2, 85, 50.0)) == {2: "a"}


@pytest.mark.parametrize(("steps", "moved"), [(1e6, {2: Reason.POLICY_MOVED}), (20.0, {})])
def test_a_restarted_job_takes_a_free_place_that_repays_it(steps: float, moved: dict[int, Reason]) -> None:
    """Beside machines to rent it is left in peace at first by others, but its own gain does not wait for that."""
    fleet = planning("ab")
    fleet.tell(ev.PoolDeclared(0.0, replace(pool("s", 2, market=Market.SPOT, quota=3), usd_per_h=1e6)))
    submit(fleet, 0.0, job(1, "a", 4, steps=1e4), runs=True)
    submit(fleet, 1.0, job(2, "*", 2, steps=steps), runs=True)
    fleet.tell(ev.JobHeld(5.0, J2))
    fleet.end(J2, 85, 5.0)
    assert starts(fleet.tell(ev.JobReleased(6.0, J2)) + carried_out(fleet)) == {2: "b"}
    fleet.run(J2)
    fleet.at = 10.0
    fleet.end(J1)
    assert revoked(carried_out(fleet)) == moved


@pytest.mark.parametrize(("seconds", "moved"), [(15.0, {}), (25.0, {1: Reason.POLICY_MOVED})])
def test_a_job_stays_for_a_while_on_what_it_rents(seconds: float, moved: dict[int, Reason]) -> None:
    """A restart of 2 s settles it for 40 s: for half of these no free place, however fast, is a reason to move it."""
    fleet = planning("a")
    spot = replace(pool("s", 4, market=Market.SPOT, quota=1), usd_per_h=1.0)
    fleet.tell(ev.PoolDeclared(0.0, spot))
    fleet.tell(ev.NodeJoined(0.0, NodeId("s1"), spot.pool_id, "token"))
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "s", 2, 1.0))
    submit(fleet, 0.0, job(2, "a", 4, steps=1e6), runs=True)
    submit(fleet, 0.0, job(1, "*", 2, steps=1e5, value_usd_per_h=100.0), runs=True)
    assert fleet.attempts[J1].placement.pool_id == "s"
    fleet.at = seconds
    fleet.end(J2)
    assert revoked(carried_out(fleet)) == moved


@pytest.mark.parametrize("moves", [True, False])
def test_a_job_that_cannot_be_stopped_is_left_alone(moves: bool) -> None:
    """By its own word, or where the policy moves nobody: it is pinned, and the plan goes around it."""
    fleet = planning("a", moves=moves)
    submit(fleet, 0.0, job(1, "a", 4, steps=1e6, preemptible=not moves), runs=True)
    fleet.tell(ev.JobSubmitted(10.0, job(2, "a", 4, steps=10.0)))
    assert fleet.solves[0].problem.jobs.pinned.tolist() == [True, False]
    assert revoked(carried_out(fleet)) == {}


def test_a_planned_gang_starts_where_room_comes_first() -> None:
    """The place kept for it is one way to start; another that is complete sooner is taken."""
    fleet = planning("cc")
    for number in (1, 2):
        submit(fleet, 0.0, job(number, "c", 1, steps=1e3), runs=True)
    submit(fleet, 1.0, job(3, "c", 2, steps=10.0, nodes=2))
    fleet.tell(ev.NodeJoined(2.0, NodeId("c-new"), PoolId("c")))
    carried_out(fleet)
    for number in (1, 2):
        if JobId(number) in fleet.attempts and fleet.attempts[JobId(number)].stopping:
            fleet.end(JobId(number), 85, 10.0)
            carried_out(fleet)
    fleet.prepare_all(J3)
    assert fleet.attempts[J3].started


def test_a_plan_is_dropped_where_it_no_longer_fits() -> None:
    """The machine went while the plan was made: nobody starts there, nothing breaks, and the next plan knows."""
    fleet = planning("a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4, steps=100.0)))
    asked = fleet.solves.pop()
    (machine,) = [each.node_id for each in fleet.core.ledger.fleet.machines if each is not None]
    fleet.lose(machine)
    assert starts(fleet.tell(ev.Solved(0.0, asked.request_id, run_solve(asked), 0.1))) == {}
    assert starts(carried_out(fleet)) == {}
    assert 1 in fleet.core.ledger.jobs


def test_between_plans_a_newcomer_is_judged_at_the_prices() -> None:
    """A free place that nobody else wants is taken at once; one with a price where the next plan is far."""
    fleet = planning("a", rules=RARELY)
    fleet.tell(ev.Woke(200.0))
    submit(fleet, 200.0, job(1, "a", 1, steps=1e6))
    assert starts(fleet.tell(ev.JobSubmitted(201.0, job(2, "a", 1, steps=100.0)))) == {2: "a"}
    assert starts(fleet.tell(ev.JobSubmitted(299.0, job(3, "a", 1, steps=100.0)))) == {3: "a"}


def test_a_place_that_others_want_waits_for_a_plan_that_is_near() -> None:
    """One of two gangs waits, so the place has a price; then the other fails, and a newcomer finds room."""
    for newcomer_at, found in ((210.0, {3: "a"}), (299.0, {})):
        fleet = wanted_elsewhere("a")
        assert fleet.core.cycle.policy.quote.prices[0] > 0
        fleet.end(J1, 1)
        assert starts(fleet.tell(ev.JobSubmitted(newcomer_at, job(3, "a", 1, steps=10.0)))) == found


def test_who_waits_is_told_who_has_its_place_and_what_that_is_worth_and_costs() -> None:
    """Where no place is free, that is why it waits, whatever a place costs; both numbers stand beside."""
    fleet = planning("a")
    for number, steps in ((1, 100.0), (2, 1e6)):
        submit(fleet, 0.0, job(number, "a", 4, steps=steps))
        if JobId(number) in fleet.attempts:
            fleet.run(JobId(number))
    (line,) = pending_reasons(fleet.core, J2)
    assert line.reason is Reason.WAIT_CAPACITY
    assert line.detail == "a: needs 4, 0 of 4 free; held by job 1; not planned here"
    assert dominant_reason(fleet.core, J2).startswith("job 1 holds what it needs (it needs 4 x a, 0 free)")
    assert re.fullmatch(r"worth [.0-9]+ here, price [.0-9]+ \(.+\)", line.figures)


def wanted_elsewhere(machines: str) -> FakeFleet:
    """Job 3 comes shortly before a plan: of all pools, others want the places that a job has left."""
    fleet = planning(machines, rules=RARELY)
    for number in (1, 2):
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", 4, steps=100.0 if number == 1 else 1e6)))
    fleet.tell(ev.Woke(200.0))
    carried_out(fleet)
    fleet.run(J1)
    return fleet


@pytest.mark.parametrize(("price", "reason"), [(1e6, Reason.WAIT_PRICE), (0.0, Reason.WAIT_NOT_EVALUATED)])
def test_a_free_place_is_refused_for_its_price_alone(price: float, reason: Reason) -> None:
    """One that is not worth less than it costs waits for the next decision; nobody is said to hold what is free."""
    fleet = wanted_elsewhere("a")
    fleet.end(J1, 1)
    fleet.tell(ev.JobSubmitted(299.0, job(3, "a", 1, steps=10.0)))
    policy = fleet.core.cycle.policy
    policy.quote = replace(policy.quote, prices=np.full_like(policy.quote.prices, price))
    line, *_ = pending_reasons(fleet.core, J3)
    assert line.reason is reason
    said = dominant_reason(fleet.core, J3)
    assert ("4 free" in said, "hold" in said, "other jobs make more of it" in said) == (True, False, price > 0), said


def test_where_enough_is_free_is_told_before_where_nothing_is() -> None:
    """Of two pools that it accepts, it is not said to wait for accelerators of one while those of another are."""
    fleet = wanted_elsewhere("ac")
    policy = fleet.core.cycle.policy
    policy.quote = replace(policy.quote, prices=np.full_like(policy.quote.prices, 1e6))
    fleet.tell(ev.JobSubmitted(299.0, job(3, count=1, steps=10.0)))
    told = [(line.reason, line.detail.split(";")[0]) for line in pending_reasons(fleet.core, J3)]
    assert told[:2] == [
        (Reason.WAIT_PRICE, "c: needs 1, 1 of 1 free"), (Reason.WAIT_CAPACITY, "a: needs 1, 0 of 4 free")
    ]  # fmt: skip


def test_who_waits_is_told_who_cannot_be_stopped_for_it() -> None:
    """A higher class, too, waits for a job that may not be stopped; of one that may nothing is said."""
    for preemptible in (True, False):
        fleet = planning("a")
        submit(fleet, 0.0, job(1, "a", 2, steps=100.0, preemptible=preemptible), runs=True)
        submit(fleet, 1.0, job(2, "a", 4, steps=1e6, priority=90 if not preemptible else 50))
        (line,) = pending_reasons(fleet.core, J2)
        assert ("job 1, which may not be stopped" in line.detail) == (not preemptible)


def halves(fleet: FakeFleet, steps: dict[int, float], **more: object) -> None:
    """Two machines of four accelerators, each half full: jobs 2 and 4 with these steps, on a machine each."""
    for number in (1, 2, 3, 4):
        submit(fleet, 0.0, job(number, "a", 2, steps=steps.get(number, 1e6), **more), runs=True)
    for number in (1, 3):
        fleet.end(JobId(number))
        carried_out(fleet)
    assert [len(machine.free) for machine in fleet.core.ledger.fleet.machines if machine] == [2, 2]


def test_a_planned_gang_that_fits_no_machine_has_one_cleared_for_it() -> None:
    """Accelerators enough, but on two machines: a job moves over within its pool, and both run."""
    fleet = planning("aa")
    halves(fleet, {2: 1e6, 4: 1e5})
    fleet.tell(ev.JobSubmitted(10.0, job(5, "a", 4, steps=1000.0)))
    moved = revoked(carried_out(fleet))
    assert list(moved.values()) == [Reason.POLICY_MOVED]
    (mover,) = moved
    assert set(starts(fleet.end(JobId(mover), 85, 50.0))) == {5, mover}
    assert not fleet.core.cycle.reservations


def test_nobody_moves_for_a_gang_that_soon_has_room_anyway() -> None:
    """Restarts that would cost more than the wait are not worth it; nor does anybody move who may not be stopped."""
    fleet = planning("aa", rules=replace(QUICK, restart_default_s=60))
    halves(fleet, {2: 1e6, 4: 100.0})
    fleet.tell(ev.JobSubmitted(60.0, job(5, "a", 4, steps=1e6)))
    assert revoked(carried_out(fleet)) == {}
    assert 5 in starts(fleet.end(JobId(4)))
    fleet = planning("aa")
    halves(fleet, {}, preemptible=False)
    fleet.tell(ev.JobSubmitted(10.0, job(5, "a", 4, steps=10.0)))
    assert revoked(carried_out(fleet)) == {}


def learning() -> FakeFleet:
    """Job 1 is asked to leave a for b, where its kind never ran."""
    rules = replace(QUICK, profiling_share=0.25, profiling_s=50, min_runtime_s=20)
    fleet = cluster("walras", rules=rules, machines="ab")
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "a", 1, 4.0))
    fleet.tell(ev.JobSubmitted(0.0, job(1, steps=1e5)))
    assert starts(carried_out(fleet)) == {1: "a"}
    fleet.run(J1)
    fleet.wake()
    assert revoked(carried_out(fleet)) == {1: Reason.POLICY_MOVED}
    return fleet


def test_a_plan_learns_what_nobody_has_measured() -> None:
    """A job is sent to the pool where its kind never ran, left there for the lease, then planned at what was seen."""
    fleet = learning()
    assert starts(fleet.end(J1, 85, 100.0)) == {1: "b"}
    assert revoked(carried_out(fleet)) == {}
    fleet.at += 30.0
    fleet.run(J1)
    fleet.at += 40.0  # longer than the lease since it was granted, not since the first rank was up
    fleet.tell(ev.JobSubmitted(fleet.at, job(2, "b", steps=10.0)))
    assert fleet.solves[0].problem.jobs.pinned[0]
    assert revoked(carried_out(fleet)) == {}
    fleet.tell(ThroughputMeasured(fleet.at, Kind("k"), "b", 1, 0.5))
    carried_out(fleet)
    fleet.at += 20.0
    fleet.end(J2)
    moved = carried_out(fleet)
    assert revoked(moved) == {1: Reason.POLICY_MOVED}
    assert starts(fleet.end(J1, 85, 120.0)) == {1: "a"}


def test_a_lease_that_is_planned_for_is_kept_by_the_next_plan() -> None:
    """While the place is being made, plans take it as given."""
    fleet = learning()
    fleet.tell(ev.JobSubmitted(fleet.at, job(2, "b", 2, kind=Kind("other"), steps=10.0)))
    problem = fleet.solves[0].problem
    assert problem.jobs.pinned.tolist() == [True, False]
    assert problem.columns.running[problem.columns.job == 0].tolist() == [False, True]
    assert revoked(carried_out(fleet)) == {}
    assert starts(fleet.end(J1, 85, 100.0)) == {1: "b"}


def test_who_needs_the_place_of_a_lease_has_it_once_that_ends() -> None:
    """No plan may end a lease; when it ends a plan is asked for, however long the round still lasts."""
    rules = replace(QUICK, round_s=3600.0, profiling_s=60.0)
    fleet = cluster("walras", rules=rules)
    submit(fleet, 0.0, job(1, "a", 4, steps=1e6), runs=True)
    fleet.tell(ev.JobSubmitted(10.0, job(2, "a", 4, steps=10.0, priority=90)))
    assert revoked(carried_out(fleet)) == {}
    fleet.wake()
    assert fleet.at == 60.0
    assert revoked(carried_out(fleet)) == {1: Reason.POLICY_PREEMPTED}


#: Two jobs of so many seconds hold a machine, and a short gang is worth more there: a restart of either is within what
#: restarts may take of all jobs' time, those of both only in the longer case.
SHORT_S, LONG_S = 900.0, 2000.0


def wanted_by_a_gang(length_s: float, on: str = "b", **more: object) -> list[int]:
    """Which of the two jobs leave for the gang. Project vision owns what is on b, and r is rented."""
    fleet = planning("b", rules=replace(QUICK, restart_default_s=60.0))
    rents = replace(pool("r", 2, market=Market.ON_DEMAND, quota=1), billing_step_s=1e4)
    fleet.tell(ev.PoolDeclared(0.0, rents))
    fleet.tell(ev.NodeJoined(0.0, NodeId("r1"), rents.pool_id, "token"))
    for count in (1, 2):
        fleet.tell(ThroughputMeasured(0.0, Kind("k"), "r", count, 2.0 * count))
    fleet.tell(ev.SharesDeclared(0.0, (ev.EntityShare("vision", owned=(ev.ShareLimit("b", 2),)),)))
    for number in (1, 2):
        submit(fleet, 0.0, job(number, on, steps=2.0 * length_s), runs=True)
    commands = submit(fleet, 1.0, job(3, on, 2, steps=40.0, **more))
    return sorted(command.job_id for command in commands if isinstance(command, cmd.Revoke))


@pytest.mark.parametrize(("length_s", "leave"), [(SHORT_S, []), (LONG_S, [1, 2])])
def test_restarts_of_one_exchange_are_weighed_together(length_s: float, leave: list[int]) -> None:
    assert wanted_by_a_gang(length_s) == leave


@pytest.mark.parametrize(
    "more",
    [{"priority": 90}, {"project": "vision"}, {"on": "r", "value_usd_per_h": 9.0}],
    ids=["a higher class", "who owns and lent the place", "a payer where riders are"],
)
def test_what_is_no_exchange_of_equals_is_not_weighed(more: dict[str, Any]) -> None:
    assert wanted_by_a_gang(SHORT_S, **more) == [1, 2]
