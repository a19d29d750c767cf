"""What `walras search` starts: one job that moves between configurations of this machine until the best is found.

Each trial is a part of the job: it goes on from the checkpoint of the one before, and its steps count. Where the job
goes is decided by whoever calls; how long a trial is, and what of it is believed, is decided here.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from walras.errors import JobSpecError
from walras.job import JobSpec, argv_of, env_of, kind_of
from walras.searching import Configuration, Decide, Next, SearchError, Trial
from walras.wire import Manifest
from workers.gpus import detect_accelerators
from workers.trial_runs import AttemptTold, MovingJob, Progress

#: As `walras.training.Loop.report` names it.
_NOISE = "gradient_noise"


@dataclass(frozen=True, slots=True)
class Extent:
    """How long a trial is: so many undisturbed half seconds; and how long an attempt may take at most."""

    windows: int = 4
    timeout_s: float = 300.0
    #: Go on to the end of the job in the configuration that was found.
    to_the_end: bool = False
    finish_timeout_s: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Moved:
    """One attempt of the search: where it ran, and what it told."""

    configuration: Configuration
    steps: int
    wall_s: float
    iteration_s: float | None
    loss: float | None


@dataclass(frozen=True, slots=True)
class Searched:
    """How the search went. `found` None: the job ended before anything was decided."""

    found: Next | None
    moves: tuple[Moved, ...]
    trials: tuple[Trial, ...]
    checkpoint: Manifest | None
    finished: bool
    steps: int


#: Steps to do in all, given those done, in this configuration with this part of the job left; None: the script's.
Limit = Callable[[int, Next], int | None]


def search_job(
    job: MovingJob, decide: Decide, limit: Limit, extent: Extent, tell: Callable[[Next, Moved], None]
) -> Searched:
    """Try until `decide` has settled. Raises SearchError."""
    trials: list[Trial] = []
    moves: list[Moved] = []
    checkpoint: Manifest | None = None
    done = 0
    while True:
        ahead = decide(trials)
        if ahead.settled and not extent.to_the_end:
            return Searched(ahead, tuple(moves), tuple(trials), checkpoint, False, done)

        def enough(progress: Progress, ends: bool = not ahead.settled) -> bool:
            return ends and progress.windows >= extent.windows

        timeout_s = extent.finish_timeout_s if ahead.settled else extent.timeout_s
        number, steps = len(moves) + 1, limit(done, ahead)
        told = job.attempt(number, ahead.configuration, checkpoint, steps, enough, timeout_s)
        moved = _moved(ahead.configuration, told, done)
        moves.append(moved)
        tell(ahead, moved)
        checkpoint = told.checkpoint or checkpoint
        done += moved.steps
        if told.finished or ahead.settled:
            return Searched(ahead if ahead.settled else None, tuple(moves), tuple(trials), checkpoint, True, done)
        trials.append(_trial(moved, told))


def _moved(configuration: Configuration, told: AttemptTold, before: int) -> Moved:
    rate = told.progress.steps_per_s
    # What a resumed attempt counts are the steps of all attempts; those after its checkpoint would be done again.
    steps = told.progress.steps if told.finished or told.checkpoint is None else int(told.checkpoint.step)
    loss = told.progress.values.get("loss")
    return Moved(configuration, max(0, steps - before), told.wall_s, 1.0 / rate if rate else None, loss)


def _trial(moved: Moved, told: AttemptTold) -> Trial:
    if moved.iteration_s is None:
        raise SearchError("its steps were too few to time", fix="longer trials: --windows")
    return Trial(
        configuration=moved.configuration,
        steps=moved.steps,
        iteration_s=moved.iteration_s,
        move_s=max(0.0, moved.wall_s - moved.steps * moved.iteration_s),
        noise_scale=told.progress.values.get(_NOISE),
    )


def moving_job(spec: JobSpec, folder: Path, workers_most: int) -> MovingJob:
    """The job of a file, to run on this machine. Raises JobSpecError for what it has not."""
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
        env=env_of(spec),
        workdir=workdir,
        folder=folder.absolute(),
        environ=os.environ,
        devices=accelerators.cuda_names,
    )
