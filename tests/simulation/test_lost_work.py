"""A machine that is taken without notice costs a job no more work than it does between two checkpoints."""

from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks.checkpoint_runs import CheckpointScene, run_checkpoints
from benchmarks.revocation_runs import Weather, losses
from scheduler.world.attempts import AttemptCosts


@pytest.mark.slow
@pytest.mark.parametrize("every_s", [300.0, 900.0])
def test_a_revocation_without_notice_costs_at_most_one_interval_and_half_of_it_in_the_mean(every_s: float) -> None:
    """Machines that live an hour in the mean, jobs that save by themselves; the mean to 5 % of the interval."""
    costs = AttemptCosts(start_s=30.0, warm_up_s=20.0, checkpoint_s=15.0, checkpoint_every_s=every_s, exit_s=1.0)
    lost_s = losses(Weather(jobs=10, work_s=12 * 3600.0, mean_life_s=3600.0, costs=costs))
    assert len(lost_s) > 100
    assert 0.9 * every_s < max(lost_s) <= every_s * (1 + 1e-9)
    assert min(lost_s) >= 0.0
    assert fmean(lost_s) <= 0.55 * every_s


def test_a_job_that_never_saves_loses_all_it_has_done() -> None:
    """What the bound is worth: without checkpoints of its own, more than an interval is lost to some machine."""
    lost_s = losses(Weather(jobs=3, work_s=3600.0, mean_life_s=3600.0, costs=AttemptCosts(start_s=30.0)))
    assert max(lost_s) > 900.0


SCENE = CheckpointScene(jobs=6, work_h=12.0, lifetime="uniform 4h", write_s=60.0, is_stated=True)


def test_lost_and_written_time_is_near_the_optimum() -> None:
    found = run_checkpoints(SCENE, 0)
    assert found.lives >= 15
    # What the first attempts save before anybody knows how long writing takes is in it.
    assert found.excess < 0.12


def test_an_interval_that_is_stated_is_kept() -> None:
    """Every 300 s: more than half as much again is lost and written as need be, so the rule above can fail."""
    found = run_checkpoints(replace(SCENE, every_s=300.0), 0)
    assert found.excess > 0.5
