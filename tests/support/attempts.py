"""Starting a supervisor by hand, as an agent would, and looking at what it leaves."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import walras
from tests.support.waiting import wait_for
from workers import processes
from workers.supervisor_protocol import (
    JOURNAL_FILE,
    SUPERVISOR_FILE,
    AttemptPlan,
    rank_log,
    read_attempt_journal,
    write_plan,
)

#: A rank that ignores SIGTERM and prints `up`, and a double-forked process of it that does so in its own session.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(300)
"""

ROOT = Path(walras.__file__).parent.parent


def ask_status(control_socket: str) -> list[dict[str, Any]]:
    """What a supervisor answers to an agent that has just come."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5.0)
        connection.connect(control_socket)
        connection.sendall(b'{"type": "status"}\n')
        received = b""
        while b'"status"' not in received or not received.endswith(b"\n"):
            more = connection.recv(65536)
            assert more, f"the supervisor has ended, after {received!r}"
            received += more
        # The newest progress, if there is any, comes in the same breath.
        time.sleep(0.02)
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            received += connection.recv(65536)
    return [json.loads(line) for line in received.splitlines()]


class SupervisedAttempt:
    """One attempt below a real supervisor. `close` leaves no process behind, whatever the test did."""

    def __init__(self, folder: Path, argv: list[str], **changes: Any) -> None:
        self.folder = folder
        self._sockets = Path(tempfile.mkdtemp(prefix="walras-test-", dir="/tmp"))
        defaults: dict[str, Any] = {
            "job_id": 7, "attempt": 3, "argv": argv, "env": {}, "workdir": str(folder.parent), "devices": [0],
            "node_rank": 0, "first_rank": 0, "world_size": len(changes.get("devices", [0])), "master_port": 0,
            "lease_s": 60.0, "lease_until": processes.boottime() + changes.get("lease_s", 60.0), "grace_s": 5.0,
            "checkpoint_dir": str(folder.parent / "checkpoints"), "cookie": secrets.token_hex(8),
            "rank_socket": str(self._sockets / "r"), "control_socket": str(self._sockets / "a"),
            "log_cap_bytes": 1024 * 1024,
        }  # fmt: skip
        fields = defaults | changes
        fields["env"] = self._environment(fields) | fields["env"]
        self.plan = AttemptPlan(**fields)

    def _environment(self, fields: dict[str, Any]) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(fields["world_size"]),
            "WALRAS_ATTEMPT": str(fields["attempt"]), "WALRAS_SOCKET": fields["rank_socket"],
            "WALRAS_CHECKPOINT_DIR": fields["checkpoint_dir"], processes.COOKIE_VARIABLE: fields["cookie"],
        }  # fmt: skip

    def start(self) -> "SupervisedAttempt":
        self.folder.mkdir(parents=True)
        write_plan(self.folder, self.plan)
        env = {"PYTHONPATH": str(ROOT), "PATH": os.defpath}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        started, ready = os.pipe()
        with ours, theirs, os.fdopen(started, "rb") as told:
            starter = subprocess.Popen(
                [sys.executable, "-P", "-m", "workers.supervisor"], env=env, cwd="/", stdin=theirs
            )
            socket.send_fds(ours, [os.fsencode(self.folder)], [ready])
            os.close(ready)
            theirs.close()
            assert told.read(1) == b"+"
        assert starter.wait(300) == 0
        return self

    @property
    def supervisor_pid(self) -> int:
        return int(json.loads((self.folder / SUPERVISOR_FILE).read_bytes())["pid"])

    @property
    def machine_pids(self) -> list[int]:
        """Supervisor, guardian and everything of the attempt."""
        return [processes.parent_of(self.supervisor_pid), self.supervisor_pid, *self.alive()]

    def alive(self) -> list[int]:
        """Processes of the attempt itself."""
        return processes.carriers(self.plan.cookie)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_attempt_journal(self.folder / JOURNAL_FILE)[0] if event["type"] == kind]

    def wait_event(self, kind: str, timeout_s: float = 20.0) -> dict[str, Any]:
        found: list[dict[str, Any]] = wait_for(lambda: self.events(kind), timeout_s, f"event {kind}")
        return found[0]

    def output(self, rank: int = 0) -> str:
        path = rank_log(self.folder, rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_output(self, text: str, timeout_s: float = 20.0, rank: int = 0) -> None:
        wait_for(lambda: text in self.output(rank), timeout_s, f"{text!r} in the output of rank {rank}")

    def tell(self, message: dict[str, Any]) -> None:
        """What an agent would say to the supervisor."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(self.plan.control_socket)
            connection.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        if (self.folder / SUPERVISOR_FILE).exists():
            processes.send_signal([self.supervisor_pid], signal.SIGCONT)
            processes.send_signal([self.supervisor_pid], signal.SIGKILL)
        assert processes.kill_carriers(self.plan.cookie, 60.0)
        shutil.rmtree(self._sockets, ignore_errors=True)
