"""Agents, machines, supervisors and ranks that die, freeze or do not want to go: what the cluster promises then.

Real server, agents, supervisors and ranks.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.agent_process import AgentProcess
from tests.support.fault_jobs import COUNTING, HIDING, HIDING_PROCESSES, MEETING, command
from tests.support.real_server import FIFO, A, RealServer, Serve, wait_for
from workers import processes
from workers.processes import ProcessName
from workers.supervisor_protocol import JOURNAL_FILE, read_attempt_journal

pytestmark = pytest.mark.slow

#: Short, and renewed in time though the machine stands still for some seconds. Where an agent has to be back in time:
#: long enough on a busy machine.
SHORT_S, LONG_S = 12.0, 90.0
A2 = {**A, "shape": "ax2", "accelerators": 2}


@pytest.fixture
def cluster(serve: Serve, request: pytest.FixtureRequest) -> RealServer:
    """A server of machines of one and of two devices, which grants leases of the length that the test asks for."""
    return serve([A, A2], FIFO, lease=f"{getattr(request, 'param', LONG_S):g}s")


def where_it_began(cluster: RealServer, job_id: int, attempt: int) -> tuple[str, int, int]:
    """What an attempt's first line says: the word, the step, and the counter that was restored."""
    found = wait_for(
        lambda: re.match(r"(begins|resumed) at (\d+) with (\d+)\n", cluster.log(job_id, attempt)), 20, "its first line"
    )
    return found[1], int(found[2]), int(found[3])


def wall_clock(at: float) -> float:
    """The seconds since 1970 of an instant since the machine booted."""
    return time.time() - (processes.boottime() - at)


def test_an_agent_that_comes_back_within_the_lease_restarts_nothing_and_reports_an_85(
    cluster: RealServer, tmp_path: Path
) -> None:
    """SIGTERM or kill -9 of the agent: same attempt, same processes; once more: the 85 that it missed is reported, and
    the job goes on from the checkpoint that the server recorded."""
    agent, leave = cluster.start_agent(), tmp_path / "leave"
    job_id = cluster.submit(run=command(COUNTING, leave))
    cluster.until_step(job_id, 10)
    ranks = agent.alive()
    for is_killed in (False, True):
        if is_killed:
            agent.kill()
        else:
            assert agent.terminate() == 0
        ended_at = processes.boottime()
        agent.start()
        until = ended_at + LONG_S
        wait_for(lambda until=until: agent.lease_until(job_id, 1) > until, 25, "the new agent renews the lease")
        cluster.until_step(job_id, cluster.job(job_id)["steps"] + 50)
        assert agent.alive() == ranks
    agent.kill()
    leave.touch()
    wait_for(lambda: not agent.alive(), 15, "the job leaves by itself")
    assert cluster.job(job_id)["attempts"] == 1
    leave.unlink()
    agent.start()
    cluster.until_running(job_id, 2)
    first = cluster.job(job_id)["attempt_list"][0]
    assert (first["state"], first["exit_code"], cluster.job(job_id)["restarts"]) == ("PREEMPTED", 85, 0)
    said = re.search(r"leaves at (\d+)", cluster.log(job_id, 1))
    assert said is not None
    left_at = int(said[1])
    assert [step for attempt, step, _ in cluster.recorded(job_id) if attempt == 1][-1] == left_at
    assert where_it_began(cluster, job_id, 2) == ("resumed", left_at, left_at)


@pytest.mark.parametrize("cluster", [SHORT_S], indirect=True)
def test_an_agent_that_stays_away_loses_its_ranks_at_expiry_and_the_job_to_another_machine(
    cluster: RealServer, tmp_path: Path
) -> None:
    """kill -9 of the agent: ranks gone when the lease ends, before anything starts elsewhere; the job goes on from the
    checkpoint that the server recorded, not from the newer ones that the cut-off attempt went on to write."""
    agent = cluster.start_agent("n1")
    job_id = cluster.submit(run=command(COUNTING, tmp_path / "never"))
    cluster.until_step(job_id, 50)
    cluster.start_agent("n2")
    agent.kill()
    until = agent.lease_until(job_id, 1)
    second = cluster.until_running(job_id, 2, 60.0)
    events, _ = read_attempt_journal(agent.attempt_folder(job_id, 1) / JOURNAL_FILE)
    (gone_at,) = [event["at"] for event in events if event["type"] == "ended"]
    assert abs(gone_at - until) < SHORT_S / 2
    assert wall_clock(gone_at) < datetime.fromisoformat(second["leased_at"]).timestamp()
    assert agent.alive() == []
    assert second["placement"] == ["n2:0"]
    job = cluster.job(job_id)
    assert (job["attempt_list"][0]["state"], job["restarts"]) == ("NODE_LOST", 0)
    recorded = [(step, path) for attempt, step, path in cluster.recorded(job_id) if attempt == 1][-1]
    # On the machine that was cut off: the server knows the checkpoint by the path that it named.
    written = sorted(agent.state.rglob("attempt-0001/step-*/manifest.json"))
    assert written[-1].parent.name > Path(recorded[1]).name
    assert where_it_began(cluster, job_id, 2) == ("resumed", recorded[0], recorded[0])


@pytest.mark.parametrize("cluster", [SHORT_S], indirect=True)
def test_a_machine_that_thaws_after_its_lease_commits_nothing(cluster: RealServer, tmp_path: Path) -> None:
    """SIGSTOP of agent, supervisor and ranks past the lease: the job runs elsewhere as a new attempt. SIGCONT:
    the old ranks are gone within a second or so, and the server records nothing of theirs."""
    agent = cluster.start_agent("n1")
    job_id = cluster.submit(run=command(COUNTING, tmp_path / "never"))
    wait_for(lambda: cluster.recorded(job_id), 20, "a checkpoint counts")
    frozen = [agent.pid, *agent.guardians(), *agent.supervisors(), *agent.alive()]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    frozen_at = processes.boottime()
    cluster.start_agent("n2")
    cluster.until_running(job_id, 2, 60.0)
    # The heartbeat that was under way when the machine froze has been answered: nothing more can come from it.
    before = [row for row in cluster.recorded(job_id) if row[0] == 1]
    old = agent.alive()
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGCONT)
    thawed_at = processes.boottime()
    wait_for(lambda: not set(old) & set(agent.alive()), 1.5, "the old ranks are gone")
    print(f"gone {processes.boottime() - thawed_at:.2f} s after the thaw")
    wait_for(lambda: cluster.node_state("n1") == "up", 20, "the machine is a member again")
    newest = cluster.recorded(job_id)[-1][1]
    wait_for(lambda: cluster.recorded(job_id)[-1][1] > newest, 30, "the new attempt goes on committing")
    assert [row for row in cluster.recorded(job_id) if row[0] == 1] == before
    assert where_it_began(cluster, job_id, 2)[:2] == ("resumed", before[-1][1])
    assert cluster.job(job_id)["attempts"] == 2
    events, _ = read_attempt_journal(agent.attempt_folder(job_id, 1) / JOURNAL_FILE)
    assert all(event["at"] <= frozen_at for event in events if event["type"] == "committed")
    assert [event["cause"] for event in events if event["type"] == "ended"] == ["lease_expired"]


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
    assert cluster.command("cancel", str(job_id)).stderr == ""
    cluster.until_state(job_id, "CANCELLED", 60)
    assert [name for name in hidden if name.is_alive] == []
    assert agent.alive() == []
    wait_for(lambda: not agent.supervisors(), 20, "its supervisor is gone too")
