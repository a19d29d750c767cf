"""Two real jobs: one waits for its data, one does not; `walras explain` and `walras show` tell them apart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_server import FIFO, WALRAS, A, RealServer, wait_for

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, time
from walras.training import Loop

class Slow:
    def __len__(self): return 5000
    def __iter__(self):
        for number in range(5000):
            if {load}:
                time.sleep({load})
            yield number

loop = Loop()
for _ in loop.epochs():
    for number in loop.steps(Slow()):
        time.sleep({work})
"""


def test_a_job_with_a_slow_loader_is_told_that_it_waits_and_one_with_a_fast_one_is_not(tmp_path: Path) -> None:
    machine = {**A, "shape": "ax2", "accelerators": 2}
    server = RealServer(tmp_path, [machine], FIFO)
    try:
        server.start()
        server.start_agent("n1", machine)
        jobs = {}
        for name, load, work in (("slow", 0.03, 0.005), ("fast", 0.0, 0.035)):
            (tmp_path / f"{name}.py").write_text(SCRIPT.format(load=load, work=work))
            run = [sys.executable, str(tmp_path / f"{name}.py")]
            jobs[name] = server.submit(name=name, profile=name, run=run, resources={"accelerators": "a:1"})

        def part(name: str) -> float | None:
            found: float | None = server.job(jobs[name])["last_values"].get("data_wait")
            return found

        wait_for(lambda: (part("slow") or 0.0) > 0.5, 60, "the wait of the slow one", lambda: part("slow"))
        assert "of its step it waits for its data" in said(server, "explain", jobs["slow"])
        assert "waits for data" in said(server, "show", jobs["slow"])
        # A mean over its last steps: one that a busy machine held up is among them for a while.
        wait_for(lambda: (part("fast") or 1.0) < 0.15, 60, "the wait of the fast one", lambda: part("fast"))
        wait_for(lambda: "waits for its data" not in said(server, "explain", jobs["fast"]), 60, "nothing is told of it")
    finally:
        server.close()


def said(server: RealServer, command: str, job_id: int) -> str:
    env = {**os.environ, "WALRAS_SERVER": server.url, "WALRAS_TOKEN_FILE": str(server.data / "admin.token")}
    done = subprocess.run([WALRAS, command, str(job_id)], env=env, capture_output=True, text=True, check=True)
    return done.stdout
