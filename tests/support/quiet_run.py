"""A job by hand from beginning to end, as on a laptop: what it has to come to when it is stopped and resumed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.attempts import ROOT
from tests.support.newcomer import unused_port

RESUME_JOB = Path(__file__).parent / "resume_job.py"


def run_alone(folder: Path, ranks: int) -> str:
    """What `RESUME_JOB` comes to, with no WALRAS variable at all."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if ranks > 1:
        env |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
    command = [sys.executable, str(RESUME_JOB), str(folder / "result")]
    running = [
        subprocess.Popen(command, env=env | ({"RANK": str(rank)} if ranks > 1 else {}), cwd=folder)
        for rank in range(ranks)
    ]
    try:
        assert [process.wait(150.0) for process in running] == [0] * ranks
    finally:
        for process in running:
            process.kill()
            process.wait()
    return (folder / "result").read_text()
