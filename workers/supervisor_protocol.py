"""The protocol between an agent and the supervisor of an attempt: a plan file, a journal, and two Unix sockets.

The agent writes `plan.json` into the attempt's folder before it starts the supervisor. Only the supervisor writes the
journal: JSON lines, each of which is durable before anything follows from it. Any later agent reads it, and ignores a
last line torn by a crash. The sockets carry JSON lines, bounded in both directions and driven by a selector, without
threads. Standard library only.
"""

import json
import os
import selectors
import socket
import stat
import struct
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from workers.processes import ProcessName, boot_id, reserve_room
from workers.rank_messages import SocketMessage, parse_object

JournalEvent = dict[str, Any]

#: Bytes reserved on the disk for the journal of an attempt: about two hundred events.
JOURNAL_ROOM_BYTES = 64 * 1024
#: Bytes of a journal that are read at a time: more than a supervisor writes in an attempt.
JOURNAL_READ_BYTES = 4 * 1024 * 1024


class AttemptJournal:
    """Appends events and syncs each, because an attempt has few.

    Space for the first events is reserved at once, so that no end of an attempt is lost on a disk that fills up later.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._unwritten = b""
        self._is_synced = True
        reserve_room(self._file, JOURNAL_ROOM_BYTES)

    def append(self, event: JournalEvent) -> None:
        """Writes the event, or keeps it for `flush` if the disk is full: the attempt continues."""
        self._unwritten += json.dumps(event, allow_nan=False).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Returns True once everything is on the disk. A partially written line is completed later."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._file, self._unwritten) :]
                self._is_synced = False
            if not self._is_synced:
                os.fsync(self._file)
                self._is_synced = True
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.close(self._file)


def read_attempt_journal(path: Path, offset: int = 0) -> tuple[list[JournalEvent], int]:
    """Returns the events from `offset` on, and the offset after them. Lines that are no events are skipped."""
    content = read_ranks_file(path, offset, JOURNAL_READ_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    if not whole and len(content) == JOURNAL_READ_BYTES:
        return [], offset + len(content)  # no supervisor wrote a line of that length
    events = (parse_object(line) for line in whole.split(b"\n"))
    return [event for event in events if event is not None], offset + len(whole)


def find_attempt_end(path: Path) -> JournalEvent | None:
    """Returns the last end that the supervisor wrote; None if it wrote none."""
    try:
        size = os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return None
    tail = read_ranks_file(path, max(0, size - JOURNAL_READ_BYTES), JOURNAL_READ_BYTES)
    events = map(parse_object, reversed(tail.split(b"\n")))
    return next((event for event in events if event is not None and event.get("type") == "ended"), None)


def read_ranks_file(path: Path, offset: int, most: int) -> bytes:
    """Returns at most `most` bytes of a file in a folder where ranks can write too; nothing if it is no regular file.

    Never blocks, whatever a rank put in its place.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(file, most, offset) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(file)


