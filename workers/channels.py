"""Unix sockets of a supervisor: JSON lines, bounded in every direction. No threads; driven by a selector."""

import json
import os
import selectors
import socket
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

MAX_LINE_BYTES = 256 * 1024
MAX_UNSENT_BYTES = 1024 * 1024
MAX_CONNECTIONS = 256

SocketMessage = dict[str, Any]


class Role(Enum):
    """Which socket a connection came in by decides what it may say."""

    RANK = "rank"
    AGENT = "agent"


@dataclass(eq=False)
class Connection:
    socket: socket.socket
    role: Role
    received: bytes = b""
    unsent: bytes = b""
    inbox: list[SocketMessage] = field(default_factory=list)
    is_open: bool = True
    #: A rank that has a loop going, which will act upon a request to stop.
    is_attentive: bool = False

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
        """Read what is there into `inbox`. A line that is no JSON object, or too long, ends the connection."""
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
        self._listeners = {_listen(rank_path): Role.RANK, _listen(agent_path): Role.AGENT}
        for listener in self._listeners:
            selector.register(listener, selectors.EVENT_READ, listener)
        self.connections: list[Connection] = []

    def handle(self, ready: object) -> bool:
        """Take in what a ready socket has; true where the selector's key was one of ours."""
        if isinstance(ready, Connection):
            ready.receive()
            return True
        if isinstance(ready, socket.socket):
            self._accept(ready)
            return True
        return False

    def poll_all(self) -> None:
        """Take in what every connection still has, before the end."""
        for connection in self.connections:
            before = -1
            while connection.is_open and len(connection.inbox) != before:
                before = len(connection.inbox)
                connection.receive()

    def of(self, role: Role) -> list[Connection]:
        return [connection for connection in self.connections if connection.role is role and connection.is_open]

    def tell(self, role: Role, message: SocketMessage) -> None:
        for connection in self.of(role):
            connection.send(message)

    def tidy(self) -> None:
        """Flush what waits and forget what is closed."""
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
