"""TLS of the server itself: its own certificate, pinned by tokens; what is not that certificate is told nothing."""

import asyncio
import json
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import typer
from aiohttp import web

from scheduler.live.auth.access_control import EnrolmentTokens
from scheduler.live.auth.tls_material import TlsFiles, load_tls, own_certificate
from scheduler.live.http.connection_guard import ConnectionGuard, ConnectionLimits, GuardedSite
from scheduler.live.http.web_application import make_app
from scheduler.live.main import ListenOptions
from scheduler.live.store.backup import back_up, restore
from scheduler.live.store.data_folder import FOLDER_ENTRIES, DataFolder
from tests.support.live_world import World, world
from walras.cli.login import trusted_context
from walras.client import Client
from walras.connection.transport import Patience, accepted_certificate
from walras.contract import pinned_token, split_token
from walras.errors import ConfigError, Forbidden, ServerUnreachable, UserError
from walras.wire import Register, ShapeFacts
from workers.agent.server_client import ServerClient, kept_pin

IMPATIENT = Patience(tries=1)
WRONG = "ab" * 32


@dataclass
class _Served:
    world: World
    guard: ConnectionGuard
    url: str
    port: int
    folder: DataFolder


@asynccontextmanager
async def _serving(path: Path, limits: ConnectionLimits | None = None) -> AsyncIterator[_Served]:
    """A server with a certificate of its own on the loopback."""
    folder, guard = DataFolder(path), ConnectionGuard(limits)
    folder.create()
    tls = load_tls(own_certificate(path))
    folder.pin_tokens(tls.pin)
    async with world(path, real_time=True) as w:
        runner = web.AppRunner(make_app(w.server, guard), access_log=None, handler_cancellation=True)
        await runner.setup()
        await GuardedSite(runner, "127.0.0.1", 0, guard, tls.context).start()
        port = runner.addresses[0][1]
        try:
            yield _Served(w, guard, f"https://127.0.0.1:{port}", port, folder)
        finally:
            await runner.cleanup()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[_Served]:
    async with _serving(tmp_path / "data") as found:
        yield found


async def test_tokens_carry_the_certificate_and_clients_accept_no_other(served: _Served) -> None:
    """Another fingerprint, or none, is refused before a word; a pinned token is not sent without TLS."""
    token = served.folder.admin_token_file.read_text().strip()
    async with Client(served.url, token) as client:
        assert await client.nodes() == []
        made = await client.create_token("ada", "user", ["p"])
    assert split_token(made.token)[1] == split_token(token)[1] == served.folder.pin() != ""
    async with Client(served.url, made.token) as client:
        await client.submit({"run": "true"})
    before = served.guard.counts
    async with Client(served.url, pinned_token(split_token(token)[0], WRONG), patience=IMPATIENT) as client:
        with pytest.raises(Forbidden, match="another certificate"):
            await client.nodes()
    async with Client(served.url, split_token(token)[0], patience=IMPATIENT) as client:
        with pytest.raises(ServerUnreachable, match="certificate"):
            await client.nodes()
    assert served.guard.counts[1] <= before[1], "nobody has shown a token"
    with pytest.raises(ConfigError, match="not encrypted"):
        Client(served.url.replace("https", "http"), token)
    with pytest.raises(ConfigError, match="no fingerprint"):
        Client(served.url, f"{split_token(token)[0]}.sha256=12")


