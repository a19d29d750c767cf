"""Starts the processes of a job with roles on one machine (`start_roles`).

The machines meet at MASTER_ADDR. The first tells all where every process may listen; that is what processes read in
`WALRAS_PEERS_ROLE`. The first role leads the job: once its processes have succeeded, on whichever machines, the others
are ended, and only they are told of checkpoints and the scheduler. A process that fails ends the job, unless its role
may be started again alone. When the attempt is stopped, the supervisor of the machine asks or signals each process
itself; here nothing is started, ended or called a failure any more. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from walras.training.supervisor_link import EXIT_CHECKPOINTED

#: Seconds between two looks at what ended, and two tries to reach another machine or process.
_LOOK_S = 0.1
#: Seconds from SIGTERM to SIGKILL of the other processes once one has failed, or the leading role has ended.
_GRACE_S = 5.0
#: Seconds before a process is started again alone: doubled each time, up to the second number.
_AGAIN_S, _AGAIN_MOST_S = 1.0, 60.0
#: Seconds for the server to stop a machine that has lost the first one, before it asks to be started again.
_ORPHAN_S = 10.0
_LINE_BYTES = 64 * 1024
_MEETING_BYTES = 1 << 20
#: What machines tell each other after the meeting (`Meeting.tell`), and its most bytes.
_MARK, _LONGEST_MARK = re.compile(rb"[+!]|[a-z][a-z0-9]{0,31} [0-9]{1,3};"), 40
#: What only the leading role is told: the scheduler counts one role's steps and checkpoints.
_OF_LEADING = ("WALRAS_SOCKET", "WALRAS_CHECKPOINT_DIR", "WALRAS_CHECKPOINT_STORE", "WALRAS_RESUME", "WALRAS_STEPS")


@dataclass
class RoleProcess:
    """A process of a role on this machine."""

    role: str
    index: int
    #: Its place among the machine's devices of this job, and how many it has.
    first_device: int
    devices: int
    #: Sockets that keep its two ports until it starts: for its own use, and for torch's where it is its role's first.
    ports: list[socket.socket] = field(default_factory=list)
    child: subprocess.Popen[bytes] | None = None
    ended: int | None = None
    restarts: int = 0
    #: When it may start, CLOCK_MONOTONIC.
    start_at: float = 0.0
    unfinished_line: bytes = b""

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


def role_environment(
    environ: Mapping[str, str], own: RoleProcess, counts: Mapping[str, int], peers: Mapping[str, list[list[Any]]]
) -> dict[str, str]:
    """Returns the variables of a process.

    Args:
        environ: of this machine's command.
        own: the process.
        counts: processes by role, the leading one first.
        peers: host, port and port for torch of each process, by role.
    """
    host, _, port = peers[own.role][0]
    held = [each for each in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    visible = ",".join(held[own.first_device : own.first_device + own.devices])
    env = {name: value for name, value in environ.items() if name != "WALRAS_ROLES"}
    if own.role != next(iter(counts)):
        env = {name: value for name, value in env.items() if name not in _OF_LEADING}
    env |= {
        "WALRAS_ROLE": own.role,
        "WALRAS_ROLE_INDEX": str(own.index),
        # To torch a role is a world of its own, in which each process sees its devices alone.
        "RANK": str(own.index),
        "WORLD_SIZE": str(counts[own.role]),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "CUDA_VISIBLE_DEVICES": visible,
        "WALRAS_NUM_NODES": "1",
        "WALRAS_WORLD_SIZE": str(counts[own.role]),
        "WALRAS_GPUS_PER_NODE": str(own.devices),
        "PET_NNODES": str(counts[own.role]),
        "PET_NODE_RANK": str(own.index),
        "PET_NPROC_PER_NODE": str(max(own.devices, 1)),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(port),
        "PET_RDZV_ENDPOINT": f"{host}:{port}",
    }
    return env | {f"WALRAS_PEERS_{role.upper()}": ",".join(map(_address, places)) for role, places in peers.items()}


def _address(place: list[Any]) -> str:
    host, port = str(place[0]), place[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Meeting:
    """The connections between the machines: all of them to the first, by which each learns where the others listen."""

    def __init__(self, environ: Mapping[str, str], counts: Mapping[str, int]) -> None:
        self._rank, self._machines = int(environ["WALRAS_NODE_RANK"]), int(environ["WALRAS_NUM_NODES"])
        self._place = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        self._key = hashlib.sha256(f"roles {environ.get('WALRAS_TOKEN', '')}".encode()).hexdigest()
        addresses = environ.get("WALRAS_NODE_ADDRESSES", "").split(",")
        self._own_host = addresses[self._rank] if len(addresses) == self._machines > 1 else ""
        #: With what came behind the line of the meeting, and is no whole mark yet.
        self._connections: dict[socket.socket, bytes] = {}
        #: Whether the first machine said that the leading role has ended, and since when it is gone.
        self.is_done = False
        self.lost_at: float | None = None
        self._names = {f"{role} {index}" for role, count in counts.items() for index in range(count)}
        #: Processes, on whichever machine, that others start after and that have succeeded.
        self.over: set[str] = set()

    def exchange(self, ports: Mapping[str, list[list[int]]]) -> dict[str, list[list[Any]]]:
        """Returns host, port and port for torch of every process by role, in order of index. Waits for all machines.

        `ports`: index and the two ports of each process here.
        """
        if self._machines == 1:
            told = [self._told(ports, "127.0.0.1")]
        elif self._rank == 0:
            told = [self._told(ports, self._own_host or self._place[0]), *self._receive_all()]
        else:
            return self._ask(ports)
        peers: dict[str, list[list[Any]]] = {}
        for role, _index, *place in sorted(each for machine in told for each in machine):
            peers.setdefault(role, []).append(place)
        for connection in self._connections:
            connection.sendall(json.dumps(peers).encode() + b"\n")
            connection.setblocking(False)
        return peers

    def _told(self, ports: Mapping[str, list[list[int]]], host: str) -> list[list[Any]]:
        return [[role, index, host, port, other] for role, here in ports.items() for index, port, other in here]

    def _receive_all(self) -> list[list[list[Any]]]:
        """Returns what each other machine told, once all have. Connections without the attempt's key are closed."""
        found: dict[int, list[list[Any]]] = {}
        with socket.create_server(("", self._place[1])) as listening:
            while len(found) < self._machines - 1:
                connection, _ = listening.accept()
                try:
                    line, rest = _read_line(connection, time.monotonic() + _GRACE_S)
                    message = json.loads(line)
                    if message["key"] != self._key:
                        raise ValueError("not of this attempt")
                    found[int(message["rank"])] = message["processes"]
                    self._connections[connection] = rest
                except (OSError, ValueError, KeyError, TypeError, RecursionError):
                    connection.close()
        return list(found.values())

    def _ask(self, ports: Mapping[str, list[list[int]]]) -> dict[str, list[list[Any]]]:
        while True:
            try:
                connection = socket.create_connection(self._place, timeout=_GRACE_S)
                break
            except OSError:  # the first machine may still be preparing
                time.sleep(_LOOK_S)
        processes = self._told(ports, self._own_host or connection.getsockname()[0])
        message = {"key": self._key, "rank": self._rank, "processes": processes}
        try:
            connection.sendall(json.dumps(message).encode() + b"\n")
            line, rest = _read_line(connection)
            peers: dict[str, list[list[Any]]] = json.loads(line)
        except (OSError, ValueError):
            _say("the first machine is gone")
            sys.exit(EXIT_CHECKPOINTED)
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connections[connection] = rest
        return peers

    def poll(self) -> int:
        """Takes in what has arrived; returns how many processes of the leading role are over elsewhere."""
        gone = 0
        for connection, rest in list(self._connections.items()):
            is_closed = False
            try:
                chunk = connection.recv(4096)
                is_closed = not chunk
            except BlockingIOError:
                chunk = b""
            except OSError:
                chunk, is_closed = b"", True
            gone += self._take_marks(connection, rest + chunk)
            if is_closed:
                del self._connections[connection]
                connection.close()
                if self._rank and not self.is_done:
                    self.lost_at = time.monotonic()
        return gone

    def _take_marks(self, connection: socket.socket, come: bytes) -> int:
        """Takes in marks, and keeps the beginning of one; returns how often it was told `+`."""
        gone = end = 0
        for mark in _MARK.finditer(come):
            end = mark.end()
            gone += mark[0] == b"+"
            self.is_done = self.is_done or mark[0] == b"!"
            if mark[0].endswith(b";"):
                self.note_over(mark[0][:-1].decode())
        self._connections[connection] = come[end:][-_LONGEST_MARK:]
        return gone

    def note_over(self, name: str) -> None:
        """Takes note of a process that has succeeded, and tells the other machines, through the first one."""
        if name in self._names - self.over:
            self.over.add(name)
            self.tell(f"{name};".encode())

    def tell(self, mark: bytes) -> None:
        """Sends `+`, one process of the leading role is over, to the first machine, `!`, all are, to the others, or
        `NAME;`, a process has succeeded that others start after.
        """
        for connection in self._connections:
            try:
                connection.send(mark)
            except OSError:
                continue


