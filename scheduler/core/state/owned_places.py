"""Accelerators that projects own by type or pool: kept for their jobs, lent while these leave them, and what is lent.

    held_c      accelerators of the claim's scope, on owned machines, that jobs of its owner hold
    kept        these jobs in the order of their starts, as far as they fit in n_c; in 2 n_c while there is a credit
    borrowed    what is held of the scope by jobs that no claim keeps, beyond what nobody owns
    lent_c      the part of it that c leaves: borrowed x (n_c - held_c) / sum of that over the claims of the scope
    credit_c    integral of lent_c - (held_c - n_c), at least 0, halved every `half_life_s`      accelerator-seconds

Shapes: p pools, g projects and users.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import floor, log
from typing import Protocol

import numpy as np

from optimizer.problem import BoolArray
from scheduler.core.events import EntityShare, RememberedUse, scope_covers
from scheduler.core.state.fleet import Fleet
from scheduler.core.state.job_classes import JobClasses
from scheduler.core.state.job_columns import JobColumns
from walras.cluster import Market
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import JobId, JobRequest

#: Seconds for which a job keeps an owned place at least when users of its own project wait under a plan, and the part
#: of a turn that its restart may take.
_TURN_S, _CHANGING = 3600.0, 0.02
#: Stands between owner and scope in the name of a remembered credit; no name of a project has it.
_OF = "\n"


class PlacedJob(Protocol):
    """A job (`ledger.JobRecord`)."""

    job_id: JobId
    request: JobRequest
    leased_at: float


class Holdings(Protocol):
    """Jobs and machines (`ledger.Ledger`, which has the claims)."""

    now: float
    event_number: int
    columns: JobColumns
    classes: JobClasses
    fleet: Fleet
    entities: dict[str, int]
    entity_parents: list[int]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a project owns of a scope: an accelerator type or a pool."""

    owner: str
    scope: str
    accelerators: int

    def is_of(self, job: PlacedJob) -> bool:
        """Returns whether the job belongs to the owner."""
        return self.owner in job.request.owners


@dataclass(frozen=True, slots=True)
class ClaimTally:
    """What is held of a claim's scope at one instant."""

    claim: Claim
    #: Which of the ledger's entities are the owner and its users (g,).
    owner: BoolArray
    #: The owned pools of the scope (p,), and the accelerators of their machines that take jobs.
    pools: BoolArray
    capacity: int
    #: Accelerators of the scope that all jobs hold, and those of the owner.
    total: int
    held: int
    #: The owner's jobs there in the order of their starts, with what they hold of the scope.
    holders: tuple[tuple[JobId, int], ...]

    @property
    def left(self) -> int:
        """Returns what the owner's jobs leave of it."""
        return max(0, self.claim.accelerators - self.held)

    def keeps(self, job_id: JobId, *, has_credit: bool) -> bool:
        """Returns whether others do not take the place of this job."""
        left = self.claim.accelerators * (2 if has_credit else 1)
        for each, count in self.holders:
            if each == job_id:
                return count <= left
            left -= count if count <= left else 0
        return False


