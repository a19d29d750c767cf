"""The trials of `walras search`: one job moves between configurations of this machine until the best is found.

Each trial is a part of the job: it continues from the trial before it, and its steps count. The caller decides which
configuration comes next; this module decides how long a trial is and which of its measurements count.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from walras.configuration_search import ChooseNext, SearchError, SearchStep, Trial, TrialConfiguration
from walras.contract import GRADIENT_NOISE_VALUE
from walras.errors import JobSpecError
from walras.spec.job_secrets import secret_values
from walras.spec.job_spec import JobSpec
from walras.spec.spec_request import argv_of, env_of, kind_of
from walras.wire import Manifest
from workers.devices import detect_accelerators
from workers.trials.local_ranks import TrialProgress
from workers.trials.moving_job import IsEnough, MovingJob, StepsLimit, TrialPart


@dataclass(frozen=True, slots=True)
class Extent:
    """The length of a trial in windows of undisturbed half seconds, and its time limit in seconds."""

    windows: int = 4
    timeout_s: float = 300.0
    #: True: the job continues to its end in the configuration that was found.
    to_the_end: bool = False
    finish_timeout_s: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class TrialMove:
    """One part of the job: its configuration and its measurements."""

    configuration: TrialConfiguration
    steps: int
    wall_s: float
    iteration_s: float | None
    loss: float | None
    #: Seconds of `wall_s` without steps, and seconds in which its ranks started while others still trained.
    move_s: float = 0.0
    standby_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """Outcome of a search. `found` is None if the job ended before a configuration was chosen."""

    found: SearchStep | None
    moves: tuple[TrialMove, ...]
    trials: tuple[Trial, ...]
    checkpoint: Manifest | None
    finished: bool
    steps: int
    #: Worker-seconds held.
    worker_s: float


class MovableJob(Protocol):
    """A running job that can be moved to another configuration."""

    parts: list[TrialPart]
    checkpoint: Manifest | None
    worker_s: float

    def train(self, configuration: TrialConfiguration, limit: StepsLimit, enough: IsEnough, timeout_s: float) -> bool:
        """Trains in this configuration until `enough` is true, then keeps training. Returns whether the job ended."""
        ...

    def halt(self) -> None:
        """Saves a checkpoint and ends."""
        ...


#: From the steps done and the next step of the search to the steps to do in all; None: the script decides.
Limit = Callable[[int, SearchStep], int | None]


def search_job(
    job: MovingJob, decide: ChooseNext, limit: Limit, extent: Extent, report: Callable[[SearchStep, TrialMove], None]
) -> SearchOutcome:
    """Runs trials until `decide` has settled. Raises SearchError."""
    with job.begin() as moves:
        return search_moving_job(moves, decide, limit, extent, report)


def search_moving_job(
    moves: MovableJob, decide: ChooseNext, limit: Limit, extent: Extent, report: Callable[[SearchStep, TrialMove], None]
) -> SearchOutcome:
    """Runs trials of a job that is already running and can be moved. Raises SearchError."""
    tried = 0
    while True:
        ahead = decide(_trials(moves.parts[:tried]))
        if ahead.settled and not extent.to_the_end:
            moves.halt()
            return _searched(ahead, moves, tried, False)

        def enough(progress: TrialProgress, ends: bool = not ahead.settled) -> bool:
            return ends and progress.windows >= extent.windows

        def steps(done: int, ahead: SearchStep = ahead, tried: int = tried) -> int | None:
            # The job continued where it was while the next move was decided, so less is left than at the decision.
            left = decide(_trials(moves.parts[:tried])).left
            return limit(done, replace(ahead, left=left))

        timeout_s = extent.finish_timeout_s if ahead.settled else extent.timeout_s
        has_ended = moves.train(ahead.configuration, steps, enough, timeout_s)
        report(ahead, _moved(moves.parts[-1]))
        if has_ended:
            return _searched(ahead if ahead.settled else None, moves, tried, True)
        tried = len(moves.parts)


def _searched(found: SearchStep | None, moves: MovableJob, tried: int, finished: bool) -> SearchOutcome:
    parts, trials = moves.parts, _trials(moves.parts[:tried])
    return SearchOutcome(
        found,
        tuple(_moved(part) for part in parts),
        tuple(trials),
        moves.checkpoint,
        finished,
        parts[-1].to_step if parts else 0,
        moves.worker_s,
    )


def _moved(part: TrialPart) -> TrialMove:
    return TrialMove(
        part.configuration, part.steps, part.wall_s, part.iteration_s, part.loss, part.move_s, part.standby_s
    )


def _trials(parts: Sequence[TrialPart]) -> list[Trial]:
    return [_trial_of(part) for part in parts]


def _trial_of(part: TrialPart) -> Trial:
    if part.iteration_s is None:
        raise SearchError("its steps were too few to time", fix="make trials longer with --windows")
    return Trial(
        configuration=part.configuration,
        steps=part.steps,
        iteration_s=part.iteration_s,
        move_s=part.move_s,
        standby_s=part.standby_s,
        noise_scale=(part.values or {}).get(GRADIENT_NOISE_VALUE),
    )


def moving_job(spec: JobSpec, folder: Path, workers_most: int) -> MovingJob:
    """Returns the job of a file, to run on this machine. Raises JobSpecError if the machine lacks what it needs."""
    accelerators = detect_accelerators(os.environ)
    if accelerators.cuda_names and workers_most > accelerators.count:
        raise JobSpecError(
            f"{workers_most} workers on {accelerators.count} accelerators", field="--workers", fix="try fewer"
        )
    workdir = spec.workdir or str(folder)
    if not Path(workdir).is_dir():
        raise JobSpecError(f"{workdir} is no folder", field="workdir", fix="start from where the job file means")
    if (folder / "checkpoints").exists():
        raise JobSpecError(f"{folder} holds another search", field="--folder", fix="name a new folder")
    return MovingJob(
        name=spec.name,
        kind=kind_of(spec),
        argv=argv_of(spec),
        env=env_of(spec, keeps_batch=True) | secret_values(spec.secrets, os.environ),
        workdir=workdir,
        folder=folder.absolute(),
        environ=os.environ,
        devices=accelerators.cuda_names,
    )
