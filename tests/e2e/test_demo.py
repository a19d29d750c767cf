"""The main job as a user starts it: the whole demo, and the demo interrupted."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

WALRAS = Path(sys.executable).parent / "walras"
PARTS = (
    "processor headroom before", "jobs (all accelerators are emulated)", "fairness: Jain's index",
    "prices of pools over time", "pace reached / asked", "is FAILED: USER:EXIT_CODE", "preempted, moved, resumed",
    "processor headroom during", "median error", "promises",
)  # fmt: skip


def left_over(folder: Path) -> list[str]:
    """Command lines of processes that still have something to do with the folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if str(folder) in f"{process.info['cmdline']} {process.info['cwd']}":
            found.append(str(process.info["cmdline"]))
    return found


@pytest.mark.alone  # its ranks keep a pace
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    """`walras demo` exits 0, prints every part of its report, leaves a picture, and leaves no process."""
    folder = tmp_path / "run"
    done = subprocess.run(
        [WALRAS, "demo", "--data", folder, "--no-live"], capture_output=True, text=True, timeout=400, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert [part for part in PARTS if part not in done.stdout] == []
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "measured.json").exists()
    assert left_over(folder) == []


def _heed_control_c() -> None:
    """Whoever runs the tests in the background may have been told to ignore it, and their children with them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C while jobs run: exit code 130, and server, agents, supervisors and ranks are gone."""
    folder, output = tmp_path / "run", tmp_path / "output.txt"
    with output.open("wb") as file:
        demo = subprocess.Popen(
            [WALRAS, "demo", "--data", folder, "--no-live"], stdout=file, stderr=subprocess.STDOUT, cwd=tmp_path,
            start_new_session=True, preexec_fn=_heed_control_c,
        )  # fmt: skip
    try:

        def runs_jobs() -> bool:
            assert demo.poll() is None, output.read_text()
            return re.search(r"job \d+ \S+: RUNNING", output.read_text()) is not None

        wait_for(runs_jobs, 90, "a job runs", output.read_text)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(300) == 130, output.read_text()
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
            demo.wait(300)
    assert left_over(folder) == []
