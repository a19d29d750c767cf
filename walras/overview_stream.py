"""The overview as the server sends it by itself: `GET /overview/events`, server-sent events.

The first event holds the whole overview, later ones the fields that have changed. What comes is bounded, since a server
is another program: an event that is too large, or no overview, ends the stream with an error.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from pydantic import ValidationError

from walras.errors import ClusterError
from walras.overview import Overview
from walras.transport import ApiCall, Transport, response_error

_PATH = "/api/v1/overview/events"
#: The most bytes of one event; the overview of 10,000 machines has a tenth of that.
_EVENT_BYTES_MOST = 64 * 1024 * 1024
_PIECE_BYTES = 65_536
#: Seconds to wait for the first event, which the server sends at once. Where it does not come, a proxy holds the stream
#: back.
_FIRST_WITHIN_S = 5.0
#: Seconds of silence after which the stream counts as broken: the server sends something every 15 s.
_SILENCE_S = 40.0


async def follow_overview(transport: Transport) -> AsyncIterator[Overview]:
    """Yields the overview now, and again whenever something of it has changed, until the server ends the stream.

    Raises ServerUnreachable if the connection breaks, or nothing comes for as long as a server never is silent;
    NotFound where the server is of an older release; ClusterError for events that make no overview.
    """
    patience = transport.patience
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=patience.connect_timeout_s, sock_read=_SILENCE_S)
    fields: dict[str, Any] = {}
    try:
        async with transport.open(ApiCall("GET", _PATH), timeout=timeout) as response:
            if response.status != 200:
                raise await response_error(response)
            events = _events(response)
            event = await asyncio.wait_for(anext(events, None), _FIRST_WITHIN_S)
            while event is not None:
                fields |= _fields(event)
                yield _overview(fields)
                event = await anext(events, None)
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
        raise transport.unreachable(error) from None


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yields the data of each event; what only says that the server is there has none."""
    left = bytearray()
    async for piece in response.content.iter_chunked(_PIECE_BYTES):
        start = max(0, len(left) - 1)
        left += piece
        while (end := left.find(b"\n\n", start)) >= 0:
            lines = bytes(left[:end]).split(b"\n")
            del left[: end + 2]
            start = 0
            if data := b"".join(line[5:] for line in lines if line.startswith(b"data:")):
                yield data
        if len(left) > _EVENT_BYTES_MOST:
            raise ClusterError(f"the server sent an event of more than {_EVENT_BYTES_MOST:,} bytes")


def _fields(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ClusterError("the server sent an event that is not a JSON object; is it Walras?")
    return found


def _overview(fields: dict[str, Any]) -> Overview:
    try:
        return Overview.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ClusterError(f"the server sent an overview that is none: {first['loc']}: {first['msg']}") from None
