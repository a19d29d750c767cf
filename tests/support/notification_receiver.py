"""A receiver of notifications on the loopback, and a server that sends to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from scheduler.core.events import JobCancelled
from scheduler.live.loop.apply_commands import emit
from scheduler.live.services.notifications import read_address
from tests.support.live_world import World
from tests.support.waiting import until
from walras.job_request import JobId
from walras.resources.notifications import NotificationKind

POOL = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "16GiB", "machines": 1}
#: Receivers of these tests listen on the loopback, which only a cluster file may allow.
HERE = {"pools": [POOL], "notify": {"private_networks": ["127.0.0.0/8"], "stuck_after": "1h"}}
EVERYTHING = ("failed", "finished", "at_risk", "budget", "stuck", "machine_lost")
SECRET_PATH = "services/T0SECRET"


class Receiver:
    """Takes notifications on a free port of the loopback, and answers as it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        #: Answers to the next requests; then 204.
        self.answers: list[int] = []
        #: Never answers while set.
        self.is_dead = False

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._take)
        async with TestServer(app, host="127.0.0.1") as server:
            yield f"http://127.0.0.1:{server.port}/{SECRET_PATH}"

    async def _take(self, request: web.Request) -> web.Response:
        self.requests.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        if self.is_dead:
            await asyncio.sleep(60)
        status = self.answers.pop(0) if self.answers else 204
        return web.Response(status=status, headers={"Location": "/elsewhere"} if 300 <= status < 400 else {})

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.requests]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.requests]

    async def has(self, count: int) -> None:
        await until(lambda: len(self.requests) >= count, 20.0, f"request {count} comes")


@asynccontextmanager
async def sending(w: World) -> AsyncIterator[None]:
    """The server's sending, which worlds leave out."""
    w.loop.effect_handlers.append(w.server.notifications)
    task = asyncio.create_task(w.server.notifications.watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await w.server.notifications.close()
        w.loop.effect_handlers.remove(w.server.notifications)


async def add_channel(w: World, url: str, *kinds: str, user: str = "ada") -> tuple[int, str]:
    address = read_address(url, ("127.0.0.0/8",))
    asked = [NotificationKind(kind) for kind in kinds or EVERYTHING]
    row, key = await w.loop.perform(lambda t: w.server.notifications.add(t, user, address, asked))
    return row.channel_id, key


def waiting_notifications(w: World) -> list[dict[str, Any]]:
    return [json.loads(row.body) for row in w.live_state.notifications.waiting.values()]


def cancel_by_other(transaction: Any, job_id: JobId) -> None:
    emit(transaction, JobCancelled(transaction.at, job_id, "somebody"))
