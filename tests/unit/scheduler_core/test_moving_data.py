"""What moving a job's checkpoint and inputs to a pool costs, and who counts it before a move is made."""

from dataclasses import replace

import numpy as np
import pytest
from fake_fleet import FakeFleet, fleet_of, job, pool, remembered_state

from scheduler.core import events as ev
from scheduler.core.cycle.problem_snapshot import build_problem, configurations_of, newcomer_speeds
from scheduler.core.explain.job_conditions import job_conditions
from scheduler.core.handlers.deadlines import deadline_outlook
from scheduler.core.handlers.spot_holding import spot_offers
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.core.state.remaining_work import DataMove, data_move, fetching_on_pool_s
from walras.cluster import DataPath, Market, NodeId, PoolId
from walras.job_request import JobId, Kind

HOUR_S, GB, J1 = 3600.0, 10**9, JobId(1)
#: 360 GB to the other region take an hour and cost 7.20 USD.
BESIDE, AFAR, SAVED = DataPath(0.0, 10e9), DataPath(0.02, 0.1e9), 360 * GB
HOME = replace(pool("gpu", quota=4, market=Market.ON_DEMAND), pool_id=PoolId("home"), usd_per_h=3.0, data=BESIDE)
AWAY = replace(pool("gpu", quota=4, market=Market.ON_DEMAND), pool_id=PoolId("away"), usd_per_h=2.0, data=AFAR)
HERE, THERE = 0, 1


def running(hours: float = 10.0, size: int = SAVED, **more: object) -> FakeFleet:
    """A job of so many hours that runs at home with a checkpoint of this size; the other region has a machine too."""
    fleet = fleet_of(HOME, AWAY, restart_default_s=60.0)
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "gpu", 1, 1.0))
    fleet.tell(ev.NodeJoined(0.0, NodeId("h1"), HOME.pool_id))
    fleet.submit(job(1, "gpu", steps=hours * HOUR_S, **more))
    fleet.run(J1)
    fleet.tell(ev.NodeJoined(0.0, NodeId("a1"), AWAY.pool_id))
    fleet.tell(ev.CheckpointRecorded(0.0, J1, fleet.attempts[J1].number, 0.0, 1.0, size_bytes=size))
    return fleet


def test_a_move_takes_the_checkpoint_along() -> None:
    ledger = running().core.ledger
    assert data_move(ledger, ledger.jobs[J1], THERE) == DataMove(SAVED, HOUR_S, pytest.approx(7.2))
    assert data_move(ledger, ledger.jobs[J1], HERE) == DataMove(SAVED, 36.0, 0.0)
    assert fetching_on_pool_s(ledger, ledger.jobs[J1], THERE) == HOUR_S


def test_what_is_not_known_counts_nothing_and_what_was_known_is_kept() -> None:
    """A report without a size says nothing about it; a lost checkpoint gives its size to the one before."""
    fleet = running(size=0)
    record = fleet.core.ledger.jobs[J1]
    assert data_move(fleet.core.ledger, record, THERE) == DataMove()
    number = fleet.attempts[J1].number
    for size, lost, known in ((SAVED, False, SAVED), (0, False, SAVED), (GB, True, GB), (0, True, 0)):
        fleet.tell(ev.CheckpointRecorded(0.0, J1, number, 0.0, 1.0, lost, size_bytes=size))
        assert record.checkpoint_bytes == known
    fleet.tell(ev.PoolDeclared(0.0, replace(AWAY, data=None)))
    record.checkpoint_bytes = SAVED
    assert data_move(fleet.core.ledger, record, THERE) == DataMove()


def test_inputs_of_known_size_move_with_it_unless_a_machine_there_has_them() -> None:
    """Those of unknown size take what such starts took; the rate is the stated one until one was measured."""
    fleet = running(data=("d1",))
    ledger, record = fleet.core.ledger, fleet.core.ledger.jobs[J1]
    assert data_move(ledger, record, THERE) == DataMove(SAVED, HOUR_S, pytest.approx(7.2))
    fleet.tell(ev.NodeData(0.0, NodeId("h1"), ("d1",), (("d1", 40 * GB, 400.0),)))
    assert data_move(ledger, record, THERE) == DataMove(400 * GB, HOUR_S + 400.0, pytest.approx(8.0))
    fleet.tell(ev.NodeLost(0.0, NodeId("a1")))
    assert data_move(ledger, record, THERE).size_bytes == 400 * GB, "a machine that is still to come has nothing"
    fleet.tell(ev.NodeJoined(0.0, NodeId("a2"), AWAY.pool_id))
    fleet.tell(ev.NodeData(0.0, NodeId("a2"), ("d1",), (("d1", 40 * GB, 4000.0),)))
    assert data_move(ledger, record, THERE) == DataMove(SAVED, HOUR_S, pytest.approx(7.2))


