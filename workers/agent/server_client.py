"""The agent's calls to the server: registration, heartbeats, and the upload of logs.

Every failure is one of two kinds: ServerUnreachable (try again later) or Forbidden (the request is refused). The join
token is sent once; the credential that the server gives is stored (mode 0600) with the cluster's identity. Answers of a
server that names another cluster are ignored; a server that names another incarnation was restored, so reports are sent
to it again. The only state of log uploads is the next byte that the server wants.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from walras.clocks import random_pause
from walras.connection.body import ProblemDetail
from walras.connection.transport import Patience, Transport, wrong_certificate
from walras.contract import pinned_token, protocol_problem, split_token
from walras.errors import ConfigError, Forbidden, ServerUnreachable
from walras.job_needs import OutputsCollected
from walras.storage.checkpoint_store import StoreAccess, StoreAccessRequest
from walras.storage.object_store import StoreFailure
from walras.wire import ClusterIdentity, Heartbeat, HeartbeatAnswer, Register, Registered, is_like_memory
from workers.devices import AttemptKey
from workers.supervisor_protocol import read_ranks_file, write_durably

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0
#: Seconds of a call for store credentials, for which the server asks another service.
STORE_ACCESS_S = 60.0
#: Tries and seconds of a transfer over a slow line. The agent's own retries come on top.
CONTENT_PATIENCE = Patience(tries=2, call_timeout_s=120.0)
#: Answers that do not change on retry: no such token, no such machine, or one known with other facts.
REFUSALS = frozenset({400, 401, 403, 404, 409, 413, 422})
#: Answers of something in front of a server that is away.
_OF_A_PROXY = frozenset({502, 504})
_LONGEST_DETAIL = 2000

Answer = TypeVar("Answer", bound=BaseModel)


class ServerRefusal(Forbidden):
    """The server understood the request and refuses it. `code` is stable; `cluster` is the identity that the server
    names.
    """

    def __init__(
        self, message: str, *, code: str, cluster: ClusterIdentity | None = None, field: str = "", fix: str = ""
    ) -> None:
        super().__init__(message, field=field, fix=fix)
        self.code = code
        self.cluster = cluster

    @property
    def is_final(self) -> bool:
        """Returns whether a person must decide, because neither waiting nor registering anew helps."""
        return self.code in ("other_cluster", "other_protocol")

    @property
    def is_to_wait_for(self) -> bool:
        """Returns whether to wait, because another agent may have ranks alive under this name."""
        return self.code == "name_held"


#: Longest wait between two failing calls, seconds.
MAX_BACKOFF_S = 5.0
#: Longest time that a call may be held open, seconds (`walras.wire.Heartbeat`).
MAX_WAIT_S = 60.0


def call_backoff_s(failures: int, chance: Random | None) -> float:
    """Returns the seconds of exponential backoff, with a cap, and with jitter so that agents do not call in step."""
    return random_pause(chance, min(MAX_BACKOFF_S, 0.1 * 2.0 ** min(failures, 10)))


class ServerClient:
    """Calls the server. Raises ServerUnreachable (try again) or Forbidden (the request is refused).

    Of several addresses, one is used until it does not answer; then the next one.
    """

    def __init__(self, session: aiohttp.ClientSession, urls: str | Sequence[str], pin: str = "") -> None:
        self._session = session
        self._pin = pin
        self._urls = tuple(url.rstrip("/") for url in ((urls,) if isinstance(urls, str) else urls))
        self._at = 0
        #: The credential; set once registered.
        self.credential = ""
        #: How often the server has answered, whatever it said.
        self.answers = 0
        #: Named in every upload; set once known.
        self.cluster: ClusterIdentity | None = None

    def transport(self) -> Transport:
        """Returns a separate connection for content, with the current credential and the same server's certificate."""
        return Transport(self._urls[self._at], pinned_token(self.credential, self._pin), CONTENT_PATIENCE)

    async def register(self, message: Register, join_token: str) -> Registered:
        body = await self._post("register", join_token, message)
        return _parse_answer(Registered, body)

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        body = await self._post("heartbeat", self.credential, message, CALL_TIMEOUT_S + message.wait_s)
        return _parse_answer(HeartbeatAnswer, body)

    async def send_log(self, key: AttemptKey, rank: int, offset: int, content: bytes) -> int:
        """Uploads a part of a log. Returns the offset that the server wants next."""
        place = {"job_id": str(key.job_id), "attempt": str(key.attempt), "rank": str(rank), "offset": str(offset)}
        headers = {"Authorization": f"Bearer {self.credential}", "Content-Type": "application/octet-stream"}
        body = await self._call("logs", headers, content, CALL_TIMEOUT_S, place | self._granted_by(key))
        return _parse_answer(_LogAnswer, body).next

    async def store_access(self, place: str, key: AttemptKey | None = None) -> StoreAccess | None:
        """Returns credentials for a folder of an object store, for this attempt or the machine's proof; None: its own.

        Raises ServerUnreachable, ServerRefusal, and StoreFailure where the server gets no credentials now.
        """
        job_id, attempt, _ = key or AttemptKey(0, 0)
        request = StoreAccessRequest(place=place, job_id=job_id, attempt=attempt)
        params = {} if key is None else self._granted_by(key)
        try:
            body = await self._post("store-access", self.credential, request, STORE_ACCESS_S, params)
        except ServerRefusal as error:
            if error.code == "not_found":  # a server of the release before
                return None
            raise
        access = _parse_answer(StoreAccess, body)
        if access.problem:
            raise StoreFailure(f"checkpoint store {place}: {access.problem}")
        return access if access.key else None

    async def tell_outputs(self, key: AttemptKey, told: OutputsCollected) -> None:
        """Reports results that the content store has; they are recorded on return."""
        await self._post("outputs", self.credential, told, params=self._granted_by(key))

    @contextlib.asynccontextmanager
    async def session_socket(
        self, session_id: str, message_bytes: int
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Opens this machine's websocket of a session. Raises NotFound for one that is over, ServerUnreachable."""
        async with self.transport() as transport:
            socket = await transport.websocket(f"/agent/v1/sessions/{session_id}", {}, message_bytes)
            try:
                yield socket
            finally:
                await socket.close()

    def _granted_by(self, key: AttemptKey) -> dict[str, str]:
        """Returns the cluster and incarnation that granted the attempt as query fields; empty for a server that names
        none.
        """
        return {} if self.cluster is None else {**self.cluster.model_dump(), "granted_by": key.incarnation}

    async def _post(
        self,
        path: str,
        token: str,
        message: BaseModel,
        timeout_s: float = CALL_TIMEOUT_S,
        params: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        content = message.model_dump_json().encode()
        return await self._call(path, headers, content, timeout_s, params)

    async def _call(
        self, path: str, headers: dict[str, str], content: bytes, timeout_s: float, params: Mapping[str, str]
    ) -> bytes:
        at = self._at
        try:
            return await self._call_url(f"{self._urls[at]}/agent/v1/{path}", headers, content, timeout_s, params)
        except ServerUnreachable:
            if self._at == at:  # else a call beside this one has moved on already
                self._at = (at + 1) % len(self._urls)
            raise

    async def _call_url(
        self, url: str, headers: dict[str, str], content: bytes, timeout_s: float, params: Mapping[str, str]
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(
                url, data=content, headers=headers, timeout=timeout, params=params, allow_redirects=False
            ) as answer:
                body = await answer.read()
                self.answers += answer.status not in _OF_A_PROXY
        except aiohttp.ServerFingerprintMismatch as error:
            # Whoever answered there is not our server: ours may be back in a moment, and our jobs go on.
            raise ServerUnreachable(str(wrong_certificate(url, error))) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerUnreachable(f"{url}: {error or type(error).__name__}") from None
        if answer.status in REFUSALS:
            raise _forbidden_error(url, answer.status, body)
        if answer.status not in (200, 204):
            raise ServerUnreachable(f"{url}: {answer.status} {body[:200].decode(errors='replace')}")
        return body


def _forbidden_error(url: str, status: int, body: bytes) -> ServerRefusal:
    """Returns the server's refusal as an error; the first bytes of the body if the server is not Walras."""
    try:
        problem = ProblemDetail.model_validate_json(body)
        cluster = None if problem.cluster is None else ClusterIdentity.model_validate(problem.cluster)
    except ValidationError:
        return ServerRefusal(f"{url}: {status} {body[:200].decode(errors='replace')}", code="")
    # The server speaks to people with a token of their own; a machine has another way to one.
    fix = "copy the server's join.token here anew (--join-token-file)" if status == 401 else problem.fix
    detail = (problem.detail or problem.title)[:_LONGEST_DETAIL]
    return ServerRefusal(detail, code=problem.code, cluster=cluster, field=problem.field, fix=fix)


class _LogAnswer(BaseModel):
    next: int


def _parse_answer(model: type[Answer], body: bytes) -> Answer:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise ServerUnreachable(
            f"the server's answer is no {model.__name__}: {error.errors(include_input=False)[:1]}"
        ) from None


CREDENTIAL_FILE = "credential.json"
PIN_FILE = "server.pin"


def kept_pin(state: Path, join_token_file: Path | None) -> str:
    """Returns the fingerprint of the server's certificate, from the join token or else the stored one; empty without
    any.

    The token's file may be deleted after the first start.
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
    """The agent's identity in its cluster, stored in the state folder."""

    state: Path
    message: Register
    join_token_file: Path | None
    address: str
    #: As the server asked for at registration.
    heartbeat_s: float = 1.0
    #: The agent's cluster, and the incarnation that it last met; None: no server has named itself yet.
    cluster: ClusterIdentity | None = None
    #: Called before another incarnation is stored as met: queues what it may not know. Returns whether that is stored;
    #: if not, the next agent meets this incarnation as a new one, and queues it again.
    on_other_incarnation: Callable[[], bool] = lambda: True
    #: What is known and not in the file, as the disk is full.
    _unwritten: dict[str, Any] | None = field(default=None, init=False)
    #: The incarnation that the file names while what later ones may not know is not stored; None: the one last met.
    _untold_since: ClusterIdentity | None = field(default=None, init=False)

    @property
    def node_id(self) -> str:
        return self.message.node_id

    def draw_pace_s(self, chance: Random | None) -> float:
        """Returns for how long to hold the next call open, seconds, drawn so that agents do not call in step.

        One commit of the server answers many calls; with one pace for all, these would come together from then on.
        """
        return random_pause(chance, min(self.heartbeat_s, MAX_WAIT_S))

    async def ensure(self, client: ServerClient) -> None:
        """Gives the client its credential: the stored one if it was given for the same facts, else a new one.

        Raises:
            ServerUnreachable: try again.
            ServerRefusal: the join token is not accepted, or the server belongs to another cluster.
            ConfigError: there is no join token, or the state folder is registered under another name.
        """
        kept = self._kept()
        known_as = None if kept.registered is None or kept.given_for is None else kept.given_for["node_id"]
        if known_as not in (None, self.node_id):
            raise ConfigError(
                f"{self.state} is the state of machine {known_as}, not of {self.node_id}: what runs there is its own",
                field="--node",
                fix=f"start it as --node {known_as}, or give {self.node_id} a --state of its own",
            )
        self.cluster = kept.cluster
        registered = kept.registered if self._is_for_this_machine(kept.given_for) else None
        if registered is None:
            registered = await client.register(
                self.message.model_copy(update={"cluster": self.cluster}), self._join_token(kept)
            )
            self.take_identity(registered.cluster, registered.protocol)
            self._keep(registered)
        client.credential, client.cluster = registered.credential, self.cluster
        self.heartbeat_s = registered.heartbeat_s

    def take_identity(self, told: ClusterIdentity | None, protocol: int) -> bool:
        """Checks the server's identity. Returns True if it is another incarnation of this agent's cluster than before.

        Raises:
            ServerRefusal: it is another cluster, or its release is too far from this one.
        """
        if problem := protocol_problem("the server", protocol):
            raise ServerRefusal(problem, code="other_protocol", fix="install the server's release on this machine")
        known = self.cluster
        if told is None or told == known:
            return False
        if known is not None and known.cluster_id != told.cluster_id:
            raise ServerRefusal(
                f"the server is cluster {told.cluster_id}; this agent belongs to cluster {known.cluster_id}",
                code="other_cluster",
                cluster=told,
                fix="give the agent the address of its own server (--server), or a new --state to join this one",
            )
        if known is None:
            log.info("this agent belongs to cluster %s, incarnation %s", told.cluster_id, told.incarnation)
        else:
            log.warning("cluster %s: incarnation %s after %s", told.cluster_id, told.incarnation, known.incarnation)
        is_told = known is None or self.on_other_incarnation()
        self._untold_since = None if is_told else self._untold_since or known
        self.cluster = told
        self._keep(self._kept().registered)
        return known is not None

    def forget(self) -> None:
        """Deletes the credential, which the server no longer accepts. The cluster stays known."""
        self._keep(None)

    def _is_for_this_machine(self, given_for: dict[str, Any] | None) -> bool:
        """Returns whether a credential that was given for these facts is this machine's, whatever kernel it runs."""
        if given_for is None:
            return True
        now, then = self._facts(), given_for["facts"]["memory_bytes"]
        if is_like_memory(now["facts"]["memory_bytes"], then):
            now["facts"]["memory_bytes"] = then
        return given_for == now

    def _facts(self) -> dict[str, Any]:
        """Returns the facts for which a credential is given. A new release of the agent does not change them."""
        facts = self.message.model_dump(mode="json", include={"node_id", "facts", "rent_token"})
        if not facts["facts"]["machine"]:
            del facts["facts"]["machine"]  # as it was written down before machines had parts
        return facts

    def _keep(self, registered: Registered | None) -> None:
        met = self._untold_since or self.cluster
        told = _Kept.model_validate({"for": self._facts(), "registered": registered, "cluster": met})
        kept = told.model_dump(mode="json", by_alias=True)
        self._unwritten = kept
        try:
            write_durably(self.state / CREDENTIAL_FILE, kept)
        except OSError as error:  # the next agent meets the server as this one did
            log.error("%s cannot be written: %s", self.state / CREDENTIAL_FILE, error)
        else:
            self._unwritten = None

    def _kept(self) -> "_Kept":
        try:
            kept = self._unwritten or json.loads((self.state / CREDENTIAL_FILE).read_bytes())
        except FileNotFoundError:
            return _Kept(cluster=self.cluster)
        given_for = {name: value for name, value in kept["for"].items() if name in self._facts()}
        met = self.cluster if self._untold_since else kept.get("cluster")
        return _Kept.model_validate(kept | {"for": given_for, "cluster": met})

    def _join_token(self, kept: "_Kept") -> str:
        if self.join_token_file is None:
            what = "this machine is not registered"
            if kept.registered is not None and kept.given_for is not None:
                then, now = kept.given_for["facts"], self._facts()["facts"]
                changed = [f"{name} {then.get(name)}, now {now[name]}" for name in now if now[name] != then.get(name)]
                what = f"this machine was registered with other facts ({'; '.join(changed)})" if changed else what
            raise ConfigError(what, field="--join-token-file", fix="give the join token")
        try:
            return split_token(self.join_token_file.read_text())[0]
        except OSError as error:
            raise ConfigError(f"{self.join_token_file}: {error.strerror}", field="--join-token-file") from None


class _Kept(BaseModel):
    """The content of the credential file."""

    given_for: dict[str, Any] | None = Field(default=None, alias="for")
    registered: Registered | None = None
    cluster: ClusterIdentity | None = None


CHUNK_BYTES = 256 * 1024
SHIP_EVERY_S = 0.5
RETRY_S = 2.0
#: Seconds for which the report of an end waits for the rest of the logs, while the server answers.
LAST_CHANCE_S = 10.0
_LEAST_WAIT_S = 0.01


@dataclass
class _LogFile:
    rank: int
    path: Path
    #: None until the server has stated its offset.
    offset: int | None = None
    #: Whether the server took none of it the last time: then one byte is enough to ask again.
    is_refused: bool = False


class LogShipper:
    """The logs of one attempt on this machine. The files only ever grow."""

    def __init__(self, client: ServerClient, key: AttemptKey, logs: dict[int, Path]) -> None:
        self._client = client
        self._key = key
        self._files = [_LogFile(rank, path) for rank, path in logs.items()]

    async def run(self) -> None:
        """Uploads output until cancelled."""
        while True:
            is_taken = await self._ship_once()
            await asyncio.sleep(SHIP_EVERY_S if is_taken else RETRY_S)

    async def ship_rest(self) -> bool:
        """Uploads the remaining output, within bounds. Returns False if the server did not accept it in time.

        The time in which it answers nothing does not count: the end could not be reported either.
        """
        left_s, now = LAST_CHANCE_S, asyncio.get_running_loop().time
        while left_s > _LEAST_WAIT_S:
            began, answers = now(), self._client.answers
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    if await self._ship_once():
                        return True
                    await asyncio.sleep(SHIP_EVERY_S)
            if self._client.answers != answers:
                left_s -= now() - began
        return False

    async def _ship_once(self) -> bool:
        """Uploads once. Returns True when every file is uploaded up to its present end."""
        try:
            for file in self._files:
                await self._ship(file)
        except (ServerUnreachable, Forbidden):
            return False
        return True

    async def _ship(self, file: _LogFile) -> None:
        if file.offset is None:
            if not read_ranks_file(file.path, 0, 1):
                return
            file.offset = await self._client.send_log(self._key, file.rank, 0, b"")
        while chunk := read_ranks_file(file.path, file.offset, 1 if file.is_refused else CHUNK_BYTES):
            wanted = await self._client.send_log(self._key, file.rank, file.offset, chunk)
            file.is_refused = wanted == file.offset
            if file.is_refused:
                return  # the server accepts no more of it now (its user's share)
            file.offset = wanted
