"""Attempts over several pools: placed whole, kept whole, paid for by part, at the speed of their parts."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import carried_out, measured

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.restore_events import JobRestored
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.core.state.remaining_work import remaining_here_s
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId, Kind
from walras.states import Reason

QUICK = RoundRules(round_s=100, resolve_min_s=0, restart_default_s=2, profiling_share=0)
J1, J2, J3 = JobId(1), JobId(2), JobId(3)


def planning(machines: str = "ab", policy: str = "hadar", **parameters: object) -> FakeFleet:
    """A fleet under a plan policy that knows every speed: a is fast, b half as fast, c a quarter."""
    fleet = cluster(policy, rules=QUICK, machines=machines, **parameters)
    return measured(fleet)


def held(fleet: FakeFleet, job_id: JobId) -> dict[str, int]:
    """Accelerators of the job by pool."""
    return dict(fleet.attempts[job_id].placement.by_pool)


def running(fleet: FakeFleet, job_id: JobId) -> None:
    if len(fleet.attempts[job_id].placement.parts) > 1:
        fleet.prepare_all(job_id)
    fleet.tell(ev.AttemptStarted(fleet.at, job_id, fleet.attempts[job_id].number))


def forked(fleet: FakeFleet, parts: int = 5, **more: object) -> None:
    """Job 1 runs, forked over what is free."""
    fleet.tell(ev.JobSubmitted(fleet.at, job(1, "*", 1, steps=1e6, fork_max=parts, **more)))
    carried_out(fleet)
    running(fleet, J1)


def test_a_fork_holds_a_gang_in_each_of_its_pools() -> None:
    """Alone on the fleet it takes as many parts as it may, the fastest first, and is as fast as they are together."""
    fleet = planning("ab")
    forked(fleet)
    assert held(fleet, J1) == {"a": 4, "b": 1}
    record = fleet.core.ledger.jobs[J1]
    assert fleet.core.ledger.rate_of(record) == pytest.approx(0.95 * (4 * 4.0 + 2.0))
    assert remaining_here_s(fleet.core.ledger, record) == pytest.approx(1e6 / (0.95 * 18.0))


def test_several_gangs_in_one_pool_are_a_fork_too() -> None:
    """Three parts of one type are three times as fast, less the averaging; no speed of three in step is asked for."""
    fleet = planning("a")
    forked(fleet, 3)
    assert held(fleet, J1) == {"a": 3}
    assert fleet.core.ledger.rate_of(fleet.core.ledger.jobs[J1]) == pytest.approx(0.95 * 12.0)


@pytest.mark.parametrize("policy", ["hadar", "walras"])
def test_a_gang_that_fits_no_pool_starts_over_two_at_the_pace_of_the_slower(policy: str) -> None:
    """One accelerator of a pool and three of another make a gang of four, where the other pool has no fourth."""
    fleet = planning("ab", policy)
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 1, steps=1e6, preemptible=False)))
    carried_out(fleet)
    running(fleet, J1)
    for name, steps_per_s in (("a", 16.0), ("b", 8.0)):
        fleet.tell(ThroughputMeasured(fleet.at, Kind("k"), name, 4, steps_per_s))
    fleet.tell(ev.NodeJoined(0.0, NodeId("b9"), PoolId("b")))
    fleet.tell(ev.JobSubmitted(1.0, replace(job(2, "b", 1, steps=1e6, preemptible=False))))
    carried_out(fleet)
    running(fleet, J2)
    fleet.tell(ev.JobSubmitted(2.0, job(3, "*", 4, steps=1e5, mixed=True)))
    carried_out(fleet)
    assert held(fleet, J3) == {"a": 1, "b": 3}
    assert fleet.core.ledger.rate_of(fleet.core.ledger.jobs[J3]) == 8.0


def test_a_fork_goes_on_where_it_is() -> None:
    """The next plan knows it as running where it is: nothing is stopped for a plan that says the same."""
    fleet = planning("ab")
    forked(fleet)
    fleet.tell(ev.Woke(500.0))
    fleet.wake()
    asked = fleet.solves[0].problem
    running_column = asked.columns.running.nonzero()[0].tolist()
    assert [asked.columns.use_count[asked.columns.use_column == row].tolist() for row in running_column] == [[4.0, 1.0]]
    assert not any(isinstance(command, cmd.Revoke) for command in carried_out(fleet))
    assert held(fleet, J1) == {"a": 4, "b": 1}


def test_a_fork_makes_way_for_another_job_and_goes_on_with_less() -> None:
    """Forks keep nobody out: it is asked to go, the other gets its place, and it starts again with fewer parts."""
    fleet = planning("ab")
    forked(fleet, 6)
    fleet.at = 1000.0
    fleet.tell(ev.JobSubmitted(1000.0, job(2, "a", 4, steps=1e4)))
    revoked = {c.job_id: c.reason for c in carried_out(fleet) if isinstance(c, cmd.Revoke)}
    assert revoked == {1: Reason.POLICY_MOVED} or revoked == {1: Reason.POLICY_PREEMPTED}
    fleet.end(J1, 85, 100.0)
    carried_out(fleet)
    assert held(fleet, J2) == {"a": 4}
    assert held(fleet, J1) == {"b": 2}


def test_a_running_job_moves_to_become_a_fork_when_others_leave() -> None:
    """What it gains is worth its restart: it saves, stops, and starts again with all its parts."""
    fleet = planning("ab")
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4, steps=1e5)))
    carried_out(fleet)
    running(fleet, J2)
    fleet.tell(ev.JobSubmitted(1.0, job(1, "*", 1, steps=1e6, fork_max=5)))
    carried_out(fleet)
    running(fleet, J1)
    assert held(fleet, J1) in ({"b": 1}, {"b": 2})
    fleet.at = 2000.0
    fleet.end(J2)
    revoked = {c.job_id: c.reason for c in carried_out(fleet) if isinstance(c, cmd.Revoke)}
    assert revoked == {1: Reason.POLICY_MOVED}
    fleet.end(J1, 85, 100.0)
    carried_out(fleet)
    assert held(fleet, J1) == {"a": 4, "b": 1}
    assert not fleet.core.cycle.reservations


def test_losing_one_machine_ends_the_whole_and_frees_every_part() -> None:
    """A spread attempt is whole or none; afterwards the job is forked over what is left."""
    fleet = planning("aab")
    forked(fleet, 9)
    assert held(fleet, J1) == {"a": 8, "b": 1}
    fleet.lose(NodeId("b3"))
    fleet.end(J1, None)
    carried_out(fleet)
    assert held(fleet, J1) == {"a": 8}


def test_service_is_counted_where_it_was_given() -> None:
    """Accelerator-seconds: all together for the job, and by pool for what was promised."""
    fleet = planning("ab")
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


def test_a_fork_pays_each_pool_its_price() -> None:
    """An hour of it costs what its parts cost, each at its machines' price."""
    fleet = planning("ab")
    for name, usd_per_h in (("a", 8.0), ("b", 3.0)):
        declared = next(state.pool for state in fleet.core.ledger.fleet.pools if state.pool.pool_id == name)
        fleet.tell(ev.PoolDeclared(0.0, replace(declared, usd_per_h=usd_per_h)))
    forked(fleet)
    assert fleet.core.cycle.spending.everything.per_h == pytest.approx(4 * 8.0 / 4 + 3.0 / 2)
    fleet.end(J1)
    assert fleet.core.cycle.spending.everything.per_h == 0.0


