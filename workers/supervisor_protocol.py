"""How an agent and the supervisor of an attempt talk: a plan file, a journal, and two Unix sockets.

The agent writes `plan.json` into the attempt's folder before it starts the supervisor. The supervisor alone writes the
journal, JSON lines of which each is durable before anything follows from it; any agent that comes by reads it, and
ignores a last line torn by a crash. The sockets carry JSON lines, bounded in every direction and driven by a selector,
without threads. Standard library only.
"""

import dataclasses
import json
import os
import selectors
import socket
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

JournalEvent = dict[str, Any]


class AttemptJournal:
    """Appends events, synced one by one: an attempt has few."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, event: JournalEvent) -> None:
        os.write(self._file, json.dumps(event).encode() + b"\n")
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_attempt_journal(path: Path, offset: int = 0) -> tuple[list[JournalEvent], int]:
    """The events from `offset` on, and the offset after them."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return [], offset
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole)


def write_durably(path: Path, value: Any) -> None:
    """Replace a small JSON file in one step, readable by its owner only."""
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


@dataclass(frozen=True)
class AttemptPlan:
    """One attempt's part on this machine. Holds the job's token: the file is readable by its owner only."""

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
    #: The lease granted with the start: its length, and its end on the boot-time clock.
    lease_s: float
    lease_until: float
    grace_s: float
    checkpoint_dir: str
    #: Marks every process of the attempt, through its environment.
    cookie: str
    rank_socket: str
    control_socket: str
    log_cap_bytes: int
    #: The incarnation of the cluster that granted the attempt; empty: none was named.
    incarnation: str = ""

    @property
    def ranks(self) -> range:
        """The global ranks of this machine."""
        return range(self.first_rank, self.first_rank + len(self.devices))


def write_plan(folder: Path, plan: AttemptPlan) -> None:
    write_durably(folder / PLAN_FILE, dataclasses.asdict(plan))


def read_plan(folder: Path) -> AttemptPlan:
    return AttemptPlan(**json.loads((folder / PLAN_FILE).read_bytes()))


def rank_log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


MAX_LINE_BYTES = 256 * 1024
MAX_UNSENT_BYTES = 1024 * 1024
MAX_CONNECTIONS = 256

SocketMessage = dict[str, Any]


class PeerRole(Enum):
    """The peer of a connection, by the socket it connected to; it decides which messages are accepted."""

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
    #: A rank that has a loop going, which will act upon a request to stop.
    handles_stop: bool = False

    def send(self, message: SocketMessage) -> None:
        """Queue and try at once; a peer that does not read is dropped."""
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
        try:
            messages = [json.loads(line) for line in lines if line]
        except ValueError:
            messages = []
            self.is_open = False
        if len(self.received) > MAX_LINE_BYTES or not all(isinstance(message, dict) for message in messages):
            self.is_open = False
            return
        self.inbox += messages


class Channels:
    """Listens on one socket per role and keeps the connections."""

    def __init__(self, selector: selectors.BaseSelector, rank_path: str, agent_path: str) -> None:
        self._selector = selector
        self._listeners = {_listen(rank_path): PeerRole.RANK, _listen(agent_path): PeerRole.AGENT}
        for listener in self._listeners:
            selector.register(listener, selectors.EVENT_READ, listener)
        self.connections: list[Connection] = []

    def handle(self, ready: object) -> bool:
        """Read a ready socket. Returns True if `ready` was a listener or a connection of ours."""
        if isinstance(ready, Connection):
            ready.receive()
            return True
        if isinstance(ready, socket.socket):
            self._accept(ready)
            return True
        return False

    def receive_all(self) -> None:
        """Read everything that the connections still have, before the end."""
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
        """Send waiting bytes, and remove closed connections."""
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
        if len(self.connections) >= MAX_CONNECTIONS:
            accepted.close()
            return
        accepted.setblocking(False)
        connection = Connection(accepted, self._listeners[listener])
        self.connections.append(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(64)
    return listener
