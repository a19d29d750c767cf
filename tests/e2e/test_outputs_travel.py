"""Results of a job reach its user from a machine with which they share no disk: at its end, and while it runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_server import FIFO, WALRAS, A, RealServer, wait_for

pytestmark = pytest.mark.slow

WRITE = """
import os, time
os.makedirs("out/deep", exist_ok=True)
open("out/deep/model.bin", "wb").write(b"w" * 5_000_000)
os.symlink("/etc/passwd", "out/link")
os.mkfifo("out/pipe")
open("result.json", "w").write("{}")
"""
SAVING = """
import time
from pathlib import Path
from walras.training import Checkpoint, Loop
loop = Loop(Checkpoint(every_s=0.5))
for step in loop.steps(range(100000)):
    Path("log.txt").write_text(f"step {step}")
    time.sleep(0.05)
"""


def walras(server: RealServer, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "WALRAS_SERVER": server.url, "WALRAS_TOKEN_FILE": str(server.data / "admin.token")}
    return subprocess.run([WALRAS, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_results_are_here_once_the_job_has_succeeded(tmp_path: Path) -> None:
    """`show` lists them with what was left out, `fetch` brings all or a part, and the sweep leaves them alone."""
    server = RealServer(tmp_path, [A], FIFO).start()
    try:
        server.start_agent()
        spec = {"run": [sys.executable, "-c", WRITE], "workdir": None, "outputs": ["out/", "./result.json", "gone"]}
        job = server.submit(resources={"accelerators": "a"}, **spec)
        server.until_state(job, "SUCCEEDED", 40)
        shown = walras(server, "show", str(job), cwd=tmp_path).stdout
        assert "out/deep/model.bin" in shown
        assert "not kept: " in shown
        assert "gone: No such file" in shown
        assert "out/link is no regular file" in shown
        assert "out/pipe is no regular file" in shown
        done = walras(server, "fetch", str(job), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        got = {path.relative_to(tmp_path / f"job-{job}") for path in (tmp_path / f"job-{job}").rglob("*")}
        assert {str(path) for path in got} == {"out", "out/deep", "out/deep/model.bin", "result.json"}
        assert (tmp_path / f"job-{job}/out/deep/model.bin").read_bytes() == b"w" * 5_000_000
        part = walras(server, "fetch", str(job), "out/deep", "--to", "part", cwd=tmp_path)
        assert part.returncode == 0
        assert not (tmp_path / "part/result.json").exists()
        assert (tmp_path / "part/out/deep/model.bin").stat().st_size == 5_000_000
        assert "is there already" in walras(server, "fetch", str(job), cwd=tmp_path).stderr
        assert "no 'other'" in walras(server, "fetch", str(job), "other", "--to", "x", cwd=tmp_path).stderr
    finally:
        server.close()


def test_a_job_cancelled_while_it_runs_leaves_what_it_had(tmp_path: Path) -> None:
    script = "import time; open('log.txt', 'w').write('so far'); print('up', flush=True); time.sleep(600)"
    server = RealServer(tmp_path, [A], FIFO).start()
    try:
        server.start_agent()
        spec = {"run": [sys.executable, "-c", script], "workdir": None, "outputs": "log.txt", "grace_period": 1}
        job = server.submit(resources={"accelerators": "a"}, **spec)
        wait_for(lambda: "up" in server.log(job, 1), 30, "the script is up")
        assert walras(server, "cancel", str(job), cwd=tmp_path).returncode == 0
        server.until_state(job, "CANCELLED", 40)
        fetched = wait_for(
            lambda: walras(server, "fetch", str(job), "--to", "got", cwd=tmp_path).returncode == 0, 30, "it is kept"
        )
        assert fetched
        assert (tmp_path / "got/log.txt").read_text() == "so far"
    finally:
        server.close()


def test_results_come_with_checkpoints_while_the_job_runs(tmp_path: Path) -> None:
    server = RealServer(tmp_path, [A], FIFO).start()
    try:
        server.start_agent()
        spec = {"run": [sys.executable, "-c", SAVING], "workdir": None, "outputs": "log.txt"}
        job = server.submit(resources={"accelerators": "a"}, **spec)
        server.until_running(job)
        look = lambda: "log.txt" in walras(server, "show", str(job), cwd=tmp_path).stdout  # noqa: E731
        wait_for(look, 40, f"results of a running job; {server.log(job, 1)}")
        assert server.state(job) == "RUNNING"
    finally:
        server.close()
