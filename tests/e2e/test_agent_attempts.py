"""What a real agent and real supervisors make of commands, of restarts, and of a spot machine's notices."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.agent_commands import LOOP, AgentStand, a_stop
from tests.support.agent_process import AgentProcess
from tests.support.metadata_service import metadata_service
from walras.contract import DATA_WAIT_VALUE, SAVES_AS_STATED
from walras.wire import Manifest
from workers import processes

pytestmark = pytest.mark.slow


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_a_job_runs_from_start_to_end_with_its_logs_complete(server: AgentStand) -> None:
    """Started, its output shipped, ended: the log is complete by the time the end is reported."""
    server.begin()
    await server.start("print('hello'); print('x' * 600_000)")
    await server.report("started")
    ended = await server.report("ended")
    assert (ended.cause, ended.exit_code) == ("exited", 0)
    assert server.logs[1, 1, 0] == b"hello\n" + b"x" * 600_000 + b"\n"


async def test_commands_and_logs_do_not_wait_for_a_heartbeat(server: AgentStand) -> None:
    """A long poll carries a command at once, and output shows up while the job runs, in a small part of a heartbeat."""
    server.heartbeat_s = 60.0
    server.begin()
    await server.until(lambda: len(server.heartbeats) >= 2, 30, "the agent waits for commands")
    says = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.2)"
    start = await server.start(says, lease_s=600.0)
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


async def test_preempted_and_resumed_from_the_named_manifest(server: AgentStand, tmp_path: Path) -> None:
    """Stop: checkpoint, commit, 85. Start with that manifest: the loop goes on from there, at the emulated pace."""
    speeds = tmp_path / "speeds.yaml"
    speeds.write_text("cnn: {a100: 10}\n")
    server.begin(speeds=str(speeds))
    await server.start(LOOP)

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
    await server.start(LOOP, attempt=2, resume=resume)
    wanted = f"resumed at {int(resume.step)} {int(resume.step)}".encode()
    await server.until(lambda: wanted in server.logs[1, 2, 0], 30, "the resumed job says where it is")


async def test_a_job_sees_its_own_environment_and_none_of_the_agents_secrets(
    server: AgentStand, tmp_path: Path
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
    server.begin()
    await server.start("", argv=[sys.executable, "train.py"], env={"MY_OWN": "1", "RANK": "9"})
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


async def test_the_agent_keeps_its_secrets_to_itself(server: AgentStand) -> None:
    """Credential and plans are readable by their owner alone, and no token is in an argument list."""
    agent = server.begin()
    await server.start(LOOP)
    await server.report("started")
    for path in [agent.state / "credential.json", *agent.state.glob("attempts/*/plan.json")]:
        assert path.stat().st_mode & 0o077 == 0
    for pid in [agent.pid, *agent.supervisors(), *agent.alive()]:
        arguments = command_line(pid)
        for secret in (server.join_token, server.credential, "job-token-secret"):
            assert secret.encode() not in arguments


def starter_of(agent: AgentProcess) -> psutil.Process:
    """The process that forks the agent's supervisors."""
    children = psutil.Process(agent.pid).children()
    (starter,) = [child for child in children if child.cmdline()[-2:] == ["-m", "workers.supervisor"]]
    return starter


async def test_a_starter_that_dies_is_replaced_and_one_without_an_agent_ends(server: AgentStand) -> None:
    """Running attempts notice neither; the next start works."""
    agent = server.begin()
    await server.start(LOOP)
    await server.report("started")
    running, first = agent.supervisors(), starter_of(agent)
    first.kill()
    await server.start("", job_id=2, devices=[1], argv=["true"])
    ended = await server.report("ended")
    assert (ended.job_id, ended.exit_code, agent.supervisors()) == (2, 0, running)
    second = starter_of(agent)
    assert second.pid != first.pid
    agent.kill()
    await server.until(lambda: not second.is_running(), 30, "the starter ends with its agent")
    assert agent.supervisors() == running


async def test_an_attempt_has_nothing_of_one_before_it(server: AgentStand) -> None:
    """Its supervisor and guardian know neither variables nor open files of another, nor do the ranks."""
    agent = server.begin()
    await server.start(LOOP, env={"SECRET": "s3cret-of-the-first"})
    await server.report("started")
    (first,) = agent.supervisors()
    says = "import os, time; print(os.listdir('/proc/self/fd'), flush=True); time.sleep(300)"
    await server.start(says, job_id=2, devices=[1])
    await server.until(lambda: b"]" in server.logs[2, 1, 0], 30, "it says which files it has open")
    assert len(json.loads(server.logs[2, 1, 0].replace(b"'", b'"'))) == 4  # three, and the listing
    (second,) = set(agent.supervisors()) - {first}
    folder = str(agent.attempt_folder(1, 1))
    for pid in (second, processes.parent_of(second), starter_of(agent).pid):
        process = Path(f"/proc/{pid}")
        assert b"s3cret" not in (process / "environ").read_bytes()
        assert not [path for file in (process / "fd").iterdir() if (path := os.readlink(file)).startswith(folder)]


@pytest.mark.parametrize("crash", ["none", "supervisor", "machine"])
async def test_secrets_are_gone_from_the_machine_with_the_attempt(server: AgentStand, crash: str) -> None:
    """However it ends: by itself, with a supervisor that is killed, or with everything at once and an agent later."""
    agent = server.begin()
    secret = "s3cret-of-the-job"
    run = "import time, os; print(len(os.environ['MINE']), flush=True)" + (
        "" if crash == "none" else "; time.sleep(600)"
    )
    await server.start("", argv=[sys.executable, "-c", run], env={"MINE": secret})
    await server.report("started")
    if crash != "none":
        for pid in ([agent.pid] if crash == "machine" else []) + agent.supervisors():
            os.kill(pid, signal.SIGKILL)
    if crash == "machine":
        server.begin()
    await server.report("ended")
    states = [path for path in agent.state.rglob("*") if path.is_file()]
    assert states
    assert not [path for path in states if secret.encode() in path.read_bytes()]


async def test_a_fenced_attempt_is_stopped_at_once(server: AgentStand) -> None:
    """An attempt whose fence is old gets no grace."""
    agent = server.begin()
    await server.start(LOOP, lease_s=6000.0, grace_s=600.0)
    await server.report("progress")
    server.fenced.add((1, 1))
    await server.report("ended", 20.0)
    assert agent.alive() == []
    assert not server.of_type("committed")


async def test_a_hint_saves_and_a_notice_is_reported(server: AgentStand) -> None:
    """After the recommendation the job has a checkpoint and runs on; the notice arrives with the seconds left."""
    async with metadata_service() as ec2:
        server.begin(spot_notices=True, metadata_url=ec2.url)
        await server.start(LOOP)
        progress = await server.report("progress")
        ec2.recommend()
        hint = await server.report("hint")
        assert "2026-05-01" in hint.detail
        committed = await server.report("committed")
        assert committed.manifest.step >= progress.steps
        steps = max(report.steps for report in server.of_type("progress"))
        await server.until(lambda: max(r.steps for r in server.of_type("progress")) > steps, 40, "it runs on")
        ec2.take_away(120)
        notice = await server.report("notice")
        assert 100 < notice.gone_in_s <= 120
        assert len(server.of_type("hint")) == 1
        assert not server.of_type("ended")
