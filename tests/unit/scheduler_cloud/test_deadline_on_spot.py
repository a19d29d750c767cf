"""Jobs with deadlines on spot machines: never late, the optimum under all others, the published figures."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.spot_runs import JOB, fitted, judged, starts, total, totalled
from optimizer.planning.deadline_job import (
    DeadlineJob,
    DeadlineState,
    GreedySpotPolicy,
    HeldMachine,
    SpotPolicy,
    UniformProgress,
    run_deadline_job,
)
from optimizer.planning.slack_policy import MarketBelief, fit_spot_markets, plan_slack
from optimizer.planning.spot_replay import replay_optimum, run_omniscient, zones_optimum

#: 4 h of work in 6 h, slots of 10 minutes.
SMALL = DeadlineJob(slot=5, work=120, deadline=180, changeover=6, on_demand_price=3.0)


def a_trace(seed: int, slots: int = 400, change: float = 0.15) -> list[bool]:
    random = Random(seed)
    found = [random.random() < 0.5]
    for _ in range(slots - 1):
        found.append(found[-1] != (random.random() < change))
    return found


PLAN = plan_slack(SMALL, fit_spot_markets([a_trace(seed) for seed in range(3)]))

#: What makes a policy for one run.
MAKERS: list[Callable[[], SpotPolicy]] = [GreedySpotPolicy, UniformProgress, PLAN.policy]


@given(st.lists(st.booleans(), min_size=36, max_size=36))
def test_no_policy_is_ever_late_and_none_beats_the_optimum(available: list[bool]) -> None:
    """Whatever the market does, and the optimum is the cheapest of them; each unit of work is done once."""
    best = run_omniscient(SMALL, [available])
    for policy in (GreedySpotPolicy(), UniformProgress(), PLAN.policy()):
        outcome = run_deadline_job(SMALL, policy, available)
        assert outcome.late == 0
        assert outcome.spot_work + outcome.on_demand_work == SMALL.work
        assert outcome.cost >= best.cost - 1e-9
    assert best.late == 0


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_is_the_integer_programs(seed: int) -> None:
    """The program counts whole slots: at most one slot on demand above the exact cost, and never below it."""
    available = a_trace(seed)[:36]
    exact = run_omniscient(SMALL, [available]).cost
    program = zones_optimum(SMALL, [available])
    assert program is not None
    assert exact - 1e-6 <= program.usd <= exact + SMALL.on_demand_price


@pytest.mark.parametrize("make", MAKERS)
def test_a_market_that_is_always_there_costs_spot_alone(make: Callable[[], SpotPolicy]) -> None:
    """One start, its changeover, the work."""
    outcome = run_deadline_job(SMALL, make(), [True] * 36)
    assert (outcome.on_demand_work, outcome.starts) == (0, 1)
    assert outcome.cost == pytest.approx((SMALL.work + SMALL.changeover) / SMALL.slot)


def test_uniform_progress_leaves_on_demand_only_for_spot() -> None:
    """Ahead of the line without spot it stays; behind it and idle it goes on demand; ahead and idle it waits."""
    ahead = DeadlineState(time_left=90, work_left=50, held=HeldMachine.ON_DEMAND, pending=0, spot=False)
    assert UniformProgress().hold(SMALL, ahead) is HeldMachine.ON_DEMAND
    assert UniformProgress().hold(SMALL, DeadlineState(90, 50, HeldMachine.ON_DEMAND, 0, True)) is HeldMachine.SPOT
    assert UniformProgress().hold(SMALL, DeadlineState(90, 70, HeldMachine.ON_DEMAND, 0, True)) is HeldMachine.ON_DEMAND
    assert UniformProgress().hold(SMALL, DeadlineState(90, 70, HeldMachine.NOTHING, 0, False)) is HeldMachine.ON_DEMAND
    assert UniformProgress().hold(SMALL, DeadlineState(90, 50, HeldMachine.NOTHING, 0, False)) is HeldMachine.NOTHING


def test_belief_finds_the_market_that_the_trace_is_of() -> None:
    """After 200 slots of a market, it outweighs two others ten to one."""
    traces = [a_trace(1, 3000, 0.02), a_trace(2, 3000, 0.1), a_trace(3, 3000, 0.4)]
    markets = fit_spot_markets(traces)
    for index, trace in enumerate(traces):
        belief = MarketBelief(markets)
        for available in trace[:200]:
            belief.see(available)
        assert belief.weights[index] > 0.9
    for market in markets:
        assert market.transitions().sum(axis=1) == pytest.approx(1.0)


def test_a_watched_market_is_known_when_the_job_comes() -> None:
    """Two hundred slots of a market that never has a machine: the job does not wait for one."""
    told, fresh = PLAN.policy(), PLAN.policy()
    told.watch([False] * 200)
    none = [False] * 36
    assert run_deadline_job(SMALL, told, none).cost <= run_deadline_job(SMALL, fresh, none).cost


def test_our_plan_saves_on_markets_like_those_it_was_fitted_on() -> None:
    """Over 200 traces of the same law, the mean cost is below that of Uniform Progress."""
    traces = [a_trace(seed)[:36] for seed in range(100, 300)]
    ours = sum(run_deadline_job(SMALL, PLAN.policy(), trace).cost for trace in traces)
    uniform = sum(run_deadline_job(SMALL, UniformProgress(), trace).cost for trace in traces)
    assert ours < uniform


def test_uniform_progress_reaches_the_published_hours(reference_data: Path) -> None:
    """22.9 h on spot and 25.1 on demand, each within 1 h; greedy gets less spot; nobody is late."""
    begun = starts(judged(reference_data), 60)
    uniform, greedy = total(begun, lambda _: UniformProgress()), total(begun, lambda _: GreedySpotPolicy())
    assert uniform.spot_h == pytest.approx(22.9, abs=1.0)
    assert uniform.on_demand_h == pytest.approx(25.1, abs=1.0)
    assert greedy.spot_h < uniform.spot_h - 3
    assert (uniform.late, greedy.late) == (0, 0)


@pytest.mark.slow
def test_ours_is_cheaper_than_uniform_progress_on_recorded_markets(reference_data: Path) -> None:
    """Fitted on other traces, never late; the optimum lies below both."""
    begun = starts(judged(reference_data), 12)
    plans = [plan_slack(JOB, fit_spot_markets(others)) for others in fitted(reference_data)[::4]]
    first = set(judged(reference_data)[:4])
    ours = total(begun, lambda start: plans[start.zones[0] not in first].policy())
    uniform = total(begun, lambda _: UniformProgress())
    optimum = totalled(replay_optimum(JOB, begun))
    assert ours.late == 0
    assert optimum.cost < ours.cost < uniform.cost
