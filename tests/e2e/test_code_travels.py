"""What travels: a job's code, data, environment and setup on the way there, its results on the way back."""

import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.agent_commands import AgentStand, a_stop
from tests.support.real_server import FIFO, A, RealServer, Serve, wait_for
from tests.support.waiting import stays
from walras.storage.code_snapshot import snapshot_folder
from walras.storage.content import chunk_name, hash_folder
from workers import processes

pytestmark = pytest.mark.slow

READ = [sys.executable, "train.py"]
TRAIN = "import os\nprint('read', open('data/text').read(), os.getcwd(), flush=True)\n"


def offer(server: AgentStand, folder: Path, text: str = "one") -> str:
    """Put a folder with a script on the server; returns the tree's name."""
    for path, content in {"train.py": TRAIN, "data/text": text}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
        server.content[chunk_name(content.encode())] = content.encode()
    tree = hash_folder(folder, ["train.py", "data/text"])
    server.content[tree.name] = tree.encoded()
    return tree.name


async def test_the_code_is_fetched_once_and_each_attempt_has_its_own_copy(server: AgentStand, tmp_path: Path) -> None:
    """Two starts at once ask for each chunk once; the ranks start in the copy."""
    agent, name = server.begin(), offer(server, tmp_path / "src")
    server.gives_content.clear()
    for job_id in (1, 2):
        await server.start("", argv=READ, workdir="", code=name, job_id=job_id, devices=[job_id - 1])
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    await server.until(lambda: len(server.heartbeats[-1].here) == 2, 10, "both count as here")
    server.gives_content.set()
    await server.until(lambda: len(server.of_type("ended")) == 2, 40, "both end")
    for job_id in (1, 2):
        work = agent.attempt_folder(job_id, 1) / "work"
        assert server.logs[job_id, 1, 0] == f"read one {work}\n".encode()
    assert sorted(server.asked_content) == sorted(server.content)


async def test_a_stop_while_the_results_are_on_their_way_is_confirmed_and_cuts_nothing(
    server: AgentStand, tmp_path: Path
) -> None:
    """The job ended by itself: no process is left to be stopped, the results arrive whole, and then its end is told."""
    server.begin()
    server.gives_content.clear()
    await server.start("open('result', 'w').write('x' * 100_000)", needs={"outputs": ["result"]})
    await server.until(lambda: server.offered_content, 30, "the results are on their way")
    for _ in range(2):
        await server.send(stop := a_stop())
        await server.acknowledged(stop.command_id)
    assert not server.of_type("ended")
    server.gives_content.set()
    ended = await server.report("ended")
    assert (ended.cause, ended.exit_code, ended.unfinished) == ("exited", 0, False)
    assert [(told.files, told.size_bytes, told.problem) for told in server.outputs] == [(1, 100_000, "")]


async def test_leases_are_renewed_while_the_code_is_on_its_way(server: AgentStand, tmp_path: Path) -> None:
    """A fetch longer than the lease: heartbeats go on, and the supervisor begins with the newest lease."""
    server.lease_s = 5.0
    name = offer(server, tmp_path / "src")
    agent = server.begin()
    server.gives_content.clear()
    script = [sys.executable, "-c", "import time; time.sleep(600)"]
    begun_at = processes.boottime()
    await server.start("", argv=script, workdir="", code=name, lease_s=5.0)
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    heard = len(server.heartbeats)
    await server.until(lambda: processes.boottime() > begun_at + 5.5, 20, "the first lease is over")
    await server.until(lambda: len(server.heartbeats) > heard + 3, 20, "heartbeats go on")
    assert not server.of_type("refused")
    server.gives_content.set()
    await server.report("started")
    assert agent.lease_until(1, 1) > begun_at + 5.5
    await server.start("", workdir="", job_id=2, devices=[0])
    assert "held by job 1" in (await server.report("refused")).detail


