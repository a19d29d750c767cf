"""Jobs that write nonsense to their supervisor, or kill it: they harm themselves only.

Real agents, supervisors and ranks; a stand-in for the server. A bystander on the same machine notices nothing.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.agent_commands import LOOP, AgentStand, a_stop
from tests.support.fault_jobs import HIDING, HIDING_PROCESSES, command
from workers import processes
from workers.supervisor_protocol import DESCENDANTS_FILE

pytestmark = pytest.mark.slow

#: Sends each of its lines on a connection of its own, then goes on.
HOSTILE = """
import os, socket, sys, time

def send(line):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(os.environ["WALRAS_SOCKET"])
        try:
            link.sendall(line + b"\\n")
        except OSError:
            pass
        time.sleep(0.1)

for line in LINES:
    send(line)
send(b'{"type": "progress", "steps": 7, "values": {"loss": NaN, "accuracy": 0.5}}')
print("all sent", flush=True)
time.sleep(600)
"""
LINES = [
    b'{"type":"progress","steps":NaN}',
    b'{"type":"progress","steps":Infinity,"values":{"loss":1}}',
    b'{"type":"progress"}',
    b'{"type":"progress","steps":"five"}',
    b'{"type":"progress","steps":' + b"9" * 400 + b"}",
    b'{"type":"progress","steps":' + b"9" * 5000 + b"}",
    b'{"type":"commit","step":1e999,"path":"/","digest":"x","took_s":0}',
    b'{"type":"commit"}',
    b'{"type":["progress"]}',
    b"[" * 30_000,
    b'{"a":' * 30_000 + b"1" + b"}" * 30_000,
    b"\xff\xfe\x00",
    b"x" * 600_000,
]


def steps_of_bystander(server: AgentStand) -> float:
    """The steps that job 2 has reported; 0: none yet."""
    return max((float(report.steps) for report in server.of_type("progress") if report.job_id == 2), default=0.0)


async def test_nonsense_on_the_socket_is_told_to_its_owner_and_harms_nobody(server: AgentStand, tmp_path: Path) -> None:
    """Neither agent nor bystander notices; what is left of the progress arrives; the job's own log says the rest."""
    agent = server.begin()
    await server.start(LOOP, job_id=2, devices=[1])
    script = tmp_path / "hostile.py"
    script.write_text(HOSTILE.replace("in LINES", f"in {LINES!r}"))
    await server.start("", argv=[sys.executable, str(script)])
    await server.until(lambda: b"all sent" in server.logs[1, 1, 0], 20, "the job has sent everything")
    told = lambda: [report for report in server.of_type("progress") if report.job_id == 1]  # noqa: E731
    await server.until(lambda: bool(told()), 20, "its progress")
    assert (told()[-1].steps, told()[-1].values) == (7.0, {"accuracy": 0.5})
    for note in (
        b"[walras] progress ignored: steps is not a finite number\n",
        b"[walras] progress ignored: steps is missing\n",
        b"[walras] values['loss'] ignored: it is not a finite number\n",
        b"[walras] checkpoint does not count: its step is not a finite number\n",
        b"[walras] connection to the supervisor closed: a line is no JSON object\n",
    ):
        await server.until(lambda note=note: note in server.logs[1, 1, 0], 20, repr(note))  # type: ignore[misc]
    await server.until(lambda: steps_of_bystander(server) > 0, 20, "the bystander steps")
    agent.kill()
    steps = steps_of_bystander(server)
    agent.start()
    await server.until(
        lambda: steps_of_bystander(server) > steps, 30, "the bystander goes on, also after a restart of the agent"
    )
    assert len({heartbeat.session for heartbeat in server.heartbeats}) == 2
    assert [report.job_id for report in server.of_type("ended")] == []


async def test_a_job_that_kills_its_supervisor_is_seen_to(server: AgentStand) -> None:
    """The end is reported as a loss that the agent witnessed: the machine and the bystander live on."""
    server.begin()
    await server.start(LOOP, job_id=2, devices=[1])
    await server.start("import os, time; time.sleep(0.5); os.kill(os.getppid(), 9); time.sleep(600)")
    ended = await server.report("ended")
    assert (ended.job_id, ended.cause, ended.witnessed) == (1, "supervisor_lost", True)
    assert len({heartbeat.session for heartbeat in server.heartbeats}) == 1


