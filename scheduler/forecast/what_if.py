"""What would happen if something else were so: futures with and without a change, with the same random draws.

Each future is rolled forward at least twice: without a change, and once for each alternative, with the same lengths of
jobs, arrivals, boots and revocations (`Rollout`). Results are the differences between the two, as p10, p50 and p90 over
the futures (common random numbers): randomness that affects both cancels out. A change without effect differs by 0 in
every future.

Changes that would let a waiting job start now (`possible_remedies`) are tried on one copy of the state before they are
shown: only those after which it starts the job at once, or within a round if jobs have to make room.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import process_time

from scheduler.core.events import Event, JobCancelled, JobSubmitted
from scheduler.core.explain.feasibility import Remedy
from scheduler.core.job_change_events import JobReprioritised
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot, known_lengths
from scheduler.forecast.job_forecasts import Interval, PromiseBasis, promise_basis, quantiles
from scheduler.forecast.past_jobs import DrawnLengths, PastJobs
from scheduler.forecast.rollout import RolledJob, Rollout, RolloutLimits
from walras.job_request import JobId, JobRequest

#: Minimum of futures for p10 and p90; they are made whatever time they take.
_DRAWS_LEAST = 5


@dataclass(frozen=True, slots=True)
class WhatIfQuestion:
    """A state, what else might be so at its instant, and how much may be spent on the answer."""

    snapshot: CoreSnapshot
    past: PastJobs
    #: Alternatives, each tried by itself: events that come before the copy decides anything.
    alternatives: tuple[tuple[Event, ...], ...]
    #: Projects that are named in the answer; None: all. The others are summed up under "".
    visible: frozenset[str] | None = None
    draws: int = 20
    #: Processor time, seconds.
    cpu_s: float = 8.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """Change for a project's jobs that are active now; negative is sooner, or less."""

    jobs: int
    #: Change of the mean instant at which its jobs end, seconds.
    completion_s: Interval
    #: Change of the mean instant at which its waiting jobs start, seconds; None: none waits.
    waiting_s: Interval | None
    #: Change of the total cost of the machines they hold, USD.
    usd: Interval


@dataclass(frozen=True, slots=True)
class JobDifference:
    """Change of when one job starts (None: it runs) and ends, seconds."""

    start_s: Interval | None
    end_s: Interval


@dataclass(frozen=True, slots=True)
class AddedJob:
    """Results of a job that the alternative submits: instants, and the cost of its machines, USD."""

    start: Interval
    end: Interval
    usd: Interval
    promise: PromiseBasis


@dataclass(frozen=True, slots=True)
class AlternativeOutcome:
    """One alternative compared with no change."""

    total: GroupDifference
    projects: dict[str, GroupDifference]
    #: Jobs that start or end at another time in some future.
    jobs: dict[JobId, JobDifference]
    added: dict[JobId, AddedJob]
    #: Mean number of jobs that had not ended when the futures were given up: without and with the change.
    unfinished: tuple[float, float]


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """The results as of the question's instant."""

    at: float
    outcomes: tuple[AlternativeOutcome, ...]
    draws: int
    cpu_s: float


@dataclass(slots=True)
class _Future:
    jobs: dict[JobId, RolledJob]
    until_at: float
    #: Whether it was given up for its limits, not because the remaining jobs cannot run.
    is_cut: bool


@dataclass(slots=True)
class _Pairs:
    """One alternative's differences, future by future."""

    completion_s: dict[str, list[float]] = field(default_factory=dict)
    waiting_s: dict[str, list[float]] = field(default_factory=dict)
    usd: dict[str, list[float]] = field(default_factory=dict)
    starts: dict[JobId, list[float]] = field(default_factory=dict)
    ends: dict[JobId, list[float]] = field(default_factory=dict)
    added: dict[JobId, list[RolledJob]] = field(default_factory=dict)
    unfinished: list[tuple[int, int]] = field(default_factory=list)


def what_if(question: WhatIfQuestion) -> WhatIfAnswer:
    """Rolls the state forward until all draws are made or the processor time is spent. Returns the differences."""
    began_s, snapshot = process_time(), question.snapshot
    lengths = known_lengths(snapshot, question.past.ended)
    groups, waiting = _groups(question), {job.job.job_id for job in snapshot.jobs if job.placement is None}
    pairs = [_Pairs() for _ in question.alternatives]
    draws = 0
    for draw in range(question.draws):
        spent_s = process_time() - began_s
        if draw >= _DRAWS_LEAST and spent_s + spent_s / draw > question.cpu_s:
            break
        limits = RolloutLimits(cpu_until_s=began_s + question.cpu_s * max(draw + 1, _DRAWS_LEAST) / _DRAWS_LEAST)
        luck = f"{question.seed}/{draw}"
        as_is = _future(question, (), lengths, luck, limits)
        for alternative, found in zip(question.alternatives, pairs, strict=True):
            changed = _future(question, alternative, lengths, luck, limits)
            _compare(found, as_is, changed, groups, waiting)
        draws += 1
    outcomes = tuple(_outcome(found, groups, waiting) for found in pairs)
    return WhatIfAnswer(snapshot.at, outcomes, draws, process_time() - began_s)


