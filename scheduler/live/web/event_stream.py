"""Streams the overview to all open pages. One task builds it, however many pages are open, and each change is encoded
once for all pages whose users see the same projects.

A page receives server-sent events. The first holds the whole overview, later ones the fields that have changed. The
stream of a page that does not read its messages is ended, and the page opens a new one. After an overview the task
pauses at least twenty times as long as it took, so that pages use at most a twentieth of the server.
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

#: The least pause between two overviews, seconds, and the pause as a multiple of the time that the last one took.
_PACE_S, _PART = 2.0, 20.0
#: The most streams at once; a page beyond that has to ask again later.
_STREAMS_MOST = 500
#: Messages that may wait for a page to read them.
_UNREAD_MOST = 8
#: A heartbeat is sent after this many seconds without a message, so that closed connections are noticed.
_QUIET_S = 15.0
#: Seconds for which the last overview is kept after the last page was closed: a page is often loaded again.
_KEPT_S = 10.0
_HEARTBEAT = b": still here\n\n"


class TooManyPages(ClusterError):
    """More pages are open than the server is willing to serve."""


@dataclass(slots=True, eq=False)
class _OpenPage:
    """One open page: its messages that are not sent yet; None ends the stream."""

    unread: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_UNREAD_MOST))


@dataclass(slots=True)
class _Audience:
    """The pages whose users see the same projects, and the fields of the overview that these were last sent."""

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
        #: Set when a page is opened for projects of which no fresh overview exists.
        self._is_awaited = asyncio.Event()

    @property
    def pages(self) -> int:
        """How many pages are open."""
        return sum(len(audience.pages) for audience in self._audiences.values())

    async def messages(self, projects: Projects) -> AsyncGenerator[bytes, None]:
        """Yields the messages for one page until it reads too slowly or the server stops. Raises TooManyPages."""
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
        """Build and send overviews while a page is open, and for `_KEPT_S` longer."""
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
            # Not `wait_for`: it loses a cancellation that comes at the same moment as the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_awaited.wait()

    async def _send(self, projects: Projects, audience: _Audience) -> None:
        overview = await self.builder.build(projects)
        # Encoding thousands of cells takes milliseconds, so it is not done in the loop's thread.
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
    """Returns the overview as JSON texts by name of the field."""
    whole: Mapping[str, Any] = dump(mode="json", exclude_none=True)
    return {name: json.dumps(value, separators=(",", ":"), ensure_ascii=False) for name, value in whole.items()}


def _message(fields: Mapping[str, str]) -> bytes:
    """Returns a server-sent event with these fields, on one line, since JSON holds no line break."""
    body = ",".join(f'"{name}":{text}' for name, text in fields.items())
    return f"event: overview\ndata: {{{body}}}\n\n".encode()


async def _next_message(page: _OpenPage) -> bytes | None:
    try:
        return await asyncio.wait_for(page.unread.get(), _QUIET_S)
    except TimeoutError:
        return _HEARTBEAT


def _leave_behind(page: _OpenPage) -> None:
    """Drop the messages that the page has not read, and end its stream."""
    while not page.unread.empty():
        page.unread.get_nowait()
    page.unread.put_nowait(None)
