"""What fetching inputs takes is learnt from starts, and paid for by whoever leaves a machine that has them."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.job_conditions import job_conditions
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import RestartMeasured, ThroughputMeasured
from scheduler.core.state.remaining_work import fetching_on_pool_s
from scheduler.live.store.event_journal import decode_event, encode_event
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId, Kind
from walras.states import Reason

K, J1 = Kind("k"), JobId(1)
QUICK = RoundRules(round_s=100, resolve_min_s=0, restart_default_s=2, profiling_share=0)
DATA = ("d1", "d2")


def joined(fleet: FakeFleet, name: str, pool: str, *data: str) -> None:
    fleet.tell(ev.NodeJoined(fleet.at, NodeId(name), PoolId(pool)))
    if data:
        fleet.tell(ev.NodeData(fleet.at, NodeId(name), data))


def started(fleet: FakeFleet, number: int, start_s: float) -> None:
    """A job with inputs starts, which takes so long, and ends."""
    fleet.tell(ev.JobSubmitted(fleet.at, job(number, "a", 4, data=DATA)))
    attempt = fleet.attempts[JobId(number)].number
    fleet.tell(ev.AttemptStarted(fleet.at, JobId(number), attempt))
    fleet.tell(ev.AttemptProgressed(fleet.at, JobId(number), attempt, 1.0, start_s=start_s))
    fleet.end(JobId(number))


@pytest.mark.parametrize(("counts", "expected_s"), [(True, 300.0), (False, 0.0)])
def test_a_fetch_takes_what_starts_without_the_inputs_took_longer(counts: bool, expected_s: float) -> None:
    """One start fetched, three found all inputs; one of two inputs is not all of them."""
    fleet = cluster(machines="", rules=replace(QUICK, count_fetches=counts))
    joined(fleet, "a1", "a", "d1")
    assert fleet.core.ledger.costs.fetch_s(K) == 0.0
    started(fleet, 1, 302.0)
    assert fleet.core.ledger.costs.fetch_s(K) == 0.0  # what a start takes otherwise is not known
    fleet.tell(ev.NodeData(fleet.at, NodeId("a1"), DATA))
    for number in (2, 3, 4):
        started(fleet, number, 2.0)
    assert fleet.core.ledger.costs.fetch_s(K) == expected_s
    assert fleet.core.ledger.costs.restart_s(K, 60.0) == 2.0


def moving(rules: RoundRules, there: tuple[str, ...]) -> FakeFleet:
    """Job 1 runs on a, which has its inputs, and all of its share is on c, which has these. A fetch takes 300 s."""
    fleet = cluster("max_min_fairness", rules=rules, machines="")
    for name, steps_per_s in (("a", 4.0), ("b", 2.0), ("c", 1.0)):
        fleet.tell(ThroughputMeasured(0.0, K, name, 1, steps_per_s))
    joined(fleet, "a1", "a", *DATA)
    joined(fleet, "c1", "c", *there)
    for _ in range(3):
        fleet.tell(RestartMeasured(0.0, K, 2.0))
    fleet.core.ledger.costs.saw_start(K, 302.0, cold=True)
    fleet.tell(ev.JobSubmitted(0.0, job(1, data=DATA)))
    fleet.tell(ev.AttemptStarted(0.0, J1, fleet.attempts[J1].number))
    assert fleet.attempts[J1].placement.pool_id == "a"
    fleet.answer({1: {"c": 1.0}})
    return fleet


def moved_at(fleet: FakeFleet, until: float) -> float | None:
    while fleet.at < until:
        if fleet.solves:
            fleet.answer({1: {"c": 1.0}})
        commands = fleet.wake()
        if any(isinstance(each, cmd.Revoke) and each.reason is Reason.POLICY_MOVED for each in commands):
            return fleet.at
    return None


@pytest.mark.parametrize(
    ("rules", "there", "pays_at"),
    [
        (QUICK, DATA, 100.0),
        (replace(QUICK, count_fetches=False), (), 100.0),
        # Twice the restart (2 s) and the fetch (300 s): it must be owed 604 s, which it is after seven rounds.
        (QUICK, (), 700.0),
        (QUICK, ("d1",), 700.0),
    ],
)
def test_a_move_that_pays_without_the_fetch_is_not_made_with_it(
    rules: RoundRules, there: tuple[str, ...], pays_at: float
) -> None:
    assert moved_at(moving(rules, there), 1000.0) == pays_at


def test_a_challenger_pays_for_fetching_where_no_machine_has_its_inputs() -> None:
    """The machine of the pool that has most of them, by bytes, counts; without inputs there is nothing to fetch."""
    fleet = moving(QUICK, ())
    ledger = fleet.core.ledger
    record = ledger.jobs[J1]
    pools = {state.pool.pool_id: state.row for state in ledger.fleet.pools}
    assert fetching_on_pool_s(ledger, record, pools[PoolId("c")]) == 300.0
    assert fetching_on_pool_s(ledger, record, pools[PoolId("a")]) == 0.0
    fleet.tell(ev.NodeData(fleet.at, NodeId("c1"), DATA))
    assert fetching_on_pool_s(ledger, record, pools[PoolId("c")]) == 0.0
    fleet.tell(ev.JobSubmitted(fleet.at, job(2)))
    assert fetching_on_pool_s(ledger, ledger.jobs[JobId(2)], pools[PoolId("c")]) == 0.0
    fleet = cluster(machines="")
    for name, fetched in (("a1", (("d1", 1, 0.1), ("d2", 1, 0.1))), ("a2", (("d3", 10**9, 1.0),))):
        joined(fleet, name, "a")
        told_bytes(fleet, name, *fetched)
    caches, rows = fleet.core.ledger.fleet.caches, {m.node_id: m.row for m in fleet.core.ledger.fleet.machines if m}
    found = caches.rows_with(("d1", "d2", "d3"), set(rows.values()))
    assert found == [rows[NodeId("a2")], rows[NodeId("a1")]]


def told_bytes(fleet: FakeFleet, name: str, *fetched: tuple[str, int, float]) -> None:
    fleet.tell(ev.NodeData(fleet.at, NodeId(name), tuple(key for key, _, _ in fetched), fetched))


@pytest.mark.parametrize(
    ("there", "expected_s"),
    [
        # 12 GB at 100 MB a second, until a machine of the pool has measured it.
        ((), 120.0),
        # d1 (4 GB in 20 s) is there: d2 at the rate of this machine.
        ((("d1", 4 * 10**9, 20.0),), 40.0),
        # What took less than a second measures nothing.
        ((("d1", 4 * 10**9, 0.5),), 80.0),
        ((("d1", 4 * 10**9, 20.0), ("d2", 8 * 10**9, 40.0)), 0.0),
    ],
)
def test_what_was_told_of_inputs_is_fetched_at_the_rate_of_the_machine(
    there: tuple[tuple[str, int, float], ...], expected_s: float
) -> None:
    """The kind's own starts (300 s) count no more where the bytes of all that is lacking are known."""
    fleet = moving(QUICK, ())
    ledger = fleet.core.ledger
    told_bytes(fleet, "a1", ("d1", 4 * 10**9, 4.0), ("d2", 8 * 10**9, 8.0))
    told_bytes(fleet, "c1", *there)
    pools = {state.pool.pool_id: state.row for state in ledger.fleet.pools}
    assert fetching_on_pool_s(ledger, ledger.jobs[J1], pools[PoolId("c")]) == expected_s
    assert fetching_on_pool_s(ledger, ledger.jobs[J1], pools[PoolId("a")]) == 0.0
    conditions = {each.type: each.detail for each in job_conditions(fleet.core, J1)}
    size = "8 GB" if there else "12 GB"
    told = f"{expected_s:.3g} s to fetch {size} of inputs on c" if expected_s else None
    assert conditions.get("fetches_inputs") == told


