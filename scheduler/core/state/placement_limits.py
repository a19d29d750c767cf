"""Declared limits of projects and users, enforced at every placement: at each instant, not only on average.

A policy may state that a project, or a user of it, holds at most a fraction l of all accelerators
(`optimizer.policy.DeclaresLimits`); an administrator, that it holds at most a number of accelerators of the fleet, of a
type, or of a pool (`SharesDeclared`). With N accelerators that take jobs, its jobs hold at most floor(l N) at once,
including jobs that are being stopped; with a limit below one accelerator they hold none, even if accelerators are idle.
Who places jobs asks `where.may_hold`, or a search that does. Accelerators that are reserved for a job count as
held by its project: otherwise smaller jobs of the project could overtake a gang for ever.

Jobs that could not leave again (`StopFor.LOAN`) hold of a type or pool at most what no other project owns there.

If N falls, or a limit is lowered, running jobs continue, and nothing below that limit starts until it fits.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, inf

import numpy as np

from scheduler.core.events import FLEET, EntityShare, scope_covers
from scheduler.core.state.job_classes import PoolParts
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.stopping import StopFor, may_be_stopped
from walras.cluster import Market, Pool
from walras.job_request import JobId


@dataclass(slots=True)
class Reservation:
    """Places that are being freed, or awaited, for one job.

    The accelerators it already has are held in its name on the machines; `needs` counts those still missing there.
    """

    job_id: JobId
    #: Pool of its machines, or the first of several.
    pool: int
    #: Accelerators wanted, and those still missing, by machine row.
    wanted: dict[int, int]
    needs: dict[int, int]
    #: True: running jobs were revoked for it. False (backfill): it waits for jobs to end, and may lend meanwhile.
    preempting: bool
    #: Jobs that hold places of the reservation until they end or it is to start, with the row of the machine.
    lent: dict[JobId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacementLimit:
    """One limit of a project or user: a fraction of the fleet by the policy, or a number by an administrator."""

    #: "project" or "project/user".
    name: str
    #: `FLEET`, an accelerator type, or a pool id.
    scope: str = FLEET
    fraction: float | None = None
    accelerators: int = 0
    #: Whether `name` owns the others of the scope: the limit is of all jobs that could not leave them again.
    is_of_lasting: bool = False

    def covers(self, pool: Pool) -> bool:
        """Returns whether accelerators of the pool count against this limit."""
        return scope_covers(self.scope, pool) and (not self.is_of_lasting or pool.market is Market.OWNED)


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The limit that keeps a job from more accelerators."""

    limit: PlacementLimit
    #: Accelerators of the fleet, those that the limit allows at once, and those held or reserved below it.
    capacity: int
    allowed: int
    held: int

    @property
    def name(self) -> str:
        """Returns the project or user whose limit it is."""
        return self.limit.name

    @property
    def words(self) -> str:
        """Returns the limit, and what is held below it, as a sentence."""
        name, scope = self.name, self.limit.scope
        if self.limit.is_of_lasting:
            return (
                f"project {name} lends its {scope} to jobs that can be stopped without loss; {self.allowed} are not its"
                f" own, {self.held} of them held by jobs like this"
            )
        who = f"{'user' if '/' in name else 'project'} {name} holds {self.held}"
        if self.limit.fraction is not None:
            part = f"{self.limit.fraction:g} of {self.capacity} accelerators"
            return f"{who}, and its limit of {part} allows {self.allowed}"
        return f"{who}, and its limit allows {self.allowed}" + ("" if scope == FLEET else f" of {scope}")

    @property
    def raised_by(self) -> str:
        """Returns what changes it."""
        if self.limit.is_of_lasting:
            return "save its work (walras.training.Checkpoint), or submit it with `preemptible: always`"
        if self.limit.fraction is not None:
            return "walras policy apply"
        project, _, user = self.name.partition("/")
        return f"walras admin set project {project} {f'users.{user}.' if user else ''}limits.{self.limit.scope}=N"


