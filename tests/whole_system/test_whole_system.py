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


@pytest.mark.timeout(900)
def test_fifty_seeds_keep_every_promise() -> None:
    """A failure prints the command that plays it again."""
    ran = run("--seeds", "50", "--first", "1")
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_hundred_seeds_keep_every_promise() -> None:
    """Others than the fifty."""
    ran = run("--seeds", "500", "--first", "1001")
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """Seeds that have passed are not run again, in however many processes."""
    done = str(tmp_path / "done")
    assert "1 seeds, 0 failed" in run("--seeds", "1", "--first", "12", "--jobs", "1", "--done", done).stdout
    ran = run("--seeds", "3", "--first", "11", "--jobs", "2", "--done", done)
    assert ran.returncode == 0, ran.stdout
    assert "2 seeds, 0 failed" in ran.stdout
    assert "0 seeds, 0 failed" in ran.stdout
    assert sorted(map(int, (tmp_path / "done").read_text().split())) == [11, 12, 13]


@pytest.mark.timeout(300)
def test_a_seed_is_the_same_every_time() -> None:
    """Or no failure could be replayed."""
    first, second = run("--seed", "8"), run("--seed", "8")
    assert first.stdout == second.stdout
    assert len(first.stdout.splitlines()) > 40
