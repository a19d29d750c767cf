"""Ranks that whoever looks at a script starts here without a supervisor: nothing has to outlive the look.

They get what the ranks of an attempt get, die with us, and are ended for sure, loader workers and their children
included. What is asked of them, and what an end means, is decided by those who look.
"""

import os
import secrets
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from walras.errors import UserError
from walras.wire import Manifest, StartCommand
from workers import processes

_LAST_WORDS = 2000


class Script(Protocol):
    """What is started, and how it is called."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def workdir(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Run:
    """How a script is started once."""

    ranks: int
    checkpoints: Path
    #: Machines that the ranks are told they are on; 1, or one for each.
    machines: int = 1
    attempt: int = 1
    resume: Manifest | None = None
    #: Of all attempts; None: the script's own.
    steps: int | None = None

    def command(self, script: Script) -> StartCommand:
        """What an agent would have been sent: of no job of any server, and under no lease."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        return StartCommand(
            command_id=0,
            job_id=0,
            attempt=self.attempt,
            name=script.name,
            kind=script.kind,
            argv=list(script.argv),
            env=dict(script.env),
            workdir=script.workdir,
            devices=list(range(self.ranks)),
            accelerator="",
            node_rank=0,
            num_nodes=self.machines,
            world_size=self.ranks,
            first_rank=0,
            master_address="127.0.0.1",
            master_port=0,
            checkpoint_dir=str(self.checkpoints),
            resume=self.resume,
            steps=self.steps,
            lease_s=0.0,
            grace_s=0.0,
            job_token="",
        )


@dataclass
class LocalRanks:
    """One process group. `error`: raised for a rank that cannot be started."""

    error: type[UserError]
    cookie: str = field(default_factory=lambda: secrets.token_hex(16))
    all: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, script: Script, env: Mapping[str, str], log: Path) -> None:
        """One more rank; what it says goes to its log."""
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
        """Kill what is left of them, and of what they started."""
        for rank in self.all:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        processes.kill_carriers(self.cookie, 5.0)


def how_ended(code: int) -> str:
    """As people say it, from what `subprocess` says."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def last_words(log: Path) -> str:
    """The end of what a rank said."""
    with log.open("rb") as file:
        file.seek(max(0, os.path.getsize(log) - _LAST_WORDS))
        return file.read().decode(errors="replace").strip() or "(it said nothing)"
