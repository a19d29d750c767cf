"""The job that is stopped and resumed, run by hand from beginning to end: what it has to come to."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.attempts import ROOT

RESUME_JOB = Path(__file__).parent / "resume_job.py"


def run_alone(folder: Path, ranks: int) -> str:
    """The same script as on a laptop: no WALRAS variable at all."""
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    gang = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())} if ranks > 1 else {}
    running = [
        subprocess.Popen(
            [sys.executable, str(RESUME_JOB), str(folder / "result")],
            env=base | gang | ({"RANK": str(rank)} if ranks > 1 else {}),
            cwd=folder,
        )
        for rank in range(ranks)
    ]
    try:
        assert [process.wait(60) for process in running] == [0] * ranks
    finally:
        for process in running:
            process.kill()
            process.wait()
    return (folder / "result").read_text()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
