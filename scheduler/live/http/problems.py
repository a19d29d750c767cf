"""Errors as RFC 9457 problem+json: a stable code, the field and the fix."""

from aiohttp import web

from scheduler.live.desks.submit import KeyReused
from scheduler.live.http.routing import TooLarge
from scheduler.live.turns.daemon import Overloaded
from walras.api import ProblemDetail
from walras.errors import (
    ConfigError,
    Conflict,
    Forbidden,
    JobSpecError,
    NotFound,
    UnknownPolicyError,
    UserError,
    WalrasError,
)

#: Most specific first.
_KINDS: tuple[tuple[type[WalrasError], int, str, str], ...] = (
    (TooLarge, 413, "too_large", "Too large"),
    (KeyReused, 422, "idempotency_key_reused", "Idempotency key reused"),
    (JobSpecError, 400, "job_spec", "Invalid job spec"),
    (UnknownPolicyError, 400, "unknown_policy", "Unknown policy"),
    (ConfigError, 400, "config", "Invalid configuration"),
    (NotFound, 404, "not_found", "Not found"),
    (Conflict, 409, "conflict", "Conflict"),
    (Forbidden, 403, "forbidden", "Forbidden"),
    (UserError, 400, "invalid_request", "Invalid request"),
    (Overloaded, 429, "overloaded", "Too much to do"),
)


def problem_of(error: WalrasError) -> ProblemDetail:
    """What a person or program is told about an error."""
    for kind, status, code, title in _KINDS:
        if isinstance(error, kind):
            field = error.field if isinstance(error, UserError) else ""
            fix = error.fix if isinstance(error, UserError) else ""
            return ProblemDetail(title=title, status=status, code=code, detail=str(error), field=field, fix=fix)
    return ProblemDetail(title="The cluster failed", status=503, code="cluster_error", detail=str(error))


def answer(problem: ProblemDetail, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=problem.status,
        body=problem.model_dump_json().encode(),
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
    return answer(problem, {"WWW-Authenticate": "Bearer"})


def too_many(detail: str, retry_s: int = 1) -> web.Response:
    problem = ProblemDetail(title="Too many requests", status=429, code="too_many_requests", detail=detail)
    return answer(problem, {"Retry-After": str(retry_s)})
