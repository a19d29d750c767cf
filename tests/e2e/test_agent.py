"""The promises of the agent: a real agent and real supervisors against the server's side of the wire."""

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_process import AgentProcess
from tests.support.fake_agent_server import FakeAgentServer
from walras.wire import Heartbeat, Manifest, PrepareCommand, StartCommand, StopCommand
from workers import processes
from workers.journal import read_journal
from workers.plan import JOURNAL_FILE
from workers.store import AgentStore, Phase

pytestmark = pytest.mark.slow

Begin = Callable[..., AgentProcess]
_command_ids = itertools.count(1)

LOOP = """
import time
from walras.training import Checkpoint, Loop

class Counter:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]

counter = Counter()
loop = Loop(Checkpoint(counter=counter, every_s=None))
print("resumed" if loop.resume() else "fresh", "at", loop.step, counter.n, flush=True)
for step in loop.steps(range(100_000)):
    counter.n += 1
    time.sleep(0.005)
    loop.report(loss=1.0)
"""


@pytest.fixture
async def server() -> AsyncIterator[FakeAgentServer]:
    async with FakeAgentServer() as server:
        yield server


@pytest.fixture
async def begin(server: FakeAgentServer, tmp_path: Path) -> AsyncIterator[Begin]:
    agents: list[AgentProcess] = []

    def begin_agent(**changes: Any) -> AgentProcess:
        agents.append(AgentProcess(tmp_path, server.url, server.join_token, **changes))
        return agents[-1].start()

    yield begin_agent
    for agent in agents:
        agent.close()


def a_start(tmp_path: Path, script: str, **changes: Any) -> StartCommand:
    defaults: dict[str, Any] = {
        "command_id": next(_command_ids),
        "job_id": 1,
        "attempt": 1,
        "name": "digits",
        "kind": "cnn",
        "argv": [sys.executable, "-c", script],
        "env": {},
        "workdir": str(tmp_path),
        "devices": [0],
        "accelerator": "a100",
        "node_rank": 0,
        "num_nodes": 1,
        "world_size": len(changes.get("devices", [0])),
        "first_rank": 0,
        "master_address": "",
        "master_port": 0,
        "checkpoint_dir": str(tmp_path / "checkpoints"),
        "resume": None,
        "steps": None,
        "lease_s": 30.0,
        "grace_s": 5.0,
        "job_token": "job-token-secret",
    }
    return StartCommand(**defaults | changes)