@pytest.mark.parametrize("value", [None, 5.0])
def test_the_problem_spreads_a_move_over_what_the_job_has_left(value: float | None) -> None:
    """Ten hours, and one of fetching; 7.20 USD are money where an hour has a value, else 3.6 hours at 2 USD."""
    problem = build_problem(running(value_usd_per_h=value).core.ledger)
    speeds = dict(zip(problem.columns.use_pool.tolist(), problem.columns.steps_per_s.tolist(), strict=True))
    assert speeds[HERE] == 1.0, "where it runs nothing is fetched"
    assert speeds[THERE] == pytest.approx(10 / 11 if value else 10 / 14.6)
    assert problem.jobs.start_usd_per_h[0, THERE] == pytest.approx(7.2 / 11 if value else 0.0)


def test_a_fleet_that_states_no_way_of_data_asks_what_it_asked_before() -> None:
    fleet = running()
    for each in (HOME, AWAY):
        fleet.tell(ev.PoolDeclared(0.0, replace(each, data=None)))
    problem = build_problem(fleet.core.ledger)
    assert not len(problem.jobs.start_usd_per_h)
    assert (problem.columns.steps_per_s == 1.0).all()


def test_a_waiting_job_is_offered_places_at_what_it_would_fetch_there() -> None:
    fleet = running()
    ledger, record = fleet.core.ledger, fleet.core.ledger.jobs[J1]
    way = configurations_of(ledger.classes, np.array([record.class_row]), np.array([1.0, 1.0]))
    home, away = newcomer_speeds(ledger, record, way).tolist()
    assert (home, away) == (pytest.approx(10 / 10.01), pytest.approx(10 / 14.6))
    record.checkpoint_bytes = 0
    assert newcomer_speeds(ledger, record, way) is way.steps_per_s


def test_explain_says_what_a_move_would_fetch() -> None:
    fleet = running()
    told = {each.type: each.detail for each in job_conditions(fleet.core, J1)}
    assert told["fetches_inputs"] == "3.6e+03 s and 7.20 USD to fetch 360 GB of its checkpoint on gpu (away)"


def test_a_deadline_counts_the_way_of_the_checkpoint() -> None:
    """In time at home alone; away there are six minutes too few for an hour of fetching, or enough of them."""
    for in_hours, feasible in ((10.9, False), (11.4, True)):
        fleet = running(deadline_at=in_hours * HOUR_S)
        record = fleet.core.ledger.jobs[J1]
        found = deadline_outlook(fleet.core.cycle, record, without=HERE)
        assert found is not None
        assert (found.pool, found.is_feasible) == (THERE, feasible)
        assert found.usd == pytest.approx(2.0 * found.needs_s / HOUR_S + 7.2)


def test_spot_of_another_region_is_taken_where_its_saving_repays_the_move() -> None:
    """Ten hours at 1 USD and 7.20 for the move, against 30 on demand; with 2 hours left the move costs more."""
    spot = replace(AWAY, pool_id=PoolId("spot"), market=Market.SPOT, usd_per_h=1.0, notice_s=120.0)
    for hours, part in ((10.0, 17.2 / 30.0), (2.0, None)):
        fleet = running(hours, deadline_at=40 * HOUR_S)
        fleet.tell(ev.PoolDeclared(0.0, spot))
        record = fleet.core.ledger.jobs[J1]
        record.deadline_pool = HERE
        (offer,) = spot_offers(fleet.core.cycle, record)
        row = next(state.row for state in fleet.core.ledger.fleet.pools if state.pool.pool_id == "spot")
        assert offer.price.get(row) == (None if part is None else pytest.approx(part))
        assert offer.restart_s == pytest.approx(60.0 + (36.0 if part is None else HOUR_S))


def test_a_restored_core_knows_the_size() -> None:
    fleet = running()
    told = remembered_state(fleet.core.ledger)
    fleet.restart(told)
    assert fleet.core.ledger.jobs[J1].checkpoint_bytes == SAVED


def test_what_a_start_fetched_is_no_part_of_what_starts_cost() -> None:
    """It is counted once, by the way of the place."""
    fleet = running()
    number, ledger = fleet.attempts[J1].number, fleet.core.ledger
    fleet.tell(ev.CheckpointRecorded(0.0, J1, number, 100.0, 1.0, size_bytes=SAVED))
    fleet.end(J1, 85)
    while J1 not in fleet.attempts:
        fleet.wake()
    fleet.run(J1)
    attempt = fleet.attempts[J1]
    way = {HOME.pool_id: BESIDE, AWAY.pool_id: AFAR}[attempt.placement.pool_id]
    fleet.tell(ev.AttemptProgressed(fleet.at, J1, attempt.number, 100.0, start_s=9.0 + way.seconds(SAVED)))
    assert ledger.costs.restart_s(Kind("k"), 0.0) == pytest.approx(9.0 + 1.0)


def test_what_is_fetched_wherever_a_job_goes_slows_nothing() -> None:
    """Else a waiting job would seem so long that it is never late."""
    fleet = running()
    fleet.tell(ev.PoolDeclared(0.0, replace(HOME, data=AFAR, usd_per_h=AWAY.usd_per_h)))
    for name in ("a1", "h1"):
        fleet.tell(ev.NodeLost(0.0, NodeId(name)))
    columns = build_problem(fleet.core.ledger).columns
    assert not columns.running.any()
    assert columns.steps_per_s.tolist() == pytest.approx([1.0, 1.0])
