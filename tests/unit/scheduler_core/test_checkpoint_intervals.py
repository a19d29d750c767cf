"""How often to save, from how long machines live; and what they are believed to lose."""

from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest
from fake_fleet import FakeFleet, cluster, job, pool, remembered_state

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.problem_snapshot import lasting_fractions, revocation_rates
from scheduler.core.placement.checkpoint_intervals import FIRST_BY_S, checkpoint_text, plan_interval
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import PoolState
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.job_request import JobId, JobRequest, Kind
from walras.states import Reason

HOUR = 3600.0
J1 = JobId(1)


def on_spot(machines: int = 1, **terms: object) -> FakeFleet:
    """A fleet with machines s0, s1, … of pool `s` of spot machines with these terms."""
    fleet = cluster("fifo", machines="", rules=RoundRules(rent_keep_s=1e7))
    fleet.tell(ev.PoolDeclared(0.0, replace(pool("s", market=Market.SPOT, quota=50), **terms)))  # type: ignore[arg-type]
    for number in range(machines):
        join(fleet, f"s{number}")
    return fleet


def join(fleet: FakeFleet, name: str, at: float | None = None) -> None:
    fleet.tell(ev.NodeJoined(fleet.at if at is None else at, NodeId(name), PoolId("s"), f"token-{name}"))


def lose(fleet: FakeFleet, name: str, at: float, warning_s: float | None = None) -> None:
    if warning_s is not None:
        fleet.tell(ev.NodeLeaving(at, NodeId(name), at + warning_s))
        at += warning_s
    fleet.tell(ev.NodeLost(at, NodeId(name), Reason.INFRA_SPOT_RECLAIM))


def start(fleet: FakeFleet, request: JobRequest) -> float | None:
    """Submit and let it run; the interval it was started with."""
    commands = fleet.tell(ev.JobSubmitted(fleet.at, request))
    started = next(each for each in commands if isinstance(each, cmd.Start))
    fleet.tell(ev.AttemptStarted(fleet.at, started.job_id, started.attempt))
    return started.checkpoint_every_s


def told(commands: list[cmd.Command]) -> list[float]:
    return [each.every_s for each in commands if isinstance(each, cmd.CheckpointEvery)]


def save(fleet: FakeFleet, at: float, took_s: float, steps: float = 1.0, **more: float) -> list[float]:
    return told(fleet.tell(ev.CheckpointRecorded(at, J1, fleet.attempts[J1].number, steps, took_s, **more)))


def test_the_first_comes_early_and_the_next_by_what_it_took() -> None:
    """Young's interval for a spot machine whose mean life is taken as a day; a stated interval is kept."""
    fleet = on_spot()
    assert start(fleet, job(1, "s")) == FIRST_BY_S
    (every_s,) = save(fleet, 300.0, 20.0)
    assert every_s == pytest.approx(sqrt(2 * 20 * 24 * HOUR), rel=0.05)
    assert save(fleet, 900.0, 20.0, 2.0) == [], "told once, not at every checkpoint"
    record = fleet.core.ledger.jobs[J1]
    assert "writing one takes 20 s, no machines of s ended in" in checkpoint_text(fleet.core.ledger, record)
    fleet = on_spot()
    assert start(fleet, job(1, "s", checkpoint_every_s=77.0)) == 77.0
    assert save(fleet, 300.0, 20.0) == []


