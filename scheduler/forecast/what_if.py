"""What would happen if something else were so: futures with and without a change, with the same random draws.

Each future is rolled forward at least twice: without a change, and once for each alternative, with the same lengths of
jobs, arrivals, boots and revocations (`Rollout`). Results are the differences between the two, as p10, p50 and p90 over
the futures (common random numbers): randomness that affects both cancels out. A change without effect differs by 0 in
every future.

Changes that would let a waiting job start now (`possible_remedies`) are tried on one copy of the state before they are
shown: only those after which it starts the job at once, or within a round if jobs have to make room.

Changes of the cluster that people ask about are given as the events that would bring them, and in words. Machines can
be added only to an existing pool, because job speeds on an unknown shape are unknown. Removed machines leave at once,
like drained ones: jobs save what they can.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil, inf
from statistics import fmean

from optimizer.policy import PolicySpec
from scheduler.core.events import (
    Event,
    JobCancelled,
    JobReprioritised,
    JobSubmitted,
    NodeJoined,
    NodeLeaving,
    PolicyChanged,
    PoolDeclared,
    SharesDeclared,
)
from scheduler.core.explain.feasibility import Remedy
from scheduler.core.rules import RoundRules
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot, known_lengths
from scheduler.forecast.job_forecasts import Interval, JobForecast, forecast_of, quantiles
from scheduler.forecast.past_jobs import DrawnLengths, PastJobs
from scheduler.forecast.rollout import DrawTime, RolledJob, Rollout, RolloutLimits
from walras.cluster import Market, NodeId, Pool
from walras.errors import NotFound
from walras.job_request import JobId, JobRequest
from walras.states import Reason


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
    #: Processor time, and how long somebody waits, seconds.
    cpu_s: float = 8.0
    within_s: float = inf
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
    """Results of a job that the alternative submits, and the cost of its machines, USD; None: its end is not known."""

    forecast: JobForecast
    usd: Interval | None


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
    """Rolls the state forward until all draws are made or the time is spent. Returns the differences."""
    time, snapshot = DrawTime(question.cpu_s, question.within_s), question.snapshot
    lengths = known_lengths(snapshot, question.past.ended)
    groups, waiting = _groups(question), {job.job.job_id for job in snapshot.jobs if job.placement is None}
    pairs = [_Pairs() for _ in question.alternatives]
    draws = 0
    for draw in range(question.draws):
        if time.is_over(draw):
            break
        luck, futures = f"{question.seed}/{draw}", ((), *question.alternatives)
        rolled = [
            _future(question, told, lengths, luck, time.limits(draw, number, len(futures)))
            for number, told in enumerate(futures)
        ]
        for changed, found in zip(rolled[1:], pairs, strict=True):
            _compare(found, rolled[0], changed, groups, waiting)
        draws += 1
    outcomes = tuple(_outcome(found, groups, waiting) for found in pairs)
    return WhatIfAnswer(snapshot.at, outcomes, draws, time.spent_s)


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
    rollout = Rollout(copy, question.past, lengths, luck)
    rollout.run(limits)
    is_cut = rollout.events >= limits.events or limits.are_reached
    return _Future(rollout.jobs, rollout.now, is_cut)


def _compare(
    found: _Pairs, as_is: _Future, changed: _Future, groups: dict[str, list[JobId]], waiting: set[JobId]
) -> None:
    present = [job_id for group in groups.values() for job_id in group]
    open_is = sum(as_is.jobs[job_id].ends_at == inf for job_id in present)
    open_changed = sum(changed.jobs[job_id].ends_at == inf for job_id in present)
    found.unfinished.append((open_is, open_changed))
    # After that jobs count as ended: if a future was cut, at the earlier end of the two; else at the later one, so that
    # a job that cannot run counts as late by at most the span seen.
    choose, is_open = min if as_is.is_cut or changed.is_cut else max, open_is or open_changed
    until_at = choose(as_is.until_at, changed.until_at) if is_open else inf
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
        {job_id: _of_added(rolled) for job_id, rolled in found.added.items()},
        (fmean(before for before, _ in found.unfinished), fmean(after for _, after in found.unfinished)),
    )


def _of_added(futures: list[RolledJob]) -> AddedJob:
    """Of what is never reached a quote tells nothing: it may never come, nor is what it costs by then its cost."""
    forecast = replace(forecast_of(futures), starts_after=-inf, ends_after=-inf)
    if forecast.end.p50 == inf:
        return AddedJob(forecast, None)
    return AddedJob(forecast, quantiles([each.usd for each in futures if each.ends_at < inf]))


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


# ------------------------------------------------------------------------------------------ remedies for a waiting job


#: Seconds within which a change into free places must start the job.
_SOON_S = 15.0


@dataclass(frozen=True, slots=True)
class ChangeQuestion:
    """A waiting job, and the remedies that might help it."""

    snapshot: CoreSnapshot
    job_id: JobId
    remedies: tuple[Remedy, ...]


def verified_changes(question: ChangeQuestion) -> tuple[str, ...]:
    """Returns the changes that work, in the words of `Remedy.text`, smallest first; none for a job that holds a place
    or is unknown.
    """
    found, snapshot = list[str](), question.snapshot
    told = next((each for each in snapshot.jobs if each.job.job_id == question.job_id), None)
    for remedy in question.remedies if told is not None and told.placement is None else ():
        # Jobs that make room save their work first, and are asked at the end of a round.
        soon_s = _SOON_S if remedy.priority is None else _SOON_S + snapshot.policy.rules.round_s
        if told is not None and starts_after(snapshot, told.job, remedy, soon_s) <= soon_s:
            found.append(remedy.text)
    return tuple(found)


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
    rollout = Rollout(CoreCopy(snapshot), PastJobs(), DrawnLengths(()), "one")
    # Other jobs may take what the change frees, so it is made while the copy decides, as in reality.
    events = change_events(request, remedy, at, anew)
    rollout.run(RolloutLimits(horizon_s=within_s), arrivals=False, then=events, until_started=job_id)
    rolled = rollout.jobs.get(job_id)
    return inf if rolled is None else rolled.starts_at - at


#: Maximum of names listed in an error.
_NAMED_MOST = 8


@dataclass(frozen=True, slots=True)
class AddedMachines:
    """More accelerators of a type, in whole machines. `market` None: any, an owned pool first."""

    accelerator: str
    accelerators: int
    market: Market | None = None


@dataclass(frozen=True, slots=True)
class StateChanges:
    """A set of changes that happen together."""

    added: tuple[AddedMachines, ...] = ()
    #: Machines, pools, or accelerator types to remove, each with all its machines.
    removed: tuple[str, ...] = ()
    policy: tuple[PolicySpec, RoundRules] | None = None
    submitted: tuple[JobRequest, ...] = ()
    #: Projects, or users inside one (`vision/ada`), whose limits are lifted.
    unlimited: tuple[str, ...] = ()


def events_of_changes(snapshot: CoreSnapshot, changes: StateChanges) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    """Returns the events, and words for each change except changes of jobs, which have no names here.

    Raises NotFound for names that the cluster does not have.
    """
    events, words = list[Event](), list[str]()
    fleet = _Fleet(snapshot)
    if changes.policy is not None:
        events.append(PolicyChanged(snapshot.at, *changes.policy))
        words.append(f"policy {changes.policy[0].name}")
    for name in changes.unlimited:
        shares = next((each.shares for each in reversed(events) if isinstance(each, SharesDeclared)), None)
        events.append(_unlimited(snapshot.shares if shares is None else SharesDeclared(snapshot.at, shares), name))
        words.append(f"no limit on {name}")
    for number, added in enumerate(changes.added, 1):
        pool = fleet.pool_for(added)
        machines = ceil(added.accelerators / pool.shape.accelerators)
        for machine in range(1, machines + 1):
            node_id = NodeId(f"what-if-{number}-{machine}")
            events.append(NodeJoined(snapshot.at, node_id, pool.pool_id))
        words.append(f"{machines} x {pool.shape.name} more in {pool.pool_id}")
    for name in changes.removed:
        events += fleet.leaving(name, snapshot.at)
        words.append(f"without {name}")
    for request in changes.submitted:
        events.append(JobSubmitted(snapshot.at, request))
    return tuple(events), tuple(words)


def _unlimited(declared: SharesDeclared, name: str) -> SharesDeclared:
    if not any(share.name == name and share.limits for share in declared.shares):
        # The caller may not see which other names have limits.
        raise NotFound(f"no limit is set on {name}", field="no_limit", fix="see your limits: walras money --shares")
    shares = tuple(replace(share, limits=()) if share.name == name else share for share in declared.shares)
    return SharesDeclared(declared.at, shares)


class _Fleet:
    """Pools and machines of a snapshot, by name."""

    def __init__(self, snapshot: CoreSnapshot) -> None:
        self._pools = {each.pool.pool_id: each.pool for each in snapshot.fleet if isinstance(each, PoolDeclared)}
        self._nodes = {each.node_id: each.pool_id for each in snapshot.fleet if isinstance(each, NodeJoined)}

    def pool_for(self, added: AddedMachines) -> Pool:
        """Returns the pool to extend: an owned one before a rented one, then the cheaper.

        Raises NotFound without one.
        """
        wanted = added.accelerator.casefold()
        fits = [
            pool
            for pool in self._pools.values()
            if pool.shape.accelerators
            and pool.shape.accelerator.casefold() == wanted
            and added.market in (None, pool.market)
            and not pool.drained
        ]
        if not fits:
            market = "" if added.market is None else f", {added.market}"
            known = sorted({f"{pool.shape.accelerator} ({pool.market})" for pool in self._pools.values()})
            raise NotFound(
                f"no pool of {added.accelerator}{market} takes jobs",
                field="add",
                fix=f"the cluster has {_listed(known)}; a pool is added by `walras admin add pool`",
            )
        return min(fits, key=lambda pool: (pool.market is not Market.OWNED, pool.usd_per_h, pool.pool_id))

    def leaving(self, name: str, at: float) -> Iterator[Event]:
        """Yields events that remove the machine, the pool, or all pools of the type. Raises NotFound for other names.

        Removed pools rent no more machines.
        """
        if name in self._nodes:
            yield NodeLeaving(at, NodeId(name), inf, Reason.HOLD_ADMIN)
            return
        chosen = {
            pool_id: pool
            for pool_id, pool in self._pools.items()
            if pool_id == name or pool.shape.accelerator.casefold() == name.casefold()
        }
        if not chosen:
            known = sorted({*self._pools, *(pool.shape.accelerator for pool in self._pools.values())} - {""})
            raise NotFound(
                f"no machine, pool or accelerator type {name}", field="remove", fix=f"there are {_listed(known)}"
            )
        for pool in chosen.values():
            yield PoolDeclared(at, replace(pool, drained=True))
        for node_id, pool_id in self._nodes.items():
            if pool_id in chosen:
                yield NodeLeaving(at, node_id, inf, Reason.HOLD_ADMIN)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED_MOST]) + (" ..." if len(names) > _NAMED_MOST else "")
