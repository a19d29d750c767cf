"""What the agent makes of a server's refusal."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from walras.errors import Forbidden, ServerUnreachable
from walras.wire import Heartbeat
from workers.agent.server_client import ServerClient


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
    """Whole, with what would mend it: whoever started the agent reads it in a terminal."""
    detail = "pool p has other machines: " + ", ".join(f"cpus is {number} here" for number in range(30))
    problem = {"title": "Conflict", "status": 409, "code": "conflict", "detail": detail, "fix": "give its shape a name"}
    error = await refusal_of(json.dumps(problem))
    assert str(error) == detail
    assert error.fix == "give its shape a name"


async def test_a_token_that_is_not_accepted_is_one_to_copy_anew() -> None:
    """Not one that the environment of a person's commands would hold."""
    problem = {"title": "No", "status": 401, "code": "unauthorised", "detail": "no token", "fix": "set WALRAS_TOKEN"}
    assert (
        await refusal_of(json.dumps(problem), 401)
    ).fix == "copy the server's join.token here anew (--join-token-file)"


async def test_what_is_no_server_of_ours_is_quoted() -> None:
    """A proxy's page, cut to its first words."""
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