def write_durably(path: Path, value: Any) -> None:
    """Replaces a small JSON file atomically, readable only by its owner."""
    partial = path.with_name(path.name + ".partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, json.dumps(value).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(partial, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


PLAN_FILE = "plan.json"
JOURNAL_FILE = "journal.jsonl"
SUPERVISOR_FILE = "supervisor.json"
SUPERVISOR_LOG = "supervisor.log"
#: The descendants that the supervisor saw last, for processes that must end them without it.
DESCENDANTS_FILE = "descendants.json"


def find_supervisor(folder: Path) -> ProcessName | None:
    """Returns the supervisor of the attempt in this folder; None if none was started since this machine booted."""
    facts = _facts_of_this_boot(folder / SUPERVISOR_FILE)
    return _process_name([facts.get("pid"), facts.get("start_ticks")])


def find_descendants(folder: Path) -> tuple[list[ProcessName], ProcessName | None]:
    """Returns the descendants that the supervisor saw last, and the leader of its session."""
    facts = _facts_of_this_boot(folder / DESCENDANTS_FILE)
    names = facts.get("names")
    found = map(_process_name, names) if isinstance(names, list) else ()
    return [name for name in found if name is not None], _process_name(facts.get("leader"))


def _facts_of_this_boot(path: Path) -> SocketMessage:
    facts = parse_object(read_ranks_file(path, 0, JOURNAL_READ_BYTES))
    return {} if facts is None or facts.get("boot_id") != boot_id() else facts


def _process_name(given: object) -> ProcessName | None:
    if not isinstance(given, list) or len(given) != 2 or any(type(each) is not int for each in given) or given[0] <= 1:
        return None
    return ProcessName(*given)


@dataclass(frozen=True)
class AttemptPlan:
    """One attempt's part on this machine. It has the job's token, so only the owner can read the file."""

    job_id: int
    attempt: int
    argv: list[str]
    #: The environment of every rank, without the variables that differ between ranks.
    env: dict[str, str]
    workdir: str
    devices: list[int]
    node_rank: int
    first_rank: int
    world_size: int
    #: 0: choose a free port (a gang on one machine).
    master_port: int
    #: The lease granted with the start: its length in seconds, and its end on the boot-time clock.
    lease_s: float
    lease_until: float
    grace_s: float
    checkpoint_dir: str
    #: Cookie that marks every process of the attempt, through its environment.
    cookie: str
    rank_socket: str
    control_socket: str
    log_cap_bytes: int
    #: The incarnation of the cluster that granted the attempt; empty: none was named.
    incarnation: str = ""
    #: True: one process for all devices, which is a launcher of its own ranks or a program that uses all devices.
    is_launcher: bool = False
    #: Limits in bytes: of main memory, and of the disk in its own folder. 0: no limit.
    memory_bytes: int = 0
    disk_bytes: int = 0
    #: The store for its checkpoints, and the server's name of the folder for which `checkpoint_dir` stands here. Empty:
    #: all machines share that folder.
    store: str = ""
    served_dir: str = ""
    #: Folder of the control group of the ranks (`workers/control_groups.py`). Empty: none.
    group: str = ""
    #: The account of the ranks, where the agent is root (`workers/accounts.py`). 0: the agent's own.
    uid: int = 0
    gid: int = 0
    groups: list[int] = field(default_factory=list)

    @property
    def ranks(self) -> range:
        """Returns the global ranks of this machine; for a launcher the number of the machine."""
        return range(self.first_rank, self.first_rank + (1 if self.is_launcher else len(self.devices)))


def write_plan(folder: Path, plan: AttemptPlan) -> None:
    write_durably(folder / PLAN_FILE, vars(plan))


def read_plan(folder: Path) -> AttemptPlan:
    return AttemptPlan(**json.loads((folder / PLAN_FILE).read_bytes()))


def rank_log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


MAX_LINE_BYTES = 256 * 1024
MAX_UNSENT_BYTES = 1024 * 1024
#: Largest number of connections per role, so that ranks that open too many do not lock the agent out.
MAX_CONNECTIONS = 256


class PeerRole(Enum):
    """The peer of a connection, by its socket; it decides which messages are accepted."""

    RANK = "rank"
    AGENT = "agent"


@dataclass(eq=False)
class Connection:
    socket: socket.socket
    role: PeerRole
    received: bytes = b""
    unsent: bytes = b""
    inbox: list[SocketMessage] = field(default_factory=list)
    is_open: bool = True
    #: Why the connection was closed, if the peer violated the protocol.
    fault: str = ""
    #: The peer's process, by the kernel; 0: unknown.
    pid: int = 0
    #: True for a rank with a training loop, which will act on a request to stop.
    handles_stop: bool = False
    #: True while a rank saves, and in an attempt that ends also after it.
    saves: bool = False

    def send(self, message: SocketMessage) -> None:
        """Queues a message and tries to send it at once; a peer that does not read is dropped."""
        self.unsent += json.dumps(message).encode() + b"\n"
        self.flush()
        if len(self.unsent) > MAX_UNSENT_BYTES:
            self.is_open = False

    def flush(self) -> None:
        try:
            while self.unsent and self.is_open:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.is_open = False

    def receive(self) -> None:
        """Read available messages into `inbox`. Closes the connection if a line is too long or not a JSON object."""
        try:
            chunk = self.socket.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.is_open = False
            return
        *lines, self.received = (self.received + chunk).split(b"\n")
        for line in lines:
            message = parse_object(line) if len(line) <= MAX_LINE_BYTES else None
            if message is not None:
                self.inbox.append(message)
            elif line:
                self._close("a line is no JSON object")
        if len(self.received) > MAX_LINE_BYTES:
            self._close(f"a line is longer than {MAX_LINE_BYTES} bytes")

    def _close(self, fault: str) -> None:
        self.is_open, self.fault = False, fault


class Channels:
    """Listens on one socket per role and keeps the connections."""

    def __init__(self, selector: selectors.BaseSelector, rank_path: str, agent_path: str) -> None:
        self._selector = selector
        self._listeners = {_listen(rank_path): PeerRole.RANK, _listen(agent_path): PeerRole.AGENT}
        for listener in self._listeners:
            selector.register(listener, selectors.EVENT_READ, listener)
        self.connections: list[Connection] = []

    def handle(self, ready: object) -> bool:
        """Reads a ready socket. Returns True if `ready` was a listener or a connection of this object."""
        if isinstance(ready, Connection):
            ready.receive()
            return True
        if isinstance(ready, socket.socket):
            self._accept(ready)
            return True
        return False

    def receive_all(self) -> None:
        """Reads the remaining content of all connections, before the end."""
        for connection in self.connections:
            before = -1
            while connection.is_open and len(connection.inbox) != before:
                before = len(connection.inbox)
                connection.receive()

    def of(self, role: PeerRole) -> list[Connection]:
        return [connection for connection in self.connections if connection.role is role and connection.is_open]

    def broadcast(self, role: PeerRole, message: SocketMessage) -> None:
        for connection in self.of(role):
            connection.send(message)

    def drop_closed(self) -> None:
        """Sends waiting bytes, and removes closed connections."""
        for connection in self.connections:
            connection.flush()
            if not connection.is_open:
                self._selector.unregister(connection.socket)
                connection.socket.close()
        self.connections = [connection for connection in self.connections if connection.is_open]

    def close(self) -> None:
        for connection in self.connections:
            connection.socket.close()
        for listener in self._listeners:
            os.unlink(listener.getsockname())
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        role = self._listeners[listener]
        if len(self.of(role)) >= MAX_CONNECTIONS:
            accepted.close()
            return
        accepted.setblocking(False)
        connection = Connection(accepted, role, pid=_peer(accepted))
        self.connections.append(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)


def _peer(connection: socket.socket) -> int:
    """Returns the process that connected, whatever namespace it is in."""
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(64)
    return listener