@pytest.mark.parametrize("end", ["stop", "fence", "kill"])
async def test_what_ends_while_its_code_is_on_its_way_starts_nothing(
    server: AgentStand, tmp_path: Path, end: str
) -> None:
    """Stopped, fenced, or with kill -9 of its agent, as the next one says: the next attempt has the devices and the
    code."""
    name = offer(server, tmp_path / "src")
    agent = server.begin()
    server.gives_content.clear()
    await server.start("", argv=READ, workdir="", code=name)
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    if end == "stop":
        await server.send(a_stop())
        assert (await server.report("ended")).cause == "exited"
    elif end == "fence":
        server.fenced.add((1, 1))
        await server.report("ended")
        await server.until(lambda: not server.heartbeats[-1].here, 10, "it is no longer here")
    else:
        agent.kill()
        agent.start()
        assert "restarted before" in (await server.report("refused")).detail
    assert server.of_type("started") == []
    await server.start("", argv=READ, workdir="", code=name, attempt=2)
    server.gives_content.set()
    await server.until(lambda: server.logs[1, 2, 0].startswith(b"read one"), 40, "the second attempt runs")
    assert agent.log.count("Traceback") == 0


@pytest.mark.parametrize("is_damaged", [True, False])
async def test_code_that_cannot_be_had_is_refused_with_words(
    server: AgentStand, tmp_path: Path, is_damaged: bool
) -> None:
    server.begin()
    name = offer(server, tmp_path / "src")
    if is_damaged:
        server.content[chunk_name(b"one")] = b"two"
    else:
        del server.content[name]
    await server.start("", argv=READ, workdir="", code=name)
    refused = await server.report("refused")
    assert refused.detail.startswith("cannot start: the job's code")
    assert refused.lost == ("" if is_damaged else name)


async def test_what_a_rank_did_to_the_cache_reaches_no_other_job(server: AgentStand, tmp_path: Path) -> None:
    """The cached tree is changed behind the agent: it is fetched anew."""
    name = offer(server, tmp_path / "src")
    agent = server.begin()
    await server.start("", argv=READ, workdir="", code=name)
    await server.report("ended")
    (agent.state / "code" / name / "data" / "text").write_text("evil")
    await server.start("", argv=READ, workdir="", code=name, job_id=2)
    await server.until(lambda: len(server.of_type("ended")) == 2, 40, "the second job ends")
    assert server.logs[2, 1, 0].startswith(b"read one")


async def test_an_unreachable_store_is_tried_again(server: AgentStand, tmp_path: Path) -> None:
    name = offer(server, tmp_path / "src")
    agent = server.begin()
    server.gives_content.clear()
    await server.start("", argv=READ, workdir="", code=name)
    await server.until(lambda: server.asked_content, 30, "the fetch has begun")
    server.is_down = True
    server.gives_content.set()
    await server.until(lambda: "its code is not here yet" in agent.log, 40, "a fetch has failed")
    server.is_down = False
    await server.until(lambda: server.logs[1, 1, 0].startswith(b"read one"), 40, "it runs")


@pytest.fixture(scope="module")
def pair(serve_all: Serve) -> RealServer:
    """With two machines of one device."""
    server = serve_all([A], FIFO)
    for name in ("n1", "n2"):
        server.start_agent(name)
    return server


def users_folder(folder: Path, text: str, more_code: str = "", hold: str = "false") -> Path:
    """A folder that exists nowhere else, with a script, the text that it reads, and a job file."""
    user = folder / "home"
    (user / "data").mkdir(parents=True)
    (user / "data" / "text").write_text(text)
    (user / "train.py").write_text(TRAIN + more_code)
    job = f"run: [{sys.executable}, train.py]\nworkdir: .\nhold: {hold}\nresources: {{accelerators: a}}\n"
    (user / "job.yaml").write_text(job)
    return user


def submit(server: RealServer, folder: Path) -> int:
    """`walras submit` in the user's folder; returns the job's number."""
    return int(server.told("submit", "job.yaml", "-q", cwd=folder))


def test_a_folder_that_exists_nowhere_else_runs_on_both_machines(pair: RealServer, tmp_path: Path) -> None:
    """`workdir: .` runs wherever the job lands; what was edited since runs as edited."""
    go = tmp_path / "go"
    user = users_folder(tmp_path, "first", f"import time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.1)\n")
    jobs = [submit(pair, user), submit(pair, user)]
    (user / "data" / "text").write_text("second")
    jobs.append(submit(pair, user))
    for job_id in jobs[:2]:
        pair.until_running(job_id)
    go.touch()
    for job_id in jobs:
        pair.until_state(job_id, "SUCCEEDED", 60)
    told = [pair.log(job_id, 1).split()[1] for job_id in jobs]
    assert told == ["first", "first", "second"]
    places = {pair.log(job_id, 1).split()[2].split("/attempts/")[0] for job_id in jobs[:2]}
    assert places == {str(agent.state) for agent in pair.agents.values()}


