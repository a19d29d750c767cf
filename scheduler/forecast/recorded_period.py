"""A period read from a journal: external events that do not depend on the scheduler, and what each job really did.

The period begins at a snapshot. `PeriodReader` is then given the recorded events and commands in order. Events of
people and machines are kept, to be repeated. Attempts and commands give where each job ran, when, and how much of that
work counted: from this follows how much work a job was, in steps at the speeds known today.
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
from scheduler.core.restore_events import JobRestored
from scheduler.core.share_events import SharesDeclared
from scheduler.forecast.core_copy import CoreSnapshot
from walras.cluster import Placement, Pool, PoolId
from walras.contract import EXIT_CHECKPOINTED
from walras.job_request import JobId, JobRequest
from walras.states import AttemptState, JobState

#: External events: they happen again, whichever policy decides.
HAPPENING = (
    JobSubmitted, JobCancelled, JobHeld, JobReleased, JobBudgetChanged, JobReprioritised, JobRedirected,
    JobDeadlineChanged, JobProjectChanged, PolicyChanged, PoolDeclared, PoolRemoved, NodeJoined, NodeUnreachable,
    NodeBack, NodeLost, NodeLeaving, NodeUncordoned, NodePrivate, NodeTools, NodeData, SharesDeclared, BookingsDeclared,
)  # fmt: skip
_OF_ATTEMPTS = (AttemptStarted, CheckpointRecorded, AttemptEnded)
_COMMANDS = (Start, ReleaseNode, JobTransitioned, AttemptTransitioned)
#: Type names of the journal entries that a reader needs.
WANTED_TYPES = tuple(each.__name__ for each in (*HAPPENING, *_OF_ATTEMPTS, *_COMMANDS))


class PoolPrices:
    """Price of an accelerator of each pool over time."""

    def __init__(self, pools: Iterable[tuple[float, Pool]]) -> None:
        """`pools` are (instant, declaration), ascending."""
        self._changes: dict[PoolId, list[tuple[float, float]]] = {}
        for at, pool in pools:
            price = pool.usd_per_h / max(pool.shape.accelerators, 1)
            changes = self._changes.setdefault(pool.pool_id, [])
            if not changes or changes[-1][1] != price:
                changes.append((at, price))

    def usd(self, pool_id: PoolId, accelerators: float, since_at: float, until_at: float) -> float:
        """Returns USD for holding these accelerators of the pool between two instants."""
        total, changes = 0.0, self._changes.get(pool_id, [])
        for index, (at, price) in enumerate(changes):
            begins_at = since_at if index == 0 else max(at, since_at)
            ends_at = until_at if index + 1 == len(changes) else min(changes[index + 1][0], until_at)
            total += price * accelerators * max(ends_at - begins_at, 0.0) / 3600.0
        return total


@dataclass(slots=True)
class HeldPlace:
    """A job's real hold of machines. `begins_steps` are its steps at the start, as far as recorded."""

    placement: Placement
    since_at: float
    running_at: float = inf
    until_at: float = inf
    begins_steps: float = 0.0
    safe_steps: float = 0.0
    #: Fraction of its work that was not lost.
    kept: float = 1.0

    def ran_s(self, now: float) -> float:
        """Returns the seconds in which its ranks were up and whose work counts."""
        return self.kept * max(min(self.until_at, now) - self.running_at, 0.0)


@dataclass(slots=True)
class PeriodJob:
    """What a job really did in the period; instants are inf if they were not reached."""

    request: JobRequest
    submitted_at: float
    #: Whether it did not run when the period began, or arrived later.
    waited: bool
    #: Steps done when the period began.
    begins_steps: float = 0.0
    ends_steps: float | None = None
    starts_at: float = inf
    ends_at: float = inf
    ended: JobState | None = None
    preemptions: int = 0
    places: list[HeldPlace] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Returns whether it ended by itself, so that its length is known."""
        return self.ended is not None and self.ended is not JobState.CANCELLED and bool(self.places)

    def usd(self, prices: PoolPrices, now: float) -> float:
        """Returns the cost of the machines that it held, USD."""
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
    #: Machines that the live scheduler returned itself, so their loss is no external event.
    released: frozenset[str]


class PeriodReader:
    """Reads a journal from the snapshot's instant on, in order."""

    def __init__(self, begin: CoreSnapshot) -> None:
        self._begin = begin
        self._happened: list[Event] = []
        self._released: set[str] = set()
        self._jobs = {told.job.job_id: _as_it_began(told, begin.at) for told in begin.jobs}

    def event(self, event: Event) -> None:
        """Reads one event."""
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
        """Reads one command, which answers the event at that instant."""
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
        """Returns what has been read so far, as the period until `until_at`."""
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
