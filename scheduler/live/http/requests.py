"""Routes, requests and errors of the HTTP interface.

One table of `Route` says for every endpoint its path, who may call it, what goes in and what comes out; it drives
dispatch, authorisation and OpenAPI. A handler receives a `RequestContext`. Errors become problem+json (RFC 9457): a
stable code, the field, and the fix.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from scheduler.live.auth.access_control import Caller, UserCaller, UserRole
from scheduler.live.http.request_load import TooManyBodies
from scheduler.live.loop.event_loop import Overloaded
from scheduler.live.server import Server
from scheduler.live.services.job_submission import KeyReused
from scheduler.live.store.store_interface import StoreUnavailable
from scheduler.live.web.page import WebSessions
from walras.api import ProblemDetail
from walras.errors import (
    ConfigError,
    Conflict,
    Forbidden,
    JobSpecError,
    NameHeld,
    NotFound,
    OtherCluster,
    OtherIncarnation,
    OtherProtocol,
    UnknownPolicyError,
    UserError,
    WalrasError,
)
from walras.job_request import JobId

ModelT = TypeVar("ModelT", bound=BaseModel)

#: Largest bodies, bytes: of most requests, and of those that carry many jobs or reports.
BODY_BYTES = 1024 * 1024
LARGE_BODY_BYTES = 16 * 1024 * 1024
#: A whole body must have arrived within this time, seconds.
BODY_S = 60.0
_JOB_DIGITS = 18
#: Bytes that are read and dropped of a body that is too large, so that its sender reads the answer before it gives up.
_DRAIN_BYTES = 64 * 1024 * 1024


class Audience(Enum):
    """Whose tokens a route accepts."""

    USER = "user"
    #: Users, and a job's own token for the job of the path.
    USER_OR_JOB = "user or job"
    #: Any valid token.
    ANYBODY = "anybody"
    AGENT = "agent"
    #: Users and machines: who sends or fetches content.
    USER_OR_AGENT = "user or agent"
    JOIN = "join"


class BodyTooLarge(UserError):
    """The body is larger than the endpoint takes."""


class BodyTooSlow(UserError):
    """The body did not come within `BODY_S`."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request of an authenticated caller."""

    request: web.Request
    server: Server
    caller: Caller
    #: Opened while the body still comes. Raises TooManyBodies.
    receiving: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def user(self) -> UserCaller:
        """Returns the user. Only for routes of users: `check_audience` has refused all other callers."""
        assert isinstance(self.caller, UserCaller)
        return self.caller

    def caller_now(self) -> Caller | None:
        """Returns the caller with what it may do by now, for an answer that stays open; None: its token opens nothing
        any more.
        """
        return WebSessions(self.server).known(self.request)

    @property
    def job_id(self) -> JobId:
        """Returns the job number in the path. Raises NotFound for a number that no job can have."""
        text = self.request.match_info["job_id"]
        if len(text) > _JOB_DIGITS:
            raise NotFound("no such job")
        return JobId(int(text))

    async def body(self, limit_bytes: int = BODY_BYTES) -> bytes:
        """Returns the whole body. Raises BodyTooLarge, BodyTooSlow, TooManyBodies."""
        if self.request.content.is_eof():
            return await self._read_body(limit_bytes)
        try:
            with self.receiving():
                async with asyncio.timeout(BODY_S):
                    return await self._read_body(limit_bytes)
        except TimeoutError:
            raise BodyTooSlow(f"the body took longer than {BODY_S:.0f} s", fix="send it faster, or less") from None

    async def _read_body(self, limit_bytes: int) -> bytes:
        declared = self.request.content_length
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.request.content.iter_any():
            size += len(chunk)
            if size <= limit_bytes and (declared is None or declared <= limit_bytes):
                chunks.append(chunk)
            elif size > _DRAIN_BYTES:
                break
        if size > limit_bytes:
            raise BodyTooLarge(f"the body is larger than {limit_bytes:,} bytes", fix="send less")
        return b"".join(chunks)

    async def model(self, model: type[ModelT], limit_bytes: int = BODY_BYTES) -> ModelT:
        """Returns the body as a validated message. Raises UserError naming the field."""
        return self.checked(model, await self.body(limit_bytes))

    def checked(self, model: type[ModelT], body: bytes) -> ModelT:
        """Returns JSON bytes as a validated message. Raises UserError naming the field."""
        data = parse_json_body(body)
        try:
            return model.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise UserError(f"{field}: {first['msg']}", field=field, fix="see /api/v1/openapi.json") from None

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Returns a whole number of the query, or the default. Raises UserError naming it."""
        text = self.request.query.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not least <= int(text) <= most:
            raise UserError(f"{name}={text[:40]!r} is not a number from {least} to {most}", field=name)
        return int(text)

    def flag(self, name: str) -> bool:
        """Returns a boolean of the query, False where it is missing. Raises UserError naming it."""
        text = self.request.query.get(name, "false").lower()
        if text not in ("true", "false", "1", "0"):
            raise UserError(f"{name}={text[:40]!r} is neither true nor false", field=name)
        return text in ("true", "1")


def check_text(text: str, field: str) -> None:
    """Raise UserError for text that is not UTF-8 or that holds a NUL: the database cannot store it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{field} is not UTF-8", field=field, fix="send text in UTF-8") from None
    if "\0" in text:
        raise UserError(f"{field} holds a NUL", field=field, fix="leave it out")


