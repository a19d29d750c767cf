"""Sends the overview to all open pages: one task builds it, however many pages there are, and each change is put into
bytes once for everybody who sees the same projects.

A page receives server-sent events. The first holds the whole overview, later ones the fields that have changed. A page
that does not read what it is sent is left behind after a while and opens a new stream. Between two overviews lies at
least twenty times what the last one took, so that pages never take more than a twentieth of the server.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.live.server import Server
from scheduler.live.web.overview import OverviewBuilder, Projects
from walras.errors import ClusterError

#: Between two overviews, seconds, and how many times as long as the last one took.
_PACE_S, _PART = 2.0, 20.0
#: Streams in all; pages beyond that ask again.
_STREAMS_MOST = 500
#: Messages that a page may leave unread.
_UNREAD_MOST = 8
#: Something is sent this often, so that the ends of connections are noticed.
_QUIET_S = 15.0
#: What was sent last is kept so long for those who come after the last page was closed: a page is often loaded again.
_KEPT_S = 10.0
_HEARTBEAT = b": still here\n\n"


class TooManyPages(ClusterError):
    """More pages are open than the server is willing to serve."""


@dataclass(slots=True, eq=False)
class _OpenPage:
    """A page's messages that are not sent yet; None ends the stream."""

    unread: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_UNREAD_MOST))


@dataclass(slots=True)
class _Audience:
    """Pages of people who see the same projects, and what they were sent last, by field of the overview."""

    pages: set[_OpenPage] = field(default_factory=set)
    sent: dict[str, str] = field(default_factory=dict)
    #: When the last page was closed, by the loop's clock.
    left_at: float = 0.0


class OverviewStream:
    """The streams of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.builder = OverviewBuilder(server)
        self._audiences: dict[Projects, _Audience] = {}
        self._task: asyncio.Task[None] | None = None
        #: Somebody came who sees what nobody was sent yet.
        self._is_awaited = asyncio.Event()

    @property
    def pages(self) -> int:
        """How many pages are open."""
        return sum(len(audience.pages) for audience in self._audiences.values())

    async def messages(self, projects: Projects) -> AsyncGenerator[bytes, None]:
        """Yields the messages for one page, until the page is left behind or the server stops."""
        if self.pages >= _STREAMS_MOST:
            raise TooManyPages("too many pages are open")
        page, audience = _OpenPage(), self._audiences.setdefault(projects, _Audience())
        if audience.sent:
            page.unread.put_nowait(_message(audience.sent))
        if not (audience.sent and audience.pages):
            self._is_awaited.set()
        audience.pages.add(page)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_for_ever(), name="pages")
        try:
            while True:
                message = await _next_message(page)
                if message is None:
                    return
                yield message
        finally:
            audience.pages.discard(page)
            audience.left_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """End all streams."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for audience in self._audiences.values():
            for page in audience.pages:
                _leave_behind(page)

    async def _send_for_ever(self) -> None:
        """As long as somebody looks, and a little longer."""
        loop = asyncio.get_running_loop()
        while self._audiences:
            began_at = loop.time()
            self._is_awaited.clear()
            for projects, audience in list(self._audiences.items()):
                if audience.pages:
                    await self._send(projects, audience)
                elif began_at - audience.left_at > _KEPT_S:
                    del self._audiences[projects]
            pause_s = max(_PACE_S, _PART * (loop.time() - began_at))
            # Not `wait_for`: it forgets that it was cancelled where the event comes at the same moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_awaited.wait()

    async def _send(self, projects: Projects, audience: _Audience) -> None:
        overview = await self.builder.build(projects)
        # Thousands of cells as text take milliseconds: not in the loop's thread.
        fields = await self._server.read(_texts_of_fields, overview.model_dump)
        changed = {name: text for name, text in fields.items() if audience.sent.get(name) != text}
        audience.sent = fields
        if not changed:
            return
        message = _message(changed)
        for page in audience.pages:
            try:
                page.unread.put_nowait(message)
            except asyncio.QueueFull:
                _leave_behind(page)


def _texts_of_fields(dump: Any) -> dict[str, str]:
    """JSON by name of the field."""
    whole: Mapping[str, Any] = dump(mode="json", exclude_none=True)
    return {name: json.dumps(value, separators=(",", ":"), ensure_ascii=False) for name, value in whole.items()}


def _message(fields: Mapping[str, str]) -> bytes:
    """A server-sent event with these fields; JSON holds no line break, so it is one line."""
    body = ",".join(f'"{name}":{text}' for name, text in fields.items())
    return f"event: overview\ndata: {{{body}}}\n\n".encode()


async def _next_message(page: _OpenPage) -> bytes | None:
    try:
        return await asyncio.wait_for(page.unread.get(), _QUIET_S)
    except TimeoutError:
        return _HEARTBEAT


def _leave_behind(page: _OpenPage) -> None:
    """What it has not read is dropped, and its stream ends."""
    while not page.unread.empty():
        page.unread.get_nowait()
    page.unread.put_nowait(None)
