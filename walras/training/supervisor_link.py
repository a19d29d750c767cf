"""What the scheduler tells a training process: environment variables at its start, then JSON lines over a socket.

Every variable may be absent; then the process runs by itself, as on a laptop. Losing the socket never breaks training.

Sent: hello, progress, saving, saved, commit, note, finished (the loop is over: from now on a stop is a signal).
Received: stop (checkpoint now), save (the same, and go on), checkpoint_every (from now on this often), lease (its end,
as CLOCK_BOOTTIME, which every process of this machine shares), recorded (the server has a checkpoint: older ones may
go).
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Repeated from `walras.contract`, which is not put on a job's path, so that an installed Walras of another version in
#: the job's environment finds its own.
EXIT_CHECKPOINTED = 85
#: Exit code: the checkpoint to resume from is torn, and there is no earlier one here.
EXIT_CHECKPOINT_LOST = 86
GRADIENT_NOISE_VALUE = "gradient_noise"
BANDWIDTH_VALUE = "network_bytes_per_s"
DATA_WAIT_VALUE = "data_wait"
#: 1 where the script has a checkpoint open: it can save its work when it is asked to stop.
SAVES_VALUE = "saves_checkpoints"
#: Its value where the script states how often it saves, and leaves that to nobody.
SAVES_AS_STATED = 2.0
#: Samples of an update, and steps at the first batch that it is worth, of a job that chooses its batch.
CHOSEN_BATCH_VALUE = "chosen_batch"
UPDATE_GAIN_VALUE = "update_gain"


@dataclass(frozen=True)
class ControlRequest:
    """What one rank requests, and after an exchange what all ranks do."""

    stop: bool = False
    save: bool = False
    #: Continue with batches of so many samples over all ranks; 0: unchanged. Only rank 0 sets it.
    samples: int = 0
    #: Gradient noise by which updates count from now on, in thousandths of a sample; 0: unchanged. Only rank 0 sets it.
    noise: int = 0


@dataclass(frozen=True)
class CheckpointReference:
    """A complete checkpoint, as the scheduler records it."""

    path: str
    #: SHA-256 over the names, sizes and hashes of its files.
    digest: str
    step: int


@dataclass(frozen=True)
class JobEnvironment:
    #: Unix socket of the supervisor; empty without a scheduler.
    socket: str = ""
    #: Where the job's attempts keep their checkpoints; empty without a scheduler.
    checkpoint_dir: str = ""
    #: The checkpoint to resume from, and no other.
    resume: CheckpointReference | None = None
    attempt: int = 0
    #: The number of steps that the job is to do in all.
    steps: int | None = None
    #: Steps per second of the gang on the accelerator that is emulated here.
    pace: float | None = None
    rank: int = 0
    world_size: int = 1
    #: Machines over which the gang is spread, and its ranks on each of them.
    machines: int = 1
    ranks_per_machine: int = 1
    node_rank: int = 0
    #: Whether `checkpoint_dir` is a folder of this machine alone.
    saves_apart: bool = False
    #: Samples of one step over all ranks, as the job file states them.
    batch: int | None = None
    #: The largest batch of a job that tunes its batch itself, and the most samples that a rank has room for.
    largest_batch: int | None = None
    largest_per_rank: int | None = None
    #: Seconds of work before each checkpoint, where the script leaves it to the scheduler; None: it has not stated one.
    checkpoint_every_s: float | None = None
    #: Complete checkpoints to keep, where the script states none; None: the job file does not say.
    checkpoint_keep: int | None = None

    @property
    def is_scheduled(self) -> bool:
        return bool(self.socket)


def read_job_environment(environ: Mapping[str, str]) -> JobEnvironment:
    """Read the variables; a malformed one is an error that names it (they are written by the supervisor)."""
    resume = environ.get("WALRAS_RESUME", "")
    return JobEnvironment(
        socket=environ.get("WALRAS_SOCKET", ""),
        checkpoint_dir=environ.get("WALRAS_CHECKPOINT_DIR", ""),
        resume=_parse_reference(resume) if resume else None,
        attempt=int(_number(environ, "WALRAS_ATTEMPT") or 0),
        steps=_whole(_number(environ, "WALRAS_STEPS")),
        pace=_number(environ, "WALRAS_PACE"),
        # One process on each machine for all devices there: the machines are its ranks.
        rank=int(_number(environ, "RANK" if "RANK" in environ else "WALRAS_NODE_RANK") or 0),
        world_size=int(_number(environ, "WORLD_SIZE" if "WORLD_SIZE" in environ else "WALRAS_NUM_NODES") or 1),
        machines=int(_number(environ, "WALRAS_NUM_NODES") or 1),
        ranks_per_machine=int(_number(environ, "LOCAL_WORLD_SIZE") or 1),
        node_rank=int(_number(environ, "WALRAS_NODE_RANK") or 0),
        saves_apart=bool(environ.get("WALRAS_CHECKPOINT_STORE")),
        batch=_whole(_number(environ, "WALRAS_BATCH")),
        largest_batch=_whole(_number(environ, "WALRAS_BATCH_MAX")),
        largest_per_rank=_whole(_number(environ, "WALRAS_BATCH_PER_RANK")),
        checkpoint_every_s=_number(environ, "WALRAS_CHECKPOINT_EVERY"),
        checkpoint_keep=_whole(_number(environ, "WALRAS_CHECKPOINT_KEEP")),
    )


def whole_batch(whole: int, environ: Mapping[str, str] = os.environ) -> int:
    """Samples of a step over all ranks: those of the job file's `batch: {global: N}`, or else `whole`."""
    return read_job_environment(environ).batch or whole


