"""Connections of strangers: bounded, timed and closed, and no hindrance to anybody with a token."""

import asyncio
import contextlib
import json
import logging
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from scheduler.live.holder_shares import ShareTaken
from scheduler.live.http import requests
from scheduler.live.http.connection_guard import (
    ConnectionGuard,
    ConnectionLimits,
    GuardedConnection,
    GuardedSite,
    SummedLines,
    limits_of_process,
)
from scheduler.live.http.web_application import make_app
from tests.support.live_world import world
from tests.support.waiting import until

FEW = ConnectionLimits(connections=8, strangers=4, strangers_per_address=2, stranger_s=10.0, head_s=5.0)


class HandTime:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


class PlayedConnection(GuardedConnection):
    """A connection without a socket; its transport is itself."""

    def __init__(self, guard: ConnectionGuard, address: str) -> None:
        super().__init__(guard, asyncio.Protocol, None)
        self.address = address
        self.transport = object()  # type: ignore[assignment]
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


def _come(guard: ConnectionGuard, address: str) -> PlayedConnection:
    connection = PlayedConnection(guard, address)
    connection.is_closed = not guard.admit(connection)
    guard.opened(connection)
    return connection


def test_the_oldest_stranger_makes_way() -> None:
    """At the bound of an address its own oldest one, at the bound of all the oldest of all."""
    guard = ConnectionGuard(FEW, HandTime())
    first, other, second, third = (_come(guard, address) for address in ("a", "b", "a", "a"))
    assert [each.is_closed for each in (first, other, second, third)] == [True, False, False, False]
    more = [_come(guard, address) for address in ("c", "d", "e")]
    assert (other.is_closed, second.is_closed, guard.counts) == (True, True, (4, 0))
    assert not any(each.is_closed for each in more)
    assert guard.summary() == "closed 3 connections (2 too many, 1 too many of one address); 2 of them from a"
    assert guard.summary() == ""


def test_the_known_keep_their_places() -> None:
    """Whoever showed a token is no stranger: not counted, not timed, never closed for strangers."""
    clock = HandTime()
    guard = ConnectionGuard(FEW, clock)
    known = []
    for number in range(3):
        connection = _come(guard, "a")
        guard.request_begins(connection.transport, f"user {number}")
        known.append(connection)
    for _ in range(20):
        _come(guard, "a")
        _come(guard, "b")
    clock.at = 100.0
    guard.sweep()
    assert guard.counts == (0, 3)
    assert not any(each.is_closed for each in known)


def test_one_holder_never_has_all_connections() -> None:
    """Beyond half of what others leave its longest idle one makes way, or it is refused; the others come in."""
    guard = ConnectionGuard(FEW, HandTime())

    def come(holder: str, *, idle: bool, is_reserved: bool = False) -> PlayedConnection:
        connection = _come(guard, "a")
        if guard.request_begins(connection.transport, holder, is_reserved=is_reserved):
            guard.make_way(connection.transport, holder, is_reserved=is_reserved)
        if idle:
            guard.request_ends(connection.transport)
        return connection

    silent = [come("user ada", idle=True) for _ in range(6)]
    assert [each.is_closed for each in silent] == [True, True, False, False, False, False]
    for connection in silent[2:]:
        guard.request_begins(connection.transport, "user ada")
    with pytest.raises(ShareTaken):
        come("user ada", idle=False)
    assert not come("user bob", idle=False).is_closed
    assert not come("machine m", idle=False, is_reserved=True).is_closed
    assert guard.shares.held == {"user ada": 4, "user bob": 1, "machine m": 1}


