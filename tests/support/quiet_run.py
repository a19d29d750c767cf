"""A job by hand from beginning to end, as on a laptop: what it has to come to when it is stopped and resumed."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.attempts import ROOT
from tests.support.newcomer import unused_port

RESUME_JOB = Path(__file__).parent / "resume_job.py"


def run_alone(folder: Path, ranks: int) -> str:
    """What `RESUME_JOB` comes to, with no WALRAS variable at all."""
    run_quietly([sys.executable, str(RESUME_JOB), str(folder / "result")], folder, ranks)
    return (folder / "result").read_text()


def run_quietly(
    command: Sequence[str], folder: Path, ranks: int = 1, *, timeout_s: float = 150.0, **settings: str
) -> None:
    """Runs a script to its end in the folder, with these variables besides."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    base = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **settings}
    gang = (
        {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())} if ranks > 1 else {}
    )
    running = [
        subprocess.Popen(command, env=base | gang | ({"RANK": str(rank)} if ranks > 1 else {}), cwd=folder)
        for rank in range(ranks)
    ]
    try:
        assert [process.wait(timeout_s) for process in running] == [0] * ranks
    finally:
        for process in running:
            process.kill()
            process.wait()
