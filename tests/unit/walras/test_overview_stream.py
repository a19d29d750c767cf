"""The overview's stream: what changes is put together, what is no overview is refused, and `walras top` follows it."""

import json
import queue
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.walras.conftest import TOKEN, FakeServer
from tests.unit.walras.test_top import open_top, overview_body, shown, status, until
from walras import Client as BlockingClient
from walras.client import Client
from walras.connection.transport import Patience
from walras.errors import ClusterError, Forbidden, NotFound, ServerUnreachable
from walras.resources import overview as overview_module
from walras.resources.overview import Overview

QUICK = Patience(tries=1, call_timeout_s=5.0, connect_timeout_s=1.0)
END = b""


def event(fields: dict[str, Any]) -> bytes:
    return f"event: overview\ndata: {json.dumps(fields)}\n\n".encode()


def streaming(fake: FakeServer, *pieces: bytes) -> "queue.SimpleQueue[bytes]":
    """The fake's stream with these bytes in it."""
    fake.overview = overview_body(fake)
    found = fake.stream = queue.SimpleQueue()
    for piece in pieces:
        found.put(piece)
    return found


async def followed(fake: FakeServer, token: str = TOKEN) -> list[Overview]:
    async with Client(fake.url, token, patience=QUICK) as client:
        return [overview async for overview in client.overviews()]


async def test_later_events_change_what_they_name(fake: FakeServer) -> None:
    """Fields stay until they are sent again; what only says that the server is there is no overview."""
    whole = overview_body(fake)
    streaming(fake, event(whole), b": still here\n\n", event({"waiting": 7}), event({"policy": "fifo"}), END)
    found = await followed(fake)
    assert [(each.waiting, each.policy) for each in found] == [(0, "walras"), (7, "walras"), (7, "fifo")]


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_events_may_come_in_any_pieces(fake: FakeServer, size: int) -> None:
    sent = event(overview_body(fake)) + event({"waiting": 7}) + event({"waiting": 8})
    streaming(fake, *(sent[at : at + size] for at in range(0, len(sent), size)), END)
    assert [each.waiting for each in await followed(fake)] == [0, 7, 8]


@pytest.mark.parametrize("data", [b"[]", b"{", b"\xff", b'{"waiting": "many"}', b'{"policy": "walras"}', b"1e999"])
async def test_what_is_no_overview_is_refused(fake: FakeServer, data: bytes) -> None:
    streaming(fake, b"data: " + data + b"\n\n", END)
    with pytest.raises(ClusterError):
        await followed(fake)


async def test_an_event_without_an_end_is_refused(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_module, "_EVENT_BYTES_MOST", 10_000)
    streaming(fake, *[b"data: " + b"x" * 4_000] * 5, END)
    with pytest.raises(ClusterError, match="10,000 bytes"):
        await followed(fake)


async def test_a_stream_that_is_held_back_is_given_up(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that keeps what it is sent: the first event does not come."""
    monkeypatch.setattr(overview_module, "_FIRST_WITHIN_S", 0.1)
    streaming(fake)
    with pytest.raises(ServerUnreachable):
        await followed(fake)


async def test_a_refusal_and_an_older_server_are_told_apart(fake: FakeServer) -> None:
    streaming(fake)
    with pytest.raises(Forbidden):
        await followed(fake, "wrong")
    fake.stream = None
    with pytest.raises(NotFound):
        await followed(fake)


def test_it_is_an_iterator_for_scripts(fake: FakeServer) -> None:
    streaming(fake, event(overview_body(fake)), event({"waiting": 7}), END)
    with BlockingClient(fake.url, TOKEN, patience=QUICK) as client:
        assert [each.waiting for each in client.overviews()] == [0, 7]


def asked(fake: FakeServer) -> Callable[[], int]:
    """How often the overview was asked for."""
    return lambda: sum(path == "/api/v1/overview" for _, path, _ in fake.requests)


async def test_top_follows_and_does_not_ask(fake: FakeServer) -> None:
    """While the stream lives what changes is shown, and the overview is asked for no second time."""
    stream = streaming(fake, event(overview_body(fake)))
    async with open_top(fake, every_s=0.01) as (app, pilot):
        for waiting in (77, 78, 79):
            stream.put(event({"waiting": waiting}))
            await until(pilot, lambda waiting=waiting: f"{waiting} waiting" in shown(app))
        assert asked(fake)() == 1


async def test_top_asks_when_the_stream_breaks_and_follows_again(fake: FakeServer) -> None:
    """What changed in between is shown by asking; the next stream is followed as the first."""
    stream = streaming(fake, event(overview_body(fake) | {"waiting": 77}))
    async with open_top(fake, every_s=0.01) as (app, pilot):
        await until(pilot, lambda: "77 waiting" in shown(app))
        fake.overview = overview_body(fake) | {"waiting": 78}
        stream.put(END)
        await until(pilot, lambda: "78 waiting" in shown(app))
        stream.put(event(overview_body(fake) | {"waiting": 79}))
        await until(pilot, lambda: "79 waiting" in shown(app))
        assert status(app) == ""
        stream.put(END)
        fake.script = [503] * 10_000
        await until(pilot, lambda: "trying again" in shown(app))


async def test_top_goes_on_asking_where_the_stream_makes_no_sense(fake: FakeServer) -> None:
    """Also beside an older server, which has none."""
    stream = streaming(fake, b"data: nonsense\n\n")
    async with open_top(fake, every_s=0.01) as (app, pilot):
        await until(pilot, lambda: stream.empty() and "0 waiting" in shown(app))
        fake.overview = overview_body(fake) | {"waiting": 80}
        await until(pilot, lambda: "80 waiting" in shown(app))
        before = asked(fake)()
        await until(pilot, lambda: asked(fake)() > before + 2)
        assert sum(path.endswith("/events") for _, path, _ in fake.requests) == 1
