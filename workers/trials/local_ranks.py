"""Ranks that a trial starts here without a supervisor, and an attempt of a job that is searched for.

The ranks get what the ranks of an attempt get, die with this process, and are ended for sure, loader workers and their
children included. An attempt speaks with them as a supervisor does with `walras.training`.
"""

import os
import secrets
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from walras.configuration_search import SearchError, TrialConfiguration
from walras.contract import EXIT_CHECKPOINTED
from walras.errors import UserError
from walras.wire import Manifest, ScriptLaunch, StartCommand
from workers import processes
from workers.supervisor_protocol import Channels, PeerRole

_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class ScriptStart:
    """How a script is started once."""

    ranks: int
    checkpoints: Path
    #: Machines that the ranks are told they are on; 1, or one for each.
    machines: int = 1
    attempt: int = 1
    resume: Manifest | None = None
    #: Of all attempts; None: the script's own.
    steps: int | None = None

    def command(self, script: ScriptLaunch) -> StartCommand:
        """What an agent would have been sent: of no job of any server, and under no lease."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        return StartCommand(
            command_id=0,
            job_id=0,
            attempt=self.attempt,
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

    def start(self, script: ScriptLaunch, env: Mapping[str, str], log: Path) -> None:
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


def describe_exit(code: int) -> str:
    """As people say it, from what `subprocess` says."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def log_tail(log: Path) -> str:
    """The end of what a rank said."""
    with log.open("rb") as file:
        file.seek(max(0, os.path.getsize(log) - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip() or "(it said nothing)"


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """What rank 0 told last."""

    steps: int = 0
    steps_per_s: float | None = None
    #: Undisturbed windows behind the rate, in this configuration.
    windows: int = 0
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass
class TrialAttempt:
    """Ranks that were started together."""

    folder: Path
    workers: int
    #: Samples of a step over all ranks.
    batch: int
    ranks: LocalRanks = field(default_factory=lambda: LocalRanks(SearchError))
    progress: TrialProgress = field(default_factory=TrialProgress)
    #: The newest that it committed.
    checkpoint: Manifest | None = None
    #: The script takes another batch while it trains.
    is_adaptive: bool = False
    #: How often it has said with what batch it goes on.
    batches_told: int = 0
    #: Ranks that wait to be told to go on.
    standing_by: int = 0
    #: Rank 0 has saved and is about to end, as it was asked to.
    has_stopped: bool = False

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets = tempfile.TemporaryDirectory(prefix="walras-move-")
        self.rank_socket = str(Path(self._sockets.name) / "r")
        self._channels = Channels(self._selector, self.rank_socket, str(Path(self._sockets.name) / "a"))

    @property
    def configuration(self) -> TrialConfiguration:
        return TrialConfiguration(self.workers, self.batch)

    @property
    def stands_by(self) -> bool:
        """Whether all ranks wait."""
        return self.standing_by >= self.workers

    def start(self, script: ScriptLaunch, environments: Sequence[dict[str, str]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for rank, env in enumerate(environments):
            self.ranks.start(script, env, self._log(rank))

    def tell(self, message: dict[str, Any]) -> None:
        """To every rank."""
        self._channels.tell(PeerRole.RANK, message)

    def go(self, number: int, resume: Manifest | None, steps: int | None, batch: int) -> None:
        """Ranks that wait train on from here."""
        self.standing_by, self.checkpoint = 0, resume
        self.progress = TrialProgress(0 if resume is None else int(resume.step))
        told = None if resume is None else resume.model_dump()
        samples = None if batch == self.batch else batch
        self.tell({"type": "go", "attempt": number, "resume": told, "steps": steps, "samples": samples})

    def listen(self, timeout_s: float) -> bool:
        """Take in what is said; whether any rank still runs. Raises SearchError where one failed."""
        for key, _ in self._selector.select(timeout_s):
            self._channels.handle(key.data)
        is_running = self.ranks.are_running
        if not is_running:
            self._channels.poll_all()
        for connection in self._channels.connections:
            for message in connection.inbox:
                self._take(message)
            connection.inbox.clear()
        self._channels.tidy()
        self._raise_failed()
        return is_running

    @property
    def has_finished(self) -> bool:
        """Whether every rank has ended with nothing left to do."""
        return all(rank.poll() == 0 for rank in self.ranks.all)

    def end(self) -> None:
        """Nothing is left running, loader workers and their children included."""
        self.ranks.end()
        self._channels.close()
        self._selector.close()
        self._sockets.cleanup()

    def _take(self, message: dict[str, Any]) -> None:
        handler: Callable[[dict[str, Any]], None] | None = {
            "progress": self._take_progress,
            "commit": self._take_commit,
            "batch": self._take_batch,
            "standby": self._take_standby,
            "stopped": self._take_stopped,
        }.get(str(message.get("type")))
        try:
            if handler is not None:
                handler(message)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SearchError(f"a rank tells what cannot be read ({error})") from None

    def _take_progress(self, message: dict[str, Any]) -> None:
        rate = message["steps_per_s"]
        values = {str(name): float(value) for name, value in message["values"].items()}
        rate = None if rate is None else float(rate)
        self.progress = TrialProgress(int(message["steps"]), rate, int(message["samples"]), values)

    def _take_commit(self, message: dict[str, Any]) -> None:
        fields = {"path": message["path"], "digest": message["digest"], "step": message["step"]}
        self.checkpoint = Manifest.model_validate(fields)
        self.tell({"type": "recorded", "digest": self.checkpoint.digest})

    def _take_batch(self, message: dict[str, Any]) -> None:
        self.is_adaptive, self.batch = True, int(message["samples"])
        self.batches_told += 1
        self.progress = TrialProgress(int(message["step"]), values=self.progress.values)

    def _take_standby(self, _message: dict[str, Any]) -> None:
        self.standing_by += 1

    def _take_stopped(self, _message: dict[str, Any]) -> None:
        self.has_stopped = True

    def _raise_failed(self) -> None:
        for number, rank in enumerate(self.ranks.all):
            code = rank.poll()
            if code not in (None, 0, EXIT_CHECKPOINTED):
                said = log_tail(self._log(number))
                raise SearchError(
                    f"rank {number} failed at step {self.progress.steps} ({describe_exit(code)}):\n{said}",
                    fix="mend the script",
                )

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"