def test_attempts_started_at_one_event_are_planned_as_each_by_itself() -> None:
    """What attempts of a kind share is worked out once at an event, and anew at the next."""
    fleet = on_spot(shape=pool("s", 6).shape, usd_per_h=1.0)
    for number, kind in enumerate(["slow", "quick", "slow", "quick", "slow"], start=1):
        fleet.tell(ev.JobSubmitted(0.0, job(number, kind=Kind(kind))))
    for at, number, took_s in ((300.0, 1, 200.0), (301.0, 2, 2.0)):
        run = fleet.attempts[JobId(number)]
        fleet.tell(ev.AttemptStarted(at, run.job_id, run.number))
        fleet.tell(ev.CheckpointRecorded(at, run.job_id, run.number, 1.0, took_s))
    for at, name in ((400.0, "s1"), (86_400.0, "s2")):
        for number in range(int(at), int(at) + 6):
            due = {"deadline_at": 9e5, "value_usd_per_h": 50.0} if number % 3 == 2 else {}
            fleet.tell(ev.JobSubmitted(at, job(number, kind=Kind(("slow", "quick")[number % 2]), count=1, **due)))
        started = [
            each
            for each in fleet.tell(ev.NodeJoined(at, NodeId(name), PoolId("s"), name))
            if isinstance(each, cmd.Start)
        ]
        assert len(started) > 3
        for each in started:
            plan = plan_interval(fleet.core.ledger, fleet.core.ledger.jobs[each.job_id])
            assert each.checkpoint_every_s == plan.every_s
        assert len({each.checkpoint_every_s for each in started}) > 1


@pytest.mark.parametrize("warning_s", [None, 120.0])
def test_machines_that_end_teach_the_pool(warning_s: float | None) -> None:
    """Twenty lives of about half an hour; with two minutes' warning they do no harm, and the interval stays long."""
    fleet = on_spot(notice_s=0.0 if warning_s is None else 120.0)
    start(fleet, job(1, "s"))
    calm = save(fleet, 300.0, 2.0)[-1]
    commands: list[float] = []
    for number in range(1, 21):
        join(fleet, f"s{number}", 300.0 + 3000.0 * number)
        lose(fleet, f"s{number}", 300.0 + 3000.0 * number + 1300.0 + 50 * number, warning_s)
        commands += told(fleet.log[-1][1])
    if warning_s is None:
        # The job's own machine outlived them all: by now it is older than any, and those that live so long may be safe.
        assert commands, "the running attempt hears of it"
        assert commands[0] < calm
    else:
        assert commands == []


def test_what_the_scheduler_gives_back_teaches_nothing() -> None:
    fleet = on_spot(10)
    for number in range(10):
        fleet.tell(ev.NodeLeaving(600.0, NodeId(f"s{number}"), inf, Reason.HOLD_ADMIN))
        fleet.tell(ev.NodeLost(600.0, NodeId(f"s{number}")))
    lives = fleet.core.ledger.fleet.pools[3].lives
    assert (lives.ends, len(lives.record.gone)) == (0, 10)


def test_a_stated_law_is_believed_and_age_matters() -> None:
    """Where nobody lives longer than two hours an attempt saves more and more often."""
    fleet = on_spot(lifetime="uniform 2h")
    young = start(fleet, job(1, "s"))
    assert young == pytest.approx(sqrt(2 * 5 * 2 * HOUR), rel=0.05)
    old = save(fleet, 6600.0, 5.0, 2.0)[-1]
    assert old == pytest.approx(sqrt(2 * 5 * 600), rel=0.2)


def test_a_gang_ends_with_any_of_its_machines_and_a_deadline_makes_losses_dear() -> None:
    """Four machines: half the interval of one. On demand at four times the price: half as well."""
    fleet = on_spot(5, usd_per_h=1.0)
    sure = replace(pool("d", market=Market.ON_DEMAND, quota=4), usd_per_h=4.0, shape=pool("s").shape)
    fleet.tell(ev.PoolDeclared(0.0, sure))
    start(fleet, job(1, "s"))
    alone = save(fleet, 300.0, 10.0)[-1]
    fleet.tell(ev.AttemptEnded(400.0, J1, 1, ev.EndCause.EXITED, 0))
    dear = start(fleet, job(2, "s", deadline_at=1e7))
    assert dear == pytest.approx(alone / 2, rel=0.05)
    fleet.tell(ev.AttemptEnded(400.0, JobId(2), 1, ev.EndCause.EXITED, 0))
    commands = fleet.tell(ev.JobSubmitted(400.0, job(3, "s", 4)))
    for part in next(each for each in commands if isinstance(each, cmd.Prepare)).placement.parts:
        commands = fleet.tell(ev.Prepared(400.0, JobId(3), 1, part.node_id, "host", 1))
    gang = next(each for each in commands if isinstance(each, cmd.Start)).checkpoint_every_s
    assert gang == pytest.approx(alone / 2, rel=0.05)


