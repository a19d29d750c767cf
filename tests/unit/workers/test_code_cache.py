"""The agent's cache of code stays within its bounds, and never loses what is being copied."""

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.fake_agent_server import FakeAgentServer
from walras.content import chunk_name, hash_folder
from walras.errors import UserError
from workers.agent.server_client import ServerClient
from workers.agent.starting import CodeCache


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
