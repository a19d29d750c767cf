"""Supervisors and ranks that are killed, and ranks that do not want to go: nothing is left of them.

Real server, agents, supervisors and ranks.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_process import AgentProcess
from tests.support.fault_jobs import HIDING, HIDING_PROCESSES, MEETING, command
from tests.support.real_server import FIFO, WALRAS, A, RealServer, wait_for
from workers import processes
from workers.processes import ProcessName

pytestmark = pytest.mark.slow

A2 = {**A, "shape": "ax2", "accelerators": 2}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealServer]:
    server = RealServer(tmp_path, [A, A2], FIFO, lease="90s")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Path]:
    """Where a `HIDING` job tells of its processes; those that a failed test left are ended."""
    path = tmp_path / "pids"
    yield path
    for number in path.read_text().split() if path.exists() else []:
        with contextlib.suppress(OSError):
            if b"SIG_IGN" in Path(f"/proc/{number}/cmdline").read_bytes():
                os.kill(int(number), signal.SIGKILL)


def hiding_processes(path: Path) -> list[ProcessName]:
    """All the processes that a `HIDING` job has told of: its rank first."""

    def look() -> list[ProcessName] | None:
        numbers = path.read_text().split() if path.exists() else []
        names = [processes.name_process(int(number)) for number in numbers]
        return [name for name in names if name is not None] if len(numbers) == HIDING_PROCESSES else None

    found: list[ProcessName] = wait_for(look, 20, "the job has hidden its processes")
    assert len(found) == HIDING_PROCESSES
    return found


def rank_pid(agent: AgentProcess, rank: int) -> int:
    """The process of one rank of the only job there."""
    wanted = f"RANK={rank}".encode()
    (found,) = [pid for pid in agent.alive() if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
    return found


def until_met(cluster: RealServer, job_id: int, attempt: int) -> None:
    """Both ranks of a `MEETING` job have."""
    for rank in (0, 1):
        met = f"rank {rank} has met the others"
        wait_for(lambda rank=rank, met=met: met in cluster.log(job_id, attempt, rank), 60, met)  # type: ignore[misc]


def test_a_killed_supervisor_leaves_nothing_and_the_job_is_requeued(cluster: RealServer, told: Path) -> None:
    """kill -9 of a supervisor: its ranks are gone at once, double-forked descendants soon after, and the job starts
    again at no cost to its retries: it has none."""
    agent = cluster.start_agent()
    job_id = cluster.submit(run=command(HIDING, told))
    cluster.until_running(job_id)
    rank, *hidden = hiding_processes(told)
    (supervisor,) = agent.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not rank.is_alive, 1.0, "the rank is gone")
    wait_for(lambda: not any(name.is_alive for name in hidden), 4.0, "what it hid is gone")
    cluster.until_running(job_id, 2)
    job = cluster.job(job_id)
    assert (job["attempt_list"][0]["state"], job["attempt_list"][0]["reason"]) == ("NODE_LOST", "INFRA:NODE_LOST")
    assert job["restarts"] == 0


def test_a_killed_rank_takes_the_other_with_it_and_counts_as_the_jobs_own_failure(cluster: RealServer) -> None:
    """kill -9 of one rank of two that talk over gloo: the other is stopped within 10 s; the job is retried as often as
    its rule says, and then it has failed."""
    agent = cluster.start_agent("n1", A2)
    job_id = cluster.submit(
        run=command(MEETING), resources={"accelerators": "a:2"}, retry={"max_restarts": 1}, grace_period="60s"
    )
    for attempt, victim in ((1, 1), (2, 0)):
        cluster.until_running(job_id, attempt)
        until_met(cluster, job_id, attempt)
        ranks = [processes.name_process(pid) for pid in agent.alive()]
        os.kill(rank_pid(agent, victim), signal.SIGKILL)
        # Theirs alone: those of the next attempt may be there already.
        wait_for(
            lambda ranks=ranks: not any(each and each.is_alive for each in ranks), 10.0, "the other rank is stopped"
        )  # type: ignore[misc]
    cluster.until_state(job_id, "FAILED")
    job = cluster.job(job_id)
    ends = [(each["state"], each["signal"], each["failed_rank"]) for each in job["attempt_list"]]
    assert ends == [("FAILED", signal.SIGKILL, 1), ("FAILED", signal.SIGKILL, 0)]
    assert (job["reason"], job["restarts"]) == ("USER:SIGNAL", 1)
    assert "signal 9" in job["detail"]


def test_a_cancelled_job_leaves_no_process_however_it_hides(cluster: RealServer, told: Path) -> None:
    """It double-forks, calls setsid, ignores SIGTERM and throws its environment away: `walras cancel` ends all of it,
    and the job is CANCELLED only once that is so."""
    agent = cluster.start_agent()
    job_id = cluster.submit(run=command(HIDING, told), grace_period="2s")
    cluster.until_running(job_id)
    hidden = hiding_processes(told)
    environment = {"WALRAS_SERVER": cluster.url, "WALRAS_TOKEN_FILE": str(cluster.data / "admin.token")}
    done = subprocess.run(
        [WALRAS, "cancel", str(job_id)], env=os.environ | environment, capture_output=True, timeout=300, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    cluster.until_state(job_id, "CANCELLED", 60)
    assert [name for name in hidden if name.is_alive] == []
    assert agent.alive() == []
    wait_for(lambda: not agent.supervisors(), 20, "its supervisor is gone too")