class PlacementLimits:
    """What the limited projects and users hold, and which jobs wait only because of limits."""

    def __init__(self, ledger: Ledger, kept: Mapping[JobId, Reservation]) -> None:
        self._ledger = ledger
        self._kept = kept
        self._of_policy: tuple[PlacementLimit, ...] = ()
        self._of_people: tuple[PlacementLimit, ...] = ()
        #: Limits by owner.
        self._limits: dict[str, list[PlacementLimit]] = {}
        #: Jobs out of all queues until there is room below their limit, in order; (job, pool) out of one pool's queues.
        self.parked: dict[JobId, None] = {}
        self.barred: set[tuple[JobId, int]] = set()

    @property
    def are_declared(self) -> bool:
        """Returns whether there are limits at all; if not, nothing needs to be asked."""
        return bool(self._limits)

    @property
    def are_asked(self) -> bool:
        """Returns whether any job may be kept from accelerators by a limit, or by what others own."""
        return bool(self._limits or self._ledger.usage.owned.claims)

    def declare(self, fractions: Mapping[str, float]) -> None:
        """Sets the policy's limits, by project or project/user, as fractions of the fleet."""
        limited = [(name, fraction) for name, fraction in fractions.items() if fraction < 1.0]
        self._of_policy = tuple(PlacementLimit(name, fraction=fraction) for name, fraction in limited)
        self._sort_by_owner()

    def declare_shares(self, shares: Iterable[EntityShare]) -> None:
        """Sets administrators' limits, which hold beside those of the policy."""
        self._of_people = tuple(
            PlacementLimit(share.name, limit.scope, None, limit.accelerators)
            for share in shares
            for limit in share.limits
        )
        self._sort_by_owner()

    def _sort_by_owner(self) -> None:
        self._limits = {}
        for limit in (*self._of_policy, *self._of_people):
            self._limits.setdefault(limit.name, []).append(limit)

    def room(
        self, job: JobRecord, pool: int | None = None, leaving: Sequence[JobRecord] = (), *, lasts: bool = False
    ) -> float:
        """Returns the accelerators that the job may hold in total if all were of this pool; inf without a limit.

        Args:
        job: the job that wants accelerators.
        pool: its row; None: only limits of the whole fleet are considered.
        leaving: jobs that will have left by then.
        lasts: it is to stay there.
        """
        rooms = [inf]
        for limit in self._above(job, pool, lasts=lasts):
            rooms.append(self._room_below(limit, job, kept=True) + self._freed(limit, leaving))
        return min(rooms)

    def allows(self, job: JobRecord, parts: PoolParts, leaving: Sequence[JobRecord] = (), *, kept: bool = True) -> bool:
        """Returns whether the job may hold exactly this, over one pool or several, once these jobs have left."""
        return not any(
            count > self._room_below(limit, job, kept=kept) + self._freed(limit, leaving)
            for limit, count in self._counts(job, parts)
        )

    def can_allow(self, job: JobRecord, parts: PoolParts) -> bool:
        """Returns whether the job may hold this when its project and user hold nothing else."""
        return not any(count > self._allowed(limit) for limit, count in self._counts(job, parts))

    def _counts(self, job: JobRecord, parts: PoolParts) -> Iterator[tuple[PlacementLimit, int]]:
        """Yields each limit that covers something of this, and how much."""
        pools = self._ledger.fleet.pools
        for limit in (*self._owned(job), *(each for pool, _ in parts for each in self._of_lasting(job, pool))):
            count = sum(count for pool, count in parts if limit.covers(pools[pool].pool))
            if count:
                yield limit, count

    def _freed(self, limit: PlacementLimit, leaving: Sequence[JobRecord]) -> int:
        return sum(self._count_of(each, limit) for each in leaving if self._is_under(each, limit))

    def reached(self, job: JobRecord, count: int, pool: int | None = None) -> LimitReached | None:
        """Returns the tightest limit that keeps the job from `count` accelerators there now; None if none does."""
        return next(iter(self.all_reached(job, count, pool)), None)

    def all_reached(self, job: JobRecord, count: int, pool: int | None = None) -> list[LimitReached]:
        """Returns the limits that keep the job from `count` accelerators there now, the tightest first."""
        rooms = [(self._room_below(limit, job, kept=True), limit) for limit in self._above(job, pool)]
        return [
            LimitReached(limit, self._capacity, self._allowed(limit), self._held_below(limit, None, kept=True))
            for left, limit in sorted(rooms, key=lambda each: each[0])
            if left < count
        ]

    def reached_everywhere(self, job: JobRecord, counts: Sequence[int]) -> tuple[list[LimitReached], int]:
        """Returns the limits that keep the job from its smallest gang, and the gang's size; ([], 0) if it may be in a
        pool.

        `counts` are accelerators that it takes of each pool, 0 where it cannot run (p,).
        """
        ways = sorted((count, pool) for pool, count in enumerate(counts) if count) if self.are_asked else []
        found = [(self.all_reached(job, count, pool), count) for count, pool in ways]
        return found[0] if found and all(limits for limits, _ in found) else ([], 0)

    def is_below(self, job: JobRecord, name: str) -> bool:
        """Returns whether the job belongs to this project or user."""
        return name in job.request.owners

    def counts_against(self, job: JobRecord, reached: LimitReached) -> bool:
        """Returns whether something that the job holds counts against the limit."""
        return self._is_under(job, reached.limit) and self._count_of(job, reached.limit) > 0

    def hold_back(self, job: JobRecord, pool: int) -> None:
        """Takes the job out of this pool's queues until there is room; out of all if a fleet limit is reached."""
        count = self._ledger.count_on(job, pool)
        if count > self.room(job):
            self.parked[job.job_id] = None
        else:
            self.barred.add((job.job_id, pool))

    def is_barred(self, job: JobRecord, pool: int) -> bool:
        """Returns whether the smallest gang that the job may run as has no room in the pool."""
        return min(shape.counts[pool] for shape in self._ledger.shapes_of(job)) > self.room(job, pool)

    @property
    def _capacity(self) -> int:
        return sum(state.capacity for state in self._ledger.fleet.pools)

    def _allowed(self, limit: PlacementLimit) -> int:
        return limit.accelerators if limit.fraction is None else floor(limit.fraction * self._capacity + 1e-9)

    def _is_under(self, job: JobRecord, limit: PlacementLimit) -> bool:
        """Returns whether what the job holds counts against the limit."""
        if not limit.is_of_lasting:
            return self.is_below(job, limit.name)
        return not self.is_below(job, limit.name) and may_be_stopped(self._ledger, job, StopFor.LOAN) is not None

    def _owned(self, job: JobRecord) -> list[PlacementLimit]:
        return [limit for name in job.request.owners for limit in self._limits.get(name, ())] if self._limits else []

    def _of_lasting(self, job: JobRecord, pool: int, *, lasts: bool = False) -> list[PlacementLimit]:
        """Returns what a job that could not leave again may hold beside what others own in the pool."""
        owned = self._ledger.usage.owned
        lasts = lasts or job.deadline_pool == pool
        if not owned.claims or not (lasts or may_be_stopped(self._ledger, job, StopFor.LOAN)):
            return []
        return [
            PlacementLimit(tally.claim.owner, tally.claim.scope, None, most, is_of_lasting=True)
            for tally, most in owned.lasting_most(self._ledger, job, pool, self._ledger.count_on(job, pool))
        ]

    def _above(self, job: JobRecord, pool: int | None, *, lasts: bool = False) -> list[PlacementLimit]:
        """Returns the limits that hold for the job in the pool; without a pool, those of the fleet."""
        limits = self._owned(job)
        if pool is None:
            return [each for each in limits if each.scope == FLEET]
        there = self._ledger.fleet.pools[pool].pool
        return [*(each for each in limits if each.covers(there)), *self._of_lasting(job, pool, lasts=lasts)]

    def _room_below(self, limit: PlacementLimit, job: JobRecord, *, kept: bool) -> float:
        return self._allowed(limit) - self._held_below(limit, job, kept=kept)

    def _count_of(self, job: JobRecord, limit: PlacementLimit) -> int:
        """Returns the accelerators of the limit's scope that the job holds."""
        pools = self._ledger.fleet.pools
        return sum(count for pool, count in self._ledger.parts_of(job) if limit.covers(pools[pool].pool))

    def _held_below(self, limit: PlacementLimit, but: JobRecord | None, *, kept: bool) -> int:
        """Returns the accelerators held by, or reserved for, jobs of the project or user, except `but`."""
        if limit.is_of_lasting:
            those = (each for each in self._ledger if each.place and each is not but and self._is_under(each, limit))
            return sum(self._count_of(each, limit) for each in those)
        ledger, columns, name = self._ledger, self._ledger.columns, limit.name
        row = ledger.entities.get(name)
        if row is None:
            return 0
        below = [each for each, parent in enumerate(ledger.entity_parents) if each == row or parent == row]
        mine = columns.active & (columns.pool >= 0) & np.isin(columns.entity, below)
        if limit.scope != FLEET:
            covered = [each for each, state in enumerate(ledger.fleet.pools) if limit.covers(state.pool)]
            spread = list(columns.parts)
            mine &= np.isin(columns.pool, covered)
            mine[spread] = False  # counted by parts below
        held = int(columns.count[mine].sum())
        if limit.scope != FLEET:
            held += sum(self._spread_count(slot, below, covered) for slot in spread)
        if but is not None and but.holds:
            held -= self._count_of(but, limit)
        for job_id in self._kept if kept else ():
            job = ledger.jobs[job_id]
            if job is not but and self.is_below(job, name):
                own = self._count_of(job, limit) if job.holds else 0
                held += max(0, self._kept_count(job_id, limit) - own)
        return held

    def _spread_count(self, slot: int, below: list[int], covered: list[int]) -> int:
        """Returns the accelerators of these pools that a job over several pools holds; 0 if not below the limit."""
        columns = self._ledger.columns
        mine = bool(columns.active[slot]) and int(columns.entity[slot]) in below
        return sum(count for pool, count in columns.parts[slot] if pool in covered) if mine else 0

    def _kept_count(self, job_id: JobId, limit: PlacementLimit) -> int:
        fleet, wanted = self._ledger.fleet, self._kept[job_id].wanted
        if limit.scope == FLEET:
            return sum(wanted.values())
        there = ((fleet.machines[row], count) for row, count in wanted.items())
        return sum(
            count for machine, count in there if machine is not None and limit.covers(fleet.pools[machine.pool].pool)
        )