def _read_line(connection: socket.socket, until: float | None = None) -> tuple[bytes, bytes]:
    """Returns a line, and what came behind it. Raises ValueError for one that is too long or ends early, OSError for
    one that has not come by `until` (CLOCK_MONOTONIC; None: waits).
    """
    come = b""
    while b"\n" not in come:
        connection.settimeout(None if until is None else max(until - time.monotonic(), _LOOK_S))
        chunk = connection.recv(65536)
        come += chunk
        if not chunk or len(come) > _MEETING_BYTES:
            raise ValueError("no line")
    line, _, rest = come.partition(b"\n")
    return line, rest


class RoleProcesses:
    """The processes of one machine, from their starts to the end of the last."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        told = json.loads(environ["WALRAS_ROLES"])
        self._roles: dict[str, dict[str, Any]] = told["roles"]
        self._counts = {name: int(role["count"]) for name, role in self._roles.items()}
        self._leading = next(iter(self._roles))
        self._all = [
            RoleProcess(role, index, first, devices, [_held_port(), _held_port()])
            for role, index, first, devices in told["here"]
        ]
        self._meeting = Meeting(environ, self._counts)
        self._is_first = environ["WALRAS_NODE_RANK"] == "0"
        self._selector = selectors.DefaultSelector()
        self._peers: dict[str, list[list[Any]]] = {}
        #: Processes of the leading role that have succeeded, or ended in a stop: on the first machine all, elsewhere
        #: those here.
        self._gone = 0
        self._is_stopping = self._is_ending = self._is_over = False
        #: What the supervisor says; None: nobody is there. And the end of what it has said.
        self._supervisor: socket.socket | None = None
        self._heard = b""
        self._kill_at = float("inf")
        self._code = 0

    def run(self) -> int:
        """Returns the exit code of this machine: negative, the signal that ended what failed first."""
        self._watch_for_stop()
        ports: dict[str, list[list[int]]] = {}
        for each in self._all:
            own, other = (held.getsockname()[1] for held in each.ports)
            ports.setdefault(each.role, []).append([each.index, own, other])
        self._peers = self._meeting.exchange(ports)
        while True:
            for key, _ in self._selector.select(_LOOK_S):
                self._read(key)
            self._look(time.monotonic())
            if all(each.child is None for each in self._all) and (self._is_ending or self._is_stopping):
                if self._supervisor is not None:
                    self._supervisor.close()
                return self._code if self._is_ending else self._code_of_stop()

    # ------------------------------------------------------------------------------------------- starting

    def _look(self, now: float) -> None:
        self._gone += self._meeting.poll()
        for each in self._all:
            if each.child is not None and each.child.poll() is not None:
                self._take_end(each, now)
        if not self._is_over and (
            self._meeting.is_done or (self._is_first and self._gone == self._counts[self._leading])
        ):
            self._is_over = True
            self._meeting.tell(b"!" if self._is_first else b"")
            if self._is_stopping:
                self._signal_others(signal.SIGKILL)  # they were asked with the leading role
            else:
                self._end_others(0, now)
        if self._meeting.lost_at is not None and now >= self._meeting.lost_at + _ORPHAN_S and not self._is_stopping:
            _say("the first machine is gone")
            self._end_others(EXIT_CHECKPOINTED, now)
        if now >= self._kill_at:
            self._signal_others(signal.SIGKILL)
        if not (self._is_ending or self._is_stopping):
            for each in self._all:
                if each.child is None and each.ended is None and now >= each.start_at and self._may_start(each):
                    self._start(each, now)

    def _may_start(self, own: RoleProcess) -> bool:
        """Returns whether every process that has to be up before accepts connections, or has succeeded."""
        before = [
            (f"{role} {index}", place)
            for role in self._roles[own.role]["after"]
            for index, place in enumerate(self._peers.get(role, []))
        ]
        return own.restarts > 0 or all(name in self._meeting.over or _accepts(place) for name, place in before)

    def _start(self, own: RoleProcess, now: float) -> None:
        for held in own.ports:
            held.close()
        env = role_environment(self._environ, own, self._counts, self._peers)
        try:
            own.child = subprocess.Popen(
                self._roles[own.role]["argv"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            _say(f"cannot start {own.name}: {error}")
            self._fail(own, 127 if isinstance(error, FileNotFoundError) else 126, now)
            return
        assert own.child.stdout is not None
        os.set_blocking(own.child.stdout.fileno(), False)
        self._selector.register(own.child.stdout, selectors.EVENT_READ, own)

    # ------------------------------------------------------------------------------------------- ends

    def _take_end(self, own: RoleProcess, now: float) -> None:
        assert own.child is not None
        assert own.child.stdout is not None
        code = own.child.returncode
        self._copy(own, own.child.stdout.fileno())
        if own.unfinished_line:
            self._write(own, own.unfinished_line)
            own.unfinished_line = b""
        self._selector.unregister(own.child.stdout)
        own.child.stdout.close()
        own.child = None
        self._hear()  # a stop is told before it is signalled, and may have come since the last look
        if code and not (self._is_ending or self._is_stopping):
            self._fail(own, code, now)
            return
        own.ended = code
        has_succeeded = not (code or self._is_ending or self._is_stopping)
        if has_succeeded and any(own.role in role["after"] for role in self._roles.values()):
            self._meeting.note_over(own.name)
        if own.role == self._leading and not self._is_ending:
            self._gone += 1
            self._meeting.tell(b"" if self._is_first else b"+")

    def _fail(self, own: RoleProcess, code: int, now: float) -> None:
        """Has the process started again if its role may be, else ends all with its code."""
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if own.restarts < self._roles[own.role]["restarts"]:
            own.start_at = now + min(_AGAIN_S * 2.0**own.restarts, _AGAIN_MOST_S)
            own.restarts += 1
            _say(f"{own.name} {how}; it is started again in {own.start_at - now:.0f} s")
            return
        own.ended = code
        _say(f"{own.name} {how}")
        self._end_others(code, now)

    def _end_others(self, code: int, now: float) -> None:
        if not self._is_ending:
            self._is_ending, self._code, self._kill_at = True, code, now + _GRACE_S
            self._signal_others(signal.SIGTERM)

    def _signal_others(self, number: int) -> None:
        """Signals the processes that are left; not those that save as others of their role did (exit code 85)."""
        for each in self._all:
            spared = self._code == EXIT_CHECKPOINTED and each.role == self._leading and number == signal.SIGTERM
            if each.child is not None and not spared:
                try:
                    os.killpg(each.child.pid, number)
                except ProcessLookupError:
                    continue

    def _code_of_stop(self) -> int:
        """Returns the exit code of a machine that was stopped: that of the leading role here. Without one it is 85, as
        nothing here was to be saved.
        """
        leading = [each.ended for each in self._all if each.role == self._leading and each.ended is not None]
        return next((code for code in leading if code), 0) if leading else EXIT_CHECKPOINTED

    # ------------------------------------------------------------------------------------------- output and the stop

    def _read(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, RoleProcess):
            self._copy(key.data, key.fd)
        else:
            self._hear()

    def _hear(self) -> None:
        if self._supervisor is None:
            return
        try:
            said = self._supervisor.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self._heard = (self._heard + said)[-_LINE_BYTES:]
        if b'"stop"' in self._heard:
            self._is_stopping = True
        if not said:
            self._selector.unregister(self._supervisor)
            self._supervisor.close()
            self._supervisor = None

    def _copy(self, own: RoleProcess, pipe: int) -> None:
        while True:
            try:
                chunk = os.read(pipe, 65536)
            except BlockingIOError:
                return
            *lines, own.unfinished_line = (own.unfinished_line + chunk).split(b"\n")
            for line in lines:
                self._write(own, line)
            if len(own.unfinished_line) > _LINE_BYTES:
                self._write(own, own.unfinished_line)
                own.unfinished_line = b""
            if not chunk:
                return

    def _write(self, own: RoleProcess, line: bytes) -> None:
        sys.stdout.buffer.write(f"[{own.name}] ".encode() + line + b"\n")
        sys.stdout.buffer.flush()

    def _watch_for_stop(self) -> None:
        """Listens to the supervisor without greeting it, as who greets is asked to save instead of being signalled."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.connect(self._environ.get("WALRAS_SOCKET", ""))
        except OSError:
            listening.close()
            return
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ, None)
        self._supervisor = listening


def _say(text: str) -> None:
    sys.stdout.buffer.write(f"[walras] {text}\n".encode())
    sys.stdout.buffer.flush()


def _held_port() -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def _accepts(place: list[Any]) -> bool:
    try:
        with socket.create_connection((place[0], place[1]), timeout=1.0):
            return True
    except OSError:
        return False


def start_roles() -> NoReturn:
    """Runs the machine's processes and ends as they did; the command of a job with roles calls it on each machine."""
    code = RoleProcesses(os.environ).run()
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)
