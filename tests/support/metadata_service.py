"""A stub of EC2's metadata service, version 2: a session first, which may run out."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web


class Metadata:
    """Answers what a test puts into `answers`, by the path below `meta-data`."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.tokens = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/latest/")
        if path == "api/token" and request.method == "PUT":
            assert int(request.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600
            self.tokens += 1
            return web.Response(text=f"session-{self.tokens}")
        if request.headers.get("X-aws-ec2-metadata-token") != f"session-{self.tokens}":
            return web.Response(status=401)
        told = self.answers.get(path.removeprefix("meta-data/"))
        return web.Response(status=404) if told is None else web.Response(text=told)

    def take_away(self, in_s: float, what: str = "terminate") -> None:
        at = datetime.now(UTC) + timedelta(seconds=in_s)
        told = {"action": what, "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        self.answers["spot/instance-action"] = json.dumps(told)

    def recommend(self) -> None:
        self.answers["events/recommendations/rebalance"] = '{"noticeTime": "2026-05-01T08:22:00Z"}'


@asynccontextmanager
async def metadata_service() -> AsyncIterator[Metadata]:
    """On a free port of the loopback."""
    stub, app = Metadata(), web.Application()
    app.router.add_route("*", "/latest/{path:.*}", stub.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stub
    finally:
        await runner.cleanup()
