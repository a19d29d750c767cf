"""Sessions with attempts of this machine: a command or a shell beside the job, or a connection to one of its ports.

The server announces a session with the answer to a heartbeat, and the agent opens a websocket for it: no connection is
made to a machine. Processes of a session have the environment, the folder, the control group and the cookie of the
job's first rank here: they count in the job's limits and end with the attempt. Connections are made only to ports on
which processes of the attempt listen.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp

from walras.connection.remote_session import (
    MESSAGE_BYTES,
    PIECE_BYTES,
    Channel,
    SessionAsked,
    SessionNote,
    SessionRequest,
    parse_note,
    send_note,
    send_stream,
)
from walras.job_needs import JobNeeds
from workers import processes
from workers.accounts import become, files_as
from workers.agent.run_as import OWN_FOLDER
from workers.agent.server_client import ServerClient
from workers.control_groups import enter_group
from workers.devices import AttemptKey
from workers.preparation.launcher import ENVIRONMENT_FILE, read_needs
from workers.supervisor_protocol import (
    JOURNAL_FILE,
    AttemptPlan,
    find_supervisor,
    read_attempt_journal,
    read_ranks_file,
)

log = logging.getLogger(__name__)

#: Largest number of concurrent sessions on this machine.
SESSIONS_MOST = 100
_ENVIRONMENT_BYTES = 4 * 1024 * 1024
_SHELL = ("bash", "-i")
#: Seconds between the hang-up of a session's processes and their kill.
_GRACE_S = 2.0
_KILL_TIMEOUT_S = 10.0
_LISTENING = "0A"


@dataclass(frozen=True)
class AttemptPlace:
    """Where an attempt runs on this machine."""

    folder: Path
    plan: AttemptPlan

    def environment(self) -> dict[str, str]:
        """Returns the environment of the first rank here, as far as it is stored."""
        first = {"RANK": str(self.plan.first_rank), "LOCAL_RANK": "0", "MASTER_PORT": str(self.plan.master_port)}
        with files_as(self.plan.uid, self.plan.gid):
            kept = read_ranks_file(self._own_folder / ENVIRONMENT_FILE, 0, _ENVIRONMENT_BYTES)
        try:
            prepared = json.loads(kept) if kept else {}
        except ValueError:
            prepared = {}
        own = {name: value for name, value in prepared.items() if isinstance(value, str) and "\0" not in name + value}
        return {**self.plan.env, **first, **own}

    @property
    def brings(self) -> bool:
        """Whether its ranks still bring what they need, before their program begins."""
        with files_as(self.plan.uid, self.plan.gid):
            return self.needs.is_prepared_first and not (self._own_folder / ENVIRONMENT_FILE).exists()

    @property
    def needs(self) -> JobNeeds:
        """What the job needs of the machine, as it is stored."""
        with files_as(self.plan.uid, self.plan.gid):
            return read_needs(self._own_folder)

    @property
    def _own_folder(self) -> Path:
        return self.folder / OWN_FOLDER if self.plan.uid else self.folder

    @property
    def is_ending(self) -> bool:
        """Whether the supervisor has begun to end the attempt."""
        events, _ = read_attempt_journal(self.folder / JOURNAL_FILE)
        return any(event.get("type") in ("stopping", "lease_expired", "ended") for event in events)


class RemoteSessions:
    """The sessions of this machine."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._running: dict[str, tuple[AttemptKey, asyncio.Task[None]]] = {}
        #: Cookies of the attempts that have had sessions, until they are over; then the tasks that end their processes.
        self._marks: dict[AttemptKey, str] = {}
        self._endings: set[asyncio.Task[None]] = set()

    def begin(self, request: SessionRequest, place: AttemptPlace | None) -> None:
        """Opens a session with an attempt, concurrently with the heartbeats. `place`: None if it is not here."""
        if request.session_id in self._running or len(self._running) >= SESSIONS_MOST:
            return
        key = AttemptKey.of(request)
        if place is not None:
            self._marks[key] = place.plan.cookie
        task = asyncio.create_task(self._run(request, place))
        self._running[request.session_id] = (key, task)
        task.add_done_callback(lambda done: self._ended(request, done))

    def _ended(self, request: SessionRequest, task: "asyncio.Task[None]") -> None:
        del self._running[request.session_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("session of %s with job %d: %s", request.user, request.job_id, error)

    def end_closed(self, still_open: Sequence[str] | None) -> None:
        """Ends the sessions that the server has closed, unless it does not say which are open.

        A command that reads no input holds up its websocket, so that the end of it is not seen there.
        """
        for session_id, (_, task) in self._running.items():
            if still_open is not None and session_id not in still_open:
                task.cancel()

    def end(self, key: AttemptKey) -> None:
        """Ends the sessions of an attempt that is over, and all processes that were started in them."""
        open_now = [task for theirs, task in self._running.values() if theirs == key]
        for task in open_now:
            task.cancel()
        mark = self._marks.pop(key, None)
        if mark is not None:
            ending = asyncio.create_task(_end_marked(mark, open_now))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _run(self, request: SessionRequest, place: AttemptPlace | None) -> None:
        asked = request.asked
        log.info("job %d attempt %d: %s opens a session: %s", *AttemptKey.of(request)[:2], request.user, asked.kind)
        async with self._client.session_socket(request.session_id, MESSAGE_BYTES) as socket:
            try:
                if place is None:
                    raise _Refused("the attempt is not on this machine any more")
                if asked.kind == "forward":
                    await _forward(socket, place, asked)
                elif asked.kind == "shell":
                    await _run_shell(socket, place, asked)
                else:
                    await _run_command(socket, place, asked)
            except (_Refused, OSError, ValueError) as error:
                with contextlib.suppress(OSError):
                    await send_note(socket, type="refused", detail=str(error)[:1000])


async def _end_marked(mark: str, sessions: "list[asyncio.Task[None]]") -> None:
    if sessions:
        await asyncio.wait(sessions)
    await asyncio.to_thread(processes.kill_carriers, mark, _KILL_TIMEOUT_S)


class _Refused(Exception):
    """The session is refused; the message is for its caller."""


# ------------------------------------------------------------------------------------------------ commands


def _begin_as(plan: AttemptPlan) -> None:
    """Enters the control group of the job's ranks, takes their rights, and restores SIGHUP.

    An agent started with nohup ignores hang-ups, and a shell could not undo that for its children.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    enter_group(plan.group)
    become(plan.uid, plan.gid, plan.groups)


async def _run_command(socket: aiohttp.ClientWebSocketResponse, place: AttemptPlace, asked: SessionAsked) -> None:
    process = await asyncio.create_subprocess_exec(
        *asked.argv,
        cwd=place.plan.workdir,
        env=place.environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=partial(_begin_as, place.plan),
        limit=PIECE_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    await send_note(socket, type="ready")

    async def take_input() -> None:
        """Passes input on until the caller leaves or closes it."""
        assert process.stdin is not None
        async for message in socket:
            note = _note_of(message)
            if message.type is aiohttp.WSMsgType.BINARY:
                with contextlib.suppress(OSError):  # it no longer reads
                    process.stdin.write(message.data[1:])
                    await process.stdin.drain()
            elif note is not None and note.type == "eof":
                process.stdin.close()

    outputs = [
        asyncio.create_task(send_stream(socket, Channel.MAIN, process.stdout.read)),
        asyncio.create_task(send_stream(socket, Channel.ERRORS, process.stderr.read)),
    ]
    await _until_over(socket, place, process, asyncio.create_task(take_input()), outputs)


async def _run_shell(socket: aiohttp.ClientWebSocketResponse, place: AttemptPlace, asked: SessionAsked) -> None:
    ours, theirs = pty.openpty()
    try:
        _resize(ours, asked.rows, asked.columns)

        if place.plan.uid:
            os.fchown(theirs, place.plan.uid, place.plan.gid)

        def take_terminal() -> None:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
            _begin_as(place.plan)

        process = await asyncio.create_subprocess_exec(
            *_SHELL,
            cwd=place.plan.workdir,
            env=place.environment() | {"TERM": asked.term},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    reader = asyncio.StreamReader(limit=PIECE_BYTES)
    terminal = os.fdopen(ours, "r+b", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), terminal
    )
    await send_note(socket, type="ready")

    async def take_input() -> None:
        async for message in socket:
            note = _note_of(message)
            if message.type is aiohttp.WSMsgType.BINARY:
                await _write_all(ours, message.data[1:])
            elif note is not None and note.type == "resize":
                _resize(ours, note.rows, note.columns)

    async def read(most: int) -> bytes:
        try:
            return await reader.read(most)
        except OSError:  # the other end is closed: how a terminal ends
            return b""

    try:
        output = asyncio.create_task(send_stream(socket, Channel.MAIN, read))
        await _until_over(socket, place, process, asyncio.create_task(take_input()), [output])
    finally:
        transport.close()


async def _write_all(file: int, content: bytes) -> None:
    """Writes all bytes to a terminal that may not accept them at once."""
    while content:
        try:
            content = content[os.write(file, content) :]
        except BlockingIOError:
            await asyncio.sleep(0.01)


def _resize(file: int, rows: int, columns: int) -> None:
    fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _note_of(message: aiohttp.WSMessage) -> SessionNote | None:
    return parse_note(message.data) if message.type is aiohttp.WSMsgType.TEXT else None


async def _until_over(
    socket: aiohttp.ClientWebSocketResponse,
    place: AttemptPlace,
    process: asyncio.subprocess.Process,
    taking: "asyncio.Task[None]",
    outputs: "list[asyncio.Task[None]]",
) -> None:
    """Reports how the process ended, unless the end of the attempt killed it.

    Ends the process and its session if the caller leaves first.
    """
    leader = processes.name_process(process.pid)
    ending = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({ending, taking}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            await asyncio.wait(outputs, timeout=_GRACE_S)
            code = ending.result()
            if code == -signal.SIGKILL and place.is_ending:
                return
            await send_note(socket, type="exit", code=code if code >= 0 else 128 - code)
    finally:
        for task in (taking, *outputs):
            task.cancel()
        if leader is not None and (not ending.done() or ending.result() < 0):
            await asyncio.shield(_end_session(leader, ending))  # a second cancellation must not leave it running


async def _end_session(leader: processes.ProcessName, ending: "asyncio.Task[int]") -> None:
    """Sends a hang-up, then kills: a shell runs its children in process groups of their own."""
    processes.send_signal(await asyncio.to_thread(processes.session_members, leader), signal.SIGHUP)
    await asyncio.wait({ending}, timeout=_GRACE_S)
    await asyncio.to_thread(processes.kill_known, [], leader, _KILL_TIMEOUT_S)
    await asyncio.wait({ending}, timeout=_GRACE_S)


# ------------------------------------------------------------------------------------------------ ports


async def _forward(socket: aiohttp.ClientWebSocketResponse, place: AttemptPlace, asked: SessionAsked) -> None:
    address = await asyncio.to_thread(listening_address, place, asked.port)
    if not address:
        raise _Refused(f"no process of the job listens on port {asked.port} here")
    reader, writer = await asyncio.open_connection(address, asked.port, limit=PIECE_BYTES)
    await send_note(socket, type="ready")

    async def take_input() -> None:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                writer.write(message.data[1:])
                await writer.drain()
            elif (note := _note_of(message)) is not None and note.type == "eof" and writer.can_write_eof():
                writer.write_eof()

    passing = [
        asyncio.create_task(send_stream(socket, Channel.MAIN, reader.read)),
        asyncio.create_task(take_input()),
    ]
    try:
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
        writer.close()


def listening_address(place: AttemptPlace, port: int, net: Path = Path("/proc/net")) -> str:
    """Returns the loopback address at which a process of the attempt listens on the port; empty if none does."""
    supervisor = find_supervisor(place.folder)
    if supervisor is None:
        return ""
    pids = {*processes.descendants(supervisor.pid), *processes.carriers(place.plan.cookie)}
    sockets = {inode for pid in pids for inode in _sockets_of(pid)}
    for name, address in (("tcp", "127.0.0.1"), ("tcp6", "::1")):
        with contextlib.suppress(OSError):
            for line in (net / name).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port and words[9] in sockets:
                    return address
    return ""


def _sockets_of(pid: int) -> list[str]:
    """Returns the inodes of the sockets that a process holds."""
    found = []
    with contextlib.suppress(OSError):
        for file in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(file.path))
                found += [match[1]] if match else []
    return found
