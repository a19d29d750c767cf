"""Declared limits of projects and users, held where places are given: at every instant, not only on average.

A policy may say that a project, or a user of it, holds at most a fraction l of all accelerators
(`optimizer.policy.DeclaresLimits`). With N accelerators that take jobs, the jobs below it hold at most floor(l N) at
once, those being stopped included; a limit below one accelerator is none at all. Idle places do not change that.
Whoever gives a place asks `room`: the arrival rule, backfill, lending, reservations, preemption, profiling leases,
moves for a deadline, larger gangs. A place that is kept for a job counts as held by its project, so that a gang is not
overtaken inside its own limit for ever.

Where N falls, or a limit is made smaller, what runs goes on, and nothing below that limit starts until it fits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf
from typing import Protocol

import numpy as np

from scheduler.core.state.ledger import JobRecord, Ledger
from walras.job_request import JobId


class KeptPlaces(Protocol):
    """Places kept for a job (`working_set.Reservation`)."""

    @property
    def wanted(self) -> Mapping[int, int]:
        """Accelerators by machine row."""
        ...


@dataclass(frozen=True, slots=True)
class LimitReached:
    """What keeps a job from more accelerators."""

    #: "project" or "project/user".
    name: str
    fraction: float
    #: Accelerators of the fleet, those that the limit allows at once, and those held or kept below it.
    capacity: int
    allowed: int
    held: int


class PlacementLimits:
    """What the limited projects and users hold, and who waits only because of that."""

    def __init__(self, ledger: Ledger, kept: Mapping[JobId, KeptPlaces]) -> None:
        self._ledger = ledger
        self._kept = kept
        self._fractions: Mapping[str, float] = {}
        #: Jobs out of the queues until there is room below their limit, in order.
        self.parked: dict[JobId, None] = {}

    @property
    def are_declared(self) -> bool:
        """False: nothing is limited, and nothing need be asked."""
        return bool(self._fractions)

    def declare(self, fractions: Mapping[str, float]) -> None:
        """These limits are in force from now on, by "project" or "project/user"; fractions of all accelerators."""
        self._fractions = {name: fraction for name, fraction in fractions.items() if fraction < 1.0}

    def room(self, job: JobRecord, *, kept: bool = True) -> float:
        """Accelerators that the job may hold in all from now on; inf without a limit.

        `kept`: places kept for others count as held. Not asked so for a job whose own place is complete.
        """
        names = self._names_above(job) if self._fractions else ()
        return min((self._room_below(name, job, kept=kept) for name in names), default=inf)

    def room_after(self, job: JobRecord, leaving: Sequence[JobRecord]) -> float:
        """Accelerators that the job may hold in all once these jobs have left."""
        rooms = [inf]
        for name in self._names_above(job):
            freed = sum(count for each in leaving if self.is_below(each, name) for _, count in each.place)
            rooms.append(self._room_below(name, job, kept=True) + freed)
        return min(rooms)

    def reached(self, job: JobRecord, count: int) -> LimitReached | None:
        """The limit that keeps the job from holding `count` accelerators now, the tightest one; None if none does."""
        names = self._names_above(job) if self._fractions else ()
        rooms = [(self._room_below(name, job, kept=True), name) for name in names]
        left, name = min(rooms, default=(inf, ""))
        if left >= count:
            return None
        held = self._held_below(name, None, kept=True)
        return LimitReached(name, self._fractions[name], self._capacity, self._allowed(name), held)

    def is_below(self, job: JobRecord, name: str) -> bool:
        """Whether the job is of this project or user."""
        return name in (job.request.project, f"{job.request.project}/{job.request.user}")

    @property
    def _capacity(self) -> int:
        return sum(state.capacity for state in self._ledger.fleet.pools)

    def _allowed(self, name: str) -> int:
        return floor(self._fractions[name] * self._capacity + 1e-9)

    def _names_above(self, job: JobRecord) -> Iterable[str]:
        names = (job.request.project, f"{job.request.project}/{job.request.user}")
        return [name for name in names if name in self._fractions]

    def _room_below(self, name: str, job: JobRecord, *, kept: bool) -> float:
        return self._allowed(name) - self._held_below(name, job, kept=kept)

    def _held_below(self, name: str, but: JobRecord | None, *, kept: bool) -> int:
        """Accelerators held by jobs of the project or user, and places kept for them, without those of `but`."""
        ledger, columns = self._ledger, self._ledger.columns
        row = ledger.entities.get(name)
        if row is None:
            return 0
        below = [each for each, parent in enumerate(ledger.entity_parents) if each == row or parent == row]
        mine = columns.active & (columns.pool >= 0) & np.isin(columns.entity, below)
        held = int(columns.count[mine].sum())
        if but is not None and but.holds:
            held -= int(columns.count[but.slot])
        for job_id in self._kept if kept else ():
            job = ledger.jobs[job_id]
            if job is not but and self.is_below(job, name):
                own = int(columns.count[job.slot]) if job.holds else 0
                held += max(0, sum(self._kept[job_id].wanted.values()) - own)
        return held