def batch_per_rank(whole: int, environ: Mapping[str, str] = os.environ) -> int:
    """Samples that each rank has in a step of `whole` samples (the job file's `batch: {global: N}` comes first).

    However many ranks an elastic job has, a step is then the same step. Raises ValueError where it cannot be shared
    evenly.
    """
    settings, whole = read_job_environment(environ), whole_batch(whole, environ)
    each, rest = divmod(whole, settings.world_size)
    if rest or not each:
        raise ValueError(f"{settings.world_size} ranks cannot share a batch of {whole} evenly")
    return each


def _number(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name, "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _parse_reference(text: str) -> CheckpointReference:
    try:
        fields = json.loads(text)
        return CheckpointReference(path=str(fields["path"]), digest=str(fields["digest"]), step=int(fields["step"]))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"WALRAS_RESUME={text!r} is not a JSON object with path, digest and step") from None


#: The most bytes that wait for a supervisor that does not read. Beyond this, progress is dropped, but not commits.
MAX_BACKLOG_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024


class SupervisorLink:
    """The connection to the supervisor, opened at once if there is a path. Without a path every method does nothing."""

    def __init__(self, path: str, rank: int, pid: int) -> None:
        #: Set once the scheduler wants the attempt to save and end.
        self.stop_requested = False
        #: Set when a checkpoint is wanted soon; the code that saves unsets it.
        self.save_requested = False
        #: Work before each checkpoint, seconds, as the scheduler said last; None: as at the start.
        self.checkpoint_every_s: float | None = None
        #: CLOCK_BOOTTIME at which the lease ends; None before the first lease message.
        self.lease_until: float | None = None
        #: Digests of checkpoints that the server has recorded.
        self.recorded: set[str] = set()
        self._received = b""
        self._backlog = b""
        #: Threads take turns at the connection.
        self._turn = threading.RLock()
        self._socket = _connect(path) if path else None
        self.send({"type": "hello", "rank": rank, "pid": pid})

    @property
    def lease_has_ended(self) -> bool:
        """Whether a lease has ended without renewal: nothing that happens now counts any more."""
        return self.lease_until is not None and time.clock_gettime(time.CLOCK_BOOTTIME) >= self.lease_until

    def send(self, message: dict[str, Any], *, may_drop: bool = False) -> None:
        if self._socket is None or (may_drop and len(self._backlog) > MAX_BACKLOG_BYTES):
            return
        with self._turn:
            self._backlog += json.dumps(message).encode() + b"\n"
            self._flush()

    def poll(self) -> None:
        """Handle the messages that have arrived; never waits."""
        with self._turn:
            self._poll()

    def _poll(self) -> None:
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
            elif _wait_for([self._socket], select.POLLIN, left):
                self.poll()

    def wait_beside(self, other: int) -> bool:
        """Waits until a message or something from the other file has come. Returns False without a connection."""
        if self._socket is None:
            return False
        _wait_for([self._socket, other], select.POLLIN)
        return True

    def drain(self, seconds: float) -> None:
        """Wait at most this long until the supervisor has read what is still to be sent."""
        until = time.monotonic() + seconds
        while self._backlog and self._socket is not None and time.monotonic() < until:
            _wait_for([self._socket], select.POLLOUT, 0.05)
            self._flush()

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind = message["type"]
            if kind == "stop":
                self.stop_requested = True
            elif kind == "save":
                self.save_requested = True
            elif kind == "checkpoint_every":
                self.checkpoint_every_s = float(message["every_s"])
            elif kind == "lease":
                self.lease_until = float(message["until"])
            elif kind == "recorded":
                self.recorded.add(str(message["digest"]))
        except (ValueError, KeyError, TypeError):
            return  # The supervisor has another version: unknown messages are ignored.

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
        """Close the connection: the supervisor sends signals from now on."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._backlog = b""


def _wait_for(files: list[Any], event: int, seconds: float | None = None) -> bool:
    """Waits until one of the files is ready; returns False if none is in time. `select` knows no number above 1023."""
    poller = select.poll()
    for file in files:
        poller.register(file, event)
    return bool(poller.poll(None if seconds is None else 1000.0 * seconds))


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
