"""Child processes of the demo, and the promise that none is left behind.

Supervisors outlive agents on purpose, so ending our direct children is not enough: on Linux the demo becomes the
subreaper of everything below it, and at the end whatever is still there is ended.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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
    """End whatever still runs below this process; answers the names of those that SIGTERM did not end."""
    stubborn: list[str] = []
    left = _ask_to_end(_running_below(), patience_s)
    # Killing a supervisor may hand us ranks that were not below us before: look again, a bounded number of times.
    for _ in range(3):
        if not left:
            break
        for process in left:
            stubborn.append(_command_line(process))
            _quietly(psutil.Process.kill, process)
        psutil.wait_procs(left, timeout=patience_s)
        left = _running_below()
    _reap()
    return stubborn


def _running_below() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def _ask_to_end(processes: list[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """SIGTERM; answers those that still run after `patience_s`."""
    for process in processes:
        _quietly(psutil.Process.terminate, process)
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    return list(alive)


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())[:200]
    return f"process {process.pid}"


def _reap() -> None:
    """Collect ended children that were adopted."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def _quietly(action: Callable[[psutil.Process], None], process: psutil.Process) -> None:
    """Signal a process that may have ended by itself meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        action(process)