def test_the_speed_of_a_fork_is_measured_for_nobody() -> None:
    """What three parts make together says nothing of one in step: the table keeps what it knew."""
    fleet = planning("a")
    forked(fleet, 3)
    number = fleet.attempts[J1].number
    fleet.tell(ev.AttemptProgressed(50.0, J1, number, 500.0, 1.0, 5))
    assert fleet.core.ledger.class_of(fleet.core.ledger.jobs[J1]).speeds[0] == 4.0


def test_a_waiting_spread_is_told_what_it_waits_for() -> None:
    """The places of all its pools are named, with what is missing."""
    fleet = planning("ab")
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4, steps=1e5)))
    carried_out(fleet)
    running(fleet, J2)
    fleet.tell(ev.JobSubmitted(1.0, job(1, "*", 1, steps=1e6, fork_max=6)))
    carried_out(fleet)
    running(fleet, J1)
    fleet.at = 2000.0
    fleet.tell(ev.JobSubmitted(2000.0, job(3, "a", 4, steps=10.0)))
    carried_out(fleet)
    assert pending_reasons(fleet.core, JobId(3))


def test_a_restored_fork_is_what_it_was() -> None:
    """A fresh core that is told the placement counts the same parts and the same speed."""
    fleet = planning("ab")
    forked(fleet)
    record = fleet.core.ledger.jobs[J1]
    fresh = planning("ab")
    fresh.tell(
        JobRestored(
            10.0,
            record.request,
            submitted_at=0.0,
            state=record.state,
            attempt=record.attempt,
            placement=record.placement,
            leased_at=0.0,
            running_at=1.0,
        )
    )
    again = fresh.core.ledger.jobs[J1]
    assert fresh.core.ledger.parts_of(again) == fleet.core.ledger.parts_of(record)
    assert fresh.core.ledger.rate_of(again) == fleet.core.ledger.rate_of(record)
