"""`walras exec`: commands, a shell and connections in the place of a running job."""

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import JobArgument
from walras.cli.session import job_id_of, with_client
from walras.cli.terminal_output import show_line, warn
from walras.errors import ClusterError, UserError

if TYPE_CHECKING:
    from walras.client import Client
    from walras.connection.remote_session import SessionAsked

NodeOption = Annotated[
    int, typer.Option("--node", "-n", min=0, help="Which machine of a gang, counted from 0, instead of its first.")
]
#: Exit code where the session ended before its command did.
_EXIT_LOST = 255


def exec_command(
    job: JobArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="The command and its arguments; without one, a shell."),
    ] = None,
    node: NodeOption = 0,
    forward: Annotated[
        bool, typer.Option("--forward", help="COMMAND is [LOCAL:]PORT: make a port of the job one of this machine.")
    ] = False,
) -> None:
    """Run a command, or open a shell, in a running job's place: its machine, folder and environment.

    Exits with the command's code. It ends with the attempt. For the job's owner and for operators; audited.
    `--forward` reaches only ports on which the job itself listens, from this machine, until interrupted.
    """
    if forward:
        _forward(job, command or [], node)
        return
    from walras.connection.remote_session import SessionAsked

    if not command and not sys.stdin.isatty():
        raise UserError("a shell needs a terminal, and here is none", field="COMMAND", fix="walras exec JOB -- COMMAND")
    job_id = job_id_of(job)
    if command:
        asked = SessionAsked(kind="exec", argv=command, node_rank=node)
        code = with_client(lambda client: _run_session(client, job_id, asked))
    else:
        size = shutil.get_terminal_size()
        term = os.environ.get("TERM") or "xterm"
        asked = SessionAsked(kind="shell", node_rank=node, rows=size.lines, columns=size.columns, term=term)
        with _raw_terminal():
            code = with_client(lambda client: _run_session(client, job_id, asked))
    if code:
        raise typer.Exit(code)


def _forward(job: str, words: list[str], node: int) -> None:
    if len(words) != 1:
        raise UserError("--forward needs one port", field="PORT", fix="walras exec JOB --forward [LOCAL:]PORT")
    local, _, remote = words[0].rpartition(":")
    numbers = [_port(word) for word in (local or remote, remote)]
    job_id = job_id_of(job)
    with_client(lambda client: _listen(client, job_id, numbers[0], numbers[1], node))


def _port(word: str) -> int:
    if not (word.isascii() and word.isdigit() and 1 <= int(word[:6]) <= 65_535):
        raise UserError(f"{word[:40]!r} is no port", field="port", fix="write such as 8888 or 9000:8888")
    return int(word)


# ------------------------------------------------------------------------------------------------ commands


async def _run_session(client: "Client", job_id: int, asked: "SessionAsked") -> int:
    """Passes input and output on until the command has ended; returns its exit code, 255 if the session ends before."""
    from walras.connection.remote_session import Channel, parse_note, send_note

    socket = await client.open_session(job_id, asked)
    sending = asyncio.create_task(_send_input(socket))
    loop, telling = asyncio.get_running_loop(), set()

    def resized() -> None:
        size = shutil.get_terminal_size()
        telling.add(loop.create_task(send_note(socket, type="resize", rows=size.lines, columns=size.columns)))

    if asked.kind == "shell":
        loop.add_signal_handler(signal.SIGWINCH, resized)
    why, has_begun = "the session ended: the attempt has, or the connection was lost", False
    try:
        async for message in socket:
            if message.type.name == "BINARY":
                is_error = message.data[:1] == bytes([Channel.ERRORS])
                _write(sys.stderr if is_error else sys.stdout, message.data[1:])
            elif message.type.name == "TEXT" and (note := parse_note(message.data)) is not None:
                if note.type == "exit":
                    return note.code
                has_begun |= note.type == "ready"
                if note.type == "refused" and not has_begun:
                    raise UserError(note.detail)
                why = note.detail if note.type == "refused" else why
        warn(f"{why}\r")
        return _EXIT_LOST
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await socket.close()


def _write(stream: Any, content: bytes) -> None:
    stream.buffer.write(content)
    stream.flush()


async def _send_input(socket: Any) -> None:
    """Sends what is typed or piped in, and then the end of input."""
    from walras.connection.remote_session import Channel, send_note, send_stream

    await send_stream(socket, Channel.MAIN, await _own_input())
    await send_note(socket, type="eof")


async def _own_input() -> "Callable[[int], Awaitable[bytes]]":
    """Returns how this program's input is read, whatever it is: a terminal, a pipe, a file, /dev/null, nothing."""

    async def read_nothing(_: int) -> bytes:
        return b""

    async def read_file(most: int) -> bytes:
        return await asyncio.to_thread(_read_input, most)

    if sys.stdin is None:  # it was closed, and its number may be that of another file by now
        return read_nothing
    kind = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(0)):
        return read_file

    async def read_when_ready(most: int) -> bytes:
        # A terminal's input and output are one open file: if reads did not block, writes would not either, and what a
        # job writes faster than the terminal shows would be lost.
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(0, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(0)
        return _read_input(most)

    return read_when_ready


def _read_input(most: int) -> bytes:
    try:
        return os.read(0, most)
    except OSError:  # nohup leaves an input that cannot be read, and a terminal may be gone
        return b""


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Passes keys to the job as they are typed, until the block ends."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


# ------------------------------------------------------------------------------------------------ ports


async def _listen(client: "Client", job_id: int, local: int, remote: int, node: int) -> None:
    from walras.connection.remote_session import SessionAsked

    asked = SessionAsked(kind="forward", port=remote, node_rank=node)
    # One connection is made at once, so that a port without a listener is reported here and not to a browser.
    await (await client.open_session(job_id, asked)).close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            socket = await client.open_session(job_id, asked)
            await _pass_connection(socket, reader, writer)
        except (UserError, ClusterError) as error:
            warn(f"walras: {error}")
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", local)
    show_line(f"127.0.0.1:{local} is port {remote} of job {job_id}; Ctrl-C ends it")
    async with server:
        await server.serve_forever()


async def _pass_connection(socket: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    from walras.connection.remote_session import Channel, parse_note, send_note, send_stream

    async def send() -> None:
        await send_stream(socket, Channel.MAIN, reader.read)
        await send_note(socket, type="eof")

    sending = asyncio.create_task(send())
    try:
        async for message in socket:
            if message.type.name == "BINARY":
                writer.write(message.data[1:])
                await writer.drain()
            elif message.type.name == "TEXT" and (note := parse_note(message.data)) and note.type == "refused":
                raise UserError(note.detail)
    except OSError:
        return  # The local peer has closed its connection.
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await socket.close()
