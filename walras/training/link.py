"""The line to the supervisor: JSON lines over a Unix socket. Losing it never breaks training.

Sent: hello, progress, commit, note, finished (the loop is over: from now on a stop is a signal).
Received: stop (checkpoint now), save (the same, and go on), lease (its end, as CLOCK_BOOTTIME, which every process of
this machine shares), recorded (the server has a checkpoint: older ones may go).
From whoever moves a job while it trains also: park (checkpoint, and wait in memory), batch (another one from now on).
Both sides say who waits: standby, answered by go (from this checkpoint, in this attempt, as far as that).
"""

from __future__ import annotations

import json
import select
import socket
import time
from dataclasses import dataclass
from typing import Any

from walras.training.gang import Wish
from walras.training.manifest import Reference

#: What waits for a supervisor that does not read. Progress beyond it is dropped, commits are not.
MAX_BACKLOG_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Go:
    """From here on it is this process that trains the job."""

    attempt: int
    #: The checkpoint to go on from; None: from the beginning.
    resume: Reference | None
    #: Steps the job is to do in all.
    steps: int | None
    #: Samples of a step over all ranks; None: as the process was started with.
    samples: int | None


class Link:
    """One connection, made at once if there is a path. Every method is harmless when there is none."""

    def __init__(self, path: str, rank: int, pid: int) -> None:
        #: Set once the scheduler wants the attempt to save and end.
        self.stop_requested = False
        #: Set when a checkpoint is wanted soon; whoever saves unsets it.
        self.save_requested = False
        #: Save and wait in memory, rather than end.
        self.park_requested = False
        #: Samples of a step from now on, and the steps in all (0: as it was); whoever takes it unsets it.
        self.batch_requested: tuple[int, int] | None = None
        self._go: Go | None = None
        #: CLOCK_BOOTTIME at which the lease ends; None until told.
        self.lease_until: float | None = None
        #: Digests of checkpoints that the server has recorded.
        self.recorded: set[str] = set()
        self._received = b""
        self._backlog = b""
        self._socket = _connect(path) if path else None
        self.send({"type": "hello", "rank": rank, "pid": pid})

    @property
    def lease_has_ended(self) -> bool:
        """True after a lease that was not renewed: nothing that happens now counts any more."""
        return self.lease_until is not None and time.clock_gettime(time.CLOCK_BOOTTIME) >= self.lease_until

    def wish(self, *, is_due: bool, is_first: bool, can_move: bool) -> Wish:
        """What is asked of this rank. `is_due`: to save now; `can_move`: it can wait in memory, or change batch."""
        samples, limit = self.batch_requested if self.batch_requested and can_move and is_first else (0, 0)
        stop = self.stop_requested or (self.park_requested and not can_move)
        return Wish(stop, is_due and is_first, self.park_requested and can_move, samples, limit)

    def send(self, message: dict[str, Any], *, may_drop: bool = False) -> None:
        if self._socket is None or (may_drop and len(self._backlog) > MAX_BACKLOG_BYTES):
            return
        self._backlog += json.dumps(message).encode() + b"\n"
        self._flush()

    def poll(self) -> None:
        """Take in what has arrived; never waits."""
        while self._socket is not None:
            try:
                chunk = self._socket.recv(65536)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                chunk = b""
            if not chunk:
                self.close()
                break
            self._received += chunk
        *lines, self._received = self._received.split(b"\n")
        if len(self._received) > _MAX_LINE_BYTES:
            self.close()
        for line in lines:
            self._take(line)
        if self._backlog:
            self._flush()

    def wait(self, seconds: float) -> None:
        """Sleep, but wake to take in what arrives; return early once a stop is requested."""
        until = time.monotonic() + seconds
        while not self.stop_requested and (left := until - time.monotonic()) > 0:
            if self._socket is None:
                time.sleep(left)
            elif select.select([self._socket], [], [], left)[0]:
                self.poll()

    def stand_by(self) -> Go | None:
        """Say that this process waits, and wait; None: it is to end."""
        self.park_requested, self._go = False, None
        self.send({"type": "standby"})
        while self._go is None and not self.stop_requested and self._socket is not None:
            select.select([self._socket], [], [], 60.0)
            self.poll()
        return None if self.stop_requested else self._go

    def drain(self, seconds: float) -> None:
        """Give a slow supervisor this long to take what is still to be sent."""
        until = time.monotonic() + seconds
        while self._backlog and self._socket is not None and time.monotonic() < until:
            select.select([], [self._socket], [], 0.05)
            self._flush()

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind = message["type"]
            if kind == "stop":
                self.stop_requested = True
            elif kind == "save":
                self.save_requested = True
            elif kind == "lease":
                self.lease_until = float(message["until"])
            elif kind == "recorded":
                self.recorded.add(str(message["digest"]))
            elif kind == "park":
                self.park_requested = True
            elif kind == "batch":
                self.batch_requested = int(message["samples"]), int(message["steps"] or 0)
            elif kind == "go":
                self._go = _go(message)
        except (ValueError, KeyError, TypeError):
            return  # a supervisor of another version: what is not understood is left alone

    def _flush(self) -> None:
        if self._socket is None:
            return
        try:
            self._backlog = self._backlog[self._socket.send(self._backlog) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()

    def close(self) -> None:
        """Hang up: the supervisor sends signals from now on."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._backlog = b""


def _go(message: dict[str, Any]) -> Go:
    resume = message["resume"]
    reference = None if resume is None else Reference(str(resume["path"]), str(resume["digest"]), int(resume["step"]))
    steps, samples = message["steps"], message["samples"]
    return Go(
        int(message["attempt"]),
        reference,
        None if steps is None else int(steps),
        None if samples is None else int(samples),
    )


def _connect(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(5.0)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    connection.setblocking(False)
    return connection
