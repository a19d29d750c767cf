"""Child processes of the demo, and the promise that none is left behind.

Supervisors outlive agents on purpose, so ending our direct children is not enough: on Linux the demo becomes the
subreaper of everything below it, and at the end whatever is still there is ended.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents end (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_parent() -> None:
    """In the child: be asked to end should the demo itself be killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Processes:
    """The processes the demo started, by name."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process with its output in `<logs>/<name>.log`, out of reach of the terminal's Ctrl-C."""
        with (self._logs / f"{name}.log").open("wb") as log:
            self._started[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def died(self) -> str | None:
        """Which of them has ended, with the end of its log; None while all run."""
        for name, process in self._started.items():
            if process.poll() is not None:
                return f"{name} ended with code {process.returncode}:\n{self.log_tail(name)}"
        return None

    def log_tail(self, name: str, lines: int = 15) -> str:
        path = self._logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def stop(self, patience_s: float = 10.0) -> list[str]:
        """End everything below this process: SIGTERM, then SIGKILL. Answers what had to be killed."""
        for process in reversed(self._started.values()):
            if process.poll() is None:
                process.terminate()
        for process in self._started.values():
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(patience_s)
        return end_descendants(patience_s)


def end_descendants(patience_s: float) -> list[str]:
    """End whatever still runs below this process; answers its command lines. Reaps adopted children."""
    for stop in (psutil.Process.terminate, psutil.Process.kill):
        left = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
        if not left:
            break
        for child in left:
            _quietly(stop, child)
        _, alive = psutil.wait_procs(left, timeout=patience_s)
        if stop is psutil.Process.kill or not alive:
            reap()
            return [_command_line(child) for child in left if child in alive] if alive else []
    reap()
    return []


def reap() -> None:
    """Collect ended children that were adopted."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
