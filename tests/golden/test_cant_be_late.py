"""Frontier-CS `cant_be_late`: recorded scores come out again, and the scheduler's plan beats Uniform Progress."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.spot_laws import LawPolicy, better_regimes, plan_for_law, spell_law
from benchmarks.spot_runs import fitted_elsewhere
from optimizer.planning.deadline_job import GreedySpotPolicy, SpotPolicy, UniformProgress
from optimizer.planning.slack_policy import ONE_ZONE, ONE_ZONE_TURNS, SlackPlans
from simulator.workloads.spot_markets import (
    SPOT_USD,
    TICKS_PER_H,
    ScheduledSlack,
    cheapest_bills,
    judge,
    recorded,
    score,
    window_job,
    windows,
)

_TIGHT_LARGE = "high_availability_tight_deadline_large_overhead"
_LOOSE_SMALL = "high_availability_loose_deadline_small_overhead"


@pytest.mark.parametrize("variant", [_TIGHT_LARGE, _LOOSE_SMALL])
@pytest.mark.parametrize(("policy", "make"), [("greedy", GreedySpotPolicy), ("uniform_progress", UniformProgress)])
def test_published_policies_score_as_recorded(
    reference_data: Path, variant: str, policy: str, make: type[SpotPolicy]
) -> None:
    """Over all 120 windows, to the second digit that is recorded, and never late."""
    found = judge(window_job(variant), windows(reference_data), make)
    assert found.score == pytest.approx(recorded(reference_data)[variant, policy], abs=0.006)
    assert found.late == 0


@pytest.mark.slow
def test_the_optimum_scores_as_recorded(reference_data: Path) -> None:
    job = window_job(_TIGHT_LARGE)
    found = score(cheapest_bills(job, windows(reference_data)))
    assert found == pytest.approx(recorded(reference_data)[_TIGHT_LARGE, "exact_optimum"], abs=0.006)


@pytest.mark.slow
def test_the_schedulers_plan_is_never_late_and_between_uniform_progress_and_the_optimum(reference_data: Path) -> None:
    """On every twentieth window; no window costs less than its optimum."""
    job, plans, some = window_job(_TIGHT_LARGE), SlackPlans(), windows(reference_data)[::20]
    ours, line = judge(job, some, lambda: ScheduledSlack(plans)), judge(job, some, UniformProgress)
    assert ours.late == 0
    assert ours.score > line.score
    for cost, least in zip(ours.costs, cheapest_bills(job, some), strict=True):
        assert cost >= least - 1e-9


def test_the_best_plan_for_a_zones_own_law_is_never_late_and_below_no_optimum(reference_data: Path) -> None:
    """On windows of one zone, told its law: better than Uniform Progress, and no window below its optimum."""
    job, every = window_job(_TIGHT_LARGE), windows(reference_data)
    some = [window for window in every if window.zone == every[0].zone][::6]
    law = spell_law(window.available for window in every if window.zone == every[0].zone)
    plan = plan_for_law(job, law, SPOT_USD / TICKS_PER_H)
    found, line = judge(job, some, lambda: LawPolicy(plan)), judge(job, some, UniformProgress)
    assert found.late == 0
    assert found.score > line.score
    for cost, least in zip(found.costs, cheapest_bills(job, some), strict=True):
        assert cost >= least - 1e-9


def test_what_is_believed_of_one_zone_is_what_other_dates_teach(reference_data: Path) -> None:
    """Another step of the fit leaves it as it is, and it tells those dates better than one law for all of them."""
    traces, change, turns = fitted_elsewhere(reference_data), np.array(ONE_ZONE), np.array(ONE_ZONE_TURNS)
    better, turned, likely = better_regimes(change, turns, traces)
    assert better == pytest.approx(change, abs=0.02)
    assert turned == pytest.approx(turns, abs=1e-3)
    alone, _, _ = better_regimes(change.mean(axis=0, keepdims=True), np.ones((1, 1)), traces)
    _, _, of_one = better_regimes(alone, np.ones((1, 1)), traces)
    assert likely > of_one + 100
