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

JOB = Path(__file__).resolve().parents[1] / "support" / "survivor_job.py"


@pytest.fixture
def cluster(serve: Serve) -> RealServer:
    server = serve([A], FIFO, lease="12s")
    server.start_agent("n1")
    server.start_agent("n2")
    return server


def lose(agent: AgentProcess, *, frozen: bool) -> None:
    """Kills a machine's agent and all its attempts at once, or stops them as a machine does that nobody hears of."""
    victims = [*agent.guardians(), *agent.supervisors(), *agent.alive()]
    agent.kill()
    for pid in victims:
        os.kill(pid, signal.SIGSTOP if frozen else signal.SIGKILL)


@pytest.mark.parametrize(
    ("frozen", "layout"), [(False, ""), (True, ""), (False, "sharded")], ids=["killed", "cut off", "sharded"]
)
def test_the_machine_that_is_left_saves_for_the_gang(cluster: RealServer, frozen: bool, layout: str) -> None:
    """Rank 0's machine is the one that is lost. At most one step is; a sharded layout keeps its older checkpoint."""
    job_id = cluster.submit(
        run=[sys.executable, str(JOB), layout], num_nodes=2, grace_period="10s", resources={"accelerators": "a:2"}
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
