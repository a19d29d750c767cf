"""Jobs with deadlines on spot machines of one zone or several: never late, the optimum under all others."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import zone_runs
from benchmarks.spot_runs import JOB, fitted, judged, starts, total, totalled
from benchmarks.zone_runs import REGIONS, across, alone, begun, region
from optimizer.planning.deadline_job import (
    DeadlineJob,
    DeadlineState,
    GreedySpotPolicy,
    HeldMachine,
    SpotPolicy,
    UniformProgress,
    run_deadline_job,
)
from optimizer.planning.slack_policy import AGE_CLASSES, MarketBelief, SpotMarket, fit_spot_markets, plan_slack
from optimizer.planning.spot_plan import (
    ZoneChoice,
    merge_zones,
    replay_optimum,
    run_in_zones,
    run_omniscient,
    zones_optimum,
)

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


ON, OFF = [True] * 36, [False] * 36


TRACES = [a_trace(1, 3000, 0.03), a_trace(2, 3000, 0.1), a_trace(3, 3000, 0.4)]
MARKETS = fit_spot_markets(TRACES)
PAIRS = [merge_zones([TRACES[0], TRACES[1]]), merge_zones([TRACES[1], TRACES[2]])]
OVER_ZONES = plan_slack(SMALL, fit_spot_markets([pair.any for pair in PAIRS]), [pair.taken for pair in PAIRS])

slots = st.lists(st.booleans(), min_size=36, max_size=36)


@given(st.lists(slots, min_size=1, max_size=3))
def test_no_policy_is_late_over_zones(zones: list[list[bool]]) -> None:
    """Whatever the zones do; each unit of work is done once; on-demand alone is never exceeded by more than changes."""
    for policy in (UniformProgress(), OVER_ZONES.policy()):
        outcome = run_in_zones(SMALL, policy, ZoneChoice(MARKETS, len(zones)), zones)
        assert outcome.late == 0
        assert outcome.spot_work + outcome.on_demand_work == SMALL.work
        assert outcome.cost <= (SMALL.work + outcome.starts * SMALL.changeover) / SMALL.slot * SMALL.on_demand_price


@given(slots)
def test_one_zone_is_the_single_market(available: list[bool]) -> None:
    """The same run to the last figure."""
    assert run_in_zones(SMALL, UniformProgress(), ZoneChoice(MARKETS, 1), [available]) == run_deadline_job(
        SMALL, UniformProgress(), available
    )


def test_going_to_another_zone_is_a_start() -> None:
    """One zone for 3 h, then another: two starts, two changeovers, all the work on spot."""
    zones = [[*ON[:18], *OFF[18:]], [*OFF[:18], *ON[18:]]]
    outcome = run_in_zones(SMALL, UniformProgress(), ZoneChoice(MARKETS, 2), zones)
    assert (outcome.starts, outcome.on_demand_work) == (2, 0)
    assert outcome.cost == pytest.approx((SMALL.work + 2 * SMALL.changeover) / SMALL.slot)


def test_the_zone_that_was_steadier_is_taken() -> None:
    """After 200 slots of watching, a zone that flaps is left for one that seldom changes, in either order."""
    for order in (0, 1):
        choice = ZoneChoice(MARKETS, 2)
        for steady, flaps in zip(TRACES[0][:200], TRACES[2][:200], strict=True):
            choice.see([steady, flaps][:: 1 if order == 0 else -1])
        choice.see([True, True])
        assert choice.best([True, True]) == order
        assert choice.best([order == 1, order == 0]) == 1 - order  # the other has none


def test_zones_laid_over_each_other_are_one_market() -> None:
    """There is a machine where any zone has one; one is lost in three slots in which another could be had."""
    found = merge_zones([[True, True, False, False, False], [False, True, True, True, False]])
    assert found.any == (True, True, True, True, False)
    assert found.taken == pytest.approx(1.5 / 4)
    assert merge_zones([[True, False]]).taken == 0.0


def test_what_remains_of_a_spell_of_constant_hazard_is_its_inverse() -> None:
    """A change in one slot of ten: ten slots, whatever the age."""
    assert SpotMarket(np.full((2, AGE_CLASSES), 0.1)).remaining() == pytest.approx(10.0)


@pytest.mark.parametrize("seed", range(8))
def test_the_program_over_zones_is_below_every_zone_and_every_run(seed: int) -> None:
    """A zone more never costs more, the exact optimum is the program's but for whole slots, and no run is below."""
    zones = [a_trace(seed)[:36], a_trace(seed + 10)[:36]]
    found = zones_optimum(SMALL, zones)
    assert found.at_least <= found.usd + 1e-6
    for zone in zones:
        single = zones_optimum(SMALL, [zone])
        assert found.usd <= single.usd + 1e-6
    exact = run_omniscient(SMALL, zones)
    assert (exact.late, exact.spot_work + exact.on_demand_work) == (0, SMALL.work)
    assert exact.cost - 1e-6 <= found.usd <= exact.cost + SMALL.on_demand_price
    outcome = run_in_zones(SMALL, OVER_ZONES.policy(), ZoneChoice(MARKETS, 2), zones)
    assert outcome.cost >= exact.cost - 1e-9
    assert outcome.cost >= found.at_least - SMALL.on_demand_price


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REGIONS))
def test_ours_over_zones_is_cheaper_on_recorded_markets(reference_data: Path, name: str) -> None:
    """Fitted on the year before, never late: cheaper than Uniform Progress in one zone, and over the zones."""
    ours = zone_runs.fitted(reference_data)
    ahead = begun(region(reference_data, name), 30)
    found = across(ahead, ours.two, ours.markets)
    uniform = across(ahead, UniformProgress, ours.markets)
    single = alone(ahead, UniformProgress)
    assert found.late == 0
    assert found.cost < uniform.cost
    assert found.cost < 0.95 * single.cost
    assert JOB.slots == len(ahead[0].ahead[0])