def test_a_machine_that_measured_nothing_fetches_at_the_rate_of_its_pool() -> None:
    """And what one machine does not tell the size of is learnt from starts, as before."""
    fleet = moving(QUICK, ())
    ledger = fleet.core.ledger
    joined(fleet, "c2", "c")
    told_bytes(fleet, "a1", ("d1", 4 * 10**9, 4.0), ("d2", 8 * 10**9, 8.0))
    told_bytes(fleet, "c2", ("d9", 10**9, 50.0))
    row = next(state.row for state in ledger.fleet.pools if state.pool.pool_id == "c")
    assert fetching_on_pool_s(ledger, ledger.jobs[J1], row) == 600.0
    fleet.tell(ev.NodeLost(fleet.at, NodeId("c2"), Reason.INFRA_NODE_LOST))
    assert fetching_on_pool_s(ledger, ledger.jobs[J1], row) == 120.0
    told_bytes(fleet, "a1", ("d1", 4 * 10**9, 4.0), ("d2", 0, 0.0))
    assert fetching_on_pool_s(ledger, ledger.jobs[J1], row) == 300.0


@pytest.mark.parametrize(("fetch_s", "pays_at"), [(3.0, 100.0), (60.0, 200.0), (300.0, 700.0)])
def test_a_move_is_made_once_it_pays_for_its_bytes(fetch_s: float, pays_at: float) -> None:
    """Twice the restart (2 s) and the fetch must be owed, whatever starts of the kind took before."""
    fleet = moving(QUICK, ())
    size = round(fetch_s * 50e6)
    told_bytes(fleet, "a1", ("d1", size, 1.0), ("d2", size, 1.0))
    assert moved_at(fleet, 1000.0) == pays_at


def test_journals_from_before_know_no_bytes() -> None:
    row = encode_event(ev.NodeData(1.0, NodeId("a1"), ("d1",), (("d1", 5, 2.0),)))
    assert decode_event(row) == ev.NodeData(1.0, NodeId("a1"), ("d1",), (("d1", 5, 2.0),))
    before = replace(row, payload=row.payload.replace(',"fetched":[["d1",5,2.0]]', ""))
    assert before.payload != row.payload
    assert decode_event(before) == ev.NodeData(1.0, NodeId("a1"), ("d1",))


@pytest.mark.parametrize("rule", ["count_fetches", "weigh_intervals"])
def test_journals_from_before_a_rule_decide_as_they_did(rule: str) -> None:
    row = encode_event(cluster().log[0][0])
    assert getattr(decode_event(row).rules, rule)  # type: ignore[union-attr]
    before = replace(row, payload=row.payload.replace(f',"{rule}":true', ""))
    assert before.payload != row.payload
    assert not getattr(decode_event(before).rules, rule)  # type: ignore[union-attr]
