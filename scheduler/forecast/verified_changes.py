"""Changes that would let a waiting job start now: each tried on a copy of the state before anybody is told of it.

What looks as if it would help (`possible_remedies`) is done to a copy of the core, which then decides as it would. Only
changes after which the copy starts the job within `_SOON_S`, or a round where the policy compares jobs once a round,
are told, with the time that it took.
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

#: What is told to start a job where there is room starts it within this time, seconds.
_SOON_S = 15.0


@dataclass(frozen=True, slots=True)
class ChangeQuestion:
    """About one waiting job, and what looks as if it would help it."""

    snapshot: CoreSnapshot
    job_id: JobId
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True, slots=True)
class VerifiedChange:
    """A change, as `Remedy.text` says it, and how long after it the job starts, seconds."""

    text: str
    starts_in_s: float


def verified_changes(question: ChangeQuestion) -> tuple[VerifiedChange, ...]:
    """Those that do what they say, smallest first; none for a job that holds a place or is not known."""
    snapshot = question.snapshot
    told = next((each for each in snapshot.jobs if each.job.job_id == question.job_id), None)
    return () if told is None or told.placement is not None else tuple(_verified(question, told.job))


def _verified(question: ChangeQuestion, request: JobRequest) -> Iterator[VerifiedChange]:
    for remedy in question.remedies:
        # Whoever has to make room saves its work first, and is asked at the end of a round.
        soon_s = _SOON_S if remedy.priority is None else _SOON_S + question.snapshot.policy.rules.round_s
        starts_in_s = starts_after(question.snapshot, request, remedy, soon_s)
        if starts_in_s <= soon_s:
            yield VerifiedChange(remedy.text, starts_in_s)


def change_events(request: JobRequest, remedy: Remedy, at: float, anew: JobId) -> Iterator[Event]:
    """What a person would do who follows the remedy; `anew`: the number of the job if it is submitted again."""
    if remedy.priority is not None:
        yield JobReprioritised(at, request.job_id, remedy.priority)
    if remedy.demands:
        yield JobCancelled(at, request.job_id)
        yield JobSubmitted(at, replace(request, job_id=anew, demands=remedy.demands, sizes=()))


def starts_after(snapshot: CoreSnapshot, request: JobRequest, remedy: Remedy, within_s: float) -> float:
    """Seconds from the change to the start of the job, or of what is submitted in its place; inf: not within that."""
    at, anew = snapshot.at, JobId(max(snapshot.requests()) + 1)
    job_id = anew if remedy.demands else request.job_id
    rollout = Rollout(snapshot, CoreCopy(snapshot), PastJobs(), DrawnLengths(()), "one")
    # Others may take what becomes free by the change: it is made while the copy decides, as it is in life.
    events = change_events(request, remedy, at, anew)
    rollout.run(RolloutLimits(horizon_s=within_s), arrivals=False, then=events, until_started=job_id)
    rolled = rollout.jobs.get(job_id)
    return inf if rolled is None else rolled.starts_at - at
