"""The code of a job reaches machines that share no disk with its user, and a slow or failed fetch harms nobody."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agent_commands import Begin, a_start, a_stop
from tests.support.agent_process import AgentProcess
from tests.support.fake_agent_server import FakeAgentServer
from tests.support.real_server import FIFO, WALRAS, A, RealServer
from walras.content import chunk_name, hash_folder
from workers import processes

pytestmark = pytest.mark.slow

READ = [sys.executable, "train.py"]
TRAIN = "import os\nprint('read', open('data/text').read(), os.getcwd(), flush=True)\n"


def offer(server: FakeAgentServer, folder: Path, text: str = "one") -> str:
    """Put a folder with a script on the server; returns the tree's name."""
    for path, content in {"train.py": TRAIN, "data/text": text}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
        server.content[chunk_name(content.encode())] = content.encode()
    tree = hash_folder(folder, ["train.py", "data/text"])
    server.content[tree.name] = tree.encoded()
    return tree.name


async def test_the_code_is_fetched_once_and_each_attempt_has_its_own_copy(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """Two starts at once ask for each chunk once; the ranks start in the copy."""
    agent, name = begin(), offer(server, tmp_path / "src")
    server.gives_content.clear()
    for job_id in (1, 2):
        await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name, job_id=job_id, devices=[job_id - 1]))
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    await server.until(lambda: len(server.heartbeats[-1].here) == 2, 10, "both count as here")
    server.gives_content.set()
    await server.until(lambda: len(server.of_type("ended")) == 2, 40, "both end")
    for job_id in (1, 2):
        work = agent.attempt_folder(job_id, 1) / "work"
        assert server.logs[job_id, 1, 0] == f"read one {work}\n".encode()
    assert sorted(server.asked_content) == sorted(server.content)


async def test_leases_are_renewed_while_the_code_is_on_its_way(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """A fetch longer than the lease: heartbeats go on, and the supervisor begins with the newest lease."""
    server.lease_s = 5.0
    name = offer(server, tmp_path / "src")
    agent = begin()
    server.gives_content.clear()
    script = [sys.executable, "-c", "import time; time.sleep(600)"]
    begun_at = processes.boottime()
    await server.send(a_start(tmp_path, "", argv=script, workdir="", code=name, lease_s=5.0))
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    heard = len(server.heartbeats)
    await server.until(lambda: processes.boottime() > begun_at + 5.5, 20, "the first lease is over")
    await server.until(lambda: len(server.heartbeats) > heard + 3, 20, "heartbeats go on")
    assert not server.of_type("refused")
    server.gives_content.set()
    await server.report("started")
    assert agent.lease_until(1, 1) > begun_at + 5.5
    other = a_start(tmp_path, "", workdir="", job_id=2, devices=[0])
    await server.send(other)
    assert "held by job 1" in (await server.report("refused")).detail


async def test_a_stop_ends_a_start_whose_code_is_on_its_way(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """Nothing of it ever runs, its devices are free, and the next attempt has the code."""
    name = offer(server, tmp_path / "src")
    agent = begin()
    server.gives_content.clear()
    await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name))
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    await server.send(a_stop())
    assert (await server.report("ended")).cause == "exited"
    assert server.of_type("started") == []
    await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name, attempt=2))
    server.gives_content.set()
    await server.until(lambda: server.logs[1, 2, 0].startswith(b"read one"), 40, "the second attempt runs")
    assert agent.log.count("Traceback") == 0


async def test_a_fence_ends_a_start_whose_code_is_on_its_way(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    begin()
    name = offer(server, tmp_path / "src")
    server.gives_content.clear()
    await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name))
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    server.fenced.add((1, 1))
    await server.report("ended")
    await server.until(lambda: not server.heartbeats[-1].here, 10, "it is no longer here")
    assert server.of_type("started") == []


