"""Functions as jobs: what travels, what runs it, and what comes back, without a scheduler in between."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import walras
from walras import function_jobs
from walras.client import BlockingClient
from walras.connection.transport import Patience
from walras.errors import ConfigError, ServerUnreachable, UserError
from walras.function_jobs import FunctionFuture, NoResult
from walras.states import JobState
from walras.storage.content import chunk_name, hash_folder

TOKEN = "walras_user_secret"
QUICK = Patience(tries=3, backoff_s=0.0, poll_s=0.01, call_timeout_s=5.0, connect_timeout_s=1.0)
RESULTS = Path(".walras-function/results")


@pytest.fixture
def client(fake: Any) -> Iterator[BlockingClient]:
    with BlockingClient(fake.url, TOKEN, patience=QUICK) as client:
        yield client


class Machine:
    """Runs the jobs that the fake server was given, as an agent would: files of the tree, the command, the outputs."""

    def __init__(self, fake: Any, folder: Path) -> None:
        self._fake = fake
        self._folder = folder

    def place(self, job_id: int) -> Path:
        """The job's working folder, as it is before its ranks start."""
        place = self._folder / f"job-{job_id}"
        for file in self._fake.trees[self._fake.jobs[job_id]["spec"]["code"]["tree"]].files:
            (place / file.path).parent.mkdir(parents=True, exist_ok=True)
            (place / file.path).write_bytes(b"".join(self._fake.content[name] for name in file.chunks))
        return place

    def run(self, job_id: int, **environment: str) -> subprocess.CompletedProcess[str]:
        place, job = self.place(job_id), self._fake.jobs[job_id]
        command = [sys.executable, *job["spec"]["run"][1:]]
        index = {} if job.get("sweep_index") is None else {"WALRAS_ARRAY_INDEX": str(job["sweep_index"])}
        variables = {"PATH": os.environ["PATH"], **index, **environment}
        done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, timeout=30)
        self.keep(job_id, place, "SUCCEEDED" if done.returncode == 0 else "FAILED")
        return done

    def keep(self, job_id: int, place: Path, state: str, **fields: Any) -> None:
        """The end of the job, with the outputs that lie in its folder."""
        paths = [path.relative_to(place).as_posix() for path in place.glob(f"{RESULTS}/*")]
        tree = hash_folder(place, paths)
        for path in paths:
            content = (place / path).read_bytes()
            self._fake.content[chunk_name(content)] = content
        self._fake.trees[tree.name] = tree
        kept = {"node_rank": 0, "attempt": 1, "tree": tree.name, "files": len(paths), "size_bytes": tree.size}
        self._fake.outputs[job_id] = [{**kept, "collected_at": "2026-11-05T18:00:00Z"}]
        reason = {"reason": "USER:EXIT_CODE", "detail": "rank 0 exited with 1"} if state == "FAILED" else {}
        self._fake.jobs[job_id] |= {"state": state, "attempts": 1, "reason": None, "detail": "", **reason, **fields}


@pytest.fixture
def machine(fake: Any, tmp_path: Path) -> Machine:
    return Machine(fake, tmp_path / "machine")


def test_a_value_comes_back(fake: Any, client: BlockingClient, machine: Machine) -> None:
    """Arguments of both kinds go there, the job says what it is, and the value is fetched once it has ended."""

    def weigh(items: list[int], *, scale: float) -> dict[str, float]:
        print("weighing")
        return {"sum": sum(items) * scale}

    future = walras.submit(weigh, [1, 2, 3], scale=0.5, client=client, resources={"accelerators": "a100:2"})
    spec = fake.jobs[future.job_id]["spec"]
    assert spec["name"] == "weigh"
    assert spec["resources"] == {"accelerators": "a100:2"}
    assert spec["run"][:2] == ["python", ".walras-function/run.py"]
    assert spec["run"][2].endswith("weigh")
    assert spec["outputs"] == [".walras-function/results"]
    assert not future.done()
    with pytest.raises(TimeoutError, match=r"job 1 has not ended within 0.05 s: it is PENDING: waits for accelerators"):
        future.result(timeout=0.05)
    assert machine.run(1).stdout == "weighing\n"
    assert future.result() == {"sum": 3.0}
    assert future.exception() is None
    assert future.done()
    assert future.job.state is JobState.SUCCEEDED
    asked = len(fake.requests)
    assert future.result() == {"sum": 3.0}
    assert len(fake.requests) == asked, "a result is fetched once"


def test_a_result_is_waited_for_while_the_server_restarts(fake: Any, client: BlockingClient, machine: Machine) -> None:
    """A script that waits for hours outlives it; a server that never answered is told at once."""
    future, asked = function_jobs.submit(abs, -3, client=client), [0]

    def restart(_: int) -> None:
        if fake.requests[-1][:2] == ("GET", "/api/v1/jobs/1"):
            asked[0] += 1
            fake.script = [503] if 1 < asked[0] < 10 else []
            if asked[0] == 10:
                machine.run(1)

    fake.on_request = restart
    assert future.result() == 3
    assert asked[0] == 10
    fake.on_request = lambda _: fake.script.append(503)
    with pytest.raises(ServerUnreachable):
        FunctionFuture[int](client, 1).result()


