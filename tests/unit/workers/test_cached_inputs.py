"""What a machine keeps: inputs that were fetched, and code within bounds."""

import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.fake_agent_server import FakeAgentServer
from walras.errors import UserError
from walras.job_needs import InputNeed
from walras.machines.machine_facts import DATA_MOST, data_key
from walras.storage.content import chunk_name, hash_folder
from workers.agent.agent import CachedInputs
from workers.agent.server_client import ServerClient
from workers.agent.starting import CodeCache
from workers.preparation.folder_cache import FolderCache
from workers.preparation.inputs import INPUT_BOUNDS, bring_inputs

ADA = "research/ada"


def cache_of(prepared: Path) -> FolderCache:
    return FolderCache(prepared / "inputs", INPUT_BOUNDS)


def test_what_was_fetched_is_told_once_and_again_after_a_resync(tmp_path: Path) -> None:
    cached = CachedInputs(tmp_path)
    assert cached.news(everything=False) is None
    assert cached.news(everything=True) == []
    cached.confirm([])
    (tmp_path / "data.txt").write_text("the data")
    needs = {"d": InputNeed(url=f"file:{tmp_path}/data.txt"), "made": InputNeed(command="echo made > $WALRAS_INPUT/x")}
    bring_inputs(cache_of(tmp_path), needs, tmp_path / "links", dict(os.environ), ADA)
    keys = sorted(data_key(each, ADA) for each in needs.values())
    assert cached.news(everything=False) == keys
    assert cached.news(everything=False) == keys  # the call was lost
    cached.confirm(keys)
    assert cached.news(everything=False) is None
    assert cached.news(everything=True) == keys


def test_the_bytes_of_what_was_fetched_are_told_with_it(tmp_path: Path) -> None:
    """Of two versions those of the newer; a marker of the release before, or of a job's, tells none."""
    source = tmp_path / "data.bin"
    for number, size in enumerate((3000, 5000)):
        source.write_bytes(bytes(size))
        bring_inputs(cache_of(tmp_path), {"d": InputNeed(url=f"file:{source}")}, tmp_path / f"l{number}", {}, ADA)
    newest, older = sorted((tmp_path / "inputs").glob("*.done"), key=lambda path: -path.stat().st_mtime_ns)
    cached = CachedInputs(tmp_path)
    assert cached.news(everything=True) == [data_key(InputNeed(url=f"file:{source}"), ADA)]
    (told,) = cached.fetched
    assert (told.key, told.size_bytes // 1000) == (data_key(InputNeed(url=f"file:{source}"), ADA), 5)
    assert told.seconds > 0
    for wrong in ({}, {"size_bytes": 1e400, "seconds": 1}, {"size_bytes": -1, "seconds": 1}, {"size_bytes": 1}):
        for marker in (newest, older):
            marker.write_text(json.dumps({"name": told.key} | wrong))
        cached = CachedInputs(tmp_path)
        assert cached.news(everything=True) == [told.key]
        assert cached.fetched == []


def test_what_is_removed_is_told_no_more(tmp_path: Path) -> None:
    bring_inputs(cache_of(tmp_path), {"d": InputNeed(command="true")}, tmp_path / "links", dict(os.environ), ADA)
    cached = CachedInputs(tmp_path)
    cached.confirm(cached.news(everything=True))
    (marker,) = (tmp_path / "inputs").glob("*.done")
    marker.unlink()
    assert cached.news(everything=False) == []


def test_what_a_job_wrote_into_the_cache_says_nothing(tmp_path: Path) -> None:
    """Ranks run as the agent's user: a marker of theirs must not break its calls, nor make them long."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    for number, name in enumerate(["../../etc", 7, None, "x" * 10**6, "0" * 33, "0" * 32 + "\n"]):
        (folder / f"{number}.done").write_text(json.dumps({"name": name}))
    (folder / "7.done").write_text("no JSON")
    os.mkfifo(folder / "9.done")
    (folder / "10.done").mkdir()
    (folder / "8.done").write_text("[1]")
    for number in range(DATA_MOST + 50):
        (folder / f"k{number}.done").write_text(json.dumps({"name": f"{number:032x}"}))
    told = CachedInputs(tmp_path).news(everything=True)
    assert told is not None
    assert len(told) == DATA_MOST


@pytest.fixture
async def server() -> AsyncIterator[FakeAgentServer]:
    async with FakeAgentServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeAgentServer) -> AsyncIterator[ServerClient]:
    async with aiohttp.ClientSession() as session:
        client = ServerClient(session, server.url)
        client.credential = server.credential
        yield client


def offer(server: FakeAgentServer, folder: Path, content: bytes) -> str:
    folder.mkdir()
    (folder / "f").write_bytes(content)
    tree = hash_folder(folder, ["f"])
    server.content |= {chunk_name(content): content, tree.name: tree.encoded()}
    return tree.name


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_the_least_recently_used_goes_first(
    server: FakeAgentServer, client: ServerClient, tmp_path: Path
) -> None:
    """Two are kept; the one that was used again stays; remains of a fetch that was cut go."""
    cache, folder = CodeCache(tmp_path / "code", client, trees_kept=2), tmp_path / "code"
    first, second, third = (offer(server, tmp_path / f"src{n}", b"%d" % n) for n in range(3))
    for number, name in enumerate((first, second, first)):
        await cache.copy(name, tmp_path / f"work{number}", threading.Event())
    (folder / f".{'a' * 64}.draft").mkdir()
    await cache.copy(third, tmp_path / "work", threading.Event())
    assert kept(folder) == {first, third}
    assert (tmp_path / "work" / "f").read_bytes() == b"2"


async def test_the_bytes_are_bounded(server: FakeAgentServer, client: ServerClient, tmp_path: Path) -> None:
    """What is larger than the cache is refused before it is fetched."""
    cache, folder = CodeCache(tmp_path / "code", client, bytes_kept=100), tmp_path / "code"
    names = [offer(server, tmp_path / f"src{n}", bytes([n]) * 60) for n in range(2)]
    for number, name in enumerate(names):
        await cache.copy(name, tmp_path / f"work{number}", threading.Event())
    assert kept(folder) == {names[1]}
    huge = offer(server, tmp_path / "huge", b"x" * 101)
    with pytest.raises(UserError, match="101 bytes, 100 are allowed"):
        await cache.copy(huge, tmp_path / "work", threading.Event())
    assert chunk_name(b"x" * 101) not in server.asked_content
