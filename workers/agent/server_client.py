"""The agent's calls to the server: registration, heartbeats, and the shipping of logs.

Every failure is one of two kinds: ServerUnreachable (try again later) or Forbidden (not like this). The join token is
shown once; the credential that the server gives is kept (mode 0600). The only state of log shipping is which byte the
server wants next.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from walras.api import ProblemDetail
from walras.contract import split_token
from walras.errors import ConfigError, Forbidden, ServerUnreachable
from walras.transport import wrong_certificate
from walras.wire import Heartbeat, HeartbeatAnswer, Register, Registered
from workers.supervisor_protocol import read_ranks_file, write_durably

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
        return _parse_answer(Registered, body)

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        body = await self._post("heartbeat", self.credential, message, CALL_TIMEOUT_S + message.wait_s)
        return _parse_answer(HeartbeatAnswer, body)

    async def send_log(self, job_id: int, attempt: int, rank: int, offset: int, content: bytes) -> int:
        """Returns the offset that the server wants next."""
        place = {"job_id": job_id, "attempt": attempt, "rank": rank, "offset": offset}
        url = f"{self._url}/agent/v1/logs"
        headers = {"Authorization": f"Bearer {self.credential}", "Content-Type": "application/octet-stream"}
        body = await self._call(
            url, headers, content, CALL_TIMEOUT_S, {name: str(value) for name, value in place.items()}
        )
        return _parse_answer(_LogAnswer, body).next

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
        except aiohttp.ServerFingerprintMismatch as error:
            # Whoever answered there is not our server: ours may be back in a moment, and our jobs go on.
            raise ServerUnreachable(str(wrong_certificate(url, error))) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerUnreachable(f"{url}: {error or type(error).__name__}") from None
        if answer.status in REFUSALS:
            raise _forbidden_error(url, answer.status, body)
        if answer.status != 200:
            raise ServerUnreachable(f"{url}: {answer.status} {body[:200].decode(errors='replace')}")
        return body


def _forbidden_error(url: str, status: int, body: bytes) -> Forbidden:
    """Returns the server's refusal as an error; the first bytes of the body if the server is not Walras."""
    try:
        problem = ProblemDetail.model_validate_json(body)
    except ValidationError:
        return Forbidden(f"{url}: {status} {body[:200].decode(errors='replace')}")
    # The server speaks to people with a token of their own; a machine has another way to one.
    fix = "copy the server's join.token here anew (--join-token-file)" if status == 401 else problem.fix
    return Forbidden((problem.detail or problem.title)[:_LONGEST_DETAIL], field=problem.field, fix=fix)


class _LogAnswer(BaseModel):
    next: int


def _parse_answer(model: type[Answer], body: bytes) -> Answer:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise ServerUnreachable(f"the server's answer is no {model.__name__}: {error.errors()[:1]}") from None


CREDENTIAL_FILE = "credential.json"
PIN_FILE = "server.pin"


def kept_pin(state: Path, join_token_file: Path | None) -> str:
    """Returns the fingerprint of the server's certificate: that of the join token, else the one kept from it; empty if
    none was ever given. The token's file may be gone after the first start.
    """
    kept = state / PIN_FILE
    try:
        pin = split_token(join_token_file.read_text())[1] if join_token_file is not None else None
    except (OSError, UnicodeDecodeError):
        pin = None
    if pin is None:
        return str(json.loads(kept.read_bytes())) if kept.is_file() else ""
    if pin or kept.is_file():
        write_durably(kept, pin)
    return pin


@dataclass
class Enrolment:
    state: Path
    message: Register
    join_token_file: Path | None
    address: str
    #: As the server asked for at registration.
    heartbeat_s: float = 1.0

    @property
    def node_id(self) -> str:
        return self.message.node_id

    async def ensure(self, client: ServerClient) -> None:
        """Give the client its credential: the kept one if it was given for the same facts, else a new one.

        Raises:
            ServerUnreachable: try again.
            Forbidden: the join token is not accepted.
            ConfigError: there is no join token to show.
        """
        registered = self._kept()
        if registered is None:
            registered = await client.register(self.message, self._join_token())
            facts = self.message.model_dump(mode="json")
            write_durably(self.state / CREDENTIAL_FILE, {"for": facts, "registered": registered.model_dump()})
        client.credential = registered.credential
        self.heartbeat_s = registered.heartbeat_s

    def forget(self) -> None:
        """The server does not accept the credential any more."""
        (self.state / CREDENTIAL_FILE).unlink(missing_ok=True)

    def _kept(self) -> Registered | None:
        try:
            kept = json.loads((self.state / CREDENTIAL_FILE).read_bytes())
        except FileNotFoundError:
            return None
        if kept["for"] != self.message.model_dump(mode="json"):
            return None
        return Registered.model_validate(kept["registered"])

    def _join_token(self) -> str:
        if self.join_token_file is None:
            raise ConfigError("this machine is not registered", field="--join-token-file", fix="give the join token")
        try:
            return split_token(self.join_token_file.read_text())[0]
        except OSError as error:
            raise ConfigError(f"{self.join_token_file}: {error.strerror}", field="--join-token-file") from None


CHUNK_BYTES = 256 * 1024
SHIP_EVERY_S = 0.5
RETRY_S = 2.0
#: How long the report of an end waits for the rest of the logs.
LAST_CHANCE_S = 10.0


@dataclass
class _LogFile:
    rank: int
    path: Path
    #: None until the server has answered which offset it has.
    offset: int | None = None


class LogShipper:
    """The logs of one attempt on this machine. The files only ever grow."""

    def __init__(self, client: ServerClient, job_id: int, attempt: int, logs: dict[int, Path]) -> None:
        self._client = client
        self._job_id = job_id
        self._attempt = attempt
        self._files = [_LogFile(rank, path) for rank, path in logs.items()]

    async def run(self) -> None:
        """Ship output until cancelled."""
        while True:
            is_taken = await self._ship_once()
            await asyncio.sleep(SHIP_EVERY_S if is_taken else RETRY_S)

    async def ship_rest(self) -> bool:
        """Ship all there is, within bounds. False if the server did not take it in time."""
        try:
            async with asyncio.timeout(LAST_CHANCE_S):
                while True:
                    if await self._ship_once():
                        return True
                    await asyncio.sleep(SHIP_EVERY_S)
        except TimeoutError:
            return False

    async def _ship_once(self) -> bool:
        """True when every file is shipped up to its present end."""
        try:
            for file in self._files:
                await self._ship(file)
        except (ServerUnreachable, Forbidden):
            return False
        return True

    async def _ship(self, file: _LogFile) -> None:
        if file.offset is None:
            file.offset = await self._client.send_log(self._job_id, self._attempt, file.rank, 0, b"")
        while chunk := read_ranks_file(file.path, file.offset, CHUNK_BYTES):
            wanted = await self._client.send_log(self._job_id, self._attempt, file.rank, file.offset, chunk)
            if wanted == file.offset:
                return  # the server takes no more of it (a quota): so be it
            file.offset = wanted
