"""An elastic job with a deadline: how many machines of which pool it holds, and when that is planned again."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, fleet_of, job, pool

from scheduler.core import events as ev
from scheduler.core.explain.job_conditions import SPENDS_SLACK, job_conditions
from scheduler.core.speed_events import ThroughputMeasured
from walras.cluster import Market, NodeId, PoolId
from walras.job_request import JobId, Kind
from walras.states import Reason

SPOT = replace(pool("gpu", quota=8, market=Market.SPOT), pool_id=PoolId("spot"), usd_per_h=1.0, notice_s=30.0)
SURE = replace(pool("gpu", quota=8, market=Market.ON_DEMAND), pool_id=PoolId("sure"), usd_per_h=3.0)
HOUR_S = 3600.0
ONE = JobId(1)
#: Steps per second by the size of the gang: each doubling brings a little more than half as much again.
SPEEDS = {1: 1.0, 2: 1.7, 4: 2.7, 8: 3.9}


def submitted(hours: float, in_hours: float, *, speeds: dict[int, float] = SPEEDS, policy: str = "fifo") -> FakeFleet:
    """A job of so many hours on one machine, with a deadline in so many."""
    fleet = fleet_of(SURE, SPOT, policy=policy, restart_default_s=60.0, rent_backoff_s=60.0)
    tell_speeds(fleet, speeds)
    sizes = tuple(sorted(speeds))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "gpu", steps=hours * HOUR_S, deadline_at=in_hours * HOUR_S, sizes=sizes)))
    wait_for_plans(fleet)
    return fleet


def tell_speeds(fleet: FakeFleet, speeds: dict[int, float]) -> None:
    for count, speed in speeds.items():
        fleet.tell(ThroughputMeasured(fleet.at, Kind("k"), "gpu", count, speed))


def wait_for_plans(fleet: FakeFleet) -> None:
    while fleet.wake_at <= fleet.at + 1.0:
        fleet.tell(ev.Woke(fleet.wake_at))


def asked(fleet: FakeFleet) -> tuple[str, int]:
    """The newest request."""
    return str(fleet.rents[-1].pool_id), fleet.rents[-1].machines


def give(fleet: FakeFleet, machines: int | None = None) -> None:
    """The provider gives what was asked for last, or that many of it."""
    rent = fleet.rents[-1]
    given = rent.machines if machines is None else machines
    for _ in range(given):
        name = f"{rent.pool_id}-{len(fleet.core.ledger.fleet.machines)}"
        fleet.tell(ev.NodeJoined(fleet.at, NodeId(name), rent.pool_id, rent.token))
    if given < rent.machines:
        fleet.tell(ev.RentFailed(fleet.at, rent.token, "the market has no more", rent.machines - given))


def gang(fleet: FakeFleet) -> tuple[str, int]:
    """Pool and size of its newest attempt."""
    placement = fleet.attempts[ONE].placement
    return str(placement.pool_id), sum(len(part.devices) for part in placement.parts)


def says(fleet: FakeFleet) -> str:
    return next(each.detail for each in job_conditions(fleet.core, ONE) if each.type == SPENDS_SLACK)


def save(fleet: FakeFleet, steps: float) -> None:
    fleet.tell(ev.CheckpointRecorded(fleet.at, ONE, fleet.attempts[ONE].number, steps, 1.0))


@pytest.mark.parametrize(("in_hours", "machines"), [(30.0, 1), (8.0, 2), (4.2, 4), (2.9, 8)])
def test_the_set_is_the_smallest_that_leaves_slack_enough(in_hours: float, machines: int) -> None:
    """Eight hours of work on one machine; more machines cost more for each step, and so does the end of slack."""
    fleet = submitted(8.0, in_hours)
    assert asked(fleet) == ("spot", machines)
    give(fleet)
    assert gang(fleet) == ("spot", machines)
    assert f"a gang of {machines} is the cheapest in time" in says(fleet)


def test_where_no_slack_is_left_it_is_on_demand_with_the_gang_that_ends_first() -> None:
    """Once it has waited for spot while it could, with the cheapest gang in time."""
    fleet = submitted(8.0, 2.2)
    assert asked(fleet) == ("sure", 8)
    give(fleet)
    assert gang(fleet) == ("sure", 8), "it does not begin on the first machine that comes"
    assert "holds machines on demand" in says(fleet)
    fleet = submitted(8.0, 6.0)
    while "sure" not in {str(rent.pool_id) for rent in fleet.rents} and fleet.at < 5 * HOUR_S:
        if sum(sum(state.awaited.values()) for state in fleet.core.ledger.fleet.pools):
            give(fleet, 0)
        else:
            fleet.tell(ev.Woke(fleet.wake_at))
    where, machines = asked(fleet)
    assert where == "sure"
    left_s = 6 * HOUR_S - fleet.at
    assert 8 * HOUR_S / SPEEDS[machines] < left_s
    assert fleet.at > 600.0, "it waited for spot while it could"


def test_it_goes_on_with_what_a_revocation_leaves_and_grows_again() -> None:
    """Three machines alone would not end it in time: they are better than none while the fourth is asked for."""
    fleet = submitted(8.0, 4.2, speeds={1: 1.0, 2: 1.7, 3: 2.0, 4: 2.7})
    assert asked(fleet) == ("spot", 4)
    give(fleet)
    fleet.run(ONE)
    lost, fleet.at = fleet.attempts[ONE].placement.parts[0].node_id, 600.0
    fleet.tell(ev.NodeLeaving(600.0, lost, 630.0, Reason.INFRA_SPOT_RECLAIM))
    save(fleet, 1500.0)
    fleet.end(ONE, 85, 1500.0)
    assert gang(fleet) == ("spot", 3)
    assert "holds what spot there is, and waits for more" in says(fleet)
    fleet.run(ONE)
    fleet.tell(ev.NodeLost(630.0, lost, Reason.INFRA_SPOT_RECLAIM))
    assert asked(fleet) == ("spot", 1), "what is missing, and no more"
    give(fleet)
    assert fleet.attempts[ONE].stopping, "it saves, and starts again with four"
    fleet.end(ONE, 85, 1500.0)
    assert gang(fleet) == ("spot", 4)


def test_a_gang_that_the_market_takes_whole_goes_on_demand_where_there_is_no_time_to_wait() -> None:
    fleet = submitted(8.0, 4.2)
    give(fleet)
    fleet.run(ONE)
    fleet.at = 2400.0
    for part in fleet.attempts[ONE].placement.parts:
        fleet.tell(ev.NodeLeaving(2400.0, part.node_id, 2430.0, Reason.INFRA_SPOT_RECLAIM))
    fleet.end(ONE, 85, 100.0)
    assert asked(fleet)[0] == "sure"
    give(fleet)
    assert gang(fleet)[0] == "sure"


def test_machines_that_come_in_part_are_a_smaller_gang_at_once() -> None:
    """Where none come, four on demand are now 3 % cheaper than to wait for eight: who holds nothing takes them."""
    fleet = submitted(8.0, 4.2)
    assert asked(fleet) == ("spot", 4)
    give(fleet, 3)
    wait_for_plans(fleet)
    assert gang(fleet) == ("spot", 2)
    assert "waits for more" in says(fleet)
    fleet = submitted(8.0, 3.0, speeds={size: size**0.8 for size in SPEEDS})
    assert asked(fleet) == ("spot", 8)
    give(fleet, 0)
    wait_for_plans(fleet)
    assert asked(fleet) == ("sure", 4)
    give(fleet)
    assert gang(fleet) == ("sure", 4)


def test_a_price_that_moves_plans_the_set_again_and_one_that_hardly_moves_does_not() -> None:
    """Two machines cost a sixth more for each step: while spot is dear that is more than their slack saves."""
    fleet = submitted(8.0, 9.0)
    give(fleet)
    fleet.run(ONE)
    assert gang(fleet) == ("spot", 2)
    fleet.at, hold = 60.0, fleet.core.cycle.deadlines.market.holds[ONE]
    look_at = hold.look_at
    fleet.tell(ev.PoolDeclared(60.0, replace(SPOT, usd_per_h=1.04)))
    assert hold.look_at == look_at
    fleet.tell(ev.PoolDeclared(61.0, replace(SPOT, usd_per_h=2.0)))
    wait_for_plans(fleet)
    assert fleet.attempts[ONE].stopping
    fleet.end(ONE, 85, 100.0)
    assert gang(fleet) == ("spot", 1)


def test_a_gang_that_is_slower_than_planned_is_planned_again() -> None:
    """Eight machines were believed to be twelve times as fast as one, and are hardly faster."""
    fleet = submitted(8.0, 30.0, speeds={1: 1.0, 8: 12.0})
    assert asked(fleet) == ("spot", 8), "believed to be cheaper for each step than one"
    give(fleet)
    fleet.run(ONE)
    fleet.at = 120.0
    for _ in range(3):
        fleet.tell(ThroughputMeasured(fleet.at, Kind("k"), "gpu", 8, 1.1))
    wait_for_plans(fleet)
    fleet.end(ONE, 85, 100.0)
    assert gang(fleet) == ("spot", 1)


def test_a_set_that_was_held_when_the_core_was_replaced_stays_as_it_is() -> None:
    fleet = submitted(8.0, 8.0)
    give(fleet)
    fleet.run(ONE)
    before, rents = gang(fleet), len(fleet.rents)
    fleet.restart()
    tell_speeds(fleet, SPEEDS)
    wait_for_plans(fleet)
    assert fleet.core.ledger.jobs[ONE].is_secured
    assert gang(fleet) == before
    assert len(fleet.rents) == rents
    assert not fleet.attempts[ONE].stopping


def test_a_solve_does_not_change_the_size_of_a_planned_gang() -> None:
    """A share policy gives it one machine all the time; it keeps the two that its deadline asks for."""
    fleet = submitted(8.0, 8.0, policy="max_min_fairness")
    give(fleet)
    fleet.run(ONE)
    record = fleet.core.ledger.jobs[ONE]
    planned = record.class_row
    fleet.core.ledger.reclass(record, fleet.core.ledger.classes.options(planned)[0])
    if not fleet.solves:
        fleet.until(fleet.at + 400.0)
    one = {1: {"spot": 1.0}}
    fleet.core.ledger.reclass(record, planned)
    fleet.answer(one)
    assert record.class_row == planned
    assert gang(fleet) == ("spot", 2)


def test_nothing_is_asked_for_while_it_is_on_its_way_to_a_gang_of_another_size() -> None:
    fleet = submitted(8.0, 4.2, speeds={1: 1.0, 2: 1.7, 3: 2.0, 4: 2.7})
    give(fleet, 3)
    wait_for_plans(fleet)
    fleet.run(ONE)
    assert gang(fleet) == ("spot", 3)
    fleet.until(700.0)
    assert asked(fleet) == ("spot", 1)
    give(fleet)
    assert fleet.attempts[ONE].stopping
    rents = len(fleet.rents)
    fleet.tell(ev.PoolDeclared(fleet.at, replace(SPOT, usd_per_h=0.5)))
    wait_for_plans(fleet)
    assert len(fleet.rents) == rents
    fleet.end(ONE, 85, 100.0)
    assert gang(fleet) == ("spot", 4)
