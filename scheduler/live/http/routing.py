"""One table of routes: path, who may call, what goes in and out. It drives dispatch, authorisation and OpenAPI."""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from scheduler.live.access.auth import Caller, Role, UserCaller
from scheduler.live.server import Server
from walras.errors import NotFound, UserError
from walras.ids import JobId

ModelT = TypeVar("ModelT", bound=BaseModel)

#: Largest bodies: of most requests, and of those that carry many jobs or log bytes.
BODY_BYTES = 1024 * 1024
LARGE_BODY_BYTES = 16 * 1024 * 1024
_JOB_DIGITS = 18
#: What is read and thrown away of a body that is too large, so that its sender sees the answer.
_DRAIN_BYTES = 64 * 1024 * 1024


class Audience(Enum):
    """Whose tokens open a route."""

    USER = "user"
    #: Users, and the job itself by its job token.
    USER_OR_JOB = "user or job"
    #: Any valid token.
    ANYBODY = "anybody"
    AGENT = "agent"
    JOIN = "join"


class TooLarge(UserError):
    """The body is larger than the endpoint takes."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request of somebody known."""

    request: web.Request
    server: Server
    caller: Caller

    @property
    def user(self) -> UserCaller:
        """The user; the route table has made sure that it is one."""
        assert isinstance(self.caller, UserCaller)
        return self.caller

    @property
    def job_id(self) -> JobId:
        """The job of the path. Raises NotFound for a number that no job can have."""
        text = self.request.match_info["job_id"]
        if len(text) > _JOB_DIGITS:
            raise NotFound("no such job")
        return JobId(int(text))

    async def body(self, limit_bytes: int = BODY_BYTES) -> bytes:
        """The whole body. Raises TooLarge."""
        declared = self.request.content_length
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.request.content.iter_chunked(65536):
            size += len(chunk)
            if size <= limit_bytes and (declared is None or declared <= limit_bytes):
                chunks.append(chunk)
            elif size > _DRAIN_BYTES:
                break
        if size > limit_bytes:
            raise TooLarge(f"the body is larger than {limit_bytes:,} bytes", fix="send less")
        return b"".join(chunks)

    async def model(self, model: type[ModelT], limit_bytes: int = BODY_BYTES) -> ModelT:
        """The body as a checked message. Raises UserError naming the field."""
        data = parse_json(await self.body(limit_bytes))
        try:
            return model.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise UserError(f"{field}: {first['msg']}", field=field, fix="see /api/v1/openapi.json") from None

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number from the query. Raises UserError naming it."""
        text = self.request.query.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not least <= int(text) <= most:
            raise UserError(f"{name}={text[:40]!r} is not a number from {least} to {most}", field=name)
        return int(text)

    def flag(self, name: str) -> bool:
        """A yes or no from the query. Raises UserError naming it."""
        text = self.request.query.get(name, "false").lower()
        if text not in ("true", "false", "1", "0"):
            raise UserError(f"{name}={text[:40]!r} is neither true nor false", field=name)
        return text in ("true", "1")


Handler = Callable[[Call], Awaitable[BaseModel | web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: Handler
    summary: str
    audience: Audience = Audience.USER
    #: Least role of a user.
    role: Role = Role.VIEWER
    request: Any = None
    response: Any = None
    status: int = 200
    #: Query parameters, by name, for the OpenAPI.
    query: tuple[str, ...] = ()
    #: May wait for something to happen: not counted against the bound on requests under way.
    waits: bool = False


def json_list(items: Sequence[BaseModel]) -> web.Response:
    """A list that is always whole."""
    body = f"[{','.join(item.model_dump_json() for item in items)}]"
    return web.Response(body=body.encode(), content_type="application/json")


def parse_json(body: bytes) -> Any:
    """Raises UserError for what is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("the body is not JSON", field="body", fix="send JSON in UTF-8") from None