async def test_a_supervisor_that_died_while_no_agent_looked_has_no_witness(server: AgentStand) -> None:
    """All of the machine's processes are ended together: that tells nothing of the job."""
    agent = server.begin()
    await server.start(LOOP)
    await server.report("started")
    (supervisor,) = agent.supervisors()
    agent.kill()
    os.kill(supervisor, signal.SIGKILL)
    await server.until(lambda: not agent.alive(), 20, "its ranks are gone")
    agent.start()
    ended = await server.report("ended")
    assert (ended.cause, ended.witnessed) == ("supervisor_lost", False)


@pytest.mark.parametrize("name", ["journal.jsonl", "rank-0.log", "supervisor.json"])
async def test_files_that_a_job_exchanges_stop_nobody(server: AgentStand, name: str) -> None:
    """A pipe in the place of a file that the agent reads: the attempt ends, the agent and its other work go on."""
    agent = server.begin()
    await server.start(LOOP, job_id=2, devices=[1])
    await server.start("import time; time.sleep(600)")
    await server.until(lambda: len(server.of_type("started")) == 2, 30, "both run")
    place = agent.state / "attempts" / "1-1" / name
    place.unlink()
    os.mkfifo(place)
    agent.kill()
    agent.start()
    seen = len(server.heartbeats)
    await server.until(lambda: len(server.heartbeats) > seen + 5, 30, "the agent goes on")
    await server.send(a_stop(grace_s=1.0))
    ended = await server.report("ended")
    assert ended.job_id == 1
    await server.until(lambda: len(agent.alive()) == 1, 20, "only the bystander is left")


async def test_a_supervisor_that_is_frozen_cannot_outstay_its_stop(server: AgentStand, tmp_path: Path) -> None:
    """A job that sends SIGSTOP to its supervisor is ended all the same, once the grace is over."""
    agent = server.begin()
    go = tmp_path / "go"
    frozen = f"import os, signal, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
    frozen += "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)"
    await server.start(frozen)
    await server.report("started")
    go.touch()
    (supervisor,) = agent.supervisors()
    await server.until(lambda: processes.is_stopped(supervisor), 20, "the supervisor is frozen")
    await server.send(a_stop(grace_s=0.5))
    ended = await server.report("ended")
    assert (ended.cause, ended.witnessed) == ("supervisor_lost", True)
    assert agent.alive() == []


async def test_guardian_and_supervisor_killed_together_leave_nothing(server: AgentStand, tmp_path: Path) -> None:
    """Descendants that double-fork, change their session and drop their environment are found by what was noted."""
    agent = server.begin()
    told = tmp_path / "pids"
    await server.start("", argv=command(HIDING, told))
    await server.until(lambda: told.exists() and len(told.read_text().split()) == HIDING_PROCESSES, 20, "they hide")
    names = [processes.name_process(int(number)) for number in told.read_text().split()]
    hidden = [name for name in names if name is not None]
    noted = agent.state / "attempts" / "1-1" / DESCENDANTS_FILE

    def are_noted() -> bool:
        names = json.loads(noted.read_bytes())["names"] if noted.exists() else []
        return {name.pid for name in hidden} <= {pid for pid, _ in names}

    await server.until(are_noted, 20, "the supervisor has noted them")
    (guardian,), (supervisor,) = agent.guardians(), agent.supervisors()
    processes.send_signal([guardian, supervisor], signal.SIGKILL)
    ended = await server.report("ended")
    assert ended.cause == "supervisor_lost"
    assert [name for name in hidden if name.is_alive] == []


async def test_a_rank_that_takes_more_memory_than_it_asked_for_is_ended_alone(server: AgentStand) -> None:
    """The report names the limit; a bystander that asked for none steps on."""
    server.begin()
    await server.start(LOOP, job_id=2, devices=[1])
    hungry = "kept = [bytes([n]) * (32 << 20) for n in range(1, 9)]; import time; time.sleep(600)"
    await server.until(lambda: steps_of_bystander(server) > 0, 20, "the bystander steps")
    await server.start(hungry, memory_bytes=128 << 20)
    await server.report("ended")
    (ended,) = server.of_type("ended")
    assert (ended.job_id, ended.exceeded, ended.signal) == (1, "memory", signal.SIGKILL)
    assert b"MiB of memory, its limit here is 128 MiB" in server.logs[1, 1, 0]
    steps = steps_of_bystander(server)
    await server.until(lambda: steps_of_bystander(server) > steps, 20, "the bystander steps on")
