"""A sweep in a process of its own: what is left when it is killed."""

import json
import os
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
    *("--seeds", "0-5", "--set", "trace_jobs=1500", "--set", "bounds=none", "-j", "2", "-o", "json"),
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(out: Path) -> list[str]:
    """The sweep, into this folder."""
    main = "from walras.cli.main import main; main()"
    return [sys.executable, "-c", main, "simulate", "sweep", *GRID, "--out", str(out)]


def swept(out: Path) -> int:
    """Run it to its end; how many cells it had to run."""
    done = subprocess.run(command(out), env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return int(json.loads(done.stdout)["ran"])


def test_a_sweep_killed_in_the_middle_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL to it and its workers after two runs: those are kept, the others are run, the figures are the same."""
    out = tmp_path / "killed"
    process = subprocess.Popen(
        command(out), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
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
