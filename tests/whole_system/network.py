"""Between agents or users and the server: requests that are late, lost, cut, doubled, or hang for ever.

The server's side is the real application (middleware, routes, JSON) of whatever life of the server listens now; the
agent's side is a session that the real `ServerClient` calls as it calls aiohttp's.
"""

import asyncio
import contextvars
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.http_writer import HttpVersion11
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tests.whole_system.virtual_loop import SimProcess, VirtualLoop
from walras.contract import PROTOCOL


@dataclass(frozen=True)
class Weather:
    """Shares of requests that fare badly."""

    lost: float = 0.0
    answer_lost: float = 0.0
    cut: float = 0.0
    twice: float = 0.0
    late: float = 0.0


@dataclass
class Listener:
    """Where a life of the server listens."""

    process: SimProcess
    app: web.Application
    port: int
    #: Requests that are under way.
    requests: int = 0


@dataclass
class _Fate:
    there_s: float
    back_s: float
    is_lost: bool = False
    is_answer_lost: bool = False
    is_cut: bool = False
    is_doubled: bool = False


class _Body:
    """A request's body, as the handlers read it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def at_eof(self) -> bool:
        return not self._content

    def is_eof(self) -> bool:
        """Whether all of it has arrived: a request is handed over whole."""
        return True

    async def iter_any(self) -> Any:
        if self._content:
            yield self._content

    async def iter_chunked(self, size: int) -> Any:
        for first in range(0, len(self._content), size):
            yield self._content[first : first + size]


class _Wire:
    """What a request knows of its connection."""

    ssl_context = None
    peername = ("10.0.0.1", 1)
    sockname = ("10.0.0.2", 1)
    transport = None


class Network:
    """`heard` is called with (source, path, status) whenever the server has answered."""

    def __init__(self, loop: VirtualLoop, chance: Random, lag_s: float) -> None:
        """`lag_s`: what a message takes at most beyond a millisecond, where nothing delays it."""
        self._loop, self._chance, self._lag_s = loop, chance, lag_s
        self.weather = Weather()
        #: Names that nothing reaches, in either direction.
        self.cut_off: set[str] = set()
        self.listener: Listener | None = None
        self.heard: Callable[[str, str, int], None] = lambda source, path, status: None
        #: Called with (source, path, status, sent_at) when the caller has the answer.
        self.renewed: Callable[[str, str, int, float], None] = lambda source, path, status, sent_at: None
        #: Called with what an agent does not understand.
        self.misunderstood: Callable[[str], None] = lambda words: None
        self._context = contextvars.copy_context()
        self._waiting: dict[asyncio.Future[tuple[int, bytes]], asyncio.Task[Any] | None] = {}

    def stop_listening(self, process: SimProcess) -> None:
        """The server has died: its connections are reset."""
        if self.listener is not None and self.listener.process is process:
            self.listener = None
        for answer, task in list(self._waiting.items()):
            if task is not None and task in process.tasks:
                self._later(0.001, self._reset, answer)

    async def call(
        self, source: str, method: str, url: str, headers: dict[str, str], content: bytes, timeout_s: float
    ) -> tuple[int, bytes]:
        """Raises ClientError or TimeoutError."""
        answer: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()
        fate, sent_at = self._fate(), self._loop.time()
        self._waiting[answer] = None
        self._later(fate.there_s, self._arrive, source, method, url, headers, content, answer, fate)
        if fate.is_doubled:
            again = _Fate(0.0, 0.0, is_answer_lost=True)
            later_s = self._chance.uniform(0.0, 6.0)
            unheard: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()
            self._later(later_s, self._arrive, source, method, url, headers, content, unheard, again)
        timer = self._loop.call_later(timeout_s, self._give_up, answer)
        try:
            status, body = await answer
            self.renewed(source, urlsplit(url).path, status, sent_at)
            return status, body
        finally:
            timer.cancel()
            task = self._waiting.pop(answer, None)
            if task is not None and not task.done() and source not in self.cut_off:
                task.cancel()  # the server sees that the caller has hung up

    def _fate(self) -> _Fate:
        weather, draw = self.weather, self._chance.random
        fate = _Fate(0.001 + self._lag_s * draw(), 0.001 + self._lag_s * draw())
        fate.is_lost, fate.is_answer_lost = draw() < weather.lost, draw() < weather.answer_lost
        fate.is_cut, fate.is_doubled = draw() < weather.cut, draw() < weather.twice
        if draw() < weather.late:
            fate.there_s += 8.0 * draw()
            fate.back_s += 8.0 * draw()
        return fate

    def _later(self, delay_s: float, call: Any, *args: Any) -> None:
        self._loop.call_later(delay_s, call, *args, context=self._context)

    def _arrive(
        self,
        source: str,
        method: str,
        url: str,
        headers: dict[str, str],
        content: bytes,
        answer: "asyncio.Future[tuple[int, bytes]]",
        fate: _Fate,
    ) -> None:
        if fate.is_lost or source in self.cut_off:
            return
        parts = urlsplit(url)
        listener = self.listener
        if listener is None or listener.process.is_dead or listener.port != parts.port:
            self._later(fate.back_s, self._reset, answer)
            return
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        request = _request(self._loop, method, path, headers, content)
        task = listener.process.spawn(_answered(listener.app, request))
        listener.requests += 1
        if answer in self._waiting:
            self._waiting[answer] = task
        task.add_done_callback(
            lambda done: self._answered(listener, source, parts.path, done, answer, fate), context=self._context
        )

    def _answered(
        self,
        listener: Listener,
        source: str,
        path: str,
        task: "asyncio.Task[tuple[int, bytes]]",
        answer: "asyncio.Future[tuple[int, bytes]]",
        fate: _Fate,
    ) -> None:
        listener.requests -= 1
        if task.cancelled() or task.exception() is not None:
            if not task.cancelled():
                self._loop.uncaught.append((path, task.exception()))  # type: ignore[arg-type]
            self._later(fate.back_s, self._reset, answer)
            return
        status, body = task.result()
        if answer in self._waiting:
            self._waiting[answer] = None  # on its way: it arrives even if the server dies now
        if source in self.cut_off or fate.is_answer_lost:
            return
        if fate.is_cut:
            self._later(fate.back_s, self._reset, answer)
            return
        self.heard(source, path, status)
        self._later(fate.back_s, self._deliver, answer, (status, body))

    def _deliver(self, answer: "asyncio.Future[tuple[int, bytes]]", result: tuple[int, bytes]) -> None:
        if not answer.done():
            answer.set_result(result)

    def _give_up(self, answer: "asyncio.Future[tuple[int, bytes]]") -> None:
        if not answer.done():
            answer.set_exception(TimeoutError())

    def _reset(self, answer: "asyncio.Future[tuple[int, bytes]]") -> None:
        if not answer.done():
            answer.set_exception(aiohttp.ClientConnectionError("connection reset"))


async def _answered(app: web.Application, request: web.Request) -> tuple[int, bytes]:
    try:
        response = await app._handle(request)
    except web.HTTPException as error:
        response = error
    body = response.body if isinstance(response, web.Response) else b""
    return response.status, body if isinstance(body, bytes) else b""


def _request(loop: VirtualLoop, method: str, path: str, headers: dict[str, str], content: bytes) -> web.Request:
    given = CIMultiDict(headers)
    given["Content-Length"] = str(len(content))
    url = _parsed(path)
    message = RawRequestMessage(
        method, path, HttpVersion11, CIMultiDictProxy(given), (), False, None, False, False, url
    )
    task: Any = None
    writer: Any = None
    return web.Request(message, _Body(content), _Wire(), writer, task, loop)  # type: ignore[arg-type]


@lru_cache(maxsize=2000)
def _parsed(path: str) -> URL:
    return URL(path, encoded=True)


class _Answer:
    def __init__(self, status: int, body: bytes) -> None:
        self.status, self._body = status, body

    async def read(self) -> bytes:
        return self._body


class _Call:
    def __init__(self, work: Any) -> None:
        self.work = work

    async def __aenter__(self) -> _Answer:
        return _Answer(*await self.work)

    async def __aexit__(self, *_: object) -> None:
        return


class SimSession:
    """Stands in for `aiohttp.ClientSession` under an agent's `ServerClient`."""

    def __init__(self, network: Network, source: str) -> None:
        self._network, self._source = network, source

    def post(
        self,
        url: str,
        *,
        data: bytes,
        headers: dict[str, str],
        timeout: aiohttp.ClientTimeout,
        params: dict[str, str],
        **_: Any,
    ) -> _Call:
        # Numbers and digits: nothing of it has to be quoted.
        whole = f"{url}?{'&'.join(f'{name}={value}' for name, value in params.items())}" if params else url
        return _Call(self._network.call(self._source, "POST", whole, headers, data, timeout.total or 30.0))


class OlderSession(SimSession):
    """The same under an agent of the release before: what it does not know is not to be sent to it."""

    _KNOWN = frozenset({"prepare", "start", "stop"})

    def post(self, url: str, *, data: bytes, **more: Any) -> _Call:
        if not url.endswith(("/heartbeat", "/register")):
            return super().post(url, data=data, **more)
        older = json.dumps(json.loads(data) | {"protocol": PROTOCOL - 1}).encode()
        return _Call(self._understood(super().post(url, data=older, **more)))

    async def _understood(self, call: _Call) -> tuple[int, bytes]:
        status, body = await call.work
        answer = json.loads(body) if status == 200 else {}
        for command in answer.get("commands", ()):
            brings = command.get("code") or command.get("is_launcher") or any(command.get("needs", {}).values())
            if command["type"] not in self._KNOWN or brings:
                told = command["type"], command["job_id"], command["attempt"]
                self._network.misunderstood(f"{self._source} is sent {told}")
        return status, body
