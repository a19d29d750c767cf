"""Jobs in seconds on the grid of the slack policy: rounded to the safe side, and plans that are shared."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from optimizer.planning import slack_policy
from optimizer.planning.deadline_job import DeadlineJob, DeadlineState, HeldMachine, run_deadline_job
from optimizer.planning.slack_policy import WATCH_S, SlackPlans, SlackSituation, likely_stay_s, market_belief

#: Eight hours of work in eleven; a start takes twelve minutes.
NOW = SlackSituation(8 * 3600.0, 11 * 3600.0, 720.0, 0.0, HeldMachine.NOTHING, 3.0, 1)


def made_of(job: DeadlineJob, levels: NDArray[np.int64] | None) -> slack_policy.SlackPlan:
    """The plan for one zone that has values for these levels of slack."""
    markets, turns = slack_policy._hypotheses(False, WATCH_S)
    pieces = slack_policy.plan_slack_in_pieces(job, markets, (), turns, levels)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value


def believed(*seen: bool) -> slack_policy.MarketBelief:
    belief = market_belief(1)
    for each in seen:
        belief.see(each)
    return belief


def test_spot_is_cheapest_where_there_is_any_and_slack() -> None:
    worth = SlackPlans().worth(NOW, believed(True, True), spot=True)
    assert min(worth, key=lambda held: worth[held]) is HeldMachine.SPOT
    assert 1 / 3 <= worth[HeldMachine.SPOT] < worth[HeldMachine.ON_DEMAND] <= 1.05


@pytest.mark.parametrize("slack_s", [0.0, 700.0, 1300.0])
def test_without_slack_for_a_restart_on_demand_alone_is_left(slack_s: float) -> None:
    worth = SlackPlans().worth(replace(NOW, time_left_s=NOW.work_left_s + slack_s), believed(False), spot=False)
    assert worth.keys() <= {HeldMachine.ON_DEMAND}


def test_what_is_late_for_sure_has_no_choice() -> None:
    assert SlackPlans().worth(replace(NOW, time_left_s=NOW.work_left_s - 1), believed(True), spot=True) == {}


def test_a_job_that_goes_on_uses_the_plan_that_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, made = SlackPlans(), []
    plan = slack_policy.plan_slack_in_pieces
    monkeypatch.setattr(slack_policy, "plan_slack_in_pieces", lambda job, *rest: made.append(job) or plan(job, *rest))
    for gone_s in (0.0, 1800.0, 3600.0):
        plans.worth(replace(NOW, time_left_s=NOW.time_left_s - gone_s), believed(False), spot=False)
    assert len(made) == 1
    plans.worth(replace(NOW, on_demand_price=2.0), believed(False), spot=False)
    assert len(made) == 2


@pytest.mark.parametrize("restart_s", [1.0, 720.0, 10 * 3600.0, 9 * 86_400.0])
def test_long_jobs_and_restarts_get_longer_slots_and_small_tables(restart_s: float) -> None:
    plans = SlackPlans()
    long = replace(NOW, work_left_s=20 * 86_400.0, time_left_s=30 * 86_400.0, restart_s=restart_s)
    for price in (2.0, 3.0, 4.0):
        plans.worth(replace(long, on_demand_price=price), believed(True), spot=True)
    kept = plans._plans.values()
    assert all(plan.job.slots <= 450 for plan in kept)
    assert sum(plan.ahead.nbytes for plan in kept) <= 128 * 2**20


@pytest.mark.parametrize(
    "told",
    [
        {"work_left_s": float("inf")}, {"time_left_s": -1.0}, {"restart_s": 1e9}, {"on_demand_price": 1e12},
        {"work_left_s": 0.0},
    ],
)  # fmt: skip
def test_numbers_beyond_all_bounds_are_no_error(told: dict[str, float]) -> None:
    worth = SlackPlans().worth(replace(NOW, **told), believed(True), spot=True)
    assert all(0 <= each < 1e3 for each in worth.values())


@pytest.mark.parametrize("seed", range(4))
def test_a_run_by_it_is_in_time_whatever_the_market_does(seed: int) -> None:
    """Slot by slot, on markets that change from slot to slot or stay for hours."""
    random, plans, belief = Random(seed), SlackPlans(), market_belief(1)
    job = DeadlineJob(slot=5, work=240, deadline=330, changeover=6, on_demand_price=3.0)
    trace = [random.random() < 0.5]
    while len(trace) < job.slots:
        trace.append(trace[-1] != (random.random() < (0.5, 0.1)[seed % 2]))

    class ByTheGrid:
        def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
            belief.see(now.spot)
            unit_s = WATCH_S / job.slot
            told = SlackSituation(
                now.work_left * unit_s, now.time_left * unit_s, 720.0, now.pending * unit_s, now.held, 3.0, 1
            )
            worth = plans.worth(told, belief, spot=now.spot)
            return min(worth, key=lambda held: worth[held], default=HeldMachine.ON_DEMAND)

    outcome = run_deadline_job(job, ByTheGrid(), trace)
    assert outcome.late == 0
    assert outcome.cost < 1.1 * job.work / job.slot * job.on_demand_price


def test_a_job_with_a_day_of_slack_waits_through_a_gap_where_machines_stay_for_long() -> None:
    """All of its slack counts, so that an hour of 22 is worth little."""
    told = replace(NOW, work_left_s=48 * 3600.0, time_left_s=70 * 3600.0)
    worth = SlackPlans().worth(told, believed(*[True] * 144, False), spot=False)
    assert min(worth, key=lambda held: worth[held]) is HeldMachine.NOTHING
    assert worth[HeldMachine.NOTHING] < 0.45, "most of the work is done on spot"


def test_values_between_levels_of_slack_are_those_of_every_unit_nearly() -> None:
    """A state that may be late stays one."""
    job = DeadlineJob(slot=5, work=400, deadline=700, changeover=6, on_demand_price=3.0)
    levels = slack_policy.slack_levels(300)
    assert len(levels) < 100
    exact, rough = made_of(job, None), made_of(job, levels)
    for row, slack in enumerate(levels.tolist()):
        one, other = exact.ahead[:, -1, slack], rough.ahead[:, -1, row]
        in_time = one < 1e6
        assert (in_time == (other < 1e6)).all()
        assert other[in_time] == pytest.approx(one[in_time], rel=0.02)


def test_what_would_be_believed_leaves_what_is_believed() -> None:
    belief = believed(False, False)
    before, stay_s = belief.weights.tolist(), likely_stay_s(belief)
    other = belief.seen(True, 12)
    assert belief.weights.tolist() == before
    assert likely_stay_s(belief) == stay_s
    assert likely_stay_s(other) > likely_stay_s(belief.seen(True)), "it may have been there for hours"


def test_a_plan_that_is_made_in_pieces_is_the_one_that_is_made_at_once() -> None:
    """Not ready before its last slot; a job of which everything may be late needs none."""
    pieces, at_once = SlackPlans(), SlackPlans()
    seen = believed(True, False)
    calls = 1
    while not pieces.make_ready(NOW, 8):
        assert not pieces.make_ready(NOW, 0)
        calls += 1
    assert calls >= 11 * 3600 / WATCH_S / 8
    assert pieces.make_ready(NOW, 0)
    assert pieces.worth(NOW, seen, spot=False) == at_once.worth(NOW, seen, spot=False)
    assert SlackPlans().make_ready(replace(NOW, time_left_s=NOW.work_left_s - 1), 0)


def test_what_was_seen_long_ago_counts_less() -> None:
    """Two days of machines that come and go slot by slot are outweighed by the day without that follows them."""
    restless = believed(*([True, False] * 144))
    assert likely_stay_s(restless) < likely_stay_s(believed(False))
    before = restless.weights
    for _ in range(144):
        restless.see(False)
    assert abs(restless.weights - before).max() > 0.3
    assert restless.weights.min() > 0


@pytest.mark.parametrize(
    ("restart_s", "slack_s", "rounded_s"),
    [(180.0, 4 * 3600.0, 200.0), (180.0, 22 * 3600.0, 200.0), (720.0, 4 * 3600.0, 720.0), (720.0, 22 * 3600.0, 720.0)],
)
def test_a_restart_is_rounded_up_little(restart_s: float, slack_s: float, rounded_s: float) -> None:
    plans = SlackPlans()
    told = replace(NOW, work_left_s=2 * 3600.0, time_left_s=2 * 3600.0 + slack_s, restart_s=restart_s)
    plans.worth(told, believed(True), spot=True)
    (plan,) = plans._plans.values()
    assert plan.job.changeover / plan.job.slot * WATCH_S == pytest.approx(rounded_s)
