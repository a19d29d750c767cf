"""A job that moves between numbers of ranks and batches while it trains: real processes on this machine.

If only the batch changes, and the script supports that, the ranks are told at the end of a step. For another number of
ranks the next ones start, import and build what they need while the old ones train; then the old ones save a
checkpoint, and the next ones continue from it. A gang that is replaced by a larger one waits in memory, because its
ranks are on machines that the larger one holds anyway and the job may come back. On accelerators, whose memory two
gangs would have to share, the old ranks end first. `configuration_trials` decides where the job moves.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from walras.configuration_search import SearchError, TrialConfiguration
from walras.job_needs import ScriptLaunch
from walras.wire import Manifest
from workers import processes
from workers.rank_environment import RankSettings, build_client_folder, rank_environment
from workers.trials.local_ranks import LocalRanks, ScriptStart, TrialAttempt, TrialProgress

_POLL_S = 0.02
#: From the steps done to the steps to do in all; None: the script decides.
StepsLimit = Callable[[int], int | None]
IsEnough = Callable[[TrialProgress], bool]


@dataclass(frozen=True)
class MovingJob(ScriptLaunch):
    """The script, this machine's environment and devices, and a folder for logs and checkpoints, which is kept."""

    folder: Path
    #: The environment of this process; ranks see a whitelist of it.
    environ: Mapping[str, str]
    #: Names of the accelerators in CUDA_VISIBLE_DEVICES; empty on a machine without accelerators.
    devices: tuple[str, ...] = ()
    grace_s: float = 60.0

    def begin(self) -> "MovingRun":
        """Returns the job, not started yet: the first call of `train` starts it."""
        return MovingRun(self)

    def environments(
        self,
        number: int,
        configuration: TrialConfiguration,
        resume: Manifest | None,
        steps: int | None,
        attempt: TrialAttempt,
    ) -> list[dict[str, str]]:
        """Returns the environment of each rank."""
        ranks = configuration.workers
        started = ScriptStart(ranks, self.folder / "checkpoints", attempt=number, resume=resume, steps=steps)
        settings = RankSettings(
            build_client_folder(self.folder),
            attempt.rank_socket,
            attempt.ranks.cookie,
            ",".join(self.devices[:ranks]),
            None,
            max(1, len(os.sched_getaffinity(0)) // ranks),
        )
        env = rank_environment(self.environ, started.command(self), settings)
        env["WALRAS_BATCH"] = str(configuration.batch)
        env.setdefault("WALRAS_COUNT_FACTS", "0")  # no caller of a trial uses the model's facts
        port = str(processes.free_port())
        return [env | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port} for rank in range(ranks)]


@dataclass
class TrialPart:
    """The part of the job that ran in one configuration."""

    configuration: TrialConfiguration
    from_step: int
    to_step: int
    #: Seconds from the request that the previous part end, to the same request for this part, or until now.
    wall_s: float = 0.0
    #: Seconds of these without steps, when it had been measured for long enough.
    move_s: float = 0.0
    #: Seconds before these in which its ranks started, while the previous part still trained.
    standby_s: float = 0.0
    #: Seconds per step at the same instant; None: it was not measured for long enough.
    iteration_s: float | None = None
    loss: float | None = None
    values: Mapping[str, float] | None = None

    @property
    def steps(self) -> int:
        return self.to_step - self.from_step

    def measured(self, progress: TrialProgress) -> None:
        """Records the measurements once it has run for long enough, or to the end of the job."""
        self.to_step, self.values = progress.steps, progress.values
        self.loss = progress.values.get("loss", self.loss)
        if progress.steps_per_s:
            self.iteration_s = 1.0 / progress.steps_per_s
            self.move_s = max(0.0, self.wall_s - self.steps * self.iteration_s)


