"""Plans carried out: who runs where is the policy's word, event by event.

At an event that changes something the policy is asked; its answer names a place for every job that is to run. Jobs that
run where they were are left alone. Others start as places are free; where none is, those who are not planned there are
asked to go (an exchange keeps the place they leave). Whoever the plan leaves out and nobody displaces goes on. A plan
that no longer fits is dropped job by job, for all the next one cares.

The cost of a restart is in the policy's choice, so nothing here weighs it again. Between plans a newcomer is judged at
the plan's prices, unless the next plan is nearer than the restart that a hasty start may cost.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from optimizer.policy import PlanPolicy
from optimizer.problem import BoolArray, IntArray, Problem
from scheduler.core import resolve
from scheduler.core.cycle import Claim, Cycle
from scheduler.core.discipline import Incumbents
from scheduler.core.events import Proposal
from scheduler.core.intake import fill_lines_anew, set_round_timer, take_in
from scheduler.core.ledger.classes import Parts
from scheduler.core.ledger.ledger import JobRecord, Ledger
from scheduler.core.ledger.lines import Key, Lines
from scheduler.core.placement.claims import drop_claim
from scheduler.core.placement.regrouping import regroup
from scheduler.core.placement.spreads import spread_out, with_spreads
from scheduler.core.profiling import explore
from scheduler.core.rounds import compare, fill
from scheduler.core.rules import RoundRules
from walras.ids import JobId
from walras.states import JobState


class ByPlan:
    """The newest plan: each planned job has a right to its place, in the order of importance."""

    compares = True
    strict = False
    explores = True
    shrinks = False
    claim_text = "is worth more in this place"
    move_text = "planned on"

    def __init__(self, ledger: Ledger, moves: bool) -> None:
        self._ledger = ledger
        self._moves = moves
        self._ranked: Proposal | None = None
        self._rank: dict[JobId, int] = {}
        #: Jobs for which a place is being made on a pool where the speed of their kind is to be learnt.
        self.learning: set[JobId] = set()

    def _place_of(self, job: JobRecord) -> list[int]:
        """The pool in which it is planned as one gang; others are placed by `spreads.py`."""
        # Entitlements are never negative. Asked for each job several times a plan: the shortest way counts.
        pools: list[int] = self._ledger.columns.entitled[job.slot].nonzero()[0].tolist()
        return [] if job.request.spreads and self._ledger.planned_parts(job) else pools

    def _rank_of(self, job: JobRecord) -> int:
        """Place in the order of importance; who came after the plan is last."""
        assert self._ledger.standing is not None
        proposal = self._ledger.standing.proposal
        if proposal is not self._ranked:
            self._ranked = proposal
            asked = () if proposal is None else proposal.asked
            self._rank = {job_id: rank for rank, job_id in enumerate(asked)}
        return self._rank.get(job.job_id, len(self._rank))

    def keys(self, job: JobRecord) -> list[tuple[int, Key]]:
        key = (-float(job.request.priority_class), float(self._rank_of(job)), float(job.job_id))
        return [(pool, key) for pool in self._place_of(job)]

    def fill_lines(self, lines: Lines) -> None:
        columns = self._ledger.columns
        rows = np.flatnonzero(columns.active & columns.eligible & (columns.pool < 0))
        for row in rows[columns.entitled[rows].max(axis=1, initial=0.0) > 0].tolist():
            job = self._ledger.jobs[JobId(int(columns.job_id[row]))]
            for pool, key in self.keys(job):
                lines.push(job, pool, key)

    def contests(self, most: int) -> Iterator[tuple[JobRecord, int]]:
        """All who are planned where they are not: a plan has no more places than the fleet."""
        columns = self._ledger.columns
        rows = np.flatnonzero(columns.active & columns.eligible & (columns.entitled.max(axis=1, initial=0.0) > 0))
        jobs = [self._ledger.jobs[JobId(int(columns.job_id[row]))] for row in rows]
        for job in sorted(jobs, key=lambda job: (-job.request.priority_class, self._rank_of(job), job.job_id)):
            for pool in self._place_of(job):
                if columns.pool[job.slot] != pool or self._ledger.is_resized(job):
                    yield job, pool

    def spread(self) -> list[tuple[JobRecord, Parts]]:
        """(job, parts) of those who are planned over several pools or as several gangs, the most important first."""
        if not self._ledger.spreading:
            return []
        columns, found = self._ledger.columns, []
        rows = np.flatnonzero(columns.active & columns.eligible & (columns.entitled.max(axis=1, initial=0.0) > 0))
        for job_id in columns.job_id[rows].tolist():
            job = self._ledger.jobs[JobId(job_id)]
            parts = self._ledger.planned_parts(job)
            if parts:
                found.append((job, parts))
        return sorted(found, key=lambda each: (-each[0].request.priority_class, self._rank_of(each[0]), each[0].job_id))

    def pools_of(self, job: JobRecord) -> list[int]:
        return self._place_of(job)

    def incumbents(self, pool: int, most: int) -> Incumbents:
        columns = self._ledger.columns
        rows = np.flatnonzero(columns.active & (columns.pool == pool)).tolist()
        if columns.parts:
            rows += [slot for slot, (_, *more) in columns.parts.items() if any(there == pool for there, _ in more)]
        jobs = [self._ledger.jobs[JobId(int(columns.job_id[row]))] for row in rows]
        jobs.sort(key=lambda job: (not self._leaves(job, pool), *self._weakness(job)))
        jobs = jobs[:most]
        return _Leaving(jobs, [job for job in jobs if self._leaves(job, pool) and self.can_be_stopped(job)])

    def _leaves(self, job: JobRecord, pool: int) -> bool:
        """Whether the plan gives it another place than the one it has on the pool, or none."""
        planned = self._ledger.planned_parts(job)
        if planned:
            return self._ledger.parts_of(job) != planned
        return not self.is_entitled(job, pool) or self._ledger.is_resized(job)

    def _weakness(self, job: JobRecord) -> tuple[int, int, int]:
        return job.request.priority_class, -self._rank_of(job), -job.job_id

    def may_move(self, job: JobRecord, pool: int) -> bool:
        return self.is_entitled(job, pool) and self.can_be_stopped(job)

    def can_be_stopped(self, job: JobRecord) -> bool:
        can_save = job.request.preemptible and not job.loses_work
        return self._moves and can_save and self._ledger.now >= self.learns_until(job)

    def learns_until(self, job: JobRecord) -> float:
        """A lease on an unmeasured pool lasts from the first rank on: no plan may end it while it starts."""
        if job.profiling_until == -inf:
            return -inf
        assert self._ledger.standing is not None
        return max(job.profiling_until, job.running_at + self._ledger.standing.rules.profiling_s)

    def may_learn(self, job: JobRecord, pool: int) -> bool:
        assert self._ledger.standing is not None
        job_class = self._ledger.class_of(job)
        enough = self._ledger.standing.rules.opportunistic_rate * job_class.best_rate
        return self._moves and bool(job_class.rates[pool] >= max(enough, 1e-300))

    def learn(self, job: JobRecord, pool: int) -> None:
        """Its place is there until it has run for the length of a lease, whatever is planned meanwhile."""
        columns = self._ledger.columns
        columns.settle(job.slot, self._ledger.now)
        columns.entitled[job.slot] = 0.0
        columns.entitled[job.slot, pool] = self._ledger.count_on(job, pool)
        self.learning.add(job.job_id)

    def is_entitled(self, job: JobRecord, pool: int) -> bool:
        return bool(self._ledger.columns.entitled[job.slot, pool] > 0)

    def is_planned(self, claim: Claim) -> bool:
        """Whether what is being freed for a job is still where it is planned."""
        job = self._ledger.jobs[claim.job_id]
        planned = self._ledger.planned_parts(job)
        if planned:
            return self._ledger.fleet.parts_of(claim.wanted.items()) == planned
        return self.is_entitled(job, claim.pool) and len(self._ledger.fleet.parts_of(claim.wanted.items())) == 1

    def alternatives(self, job: JobRecord, pool: int) -> list[int]:
        return []


@dataclass(slots=True)
class _Leaving:
    """Who holds a place on a pool; before a planned job all yield who can and whom the plan does not have there."""

    jobs: list[JobRecord]
    stoppable: list[JobRecord]

    def weaker_than(self, challenger: JobRecord) -> Iterable[JobRecord]:
        return self.stoppable


class PlannedEvents:
    """A `RoundMechanism`: asks at events, and at round ends because time has passed; carries out what comes back."""

    def __init__(self, cycle: Cycle, policy: PlanPolicy, rules: RoundRules) -> None:
        self._discipline = cycle.discipline = ByPlan(cycle.ledger, policy.moves)
        self._carried_out: Proposal | None = None
        #: When the next lease ends, as far as is known.
        self._lease_ends_at = inf

    def settle(self, cycle: Cycle) -> None:
        """A new plan carried out, free places given to those planned there, a plan asked for."""
        proposal = cycle.standing.proposal
        is_new = proposal is not None and proposal is not self._carried_out
        if is_new:
            self._carried_out = proposal
        elif cycle.round_ended:
            cycle.dirty = True
        cycle.round_ended = False
        if cycle.ledger.profiling:
            self._watch_leases(cycle)
        self._discipline.learning.intersection_update(cycle.claims)
        if is_new or cycle.freed:
            self._drop_old_claims(cycle)
        fill_lines_anew(cycle)
        take_in(cycle)
        if is_new:
            compare(cycle)
            take_in(cycle)
            regroup(cycle)
        spread_out(cycle, self._discipline.spread(), may_displace=is_new)
        fill(cycle)
        if is_new:
            self._explore(cycle)
        resolve.ask_if_due(cycle, self._problem)
        set_round_timer(cycle)

    def _watch_leases(self, cycle: Cycle) -> None:
        """Who learns a speed cannot be stopped before its lease ends: from then on there is another plan to ask for."""
        if cycle.now >= self._lease_ends_at:
            self._lease_ends_at, cycle.dirty = inf, True
        learners = (self._discipline.learns_until(cycle.ledger.jobs[job_id]) for job_id in cycle.ledger.profiling)
        ends_at = min((until for until in learners if until > cycle.now), default=inf)
        if ends_at < self._lease_ends_at:
            self._lease_ends_at = ends_at
            cycle.timers.set(ends_at, "lease")  # to be awake then is all: nobody's timer

    def _explore(self, cycle: Cycle) -> None:
        """Leases to learn speeds: the plan has given everybody a place, and is told of these at its next turn."""
        for job, pool in explore(cycle):
            self._discipline.learn(job, pool)
            cycle.dirty = True

    def _drop_old_claims(self, cycle: Cycle) -> None:
        """Places kept for jobs that are planned elsewhere now; and reservations, for others may be complete sooner."""
        for claim in tuple(cycle.claims.values()):
            if not claim.exchange or not self._discipline.is_planned(claim):
                drop_claim(cycle, claim.job_id)

    def _problem(self, ledger: Ledger) -> Problem:
        return plan_problem(ledger, self._discipline)


def plan_problem(ledger: Ledger, discipline: ByPlan) -> Problem:
    """The ledger as a problem, with all that a planning policy is told.

    A job on its way to its planned place counts as running there: a plan half carried out must not look like another
    situation.
    """
    assert ledger.standing is not None
    rules, problem = ledger.standing.rules, resolve.build_problem(ledger)
    records = [ledger.jobs[JobId(job_id)] for job_id in problem.jobs.job_id.tolist()]
    slots = np.array([job.slot for job in records], dtype=np.int64)
    stays = np.array([job.holds and job.revoked is None for job in records], dtype=np.bool_)
    pinned = [
        (there and not (job.state is JobState.RUNNING and discipline.can_be_stopped(job)))
        or job.job_id in discipline.learning
        for job, there in zip(records, stays.tolist(), strict=True)
    ]
    asked = replace(
        problem,
        jobs=replace(
            problem.jobs,
            length_s=ledger.columns.duration_s[slots],
            restart_s=np.array([ledger.restart_s(job, rules) for job in records], dtype=np.float64),
            pinned=np.array(pinned, dtype=np.bool_),
        ),
        columns=replace(problem.columns, running=_running(ledger, problem, slots, stays)),
        finished_s=np.array(ledger.finished_s, dtype=np.float64),
    )
    return with_spreads(ledger, asked, records) if ledger.spreading else asked


def _running(ledger: Ledger, problem: Problem, slots: IntArray, stays: BoolArray) -> BoolArray:
    """Columns in which jobs run, or to which they are on their way (c,)."""
    columns = problem.columns
    if not len(columns):
        return columns.running
    entitled = ledger.columns.entitled[slots]
    bound_for = np.where(entitled.max(axis=1, initial=0.0) > 0, entitled.argmax(axis=1), -1)
    use = np.searchsorted(columns.use_column, np.arange(len(columns)))
    pool = columns.use_pool[use]
    size = ledger.classes.counts[ledger.columns.class_row[slots][columns.job], pool]
    bound = (bound_for[columns.job] == pool) & (columns.use_count[use] == size)
    return np.where(stays[columns.job], columns.running, bound)