@dataclass(slots=True)
class OwnedPlaces:
    """The claims in force and their credits. What is held is read from the ledger, once for each change."""

    claims: tuple[Claim, ...] = ()
    #: Number of starts and ends so far: tells what was read before from what must be read again.
    changes: int = 0
    #: Accelerator-seconds of each claim's credit, as of `at`.
    _credits: dict[Claim, float] = field(default_factory=dict)
    #: Owners' jobs for which borrowers were asked to leave, with the pool of the place.
    due: dict[JobId, int] = field(default_factory=dict)
    _at: float = 0.0
    #: Whether jobs have come that the policy had not judged yet.
    is_due: bool = False
    _read: tuple[int, ...] = ()
    _tallies: tuple[ClaimTally, ...] = ()
    #: By how many accelerators each credit grows; negative where the owner's jobs hold more than is owned.
    _growth: tuple[float, ...] = ()

    def declare(self, shares: Iterable[EntityShare]) -> None:
        """Replaces the claims; a credit stays with its owner and scope."""
        before = {(claim.owner, claim.scope): credit_s for claim, credit_s in self._credits.items()}
        self.claims = tuple(Claim(each.name, own.scope, own.accelerators) for each in shares for own in each.owned)
        self._credits = {claim: before.get((claim.owner, claim.scope), 0.0) for claim in self.claims}
        self.changes += 1
        if not self.claims:
            self._tallies = self._growth = ()

    def credit_s(self, claim: Claim) -> float:
        """Returns the accelerator-seconds that others had of it and its owner has not had back, as of this event."""
        return self._credits[claim]

    def pass_time(self, ledger: Holdings, at: float, half_life_s: float) -> None:
        """Brings the credits up to `at`; nothing has changed hands since the last event."""
        passed_s, self._at = at - self._at, at
        if passed_s <= 0:
            return
        for tally, rate in zip(self.tallies(ledger), self._growth, strict=True):
            if rate or self._credits[tally.claim]:
                self._credits[tally.claim] = _grown(self._credits[tally.claim], rate, passed_s, half_life_s)

    def remembered(self, ledger: Holdings) -> Iterator[RememberedUse]:
        """Yields the credits and their growth, for a core that takes over."""
        for tally, rate in zip(self.tallies(ledger), self._growth, strict=True):
            claim = tally.claim
            if self._credits[claim] > 0 or rate > 0:
                name = f"{claim.owner}{_OF}{claim.scope}"
                yield RememberedUse(name, self._at, self._credits[claim], 0.0, rate, 0.0)

    def recall(self, remembered: Iterable[RememberedUse], half_life_s: float, at: float) -> list[RememberedUse]:
        """Restores the credits among these, as if what was lent then had been until now; returns the others."""
        told = {each.name: each for each in remembered if _OF in each.name}
        for claim in self.claims:
            each = told.get(f"{claim.owner}{_OF}{claim.scope}")
            if each is not None:
                self._credits[claim] = _grown(each.used_s, each.held, at - each.at, half_life_s)
        return [each for each in remembered if _OF not in each.name]

    # ---------------------------------------------------------------- what is held

    def tallies(self, ledger: Holdings) -> tuple[ClaimTally, ...]:
        """Returns what is held of each claim's scope now, in the order of the claims."""
        if self.claims:
            now = (self.changes, len(ledger.entity_parents), *(state.capacity for state in ledger.fleet.pools))
            if now != self._read:
                self._read, self._tallies = now, tuple(_tallied(ledger, self.claims))
                beyond = (max(0, each.held - each.claim.accelerators) for each in self._tallies)
                self._growth = tuple(
                    self.lent(ledger, tally) - more for tally, more in zip(self._tallies, beyond, strict=True)
                )
            return self._tallies
        return ()

    def lent(self, ledger: Holdings, tally: ClaimTally) -> float:
        """Returns the accelerators of the claim that others hold: of what owners leave, each lends the same part."""
        inside = [each for each in self.tallies(ledger) if not np.any(each.pools & ~tally.pools)]
        theirs = sum(each.claim.accelerators for each in inside)
        others = tally.total - sum(min(each.held, each.claim.accelerators) for each in inside)
        borrowed, left = others - max(0, tally.capacity - theirs), sum(each.left for each in inside)
        return min(tally.left, borrowed * tally.left / left) if borrowed > 0 and left else 0.0

    def fits(self, ledger: Holdings, job: PlacedJob, pool: int, count: int) -> bool:
        """Returns whether so many accelerators of the pool are within what the job's project owns there and leaves."""
        return any(each.claim.is_of(job) and each.pools[pool] and count <= each.left for each in self.tallies(ledger))

    def lasting_most(self, ledger: Holdings, job: PlacedJob, pool: int, count: int) -> Iterator[tuple[ClaimTally, int]]:
        """Yields what others own there, with the accelerators of their scope that nobody else owns: all that jobs may
        hold there which cannot leave again; nothing for a gang that fits what its project owns there.
        """
        if self.fits(ledger, job, pool, count):
            return
        theirs = [each for each in self.tallies(ledger) if not each.claim.is_of(job)]
        for tally in theirs:
            if tally.pools[pool]:
                inside = (each.claim.accelerators for each in theirs if not np.any(each.pools & ~tally.pools))
                yield tally, max(0, tally.capacity - sum(inside))

    # ---------------------------------------------------------------- who keeps a place

    def keeps(self, ledger: Holdings, there: PlacedJob, wants: PlacedJob) -> bool:
        """Returns whether a running job keeps its place from one of others, of its class or below."""
        if not self.claims or wants.request.priority_class > there.request.priority_class:
            return False
        return any(not claim.is_of(wants) for claim in self._keeping(ledger, there))

    def stays(self, ledger: Holdings, job: PlacedJob, restart_s: float) -> bool:
        """Returns whether a plan leaves the job where it is: it is kept there, and jobs of others could use the place.

        Not where one of them is of a higher class, nor, after a turn, where a job of its own project waits.
        """
        columns = ledger.columns
        for claim in self._keeping(ledger, job):
            pools, owner = next((each.pools, each.owner) for each in self.tallies(ledger) if each.claim == claim)
            rivals = np.flatnonzero(columns.eligible & ~np.append(pools, False)[columns.pool])
            rivals = rivals[(ledger.classes.rates[columns.class_row[rivals]][:, pools] > 0).any(axis=1)]
            own = owner[columns.entity[rivals]]
            turn_s = max(_TURN_S, restart_s / _CHANGING)
            is_over = bool((own & (columns.pool[rivals] < 0)).any()) and ledger.now - job.leased_at >= turn_s
            highest = int(columns.priority_class[rivals].max(initial=0))
            if not own.all() and highest <= job.request.priority_class and not is_over:
                return True
        return False

    def _keeping(self, ledger: Holdings, job: PlacedJob) -> Iterator[Claim]:
        for tally in self.tallies(ledger):
            if tally.claim.is_of(job) and tally.keeps(job.job_id, has_credit=self._credits[tally.claim] > 0):
                yield tally.claim