class MovingRun:
    """A running movable job. One attempt trains at a time. No process is left after the context ends."""

    def __init__(self, job: MovingJob) -> None:
        self.parts: list[TrialPart] = []
        self.checkpoint: Manifest | None = None
        #: Worker-seconds held; ranks that start beside others share their machines.
        self.worker_s = 0.0
        self._job = job
        self._training: TrialAttempt | None = None
        self._waiting: TrialAttempt | None = None
        self._leaving: list[TrialAttempt] = []
        #: Waiting attempts by their number of workers.
        self._parked: dict[int, TrialAttempt] = {}
        self._number = 0
        self._until = self._counted_at = self._part_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for attempt in (self._training, self._waiting, *self._leaving, *self._parked.values()):
            if attempt is not None:
                attempt.end()

    def train(self, configuration: TrialConfiguration, limit: StepsLimit, enough: IsEnough, timeout_s: float) -> bool:
        """Trains in this configuration until `enough` is true, and keeps training. Returns whether the job has ended.

        Raises SearchError if a rank failed, nothing was saved, or time ran out.
        """
        self._counted_at = time.monotonic() if self._training is None else self._counted_at
        self._until = time.monotonic() + timeout_s
        if not self._move(configuration, limit):
            return True
        attempt = self._training
        assert attempt is not None, "moved there"
        while self._poll():
            if enough(attempt.progress):
                self.parts[-1].measured(attempt.progress)
                return False
        if not attempt.has_finished:
            raise SearchError("the job ended before it was asked to", fix="read the logs of its ranks")
        self.parts[-1].measured(attempt.progress)
        return True

    def halt(self) -> None:
        """Saves a checkpoint and ends."""
        attempt = self._training
        if attempt is None:
            return
        self._until = time.monotonic() + self._job.grace_s
        if self._save_and_release(attempt, "stop"):
            assert self.checkpoint is not None, "what gives way has saved"
            self.parts[-1].to_step = int(self.checkpoint.step)

    # ------------------------------------------------------------------------------------------- moving

    def _move(self, configuration: TrialConfiguration, limit: StepsLimit) -> bool:
        """Returns False if the job ended before it could be moved."""
        attempt = self._training
        if attempt is None:
            self._part_at = time.monotonic()
            self._training = self._start(configuration, None, limit(0))
            self._begin(configuration, 0, 0.0)
            return True
        if configuration.workers == attempt.workers and attempt.is_adaptive:
            if not self._change_batch(attempt, configuration.batch, limit):
                return False
            if attempt.configuration == configuration:
                return True
        return configuration == attempt.configuration or self._hand_over(attempt, configuration, limit)

    def _change_batch(self, attempt: TrialAttempt, batch: int, limit: StepsLimit) -> bool:
        is_new, confirmed = batch != attempt.batch, attempt.batches_confirmed
        requested_at = time.monotonic()
        attempt.broadcast({"type": "batch", "samples": batch, "steps": limit(attempt.progress.steps)})
        while attempt.batches_confirmed == confirmed:
            if not self._poll():
                return False
        if is_new and attempt.batch == batch:
            self._close_part(attempt.progress.steps, requested_at)
            self._begin(attempt.configuration, attempt.progress.steps, 0.0)
        return True

    def _hand_over(self, old: TrialAttempt, configuration: TrialConfiguration, limit: StepsLimit) -> bool:
        began = time.monotonic()
        if not self._job.devices and not self._prepare_next_ranks(configuration):
            return False
        requested_at = time.monotonic()
        parks = self._waiting is not None and old.is_adaptive and old.workers < configuration.workers
        if not self._save_and_release(old, "park" if parks else "stop"):
            return False
        saved = self.checkpoint
        assert saved is not None, "what gives way has saved"
        if old.stands_by:
            self._parked[old.workers] = old
        else:
            self._leaving.append(old)
        step = int(saved.step)
        self._close_part(step, requested_at)
        if self._waiting is None:
            self._training = self._start(configuration, saved, limit(step))
        else:
            self._training, self._waiting = self._waiting, None
            self._number += 1
            self._training.take_over(self._number, saved, limit(step), configuration.batch)
        self._begin(configuration, step, requested_at - began)
        return True

    def _prepare_next_ranks(self, configuration: TrialConfiguration) -> bool:
        """Starts the next ranks, or takes waiting ones. Returns False if the job ended meanwhile."""
        parked = self._parked.pop(configuration.workers, None)
        self._waiting = parked or self._start(configuration, None, None, stands_by=True)
        while not self._waiting.stands_by:
            if not self._waiting.poll(0.0):
                raise SearchError("the next ranks ended before they trained", fix="read the logs of its ranks")
            if not self._poll():
                return False
        return True

    def _save_and_release(self, old: TrialAttempt, how: str) -> bool:
        """Returns False if the job was done before the request. Raises SearchError if it ended without a checkpoint."""
        before, until = old.checkpoint, self._until
        self._until = min(until, time.monotonic() + self._job.grace_s)
        old.broadcast({"type": how})
        while not (old.stands_by or old.has_stopped) and self._poll():
            pass
        self._until = until
        if old.has_finished:
            return False
        if old.checkpoint is None or old.checkpoint == before:
            raise SearchError(
                "the job ended without a checkpoint", fix="use walras.training with a Checkpoint in the script"
            )
        self.checkpoint = old.checkpoint
        return True

    def _start(
        self, configuration: TrialConfiguration, resume: Manifest | None, steps: int | None, stands_by: bool = False
    ) -> TrialAttempt:
        self._number += 1
        attempt = TrialAttempt(
            self._job.folder / f"attempt-{self._number}-ranks",
            configuration.workers,
            configuration.batch,
            LocalRanks(SearchError),
        )
        environments = self._job.environments(self._number, configuration, resume, steps, attempt)
        waits = {"WALRAS_STANDBY": "1"} if stands_by else {}
        try:
            attempt.start(self._job, [env | waits for env in environments])
        except BaseException:
            attempt.end()
            raise
        return attempt

    # ------------------------------------------------------------------------------------------- keeping count

    def _poll(self) -> bool:
        """Handles messages of the training attempt. Returns False once its ranks have ended."""
        attempt = self._training
        assert attempt is not None, "something trains"
        is_running = attempt.poll(_POLL_S)
        for each in list(self._leaving):
            if not each.ranks.are_running:
                each.end()
                self._leaving.remove(each)
        now = time.monotonic()
        held = [attempt, *self._leaving, *([self._waiting] if self._waiting is not None else [])]
        self.worker_s += (now - self._counted_at) * max(each.workers for each in held)
        self._counted_at = now
        if self.parts and attempt.progress.steps > self.parts[-1].to_step:
            self.parts[-1].to_step = attempt.progress.steps
        if self.parts:
            self.parts[-1].wall_s = now - self._part_at
        if is_running and now >= self._until:
            raise SearchError(
                f"the job exceeded its time limit after {attempt.progress.steps} steps",
                fix="use walras.training with a Checkpoint in the script, or give more time with --timeout",
            )
        self.checkpoint = attempt.checkpoint or self.checkpoint
        return is_running

    def _begin(self, configuration: TrialConfiguration, step: int, standby_s: float) -> None:
        self.parts.append(TrialPart(configuration, step, step, standby_s=standby_s))

    def _close_part(self, step: int, requested_at: float) -> None:
        self.parts[-1].to_step, self.parts[-1].wall_s = step, requested_at - self._part_at
        self._part_at = requested_at
