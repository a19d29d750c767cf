"""What one job does in one future: when it starts and ends, what it still has to do, and how late it may end.

A future may be given up while a job still runs. What it has left then tells its end there, unless others stop it: late,
but a promise needs an instant that is late enough, not an early one.
"""

from dataclasses import dataclass, field
from math import inf
from random import Random

from scheduler.core.state.ledger import Ledger
from scheduler.forecast.past_jobs import DrawnLengths
from walras.job_request import JobId, JobRequest
from walras.states import JobState


@dataclass(slots=True)
class RolledJob:
    """What a job did in one future. Instants are inf if they were not reached before the future was given up."""

    starts_at: float = inf
    ends_at: float = inf
    #: The end, or a late guess at it if the future was given up before (`guess_late_ends`); inf: nothing tells it.
    late_end_at: float = inf
    #: If the future was given up before the end: when that was, or when it began of a job that was held; inf otherwise.
    open_until: float = inf
    #: Accelerator-hours by pool, from the present on.
    held_h: dict[str, float] = field(default_factory=dict)
    usd: float = 0.0


@dataclass(slots=True)
class JobTruth:
    """What a job still has to do, in steps, and its running attempt."""

    left: float
    attempt: int = 0
    rate: float = 0.0
    since_at: float = inf
    leased_at: float = inf
    usd_per_h: float = 0.0
    pool: str = ""
    count: float = 0.0
    #: Whether an attempt of it was stopped in this future.
    stopped: bool = False


def drawn_steps(
    lengths: DrawnLengths,
    request: JobRequest,
    done: tuple[float, float],
    best: float,
    chance: Random,
    *,
    joins: bool = False,
) -> float:
    """Returns the drawn steps left of a job that has done (steps, seconds of its whole gang at its best speed) `done`.

    `best` is that speed, steps per second. If it `joins`, later jobs of its group may have its length.
    """
    steps, had_s = done
    if request.steps is not None and request.steps > 0:
        part = steps / request.steps
        return max(lengths.ratio(request, part, chance) - part, 1e-6) * request.steps
    return max(lengths.length_s(request, had_s, chance, joins=joins) - had_s, 1.0) * best


def note_open_jobs(jobs: dict[JobId, RolledJob], ledger: Ledger, began_at: float, given_up_at: float) -> None:
    """Sets `open_until` of the jobs of a future that is over. Of a held job nothing is known: a person releases it."""
    for job_id, rolled in jobs.items():
        if rolled.ends_at == inf:
            job = ledger.jobs.get(job_id)
            rolled.open_until = began_at if job is None or job.state is JobState.HELD else given_up_at


def guess_late_ends(
    jobs: dict[JobId, RolledJob], truths: dict[JobId, JobTruth], ledger: Ledger, latest_at: float
) -> None:
    """Sets `late_end_at` of the jobs of a future that is over; ends after `latest_at` are not told.

    A running job that was never stopped is taken to run on. Nothing is told of a job that waits, or was stopped before:
    how long newcomers overtake it is what the future was given up for.
    """
    for job_id, rolled in jobs.items():
        rolled.late_end_at = rolled.ends_at
        job, truth = ledger.jobs.get(job_id), truths.get(job_id)
        if rolled.ends_at < inf or job is None or truth is None or truth.stopped:
            continue
        if job.state is JobState.RUNNING and job.revoked is None:
            late_at = truth.since_at + truth.left / truth.rate
            rolled.late_end_at = late_at if late_at <= latest_at else inf
