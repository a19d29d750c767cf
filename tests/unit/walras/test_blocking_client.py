"""The blocking client: every call of the asynchronous one, wherever it is called from."""

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import walras
from walras.client import BlockingClient, BlockingSession, BlockingTransfer, Client, LoopThread
from walras.connection.transport import Patience
from walras.errors import NotFound, UserError
from walras.storage.content import hash_folder
from walras.storage.content_transfer import ContentTransfer

TOKEN = "walras_user_secret"
QUICK = Patience(tries=3, backoff_s=0.0, poll_s=0.0, call_timeout_s=5.0, connect_timeout_s=1.0)
PUBLIC = [name for name in dir(Client) if not name.startswith("_")]


def client_of(fake: Any) -> BlockingClient:
    return BlockingClient(fake.url, TOKEN, patience=QUICK)


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "walras-client"]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_call_is_there_with_the_same_arguments(name: str) -> None:
    """A new call of the asynchronous client is missed here until it is a blocking one too."""
    theirs, ours = getattr(Client, name), getattr(BlockingClient, name)
    if isinstance(theirs, property):
        assert isinstance(ours, property)
        return
    assert not inspect.iscoroutinefunction(ours)
    assert not inspect.isasyncgenfunction(ours)
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert inspect.isgeneratorfunction(ours) == inspect.isasyncgenfunction(theirs)


def test_a_transfer_has_the_calls_of_the_asynchronous_one() -> None:
    """`outputs_transfer` hands out an object that blocks, too."""
    public = {name for name in dir(ContentTransfer) if not name.startswith("_")}
    assert public <= {name for name in dir(BlockingTransfer) if not name.startswith("_")}
    assert not any(inspect.iscoroutinefunction(each) for each in vars(BlockingTransfer).values())
    assert {"send_str", "send_bytes", "receive", "close"} <= set(dir(BlockingSession))


def test_calls_return_what_they_are_answered(fake: Any) -> None:
    """Submission, a listing of several pages, a log and a refusal, as with the asynchronous client."""
    with client_of(fake) as client:
        ids = [client.submit({"run": "x", "name": f"job {number}"}).id for number in range(5)]
        assert ids == [1, 2, 3, 4, 5]
        assert [job.id for job in client.jobs()] == ids
        fake.attempts[1] = []
        fake.logs[1, 0] = b"learning\n"
        assert b"".join(client.logs(1)) == b"learning\n"
        assert client.cancel(2) == "CANCELLED"
        with pytest.raises(NotFound, match="no job 77"):
            client.job(77)
        assert client.run(lambda inner: inner.job(3)).name == "job 2"
        assert client.url == fake.url


