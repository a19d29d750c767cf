"""What `walras search` starts: one job that moves between configurations of this machine until the best is found.

Each trial is a part of the job: it goes on from where the one before it was, and its steps count. The caller decides
where the job goes; this module decides how long a trial is and which of its measurements are believed.
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
from walras.spec.job_spec import JobSpec, argv_of, env_of, kind_of
from walras.wire import Manifest
from workers.devices import detect_accelerators
from workers.trials.local_ranks import TrialProgress
from workers.trials.moving_job import IsEnough, MovingJob, StepsLimit, TrialPart


@dataclass(frozen=True, slots=True)
class Extent:
    """How long a trial is: so many undisturbed half seconds; and how long one may take at most."""

    windows: int = 4
    timeout_s: float = 300.0
    #: Go on to the end of the job in the configuration that was found.
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
    #: Of its seconds, those without steps; and those that its ranks needed to start, while others still trained.
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
    #: Seconds that workers were held, each counted by itself.
    worker_s: float


class MovableJob(Protocol):
    """A job under way that can be moved."""

    parts: list[TrialPart]
    checkpoint: Manifest | None
    worker_s: float

    def train(self, configuration: TrialConfiguration, limit: StepsLimit, enough: IsEnough, timeout_s: float) -> bool:
        """Train on in this configuration until it was `enough`, and go on training; true: the job has ended."""
        ...

    def halt(self) -> None:
        """Save and end."""
        ...


#: (steps done, next step of the search) -> steps to do in all; None: the script decides.
Limit = Callable[[int, SearchStep], int | None]


def search_job(
    job: MovingJob, decide: ChooseNext, limit: Limit, extent: Extent, report: Callable[[SearchStep, TrialMove], None]
) -> SearchOutcome:
    """Try until `decide` has settled. Raises SearchError."""
    with job.begin() as moves:
        return search_moving_job(moves, decide, limit, extent, report)


def search_moving_job(
    moves: MovableJob, decide: ChooseNext, limit: Limit, extent: Extent, report: Callable[[SearchStep, TrialMove], None]
) -> SearchOutcome:
    """The same, of a job that can be moved by whatever means."""
    tried = 0
    while True:
        ahead = decide(_trials(moves.parts[:tried]))
        if ahead.settled and not extent.to_the_end:
            moves.halt()
            return _searched(ahead, moves, tried, False)

        def enough(progress: TrialProgress, ends: bool = not ahead.settled) -> bool:
            return ends and progress.windows >= extent.windows

        def steps(done: int, ahead: SearchStep = ahead, tried: int = tried) -> int | None:
            # Since it was decided where to go, the job went on where it was.
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
        raise SearchError("its steps were too few to time", fix="longer trials: --windows")
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
