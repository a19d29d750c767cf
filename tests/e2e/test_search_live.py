"""A real job that moves between batches and numbers of workers while it trains."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import walras
from walras.configuration_search import SearchError, SearchStep, Trial, TrialConfiguration
from workers import processes
from workers.trials.configuration_trials import Extent, TrialMove, search_job
from workers.trials.moving_job import MovingJob

pytestmark = pytest.mark.slow

SCRIPTS = Path(walras.__file__).parents[1] / "configs/jobs/training"
_PATH = (TrialConfiguration(1, 32), TrialConfiguration(2, 128), TrialConfiguration(2, 32), TrialConfiguration(1, 128))


def job(folder: Path, *arguments: str, script: str = "digits_cnn.py") -> MovingJob:
    argv = (sys.executable, script, *arguments)
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return MovingJob("digits", "digits", argv, {}, str(SCRIPTS), folder, environ)


def along_the_path(trials: Sequence[Trial]) -> SearchStep:
    return SearchStep(_PATH[min(len(trials), 3)], len(trials) >= 3, "as the test says")


def test_a_job_that_is_moved_goes_on_learning(tmp_path: Path) -> None:
    """Through other batches and other numbers of workers the loss goes on falling, no step is lost, the job ends.

    Another batch starts no process, and neither does coming back to the smaller gang, which waited.
    """
    told: list[TrialMove] = []
    found = search_job(
        job(tmp_path, "--until-loss", "0.3", "--rate", "0.002"),
        along_the_path,
        lambda done, ahead: None,
        Extent(windows=1, timeout_s=120.0, to_the_end=True, finish_timeout_s=120.0),
        lambda ahead, moved: told.append(moved),
    )
    assert found.finished
    assert [moved.configuration for moved in told] == list(_PATH)
    assert [moved.configuration for moved in found.moves] == list(_PATH)
    assert all(moved.steps > 0 for moved in told)
    assert sum(moved.steps for moved in found.moves) == found.steps
    losses = [moved.loss for moved in told if moved.loss is not None]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True), "each attempt goes on where the one before it ended"
    assert losses[-1] < 0.35 < losses[0]
    assert sorted(path.name for path in tmp_path.glob("attempt-*-ranks")) == ["attempt-1-ranks", "attempt-2-ranks"]
    assert found.worker_s < 2.0 * sum(moved.wall_s for moved in found.moves)
    last_words = (tmp_path / "attempt-1-ranks/rank-0.log").read_text()
    assert f"step {found.steps}:" in last_words, "the script counts the steps of all attempts"
    assert "torn" not in last_words


def test_steps_of_the_job_end_it_wherever_it_is(tmp_path: Path) -> None:
    """A limit of steps counts those of every attempt; a search leaves a checkpoint and no process."""
    others = set(processes.descendants(os.getpid()))  # of whatever ran here before
    found = search_job(
        job(tmp_path, "--until-loss", "0"),
        along_the_path,
        lambda done, ahead: done + 40 if ahead.settled else None,
        Extent(windows=1, timeout_s=120.0, to_the_end=True, finish_timeout_s=120.0),
        lambda ahead, moved: None,
    )
    assert found.finished
    assert found.moves[-1].steps == 40
    assert found.checkpoint is not None
    assert found.checkpoint.step == found.steps
    assert set(processes.descendants(os.getpid())) <= others


_PLAIN = """
import os, pathlib, sys, time
from walras.training import Checkpoint, Loop
steps, place = int(sys.argv[1]), pathlib.Path(sys.argv[2])
ranks = int(os.environ["WORLD_SIZE"])
if ranks == 2 and sys.argv[3:] == ["slow start"]:
    (place / "started").touch()
    time.sleep(600)
loop = Loop(Checkpoint(), seed=0)
for epoch in loop.epochs(1):
    for number in loop.steps(range(steps)):
        # Alone it takes longer than any start of ranks, or until others have started; two together hurry.
        time.sleep(0.005 if ranks == 1 else 0.0)
        while sys.argv[3:] and number == steps - 1 and not (place / "started").exists():
            time.sleep(0.005)
        loop.report(loss=steps - number)
print("step", loop.step)
"""


def test_a_script_that_says_nothing_of_changes_is_started_again(tmp_path: Path) -> None:
    """The next ranks start while the last ones train on, and go on where those saved; each move is another attempt."""
    script = tmp_path / "plain.py"
    script.write_text(_PLAIN)
    path = (TrialConfiguration(1, 32), TrialConfiguration(1, 64), TrialConfiguration(2, 64))
    found = search_job(
        job(tmp_path / "runs", "6000", str(tmp_path), script=str(script)),
        lambda trials: SearchStep(path[min(len(trials), 2)], len(trials) >= 2, "as the test says"),
        lambda done, ahead: None,
        Extent(windows=1, timeout_s=60.0, to_the_end=True, finish_timeout_s=60.0),
        lambda ahead, moved: None,
    )
    assert found.finished
    assert [moved.configuration for moved in found.moves] == list(path)
    assert sum(moved.steps for moved in found.moves) == found.steps == 6000
    assert all(moved.standby_s > 0.0 for moved in found.moves[1:])
    assert len(list((tmp_path / "runs").glob("attempt-*-ranks"))) == 3


def test_a_job_that_ends_while_the_next_ranks_start_is_over(tmp_path: Path) -> None:
    """Nothing waits for ranks that nobody needs any more, and none is left."""
    script = tmp_path / "plain.py"
    script.write_text(_PLAIN)
    others = set(processes.descendants(os.getpid()))
    with job(tmp_path / "runs", "400", str(tmp_path), "slow start", script=str(script)).begin() as moves:
        assert not moves.train(TrialConfiguration(1, 32), lambda done: None, lambda progress: progress.steps > 20, 60.0)
        assert moves.train(TrialConfiguration(2, 32), lambda done: None, lambda progress: False, 60.0)
        assert sum(part.steps for part in moves.parts) == 400
    assert set(processes.descendants(os.getpid())) <= others


def test_a_script_that_fails_or_saves_nothing_is_told(tmp_path: Path) -> None:
    """What went wrong is named, with the script's last words."""
    extent = Extent(windows=1, timeout_s=60.0)
    for words, script, arguments in (
        ("option", "digits_cnn.py", ("--no-such-option",)),
        ("file", "no_such_script.py", ()),
    ):
        with pytest.raises(SearchError, match=r"rank 0 failed at step 0 \(exit code 2\)") as caught:
            search_job(
                job(tmp_path / words, *arguments, script=script),
                along_the_path,
                lambda done, ahead: None,
                extent,
                lambda ahead, moved: None,
            )
        assert caught.value.fix
