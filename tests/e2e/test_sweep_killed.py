"""A sweep in a process of its own: what it shows while it runs, and what is left when it is killed."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.support.sweep_folders import done_cells, swept_figures

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUNS, PATIENCE_S = 6, 600.0
GRID = (
    *("--workload", "generate:poisson", "--cluster", "philly-512", "--policy", "fifo", "--rate", "240"),
    *("--seeds", "0-5", "--trace-jobs", "1500", "--bounds", "none", "-j", "2", "-o", "json"),
)


def command(out: Path) -> list[str]:
    """The sweep, into this folder."""
    main = "from walras.cli.main import main; main()"
    return [sys.executable, "-c", main, "simulate", "sweep", *GRID, "--out", str(out)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}


def swept(out: Path) -> int:
    """Run it to its end; how many cells it had to run."""
    done = subprocess.run(
        command(out), env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return int(json.loads(done.stdout)["ran"])


def test_a_sweep_killed_in_the_middle_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL to it and its workers after two runs: those are kept, the others are run, the figures are the same."""
    out = tmp_path / "killed"
    process = subprocess.Popen(
        command(out), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until = monotonic() + PATIENCE_S
        while len(done_cells(out)) < 2:
            assert process.poll() is None, "it ended before it could be killed"
            assert monotonic() < until
            sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(300)
    kept = len(done_cells(out))
    assert not (out / "sweep.csv").exists()
    assert swept(out) == RUNS - kept
    assert swept(tmp_path / "whole") == RUNS
    assert swept_figures(out) == swept_figures(tmp_path / "whole")


def test_a_terminal_is_shown_how_far_it_is(tmp_path: Path) -> None:
    """A bar that counts the runs, on standard error; standard output stays what was asked for."""
    reader, writer = pty.openpty()
    shown = b""
    with subprocess.Popen(
        command(tmp_path / "out"), env=environment(), stdout=subprocess.PIPE, stderr=writer
    ) as process:
        os.close(writer)
        while True:
            try:
                part = os.read(reader, 65536)
            except OSError:  # the other end is closed: Linux says so with an error
                break
            if not part:
                break
            shown += part
        assert process.stdout is not None
        told = json.loads(process.stdout.read())
    os.close(reader)
    assert told["ran"] == RUNS
    assert "runs" in shown.decode()
    assert f"{RUNS} of {RUNS} runs" in shown.decode()
