"""A gang of two machines loses one: what the rank that is left saves is the checkpoint from which the job goes on."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.agent_process import AgentProcess
from tests.support.real_server import FIFO, A, RealServer, Serve, wait_for

pytestmark = pytest.mark.slow

#: Trains for ever, and never saves by itself. Its argument is what it says of its layout.
SCRIPT = """
import sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from walras.training import Checkpoint, Loop

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(200, 200))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loop = Loop(Checkpoint(model=model, optimizer=optimizer, every_s=None, layout=sys.argv[1] or None))
loop.resume()
print("begins at", loop.step, flush=True)
for step in loop.steps(range(100_000)):
    optimizer.zero_grad()
    model(torch.ones(4, 200)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""


@pytest.fixture
def cluster(serve: Serve, tmp_path: Path) -> RealServer:
    server = serve([A], FIFO, lease="12s")
    (tmp_path / "gang.py").write_text(SCRIPT)
    server.start_agent("n1")
    server.start_agent("n2")
    return server


def lose(agent: AgentProcess, *, frozen: bool) -> None:
    """Kills a machine's agent and all its attempts at once, or stops them as a machine does that nobody hears of."""
    victims = [*agent.guardians(), *agent.supervisors(), *agent.alive()]
    agent.kill()
    for pid in victims:
        os.kill(pid, signal.SIGSTOP if frozen else signal.SIGKILL)


@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "cut off"])
@pytest.mark.parametrize("layout", ["", "sharded"])
def test_the_machine_that_is_left_saves_for_the_gang(cluster: RealServer, frozen: bool, layout: str) -> None:
    """Rank 0's machine is the one that is lost. At most one step is; a sharded layout keeps its older checkpoint."""
    script = str(cluster.folder / "gang.py")
    job_id = cluster.submit(
        run=[sys.executable, script, layout], num_nodes=2, grace_period="10s", resources={"accelerators": "a:2"}
    )
    cluster.until_step(job_id, 20)
    first = cluster.attempt(job_id)["placement"][0].partition(":")[0]
    (left,) = {"n1", "n2"} - {first}
    lose(cluster.agents[first], frozen=frozen)
    seen = cluster.job(job_id)["steps"]
    cluster.start_agent("n3")
    second = cluster.until_running(job_id, 2, 90.0)
    job = cluster.job(job_id)
    recorded = [(step, path) for attempt, step, path in cluster.recorded(job_id) if attempt == 1]
    begun = wait_for(lambda: re.search(r"begins at (\d+)", cluster.log(job_id, 2)), 60, "the second attempt trains")
    assert begun is not None
    assert job["restarts"] == 0, job
    assert f"{left}:0" in second["placement"]
    if layout:
        assert (recorded, int(begun[1])) == ([], 0)
    else:
        ((step, path),) = recorded
        assert path.endswith("-rank-1")
        assert step >= seen - 1
        assert int(begun[1]) == step