def check_place(request: web.Request) -> None:
    """Raise UserError for a path or a query that `check_text` refuses."""
    for name, value in request.match_info.items():
        check_text(value, name)
    for name, value in request.query.items():
        check_text(name, "query")
        check_text(value, name)


Handler = Callable[[RequestContext], Awaitable[BaseModel | web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: Handler
    summary: str
    audience: Audience = Audience.USER
    #: The lowest role of a user that the route accepts.
    role: UserRole = UserRole.VIEWER
    request: Any = None
    response: Any = None
    status: int = 200
    #: Names of the query parameters, for the OpenAPI description.
    query: tuple[str, ...] = ()
    #: The handler may wait for something to happen: it does not count against the bound on requests under way.
    waits: bool = False


def json_list(items: Sequence[BaseModel]) -> web.Response:
    """Returns a JSON list of all items; the API has no pages here."""
    body = f"[{','.join(item.model_dump_json() for item in items)}]"
    return web.Response(body=body.encode(), content_type="application/json")


def parse_json_body(body: bytes) -> Any:
    """Returns the data in the body. Raises UserError where it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("the body is not JSON", field="body", fix="send JSON in UTF-8") from None


#: Error classes with HTTP status, code and title; subclasses stand before their base classes.
_PROBLEM_KINDS: tuple[tuple[type[WalrasError], int, str, str], ...] = (
    (BodyTooSlow, 408, "too_slow", "Too slow"),
    (BodyTooLarge, 413, "too_large", "Too large"),
    (KeyReused, 422, "idempotency_key_reused", "Idempotency key reused"),
    (JobSpecError, 400, "job_spec", "Invalid job spec"),
    (UnknownPolicyError, 400, "unknown_policy", "Unknown policy"),
    (ConfigError, 400, "config", "Invalid configuration"),
    (NotFound, 404, "not_found", "Not found"),
    (OtherCluster, 409, "other_cluster", "Another cluster"),
    (OtherIncarnation, 409, "other_incarnation", "Another incarnation"),
    (OtherProtocol, 409, "other_protocol", "Another protocol"),
    (NameHeld, 409, "name_held", "Name held by another agent"),
    (Conflict, 409, "conflict", "Conflict"),
    (Forbidden, 403, "forbidden", "Forbidden"),
    (UserError, 400, "invalid_request", "Invalid request"),
    (StoreUnavailable, 503, "store_unavailable", "The database cannot be written"),
    (TooManyBodies, 429, "too_many_requests", "Too many requests"),
    (Overloaded, 429, "overloaded", "Too much to do"),
)


def problem_detail_of(error: WalrasError) -> ProblemDetail:
    """Returns the problem+json body for an error."""
    for kind, status, code, title in _PROBLEM_KINDS:
        if isinstance(error, kind):
            field = error.field if isinstance(error, UserError) else ""
            fix = error.fix if isinstance(error, UserError) else ""
            cluster = error.identity if isinstance(error, OtherIncarnation) else None
            return ProblemDetail(
                title=title, status=status, code=code, detail=str(error), field=field, fix=fix, cluster=cluster
            )
    return ProblemDetail(title="The cluster failed", status=503, code="cluster_error", detail=str(error))


def problem_response(problem: ProblemDetail, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=problem.status,
        body=problem.model_dump_json(exclude_none=True).encode(),
        content_type="application/problem+json",
        headers=headers,
    )


def unauthorised(detail: str) -> web.Response:
    problem = ProblemDetail(
        title="Unauthorised",
        status=401,
        code="unauthorised",
        detail=detail,
        fix="send `Authorization: Bearer TOKEN`; the CLI reads WALRAS_TOKEN or WALRAS_TOKEN_FILE",
    )
    return problem_response(problem, {"WWW-Authenticate": "Bearer"})


def too_many_requests(detail: str, retry_s: int = 1) -> web.Response:
    problem = ProblemDetail(title="Too many requests", status=429, code="too_many_requests", detail=detail)
    return problem_response(problem, {"Retry-After": str(retry_s)})
