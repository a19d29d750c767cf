"""A real job that moves between batches and numbers of workers while it trains."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import walras
from walras.searching import Configuration, Next, SearchError, Trial
from workers import processes
from workers.search_main import Extent, Moved, search_job
from workers.trial_runs import MovingJob

pytestmark = pytest.mark.slow

SCRIPTS = Path(walras.__file__).parents[1] / "configs/jobs/training"
_PATH = (Configuration(1, 32), Configuration(2, 128), Configuration(2, 32), Configuration(1, 128))


def job(folder: Path, *arguments: str, script: str = "digits_cnn.py") -> MovingJob:
    argv = (sys.executable, script, *arguments)
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return MovingJob("digits", "digits", argv, {}, str(SCRIPTS), folder, environ)


def along_the_path(trials: Sequence[Trial]) -> Next:
    return Next(_PATH[min(len(trials), 3)], len(trials) >= 3, "as the test says")


def test_a_job_that_is_moved_goes_on_learning(tmp_path: Path) -> None:
    """Through other batches and other numbers of workers the loss goes on falling, no step is lost, the job ends."""
    told: list[Moved] = []
    found = search_job(
        job(tmp_path, "--until-loss", "0.3", "--rate", "0.01"),
        along_the_path,
        lambda done, ahead: None,
        Extent(windows=1, timeout_s=120.0, to_the_end=True, finish_timeout_s=120.0),
        lambda ahead, moved: told.append(moved),
    )
    assert found.finished
    assert [moved.configuration for moved in told] == list(_PATH)
    assert all(moved.steps > 0 for moved in told)
    assert sum(moved.steps for moved in told) == found.steps
    losses = [moved.loss for moved in told if moved.loss is not None]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True), "each attempt goes on where the one before it ended"
    assert losses[-1] < 0.35 < losses[0]
    last_words = (tmp_path / "attempt-4-ranks/rank-0.log").read_text()
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
