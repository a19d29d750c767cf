"""Standing of projects and users: what each is entitled to, holds, has used, and borrows of what others leave.

entitled   by weight among those with work, guarantees first, at most what it asks for and may hold
nominal    by weight if all had work
owned      of a type or pool: its jobs' use of it, what others have of it on loan, and the credit for loans
borrowed   held above nominal; from whom: siblings by what they leave of their nominal part

Also the standing of budgets: for each limit what is used and left, its present rate, and when it is refilled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from optimizer.assignment.fair_standing import entitlements
from optimizer.problem import FloatArray, IntArray
from scheduler.core.budget_limits import BudgetOwner, BudgetUnit
from scheduler.core.core import SchedulerCore
from scheduler.core.events import EntityShare
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.spending import SpendingAccount
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import JobId
from walras.units import format_jobs

#: Amounts below this count as zero, accelerators.
_NOTHING = 1e-6
#: Credits below this many accelerator-hours are not shown; number of jobs that are named.
_TOLD_H = 0.05


@dataclass(frozen=True, slots=True)
class HeldThere:
    """What a project or user holds of one accelerator type, and what that is worth to its jobs in fair-share units."""

    accelerator: str
    accelerators: float
    units: float


@dataclass(frozen=True, slots=True)
class OwnedStanding:
    """What a project owns of a type or pool: numbers of accelerators."""

    scope: str
    owned: int
    #: Those of machines that take jobs now, up to `owned`; those that its own jobs use of them, and those lent.
    here: int
    used: int
    lent: float
    #: Accelerator-hours lent and not had back.
    credit_h: float
    #: Jobs of others on machines of the scope, by when they started, while any are lent.
    borrowers: tuple[JobId, ...]

    @property
    def text(self) -> str:
        """Returns it as a sentence without a subject."""
        parts = [f"{self.used} used by its own jobs"]
        parts += [f"{self.lent:.3g} lent (to {format_jobs(self.borrowers)})"] if self.lent > 0 else []
        idle = self.here - self.used - self.lent
        parts += [f"{idle:.3g} idle"] if idle > _NOTHING else []
        parts += [f"{self.owned - self.here} not here"] if self.here < self.owned else []
        credit = f"; a credit of {self.credit_h:.1f} accelerator-hours" if self.credit_h >= _TOLD_H else ""
        return f"{self.owned} x {self.scope}: {', '.join(parts)}{credit}"


@dataclass(frozen=True, slots=True)
class ShareStanding:
    """Standing of one project or user, in accelerators for which machines exist; use counts spot at its factor."""

    name: str
    share: EntityShare
    #: Accelerators that its active jobs ask for.
    demand: float
    entitled: float
    nominal: float
    held: tuple[HeldThere, ...]
    #: Decayed use in accelerator-seconds and unit-seconds; its fraction of what its siblings and itself have used.
    used_s: float
    units_s: float
    used_part: float
    #: (sibling, accelerators) of what it holds above its nominal part.
    borrowed: tuple[tuple[str, float], ...]
    owned: tuple[OwnedStanding, ...] = ()

    @property
    def accelerators(self) -> float:
        """Returns the accelerators that it holds."""
        return sum(each.accelerators for each in self.held)

    @property
    def units(self) -> float:
        """Returns what it holds in accelerators of the fleet's average speed for its jobs."""
        return sum(each.units for each in self.held)

    @property
    def because(self) -> str:
        """Returns sentences on what it owns, and on why its units differ from its accelerators; may be empty."""
        owned = [f"{self.name} owns {each.text}" for each in self.owned]
        if not self.held:
            return "; ".join(owned)
        parts = [
            f"{each.accelerators:g} {each.accelerator} at {each.units / each.accelerators:.2g} times the fleet's "
            f"average speed for its jobs count {each.units:.3g}"
            for each in self.held
        ]
        told = f"{self.name} holds {self.accelerators:g} accelerators, which count as {self.units:.3g} of its share"
        return "; ".join([*owned, f"{told}: {', '.join(parts)}"])


