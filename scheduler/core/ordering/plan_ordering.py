"""Orders jobs by the newest plan: each planned job is entitled to its place, in the plan's order of importance."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from optimizer.policy import PlanPolicy
from optimizer.problem import BoolArray, IntArray, Problem
from scheduler.core.events import Proposal
from scheduler.core.state.job_classes import PoolParts
from scheduler.core.state.job_queues import JobQueues, QueueKey
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.placement_limits import Reservation
from scheduler.core.state.policy_faults import fault_of
from scheduler.core.state.remaining_work import Progress, progress_of, remaining_here_s, with_progress
from scheduler.core.state.stopping import CUT_PART, Protection, StopFor, is_on_rented, is_outclassed, may_be_stopped
from scheduler.core.state.working_set import Incumbents, JobOrdering
from walras.cluster import gang_usd_per_h
from walras.job_request import JobId

#: The part of the time in which a payer settles on what it rents that no free place shortens.
_RENTED_PART = 0.5


class PlanOrdering(JobOrdering):
    """The ordering under a plan: each planned job is entitled to its place, in the order of importance."""

    compares = True
    profiles = True
    shrinks_gangs = True
    preempt_reason = "is worth more in this place"
    move_reason = "planned on"

    def __init__(self, ledger: Ledger, moves: bool) -> None:
        self._ledger = ledger
        self.moves = moves
        self._ranked: Proposal | None = None
        self._rank: dict[JobId, int] = {}
        #: The proposal that was last found to hold still, what it answers, and what its jobs had done then.
        self._renewed: tuple[Proposal | None, Problem, Progress] | None = None
        #: Jobs with a reservation for a profiling lease that has not begun.
        self.awaiting_lease: set[JobId] = set()

    def _place_of(self, job: JobRecord) -> list[int]:
        """Returns [row] of the pool where the job is planned as one gang, else []; `planned_gangs.py` places others."""
        # Entitlements are never negative, so this test suffices. It runs several times per job and plan, so it must be
        # fast.
        pools: list[int] = self._ledger.columns.entitled[job.slot].nonzero()[0].tolist()
        return [] if job.request.spreads and self._ledger.planned_parts(job) else pools

    def _rank_of(self, job: JobRecord) -> int:
        """Returns the place in the order of importance; jobs that arrived after the plan come last."""
        proposal = self._ledger.policy.proposal
        if proposal is not self._ranked:
            self._ranked = proposal
            self._rank = {job_id: rank for rank, job_id in enumerate(self._by_importance())}
        return self._rank.get(job.job_id, len(self._rank))

    def _importance(self, job: JobRecord) -> tuple[int, int, JobId]:
        """Returns the job's place among all: by class, then as the plan has it. Smaller is more important."""
        return -job.request.priority_class, self._rank_of(job), job.job_id

    def _rows(self, *, is_planned: bool) -> IntArray:
        """Returns the slots of the jobs that may have accelerators and to which the plan gives some, or none."""
        columns = self._ledger.columns
        planned = columns.entitled.max(axis=1, initial=0.0) > 0
        return np.flatnonzero(columns.active & columns.eligible & (planned == is_planned))

    def _jobs(self, rows: IntArray) -> list[JobRecord]:
        return [self._ledger.jobs[JobId(job_id)] for job_id in self._ledger.columns.job_id[rows].tolist()]

    def renew(self, asked: Problem) -> None:
        """Notes that the newest plan, the answer to this problem, holds still; its order of importance may not.

        The policy is asked for the new order only if it is read, which is when a job has lost its place.
        """
        ledger = self._ledger
        self._renewed, self._ranked = (ledger.policy.proposal, asked, progress_of(ledger, asked)), None

    def _by_importance(self) -> Sequence[JobId]:
        """Returns the jobs of the newest plan, the most important first."""
        policy = self._ledger.policy
        proposal = policy.proposal
        if proposal is None:
            return ()
        if self._renewed is None or self._renewed[0] is not proposal or policy.fault is not None:
            return proposal.asked
        assert isinstance(policy.pricing, PlanPolicy)
        _, asked, progress = self._renewed
        try:
            plan, _ = policy.pricing.decide(with_progress(asked, progress), policy.memory)
        except (Exception, SystemExit) as error:  # foreign code: whatever it raises, the event is handled to its end
            policy.failed(fault_of("decide", error))
            return proposal.asked
        return [JobId(job_id) for job_id in asked.jobs.job_id[plan.rows].tolist()]

    def keys(self, job: JobRecord) -> list[tuple[int, QueueKey]]:
        places = self._place_of(job)
        if not places:
            return []
        key = (-float(job.request.priority_class), float(self._rank_of(job)), float(job.job_id))
        return [(pool, key) for pool in places]

    def fill_queues(self, queues: JobQueues) -> None:
        columns = self._ledger.columns
        rows = np.flatnonzero(columns.active & columns.eligible & (columns.pool < 0))
        for job in self._jobs(rows[columns.entitled[rows].max(axis=1, initial=0.0) > 0]):
            for pool, key in self.keys(job):
                queues.push(job, pool, key)

    def challengers(self, most: int) -> Iterator[tuple[JobRecord, int]]:
        """Yields all jobs that are planned where they are not.

        Their number is bounded by the places that a plan has.
        """
        columns = self._ledger.columns
        rows = self._rows(is_planned=True)
        if not self._ledger.spreading:
            rows = rows[~self._run_as_planned(rows)]
        for job in sorted(self._jobs(rows), key=self._importance):
            for pool in self._place_of(job):
                if columns.pool[job.slot] != pool or self._ledger.is_resized(job):
                    yield job, pool

    def _run_as_planned(self, rows: IntArray) -> BoolArray:
        """Returns whether the jobs in these slots run where alone they are planned, with as many accelerators (n,)."""
        columns = self._ledger.columns
        pool, planned = columns.pool[rows], columns.entitled[rows] > 0
        counts = self._ledger.classes.counts[columns.class_row[rows], pool]
        there = (pool >= 0) & planned[np.arange(len(rows)), pool] & (counts == columns.count[rows])
        alone: BoolArray = there & (planned.sum(axis=1) == 1)
        return alone

    def next_unplanned(self, class_row: int) -> JobRecord | None:
        """Returns the first in the plan's order of the waiting jobs of a class that have no place in it; None: none."""
        columns, rows = self._ledger.columns, self._rows(is_planned=False)
        rows = rows[(columns.pool[rows] < 0) & (columns.class_row[rows] == class_row)]
        found = (job for job in self._jobs(rows) if not (job.request.sizes or job.request.plans))
        return min(found, key=self._importance, default=None)

    def unplanned(self) -> list[JobRecord]:
        """Returns the waiting jobs to which the plan gives no place, the most important first."""
        ledger, rows = self._ledger, self._rows(is_planned=False)
        jobs = self._jobs(rows[ledger.columns.pool[rows] < 0])
        jobs = [job for job in jobs if job.waits and job.ready_at <= ledger.now and not job.request.plans]
        jobs = [job for job in jobs if self._rank_of(job) < len(self._rank)]  # others came since it was asked for
        return sorted(jobs, key=self._importance)

    def multi_pool_plans(self) -> list[tuple[JobRecord, PoolParts]]:
        """Returns (job, parts) of jobs planned over several pools or as several gangs, the most important first."""
        if not self._ledger.spreading:
            return []
        jobs = self._jobs(self._rows(is_planned=True))
        found = [(job, parts) for job in jobs if (parts := self._ledger.planned_parts(job))]
        return sorted(found, key=lambda each: self._importance(each[0]))

    def pools_of(self, job: JobRecord) -> list[int]:
        return self._place_of(job)

    def incumbents(self, pool: int, most: int) -> Incumbents:
        columns = self._ledger.columns
        rows = np.flatnonzero(columns.active & (columns.pool == pool))
        spread = [slot for slot, (_, *more) in columns.parts.items() if any(there == pool for there, _ in more)]
        jobs = self._jobs(np.append(rows, np.array(spread, np.int64)))
        jobs.sort(key=lambda job: (not self._leaves(job, pool), *self._weakness(job)))
        jobs = jobs[:most]
        return _PlanIncumbents(jobs, [job for job in jobs if self._leaves(job, pool) and self.protects(job) is None])

    def _leaves(self, job: JobRecord, pool: int) -> bool:
        """Returns whether the plan gives the job another place than the one it has on the pool, or none."""
        planned = self._ledger.planned_parts(job)
        if planned:
            return self._ledger.parts_of(job) != planned
        return not self.is_entitled(job, pool) or self._ledger.is_resized(job)

    def _weakness(self, job: JobRecord) -> tuple[int, int, int]:
        return job.request.priority_class, -self._rank_of(job), -job.job_id

    def may_move(self, job: JobRecord, pool: int, fetch_s: float = 0.0) -> bool:
        return self.is_entitled(job, pool) and self.protects(job) is None

    def protects(self, job: JobRecord) -> Protection | None:
        if not self.moves:
            return Protection.POLICY
        protection = may_be_stopped(self._ledger, job, StopFor.TURN)
        if protection is None and self._ledger.now < self.lease_ends_at(job):
            return Protection.MEASURED
        if protection is None and self._ledger.now < self._protected_until(job):
            return Protection.RAN_TOO_SHORT
        return protection

    def _protected_until(self, job: JobRecord) -> float:
        """Returns until when the job keeps its place.

        Where machines are rented, arrivals and ends change who is worth which machine for minutes only: a restarted
        job, a payer on what it rents, and one that no other place suits better, stay until a restart is a small part of
        the run, a higher class waits, or a free place repays the move and the rest of that time: but half of that time
        a job stays on what it rents. What a change of size costs an elastic job, its policy weighs.
        """
        rules, protected_s = self._ledger.policy.rules, self._ledger.policy.rules.protected_s
        if not job.request.sizes and any(state.rented for state in self._ledger.fleet.pools):
            settles = not self._rides(job) and (job.attempt > 1 or self._gains_most_here(job))
            if settles and not is_outclassed(self._ledger, job):
                settled_s = self._ledger.restart_s(job, rules) / CUT_PART
                left_s = job.protected_from + settled_s - self._ledger.now
                is_new = is_on_rented(self._ledger, job) and left_s > _RENTED_PART * settled_s
                if is_new or not self._gains_by_moving(job, left_s):
                    protected_s = max(protected_s, settled_s)
        return job.protected_from + protected_s if protected_s > 0 else -inf

    def _gains_by_moving(self, job: JobRecord, least_s: float) -> bool:
        """Returns whether a free owned place shortens the job's rest by several restarts, and by so many seconds."""
        ledger, rules, job_class = self._ledger, self._ledger.policy.rules, self._ledger.class_of(job)
        rate, left_s = ledger.rate_of(job), remaining_here_s(ledger, job)
        gains_s = max(least_s, rules.hysteresis * ledger.restart_s(job, rules))
        for pool in job_class.fastest:
            if left_s == inf or left_s * (1 - rate / job_class.speeds[pool]) <= gains_s:
                return False
            is_owned = not ledger.fleet.pools[pool].rented
            if is_owned and ledger.fleet.find(pool, ledger.classes.shapes[job_class.shape]) is not None:
                return True
        return False

    def _gains_most_here(self, job: JobRecord) -> bool:
        """Returns whether the job pays for its place, or is worth something and no other leaves it more, in USD."""
        ledger, job_class = self._ledger, self._ledger.class_of(job)
        value, here = ledger.policy.rules.value_of(job.request)[0], int(ledger.columns.pool[job.slot])
        net = [
            value * job_class.rates[state.row]
            - job_class.best_rate * gang_usd_per_h(state.pool, ledger.count_on(job, state.row)) * state.rented
            for state in ledger.fleet.pools
        ]
        return value > 0 and here >= 0 and (ledger.fleet.pools[here].rented or net[here] >= max(net))

    def _rides(self, job: JobRecord) -> bool:
        """Returns whether the job is on a machine that others pay for, where payers do not wait for it."""
        pool = int(self._ledger.columns.pool[job.slot])
        is_rented = pool >= 0 and self._ledger.fleet.pools[pool].rented
        return is_rented and self._ledger.policy.rules.value_of(job.request)[0] <= 0

    def lease_ends_at(self, job: JobRecord) -> float:
        """Returns when the job's profiling lease, counted from when all ranks run, ends; -inf if it has none."""
        if job.profiling_until == -inf:
            return -inf
        return max(job.profiling_until, job.protected_from + self._ledger.policy.rules.profiling_s)

    def may_profile(self, job: JobRecord, pool: int) -> bool:
        job_class = self._ledger.class_of(job)
        enough = self._ledger.policy.rules.opportunistic_rate * job_class.best_rate
        return self.moves and bool(job_class.rates[pool] >= max(enough, 1e-300))

    def grant_lease(self, job: JobRecord, pool: int) -> None:
        """Entitles the job to the pool until it has run there for the length of a lease, whatever plans come."""
        columns = self._ledger.columns
        columns.settle(job.slot, self._ledger.now)
        columns.entitled[job.slot] = 0.0
        columns.entitled[job.slot, pool] = self._ledger.count_on(job, pool)
        self.awaiting_lease.add(job.job_id)

    def is_entitled(self, job: JobRecord, pool: int) -> bool:
        return bool(self._ledger.columns.entitled[job.slot, pool] > 0)

    def is_planned(self, reservation: Reservation) -> bool:
        """Returns whether the place that is being freed for a job is still where the job is planned."""
        job = self._ledger.jobs[reservation.job_id]
        planned = self._ledger.planned_parts(job)
        if planned:
            return self._ledger.fleet.parts_of(reservation.wanted.items()) == planned
        return (
            self.is_entitled(job, reservation.pool)
            and len(self._ledger.fleet.parts_of(reservation.wanted.items())) == 1
        )


@dataclass(slots=True)
class _PlanIncumbents(Incumbents):
    """Incumbents of a pool. All of its class or below that can be stopped and are not planned there yield to a planned
    job. One of a higher class leaves for its own planned place alone.
    """

    stoppable: list[JobRecord]

    def weaker_than(self, challenger: JobRecord) -> Iterable[JobRecord]:
        return [job for job in self.stoppable if job.request.priority_class <= challenger.request.priority_class]
