"""Limits connections that are not authenticated yet, in number and in time, and listens through these limits.

A connection is a *stranger's* until a request on it has brought a valid token. Strangers have a few seconds to bring
one, whatever they send or do not send, the TLS handshake included. Their number is bounded, in all and per address;
where a bound is reached, the oldest stranger is closed for the newest. So a caller with a token is served within
moments, however many strangers connect, and the other connections are kept for callers with tokens. Of these each
holder has a share: beyond it a few new ones wait for seconds, then for each its connection that has waited longest for
a request is closed: opened again and again at once, they would keep the server from its other callers. Every
connection must complete the head of a request within seconds of its first byte. Closed connections are counted, and
logged once a minute.
"""

import asyncio
import logging
import os
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from aiohttp import web

from scheduler.live.holder_shares import HolderShares, ShareTaken

log = logging.getLogger(__name__)

#: Open files kept free for the database, logs, and pipes to solvers and machines.
_OTHER_FILES = 256
_CONNECTIONS, _STRANGERS, _STRANGERS_PER_ADDRESS = 8192, 1024, 512
_LEAST_CONNECTIONS = 64
#: Seconds that a new connection of a holder beyond its share waits, and how many may at a time, of all holders.
WAY_S, _WAITING = 5.0, 64
#: Connections that the system keeps until they are accepted, and those accepted in one turn of the event loop.
_QUEUED, _ACCEPTED = 4096, 8
_SWEEP_S = 0.5
_SAY_EVERY_S = 60.0
_ADDRESSES = 1000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be, and the seconds they have to authenticate and to send a request's head."""

    #: All connections together. Those without a token never take more than `strangers` of them.
    connections: int = _CONNECTIONS
    strangers: int = _STRANGERS
    #: Enough for all machines behind one address (a proxy) that connect at once: each of these is a stranger for
    #: moments only.
    strangers_per_address: int = _STRANGERS_PER_ADDRESS
    #: Seconds until the first request with a valid token must have come.
    stranger_s: float = 10.0
    #: Seconds from the first byte of a request to the end of its head.
    head_s: float = 10.0


