"""What a real agent and real supervisors make of the server's commands: start, log, stop, resume, keep secrets."""

import json
import sys
import time
from pathlib import Path

import pytest

from tests.support.agent_commands import LOOP, Begin, a_start, a_stop, next_command_id
from tests.support.agent_process import AgentProcess
from tests.support.fake_agent_server import FakeAgentServer
from walras.contract import DATA_WAIT_VALUE, SAVES_AS_STATED
from walras.wire import Manifest, PrepareCommand

pytestmark = pytest.mark.slow


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


async def test_commands_and_logs_do_not_wait_for_a_heartbeat(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """A long poll carries a command at once, and output shows up while the job runs, in a small part of a heartbeat."""
    server.heartbeat_s = 60.0
    begin()
    await server.until(lambda: len(server.heartbeats) >= 2, 30, "the agent waits for commands")
    says = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.2)"
    start = a_start(tmp_path, says, lease_s=600.0)
    await server.send(start)
    await server.acknowledged(start.command_id, 10.0)
    await server.report("started")
    # One line may be late where the machine stands still for a moment; the half of many is not.
    took_s: list[float] = []
    while len(took_s) < 15:
        before = len(server.logs[1, 1, 0])
        await server.until(lambda before=before: len(server.logs[1, 1, 0]) > before, 20.0, "more output")  # type: ignore[misc]
        whole, _, _ = server.logs[1, 1, 0].rpartition(b"\n")
        took_s.append(time.monotonic() - float(whole.splitlines()[-1]))
    assert sorted(took_s)[7] < server.heartbeat_s / 10


async def test_preempted_and_resumed_from_the_named_manifest(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """Stop: checkpoint, commit, 85. Start with that manifest: the loop goes on from there, at the emulated pace."""
    speeds = tmp_path / "speeds.yaml"
    speeds.write_text("cnn: {a100: 10}\n")
    begin(speeds=str(speeds))
    await server.send(a_start(tmp_path, LOOP))

    def keeps_its_pace() -> bool:
        found = server.of_type("progress")
        return bool(found) and found[-1].steps_per_s == pytest.approx(10, rel=0.1)

    await server.until(keeps_its_pace, 60, "the emulated pace is measured")
    await server.send(a_stop())
    ended = await server.report("ended")
    committed = await server.report("committed")
    assert ended.exit_code == 85
    progress = server.of_type("progress")[-1]
    assert progress.pace_steps_per_s == 10
    # The loop counts which part of a step waits for data (next to none here), once enough steps were seen.
    assert progress.first_values.pop(DATA_WAIT_VALUE, 0.0) < 0.2
    # The script says itself how often it saves: never, unless it is asked.
    assert progress.first_values == {"loss": 1.0, "saves_checkpoints": SAVES_AS_STATED}
    resume = Manifest.model_validate(committed.manifest.model_dump())
    await server.send(a_start(tmp_path, LOOP, attempt=2, resume=resume))
    wanted = f"resumed at {int(resume.step)} {int(resume.step)}".encode()
    await server.until(lambda: wanted in server.logs[1, 2, 0], 30, "the resumed job says where it is")


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
        "    for _ in range(600):\n"
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
                command_id = next_command_id()
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
