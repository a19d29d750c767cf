"""The protocol between an agent and the supervisor of an attempt: a plan file, a journal, and two Unix sockets.

The agent writes `plan.json` into the attempt's folder before it starts the supervisor. Only the supervisor writes the
journal: JSON lines, each of which is durable before anything follows from it. Any later agent reads it, and ignores a
last line torn by a crash. The sockets carry JSON lines, bounded in both directions and driven by a selector, without
threads.

Messages of ranks are untrusted input. A rank is any program of any user. A line that is no JSON object ends its
connection; a field that is no finite number within its bounds is left out; a message without its required field is
ignored. Each such decision adds a note to the job's own log, because the job's owner can correct the script. Every
accepted message can be written as strict JSON and read back. Standard library only.
"""

import contextlib
import json
import os
import selectors
import socket
import stat
import struct
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

from workers.processes import ProcessName, boot_id, is_out_of_descriptors, reserve_room

SocketMessage = dict[str, Any]

#: Limit of all counts: what SQLite and every reader of our JSON can represent.
COUNT_MOST = 2**63 - 1
#: Limits of a speed, steps per second, and of a length, seconds: beyond them arithmetic itself overflows.
SPEED_LEAST, SPEED_MOST = 1e-12, 1e12
SECONDS_MOST = 1e9
#: Largest number of named values and facts in one message, and of characters in a name.
VALUES_MOST = 32
NAME_MOST = 200
#: Largest number of characters of a path, and of a note.
PATH_MOST = 4096
NOTE_MOST = 2000
#: Largest number of different notes in a job's log.
NOTES_TOLD_MOST = 20
_DIGEST_CHARACTERS = 64


def parse_object(line: bytes) -> SocketMessage | None:
    """Returns the JSON object of a line; None for anything else, however deep or long it is."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError, MemoryError):  # a number of too many digits and bad UTF-8 are ValueErrors
        return None
    return parsed if isinstance(parsed, dict) else None


@dataclass
class CheckedMessage:
    """The accepted part of a message, or None; the notes say what was left out, and why."""

    message: SocketMessage | None = None
    notes: list[str] = field(default_factory=list)


def check_rank_message(message: SocketMessage) -> CheckedMessage:
    """Checks a message of a rank. Unknown types are accepted silently, because a newer client may send them."""
    match message.get("type"):
        case "hello" | "saving" | "saved" | "finished" as kind:
            return CheckedMessage({"type": kind})
        case "progress":
            return _checked_progress(message)
        case "commit":
            return _checked_commit(message)
        case "note":
            text = _text(message.get("text"), NOTE_MOST, cut=True)
            return CheckedMessage(None if text is None else {"type": "note", "text": text})
    return CheckedMessage()


def _checked_progress(message: SocketMessage) -> CheckedMessage:
    checked = CheckedMessage()
    steps = finite_number(message.get("steps"))
    if steps is None or not 0 <= steps <= COUNT_MOST:
        checked.notes.append(f"progress ignored: steps {_why_not(message.get('steps'))}")
        return checked
    kept: SocketMessage = {"type": "progress", "steps": steps}
    for name in ("steps_per_s", "pace"):
        given = message.get(name)
        number = finite_number(given)
        if number is not None and SPEED_LEAST <= number <= SPEED_MOST:
            kept[name] = number
        elif given is not None:
            checked.notes.append(f"{name} ignored: it {_why_not(given)}")
    samples = message.get("samples", 0)
    if type(samples) is int and 0 <= samples <= COUNT_MOST:
        kept["samples"] = samples
    else:
        checked.notes.append("samples ignored: it is not a whole number from 0 to 2^63 - 1")
    for name in ("values", "first_values", "facts"):
        kept[name] = _named_numbers(name, message.get(name), checked.notes)
    checked.message = kept
    return checked


def _named_numbers(what: str, given: object, notes: list[str]) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        notes.append(f"{what} ignored: they are not named numbers")
        return {}
    kept: dict[str, float] = {}
    for name, value in given.items():
        number = finite_number(value)
        known_name = _text(name, NAME_MOST)
        if len(kept) == VALUES_MOST:
            notes.append(f"{what} cut off after {VALUES_MOST}")
            break
        if known_name is None:
            notes.append(f"a name in {what} ignored: it is no text of at most {NAME_MOST} characters")
        elif number is None:
            notes.append(f"{what}[{known_name!r}] ignored: it {_why_not(value)}")
        else:
            kept[known_name] = number
    return kept


def _checked_commit(message: SocketMessage) -> CheckedMessage:
    step, took_s = finite_number(message.get("step")), finite_number(message.get("took_s"))
    path, digest = _text(message.get("path"), PATH_MOST), _text(message.get("digest"), _DIGEST_CHARACTERS)
    why = ""
    if step is None or not 0 <= step <= COUNT_MOST:
        why = f"its step {_why_not(message.get('step'))}"
    elif path is None:
        why = f"its path is no text of at most {PATH_MOST} characters"
    elif digest is None or len(digest) != _DIGEST_CHARACTERS or not set(digest) <= set("0123456789abcdef"):
        why = "its digest is no SHA-256"
    if why:
        return CheckedMessage(None, [f"checkpoint does not count: {why}"])
    took_s = 0.0 if took_s is None else min(max(took_s, 0.0), SECONDS_MOST)
    layout = "replicated" if message.get("layout") == "replicated" else ""
    fields = {"step": step, "path": path, "digest": digest, "took_s": took_s, "layout": layout}
    return CheckedMessage({"type": "commit", **fields})


def finite_number(given: object) -> float | None:
    """Returns a finite number; None for text, booleans, NaN, infinities and numbers that no float can hold."""
    if type(given) not in (int, float):
        return None
    try:
        number = float(given)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _why_not(given: object) -> str:
    number = finite_number(given)
    if number is None:
        return "is missing" if given is None else "is not a finite number"
    return "is out of bounds"


def _text(given: object, most: int, *, cut: bool = False) -> str | None:
    """Returns the text; None if it is no text, too long (unless it may be cut), or not encodable in UTF-8."""
    if not isinstance(given, str) or (len(given) > most and not cut):
        return None
    try:
        given[:most].encode()
    except UnicodeEncodeError:
        return None
    return given[:most]


class NotesOfJob:
    """Selects the notes for a job's log: each text once, and a limited number of them."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def lines(self, notes: list[str]) -> bytes:
        """Returns the bytes to append to the log; empty for notes that it has already."""
        told = b""
        for note in notes:
            if note in self._told or len(self._told) > NOTES_TOLD_MOST:
                continue
            self._told.add(note)
            text = note if len(self._told) <= NOTES_TOLD_MOST else "further notes are left out"
            told += f"[walras] {text}\n".encode(errors="replace")
        return told