def limits_of_process() -> ConnectionLimits:
    """Returns the limits that the process's maximum of open files allows; raises that maximum as far as permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS + _OTHER_FILES
    if hard == resource.RLIM_INFINITY or hard > soft:
        raised = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        if raised > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    room = max(_LEAST_CONNECTIONS, min(wanted, soft) - _OTHER_FILES)
    return ConnectionLimits(room, min(_STRANGERS, room // 2), min(_STRANGERS_PER_ADDRESS, room // 4))


class GuardedConnection(asyncio.Protocol):
    """One connection: it passes bytes on to aiohttp's protocol, which is created at the first byte."""

    def __init__(
        self, guard: "ConnectionGuard", make_inner: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None
    ) -> None:
        self._guard = guard
        self._make_inner = make_inner
        self._context = context
        self._raw: asyncio.Transport | None = None
        self._upgrade: asyncio.Task[None] | None = None
        #: The transport that aiohttp writes to, encrypted where there is TLS; None until the handshake is done.
        self.transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        #: Decrypted bytes that arrive before `start_tls` has returned the transport for them.
        self._early: list[bytes] = []
        self.address = ""
        self.opened_at = 0.0
        self.requests_under_way = 0

    # ---------------------------------------------------------------- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        peer = self._raw.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        if not self._guard.admit(self):
            self._raw.abort()
        elif self._context is None:
            self.transport = self._raw
            self._guard.opened(self)
        else:
            self._raw.pause_reading()
            self._upgrade = asyncio.ensure_future(self._handshake(self._raw, self._context))

    async def _handshake(self, raw: asyncio.Transport, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            upgraded = await loop.start_tls(raw, self, context, server_side=True)
        except (OSError, ssl.SSLError):
            self._guard.handshake_failed(self)
            return
        if upgraded is None:
            self._guard.lost(self)
            return
        self.transport = upgraded
        self._guard.opened(self)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:
            self._early.append(data)
            return
        if self._inner is None:
            self._inner = self._make_inner()
            self._inner.connection_made(self.transport)
        if not self.requests_under_way:
            self._guard.head_begins(self)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.lost(self)
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    # ---------------------------------------------------------------- the guard's

    def abort(self) -> None:
        """Close the connection at once, without an answer."""
        if self._raw is not None:
            self._raw.abort()


class ConnectionGuard:
    """Admits connections, learns from the middleware which are authenticated, and closes those beyond the limits."""

    def __init__(self, limits: ConnectionLimits | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or ConnectionLimits()
        self._now = now
        #: Strangers by address, and all of them; both oldest first.
        self._strangers_at: dict[str, dict[GuardedConnection, None]] = {}
        self._strangers: dict[GuardedConnection, None] = {}
        #: Authenticated connections with their holders, and those of each holder that wait for a request, oldest first.
        self._known: dict[GuardedConnection, str] = {}
        self._idle: dict[str, dict[GuardedConnection, None]] = {}
        self.shares = HolderShares("connections", self.limits.connections, has_reserve=True, fix="close some of them")
        #: Those that wait because their holder has its share, of which they are no part yet.
        self._beyond: set[GuardedConnection] = set()
        waiting = max(1, min(_WAITING, self.limits.connections // 8))
        self._waiting = HolderShares("waiting connections", waiting, fix="close some of them")
        #: When the first byte of a request's incomplete head arrived, by connection, earliest first.
        self._heads: dict[GuardedConnection, float] = {}
        self._by_transport: dict[asyncio.BaseTransport, GuardedConnection] = {}
        self._closed: Counter[str] = Counter()
        self._closed_at: Counter[str] = Counter()
        self._said_at = now()

    @property
    def counts(self) -> tuple[int, int]:
        """How many connections are strangers', and how many are authenticated."""
        return len(self._strangers), len(self._known)

    # ---------------------------------------------------------------- connections come and go

    def admit(self, connection: GuardedConnection) -> bool:
        """Take in a new connection, if need be in an older stranger's place. Returns False where there is no room."""
        limits, here = self.limits, self._strangers_at.get(connection.address, {})
        if len(here) >= limits.strangers_per_address:
            self._close(next(iter(here)), "too many of one address")
        elif len(self._strangers) >= limits.strangers:
            self._close(next(iter(self._strangers)), "too many")
        elif len(self._strangers) + len(self._known) >= limits.connections:
            if not self._strangers and not self._idle:
                self._count(connection, "no room")
                return False
            self._close(self._longest_idle() if self._idle else next(iter(self._strangers)), "too many")
        connection.opened_at = self._now()
        self._strangers[connection] = None
        self._strangers_at.setdefault(connection.address, {})[connection] = None
        return True

    def _longest_idle(self) -> GuardedConnection:
        """Returns the connection that has waited longest, of the holder with most that wait."""
        most = max(self._idle, key=lambda holder: len(self._idle[holder]))
        return next(iter(self._idle[most]))

    def opened(self, connection: GuardedConnection) -> None:
        """Record that the connection's transport is ready for requests."""
        if connection.transport is not None and (connection in self._strangers or connection in self._known):
            self._by_transport[connection.transport] = connection

    def lost(self, connection: GuardedConnection) -> None:
        """Record that the connection was closed."""
        self._forget_stranger(connection)
        if (holder := self._known.pop(connection, None)) is not None:
            self._no_longer_idle(connection, holder)
            (self._waiting if connection in self._beyond else self.shares).give_back(holder)
        self._beyond.discard(connection)
        self._heads.pop(connection, None)
        if connection.transport is not None:
            self._by_transport.pop(connection.transport, None)

    def handshake_failed(self, connection: GuardedConnection) -> None:
        """Close a connection whose TLS handshake has failed."""
        if connection in self._strangers:
            self._close(connection, "no TLS")

    def _forget_stranger(self, connection: GuardedConnection) -> None:
        self._strangers.pop(connection, None)
        here = self._strangers_at.get(connection.address)
        if here is not None:
            here.pop(connection, None)
            if not here:
                del self._strangers_at[connection.address]

    # ---------------------------------------------------------------- requests

    def head_begins(self, connection: GuardedConnection) -> None:
        """Note that bytes of a new request have arrived, while no request was under way."""
        self._heads.setdefault(connection, self._now())

    def request_begins(
        self, transport: asyncio.BaseTransport | None, holder: str | None, *, is_reserved: bool = False
    ) -> bool:
        """Note that the head of a request is complete. `holder`: whose valid token it has, which ends being a stranger.

        Returns whether the connection is beyond the holder's share: it is to wait for `WAY_S`, then `make_way`. Raises
        ShareTaken where no connection of the holder waits for a request, or as many as may wait for its share.
        """
        connection = self._by_transport.get(transport) if transport is not None else None
        if connection is None:
            return False
        self._heads.pop(connection, None)
        connection.requests_under_way += 1
        if (before := self._known.get(connection)) is not None:
            self._no_longer_idle(connection, before)
        elif holder is not None:
            try:
                self.shares.check(holder, is_reserved=is_reserved)
            except ShareTaken:
                if not self._idle.get(holder):
                    raise
                self._waiting.take(holder)
                self._beyond.add(connection)
            self._forget_stranger(connection)
            self._known[connection] = holder
            if connection not in self._beyond:
                self.shares.put_back(holder)
        return connection in self._beyond

    def make_way(self, transport: asyncio.BaseTransport | None, holder: str, *, is_reserved: bool = False) -> None:
        """Take a connection that has waited into its holder's share; if that is full still, the one that has waited
        longest for a request is closed for it.

        Raises ShareTaken where none of them waits.
        """
        connection = self._by_transport.get(transport) if transport is not None else None
        if connection is None or connection not in self._beyond:
            return
        try:
            self.shares.check(holder, is_reserved=is_reserved)
        except ShareTaken:
            if not self._idle.get(holder):
                raise
            self._close(next(iter(self._idle[holder])), "too many of one holder")
        self._beyond.discard(connection)
        self._waiting.give_back(holder)
        self.shares.put_back(holder)

    def _no_longer_idle(self, connection: GuardedConnection, holder: str) -> None:
        here = self._idle.get(holder, {})
        here.pop(connection, None)
        if not here:
            self._idle.pop(holder, None)

    def request_ends(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that the answer to a request is ready."""
        connection = self._by_transport.get(transport) if transport is not None else None
        if connection is not None:
            connection.requests_under_way -= 1
            holder = self._known.get(connection)
            if holder is not None and not connection.requests_under_way and connection not in self._beyond:
                self._idle.setdefault(holder, {})[connection] = None

    # ---------------------------------------------------------------- closing

    def sweep(self) -> None:
        """Close strangers and incomplete heads that have exceeded their time."""
        now = self._now()
        while self._strangers:
            oldest = next(iter(self._strangers))
            if now - oldest.opened_at <= self.limits.stranger_s:
                break
            self._close(oldest, "too slow")
        while self._heads:
            oldest, since = next(iter(self._heads.items()))
            if now - since <= self.limits.head_s:
                break
            self._close(oldest, "too slow")

    def close_all(self) -> None:
        """Close all connections without a request under way, as the server stops; aiohttp finishes the others."""
        for connection in [*self._strangers, *(each for each in self._known if not each.requests_under_way)]:
            self.lost(connection)
            connection.abort()

    def _close(self, connection: GuardedConnection, why: str) -> None:
        self._count(connection, why)
        self.lost(connection)
        connection.abort()

    def _count(self, connection: GuardedConnection, why: str) -> None:
        self._closed[why] += 1
        if connection.address in self._closed_at or len(self._closed_at) < _ADDRESSES:
            self._closed_at[connection.address] += 1

    def summary(self) -> str:
        """Returns one line about what was closed since the last summary; empty if nothing was."""
        if not self._closed:
            return ""
        why = ", ".join(f"{count:,} {word}" for word, count in self._closed.most_common())
        address, most = self._closed_at.most_common(1)[0]
        line = f"closed {self._closed.total():,} connections ({why}); {most:,} of them from {address}"
        self._closed.clear()
        self._closed_at.clear()
        return line

    async def watch(self) -> None:
        """Sweep for ever, and log at most once a minute what was closed."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sweep()
            if self._closed and self._now() - self._said_at >= _SAY_EVERY_S:
                self._said_at = self._now()
                log.warning("%s", self.summary())


class GuardedSite(web.BaseSite):
    """Listens on one address through the guard, with TLS where a context is given."""

    def __init__(
        self, runner: web.BaseRunner, host: str, port: int, guard: ConnectionGuard, context: ssl.SSLContext | None
    ) -> None:
        super().__init__(runner, ssl_context=context)
        self._host = host
        self._port = port
        self._guard = guard

    @property
    def name(self) -> str:
        return f"{'https' if self._ssl_context else 'http'}://{self._host}:{self._port}"

    async def start(self) -> None:
        """Start to listen. Raises OSError where the address is not available."""
        make_inner = self._runner.server
        assert make_inner is not None
        context = self._ssl_context
        self._server = server = await asyncio.get_running_loop().create_server(
            lambda: GuardedConnection(self._guard, make_inner, context), self._host, self._port, backlog=_ACCEPTED
        )
        for each in server.sockets:
            with socket.socket(fileno=os.dup(each.fileno())) as listening:
                listening.listen(_QUEUED)  # asyncio's one number for both would accept as many before all else
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        self._guard.close_all()


class SummedLines(logging.Filter):
    """Lets a few lines of each kind through in a minute, and says in the next one how many were left out.

    A kind is the text of a message before its values are put in.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, burst: int = 5, every_s: float = 60.0) -> None:
        super().__init__()
        self._now = now
        self._burst = burst
        self._every_s = every_s
        #: By kind: when its minute began, and how many lines have come since.
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = str(record.msg)[:100], self._now()
        since, count = self._kinds.pop(kind, (now, 0))
        kept_back = 0
        if now - since >= self._every_s:
            kept_back, since, count = max(0, count - self._burst), now, 0
        self._kinds[kind] = (since, count + 1)
        while len(self._kinds) > _ADDRESSES:
            del self._kinds[next(iter(self._kinds))]
        if kept_back:
            record.msg = f"{record.msg} ({kept_back} more like this were left out)"
        return count < self._burst
