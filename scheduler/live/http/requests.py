"""Requests, answers and errors of the HTTP interface.

Each `Endpoint` that a handler serves says its path, who may call it, what goes in and what comes out; it drives
dispatch, authorisation and OpenAPI. A handler receives a `RequestContext`. Errors become problem+json (RFC 9457): a
stable code, the field, and the fix.

The audit: each change that a user makes through the API adds a row in the transaction of that change. A handler has its
step `audited`, or calls `note_write` inside it. The size of a row is bounded, and no row holds a secret: variables and
secrets of jobs are left out, and tokens are named by their first characters. A request that is refused changes nothing
and adds no row.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel

from scheduler.live.auth.access_control import Caller, UserCaller
from scheduler.live.holder_shares import ShareTaken
from scheduler.live.http.request_bodies import BodyTooLarge, Reader, holder_of, json_of_body, read_model
from scheduler.live.loop.event_loop import Overloaded
from scheduler.live.loop.transaction import Transaction
from scheduler.live.server import Server
from scheduler.live.services.job_submission import KeyReused
from scheduler.live.store.content_store import SpaceTaken
from scheduler.live.store.store_interface import StoreUnavailable
from scheduler.live.store.table_rows import AuditRow
from scheduler.live.web.page import WebSessions
from walras.connection.body import ProblemDetail
from walras.contract import SLOWEST_BYTES_PER_S
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
from walras.resources.endpoint import Endpoint

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)

#: A whole body must have arrived within this time, seconds, and a stated length by `SLOWEST_BYTES_PER_S`.
BODY_S = 60.0
_JOB_DIGITS = 18
#: Characters of what an audit row holds of a subject, and of what it was before and after.
_LONGEST_SUBJECT, _LONGEST_VALUE = 300, 4000
#: Bytes that are read and dropped of a body that is too large, so that its sender reads the answer before it gives up.
_DRAIN_BYTES = 64 * 1024 * 1024


class BodyTooSlow(UserError):
    """The body did not come in time."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request of an authenticated caller."""

    request: web.Request
    server: Server
    caller: Caller
    #: Its limits hold for the body.
    endpoint: Endpoint
    #: Opened while the body still comes. Raises ShareTaken.
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

    def note_write(
        self, transaction: Transaction, subject: str, *, before: Any = None, after: Any = None, project: str = ""
    ) -> None:
        """Add an audit row about what this request changes to the transaction."""
        resource = self.request.match_info.route.resource
        row = AuditRow(
            at=transaction.at,
            user=self.user.name,
            role=self.user.role.word,
            address=self.request.remote or "",
            action=f"{self.request.method} {self.request.path if resource is None else resource.canonical}",
            subject=subject[:_LONGEST_SUBJECT],
            project=project,
            before=_bounded(before),
            after=_bounded(after),
        )
        transaction.batch.put(row)

    def audited(
        self, subject: str, look: Callable[[Transaction], Any], step: Callable[[Transaction], T], project: str = ""
    ) -> Callable[[Transaction], T]:
        """Returns a step that runs `step` and adds an audit row with what `look` sees before and after it."""

        def whole(transaction: Transaction) -> T:
            before = look(transaction)
            answer = step(transaction)
            self.note_write(transaction, subject, before=before, after=look(transaction), project=project)
            return answer

        return whole

    async def body(self) -> bytes:
        """Returns the whole body. Raises BodyTooLarge, BodyTooSlow, ShareTaken."""
        return bytes(await self._received())

    async def _received(self) -> bytearray:
        if self.request.content.is_eof():
            return await self._read_body()
        stated = min(self.request.content_length or 0, self.endpoint.body_bytes)
        within_s = BODY_S + stated / SLOWEST_BYTES_PER_S
        try:
            with self.receiving():
                async with asyncio.timeout(within_s):
                    return await self._read_body()
        except TimeoutError:
            raise BodyTooSlow(f"the body took longer than {within_s:.0f} s", fix="send it faster, or less") from None

    async def _read_body(self) -> bytearray:
        declared, limit_bytes = self.request.content_length, self.endpoint.body_bytes
        body = bytearray()
        size = 0
        async for chunk in self.request.content.iter_any():
            size += len(chunk)
            if size <= limit_bytes and (declared is None or declared <= limit_bytes):
                body += chunk
            elif size > _DRAIN_BYTES:
                break
        if size > limit_bytes:
            raise BodyTooLarge(f"the body is larger than {limit_bytes:,} bytes", fix="send less")
        return body

    async def read(self, read: Reader[T], *, is_yaml: bool = False, body: bytes | None = None) -> T:
        """Returns what a reader makes of the body, or of these bytes. Raises what it raises, and BodyTooLarge."""
        taken = await self._received() if body is None else body
        holder, most = holder_of(self.caller, self.request.remote or ""), self.endpoint.body_values
        return await self.server.bodies.read(read, taken, holder, most=most, is_yaml=is_yaml)

    async def model(self, model: type[ModelT]) -> ModelT:
        """Returns the body as a validated message. Raises UserError naming the field."""
        return await self.read(partial(read_model, model))

    async def json(self) -> Any:
        """Returns the data in the body. Raises UserError where it is not JSON."""
        return await self.read(json_of_body)

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