def share_standings(core: SchedulerCore, at: float) -> list[ShareStanding]:
    """Returns all projects and users that have jobs, a declared share or remembered use at this instant, by name."""
    ledger, usage = core.ledger, core.ledger.usage
    capacity = float(sum(state.capacity for state in ledger.fleet.pools))
    names, parents = _everybody(ledger)
    entities = usage.entities(names, parents, capacity)
    parent = np.array(parents, dtype=np.int64)
    row = {name: number for number, name in enumerate(names)}
    demand, held = np.zeros(len(names)), np.zeros(len(names))
    holdings: list[dict[str, tuple[float, float]]] = [{} for _ in names]
    for job in ledger:
        for name in job.request.owners:
            demand[row[name]] += float(ledger.columns.gang[job.slot])
            _add_holdings(ledger, job, holdings[row[name]])
    for number, each in enumerate(holdings):
        held[number] = sum(count for count, _ in each.values())
    entitled = entitlements(entities, demand, capacity)
    nominal = _nominal(np.asarray(entities.weight), parent, capacity)
    used = [usage.used(name, at) for name in names]
    return [
        ShareStanding(
            name=name,
            share=usage.shares.get(name, EntityShare(name)),
            demand=float(demand[number]),
            entitled=float(entitled[number]),
            nominal=float(nominal[number]),
            held=tuple(HeldThere(kind, *each) for kind, each in sorted(holdings[number].items())),
            used_s=used[number][0],
            units_s=used[number][1],
            used_part=_part(used, parent, number),
            borrowed=_borrowed(names, parent, held, nominal, number),
            owned=tuple(owned_standings(ledger, name)),
        )
        for number, name in sorted(enumerate(names), key=lambda each: each[1])
    ]


def owned_standings(ledger: Ledger, name: str) -> Iterator[OwnedStanding]:
    """Yields what the project owns by scope, and how it stands."""
    usage, jobs = ledger.usage, ledger.jobs
    for tally in usage.owned.tallies(ledger):
        claim = tally.claim
        if claim.owner != name:
            continue
        lent, here = usage.owned.lent(ledger, tally), min(claim.accelerators, tally.capacity)
        there = (job for job in jobs.values() if job.holds and not claim.is_of(job)) if lent else ()
        found = [job for job in there if any(tally.pools[pool] for pool, _ in ledger.parts_of(job))]
        yield OwnedStanding(
            claim.scope, claim.accelerators, here, min(tally.held, here), lent,
            usage.owned.credit_s(claim) / SECONDS_PER_HOUR,
            tuple(job.job_id for job in sorted(found, key=lambda job: (job.leased_at, job.job_id))),
        )  # fmt: skip


def owned_text(core: SchedulerCore, job: JobRecord) -> str:
    """Returns how those accelerators stand that the job's project owns and the job may use; empty if it owns none."""
    ledger = core.ledger
    able = set(ledger.class_of(job).pools)
    usable = {
        tally.claim.scope
        for tally in ledger.usage.owned.tallies(ledger)
        if tally.claim.is_of(job) and able & set(np.flatnonzero(tally.pools).tolist())
    }
    told = [each.text for each in owned_standings(ledger, job.request.project) if each.scope in usable]
    return f"your project owns {'; '.join(told)}" if told else ""


def _everybody(ledger: Ledger) -> tuple[list[str], list[int]]:
    """Returns names and parent rows of all projects and users, parents first."""
    told = {*ledger.entities, *ledger.usage.shares, *ledger.usage.names()}
    projects = sorted({name.partition("/")[0] for name in told})
    users = sorted(name for name in told if "/" in name)
    row = {name: number for number, name in enumerate(projects)}
    return [*projects, *users], [-1] * len(projects) + [row[name.partition("/")[0]] for name in users]