async def test_an_agent_killed_while_the_code_comes_refuses_the_start(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """kill -9 during the fetch: the next agent says that nothing was started, and starts the next attempt."""
    name = offer(server, tmp_path / "src")
    agent = begin()
    server.gives_content.clear()
    await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name))
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    agent.kill()
    agent.start()
    assert "restarted before" in (await server.report("refused")).detail
    server.gives_content.set()
    await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name, attempt=2))
    await server.until(lambda: server.logs[1, 2, 0].startswith(b"read one"), 40, "the second attempt runs")


@pytest.mark.parametrize("is_damaged", [True, False])
async def test_code_that_cannot_be_had_is_refused_with_words(
    server: FakeAgentServer, begin: Begin, tmp_path: Path, is_damaged: bool
) -> None:
    begin()
    name = offer(server, tmp_path / "src")
    if is_damaged:
        server.content[chunk_name(b"one")] = b"two"
    else:
        del server.content[name]
    await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name))
    assert (await server.report("refused")).detail.startswith("cannot start: the job's code")


async def test_what_a_rank_did_to_the_cache_reaches_no_other_job(
    server: FakeAgentServer, begin: Begin, tmp_path: Path
) -> None:
    """The cached tree is changed behind the agent: it is fetched anew."""
    name = offer(server, tmp_path / "src")
    agent = begin()
    await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name))
    await server.report("ended")
    (agent.state / "code" / name / "data" / "text").write_text("evil")
    await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name, job_id=2))
    await server.until(lambda: len(server.of_type("ended")) == 2, 40, "the second job ends")
    assert server.logs[2, 1, 0].startswith(b"read one")


async def test_an_unreachable_store_is_tried_again(server: FakeAgentServer, begin: Begin, tmp_path: Path) -> None:
    name = offer(server, tmp_path / "src")
    agent = begin()
    server.gives_content.clear()
    await server.send(a_start(tmp_path, "", argv=READ, workdir="", code=name))
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    server.is_down = True
    server.gives_content.set()
    await server.until(lambda: "its code is not here yet" in agent.log, 40, "a fetch has failed")
    server.is_down = False
    await server.until(lambda: server.logs[1, 1, 0].startswith(b"read one"), 40, "it runs")


def submit(server: RealServer, folder: Path) -> int:
    """`walras submit` in the user's folder; returns the job's number."""
    env = {**os.environ, "WALRAS_SERVER": server.url, "WALRAS_TOKEN_FILE": str(server.data / "admin.token")}
    command = [WALRAS, "submit", "job.yaml", "-q"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_folder_that_exists_nowhere_else_runs_on_both_machines(tmp_path: Path) -> None:
    """`workdir: .` runs wherever the job lands; what was edited since runs as edited."""
    user = tmp_path / "home"
    (user / "data").mkdir(parents=True)
    go = tmp_path / "go"
    stay = f"import time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.1)\n"
    (user / "train.py").write_text(TRAIN + stay)
    (user / "data" / "text").write_text("first")
    (user / "job.yaml").write_text(f"run: [{sys.executable}, train.py]\nworkdir: .\nresources: {{accelerators: a}}\n")
    server = RealServer(tmp_path, [A], FIFO).start()
    try:
        agents: list[AgentProcess] = [server.start_agent(name) for name in ("n1", "n2")]
        jobs = [submit(server, user), submit(server, user)]
        (user / "data" / "text").write_text("second")
        jobs.append(submit(server, user))
        for job_id in jobs[:2]:
            server.until_running(job_id)
        go.touch()
        for job_id in jobs:
            server.until_state(job_id, "SUCCEEDED", 60)
        told = [server.log(job_id, 1).split()[1] for job_id in jobs]
        assert told == ["first", "first", "second"]
        places = {server.log(job_id, 1).split()[2].split("/attempts/")[0] for job_id in jobs[:2]}
        assert places == {str(agent.state) for agent in agents}
    finally:
        server.close()