def test_an_exception_comes_back_as_itself(client: BlockingClient, machine: Machine) -> None:
    """With what the job's traceback said as a note, without our own frames."""

    def fail(code: int) -> None:
        raise ValueError("wrong", code)

    future = walras.submit(fail, 3, client=client)
    assert machine.run(1).returncode == 1
    with pytest.raises(ValueError, match="wrong") as caught:
        future.result()
    assert caught.value.args == ("wrong", 3)
    (note,) = caught.value.__notes__
    assert note.startswith("in job 1:\nTraceback")
    assert "in fail" in note
    assert "ValueError: ('wrong', 3)" in note
    assert "run_call" not in note
    assert future.exception() is caught.value


def test_an_exception_that_cannot_be_pickled_is_told_in_words(client: BlockingClient, machine: Machine) -> None:
    """Its traceback comes all the same."""

    def fail() -> None:
        class Odd(Exception):
            def __reduce__(self) -> str:
                raise TypeError("not this one")

        raise Odd("here")

    future = walras.submit(fail, client=client)
    machine.run(1)
    error = future.exception()
    assert isinstance(error, NoResult)
    assert "cannot be unpickled" in str(error)
    assert "Odd: here" in error.__notes__[0]


def test_a_result_that_cannot_be_sent_is_refused_by_name(
    fake: Any, client: BlockingClient, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be pickled, and one over the bound, in the job and on the way back."""

    def opened() -> Any:
        return (number for number in range(3))

    def large() -> bytes:
        return b"x" * 5000

    monkeypatch.setattr(function_jobs, "RESULT_BYTES", 1000)
    futures = [walras.submit(function, client=client) for function in (opened, large)]
    for future in futures:
        assert machine.run(future.job_id).returncode == 1
    assert "a generator, cannot be pickled" in str(futures[0].exception())
    assert "bytes and at most 1,000 are kept" in str(futures[1].exception())
    monkeypatch.setattr(function_jobs, "_HEAD_BYTES", 10)
    place = machine.place(2)
    (place / RESULTS / "0.refused").unlink()
    (place / RESULTS / "0.returned").write_bytes(b"{}\n" + b"x" * 5000)
    machine.keep(2, place, "SUCCEEDED")
    fake.requests.clear()
    error = FunctionFuture[bytes](client, 2).exception()
    assert "its result has 5,003 bytes, and at most 1,000 are fetched" in str(error)
    assert not any("/chunks/" in request[1] for request in fake.requests), "it is not fetched"


def test_a_job_that_died_names_its_state_and_reason(fake: Any, client: BlockingClient, machine: Machine) -> None:
    """Without a result, with a damaged one, with one of an earlier attempt, and where it was cancelled."""

    def work() -> int:
        return 1

    future = walras.submit(work, client=client)
    place = machine.place(1)

    def ended(state: str, **fields: Any) -> str:
        machine.keep(1, place, state, **fields)
        error = FunctionFuture[int](client, 1).exception()
        assert isinstance(error, NoResult)
        assert (error.job_id, error.state) == (1, state)
        return str(error)

    assert "job 1 is FAILED (its script ended with an error: rank 0 exited with 1): its function neither" in ended(
        "FAILED"
    )
    assert "job 1 is CANCELLED" in ended("CANCELLED")
    (place / RESULTS).mkdir()
    (place / RESULTS / "0.returned").write_bytes(b"no json\n")
    assert "its result is damaged" in ended("SUCCEEDED")
    (place / RESULTS / "0.returned").write_bytes(b'{"text": ""}\nno pickle')
    assert "cannot be unpickled here" in ended("SUCCEEDED")
    assert "neither returned nor raised" in ended("FAILED"), "a rank returned, and another one died"
    assert "neither returned nor raised" in ended("SUCCEEDED", attempts=2)
    assert future.cancel() is JobState.CANCELLED


def test_the_lowest_rank_that_raised_is_told(client: BlockingClient, machine: Machine) -> None:
    """Of a gang, every rank calls the function; the value is rank 0's."""

    def check() -> str:
        import os

        if os.environ["RANK"] != "0":
            raise RuntimeError("rank " + os.environ["RANK"])
        return "rank 0"

    future = walras.submit(check, client=client)
    for rank in ("0", "11", "2"):
        machine.run(1, RANK=rank)
    assert str(future.exception()) == "rank 2"
    machine.keep(1, machine.place(1), "SUCCEEDED")
    assert FunctionFuture[str](client, 1).result() == "rank 0"


def test_a_map_is_one_sweep(fake: Any, client: BlockingClient, machine: Machine) -> None:
    """Each job finds its own arguments; the futures stand in the order of the calls."""

    def add(a: int, b: int) -> int:
        return a + b

    futures = walras.map_jobs(add, [1, 2, 3], (10, 20, 30), client=client, at_most=2)
    assert fake.jobs[1]["spec"]["array"] == "0-2%2"
    for job_id in (3, 1, 2):
        machine.run(job_id)
    assert [future.result() for future in futures] == [11, 22, 33]
    assert walras.map_jobs(add, [], [], client=client) == []
    with pytest.raises(ValueError, match="shorter"):
        walras.map_jobs(add, [1, 2], [1], client=client)
    with pytest.raises(UserError, match="1,001 calls"):
        walras.map_jobs(add, range(1001), range(1001), client=client)
    assert len(fake.jobs) == 3


def test_the_working_folder_travels(
    fake: Any, client: BlockingClient, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The function finds the modules beside the script; a folder that clashes with ours is refused."""

    def use() -> int:
        import beside

        return int(beside.NUMBER)

    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "beside.py").write_text("NUMBER = 7\n")
    monkeypatch.chdir(folder)
    more = {"workdir": ".", "outputs": "metrics.json", "name": "mine", "priority": 70}
    future = walras.submit(use, client=client, job=more)
    spec = fake.jobs[1]["spec"]
    assert (spec["name"], spec["priority"], spec["code"]["folder"]) == ("mine", 70, "project")
    assert spec["outputs"] == ["metrics.json", ".walras-function/results"]
    assert "workdir" not in spec
    machine.run(1)
    assert future.result() == 7
    (folder / ".walras-function").mkdir()
    (folder / ".walras-function/x").write_text("")
    with pytest.raises(ConfigError, match="of its own"):
        walras.submit(use, client=client, job={"workdir": "."})


@pytest.mark.parametrize("name", ["run", "code", "git", "array", "matrix", "resources"])
def test_what_the_call_says_itself_is_refused(client: BlockingClient, name: str) -> None:
    """Fields that would be overwritten are named, before anything is sent."""
    with pytest.raises(ConfigError, match=f"`{name}` is said by the call itself"):
        walras.submit(print, client=client, job={name: "x"})


def test_what_cannot_be_sent_is_refused(
    fake: Any, client: BlockingClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An absolute folder, arguments that cannot be pickled or are too large, and a missing cloudpickle."""
    with pytest.raises(ConfigError, match="a folder that travels"):
        walras.submit(print, client=client, job={"workdir": "/shared"})
    with open(tmp_path / "file", "w") as file, pytest.raises(UserError, match="an argument cannot be pickled"):
        walras.submit(print, file, client=client)
    monkeypatch.setattr(function_jobs, "SNAPSHOT_BYTES", 1000)
    with pytest.raises(UserError, match="arguments have more than 1,000 bytes"):
        walras.submit(print, b"x" * 2000, client=client)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ConfigError, match="cloudpickle is not installed") as caught:
        walras.submit(print, client=client)
    assert caught.value.fix == "pip install 'walras[functions]'"
    assert fake.jobs == {}


def test_another_python_is_told_and_not_tried(client: BlockingClient, machine: Machine) -> None:
    """Code of functions is of one release of Python: the job says which it has and which it needs."""
    future = walras.submit(print, client=client)
    place = machine.place(1)
    about = json.loads((place / ".walras-function/about.json").read_text())
    assert about["python"] == list(sys.version_info[:2])
    (place / ".walras-function/about.json").write_text(json.dumps({**about, "python": [3, 99]}))
    (place / ".walras-function/function.pkl").write_bytes(b"never read")
    done = subprocess.run([sys.executable, ".walras-function/run.py"], cwd=place, capture_output=True, text=True)
    machine.keep(1, place, "FAILED")
    assert "the call was made by Python 3.99 and the job runs on Python 3." in done.stderr
    assert "submit with job={'python': {'version': '3.99'" in str(future.exception())


def test_an_end_of_the_process_stays_one(client: BlockingClient, machine: Machine) -> None:
    """`SystemExit`, which is how a job that has saved asks to be queued again, is no result and no exception."""

    def leave() -> None:
        raise SystemExit(85)

    walras.submit(leave, client=client)
    assert machine.run(1).returncode == 85
    assert not (machine.place(1) / RESULTS).exists()


def test_the_machine_needs_no_cloudpickle(client: BlockingClient, machine: Machine) -> None:
    """It travels with the call, and its folder is the last on the path of the function."""

    def where() -> tuple[str, list[str]]:
        import cloudpickle

        return cloudpickle.__file__, sys.path

    future = walras.submit(where, client=client)
    machine.run(1)
    file, path = future.result()
    assert ".walras-function/cloudpickle/" in file
    assert path[-1].endswith(".walras-function")
    assert path[0].endswith("job-1")


def test_server_and_agent_never_unpickle() -> None:
    """No module of theirs names a pickle; of all others only the two ends of a call do."""
    root = Path(walras.__file__).parents[1]
    imports = re.compile(r"^ *(import|from) .*\b(pickle|cloudpickle|dill|shelve|marshal)\b", re.MULTILINE)
    files = (path for name in ("walras", "scheduler", "workers") for path in (root / name).rglob("*.py"))
    named = {path.relative_to(root).as_posix() for path in files if imports.search(path.read_text())}
    assert named == {"walras/function_jobs.py", "walras/function_runner.py"}
