"""The three calls an agent makes. Every failure is one of two kinds: try again later, or not like this."""

from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from walras.api import ProblemDetail
from walras.errors import Forbidden, ServerUnreachable
from walras.wire import Heartbeat, HeartbeatAnswer, Register, Registered

CALL_TIMEOUT_S = 10.0
#: Answers that asking again does not change: no such token, no such machine, or one known with other facts.
REFUSALS = frozenset({400, 401, 403, 404, 409, 413, 422})
_LONGEST_DETAIL = 2000

Answer = TypeVar("Answer", bound=BaseModel)


class ServerClient:
    """Calls the server. Raises ServerUnreachable (try again) or Forbidden (it will not have us like this)."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        #: Set once registered.
        self.credential = ""

    async def register(self, message: Register, join_token: str) -> Registered:
        body = await self._post("register", join_token, message)
        return _parse(Registered, body)

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        body = await self._post("heartbeat", self.credential, message, CALL_TIMEOUT_S + message.wait_s)
        return _parse(HeartbeatAnswer, body)

    async def send_log(self, job_id: int, attempt: int, rank: int, offset: int, content: bytes) -> int:
        """Returns the offset that the server wants next."""
        place = {"job_id": job_id, "attempt": attempt, "rank": rank, "offset": offset}
        url = f"{self._url}/agent/v1/logs"
        headers = {"Authorization": f"Bearer {self.credential}", "Content-Type": "application/octet-stream"}
        body = await self._call(
            url, headers, content, CALL_TIMEOUT_S, {name: str(value) for name, value in place.items()}
        )
        return _parse(_LogAnswer, body).next

    async def _post(self, path: str, token: str, message: BaseModel, timeout_s: float = CALL_TIMEOUT_S) -> bytes:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        content = message.model_dump_json().encode()
        return await self._call(f"{self._url}/agent/v1/{path}", headers, content, timeout_s, {})

    async def _call(
        self, url: str, headers: dict[str, str], content: bytes, timeout_s: float, params: dict[str, str]
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(
                url, data=content, headers=headers, timeout=timeout, params=params, allow_redirects=False
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerUnreachable(f"{url}: {error or type(error).__name__}") from None
        if answer.status in REFUSALS:
            raise _refusal(url, answer.status, body)
        if answer.status != 200:
            raise ServerUnreachable(f"{url}: {answer.status} {body[:200].decode(errors='replace')}")
        return body


def _refusal(url: str, status: int, body: bytes) -> Forbidden:
    """What the server said, for a person to read; its first words where it is no server of ours."""
    try:
        problem = ProblemDetail.model_validate_json(body)
    except ValidationError:
        return Forbidden(f"{url}: {status} {body[:200].decode(errors='replace')}")
    # The server speaks to people with a token of their own; a machine has another way to one.
    fix = "copy the server's join.token here anew (--join-token-file)" if status == 401 else problem.fix
    return Forbidden((problem.detail or problem.title)[:_LONGEST_DETAIL], field=problem.field, fix=fix)


class _LogAnswer(BaseModel):
    next: int


def _parse(model: type[Answer], body: bytes) -> Answer:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise ServerUnreachable(f"the server's answer is no {model.__name__}: {error.errors()[:1]}") from None
