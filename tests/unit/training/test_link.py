"""The line to the supervisor."""

import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from walras.training.supervisor_link import SupervisorLink


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(Path(folder, "s")))
        server.listen()
        yield server


def test_losing_the_supervisor_never_breaks_training(listener: socket.socket) -> None:
    """Every call is harmless before, while and after the other end goes away."""
    link = SupervisorLink(listener.getsockname(), 0, os.getpid())
    accepted, _ = listener.accept()
    accepted.close()
    for _ in range(3):
        link.send({"type": "progress"})
        link.poll()
    link.wait(0.001)
    link.drain(0.001)
    assert not link.stop_requested


def test_no_supervisor_at_all_is_as_good() -> None:
    """A path that is not there is a process without a scheduler."""
    link = SupervisorLink("/no/such/socket", 0, os.getpid())
    link.send({"type": "progress"})
    link.poll()


def test_messages_are_understood_however_they_are_cut(listener: socket.socket) -> None:
    """Lines arrive in pieces; unknown and broken ones are left alone."""
    link = SupervisorLink(listener.getsockname(), 3, os.getpid())
    accepted, _ = listener.accept()
    hello = json.loads(accepted.recv(4096))
    assert (hello["type"], hello["rank"]) == ("hello", 3)
    text = b'not json\n{"type": "future"}\n{"type": "lease", "until": 1.5}\n{"type": "stop", "grace_s": 3}\n'
    for piece in (text[:13], text[13:40], text[40:]):
        accepted.sendall(piece)
        link.poll()
    assert link.stop_requested
    assert link.lease_until == 1.5
    assert link.lease_has_ended
    accepted.close()
    link.close()


def test_a_stop_ends_a_wait(listener: socket.socket) -> None:
    """A paced loop does not sleep through the request to end."""
    link = SupervisorLink(listener.getsockname(), 0, os.getpid())
    accepted, _ = listener.accept()
    accepted.sendall(b'{"type": "stop"}\n')
    began_at = time.monotonic()
    link.wait(120.0)
    assert time.monotonic() - began_at < 60.0
    accepted.close()
    link.close()


def test_a_supervisor_that_does_not_read_costs_progress_not_commits(listener: socket.socket) -> None:
    """What waits is bounded, and a commit is never what is dropped."""
    link = SupervisorLink(listener.getsockname(), 0, os.getpid())
    accepted, _ = listener.accept()
    for _ in range(3000):
        link.send({"type": "progress", "padding": "x" * 1000}, may_drop=True)
    link.send({"type": "commit", "step": 7})
    received = b""
    accepted.settimeout(1.0)
    while b'"commit"' not in received:
        received += accepted.recv(1 << 20)
        link.poll()
    accepted.close()
    link.close()