def _add_holdings(ledger: Ledger, job: JobRecord, holdings: dict[str, tuple[float, float]]) -> None:
    parts = ledger.parts_of(job) if job.holds else ()
    total = sum(count for _, count in parts)
    units = ledger.units_of(job, parts) if total else 0.0
    for pool, count in parts:
        kind = ledger.fleet.pools[pool].pool.shape.accelerator
        before = holdings.get(kind, (0.0, 0.0))
        holdings[kind] = (before[0] + count, before[1] + units * count / total)


def _nominal(weight: FloatArray, parent: IntArray, capacity: float) -> FloatArray:
    """Returns the parts by weight if every project and user had work (g,). Parents must precede their children."""
    nominal = np.zeros(len(weight))
    for above in (-1, *sorted({int(each) for each in parent if each >= 0})):
        family = parent == above
        room = capacity if above < 0 else nominal[above]
        nominal[family] = room * weight[family] / max(float(weight[family].sum()), 1e-300)
    return nominal


def _part(used: Sequence[tuple[float, float]], parent: IntArray, number: int) -> float:
    siblings = np.flatnonzero(parent == parent[number]).tolist()
    total = sum(used[each][0] for each in siblings)
    return used[number][0] / total if total > 0 else 0.0


def _borrowed(
    names: list[str], parent: IntArray, held: FloatArray, nominal: FloatArray, number: int
) -> tuple[tuple[str, float], ...]:
    above = float(held[number] - nominal[number])
    if above <= _NOTHING:
        return ()
    left = np.where(parent == parent[number], np.maximum(0.0, nominal - held), 0.0)
    left[number] = 0.0
    lenders = np.flatnonzero(left > _NOTHING).tolist()
    if not lenders:
        return ()
    return tuple((names[each], above * float(left[each] / left.sum())) for each in lenders)


def realised_fraction(ledger: Ledger) -> float | None:
    """Returns delivered over promised time, times (1 - gap) of the last solve (0..1); None if nothing was promised."""
    policy, columns = ledger.policy, ledger.columns
    if policy.proposal is None:
        return None
    rows = np.flatnonzero(columns.active)
    passed = np.maximum(ledger.now - columns.settled_at[rows], 0.0)
    promised = columns.promised[rows] + columns.entitled[rows] * passed[:, None]
    delivered = columns.delivered[rows].copy()
    held, pool, received = columns.received(rows, passed)
    delivered[held, pool] += np.where(columns.entitled[rows[held], pool] > 0, received, 0.0)
    total = float(promised.sum())
    if total <= 0:
        return None
    return float(np.minimum(delivered, promised).sum()) / total * max(0.0, 1.0 - policy.proposal.gap)


# ------------------------------------------------------------------------------------------ budgets


@dataclass(frozen=True, slots=True)
class BudgetStanding:
    """One limit as it stands; amounts are in its unit."""

    owner: BudgetOwner
    unit: BudgetUnit
    every: str
    used: float
    #: Limit, credit included.
    limit: float
    credit: float
    per_h: float
    committed: float
    closed: bool
    refills_at: float


def budget_standings(core: SchedulerCore, at: float) -> Iterator[BudgetStanding]:
    """Yields the standing of every limit of the policy in force, the cluster's first. Changes nothing."""
    spending = core.cycle.spending
    for owner, account in spending.owned_accounts():
        used = account.used_by(at)
        if account.limit < inf:
            limit = account.limit + account.credit
            yield _standing(core, owner, account, (account.every, used, limit, account.credit, account.refills_at))
        if account.month_limit < inf:
            limit = account.month_limit + account.month_credit
            month = used - account.used_before_month
            yield _standing(core, owner, account, ("month", month, limit, account.month_credit, spending.next_month_at))


def _standing(
    core: SchedulerCore, owner: BudgetOwner, account: SpendingAccount, figures: tuple[str, float, float, float, float]
) -> BudgetStanding:
    every, used, limit, credit, refills_at = figures
    return BudgetStanding(
        owner, account.unit, every, used, limit, credit, account.per_h, core.cycle.spending.committed(account),
        account.closed, refills_at,
    )  # fmt: skip
