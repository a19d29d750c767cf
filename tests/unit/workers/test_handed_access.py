"""An agent asks the server for what opens a job's place in an object store, and again before it ends."""

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.memory_objects import memory_objects
from walras.clocks import Clocks
from walras.errors import Forbidden, ServerUnreachable
from walras.object_store import StoreFailure
from walras.store_access import StoreAccess
from walras.store_proof import StoreChallenge
from workers.agent.agent import StoreProving
from workers.agent.checkpoint_places import HandedPlace, access_to
from workers.agent.server_client import ServerClient

__all__ = ["memory_objects"]

_CODES = {403: "forbidden", 404: "not_found"}
PLACE, KEY = "s3://bucket/run/jobs/1", (1, 2, "i1")


class Desk:
    """A server's side of it, and an agent's client in front."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | int = {}
        self.at = 100.0

    async def _open(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        if isinstance(self.answer, int):
            problem = {"title": "", "status": self.answer, "code": _CODES.get(self.answer, ""), "detail": "no"}
            return web.json_response(problem, status=self.answer)
        return web.json_response(self.answer)

    async def __aenter__(self) -> "Desk":
        app = web.Application()
        app.router.add_post("/agent/v1/store-access", self._open)
        self._server = TestServer(app)
        await self._server.start_server()
        self._session = ClientSession()
        self.client = ServerClient(self._session, str(self._server.make_url("")))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._server.close()

    def place(self) -> HandedPlace:
        return HandedPlace(self.client, KEY, PLACE, Clocks(boottime=lambda: self.at))

    def gives(self, number: int, lasts_s: float = 3600.0) -> None:
        self.answer = StoreAccess(key=f"K{number}", secret="s", token="t", lasts_s=lasts_s).model_dump()


async def test_a_place_is_opened_anew_half_way_through_the_time_of_what_opened_it(objects: MemoryFileSystem) -> None:
    async with Desk() as desk:
        desk.gives(1)
        place = desk.place()
        first = await place.folder()
        assert desk.asked == [{"place": PLACE, "job_id": 1, "attempt": 2}]
        desk.at += 1790.0
        assert await place.folder() is first
        desk.at += 20.0
        both = await asyncio.gather(place.folder(), place.folder())
        assert both[0] is both[1] is not first
        assert len(desk.asked) == 2


async def test_a_server_that_gives_nothing_stops_nothing_while_the_old_holds(objects: MemoryFileSystem) -> None:
    async with Desk() as desk:
        desk.gives(1)
        place = desk.place()
        first = await place.folder()
        desk.at += 2000.0
        desk.answer = {"problem": "STS is down"}
        assert await place.folder() is first
        desk.answer = 503
        assert await place.folder() is first
        desk.at += 1300.0
        with pytest.raises(ServerUnreachable):
            await place.folder()
        desk.answer = {"problem": "STS is down"}
        with pytest.raises(StoreFailure, match="STS is down") as told:
            await place.folder()
        assert not isinstance(told.value, ServerUnreachable), "an attempt that has ended is not held for that"


@pytest.mark.parametrize("answer", [{}, 404])
async def test_a_server_that_hands_out_nothing_leaves_machines_to_their_own(
    objects: MemoryFileSystem, answer: Any
) -> None:
    """Also one of the release before, which does not know the question. It is asked once for a transfer."""
    async with Desk() as desk:
        desk.answer = answer
        place = desk.place()
        first = await place.folder()
        desk.at += 1e6
        assert await place.folder() is first
        assert len(desk.asked) == 1
        assert await access_to(desk.client, "gs://bucket/run") is None
        assert len(desk.asked) == 1, "other kinds of stores have no such credentials"


async def test_what_does_not_parse_is_not_quoted(objects: MemoryFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Desk() as desk:
        desk.answer = {"key": "K", "secret": "very-secret" * 100, "lasts_s": "long"}
        with pytest.raises(ServerUnreachable) as told:
            await desk.place().folder()
    assert "very-secret" not in str(told.value)
    assert "very-secret" not in caplog.text


async def test_a_machine_that_the_server_opens_nothing_for_says_so(objects: MemoryFileSystem) -> None:
    challenge = StoreChallenge(place="s3://bucket/run/proofs/c1", nonce="0" * 32)
    async with Desk() as desk:
        proving = StoreProving(desk.client, "n1", Clocks())
        desk.answer = {"problem": "AccessDenied"}
        proving.take(challenge)
        assert proving._task is not None
        await proving._task
        assert proving.proof is not None
        assert "AccessDenied" in proving.proof.problem
        assert desk.asked == [{"place": challenge.place, "job_id": 0, "attempt": 0}]
        desk.answer = 403
        with pytest.raises(Forbidden):
            await access_to(desk.client, challenge.place)
