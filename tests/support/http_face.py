"""A whole server inside a test behind its real HTTP face, on a free port of the loopback."""

import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from scheduler.live.auth.access_control import UserCaller, UserRole, new_user_token
from scheduler.live.http.web_application import make_app
from tests.support.live_world import FIFO, World, world
from tests.support.stores import STORE


@dataclass
class Face:
    world: World
    client: TestClient[Any, Any]
    admin: str

    def token(self, user: str, role: UserRole, *projects: str) -> str:
        token, row = new_user_token(UserCaller(user, role, projects or ("default",)), "test")
        self.world.server.secrets.users[row.sha256] = row
        return token

    async def call(
        self, method: str, path: str, body: Any = None, token: str | None = None, key: str = ""
    ) -> ClientResponse:
        headers = {"Authorization": f"Bearer {token or self.admin}"}
        if key:
            headers["Idempotency-Key"] = key
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        data = None if raw is None else io.BytesIO(raw)
        return await self.client.request(method, path, data=data, headers=headers)

    async def json(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        response = await self.call(method, path, body, **more)
        return response.status, await response.json(content_type=None)

    async def done(self, method: str, path: str, body: Any = None, status: int = 200, **more: Any) -> Any:
        """What a call answers that is answered with this status."""
        told, answer = await self.json(method, path, body, **more)
        assert told == status, answer
        return answer

    async def got(self, path: str, **more: Any) -> Any:
        """What a path of the API answers to whoever may ask."""
        return await self.done("GET", f"/api/v1{path}", **more)


@asynccontextmanager
async def facing(
    folder: Path,
    *,
    policy: Mapping[str, Any] = FIFO,
    cluster: Mapping[str, Any] | None = None,
    real_time: bool = False,
    kind: str = STORE,
) -> AsyncIterator[Face]:
    """A ready server; the caller is an administrator unless a call names another token."""
    async with (
        world(folder, policy=policy, cluster=cluster, real_time=real_time, kind=kind) as w,
        TestClient(TestServer(make_app(w.server))) as client,
    ):
        w.server.is_ready = True
        yield Face(w, client, (folder / "admin.token").read_text().strip())