async def test_who_signs_in_first_compares_the_fingerprint(served: _Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then that certificate is trusted and no other; without a person, or with a no, nothing is sent."""
    monkeypatch.setattr(typer, "confirm", lambda _: answer)
    with pytest.raises(UserError, match="nobody vouches"):
        await asyncio.to_thread(trusted_context, served.url)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    answer = False
    with pytest.raises(UserError, match="nobody vouches"):
        await asyncio.to_thread(trusted_context, served.url)
    answer = True
    trust = await asyncio.to_thread(trusted_context, served.url)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{served.url}/web/sign-on", ssl=trust or True) as response:
            assert response.status == 200
        async with _serving(served.folder.path / "other") as other:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(f"{other.url}/web/sign-on", ssl=trust or True)


async def test_agents_take_the_fingerprint_from_the_join_token(served: _Served, tmp_path: Path) -> None:
    """It is kept beside the agent's state; another certificate is no server of ours, which is worth another try."""
    join, state = served.folder.join_token_file, tmp_path / "agent"
    state.mkdir()
    pin = kept_pin(state, join)
    assert pin == served.folder.pin()
    assert kept_pin(state, None) == kept_pin(state, tmp_path / "gone") == pin
    facts = ShapeFacts(shape="s", accelerator="a", accelerators=1, cpus=1.0, memory_bytes=1 << 30)
    message = Register(node_id="n1", facts=facts)
    for shown, is_ours in ((WRONG, False), (pin, True)):
        connector = aiohttp.TCPConnector(ssl=accepted_certificate(shown, served.url))
        async with aiohttp.ClientSession(connector=connector) as session:
            client = ServerClient(session, served.url)
            if is_ours:
                assert (await client.register(message, split_token(join.read_text())[0])).credential
            else:
                with pytest.raises(ServerUnreachable, match="another certificate"):
                    await client.register(message, "secret")
    assert "n1" in served.world.live_state.nodes
    enrolment = EnrolmentTokens(b"s", pin).issue("r1")
    assert split_token(enrolment)[1] == pin


@pytest.mark.sqlite_file
async def test_who_trusted_a_server_trusts_the_one_restored_from_its_backup(tmp_path: Path) -> None:
    """Its certificate came out of the backup; nothing lies in the folder that is not declared."""
    async with _serving(tmp_path / "data") as served:
        async with Client(served.url, served.folder.admin_token_file.read_text().strip()) as client:
            users = (await client.create_token("ada", "user", ["p"])).token
        assert {path.name for path in served.folder.path.iterdir()} <= set(FOLDER_ENTRIES)
        back_up(tmp_path / "data", tmp_path / "backup")
    shutil.rmtree(tmp_path / "data")
    restore(tmp_path / "backup", tmp_path / "data")
    async with _serving(tmp_path / "data") as served, Client(served.url, users) as client:
        assert await client.nodes() == []


async def test_a_handshake_that_never_ends_is_a_stranger_too(tmp_path: Path) -> None:
    """Silent connections to a server with TLS are counted before the handshake; those with a token get through."""
    limits = ConnectionLimits(connections=32, strangers=8, strangers_per_address=4)
    async with _serving(tmp_path / "data", limits) as served:
        crowd = []
        for _ in range(40):
            crowd.append(socket.create_connection(("127.0.0.1", served.port)))
            await asyncio.sleep(0)
        crowd[-1].send(b"GET / HTTP/1.1\r\n\r\n")
        async with Client(served.url, served.folder.admin_token_file.read_text()) as client:
            assert await client.nodes() == []
        assert served.guard.counts[0] <= 4
        for each in crowd:
            each.close()


def test_the_certificate_is_kept_and_tokens_follow_it(tmp_path: Path) -> None:
    """The same at the next start; the key is its owner's; without TLS the tokens carry nothing."""
    first, second = load_tls(own_certificate(tmp_path)), load_tls(own_certificate(tmp_path))
    assert first.pin == second.pin
    assert (tmp_path / "tls.key").stat().st_mode & 0o077 == 0
    folder = DataFolder(tmp_path)
    folder.pin_tokens(first.pin)
    token = folder.join_token()
    assert folder.join_token_file.read_text().strip() == pinned_token(token, first.pin)
    folder.pin_tokens("")
    assert folder.join_token_file.read_text().strip() == token
    folder.announce("http://127.0.0.1:1", 1)
    assert "sha256" not in json.loads(folder.server_file.read_text())


def test_files_that_will_not_do_are_refused_by_name(tmp_path: Path) -> None:
    """No such file; a file that is no certificate; a certificate with another's key."""
    one, other = own_certificate(tmp_path), own_certificate(_folder(tmp_path, "other"))
    (tmp_path / "text").write_text("hello")
    for certificate, key in ((tmp_path / "none", one.key), (tmp_path / "text", one.key), (one.certificate, other.key)):
        with pytest.raises(ConfigError) as refused:
            load_tls(TlsFiles(certificate, key))
        assert refused.value.field == "--tls-cert"


def _folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "host.example"])
def test_other_machines_reach_it_by_tls_alone(host: str) -> None:
    """Unless somebody says that he knows what he does."""
    with pytest.raises(ConfigError) as refused:
        ListenOptions(host).check()
    assert "--tls self" in refused.value.fix
    for fine in (ListenOptions(host, tls_self=True), ListenOptions(host, insecure=True), ListenOptions("127.0.0.1")):
        fine.check()
    with pytest.raises(ConfigError):
        ListenOptions(host, tls=TlsFiles(Path("c"), Path("k")), tls_self=True).check()
