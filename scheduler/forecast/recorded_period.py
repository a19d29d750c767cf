"""What a journal says of a period: what happened whatever the scheduler did, and what came of each job in life.

The period begins at a snapshot. From then on `PeriodReader` is told the recorded events and commands in order. Events
of people and machines are kept, to happen again. Of attempts and commands it is kept where each job was, when, and what
of that counted: so it is known how much work a job was, in steps at the speeds of today.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from scheduler.core.booking_events import BookingsDeclared
from scheduler.core.commands import AttemptTransitioned, Command, JobTransitioned, ReleaseNode, Start
from scheduler.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointRecorded,
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobRestored,
    JobSubmitted,
    NodeBack,
    NodeData,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodePrivate,
    NodeTools,
    NodeUncordoned,
    NodeUnreachable,
    PolicyChanged,
    PoolDeclared,
    PoolRemoved,
)
from scheduler.core.job_change_events import (
    JobBudgetChanged,
    JobDeadlineChanged,
    JobProjectChanged,
    JobRedirected,
    JobReprioritised,
)
from scheduler.core.share_events import SharesDeclared
from scheduler.forecast.core_copy import CoreSnapshot
from walras.cluster import Placement, Pool, PoolId
from walras.contract import EXIT_CHECKPOINTED
from walras.job_request import JobId, JobRequest
from walras.states import AttemptState, JobState

#: Events that nobody's decisions brought about: they happen again, whoever decides.
HAPPENING = (
    JobSubmitted, JobCancelled, JobHeld, JobReleased, JobBudgetChanged, JobReprioritised, JobRedirected,
    JobDeadlineChanged, JobProjectChanged, PolicyChanged, PoolDeclared, PoolRemoved, NodeJoined, NodeUnreachable,
    NodeBack, NodeLost, NodeLeaving, NodeUncordoned, NodePrivate, NodeTools, NodeData, SharesDeclared, BookingsDeclared,
)  # fmt: skip
_OF_ATTEMPTS = (AttemptStarted, CheckpointRecorded, AttemptEnded)
_COMMANDS = (Start, ReleaseNode, JobTransitioned, AttemptTransitioned)
#: What a reader wants of a journal, by the names of the types.
WANTED_TYPES = tuple(each.__name__ for each in (*HAPPENING, *_OF_ATTEMPTS, *_COMMANDS))


class PoolPrices:
    """What an accelerator of each pool cost, by the instant."""

    def __init__(self, pools: Iterable[tuple[float, Pool]]) -> None:
        """`pools`: from when on each was declared so, ascending."""
        self._changes: dict[PoolId, list[tuple[float, float]]] = {}
        for at, pool in pools:
            price = pool.usd_per_h / max(pool.shape.accelerators, 1)
            changes = self._changes.setdefault(pool.pool_id, [])
            if not changes or changes[-1][1] != price:
                changes.append((at, price))

    def usd(self, pool_id: PoolId, accelerators: float, since_at: float, until_at: float) -> float:
        """Of holding these accelerators from then till then."""
        total, changes = 0.0, self._changes.get(pool_id, [])
        for index, (at, price) in enumerate(changes):
            begins_at = since_at if index == 0 else max(at, since_at)
            ends_at = until_at if index + 1 == len(changes) else min(changes[index + 1][0], until_at)
            total += price * accelerators * max(ends_at - begins_at, 0.0) / 3600.0
        return total


@dataclass(slots=True)
class HeldPlace:
    """A job's hold of machines in life. `begins_steps`: what it had behind it, as far as that is told."""

    placement: Placement
    since_at: float
    running_at: float = inf
    until_at: float = inf
    begins_steps: float = 0.0
    safe_steps: float = 0.0
    #: Part of its work that was not lost.
    kept: float = 1.0

    def ran_s(self, now: float) -> float:
        """Seconds for which its ranks were up and whose work counts."""
        return self.kept * max(min(self.until_at, now) - self.running_at, 0.0)


