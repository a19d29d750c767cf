"""What a job with a deadline holds by its slack, event by event: spot, machines on demand, or nothing."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, fleet_of, job, pool

from optimizer.planning.slack_policy import SlackPlans, SlackSituation
from scheduler.core import events as ev
from scheduler.core.events import JobRestored
from scheduler.core.explain.job_conditions import SPENDS_SLACK, job_conditions
from walras.cluster import Market, NodeId, NodeShare, Placement, Pool, PoolId
from walras.job_request import JobId
from walras.states import JobState, Reason

SPOT = replace(pool("gpu", quota=1, market=Market.SPOT), pool_id=PoolId("spot-a"), usd_per_h=1.0)
OTHER = replace(SPOT, pool_id=PoolId("spot-b"))
SURE = replace(pool("gpu", quota=1, market=Market.ON_DEMAND), pool_id=PoolId("sure"), usd_per_h=3.0)
HOUR_S = 3600.0


#: Slots that each event was to plan at most.
PIECES: list[int] = []


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    PIECES.clear()
    make_ready = SlackPlans.make_ready

    def watched(plans: SlackPlans, now: SlackSituation, pieces: int) -> bool:
        PIECES.append(pieces)
        return make_ready(plans, now, pieces)

    monkeypatch.setattr(SlackPlans, "make_ready", watched)


def submitted(hours: float, in_hours: float, *spots: Pool, **more: object) -> FakeFleet:
    """A job of so many hours that is to end in so many, on spot machines of these pools or on demand."""
    fleet = fleet_of(SURE, *(spots or (SPOT,)), restart_default_s=60.0)
    asked = {"steps": hours * HOUR_S, "deadline_at": in_hours * HOUR_S, **more}
    fleet.tell(ev.JobSubmitted(0.0, job(1, "gpu", **asked)))
    wait_for_plan(fleet)
    return fleet


def wait_for_plan(fleet: FakeFleet) -> None:
    """What jobs are to hold is planned in pieces, once a second."""
    while fleet.wake_at <= fleet.at + 1.0:
        fleet.tell(ev.Woke(fleet.wake_at))


def refuse(fleet: FakeFleet, at: float) -> None:
    fleet.tell(ev.RentFailed(at, fleet.rents[-1].token, "the market has none", 1))


def asked(fleet: FakeFleet) -> list[str]:
    return [str(rent.pool_id) for rent in fleet.rents]


def says(fleet: FakeFleet) -> str:
    return next(each.detail for each in job_conditions(fleet.core, JobId(1)) if each.type == SPENDS_SLACK)


def wake(fleet: FakeFleet, until: float) -> None:
    """Until it rents on demand; the market never has a machine."""
    while fleet.wake_at <= until and "sure" not in asked(fleet):
        fleet.tell(ev.Woke(fleet.wake_at))
        if fleet.rents[-1].pool_id != SURE.pool_id and fleet.core.ledger.fleet.pools[1].awaited:
            refuse(fleet, fleet.at)


def test_it_asks_for_spot_at_once_zone_by_zone_or_on_demand_where_there_is_no_time() -> None:
    fleet = submitted(2.0, 8.0)
    assert asked(fleet) == ["spot-a"]
    fleet.tell(ev.NodeJoined(60.0, NodeId("s1"), SPOT.pool_id, fleet.rents[-1].token))
    assert str(fleet.attempts[JobId(1)].placement.pool_id) == "spot-a"
    assert fleet.core.ledger.jobs[JobId(1)].is_secured
    assert says(fleet).startswith("holds spot")
    fleet = submitted(2.0, 8.0, SPOT, OTHER)
    refuse(fleet, fleet.at)
    assert asked(fleet) == ["spot-a", "spot-b"]
    refuse(fleet, fleet.at)
    assert asked(fleet) == ["spot-a", "spot-b"], "there is time: it waits"
    assert says(fleet).startswith("waits for spot: its slack of ")
    fleet = submitted(2.0, 2.25)
    assert asked(fleet) == ["sure"]
    assert "is what a boot and a restart need" in says(fleet)


def test_it_asks_again_and_goes_on_demand_when_its_slack_is_what_a_restart_needs() -> None:
    fleet = submitted(2.0, 4.0)
    refuse(fleet, fleet.at)
    wake(fleet, 4 * HOUR_S)
    assert asked(fleet).count("spot-a") > 3
    assert asked(fleet)[-1] == "sure"
    rented_at = float(fleet.rents[-1].token.split("@")[1].split("/")[0])
    assert 0.5 * HOUR_S < rented_at < 2 * HOUR_S - 60.0
    assert says(fleet).startswith("holds machines on demand")


def test_no_event_makes_more_than_a_piece_of_a_plan() -> None:
    """Of a job of two days: seconds go by in which it holds what it held, and its slack keeps more than those back."""
    fleet = submitted(40.0, 48.0)
    pieces = [made for made in PIECES if made]
    assert max(pieces) <= 8
    assert len(pieces) > 20
    assert 20.0 < fleet.at < 60.0
    assert asked(fleet) == ["spot-a"]


def test_a_machine_that_is_taken_is_followed_by_another_or_one_on_demand() -> None:
    fleet = submitted(2.0, 3.0)
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("s1"), SPOT.pool_id, fleet.rents[-1].token))
    fleet.tell(ev.AttemptStarted(fleet.at, JobId(1), 1))
    fleet.tell(ev.NodeLost(0.5 * HOUR_S, NodeId("s1"), Reason.INFRA_SPOT_RECLAIM))
    while fleet.core.ledger.fleet.pools[1].awaited:
        refuse(fleet, fleet.at)
    wake(fleet, 3 * HOUR_S)
    assert asked(fleet)[-1] == "sure"
    assert 0.5 * HOUR_S <= fleet.at < 1.5 * HOUR_S


@pytest.mark.parametrize("how", ["runs on", "is reclaimed"])
def test_unsaved_work_beyond_its_slack_does_not_end_the_choice(how: str) -> None:
    """It has a warning in which to save, so that a machine on demand still ends in time."""
    fleet = submitted(4.0, 5.0, replace(SPOT, notice_s=120.0), checkpoint_every_s=2 * HOUR_S)
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("s1"), SPOT.pool_id, fleet.rents[-1].token))
    fleet.tell(ev.AttemptStarted(fleet.at, JobId(1), 1))
    fleet.until(1.5 * HOUR_S)
    if how == "is reclaimed":
        fleet.tell(ev.NodeLeaving(1.5 * HOUR_S, NodeId("s1"), 1.5 * HOUR_S + 120.0, Reason.INFRA_SPOT_RECLAIM))
    assert says(fleet)
    assert JobId(1) in fleet.core.cycle.deadlines.market.holds


@pytest.mark.parametrize(("notice_s", "slack"), [(120.0, "5.9 h"), (0.0, "5.4 h")])
def test_work_that_no_warning_saves_is_no_slack(notice_s: float, slack: str) -> None:
    """Two hours in eight, less 5 % and 30 s; half an hour between checkpoints is lost without a warning."""
    fleet = submitted(2.0, 8.0, replace(SPOT, notice_s=notice_s), checkpoint_every_s=1800.0)
    assert f"its slack of {slack} " in says(fleet)


@pytest.mark.parametrize(
    "more",
    [{"value_usd_per_h": 2.0}, {"preemptible": False}, {"steps": None}],
    ids=["worth something", "never stopped", "of unknown length"],
)
def test_others_are_left_to_other_rules(more: dict[str, object]) -> None:
    """And spot that costs as much as what is sure is not asked for."""
    fleet = submitted(2.0, 8.0, **more)
    assert asked(fleet) == []
    assert fleet.core.cycle.deadlines.market.holds == {}
    assert asked(submitted(2.0, 8.0, replace(SPOT, usd_per_h=3.0))) == []


def test_spot_that_has_become_dear_is_left_and_found_again() -> None:
    fleet = submitted(2.0, 8.0)
    fleet.tell(ev.NodeJoined(60.0, NodeId("s1"), SPOT.pool_id, fleet.rents[-1].token))
    fleet.tell(ev.AttemptStarted(60.0, JobId(1), 1))
    fleet.tell(ev.PoolDeclared(120.0, replace(SPOT, usd_per_h=4.0)))
    fleet.until(900.0)
    assert not fleet.core.ledger.jobs[JobId(1)].is_secured
    assert SPENDS_SLACK not in {each.type for each in job_conditions(fleet.core, JobId(1))}
    fleet.tell(ev.NodeLost(900.0, NodeId("s1"), Reason.INFRA_SPOT_RECLAIM))
    fleet.tell(ev.PoolDeclared(900.0, SPOT))
    while fleet.wake_at <= 1800.0 and len(fleet.rents) == 1:
        fleet.tell(ev.Woke(fleet.wake_at))
    assert asked(fleet) == ["spot-a", "spot-a"]


def test_a_job_that_was_on_spot_when_the_core_was_replaced_stays_there() -> None:
    fleet = fleet_of(SURE, SPOT, restart_default_s=60.0)
    fleet.tell(ev.NodeJoined(0.0, NodeId("s1"), SPOT.pool_id, "token"))
    request = job(1, "gpu", steps=2 * HOUR_S, deadline_at=8 * HOUR_S)
    place = Placement(SPOT.pool_id, (NodeShare(NodeId("s1"), (0,)),))
    fleet.tell(JobRestored(0.0, request, 0.0, JobState.RUNNING, attempt=3, placement=place))
    record = fleet.core.ledger.jobs[JobId(1)]
    assert record.is_secured, "also while its plan is made"
    wait_for_plan(fleet)
    assert record.is_secured
    assert asked(fleet) == []
    assert says(fleet).startswith("holds spot")