WRITE = """
import os, time
os.makedirs("out/deep", exist_ok=True)
open("out/deep/model.bin", "wb").write(b"w" * 5_000_000)
os.symlink("/etc/passwd", "out/link")
os.mkfifo("out/pipe")
open("result.json", "w").write("{}")
"""
SAVING = """
import time
from pathlib import Path
from walras.training import Checkpoint, Loop
loop = Loop(Checkpoint(every_s=0.5))
for step in loop.steps(range(100000)):
    Path("log.txt").write_text(f"step {step}")
    time.sleep(0.05)
"""


def test_results_are_here_once_the_job_has_succeeded(pair: RealServer, tmp_path: Path) -> None:
    """`show` lists them with what was left out, `fetch` brings all or a part, and the sweep leaves them alone."""
    server = pair
    spec = {"run": [sys.executable, "-c", WRITE], "workdir": None, "outputs": ["out/", "./result.json", "gone"]}
    job = server.submit(resources={"accelerators": "a"}, **spec)
    server.until_state(job, "SUCCEEDED", 40)
    shown = server.command("show", str(job), cwd=tmp_path).stdout
    assert "out/deep/model.bin" in shown
    assert "not kept: " in shown
    assert "gone: No such file" in shown
    assert "out/link is no regular file" in shown
    assert "out/pipe is no regular file" in shown
    server.told("fetch", str(job), cwd=tmp_path)
    got = {path.relative_to(tmp_path / f"job-{job}") for path in (tmp_path / f"job-{job}").rglob("*")}
    assert {str(path) for path in got} == {"out", "out/deep", "out/deep/model.bin", "result.json", ".walrasignore"}
    assert (tmp_path / f"job-{job}/out/deep/model.bin").read_bytes() == b"w" * 5_000_000
    (tmp_path / "train.py").touch()
    assert [file.path for file in snapshot_folder(tmp_path).files if file.path.startswith(f"job-{job}/")] == []
    server.told("fetch", str(job), "out/deep", "--to", "part", cwd=tmp_path)
    assert not (tmp_path / "part/result.json").exists()
    assert (tmp_path / "part/out/deep/model.bin").stat().st_size == 5_000_000
    assert "is there already" in server.command("fetch", str(job), cwd=tmp_path).stderr
    assert "no 'other'" in server.command("fetch", str(job), "other", "--to", "x", cwd=tmp_path).stderr


def test_code_that_a_restore_did_not_bring_back_is_named_and_may_be_sent_again(
    pair: RealServer, tmp_path: Path
) -> None:
    """The job is held with the name of what it lacks, and runs once the folder was sent again."""
    user = users_folder(tmp_path, "restored", hold="true")
    job = submit(pair, user)
    content = pair.data / "content"
    for path in [*content.glob("??/*")]:
        path.unlink()
    pair.told("release", str(job))
    wait_for(lambda: "is not with the server" in (pair.job(job)["detail"] or ""), 60, "it is held by name")
    assert pair.state(job) == "HELD"
    assert "is not with the server" in pair.command("explain", str(job)).stdout
    submit(pair, user)
    pair.told("release", str(job))
    pair.until_state(job, "SUCCEEDED", 60)


def test_a_job_cancelled_while_it_runs_leaves_what_it_had(pair: RealServer, tmp_path: Path) -> None:
    script = "import time; open('log.txt', 'w').write('so far'); print('up', flush=True); time.sleep(600)"
    spec = {"run": [sys.executable, "-c", script], "workdir": None, "outputs": "log.txt", "grace_period": 1}
    job = pair.submit(resources={"accelerators": "a"}, **spec)
    wait_for(lambda: "up" in pair.log(job, 1), 30, "the script is up")
    pair.told("cancel", str(job))
    pair.until_state(job, "CANCELLED", 40)
    fetch = ("fetch", str(job), "--to", "got")
    wait_for(lambda: pair.command(*fetch, cwd=tmp_path).returncode == 0, 30, "it is kept")
    assert (tmp_path / "got/log.txt").read_text() == "so far"


