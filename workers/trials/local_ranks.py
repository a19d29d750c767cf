"""Ranks that a trial starts on this machine without a supervisor, and one attempt of a searched job.

The ranks get the environment of an attempt's ranks and die with this process. They are always ended, loader workers and
their children included. An attempt communicates with them as a supervisor does with `walras.training`.
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
from walras.job_needs import ScriptLaunch
from walras.wire import Manifest, StartCommand
from workers import processes
from workers.supervisor_protocol import Channels, PeerRole

_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class ScriptStart:
    """The arguments of one start of a script."""

    ranks: int
    checkpoints: Path
    #: Number of machines in the ranks' environment: 1, or one for each rank.
    machines: int = 1
    attempt: int = 1
    resume: Manifest | None = None
    #: Steps of all attempts together; None: the script decides.
    steps: int | None = None

    def command(self, script: ScriptLaunch) -> StartCommand:
        """Returns the start command that an agent would receive, with job number 0 and without a lease."""
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


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """The latest progress that rank 0 reported."""

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
    #: The newest checkpoint that the attempt committed.
    checkpoint: Manifest | None = None
    #: Whether the script can change its batch while it trains.
    is_adaptive: bool = False
    #: Number of batch messages: each confirms the batch with which the job continues.
    batches_confirmed: int = 0
    #: Number of ranks that wait for a `go` message.
    standing_by: int = 0
    #: Whether rank 0 has saved and is about to end, as requested.
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
        """Returns whether all ranks wait."""
        return self.standing_by >= self.workers

    def start(self, script: ScriptLaunch, environments: Sequence[dict[str, str]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for rank, env in enumerate(environments):
            self.ranks.start(script, env, self._log(rank))

    def broadcast(self, message: dict[str, Any]) -> None:
        """Sends a message to every rank."""
        self._channels.broadcast(PeerRole.RANK, message)

    def take_over(self, number: int, resume: Manifest | None, steps: int | None, batch: int) -> None:
        """Lets waiting ranks continue the training from this checkpoint."""
        self.standing_by, self.checkpoint = 0, resume
        self.progress = TrialProgress(0 if resume is None else int(resume.step))
        resume_fields = None if resume is None else resume.model_dump()
        samples = None if batch == self.batch else batch
        self.broadcast({"type": "go", "attempt": number, "resume": resume_fields, "steps": steps, "samples": samples})

    def poll(self, timeout_s: float) -> bool:
        """Handles messages. Returns whether any rank still runs. Raises SearchError if one failed."""
        for key, _ in self._selector.select(timeout_s):
            self._channels.handle(key.data)
        is_running = self.ranks.are_running
        if not is_running:
            self._channels.receive_all()
        for connection in self._channels.connections:
            for message in connection.inbox:
                self._handle(message)
            connection.inbox.clear()
        self._channels.drop_closed()
        self._raise_failed()
        return is_running

    @property
    def has_finished(self) -> bool:
        """Returns whether every rank has ended successfully."""
        return all(rank.poll() == 0 for rank in self.ranks.all)

    def end(self) -> None:
        """Ends all ranks, loader workers and their children included, and closes the sockets."""
        self.ranks.end()
        self._channels.close()
        self._selector.close()
        self._sockets.cleanup()

    def _handle(self, message: dict[str, Any]) -> None:
        handler: Callable[[dict[str, Any]], None] | None = {
            "progress": self._handle_progress,
            "commit": self._handle_commit,
            "batch": self._handle_batch,
            "standby": self._handle_standby,
            "stopped": self._handle_stopped,
        }.get(str(message.get("type")))
        try:
            if handler is not None:
                handler(message)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise SearchError(f"a rank sent a malformed message ({error})") from None

    def _handle_progress(self, message: dict[str, Any]) -> None:
        rate = message["steps_per_s"]
        values = {str(name): float(value) for name, value in message["values"].items()}
        rate = None if rate is None else float(rate)
        self.progress = TrialProgress(int(message["steps"]), rate, int(message["samples"]), values)

    def _handle_commit(self, message: dict[str, Any]) -> None:
        fields = {"path": message["path"], "digest": message["digest"], "step": message["step"]}
        self.checkpoint = Manifest.model_validate(fields)
        self.broadcast({"type": "recorded", "digest": self.checkpoint.digest})

    def _handle_batch(self, message: dict[str, Any]) -> None:
        self.is_adaptive, self.batch = True, int(message["samples"])
        self.batches_confirmed += 1
        self.progress = TrialProgress(int(message["step"]), values=self.progress.values)

    def _handle_standby(self, _message: dict[str, Any]) -> None:
        self.standing_by += 1

    def _handle_stopped(self, _message: dict[str, Any]) -> None:
        self.has_stopped = True

    def _raise_failed(self) -> None:
        for number, rank in enumerate(self.ranks.all):
            code = rank.poll()
            if code not in (None, 0, EXIT_CHECKPOINTED):
                said = log_tail(self._log(number))
                raise SearchError(
                    f"rank {number} failed at step {self.progress.steps} ({describe_exit(code)}):\n{said}",
                    fix="correct the script",
                )

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"