JournalEvent = dict[str, Any]

#: Bytes reserved on the disk for the journal of an attempt: about two hundred events.
JOURNAL_ROOM_BYTES = 64 * 1024
#: Bytes of a journal that are read at a time: more than a supervisor writes in an attempt.
JOURNAL_READ_BYTES = 4 * 1024 * 1024


class AttemptJournal:
    """Appends events and syncs each, because an attempt has few.

    Space for the first events is reserved at once, so that no end of an attempt is lost on a disk that fills up later.
    The folder is synced with the first event, so that the attempt's other files are there where its journal is.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._folder: Path | None = path.parent
        self._unwritten = b""
        self._must_sync = False
        reserve_room(self._file, JOURNAL_ROOM_BYTES)

    def append(self, event: JournalEvent, *, must_sync: bool = True) -> None:
        """Writes the event, or keeps it for `flush` if the disk is full: the attempt continues.

        `must_sync`: whether it still matters after a power failure, which ends the attempt.
        """
        self._unwritten += json.dumps(event, allow_nan=False).encode() + b"\n"
        self._must_sync = self._must_sync or must_sync
        self.flush()

    def flush(self) -> bool:
        """Returns True once everything is on the disk. A partially written line is completed later."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._file, self._unwritten) :]
            if self._must_sync:
                os.fsync(self._file)
                if self._folder is not None:
                    with contextlib.suppress(FileNotFoundError):  # it was deleted: nobody will read the journal
                        _sync_folder(self._folder)
                    self._folder = None
                self._must_sync = False
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

    Never blocks, whatever a rank put in its place. Raises OSError where no file descriptor is left.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if is_out_of_descriptors(error):
            raise
        return b""
    try:
        return os.pread(file, most, offset) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(file)


def write_durably(path: Path, value: Any) -> None:
    """Replaces a small JSON file atomically, readable only by its owner."""
    write_atomically(path, value, is_synced=True)
    _sync_folder(path.parent)


def write_atomically(path: Path, value: Any, *, is_synced: bool = False) -> None:
    """As `write_durably`, without the folder; and without the content, for what is void after a power failure."""
    partial = path.with_name(path.name + ".partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "wb", buffering=0) as file:
        content = json.dumps(value).encode()
        while content:
            content = content[file.write(content) :]
        if is_synced:
            os.fsync(handle)
    os.rename(partial, path)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


PLAN_FILE = "plan.json"
#: The variables of the ranks; gone when the attempt is over.
ENVIRONMENT_FILE = "environment.json"
#: More than the kernel passes to a program.
_ENVIRONMENT_BYTES = 16 * 1024 * 1024
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
    """One attempt's part on this machine."""

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
    #: True: it runs in an image, whose processes a container's daemon may start.
    has_image: bool = True
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
    #: What the job is told in its log when it starts.
    notes: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> range:
        """Returns the global ranks of this machine; for a launcher the number of the machine."""
        return range(self.first_rank, self.first_rank + (1 if self.is_launcher else len(self.devices)))


def write_plan(folder: Path, plan: AttemptPlan) -> None:
    """Writes the plan, and apart from it the variables of the ranks, which hold the job's token and its secrets.

    The supervisor's journal syncs the folder.
    """
    write_atomically(folder / ENVIRONMENT_FILE, plan.env)
    write_atomically(folder / PLAN_FILE, vars(plan) | {"env": {}}, is_synced=True)


def read_plan(folder: Path) -> AttemptPlan:
    """Reads the plan; it has no variables once the attempt has ended. Raises OSError, ValueError, TypeError."""
    plan = json.loads((folder / PLAN_FILE).read_bytes())
    # An agent of the release before kept them in the plan.
    env = parse_object(read_ranks_file(folder / ENVIRONMENT_FILE, 0, _ENVIRONMENT_BYTES)) or plan["env"]
    return AttemptPlan(**plan | {"env": env})


def forget_environment(folder: Path) -> None:
    """Removes the variables of an attempt that is over, so that its secrets are gone from the machine."""
    for path in (folder / ENVIRONMENT_FILE, *folder.glob(f"{ENVIRONMENT_FILE}.*")):
        path.unlink(missing_ok=True)


def forget_plan(folder: Path) -> None:
    """Removes the plan and the variables of an attempt that is refused, so that nothing starts by them any more."""
    (folder / PLAN_FILE).unlink(missing_ok=True)
    forget_environment(folder)


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
            self.unsent = b""  # it is gone, but what it said last is still to be read: a commit, a stop

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