def test_what_waits_beyond_its_holders_share_takes_nothing_of_others() -> None:
    """A holder's newcomers beyond its share wait, and the shares of others are as large as without them."""
    guard = ConnectionGuard(FEW, HandTime())
    connections = []
    for address in "abcd":
        connections.append(_come(guard, address))
        assert not guard.request_begins(connections[-1].transport, "user ada")
        guard.request_ends(connections[-1].transport)
    connections += [_come(guard, address) for address in "ef"]
    share = guard.shares.share_of("user bob")
    assert guard.request_begins(connections[4].transport, "user ada")
    assert guard.shares.share_of("user bob") == share
    assert not guard.request_begins(connections[5].transport, "user bob")
    guard.lost(connections[4])
    assert guard.shares.held == {"user ada": 4, "user bob": 1}
    again = _come(guard, "g")
    assert guard.request_begins(again.transport, "user ada")
    guard.make_way(again.transport, "user ada")
    assert guard.shares.held == {"user ada": 4, "user bob": 1}
    assert [each.is_closed for each in connections] == [True, False, False, False, False, False]


def test_where_there_is_no_room_who_has_most_idle_connections_makes_way() -> None:
    """Its longest idle one, not the only one of somebody else."""
    guard = ConnectionGuard(ConnectionLimits(connections=8, strangers=4, strangers_per_address=4), HandTime())
    known = list[PlayedConnection]()
    for holder in ("user bob", *["user ada"] * 3, *(f"machine {number}" for number in range(4))):
        known.append(_come(guard, holder))
        guard.request_begins(known[-1].transport, holder, is_reserved=True)
        if holder.startswith("user"):
            guard.request_ends(known[-1].transport)
    assert not _come(guard, "new").is_closed
    assert [each.is_closed for each in known] == [False, True, *[False] * 6]


def test_few_of_a_holder_wait_for_its_share_and_those_refused_free_none() -> None:
    """However many it opens: the idle connections of others stay, and it never has more than its share."""
    guard = ConnectionGuard(ConnectionLimits(connections=64), HandTime())

    def come(holder: str) -> tuple[PlayedConnection, bool]:
        connection = _come(guard, holder)
        try:
            return connection, guard.request_begins(connection.transport, holder)
        except ShareTaken:
            guard.lost(connection)
            raise

    theirs = [come("user bob")[0] for _ in range(3)]
    share = guard.shares.share_of("user ada")
    ours = [come("user ada")[0] for _ in range(share)]
    for connection in theirs + ours:
        guard.request_ends(connection.transport)
    waiting = list[PlayedConnection]()
    for _ in range(64):
        with contextlib.suppress(ShareTaken):
            waiting.append(come("user ada")[0])
    assert 1 < len(waiting) <= 8
    assert not come("user eve")[1]
    for connection in ours:
        guard.request_begins(connection.transport, "user ada")
    for connection in waiting:
        with pytest.raises(ShareTaken):
            guard.make_way(connection.transport, "user ada")
        guard.request_ends(connection.transport)
    assert guard.shares.held["user ada"] == share
    guard.lost(waiting[0])
    guard.request_ends(ours[0].transport)
    assert come("user ada")[1]
    assert not any(each.is_closed for each in theirs + ours)


def test_slow_heads_are_closed_and_slow_answers_are_not() -> None:
    """A stranger has seconds in all, a known one seconds for each head; a request under way takes what it takes."""
    clock = HandTime()
    guard = ConnectionGuard(FEW, clock)
    silent, served, loris = _come(guard, "a"), _come(guard, "b"), _come(guard, "c")
    for known in (served, loris):
        guard.head_begins(known)
        guard.request_begins(known.transport, "user ada")
    guard.request_ends(loris.transport)
    clock.at = 8.0
    guard.head_begins(loris)
    guard.head_begins(silent)  # a byte now and then gains nothing
    clock.at = 10.1
    guard.sweep()
    assert [each.is_closed for each in (silent, served, loris)] == [True, False, False]
    clock.at = 12.0
    guard.head_begins(loris)
    clock.at = 13.1
    guard.sweep()
    assert [each.is_closed for each in (served, loris)] == [False, True]