def _groups(question: WhatIfQuestion) -> dict[str, list[JobId]]:
    """Returns the present jobs by the name under which their project is shown."""
    groups: dict[str, list[JobId]] = {}
    for job in question.snapshot.jobs:
        project = job.job.project
        told = project if question.visible is None or project in question.visible else ""
        groups.setdefault(told, []).append(job.job.job_id)
    return groups


def _future(
    question: WhatIfQuestion, told: Iterable[Event], lengths: DrawnLengths, luck: str, limits: RolloutLimits
) -> _Future:
    copy = CoreCopy(question.snapshot)
    for event in told:
        copy.tell(event)
    rollout = Rollout(question.snapshot, copy, question.past, lengths, luck)
    rollout.run(limits)
    is_cut = rollout.events >= limits.events or process_time() > limits.cpu_until_s
    return _Future(rollout.jobs, rollout.now, is_cut)


def _compare(
    found: _Pairs, as_is: _Future, changed: _Future, groups: dict[str, list[JobId]], waiting: set[JobId]
) -> None:
    present = [job_id for group in groups.values() for job_id in group]
    open_is = sum(as_is.jobs[job_id].ends_at == inf for job_id in present)
    open_changed = sum(changed.jobs[job_id].ends_at == inf for job_id in present)
    found.unfinished.append((open_is, open_changed))
    until_at = _compared_until(as_is, changed) if open_is or open_changed else inf
    for name, group in groups.items():
        later, waits, usd = 0.0, 0.0, 0.0
        for job_id in group:
            before, after = as_is.jobs[job_id], changed.jobs[job_id]
            end_s = min(after.ends_at, until_at) - min(before.ends_at, until_at)
            later += end_s
            usd += after.usd - before.usd
            found.ends.setdefault(job_id, []).append(end_s)
            if job_id in waiting:
                start_s = min(after.starts_at, until_at) - min(before.starts_at, until_at)
                waits += start_s
                found.starts.setdefault(job_id, []).append(start_s)
        found.completion_s.setdefault(name, []).append(later)
        found.waiting_s.setdefault(name, []).append(waits)
        found.usd.setdefault(name, []).append(usd)
    for job_id in changed.jobs.keys() - as_is.jobs.keys():
        found.added.setdefault(job_id, []).append(changed.jobs[job_id])


def _compared_until(as_is: _Future, changed: _Future) -> float:
    """Returns the instant at which jobs that have not ended count as ended.

    If a future was cut, it is the earlier end of the two; else the later one, so that a job that cannot run counts as
    late by at most the span seen.
    """
    choose = min if as_is.is_cut or changed.is_cut else max
    return choose(as_is.until_at, changed.until_at)


def _outcome(found: _Pairs, groups: dict[str, list[JobId]], waiting: set[JobId]) -> AlternativeOutcome:
    jobs = {
        job_id: JobDifference(quantiles(found.starts[job_id]) if job_id in waiting else None, quantiles(ends))
        for job_id, ends in found.ends.items()
        if any(ends) or any(found.starts.get(job_id, ()))
    }
    return AlternativeOutcome(
        _difference(found, groups, waiting, tuple(groups)),
        {name: _difference(found, groups, waiting, (name,)) for name in groups},
        jobs,
        {job_id: _added(rolled) for job_id, rolled in found.added.items()},
        (_mean([before for before, _ in found.unfinished]), _mean([after for _, after in found.unfinished])),
    )


def _difference(
    found: _Pairs, groups: dict[str, list[JobId]], waiting: set[JobId], names: tuple[str, ...]
) -> GroupDifference:
    jobs = [job_id for name in names for job_id in groups[name]]
    count, waits = len(jobs), sum(job_id in waiting for job_id in jobs)
    return GroupDifference(
        count,
        _of_sums(found.completion_s, names, max(count, 1)),
        _of_sums(found.waiting_s, names, waits) if waits else None,
        _of_sums(found.usd, names, 1),
    )


def _of_sums(by_name: dict[str, list[float]], names: tuple[str, ...], divisor: int) -> Interval:
    futures = zip(*(by_name[name] for name in names), strict=True)
    return quantiles([sum(future) / divisor for future in futures] or [0.0])


def _added(rolled: Sequence[RolledJob]) -> AddedJob:
    return AddedJob(
        quantiles([each.starts_at for each in rolled]),
        quantiles([each.ends_at for each in rolled]),
        quantiles([each.usd for each in rolled]),
        promise_basis([each.late_end_at for each in rolled]),
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


# ------------------------------------------------------------------------------------------ remedies for a waiting job


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
