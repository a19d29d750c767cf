"""Changes that would let a waiting job start now, each tried on a copy of the state before it is shown.

Each possible remedy (`possible_remedies`) is applied to a copy of the core, which then decides as usual. Only changes
after which the copy starts the job within `_SOON_S`, or a round where the policy compares jobs once a round, are
returned, with the time that it took.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from scheduler.core.events import Event, JobCancelled, JobSubmitted
from scheduler.core.explain.feasibility import Remedy
from scheduler.core.job_change_events import JobReprioritised
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot
from scheduler.forecast.past_jobs import DrawnLengths, PastJobs
from scheduler.forecast.rollout import Rollout, RolloutLimits
from walras.job_request import JobId, JobRequest

#: Seconds within which a change into free places must start the job.
_SOON_S = 15.0


@dataclass(frozen=True, slots=True)
class ChangeQuestion:
    """A waiting job, and the remedies that might help it."""

    snapshot: CoreSnapshot
    job_id: JobId
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True, slots=True)
class VerifiedChange:
    """A change, in the words of `Remedy.text`, and the seconds after which the job starts."""

    text: str
    starts_in_s: float


def verified_changes(question: ChangeQuestion) -> tuple[VerifiedChange, ...]:
    """Returns the changes that work, smallest first; none for a job that holds a place or is unknown."""
    snapshot = question.snapshot
    told = next((each for each in snapshot.jobs if each.job.job_id == question.job_id), None)
    return () if told is None or told.placement is not None else tuple(_verified(question, told.job))


def _verified(question: ChangeQuestion, request: JobRequest) -> Iterator[VerifiedChange]:
    for remedy in question.remedies:
        # Jobs that make room save their work first, and are asked at the end of a round.
        soon_s = _SOON_S if remedy.priority is None else _SOON_S + question.snapshot.policy.rules.round_s
        starts_in_s = starts_after(question.snapshot, request, remedy, soon_s)
        if starts_in_s <= soon_s:
            yield VerifiedChange(remedy.text, starts_in_s)


def change_events(request: JobRequest, remedy: Remedy, at: float, anew: JobId) -> Iterator[Event]:
    """Yields the events of a person who follows the remedy. `anew`: the job id if the job is submitted again."""
    if remedy.priority is not None:
        yield JobReprioritised(at, request.job_id, remedy.priority)
    if remedy.demands:
        yield JobCancelled(at, request.job_id)
        yield JobSubmitted(at, replace(request, job_id=anew, demands=remedy.demands, sizes=()))


def starts_after(snapshot: CoreSnapshot, request: JobRequest, remedy: Remedy, within_s: float) -> float:
    """Returns the seconds from the change to the start of the job, or of its replacement; inf if not in time."""
    at, anew = snapshot.at, JobId(max(snapshot.requests()) + 1)
    job_id = anew if remedy.demands else request.job_id
    rollout = Rollout(snapshot, CoreCopy(snapshot), PastJobs(), DrawnLengths(()), "one")
    # Other jobs may take what the change frees, so it is made while the copy decides, as in reality.
    events = change_events(request, remedy, at, anew)
    rollout.run(RolloutLimits(horizon_s=within_s), arrivals=False, then=events, until_started=job_id)
    rolled = rollout.jobs.get(job_id)
    return inf if rolled is None else rolled.starts_at - at