def test_lines_of_one_kind_are_summed() -> None:
    """A few in a minute; the next minute says how many were left out."""
    clock = HandTime()
    lines = SummedLines(clock, burst=2)

    def passes(text: str) -> str | None:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 1, text, (), None)
        return record.getMessage() if lines.filter(record) else None

    assert [passes("no more files") for _ in range(5)] == ["no more files"] * 2 + [None] * 3
    assert passes("another") == "another"
    clock.at = 61.0
    assert passes("no more files") == "no more files (3 more like this were left out)"


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "limits"),
    [(1024, 1024, None, (768, 384, 192)), (1024, 1 << 20, 8448, (8192, 1024, 512)), (100, 100, None, (64, 32, 16)),
     (256, 4096, 4096, (3840, 1024, 512)), (1024, resource.RLIM_INFINITY, 8448, (8192, 1024, 512))],
)  # fmt: skip
def test_limits_follow_the_files_that_may_be_open(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, limits: tuple[int, int, int]
) -> None:
    """Raised as far as permitted; half of the room at most is strangers', a quarter those of one address."""
    asked: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: asked.append(pair[0]))
    found = limits_of_process()
    assert (found.connections, found.strangers, found.strangers_per_address) == limits
    assert asked == ([] if raised is None else [raised])


@dataclass
class _Served:
    guard: ConnectionGuard
    port: int
    token: str

    async def status(self, token: str | None = None) -> int:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/api/v1/nodes", headers=headers) as answer,
        ):
            return answer.status


@asynccontextmanager
async def _serving(folder: Path, limits: ConnectionLimits) -> AsyncIterator[_Served]:
    guard = ConnectionGuard(limits)
    async with world(folder, real_time=True) as w:
        runner = web.AppRunner(make_app(w.server, guard), access_log=None, handler_cancellation=True)
        await runner.setup()
        await GuardedSite(runner, "127.0.0.1", 0, guard, None).start()
        try:
            yield _Served(guard, runner.addresses[0][1], (folder / "admin.token").read_text().strip())
        finally:
            await runner.cleanup()


async def test_a_crowd_at_the_door_does_not_keep_the_known_out(tmp_path: Path) -> None:
    """Ten times as many silent and slow connections as there is room for: those with tokens are answered."""
    limits = ConnectionLimits(connections=32, strangers=8, strangers_per_address=8)
    async with _serving(tmp_path, limits) as served:
        crowd = []
        for number in range(80):
            crowd.append(socket.create_connection(("127.0.0.1", served.port)))
            if number % 2:
                crowd[-1].send(b"G")
            await asyncio.sleep(0)
        assert [await served.status() for _ in range(5)] == [200] * 5
        assert await served.status("wlr_u_wrong") == 401
        assert served.guard.counts[0] <= 8
        for each in crowd:
            each.close()


async def test_a_stranger_is_closed_in_time(tmp_path: Path) -> None:
    """By the watch of the guard, a head half sent or nothing at all."""
    limits = ConnectionLimits(stranger_s=0.2, head_s=0.2)
    async with _serving(tmp_path, limits) as served:
        watch = asyncio.create_task(served.guard.watch())
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET / HT")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await _closed(writer)
        watch.cancel()
        assert await served.status() == 200


async def test_a_body_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """408, and the request is no longer under way."""
    monkeypatch.setattr(requests, "BODY_S", 0.2)
    async with _serving(tmp_path, ConnectionLimits()) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = (
            "POST /api/v1/jobs HTTP/1.1", "Host: x", f"Authorization: Bearer {served.token}", "Content-Length: 9", "",
        )  # fmt: skip
        writer.write("\r\n".join([*head, "", "{"]).encode())
        assert b" 408 " in await reader.readline()
        await _closed(writer)


async def test_a_large_body_has_the_time_that_a_slow_line_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many seconds for all bodies would let nobody send a chunk whose line is slow."""
    monkeypatch.setattr(requests, "BODY_S", 0.0)
    body = json.dumps({"names": ["a" * 64] * 900}).encode()
    async with _serving(tmp_path, ConnectionLimits()) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = (
            "POST /content/v1/missing HTTP/1.1", "Host: x", f"Authorization: Bearer {served.token}",
            f"Content-Length: {len(body)}", "",
        )  # fmt: skip
        writer.write("\r\n".join([*head, ""]).encode() + body[:1000])
        await until(lambda: served.guard.counts[1], 30.0, "its head is read")
        writer.write(body[1000:])
        assert b" 200 " in await reader.readline()
        await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
