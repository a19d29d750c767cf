"""One attempt of a job that is searched for: its ranks on this machine, and what is said with them.

It speaks what `walras.training` speaks with a supervisor. When an attempt trains, waits or ends is decided elsewhere.
"""

import selectors
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from walras.searching import Configuration, SearchError
from walras.wire import Manifest
from workers.channels import Channels, Role
from workers.trials.local_ranks import LocalRanks, Script, how_ended, last_words

_EXIT_CHECKPOINTED = 85


@dataclass(frozen=True, slots=True)
class Progress:
    """What rank 0 told last."""

    steps: int = 0
    steps_per_s: float | None = None
    #: Undisturbed windows behind the rate, in this configuration.
    windows: int = 0
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Attempt:
    """Ranks that were started together."""

    folder: Path
    workers: int
    #: Samples of a step over all ranks.
    batch: int
    ranks: LocalRanks = field(default_factory=lambda: LocalRanks(SearchError))
    progress: Progress = field(default_factory=Progress)
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
    def configuration(self) -> Configuration:
        return Configuration(self.workers, self.batch)

    @property
    def stands_by(self) -> bool:
        """Whether all ranks wait."""
        return self.standing_by >= self.workers

    def start(self, script: Script, environments: Sequence[dict[str, str]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for rank, env in enumerate(environments):
            self.ranks.start(script, env, self._log(rank))

    def tell(self, message: dict[str, Any]) -> None:
        """To every rank."""
        self._channels.tell(Role.RANK, message)

    def go(self, number: int, resume: Manifest | None, steps: int | None, batch: int) -> None:
        """Ranks that wait train on from here."""
        self.standing_by, self.checkpoint = 0, resume
        self.progress = Progress(0 if resume is None else int(resume.step))
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
        self.progress = Progress(int(message["steps"]), rate, int(message["samples"]), values)

    def _take_commit(self, message: dict[str, Any]) -> None:
        fields = {"path": message["path"], "digest": message["digest"], "step": message["step"]}
        self.checkpoint = Manifest.model_validate(fields)
        self.tell({"type": "recorded", "digest": self.checkpoint.digest})

    def _take_batch(self, message: dict[str, Any]) -> None:
        self.is_adaptive, self.batch = True, int(message["samples"])
        self.batches_told += 1
        self.progress = Progress(int(message["step"]), values=self.progress.values)

    def _take_standby(self, _message: dict[str, Any]) -> None:
        self.standing_by += 1

    def _take_stopped(self, _message: dict[str, Any]) -> None:
        self.has_stopped = True

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
