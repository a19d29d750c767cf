"""A job whose spot machine may be in any of several zones: never late, which zone it takes, what the optimum is."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.spot_runs import JOB
from benchmarks.zone_runs import REGIONS, across, alone, begun, fitted, region
from optimizer.planning.deadline_job import DeadlineJob, UniformProgress, run_deadline_job
from optimizer.planning.slack_policy import AGE_CLASSES, SpotMarket, fit_spot_markets, plan_slack
from optimizer.planning.spot_replay import ZoneChoice, merge_zones, run_in_zones, run_omniscient, zones_optimum

#: 4 h of work in 6 h, slots of 10 minutes.
SMALL = DeadlineJob(slot=5, work=120, deadline=180, changeover=6, on_demand_price=3.0)
ON, OFF = [True] * 36, [False] * 36


def a_trace(seed: int, slots: int = 400, change: float = 0.15) -> list[bool]:
    random = Random(seed)
    found = [random.random() < 0.5]
    for _ in range(slots - 1):
        found.append(found[-1] != (random.random() < change))
    return found


TRACES = [a_trace(1, 3000, 0.03), a_trace(2, 3000, 0.1), a_trace(3, 3000, 0.4)]
MARKETS = fit_spot_markets(TRACES)
PAIRS = [merge_zones([TRACES[0], TRACES[1]]), merge_zones([TRACES[1], TRACES[2]])]
PLAN = plan_slack(SMALL, fit_spot_markets([pair.any for pair in PAIRS]), [pair.taken for pair in PAIRS])

slots = st.lists(st.booleans(), min_size=36, max_size=36)


@given(st.lists(slots, min_size=1, max_size=3))
def test_no_policy_is_late_over_zones(zones: list[list[bool]]) -> None:
    """Whatever the zones do; each unit of work is done once; on-demand alone is never exceeded by more than changes."""
    for policy in (UniformProgress(), PLAN.policy()):
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
    assert found is not None
    assert found.at_least <= found.usd + 1e-6
    for zone in zones:
        single = zones_optimum(SMALL, [zone])
        assert single is not None
        assert found.usd <= single.usd + 1e-6
    exact = run_omniscient(SMALL, zones)
    assert (exact.late, exact.spot_work + exact.on_demand_work) == (0, SMALL.work)
    assert exact.cost - 1e-6 <= found.usd <= exact.cost + SMALL.on_demand_price
    outcome = run_in_zones(SMALL, PLAN.policy(), ZoneChoice(MARKETS, 2), zones)
    assert outcome.cost >= exact.cost - 1e-9
    assert outcome.cost >= found.at_least - SMALL.on_demand_price


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REGIONS))
def test_ours_over_zones_is_cheaper_on_recorded_markets(reference_data: Path, name: str) -> None:
    """Fitted on the year before, never late: cheaper than Uniform Progress in one zone, and over the zones."""
    ours = fitted(reference_data)
    ahead = begun(region(reference_data, name), 30)
    found = across(ahead, ours.two, ours.markets)
    uniform = across(ahead, UniformProgress, ours.markets)
    single = alone(ahead, UniformProgress)
    assert found.late == 0
    assert found.cost < uniform.cost
    assert found.cost < 0.95 * single.cost
    assert JOB.slots == len(ahead[0].ahead[0])