def _bounded(value: Any) -> str:
    """Returns the value as JSON; of one that is too long its beginning, as text under the key `cut`."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST_VALUE else json.dumps({"cut": text[:_LONGEST_VALUE]})


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


#: What a handler returns: a body, a list of bodies, content (JSON, unless the endpoint says another type), nothing, or
#: a response that is ready.
Answer = BaseModel | Sequence[BaseModel] | bytes | None | web.StreamResponse
Handler = Callable[[RequestContext], Awaitable[Answer]]


def response_of(endpoint: Endpoint, answer: Answer) -> web.StreamResponse:
    if isinstance(answer, web.StreamResponse):
        return answer
    if isinstance(answer, BaseModel):
        answer = answer.model_dump_json().encode()
    elif not isinstance(answer, bytes) and answer is not None:
        answer = f"[{','.join(item.model_dump_json() for item in answer)}]".encode()
    if answer is None:
        return web.Response(status=endpoint.status)
    kind = endpoint.answer if isinstance(endpoint.answer, str) else "application/json"
    return web.Response(status=endpoint.status, body=answer, content_type=kind)


#: Error classes with HTTP status, code and title; subclasses stand before their base classes.
_PROBLEM_KINDS: tuple[tuple[type[WalrasError], int, str, str], ...] = (
    (SpaceTaken, 413, "share_taken", "Share of the content store taken"),
    (ShareTaken, 429, "too_many_requests", "Too many requests"),
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


def too_many_requests(detail: str, retry_s: int = 1, fix: str = "") -> web.Response:
    problem = ProblemDetail(title="Too many requests", status=429, code="too_many_requests", detail=detail, fix=fix)
    return problem_response(problem, {"Retry-After": str(retry_s)})


HandlerT = TypeVar("HandlerT", bound=Handler)


def serves(*asked: Endpoint | Callable[..., Any]) -> Callable[[HandlerT], HandlerT]:
    """Returns a decorator for the handler of these endpoints, or of the client's calls, which `served_by` finds."""

    def marked(handler: HandlerT) -> HandlerT:
        handler.endpoints = [getattr(each, "endpoint", each) for each in asked]  # type: ignore[attr-defined]
        return handler

    return marked


def served_by(*modules: ModuleType) -> dict[Endpoint, Handler]:
    """Returns the endpoints that functions of modules serve."""
    return {
        endpoint: handler
        for module in modules
        for handler in vars(module).values()
        if getattr(handler, "__module__", "") == module.__name__
        for endpoint in getattr(handler, "endpoints", ())
    }
