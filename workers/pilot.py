"""The pilot: the first process in an allocation of another scheduler, which runs an agent.

    python -m workers.pilot STATE NOTICE_S -- COMMAND OF THE AGENT...

The other scheduler signals the pilot before it ends the allocation (Slurm: `--signal=B:TERM@60`). The pilot writes the
agent's notice file with the remaining seconds, and the machine drains as a spot machine does. Once nothing runs there
any more the pilot ends, so that the allocation is returned early.

The pilot is the subreaper of all processes that start here: supervisors detach from their agent, and none may leave the
process tree that the other scheduler ends. An agent that dies alone is restarted, as on any machine. The state folder
ends with the allocation. Standard library only.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from walras.contract import RESTARTS_MAX, restarts_in_a_row
from workers import processes

#: sysexits' EX_CONFIG: the agent says that restarting it does not help.
_EXIT_FINAL = 78
_LOOK_EVERY_S = 0.25
#: Seconds that an agent has after a notice to report it and the ends of attempts.
_TELL_S = 3.0
#: Slurm waits this long between SIGTERM and SIGKILL (its default is 30 s), less a margin.
_CANCELLED_S = 20.0
_ASK_S = 5.0
_STOP_S = 5.0
_KILL_S = 10.0
_MOST_BYTES = 64 * 1024


def seconds_left(stated_s: float, environ: dict[str, str], now_s: float) -> float:
    """Returns the remaining seconds of the allocation: what Slurm states, or else `stated_s`."""
    job = environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return stated_s
    try:
        shown = subprocess.run(
            ["scontrol", "show", "job", "-o", job], capture_output=True, timeout=_ASK_S, check=True, env=environ
        ).stdout[:_MOST_BYTES].decode(errors="replace")  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return stated_s
    return parse_seconds_left(shown, stated_s, now_s)


def parse_seconds_left(shown: str, stated_s: float, now_s: float) -> float:
    """Returns the remaining seconds from the output of `scontrol show job`: cancelled and preempted jobs are
    COMPLETING.
    """
    state = re.search(r"(?:^| )JobState=([A-Z_]+)", shown)
    if state is None or state[1] != "RUNNING":
        return min(stated_s, _CANCELLED_S)
    end = re.search(r" EndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?: |$)", shown)
    if end is None:
        return stated_s
    try:
        # Slurm states its local time, and so does a datetime without a zone.
        left_s = datetime.fromisoformat(end[1]).timestamp() - now_s
    except (ValueError, OverflowError):
        return stated_s
    return max(0.0, min(left_s, stated_s + 60.0))


class Pilot:
    """One allocation, from its start until no process of it is left."""

    def __init__(self, state: Path, notice_s: float, command: list[str]) -> None:
        self._state = state
        self._notice_s = notice_s
        self._command = command
        self._is_told = False
        self._noticed_at: float | None = None
        self._restarts = 0
        self._started_at = 0.0

    def run(self) -> int:
        """Runs until the allocation is of no further use. Returns the exit code."""
        signal.signal(signal.SIGTERM, self._take_signal)
        processes.become_subreaper()
        agent = self._start()
        while True:
            time.sleep(_LOOK_EVERY_S)
            if self._is_told:
                self._is_told = False
                self._write_notice()
            code = self._reap(agent)
            if code is not None:
                is_over = code == _EXIT_FINAL or (code == 0 and not processes.descendants(os.getpid()))
                self._restarts = restarts_in_a_row(self._restarts, time.monotonic() - self._started_at)
                if is_over or self._restarts >= RESTARTS_MAX:
                    return self._end(None)
                # Slurm's SIGTERM at a cancellation reaches the agent too, which ends; its attempts are to be told of.
                self._restarts += 1
                time.sleep(0.0 if code == 0 else min(2.0**self._restarts, 15.0))
                agent = self._start()
            elif self._noticed_at is not None and self._has_emptied(agent):
                return self._end(agent)

    def _start(self) -> int:
        """Starts the agent, in its own session. Returns its process id."""
        self._started_at = time.monotonic()
        started = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)
        # Reaped below with all others; Popen is to keep out of it.
        started.returncode = 0
        return started.pid

    def _take_signal(self, *_: object) -> None:
        self._is_told = True

    def _write_notice(self) -> None:
        left_s = seconds_left(self._notice_s, dict(os.environ), time.time())
        draft = self._state / ".notice.draft"
        with contextlib.suppress(OSError):  # a full disk; the end will come without a notice
            draft.write_text(f"{left_s:.1f}\n")
            draft.replace(self._state / "notice")
        if self._noticed_at is None:
            self._noticed_at = time.monotonic()

    def _has_emptied(self, agent: int) -> bool:
        """Returns whether only the agent is left, and has had time to report."""
        assert self._noticed_at is not None
        others = [pid for pid in processes.descendants(os.getpid()) if pid != agent]
        return not others and time.monotonic() - self._noticed_at >= _TELL_S

    def _reap(self, agent: int) -> int | None:
        """Reaps all processes that have ended. Returns the agent's exit code once it has."""
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == agent:
                found = os.waitstatus_to_exitcode(status)

    def _end(self, agent: int | None) -> int:
        if agent is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, signal.SIGTERM)
            until = time.monotonic() + _STOP_S
            while self._reap(agent) is None and time.monotonic() < until:
                time.sleep(_LOOK_EVERY_S)
        processes.kill_all_below_me(_KILL_S)
        shutil.rmtree(self._state, ignore_errors=True)
        return 0


def run_pilot(arguments: list[str]) -> int:
    """Runs a pilot with these arguments. Returns the exit code."""
    state, notice_s, separator, *command = arguments
    assert separator == "--", "usage: python -m workers.pilot STATE NOTICE_S -- COMMAND..."
    return Pilot(Path(state), float(notice_s), command).run()


if __name__ == "__main__":
    sys.exit(run_pilot(sys.argv[1:]))
