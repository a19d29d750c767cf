"""A job that is moved from one number of ranks and batch to another while it trains: real processes on this machine.

Each attempt speaks what `walras.training` speaks with a supervisor: it is started from the checkpoint that the one
before it committed, tells its steps, and is asked to save and end. Nothing here decides where the job goes.
"""

import os
import selectors
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from walras.searching import Configuration, SearchError
from walras.wire import Manifest
from workers import processes
from workers.channels import Channels, Role
from workers.client_folder import build_client_folder
from workers.environment import RankSettings, rank_environment
from workers.local_ranks import LocalRanks, Run, how_ended, last_words

_EXIT_CHECKPOINTED = 85


@dataclass(frozen=True, slots=True)
class Progress:
    """What rank 0 told last."""

    steps: int
    steps_per_s: float | None
    #: Undisturbed windows behind the rate.
    windows: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AttemptTold:
    """What came of one attempt. `finished`: the job has no more to do."""

    progress: Progress
    checkpoint: Manifest | None
    finished: bool
    wall_s: float


@dataclass(frozen=True)
class MovingJob:
    """The script, this machine as it is to see it, and a folder for logs and checkpoints, which stay."""

    name: str
    kind: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    folder: Path
    #: What we were started with; ranks see a whitelist of it.
    environ: Mapping[str, str]
    #: What CUDA_VISIBLE_DEVICES calls the accelerators; empty on a machine without.
    devices: tuple[str, ...] = ()
    grace_s: float = 60.0

    def attempt(
        self,
        number: int,
        configuration: Configuration,
        resume: Manifest | None,
        steps: int | None,
        enough: Callable[[Progress], bool],
        timeout_s: float,
    ) -> AttemptTold:
        """Run until the job ends, or until it was `enough` and is saved. `steps`: of all attempts; None: the script's.

        Leaves no process behind. Raises SearchError: a rank failed, nothing was saved, or time ran out.
        """
        running = _Attempt(self.folder / f"attempt-{number}-ranks")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="walras-move-") as sockets:
            try:
                running.listen(Path(sockets))
                running.start(self, self._environment(number, configuration, resume, steps, running))
                running.follow(enough, began + timeout_s, self.grace_s)
            finally:
                running.end()
        return running.told(time.monotonic() - began)

    def _environment(
        self,
        number: int,
        configuration: Configuration,
        resume: Manifest | None,
        steps: int | None,
        running: "_Attempt",
    ) -> list[dict[str, str]]:
        ranks = configuration.workers
        started = Run(ranks, self.folder / "checkpoints", attempt=number, resume=resume, steps=steps)
        client = build_client_folder(self.folder)
        settings = RankSettings(
            client,
            running.rank_socket,
            running.ranks.cookie,
            ",".join(self.devices[:ranks]),
            None,
            running.threads(ranks),
        )
        env = rank_environment(self.environ, started.command(self), settings) | {
            "WALRAS_BATCH": str(configuration.batch)
        }
        port = str(processes.free_port())
        return [env | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port} for rank in range(ranks)]


@dataclass
class _Attempt:
    folder: Path
    rank_socket: str = ""
    ranks: LocalRanks = field(default_factory=lambda: LocalRanks(SearchError))
    progress: Progress = field(default_factory=lambda: Progress(0, None, 0, {}))
    checkpoint: Manifest | None = None
    finished: bool = False
    _stopped: bool = False
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _channels: Channels | None = None

    def listen(self, sockets: Path) -> None:
        self.rank_socket = str(sockets / "r")
        self._channels = Channels(self._selector, self.rank_socket, str(sockets / "a"))

    def threads(self, ranks: int) -> int:
        return max(1, len(os.sched_getaffinity(0)) // ranks)

    def start(self, job: MovingJob, environments: Sequence[dict[str, str]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for rank, env in enumerate(environments):
            self.ranks.start(job, env, self._log(rank))

    def follow(self, enough: Callable[[Progress], bool], until: float, grace_s: float) -> None:
        """Until every rank has ended. A rank that fails ends the rest."""
        while self.ranks.are_running:
            self._listen_once(0.05)
            self._raise_failed()
            if not self._stopped and enough(self.progress):
                self._stopped = True
                until = min(until, time.monotonic() + grace_s)
                assert self._channels is not None, "listening before ranks start"
                self._channels.tell(Role.RANK, {"type": "stop"})
            if time.monotonic() >= until:
                raise SearchError(
                    f"after {self.progress.steps} steps it "
                    + ("did not save and end when it was asked to" if self._stopped else "had taken too long"),
                    fix="does the script use walras.training, with a Checkpoint? More time: --timeout",
                )
        self._listen_once(0.0)
        self._raise_failed()

    def told(self, wall_s: float) -> AttemptTold:
        codes = [rank.returncode for rank in self.ranks.all]
        self.finished = all(code == 0 for code in codes)
        if not self.finished and self.checkpoint is None:
            raise SearchError(
                f"it ended without a checkpoint (exit codes {codes})",
                fix="the script needs walras.training, with a Checkpoint",
            )
        return AttemptTold(self.progress, self.checkpoint, self.finished, wall_s)

    def end(self) -> None:
        """Nothing is left running, loader workers and their children included."""
        self.ranks.end()
        if self._channels is not None:
            self._channels.close()
        self._selector.close()

    def _listen_once(self, timeout_s: float) -> None:
        channels = self._channels
        assert channels is not None, "listening before ranks start"
        for key, _ in self._selector.select(timeout_s):
            channels.handle(key.data)
        if timeout_s == 0.0:
            channels.poll_all()
        for connection in channels.connections:
            for message in connection.inbox:
                self._take(message)
            connection.inbox.clear()
        channels.tidy()

    def _take(self, message: dict[str, Any]) -> None:
        try:
            if message["type"] == "progress":
                rate = message["steps_per_s"]
                values = {str(name): float(value) for name, value in message["values"].items()}
                self.progress = Progress(
                    int(message["steps"]), None if rate is None else float(rate), int(message["samples"]), values
                )
            elif message["type"] == "commit":
                fields = {"path": message["path"], "digest": message["digest"], "step": message["step"]}
                self.checkpoint = Manifest.model_validate(fields)
                assert self._channels is not None, "listening before ranks start"
                self._channels.tell(Role.RANK, {"type": "recorded", "digest": self.checkpoint.digest})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SearchError(f"a rank tells what cannot be read ({error})") from None

    def _raise_failed(self) -> None:
        for number, rank in enumerate(self.ranks.all):
            code = rank.poll()
            if code not in (None, 0, _EXIT_CHECKPOINTED):
                said = last_words(self._log(number))
                raise SearchError(
                    f"rank {number} failed at step {self.progress.steps} ({how_ended(code)}):\n{said}",
                    fix="mend the script",
                )

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"