def test_folders_are_sent_and_fetched(fake: Any, tmp_path: Path) -> None:
    """A folder's files come back as they went, and a second fetch into the same place is refused."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    tree = hash_folder(tmp_path / "code", ["train.py"])
    with client_of(fake) as client:
        client.send_folder(tmp_path / "code", tree)
        client.submit({"run": "x"})
        kept = {"node_rank": 0, "attempt": 1, "tree": tree.name, "files": 1, "size_bytes": tree.size}
        fake.outputs[1] = [{**kept, "collected_at": "2026-11-05T18:00:00Z"}]
        transfer = client.outputs_transfer(1)
        assert transfer.fetch_list(tree.name) == transfer.fetch(tree.name, tmp_path / "back") == tree
        assert (tmp_path / "back" / "train.py").read_text() == "print(1)\n"
        assert (transfer.sent_bytes, transfer.fetched_bytes) == (0, 9)
        assert list(client.fetch_outputs(1).files) == ["train.py"]
        assert client.fetch_outputs(1, "train.py", tmp_path / "again").attempt == 1
        assert (tmp_path / "again" / "train.py").exists()
        with pytest.raises(NotFound, match="no 'other'"):
            client.fetch_outputs(1, "other")
        with pytest.raises(FileExistsError):
            client.fetch_outputs(1, "", tmp_path / "again")


@pytest.mark.parametrize(("state", "told"), [("RUNNING", "has left no outputs yet"), ("FAILED", "left no outputs$")])
def test_who_left_no_outputs_is_told_whether_some_may_come(fake: Any, state: str, told: str) -> None:
    fake.add(state=state)
    with client_of(fake) as client, pytest.raises(NotFound, match=f"job 1 {told}"):
        client.fetch_outputs(1)


def test_a_listing_may_be_left_early(fake: Any) -> None:
    """What is not asked for is not fetched, and the client goes on."""
    with client_of(fake) as client:
        for _ in range(7):
            client.submit({"run": "x"})
        before = len(fake.requests)
        assert next(iter(client.jobs())).id == 1
        assert len(fake.requests) == before + 1
        assert client.job(7).id == 7


async def test_it_works_where_a_loop_runs_already(fake: Any) -> None:
    """As in a cell of a notebook, whose own loop runs."""
    assert asyncio.get_running_loop().is_running()
    with client_of(fake) as client:
        assert client.submit({"run": "x"}).id == 1
        assert [job.id for job in client.jobs()] == [1]


def test_several_threads_use_one_client(fake: Any) -> None:
    """Their calls go over one loop, each with its own answer."""
    with client_of(fake) as client:
        found: list[str] = []
        for number in range(1, 5):
            client.submit({"run": "x", "name": f"n{number}"})
        threads = [threading.Thread(target=lambda k=k: found.append(client.job(k).name)) for k in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(found) == ["n1", "n2", "n3", "n4"]
        assert len(loop_threads()) == 1


def test_nothing_is_left_of_a_closed_client(fake: Any) -> None:
    """The thread has ended, closing again is harmless, and a call says what is wrong."""
    client = client_of(fake)
    listing = client.jobs()
    client.submit({"run": "x"})
    assert next(listing).id == 1
    client.close()
    client.close()
    assert loop_threads() == []
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.whoami()
    del listing
    never_used = client_of(fake)
    never_used.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        never_used.whoami()


def test_a_client_that_is_forgotten_ends_its_thread(fake: Any) -> None:
    """Without `close`: once nobody has it any more."""
    client = client_of(fake)
    client.whoami()
    assert len(loop_threads()) == 1
    del client
    gc.collect()
    until = time.monotonic() + 10
    while loop_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert loop_threads() == []


def test_calls_that_could_never_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the loop's own thread, and in a process that was forked off and has no such thread."""
    thread = LoopThread()

    async def nothing() -> None: ...

    async def ask_oneself() -> None:
        thread.run(nothing())

    with pytest.raises(RuntimeError, match="own event loop"):
        thread.run(ask_oneself())
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(RuntimeError, match="a client in each process"):
            thread.run(nothing())
    thread.close(nothing)


def test_an_interrupt_before_the_future_is_known_cancels_the_call_too() -> None:
    """The call is on its way to the loop's thread, and the caller is interrupted before it can hold on to it."""
    thread, ended = LoopThread(), threading.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def nothing() -> None: ...

    begin = thread.start

    def interrupted(work: Any) -> Any:
        begin(work)
        time.sleep(0.2)
        raise KeyboardInterrupt

    thread.start = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        thread.run(wait())
    thread.start = begin  # type: ignore[method-assign]
    assert ended.wait(10)
    thread.close(nothing)


def test_an_interrupt_cancels_the_call() -> None:
    """What waits on the loop is ended when the caller is interrupted."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever a library of another test has set
    thread, begun, ended = LoopThread(), threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def nothing() -> None: ...

    def interrupt() -> None:
        begun.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(wait())
    signal.signal(signal.SIGINT, before)
    assert ended.wait(10)
    thread.close(nothing)


def test_without_an_address_it_is_the_server_of_the_command_line(
    fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same variables and settings; without any, the error says what to set. A token never goes elsewhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WALRAS_SERVER", raising=False)
    with pytest.raises(UserError, match="no server is named"):
        BlockingClient()
    monkeypatch.setenv("WALRAS_SERVER", fake.url)
    monkeypatch.setenv("WALRAS_TOKEN", TOKEN)
    with BlockingClient() as client:
        assert client.whoami().user == "ada"
    with BlockingClient(fake.url) as client, pytest.raises(UserError, match="token"):
        client.whoami()


def test_the_package_gives_its_names_when_they_are_asked_for(tmp_path: Path) -> None:
    """`import walras` loads nothing of others; every public name is there, and no other."""
    code = "import sys, walras; assert 'aiohttp' not in sys.modules and 'pydantic' not in sys.modules; walras.Client"
    root = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": root}, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert walras.Client is BlockingClient
    assert walras.AsyncClient is Client
    assert all(hasattr(walras, name) for name in walras.__all__)
    assert not hasattr(walras, "Server")
