"""Releases next to each other: server and agents are upgraded one by one while jobs run, and either may be first.

The release before is built from this repository's own history; where that is not here (an archive of the sources, a
clone without history) there is nothing to test against.
"""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.attempts import ROOT
from tests.support.real_server import FIFO, A, RealServer, wait_for

pytestmark = pytest.mark.slow

#: What agents and servers in use may still run.
RELEASE_BEFORE = "9c8db763a58cc23883e6874b1e9b333ec1a77d7f"
_COMMAND = "import sys; from walras.cli.main import main; sys.exit(main())"
TWO = {**A, "shape": "ax2", "accelerators": 2, "cpus": 4}

TRAINING = """
import os, sys, time
import torch
from walras.training import Checkpoint, Loop
model = torch.nn.Linear(1, 1)
loop = Loop(Checkpoint(model=model, every_s=1.0))
for epoch in loop.epochs(1):
    for _ in loop.steps(range(int(sys.argv[1]))):
        time.sleep(0.1)
        print("step", loop.step, flush=True)
        if os.path.exists("enough"):
            break
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the release before."""
    archive = subprocess.run(["git", "archive", RELEASE_BEFORE], cwd=ROOT, capture_output=True)
    if archive.returncode != 0:
        pytest.skip("the release before is not in this repository's history")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


class MixedCluster:
    """A server and one machine, each of the release that a test says, on state that stays."""

    def __init__(self, folder: Path) -> None:
        self.server = RealServer(folder, [TWO], FIFO, lease="150s")
        self.folder = folder
        (folder / "job.py").write_text(TRAINING)
        self._agent: subprocess.Popen[bytes] | None = None

    def start_server(self, sources: Path) -> None:
        files = ["--cluster", self.folder / "cluster.yaml", "--policy", self.folder / "policy.yaml"]
        process = self.server.process = self._run(sources, "server", "--data", self.server.data, *files)
        wait_for(lambda: self._serves(process.pid), 120, "the server is ready")

    def _serves(self, pid: int) -> bool:
        path = self.server.data / "server.json"
        return path.exists() and yaml.safe_load(path.read_text() or "{}").get("pid") == pid

    def start_agent(self, sources: Path) -> None:
        """Of the same machine, whatever release it was before."""
        token = self.server.data / "join.token"
        place = ["--state", self.folder / "n1", "--node", "n1", "--join-token-file", token]
        shape = ["--shape", "ax2", "--accelerator", "a", "--accelerators", 2, "--cpus", 4, "--memory", "1GB"]
        self._agent = self._run(sources, "agent", "--server", self.server.url, *place, *shape, "--emulated")
        wait_for(lambda: self.server.node_state("n1") == "up", 30, "n1 is up")

    def enough(self) -> None:
        """Jobs end after their next step."""
        (self.folder / "enough").touch()

    def stop_agent(self) -> None:
        """Its jobs go on."""
        if self._agent is not None:
            self._agent.terminate()
            self._agent.wait(300)

    def log(self, job_id: int, attempt: int) -> list[str]:
        """What the first rank printed, wherever a server of either release keeps it."""
        found = [*(self.server.data / "logs").glob(f"**/{job_id}/{attempt}/0.log")]
        return found[0].read_text().splitlines()

    def train(self, steps: int) -> int:
        """So many steps, or fewer once it is `enough`."""
        return self.server.submit(run=f"{sys.executable} job.py {steps}", steps=steps)

    def close(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait(300)
        self.server.close()

    def _run(self, sources: Path, *words: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _COMMAND, *map(str, words)]
        with open(self.folder / f"{words[0]}.log", "ab") as output:
            environment = {**os.environ, "PYTHONPATH": str(sources)}
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd="/")


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[MixedCluster]:
    made = MixedCluster(tmp_path)
    yield made
    made.close()


def test_server_and_agent_are_upgraded_one_after_the_other_while_a_job_trains(
    mixed: MixedCluster, before: Path
) -> None:
    """The old agent serves the new server; the new one takes over the old one's ranks. One attempt, each step once."""
    server = mixed.server
    mixed.start_server(before)
    mixed.start_agent(before)
    long = mixed.train(100_000)
    server.until_step(long, 5.0)
    assert server.stop() == 0
    mixed.start_server(ROOT)
    short = mixed.train(10)
    server.until_state(short, "SUCCEEDED", 60.0)
    assert server.state(long) == "RUNNING"
    mixed.stop_agent()
    mixed.start_agent(ROOT)
    last = mixed.train(10)
    server.until_state(last, "SUCCEEDED", 60.0)
    known = server.job(long)["steps"]
    server.until_step(long, known + 5)
    mixed.enough()
    server.until_state(long, "SUCCEEDED", 60.0)
    assert [len(server.job(job_id)["attempt_list"]) for job_id in (long, short, last)] == [1, 1, 1]
    made = mixed.log(long, 1)
    assert made == [f"step {step}" for step in range(len(made))]
    assert len(made) >= known + 5


def test_a_new_agent_works_for_the_server_of_the_release_before(mixed: MixedCluster, before: Path) -> None:
    """And a job that the old server stops goes on from its checkpoint."""
    server = mixed.server
    mixed.start_server(before)
    mixed.start_agent(ROOT)
    job_id = mixed.train(100_000)
    server.until_step(job_id, 20.0)
    assert server.call("POST", f"/jobs/{job_id}/hold")[0] == 200
    server.until_state(job_id, "HELD")
    stopped = len(mixed.log(job_id, 1))
    assert server.call("POST", f"/jobs/{job_id}/release")[0] == 200
    server.until_step(job_id, stopped + 10, 60.0)
    mixed.enough()
    server.until_state(job_id, "SUCCEEDED", 60.0)
    second = mixed.log(job_id, 2)
    assert second == [f"step {step}" for step in range(stopped, stopped + len(second))], "it did not begin again"