def test_results_come_with_checkpoints_while_the_job_runs(pair: RealServer, tmp_path: Path) -> None:
    spec = {"run": [sys.executable, "-c", SAVING], "workdir": None, "outputs": "log.txt"}
    job = pair.submit(resources={"accelerators": "a"}, **spec)
    pair.until_running(job)
    look = lambda: "log.txt" in pair.command("show", str(job), cwd=tmp_path).stdout  # noqa: E731
    wait_for(look, 40, f"results of a running job; {pair.log(job, 1)}")
    assert pair.state(job) == "RUNNING"
    pair.call("POST", f"/jobs/{job}/cancel")
    pair.until_state(job, "CANCELLED", 40)


TWO = {**A, "shape": "ax2", "accelerators": 2}
SHOW = """
import os, pathlib, sys, tiny, torch
data = pathlib.Path(os.environ["WALRAS_INPUTS"]) / "data"
made = pathlib.Path(os.environ["WALRAS_SETUP"]) / "made"
print("sees", data.read_text(), made.read_text().strip(), tiny.NAME, bool(torch.__version__), sys.prefix, flush=True)
"""


def wheel(folder: Path) -> Path:
    """A distribution of one module, made by hand: nothing is asked of any index."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": "NAME = 'installed'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return path


def test_two_ranks_and_the_next_job_share_what_was_made_once(serve: Serve, tmp_path: Path) -> None:
    """Data, environment (over the machine's torch) and setup are there for both ranks; a second job makes nothing."""
    (tmp_path / "data.txt").write_text("the data")
    spec = {
        "run": ["python", "-c", SHOW], "workdir": None, "inputs": {"data": f"file:{tmp_path}/data.txt"},
        "python": {"packages": [str(wheel(tmp_path))]},
        "setup": f'echo ran >> {tmp_path}/setups; echo made > "$WALRAS_SETUP/made"',
        "resources": {"accelerators": "a:2"},
    }  # fmt: skip
    server = serve([TWO], FIFO)
    server.start_agent(pool=TWO)
    prefixes = set()
    for _ in range(2):
        job = server.submit(**spec)
        server.until_state(job, "SUCCEEDED", 90)
        for rank in (0, 1):
            told = next(line for line in server.log(job, 1, rank).splitlines() if line.startswith("sees"))
            assert told.startswith("sees the data made installed True ")
            prefixes.add(told.split()[-1])
    assert (tmp_path / "setups").read_text() == "ran\n"
    assert len(prefixes) == 1
    assert "/prepared/python/" in prefixes.pop()


def test_what_is_brought_does_not_count_as_running(pair: RealServer, tmp_path: Path) -> None:
    """However long it takes: the job is STARTING, `max_runtime` begins with its program, the log says what comes."""
    inputs = {"d": {"command": f"until [ -e {tmp_path}/go ]; do sleep 0.1; done"}}
    job = pair.submit(run="sleep 300", workdir=None, inputs=inputs, limits={"max_runtime": "4s"})
    wait_for(lambda: "[walras] brings what the job needs: input d" in pair.log(job, 1), 60, "it is being brought")
    stays(lambda: pair.job(job)["state"] == "STARTING", 6.0, "it starts")
    (tmp_path / "go").touch()
    pair.until_state(job, "TIMEOUT", 60)
    (attempt,) = pair.job(job)["attempt_list"]
    assert attempt["reason"] == "POLICY:MAX_RUNTIME"


def test_a_setup_that_fails_fails_the_job_once_by_name(pair: RealServer, tmp_path: Path) -> None:
    """Not on the second machine, and not as often as `retry` would allow."""
    server = pair
    setup = f"echo ran >> {tmp_path}/setups; echo no such compiler >&2; exit 7"
    spec = {"run": [sys.executable, "-c", "print('never')"], "workdir": None, "setup": setup}
    job = server.submit(**spec, resources={"accelerators": "a"}, retry={"max_restarts": 5})
    server.until_state(job, "FAILED", 60)
    stays(lambda: server.job(job)["attempts"] == 1, 2.0, "it is not tried again")
    found = server.job(job)
    assert (tmp_path / "setups").read_text() == "ran\n"
    assert "setup" in found["detail"]
    log = server.log(job, 1)
    assert "no such compiler" in log
    assert "[walras] not prepared: setup ended with code 7" in log
    assert "never" not in log
