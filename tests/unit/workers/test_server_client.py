"""What the agent makes of a server that refuses, moves, or is away."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from walras.errors import Forbidden, ServerUnreachable
from walras.wire import Heartbeat
from workers.agent import server_client
from workers.agent.server_client import LogShipper, ServerClient
from workers.devices import AttemptKey


async def refusal_of(body: str, status: int = 409) -> Forbidden:
    """What the client raises where a server refuses a heartbeat with this body."""

    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_post("/agent/v1/heartbeat", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            client = ServerClient(session, f"http://127.0.0.1:{runner.addresses[0][1]}")
            with pytest.raises(Forbidden) as refused:
                await client.heartbeat(Heartbeat(node_id="n1"))
    finally:
        await runner.cleanup()
    return refused.value


async def test_a_refusal_is_told_in_the_servers_words() -> None:
    """Whole, with what would mend it; a refused token is one to copy anew; a proxy's page is quoted, cut."""
    detail = "pool p has other machines: " + ", ".join(f"cpus is {number} here" for number in range(30))
    problem = {"title": "Conflict", "status": 409, "code": "conflict", "detail": detail, "fix": "give its shape a name"}
    error = await refusal_of(json.dumps(problem))
    assert str(error) == detail
    assert error.fix == "give its shape a name"
    problem = {"title": "No", "status": 401, "code": "unauthorised", "detail": "no token", "fix": "set WALRAS_TOKEN"}
    assert (
        await refusal_of(json.dumps(problem), 401)
    ).fix == "copy the server's join.token here anew (--join-token-file)"
    error = await refusal_of("<html>" + "x" * 5000)
    assert "409 <html>xxx" in str(error)
    assert len(str(error)) < 400


async def test_addresses_are_tried_in_turn_and_the_one_that_answers_is_kept() -> None:
    """A server that moved is found at its other address; calls beside each other move on once, not twice."""
    answered: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        answered.append(1)
        return web.json_response({"reports_acked": 0, "commands": [], "lease_s": 60.0, "fenced": []})

    app = web.Application()
    app.router.add_post("/agent/v1/heartbeat", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            urls = ("http://127.0.0.1:1", f"http://127.0.0.1:{runner.addresses[0][1]}/", "http://127.0.0.1:2")
            client = ServerClient(session, urls)
            message = Heartbeat(node_id="n1")
            failed = await asyncio.gather(client.heartbeat(message), client.heartbeat(message), return_exceptions=True)
            assert [type(each) for each in failed] == [ServerUnreachable] * 2
            for _ in range(3):
                await client.heartbeat(message)
            assert len(answered) == 3
            await runner.cleanup()
            for _ in range(3):  # this address, the third, the first again
                with pytest.raises(ServerUnreachable):
                    await client.heartbeat(message)
            with pytest.raises(ServerUnreachable, match=urls[1]):
                await client.heartbeat(message)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [200, 503])
async def test_the_rest_of_a_log_waits_for_a_server_that_is_away_and_not_for_one_that_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int, status: int
) -> None:
    """The end of the attempt cannot be told to the one that is away either; its last lines say why it ended."""
    monkeypatch.setattr(server_client, "LAST_CHANCE_S", 0.2)
    monkeypatch.setattr(server_client, "SHIP_EVERY_S", 0.05)
    (tmp_path / "log").write_bytes(b"Traceback")
    taken = bytearray()

    async def take(request: web.Request) -> web.Response:
        taken.extend(await request.read())
        return web.json_response({"next": len(taken)}, status=status)

    app = web.Application()
    app.router.add_post("/agent/v1/logs", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        async with aiohttp.ClientSession() as session:
            client = ServerClient(session, f"http://127.0.0.1:{unused_tcp_port}")
            shipping = asyncio.create_task(LogShipper(client, AttemptKey(1, 1), {0: tmp_path / "log"}).ship_rest())
            done, _ = await asyncio.wait({shipping}, timeout=0.5)
            assert not done
            await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
            assert await shipping == (status == 200)
            assert taken == (b"Traceback" if status == 200 else b"")
    finally:
        await runner.cleanup()
