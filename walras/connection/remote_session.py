"""Sessions with a running job: a command in its place, a shell, or a connection to a port that it listens on.

The caller and the machine each hold a websocket to the server, which passes on what comes: nothing ever connects to a
machine. A binary message is one byte that names the channel and the bytes; a text message is a `SessionNote`. Either
side ends it by closing.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from walras.connection.body import Body
from walras.contract import INCARNATION_PATTERN
from walras.errors import ClusterError, Conflict

#: The most bytes of one message. A side that does not read holds up the other: little more than one message is in
#: transit.
MESSAGE_BYTES = 256 * 1024
PIECE_BYTES = 64 * 1024
#: Seconds after which a session ends in any case.
SESSION_S = 24 * 3600.0
#: Seconds from a request to the machine's connection.
CONNECT_S = 20.0
#: Seconds between pings; a lost connection is noticed by unanswered ones.
PING_S = 20.0
ARGUMENTS_MOST, ARGUMENT_MOST = 1000, 32_768


class Channel(IntEnum):
    """The first byte of a binary message."""

    #: To the machine: input; from it: output.
    MAIN = 0
    #: From the machine: the command's standard error.
    ERRORS = 1


class SessionAsked(Body):
    """A user's request for a running job: the query of the caller's websocket."""

    kind: Literal["exec", "shell", "forward"]
    #: The command, for `exec`.
    argv: list[Annotated[str, Field(max_length=ARGUMENT_MOST)]] = Field(default=[], max_length=ARGUMENTS_MOST)
    #: The port, for `forward`.
    port: int = Field(default=0, ge=0, le=65_535)
    #: The machine of the gang, by its node rank.
    node_rank: int = Field(default=0, ge=0, le=1_000_000)
    rows: int = Field(default=24, ge=1, le=10_000)
    columns: int = Field(default=80, ge=1, le=10_000)
    term: str = Field(default="xterm", pattern=r"^[A-Za-z0-9._+-]{1,64}$")

    def query(self) -> dict[str, str]:
        """Returns the query of the websocket that asks for it."""
        given = {"kind": self.kind, **self.model_dump(mode="json", exclude_defaults=True)}
        return {name: json.dumps(value) if name == "argv" else str(value) for name, value in given.items()}


class SessionRequest(Body):
    """What the answer to a heartbeat tells a machine: to open a websocket for this session."""

    session_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    job_id: int
    attempt: int
    incarnation: str = Field(default="", pattern=INCARNATION_PATTERN)
    asked: SessionAsked
    user: str = ""


class SessionNote(Body):
    """The content of a text message."""

    type: Literal["ready", "exit", "eof", "resize", "refused"]
    #: For `exit`: the command's code, 128 + N for signal N. For `refused`: the reason.
    code: int = 0
    detail: str = Field(default="", max_length=1000)
    rows: int = Field(default=24, ge=1, le=10_000)
    columns: int = Field(default=80, ge=1, le=10_000)


def parse_note(text: str) -> SessionNote | None:
    """Returns the note in a text message; None for anything else."""
    try:
        return SessionNote.model_validate_json(text)
    except ValidationError:
        return None


Socket = Any  # aiohttp's websockets of both sides, which share no type


async def send_note(socket: Socket, **fields: Any) -> None:
    await socket.send_str(SessionNote(**fields).model_dump_json(exclude_defaults=True))


async def send_stream(socket: Socket, channel: Channel, read: Callable[[int], Awaitable[bytes]]) -> None:
    """Send what `read` gives until it gives nothing."""
    while piece := await read(PIECE_BYTES):
        await socket.send_bytes(bytes([channel]) + piece)


async def relay(one: Socket, other: Socket) -> None:
    """Pass messages on both ways until one side closes, then close the other."""
    passing = [asyncio.create_task(_pass_on(one, other)), asyncio.create_task(_pass_on(other, one))]
    try:
        async with asyncio.timeout(SESSION_S):
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        pass
    finally:
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
        await asyncio.gather(one.close(), other.close(), return_exceptions=True)


async def _pass_on(source: Socket, target: Socket) -> None:
    async for message in source:
        if message.type.name == "BINARY":
            await target.send_bytes(message.data)
        elif message.type.name == "TEXT":
            await target.send_str(message.data)
        else:
            return


async def await_ready(socket: Socket) -> None:
    """Returns once the machine is there. Raises Conflict with its words if it refuses, ClusterError if it is lost."""
    message = await socket.receive()
    note = parse_note(message.data) if message.type.name == "TEXT" else None
    if note is None:
        raise ClusterError(f"the session ended before it began ({message.type.name.lower()})")
    if note.type == "refused":
        raise Conflict(note.detail or "the machine refuses")
