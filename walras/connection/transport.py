"""One HTTP call to the server: authorisation, bounded retries, and answers turned into values or our own errors.

Knows nothing of jobs. A call is repeated only if repeating it cannot do anything twice (`repeatable`).
"""

import asyncio
import io
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
from pydantic import ValidationError

from walras.connection.body import ApiCall, ProblemDetail
from walras.contract import SLOWEST_BYTES_PER_S, split_token
from walras.errors import (
    ClusterError,
    ConfigError,
    Conflict,
    Forbidden,
    JobSpecError,
    NotFound,
    ServerUnreachable,
    UnknownPolicyError,
    UserError,
    WalrasError,
)

#: HTTP codes of a server that cannot serve a call now; the same call may succeed soon.
_TRY_AGAIN = frozenset({429, 502, 503, 504})
_LONGEST_DETAIL = 2000
_SHA256_BYTES = 32
#: Bytes read from the network at once: with small reads, large answers cost several times the processor time.
_READ_BYTES = 1024 * 1024
#: Bytes written to the network at once, for the same reason.
_SENT_BYTES = 256 * 1024
_BY_STATUS: Mapping[int, type[UserError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
}
_BY_CODE: Mapping[str, type[UserError]] = {
    "job_spec": JobSpecError,
    "config": ConfigError,
    "unknown_policy": UnknownPolicyError,
    "conflict": Conflict,
    "idempotency_key_reused": Conflict,
    "forbidden": Forbidden,
    "not_found": NotFound,
}


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of retrying: at most `tries` calls, with pauses that start at `backoff_s` and double up to
    `longest_pause_s`.
    """

    tries: int = 4
    backoff_s: float = 0.25
    longest_pause_s: float = 5.0
    call_timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    #: Seconds of silence on a followed log after which the connection is opened again.
    silence_s: float = 60.0
    #: Seconds between two polls.
    poll_s: float = 0.5
    #: Seconds of silence of a server that has answered, which who waits for hours bears: a restart may take them.
    outage_s: float = 120.0

    def pause_s(self, tried: int) -> float:
        """Returns seconds to wait after call number `tried` (from 1), with jitter so that clients do not retry
        together.
        """
        longest = min(self.backoff_s * 2.0 ** (tried - 1), self.longest_pause_s)
        return longest * random.uniform(0.5, 1.0)


class Outage:
    """The silence of a server while somebody waits for hours. One that has never answered is told at once."""

    def __init__(self, patience: Patience) -> None:
        self._borne_s = patience.outage_s
        self._answered_at: float | None = None

    @contextmanager
    def borne(self) -> Iterator[None]:
        """Asks the server something. Raises ServerUnreachable where that is not borne."""
        try:
            yield
            self._answered_at = monotonic()
        except ServerUnreachable:
            if self._answered_at is None or monotonic() - self._answered_at > self._borne_s:
                raise


WebSocket = aiohttp.ClientWebSocketResponse


class Transport:
    """An open connection to one server: `async with Transport(url, token) as transport`."""

    def __init__(self, url: str, token: str, patience: Patience) -> None:
        """`url`: one address, or several separated by commas: where one does not answer, the next is tried."""
        self._urls = [checked_url(each) for each in url.split(",")]
        self.url = self._urls[0]
        self.patience = patience
        self._token, pin = split_token(token)
        self._tls = {accepted_certificate(pin, each) for each in self._urls}.pop()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            read_bufsize=_READ_BYTES,
            timeout=self._timeout(),
        )
        return self

    def _timeout(self, moved_s: float = 0.0) -> aiohttp.ClientTimeout:
        patience = self.patience
        return aiohttp.ClientTimeout(total=patience.call_timeout_s + moved_s, sock_connect=patience.connect_timeout_s)

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def json(self, call: ApiCall) -> Any:
        """Returns the decoded JSON answer.

        Raises ServerUnreachable when no server answered within the patience, a UserError for what the server refused,
        ClusterError for what went wrong on its side.
        """
        return await self._answer(call, _decoded)

    async def bytes(self, call: ApiCall) -> bytes:
        """Returns the answer's body as it is; raises as `json` does."""
        content: bytes = await self._answer(call, _content)
        return content

    async def _answer(
        self, call: ApiCall, read: Callable[[aiohttp.ClientResponse, str], Coroutine[Any, Any, Any]]
    ) -> Any:
        tried = 0
        while True:
            tried += 1
            last = tried >= self.patience.tries * len(self._urls) or not call.repeatable
            try:
                async with self.open(call) as response:
                    if response.status not in _TRY_AGAIN or last:
                        return await read(response, self.url)
            except aiohttp.ServerFingerprintMismatch as error:
                raise wrong_certificate(self.url, error) from None
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                # A server that refused the connection received nothing: the next address may get the same call.
                unsent = isinstance(error, aiohttp.ClientConnectorError) and tried < len(self._urls)
                if last and not unsent:
                    raise self.unreachable(error) from None
                # The next of several addresses is the one to call from now on.
                self.url = self._urls[(self._urls.index(self.url) + 1) % len(self._urls)]
            await self.pause(tried)

    async def pause(self, tried: int = 0) -> None:
        """Wait before the next try, or (0 failures) before the next poll."""
        await asyncio.sleep(self.patience.pause_s(tried) if tried else self.patience.poll_s)

    def open(
        self, call: ApiCall, *, timeout: aiohttp.ClientTimeout | None = None
    ) -> "aiohttp.client._RequestContextManager":
        """Opens the raw exchange, without retries, for answers that are streamed."""
        assert self._session is not None, "use `async with`"
        moved_s = (len(call.data or b"") + call.answer_bytes) / SLOWEST_BYTES_PER_S
        options: dict[str, Any] = {"ssl": self._tls, "timeout": timeout or self._timeout(moved_s)}
        headers = dict(call.headers)
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if call.body is not None:
            options["json"] = call.body
        if call.data is not None:
            options["data"] = _LargeBites(call.data)
        # A redirect would carry the token to wherever it points.
        return self._session.request(
            call.method, self.url + call.path, params=call.query, headers=headers, allow_redirects=False, **options
        )

    async def websocket(
        self, path: str, query: Mapping[str, str], message_bytes: int
    ) -> aiohttp.ClientWebSocketResponse:
        """Opens a websocket. Raises what the server refused it for, ServerUnreachable."""
        assert self._session is not None, "use `async with`"
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        options: dict[str, Any] = {"ssl": self._tls, "max_msg_size": message_bytes, "compress": 0, "heartbeat": 20.0}
        try:
            socket: WebSocket = await self._session.ws_connect(
                self.url + path, params=query, headers=headers, **options
            )
            return socket
        except aiohttp.WSServerHandshakeError as error:
            # The body with the reason is gone by then: the same request without the upgrade returns it.
            await self.json(ApiCall("GET", path, query=dict(query), repeatable=False))
            raise self.unreachable(error) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self.unreachable(error) from None

    def unreachable(self, cause: BaseException) -> ServerUnreachable:
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return ServerUnreachable(f"no Walras server answers at {' or '.join(self._urls)} ({reason})")


class _LargeBites(io.BytesIO):
    """Bytes that are sent in larger pieces than the library reads by itself."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size if size is None or size < 0 else max(size, _SENT_BYTES))


def accepted_certificate(pin: str, url: str) -> "aiohttp.Fingerprint | bool":
    """Returns what aiohttp is to accept of a server: the certificate with this fingerprint alone, or (no pin) any that
    an authority vouches for. Raises ConfigError for a pin that is none, or one for an address without TLS.
    """
    if not pin:
        return True
    fix = "copy the token anew, the whole line"
    try:
        digest = bytes.fromhex(pin)
    except ValueError:
        digest = b""
    if len(digest) != _SHA256_BYTES:
        raise ConfigError("what follows .sha256= in the token is no fingerprint", field="WALRAS_TOKEN", fix=fix)
    if not url.lower().startswith("https://"):
        raise ConfigError(
            f"the token is for a server with TLS, and {url} is not encrypted",
            field="WALRAS_SERVER",
            fix="write https://",
        )
    return aiohttp.Fingerprint(digest)


def wrong_certificate(url: str, error: aiohttp.ServerFingerprintMismatch) -> UserError:
    """Returns the refusal of a server whose certificate is not the one that the token names; nothing was sent to it."""
    return Forbidden(
        f"{url} shows another certificate (sha256 {error.got.hex()}) than the token names",
        field="WALRAS_TOKEN",
        fix="check the address; if the server was given a new certificate, ask for its token anew",
    )


def checked_url(url: str) -> str:
    """Returns the address without its final slash. Raises ConfigError if it is malformed or holds a password."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"{url[:100]!r} is not a server's address", fix="write such as http://127.0.0.1:8080")
    if parts.username or parts.password:
        raise ConfigError("the server's address holds a user or password", fix="give the token in WALRAS_TOKEN_FILE")
    return url.strip().rstrip("/")


async def _decoded(response: aiohttp.ClientResponse, url: str) -> Any:
    if response.status >= 300:
        raise await response_error(response)
    try:
        return await response.json(content_type=None)
    except ValueError:
        raise ClusterError(f"{url} answered {response.status} with something that is not JSON; is it Walras?") from None


async def _content(response: aiohttp.ClientResponse, _: str) -> bytes:
    if response.status >= 300:
        raise await response_error(response)
    return await response.read()


async def response_error(response: aiohttp.ClientResponse) -> WalrasError:
    """Returns the problem in a refusal's body (RFC 9457) as one of our errors."""
    problem = _problem(response.status, await response.content.read(65_536))
    detail = (problem.detail or problem.title)[:_LONGEST_DETAIL]
    if response.status in _TRY_AGAIN and problem.code != "cluster_error":
        return ServerUnreachable(f"the server cannot serve this now ({response.status}): {detail}")
    if response.status >= 500:
        return ClusterError(f"the server failed with {response.status}: {detail}")
    if response.status < 400:
        return ClusterError(f"the server answered {response.status} and points elsewhere; check its address")
    return problem_error(problem)


def problem_error(problem: ProblemDetail) -> UserError:
    """Returns a refusal of a request, or of one job of a batch, as one of our errors, to raise or to show."""
    refusal = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, UserError)
    return refusal((problem.detail or problem.title)[:_LONGEST_DETAIL], field=problem.field, fix=_fix(problem))


def _fix(problem: ProblemDetail) -> str:
    if problem.status == 401:
        return "set WALRAS_TOKEN_FILE to the file of a valid token (`walras admin add token` makes one)"
    return problem.fix


def _problem(status: int, body: bytes) -> ProblemDetail:
    try:
        return ProblemDetail.model_validate_json(body)
    except ValidationError:
        return ProblemDetail(
            title=f"HTTP {status}", status=status, code="", detail=f"HTTP {status} without an explanation"
        )