def a_stop(attempt: int = 1, grace_s: float = 5.0) -> StopCommand:
    return StopCommand(command_id=next(_command_ids), job_id=1, attempt=attempt, grace_s=grace_s, reason="preempted")


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_a_job_runs_from_start_to_end_with_its_logs_complete(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """Started, its output shipped, ended: the log is complete by the time the end is reported."""
    begin()
    await server.send(a_start(tmp_path, "print('hello'); print('x' * 600_000)"))
    await server.report("started")
    ended = await server.report("ended")
    assert (ended.cause, ended.exit_code) == ("exited", 0)
    assert server.logs[1, 1, 0] == b"hello\n" + b"x" * 600_000 + b"\n"


async def test_commands_arrive_at_once_and_logs_within_2_s(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """A long poll carries a command in well under a heartbeat, and output shows up while the job runs."""
    server.heartbeat_s = 5.0
    begin()
    await server.until(lambda: len(server.heartbeats) >= 2, 10, "the agent waits for commands")
    sent_at = time.monotonic()
    await server.send(a_start(tmp_path, "import time; print('now'); time.sleep(60)"))
    await server.report("started", 2.0)
    await server.until(lambda: b"now" in server.logs[1, 1, 0], 2.0, "the first line of output")
    assert time.monotonic() - sent_at < 4.0


async def test_an_exit_85_that_happened_while_the_agent_was_dead_is_reported(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """kill -9 of the agent: ranks undisturbed; the next agent reports what they did meanwhile, commit included."""
    agent = begin()
    go = tmp_path / "go"
    script = LOOP.replace("counter.n += 1", f"counter.n += 1\n    if __import__('os').path.exists({str(go)!r}): break")
    script += "\nassert loop.save()\nraise SystemExit(85)\n"
    await server.send(a_start(tmp_path, script))
    await server.report("progress")
    ranks = agent.alive()
    agent.kill()
    assert agent.alive() == ranks
    go.touch()
    await server.until(lambda: not agent.alive(), 10, "the job ends by itself")
    assert not server.of_type("ended")
    agent.start()
    ended = await server.report("ended")
    assert (ended.cause, ended.exit_code) == ("exited", 85)
    committed = await server.report("committed")
    assert committed.report_id < ended.report_id
    assert committed.manifest.step == ended.steps > 0
    assert len(server.of_type("started")) == 1


async def test_an_agent_that_comes_back_within_the_lease_restarts_nothing(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """SIGTERM or kill -9 of the agent and a new one: the same ranks, renewed, known to the server as before."""
    agent = begin()
    start = a_start(tmp_path, LOOP, lease_s=6.0)
    server.lease_s = 6.0
    await server.send(start)
    await server.report("progress")
    ranks = agent.alive()
    assert agent.terminate() == 0
    agent.start()

    def resyncs() -> list[Heartbeat]:
        return [beat for beat in server.heartbeats if beat.resync]

    await server.until(lambda: len(resyncs()) == 2, 10, "the new agent says what is here")
    assert [(here.job_id, here.attempt) for here in resyncs()[-1].here] == [(1, 1)]
    agent.kill()
    agent.start()
    await server.send(start.model_copy(update={"command_id": next(_command_ids)}))
    await asyncio.sleep(6.5)  # longer than the first lease
    assert agent.alive() == ranks
    assert len(server.of_type("started")) == 1
    await server.send(a_stop())
    assert (await server.report("ended")).exit_code == 85


async def test_ranks_are_gone_at_expiry_when_no_agent_comes_back(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """An agent that stays away: its supervisor ends the attempt by the end of the lease, and a later agent says so."""
    server.lease_s = 3.0
    agent = begin()
    ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    await server.send(a_start(tmp_path, ignore, lease_s=3.0))
    await server.report("started")
    agent.kill()
    await server.until(lambda: not agent.alive(), 4.5, "ranks gone at expiry")
    agent.start()
    assert (await server.report("ended")).cause == "lease_expired"


async def test_a_server_that_is_away_for_less_than_the_lease_disturbs_nothing(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """Calls fail for a while: the job goes on, and what was reported meanwhile arrives once, in order."""
    agent = begin()
    await server.send(a_start(tmp_path, LOOP))
    await server.report("progress")
    ranks = agent.alive()
    server.is_down = True
    await asyncio.sleep(1.5)
    server.is_down = False
    steps = server.of_type("progress")[-1].steps
    await server.until(lambda: server.of_type("progress")[-1].steps > steps, 8, "progress arrives again")
    assert agent.alive() == ranks
    ids = [report.report_id for report in server.reports]
    assert ids == sorted(set(ids))


async def test_a_killed_supervisor_is_reported_as_lost_with_nothing_left(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """kill -9 of a supervisor is an infrastructure loss, reported once nothing of the attempt lives."""
    agent = begin()
    await server.send(a_start(tmp_path, LOOP))
    await server.report("progress")
    (supervisor,) = agent.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    assert (await server.report("ended", 6.0)).cause == "supervisor_lost"
    assert agent.alive() == []


async def test_a_fenced_attempt_is_stopped_at_once(server: FakeAgentServer, begin: Begin, tmp_path: Path) -> None:
    """An attempt whose fence is old gets no grace."""
    agent = begin()
    await server.send(a_start(tmp_path, LOOP))
    await server.report("progress")
    server.fenced.add((1, 1))
    await server.report("ended", 5.0)
    assert agent.alive() == []
    assert not server.of_type("committed")


async def test_a_machine_frozen_past_its_leases_reports_no_commit_when_it_thaws(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """SIGSTOP of agent, guardian, supervisor and ranks; after SIGCONT the ranks are gone within 1 s, uncommitted."""
    server.lease_s = 3.0
    agent = begin()
    await server.send(a_start(tmp_path, LOOP.replace("every_s=None", "every_s=0.2"), lease_s=3.0))
    await server.report("committed")
    frozen = [agent.pid, *agent.guardians(), *agent.supervisors(), *agent.alive()]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    frozen_at = processes.boottime()
    await asyncio.sleep(3.5)
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGCONT)
    await server.until(lambda: not agent.alive(), 1.0, "ranks gone after the thaw")
    assert (await server.report("ended")).cause == "lease_expired"
    events, _ = read_journal(agent.state / "attempts" / "1-1" / JOURNAL_FILE)
    committed = [event for event in events if event["type"] == "committed"]
    assert committed
    assert all(event["at"] <= frozen_at for event in committed)
    assert len(server.of_type("committed")) == len(committed)


async def test_an_attempt_whose_start_was_cut_off_is_refused(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """An agent killed between decision and start: the next one says so, and the late launcher starts nothing."""
    state = tmp_path / "agent"
    store = AgentStore(state)
    store.move_attempt(1, 1, Phase.STARTING, [])
    store.close()
    folder = state / "attempts" / "1-1"
    folder.mkdir(parents=True)
    agent = begin()
    assert "restarted before" in (await server.report("refused")).detail
    assert not folder.exists()
    await server.send(a_start(tmp_path, LOOP))
    await server.until(lambda: len(server.heartbeats) > 5, 10, "the agent has had time")
    assert agent.supervisors() == []


async def test_preempted_and_resumed_from_the_named_manifest(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """Stop: checkpoint, commit, 85. Start with that manifest: the loop goes on from there, at the emulated pace."""
    speeds = tmp_path / "speeds.yaml"
    speeds.write_text("cnn: {a100: 40}\n")
    begin(speeds=str(speeds))
    await server.send(a_start(tmp_path, LOOP))
    await server.until(lambda: any(p.steps_per_s for p in server.of_type("progress")), 10, "a measured rate")
    await server.send(a_stop())
    ended = await server.report("ended")
    committed = await server.report("committed")
    assert ended.exit_code == 85
    progress = server.of_type("progress")[-1]
    assert progress.pace_steps_per_s == 40
    assert progress.steps_per_s == pytest.approx(40, rel=0.1)
    assert progress.first_values == {"loss": 1.0}
    resume = Manifest.model_validate(committed.manifest.model_dump())
    await server.send(a_start(tmp_path, LOOP, attempt=2, resume=resume))
    wanted = f"resumed at {int(resume.step)} {int(resume.step)}".encode()
    await server.until(lambda: wanted in server.logs[1, 2, 0], 10, "the resumed job says where it is")


async def test_what_cannot_start_is_refused_with_the_reason(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """Devices that are held, a missing workdir, and a start after its stop are refused; nothing is started."""
    agent = begin()
    await server.send(a_start(tmp_path, LOOP, devices=[0, 1]))
    await server.report("progress")
    await server.send(a_start(tmp_path, LOOP, job_id=2, devices=[1]))
    await server.send(a_start(tmp_path, LOOP, job_id=3, workdir="/no/such/folder", devices=[1]))
    await server.until(lambda: len(server.of_type("refused")) == 2, 10, "two refusals")
    details = {report.job_id: report.detail for report in server.of_type("refused")}
    assert "held by job 1, attempt 1" in details[2]
    await server.send(a_stop(attempt=9))
    await server.report("ended")
    await server.send(a_start(tmp_path, LOOP, attempt=9))
    await asyncio.sleep(1.0)
    assert len(list(agent.state.glob("attempts/*"))) == 1


async def test_prepare_holds_devices_and_a_port_until_stop(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """A prepared gang has its devices and, on node rank 0, a port; stop gives both back."""
    begin()
    prepare = PrepareCommand(command_id=next(_command_ids), job_id=1, attempt=1, devices=[0, 1], node_rank=0)
    await server.send(prepare)
    prepared = await server.report("prepared")
    assert prepared.port > 0
    assert prepared.address == "127.0.0.1"
    await server.send(a_start(tmp_path, "", job_id=2, devices=[0]))
    assert "held by job 1" in (await server.report("refused")).detail
    await server.send(a_stop())
    await server.report("ended")
    await server.send(a_start(tmp_path, "print('free again')", job_id=2, attempt=2, devices=[0]))
    await server.report("started")


async def test_a_notice_is_reported_once(server: FakeAgentServer, begin: Begin) -> None:
    """The file with the seconds left becomes one report, however often the agent looks, restarts included."""
    agent = begin()
    await server.until(lambda: server.heartbeats, 10, "registered")
    (agent.state / "notice").write_text("30")
    notice = await server.report("notice", 3.0)
    assert 25 < notice.gone_in_s <= 30
    agent.kill()
    beats = len(server.heartbeats)
    agent.start()
    await server.until(lambda: len(server.heartbeats) > beats + 4, 10, "the new agent is at work")
    assert len(server.of_type("notice")) == 1


async def test_a_job_sees_its_own_environment_and_none_of_the_agents_secrets(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """No join token, credential or other variable of the agent; only our client on PYTHONPATH, only its own names."""
    (tmp_path / "scheduler.py").write_text("MINE = 'my own scheduler'\n")
    (tmp_path / "train.py").write_text(
        "import json, os, sys\n"
        "before = set(sys.modules)\n"
        "from walras.training import Loop\n"
        "import walras\n"
        "loaded = sorted({name.split('.')[0] for name in set(sys.modules) - before})\n"
        "import scheduler\n"
        "third = [n for n in loaded if n not in sys.stdlib_module_names and n != 'walras']\n"
        "listing = sorted(os.listdir(os.path.dirname(walras.__file__)))\n"
        "print(json.dumps({'env': dict(os.environ), 'third': third, 'mine': scheduler.MINE, 'walras': listing}))\n"
    )
    begin()
    await server.send(a_start(tmp_path, "", argv=[sys.executable, "train.py"], env={"MY_OWN": "1", "RANK": "9"}))
    await server.report("ended")
    seen = json.loads(server.logs[1, 1, 0].splitlines()[-1])
    environment = seen["env"]
    text = json.dumps(environment)
    assert server.join_token not in text
    assert server.credential not in text
    assert "not-for-jobs" not in text
    assert (environment["MY_OWN"], environment["RANK"], environment["WALRAS_JOB_NAME"]) == ("1", "0", "digits")
    assert (environment["WALRAS_TOKEN"], environment["OMP_NUM_THREADS"]) == ("job-token-secret", "1")
    assert seen["third"] == []
    assert seen["mine"] == "my own scheduler"
    assert seen["walras"] in (["__init__.py", "training"], ["__init__.py", "__pycache__", "training"])


async def test_the_agent_keeps_its_secrets_to_itself(server: FakeAgentServer, begin: Begin, tmp_path: Path) -> None:
    """Credential and plans are readable by their owner alone, and no token is in an argument list."""
    agent = begin()
    await server.send(a_start(tmp_path, LOOP))
    await server.report("started")
    for path in [agent.state / "credential.json", *agent.state.glob("attempts/*/plan.json")]:
        assert path.stat().st_mode & 0o077 == 0
    for pid in [agent.pid, *agent.supervisors(), *agent.alive()]:
        arguments = command_line(pid)
        for secret in (server.join_token, server.credential, "job-token-secret"):
            assert secret.encode() not in arguments


async def test_a_wrong_join_token_ends_the_agent_with_1(server: FakeAgentServer, begin: Begin) -> None:
    """A machine that may not join says so and stops asking."""
    server.join_token = "another"
    agent = begin()
    # The fixture wrote the token it was given; the server has changed its mind since.
    server.join_token = "yet another"
    assert agent._process is not None
    assert await asyncio.to_thread(agent._process.wait, 10) == 1
    assert "does not accept this machine" in agent.log


async def test_a_gang_over_two_machines_meets_at_the_prepared_port(tmp_path: Path) -> None:
    """Prepare on both, start with the port that node rank 0 kept: the ranks meet; only one machine speaks of steps."""
    meet = (
        "import os, socket\n"
        "where = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 0:\n"
        "    peer = socket.create_server(where).accept()[0]; print('met', peer.recv(9).decode(), flush=True)\n"
        "else:\n"
        "    import time\n"
        "    for _ in range(100):\n"
        "        try: peer = socket.create_connection(where); break\n"
        "        except OSError: time.sleep(0.1)\n"
        "    peer.sendall(b'rank %d' % rank)\n"
        "from walras.training import Loop\n"
        "list(Loop().steps(range(5)))\n"
    )
    async with FakeAgentServer() as first, FakeAgentServer() as second:
        servers = (first, second)
        agents = []
        for index, server in enumerate(servers):
            folder = tmp_path / str(index)
            folder.mkdir()
            agents.append(AgentProcess(folder, server.url, server.join_token, node_id=f"node-{index}").start())
        try:
            for rank, server in enumerate(servers):
                command_id = next(_command_ids)
                prepare = PrepareCommand(command_id=command_id, job_id=1, attempt=1, devices=[0], node_rank=rank)
                await server.send(prepare)
            prepared = await first.report("prepared")
            assert (await second.report("prepared")).port == 0
            for rank, server in enumerate(servers):
                place = {"node_rank": rank, "first_rank": rank, "num_nodes": 2, "world_size": 2}
                meeting = {"master_address": prepared.address, "master_port": prepared.port}
                await server.send(a_start(tmp_path, meet, **place, **meeting))
            ends = [await server.report("ended") for server in servers]
        finally:
            for agent in agents:
                agent.close()
        assert [end.exit_code for end in ends] == [0, 0]
        assert first.logs[1, 1, 0] == b"met rank 1\n"
        assert first.of_type("progress")[-1].steps == 5
        assert not second.of_type("progress")
