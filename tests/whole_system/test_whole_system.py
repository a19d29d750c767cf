"""The whole system under faults, in virtual time: every seed keeps every promise (`make fuzz` runs more of them)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command of `make fuzz`, in a process of its own: a simulation replaces what the system stands on."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.whole_system", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def keep_every_promise(*chosen: str) -> None:
    """What is run is stated, so that it can be run again; a failure prints the command that plays it."""
    ran = run(*chosen)
    assert ran.returncode == 0, (
        f"python -m tests.whole_system {' '.join(chosen)}\n{ran.stdout[-6000:]}{ran.stderr[-2000:]}"
    )


def test_six_seeds_keep_every_promise() -> None:
    """The same ones in every run."""
    keep_every_promise("--seeds", "6", "--first", "1")


def first_of_commit() -> int:
    """The first of the seeds that the commit draws, so that every commit tries others; 1001 where there is none."""
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return 1001 + int(told.stdout[:7] or "0", 16)


@pytest.mark.slow
def test_seeds_that_the_commit_draws_keep_every_promise() -> None:
    """150 of them (`make soak` runs thousands)."""
    keep_every_promise("--seeds", "150", "--first", str(first_of_commit()))


@pytest.mark.slow
def test_pairs_of_features_that_the_commit_draws_keep_every_promise() -> None:
    """40 of them on a calm cluster (`make soak` runs every pair); a failure prints the two actors."""
    keep_every_promise("--pairs", "--seeds", "40", "--first", str(first_of_commit()))


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """Seeds that have passed are not run again, in however many processes."""
    done = str(tmp_path / "done")
    assert "1 seeds, 0 failed" in run("--seeds", "1", "--first", "12", "--jobs", "1", "--done", done).stdout
    ran = run("--seeds", "3", "--first", "11", "--jobs", "2", "--done", done)
    assert ran.returncode == 0, ran.stdout
    assert "2 seeds, 0 failed" in ran.stdout
    assert "0 seeds, 0 failed" in ran.stdout
    assert sorted(map(int, (tmp_path / "done").read_text().split())) == [11, 12, 13]


def test_a_seed_is_the_same_every_time() -> None:
    """Or no failure could be replayed."""
    first, second = run("--seed", "8"), run("--seed", "8")
    assert first.stdout == second.stdout
    assert len(first.stdout.splitlines()) > 40
