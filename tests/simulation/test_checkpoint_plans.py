"""The scheduler in the simulator plans when jobs save: near the optimum of the law of their machines."""

from dataclasses import replace

from benchmarks.checkpoint_runs import CheckpointScene, run_checkpoints

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