@dataclass(slots=True)
class PeriodJob:
    """What came of a job in life, in the period; inf: it has not come."""

    request: JobRequest
    submitted_at: float
    #: Nothing of it ran when the period began, or it came later.
    waited: bool
    #: Steps it had done when the period began.
    begins_steps: float = 0.0
    ends_steps: float | None = None
    starts_at: float = inf
    ends_at: float = inf
    ended: JobState | None = None
    preemptions: int = 0
    places: list[HeldPlace] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Whether it ended by itself: its length is known then."""
        return self.ended is not None and self.ended is not JobState.CANCELLED and bool(self.places)

    def usd(self, prices: PoolPrices, now: float) -> float:
        """What the machines it held cost, USD."""
        return sum(
            prices.usd(pool_id, count, place.since_at, min(place.until_at, now))
            for place in self.places
            for pool_id, count in place.placement.by_pool.items()
        )


@dataclass(frozen=True, slots=True)
class RecordedPeriod:
    """All that is known of a period."""

    begin: CoreSnapshot
    until_at: float
    happened: tuple[Event, ...]
    jobs: Mapping[JobId, PeriodJob]
    prices: PoolPrices
    #: Machines that the live scheduler gave back itself: that they went is its doing.
    released: frozenset[str]


class PeriodReader:
    """Is told a journal from the snapshot's instant on, in order."""

    def __init__(self, begin: CoreSnapshot) -> None:
        self._begin = begin
        self._happened: list[Event] = []
        self._released: set[str] = set()
        self._jobs = {told.job.job_id: _as_it_began(told, begin.at) for told in begin.jobs}

    def event(self, event: Event) -> None:
        """One more event."""
        if isinstance(event, HAPPENING):
            self._happened.append(event)
        if isinstance(event, JobSubmitted):
            self._jobs[event.job.job_id] = PeriodJob(event.job, event.at, waited=True)
        elif isinstance(event, _OF_ATTEMPTS):
            job = self._jobs.get(event.job_id)
            place = job.places[-1] if job is not None and job.places else None
            if job is None or place is None or place.until_at < inf:
                return
            if isinstance(event, AttemptStarted):
                place.running_at = min(place.running_at, event.at)
            elif isinstance(event, CheckpointRecorded):
                place.safe_steps = event.steps
            else:
                _end_place(job, place, event.at, event.exit_code, event.steps)

    def command(self, at: float, command: Command) -> None:
        """One more command, of the event at that instant."""
        if isinstance(command, ReleaseNode):
            self._released.add(command.node_id)
            return
        job = self._jobs.get(command.job_id) if isinstance(command, _COMMANDS) else None
        if job is None:
            return
        if isinstance(command, Start):
            began = HeldPlace(command.placement, at, begins_steps=command.resume_steps, safe_steps=command.resume_steps)
            job.places.append(began)
            job.starts_at = min(job.starts_at, at)
        elif isinstance(command, AttemptTransitioned):
            job.preemptions += command.state is AttemptState.PREEMPTED
            if command.state.is_final and job.places and job.places[-1].until_at == inf:
                _end_place(job, job.places[-1], at, None, None)  # its machine is gone
        elif isinstance(command, JobTransitioned) and command.state.is_final:
            job.ends_at, job.ended = at, command.state
            if job.places:
                job.places[-1].until_at = min(job.places[-1].until_at, at)
                job.places[-1].kept = 1.0

    def period(self, until_at: float) -> RecordedPeriod:
        """What has been told, until now."""
        pools = [(each.at, each.pool) for each in (*self._begin.fleet, *self._happened) if type(each) is PoolDeclared]
        return RecordedPeriod(
            self._begin, until_at, tuple(self._happened), self._jobs, PoolPrices(pools), frozenset(self._released)
        )


def _as_it_began(told: JobRestored, at: float) -> PeriodJob:
    job = PeriodJob(told.job, told.submitted_at, waited=told.placement is None, begins_steps=told.steps)
    if told.placement is not None:
        running_at = max(told.running_at, at) if told.running_at < inf else inf
        job.places.append(
            HeldPlace(told.placement, at, running_at, begins_steps=told.steps, safe_steps=told.safe_steps)
        )
    return job


def _end_place(job: PeriodJob, place: HeldPlace, at: float, exit_code: int | None, steps: float | None) -> None:
    place.until_at = at
    job.ends_steps = steps if steps is not None else job.ends_steps
    if exit_code not in (0, EXIT_CHECKPOINTED):
        made = 0.0 if steps is None else steps - place.begins_steps
        place.kept = min(max((place.safe_steps - place.begins_steps) / made, 0.0), 1.0) if made > 0 else 0.0
