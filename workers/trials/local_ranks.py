"""Ranks that the profiler starts on this machine without a supervisor.

They get the environment of an attempt's ranks and die with this process. They are always ended, loader workers and
their children included.
"""

import os
import secrets
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from walras.errors import UserError
from walras.job_needs import ScriptLaunch
from walras.wire import StartCommand
from workers import processes

_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class ScriptStart:
    """The arguments of one start of a script."""

    ranks: int
    checkpoints: Path
    #: Number of machines in the ranks' environment: 1, or one for each rank.
    machines: int = 1

    def command(self, script: ScriptLaunch) -> StartCommand:
        """Returns the start command that an agent would receive, with job number 0 and without a lease."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        return StartCommand(
            command_id=0,
            job_id=0,
            attempt=1,
            **script.command_fields(),
            devices=list(range(self.ranks)),
            accelerator="",
            node_rank=0,
            num_nodes=self.machines,
            world_size=self.ranks,
            first_rank=0,
            master_address="127.0.0.1",
            master_port=0,
            checkpoint_dir=str(self.checkpoints),
            resume=None,
            steps=None,
            lease_s=0.0,
            grace_s=0.0,
            job_token="",
        )


@dataclass
class LocalRanks:
    """One process group. `error` is the class raised for a rank that cannot be started."""

    error: type[UserError]
    cookie: str = field(default_factory=lambda: secrets.token_hex(16))
    all: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, script: ScriptLaunch, env: Mapping[str, str], log: Path) -> None:
        """Starts one more rank; its output goes to the log."""
        with log.open("wb") as output:
            try:
                started = subprocess.Popen(
                    script.argv,
                    cwd=script.workdir,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=self.all[0].pid if self.all else 0,
                    preexec_fn=processes.die_with_parent,
                )
            except OSError as error:
                raise self.error(
                    f"cannot start {script.argv[0]!r} in {script.workdir}: {error.strerror}",
                    field="run",
                    fix="check the path",
                ) from None
        self.all.append(started)

    @property
    def are_running(self) -> bool:
        return any(rank.poll() is None for rank in self.all)

    def end(self) -> None:
        """Kills the remaining ranks, and every process that they started."""
        for rank in self.all:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        processes.kill_carriers(self.cookie, 5.0)


def describe_exit(code: int) -> str:
    """Returns a return code of `subprocess` in words: an exit code or a signal."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def log_tail(log: Path) -> str:
    """Returns the last part of a rank's output."""
    with log.open("rb") as file:
        file.seek(max(0, os.path.getsize(log) - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip() or "(it said nothing)"
