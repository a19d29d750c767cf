"""A server behind TLS, as a reverse proxy gives it or its own: commands and agents reach it by https and check it."""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from scheduler.live.http.web_application import make_app
from tests.support.live_world import World, world
from walras.connection.body import ApiCall
from walras.errors import Forbidden, NotFound
from walras.wire import Register
from workers.agent.server_client import ServerClient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificate"),
]
WALRAS = str(Path(sys.executable).parent / "walras")


@pytest.fixture
def certified(tmp_path: Path) -> ssl.SSLContext:
    """A self-signed certificate, cert.pem."""
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    make += " -addext subjectAltName=DNS:localhost"
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True, timeout=300)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


@pytest.fixture
async def served(tmp_path: Path, certified: ssl.SSLContext) -> AsyncIterator[tuple[World, str]]:
    """A server with that certificate, and its address."""
    async with world(tmp_path / "data", real_time=True) as w:
        server = TestServer(make_app(w.server), scheme="https", host="localhost")
        await server.start_server(ssl=certified)
        yield w, f"https://localhost:{server.port}"
        await server.close()


async def test_commands_and_agents_take_https_and_check_the_certificate(
    served: tuple[World, str], tmp_path: Path
) -> None:
    """With the certificate trusted, an agent joins and a command lists it; without, nothing is sent."""
    w, url = served
    data = tmp_path / "data"
    trusted = {**os.environ, "SSL_CERT_FILE": str(tmp_path / "cert.pem"), "HOME": str(tmp_path)}
    trusted |= {"WALRAS_SERVER": url, "WALRAS_TOKEN_FILE": str(data / "admin.token")}
    agent = await _agent(url, data, trusted)
    try:
        for _ in range(400):
            if "n1" in w.live_state.nodes:
                break
            await asyncio.sleep(0.1)
        nodes = await _command("nodes", trusted)
        assert (nodes.returncode, "n1" in nodes.stdout.decode()) == (0, True)
    finally:
        agent.terminate()
        await agent.wait()
    stranger = await _command("nodes", {**trusted, "SSL_CERT_FILE": ""})
    assert stranger.returncode == 75
    assert "certificate" in stranger.stderr.decode().lower()


async def test_a_server_with_its_own_certificate_is_reached_by_its_tokens_alone(tmp_path: Path) -> None:
    """`walras server --tls self`: nothing but the two token files is needed, and no trust in anybody else."""
    data = tmp_path / "data"
    server = await asyncio.create_subprocess_exec(WALRAS, "server", "--data", str(data), "--tls", "self")
    agent = None
    try:
        for _ in range(600):
            with contextlib.suppress(OSError, ValueError):
                if (found := json.loads((data / "server.json").read_text()))["pid"] == server.pid:
                    break
            await asyncio.sleep(0.1)
        own = {**os.environ, "WALRAS_SERVER": found["url"], "WALRAS_TOKEN_FILE": str(data / "admin.token")}
        agent = await _agent(found["url"], data, own)
        for _ in range(60):
            nodes = await _command("nodes", own)
            assert nodes.returncode == 0, nodes.stderr
            if b"n1" in nodes.stdout:
                break
        assert b"n1" in nodes.stdout
        (tmp_path / "wrong").write_text((data / "admin.token").read_text().split(".sha256=")[0] + ".sha256=" + 64 * "0")
        stranger = await _command("nodes", {**own, "WALRAS_TOKEN_FILE": str(tmp_path / "wrong")})
        assert (stranger.returncode, b"another certificate" in stranger.stderr) == (2, True)
    finally:
        for process in filter(None, (agent, server)):
            process.terminate()
            await process.wait()


async def _agent(url: str, data: Path, environment: dict[str, str]) -> asyncio.subprocess.Process:
    """An agent of machine n1, started with the join token in the server's folder."""
    options = ["--node", "n1", "--shape", "cx1", "--accelerator", "c", "--accelerators", "1", "--emulated"]
    options += ["--cpus", "1", "--memory", "1GB", "--server", url, "--state", str(data.parent / "n1")]
    options += ["--join-token-file", str(data / "join.token")]
    return await asyncio.create_subprocess_exec(WALRAS, "agent", *options, env=environment)


async def _command(name: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[bytes]":
    return await asyncio.to_thread(
        subprocess.run, [WALRAS, name], env=environment, capture_output=True, timeout=300, check=False
    )


async def test_an_agent_fetches_content_only_from_the_pinned_server(served: tuple[World, str], tmp_path: Path) -> None:
    """The credential of the join goes with the certificate of the join; to another certificate nothing is sent."""
    w, url = served
    pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert((tmp_path / "cert.pem").read_text())).hexdigest()
    call = ApiCall("GET", f"/content/v1/trees/{'0' * 64}")
    facts = {"shape": "ax1", "accelerator": "a", "accelerators": 1, "cpus": 2, "memory_bytes": 2**30}
    message = Register.model_validate({"node_id": "n1", "facts": facts})
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=aiohttp.Fingerprint(bytes.fromhex(pin)))) as s:
        joined = await ServerClient(s, url, pin).register(message, w.server.secrets.join_token)
        for shown, refusal, words in ((pin, NotFound, "no tree"), ("ab" * 32, Forbidden, "another certificate")):
            client = ServerClient(s, url, shown)
            client.credential = joined.credential
            async with client.transport() as transport:
                with pytest.raises(refusal, match=words):
                    await transport.bytes(call)