def _grown(credit_s: float, rate: float, passed_s: float, half_life_s: float) -> float:
    """Returns the credit after this time, in which it halves and grows at the rate (accelerators)."""
    kept: float = 0.5 ** (max(0.0, passed_s) / half_life_s)
    return max(0.0, kept * credit_s + rate * (1.0 - kept) * half_life_s / log(2.0))


def _tallied(ledger: Holdings, claims: Iterable[Claim]) -> Iterator[ClaimTally]:
    columns, pools = ledger.columns, ledger.fleet.pools
    slots = np.flatnonzero(columns.active & (columns.pool >= 0))
    of_pool, counts = columns.pool[slots], columns.count[slots].astype(np.int64)
    spread = {
        at: columns.parts[slot]
        for at, slot in enumerate(slots.tolist() if columns.parts else ())
        if slot in columns.parts
    }
    for claim in claims:
        covered = np.array(
            [state.pool.market is Market.OWNED and scope_covers(claim.scope, state.pool) for state in pools], np.bool_
        )
        there = np.where(covered[of_pool], counts, 0)
        for at, parts in spread.items():
            there[at] = sum(count for pool, count in parts if covered[pool])
        row = ledger.entities.get(claim.owner, -2)
        below = np.array([row in (each, above) for each, above in enumerate(ledger.entity_parents)], np.bool_)
        own = np.flatnonzero((there > 0) & below[columns.entity[slots]])
        own = own[np.lexsort((columns.job_id[slots[own]], columns.since_at[slots[own]]))]
        holders = zip(columns.job_id[slots[own]].tolist(), there[own].tolist(), strict=True)
        yield ClaimTally(
            claim, below, covered,
            sum(state.capacity for state, inside in zip(pools, covered.tolist(), strict=True) if inside),
            int(there.sum()), int(there[own].sum()), tuple((JobId(job_id), count) for job_id, count in holders),
        )  # fmt: skip


def credit_accelerators(claim: Claim, credit_s: float) -> int:
    """Returns how many accelerators beyond what it owns the credit lets an owner's jobs take."""
    return min(claim.accelerators, floor(credit_s / SECONDS_PER_HOUR))