def test_a_successor_knows_what_machines_lived() -> None:
    fleet = on_spot(0)
    for number in range(12):
        join(fleet, f"s{number}", 100.0 * number)
        lose(fleet, f"s{number}", 100.0 * number + 60.0)
    join(fleet, "s99")
    before = start(fleet, job(1, "s"))
    kept = remembered_state(fleet.core.ledger)
    fleet.tell(ev.AttemptEnded(fleet.at, J1, 1, ev.EndCause.EXITED, 0))
    fleet.restart(kept)
    assert start(fleet, job(2, "s")) == pytest.approx(before, rel=0.05)
    assert before < 60


def _pool(zone: str, market: Market = Market.SPOT, notice_s: float = 0.0) -> PoolState:
    shape = Shape("v100x4", "v100", 4, 32, 10**11)
    state = PoolState(Pool(PoolId(f"v100x4/{market}/{zone}"), shape, market, zone, 4.0, 10, notice_s, boot_s=180.0), 0)
    state.lives.began(0.0)
    return state


def _runs(count: float, pools: int = 1) -> tuple[np.ndarray, ...]:
    return np.arange(pools), np.full(pools, count), np.full(pools, 60.0)


def test_machines_that_stay_lose_nothing() -> None:
    """Owned and on-demand machines keep their speed; machines given back are not held against their zone."""
    pools = [_pool("a", Market.OWNED), _pool("a", Market.ON_DEMAND)]
    assert lasting_fractions(pools, HOUR, *_runs(4.0, 2)).tolist() == [1.0, 1.0]
    pool = _pool("a")
    pool.lives.began(0.0)
    pool.lives.ended(HOUR, 0.0, taken=False)
    assert pool.lives.revocations == 0
    assert pool.lives.lived_s(2 * HOUR) == pytest.approx(3 * HOUR)


def test_a_zone_that_takes_machines_back_counts_less_than_one_that_does_not() -> None:
    """Ten revocations in ten machine-hours count against a zone, less against the other, and fade."""
    taking, keeping = _pool("a"), _pool("b")
    for _ in range(10):
        taking.lives.began(0.0)
        taking.lives.ended(HOUR, 0.0, taken=True)
    rates = revocation_rates([taking, keeping], 10 * HOUR)
    assert rates[0] > 1.5 * rates[1] > 0
    parts = lasting_fractions([taking, keeping], 10 * HOUR, *_runs(4.0, 2))
    assert parts[0] < parts[1] < 1.0
    pool = _pool("a")
    pool.lives.began(0.0)
    pool.lives.ended(HOUR, 0.0, taken=True)
    early, late = (revocation_rates([pool], hours * HOUR)[0] for hours in (2, 2000))
    assert late < early / 5


def test_a_gang_stops_when_any_of_its_machines_goes() -> None:
    """Over more machines more of the time is lost; notice saves part of it."""
    pool, warned = _pool("a"), _pool("a", notice_s=120.0)
    one, four = (lasting_fractions([pool], HOUR, *_runs(count))[0] for count in (4.0, 16.0))
    assert four < one < 1.0
    assert lasting_fractions([warned], HOUR, *_runs(16.0))[0] > four


def test_machines_that_have_just_come_are_believed_to_stay_about_as_long_as_any_spot_machine() -> None:
    """Four machines of one second: nothing is known, and no plan may change for it."""
    pool = _pool("a")
    for _ in range(3):
        pool.lives.began(0.0)
    new = revocation_rates([pool], 1.0)[0]
    assert new == pytest.approx(1 / 24, rel=0.01)
    assert lasting_fractions([pool], 1.0, *_runs(4.0))[0] > 0.95
    pool.lives.ended(2.0, 0.0, taken=True)
    assert new < revocation_rates([pool], 2.0)[0] < 5 * new  # one that is taken at once is no law either
