"""The pilot of an allocation: notices, an agent that dies, and nothing that is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.attempts import ROOT, wait_for
from workers.pilot import parse_seconds_left, seconds_left

#: The pilot with short pauses; the rest is as it is.
_RUN = "import sys, workers.pilot as p; p._TELL_S = 0.2; p._LOOK_EVERY_S = 0.05; sys.exit(p.run_pilot(sys.argv[1:]))"
_END = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1_800_000_040))


@pytest.mark.parametrize(
    ("shown", "left_s"),
    [
        (f"JobId=3 JobState=RUNNING Reason=None EndTime={_END} Deadline=N/A", 40.0),
        (f"JobId=3 JobState=COMPLETING EndTime={_END} Deadline=N/A", 20.0),
        ("JobId=3 JobState=RUNNING EndTime=Unknown Deadline=N/A", 60.0),
        ("JobId=3 JobState=RUNNING EndTime=9999-99-99T99:99:99 Deadline=N/A", 60.0),
        ("JobState=RUNNING EndTime=2999-01-01T00:00:00 ", 120.0),
        ("slurm_load_jobs error: Invalid job id specified", 20.0),
        ("", 20.0),
    ],
)
def test_what_slurm_shows_says_how_long_the_allocation_lasts(shown: str, left_s: float) -> None:
    """Until the limit if it runs; if it is being ended, what Slurm grants; what makes no sense is not believed."""
    assert parse_seconds_left(shown, 60.0, 1_800_000_000.0) == pytest.approx(left_s)


def test_without_slurm_the_stated_notice_counts(tmp_path: Path) -> None:
    """No command, or one that fails."""
    assert seconds_left(45.0, {"SLURM_JOB_ID": "7", "PATH": str(tmp_path)}, 0.0) == 45.0
    assert seconds_left(45.0, {"SLURM_JOB_ID": "../7", "PATH": os.environ["PATH"]}, 0.0) == 45.0


def start_pilot(state: Path, agent: str) -> "subprocess.Popen[bytes]":
    state.mkdir()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _RUN, str(state), "30", "--", "/bin/sh", "-c", agent]
    return subprocess.Popen(command, env=environment)


def test_a_signal_becomes_a_notice_and_the_pilot_ends_once_nothing_runs(tmp_path: Path) -> None:
    """The notice has the seconds left. A detached process keeps the allocation, and is not lost sight of; then agent,
    folder and pilot go."""
    state = tmp_path / "state"
    pilot = start_pilot(state, f"setsid sleep 300 & echo $! >{tmp_path}/job; sleep 300 & echo $! >{tmp_path}/own; "
                               f"cp {state}/../job {state}/started; exec sleep 299")  # fmt: skip
    try:
        wait_for((state / "started").exists, 10, "the agent runs")
        own, job = (psutil.Process(int((tmp_path / name).read_text())) for name in ("own", "job"))
        own.kill()
        pilot.send_signal(signal.SIGTERM)
        wait_for((state / "notice").exists, 10, "the notice")
        assert 0 < float((state / "notice").read_text()) <= 30.0
        time.sleep(0.6)
        assert pilot.poll() is None, "something runs there"
        job.kill()
        assert pilot.wait(10) == 0
        assert not state.exists()
    finally:
        pilot.kill()
        pilot.wait()


def test_an_agent_that_dies_is_started_again_and_nothing_outlives_the_pilot(tmp_path: Path) -> None:
    """Until it says that this does not help; what has left its session and its parent dies with the allocation."""
    state = tmp_path / "state"
    agent = (
        f"echo x >>{tmp_path}/starts; setsid sh -c 'sleep 300 & echo $! >>{tmp_path}/orphans'; "
        f"[ $(wc -l <{tmp_path}/starts) -ge 2 ] && exit 78; kill -9 $$"
    )
    pilot = start_pilot(state, agent)
    try:
        assert pilot.wait(15) == 0
    finally:
        pilot.kill()
        pilot.wait()
    assert (tmp_path / "starts").read_text() == "x\nx\n"
    orphans = [int(line) for line in (tmp_path / "orphans").read_text().split()]
    assert len(orphans) == 2
    assert not any(psutil.pid_exists(pid) for pid in orphans)
