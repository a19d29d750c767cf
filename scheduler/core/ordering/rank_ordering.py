"""Orders jobs by an order policy's key inside each priority class. No solve is needed.

The key of a waiting job changes only at round ends; the key of a running job changes as it runs and is computed when
another job wants its place. Jobs of equal rank do not preempt each other: the first column of the policy's key decides
which job outranks which. `LedgerOrderFacts` is what the policy may read of the jobs.

An order policy in another process is asked for keys in batches, and they stand as it last answered. Jobs without a key
are asked about as soon as nothing else is under way, all of them at the end of a round. Until the answer a job without
a key comes last in its priority class, by submission; so a place is never left free for one.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, compress
from math import inf, nan
from typing import Protocol

import numpy as np

from optimizer.policy import AskedOrder, GivenOrderFacts, OrderFacts, OrderPolicy, ResetsService
from optimizer.problem import BoolArray, FloatArray, IntArray
from optimizer.registry import make
from scheduler.core.commands import RankJobs
from scheduler.core.events import JobsRanked
from scheduler.core.rules import RoundRules
from scheduler.core.state.job_queues import JobQueues, QueueKey
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.policy_faults import GuardedOrder, checked_key, checked_renewal
from scheduler.core.state.remaining_work import remaining_here_of_all_s, remaining_on_best_s
from scheduler.core.state.stopping import Protection, StopFor, is_stopped_often, may_be_stopped
from scheduler.core.state.working_set import Cycle, Incumbents, JobOrdering
from walras.job_request import JobId

#: The most columns of a key that crosses processes.
_MOST_COLUMNS = 16


class _OfJobs(Protocol):
    """Facts that know whose they are."""

    @property
    def job_id(self) -> IntArray: ...


class AskedKeys:
    """An order as its policy last answered."""

    def __init__(self, policy: AskedOrder) -> None:
        self.preemptive, self.strict, self.aware = policy.preemptive, policy.strict, policy.aware
        #: Jobs whose key was wanted and is not known; whether a round has ended since all were asked about.
        self.missing: set[JobId] = set()
        self.all_due = False
        #: The request about all jobs that a round's end waits for; 0: none.
        self.about_all = 0
        self._keys: dict[JobId, tuple[float, ...]] = {}
        self._width = 1

    def key(self, facts: _OfJobs, n: int) -> list[FloatArray]:
        """Returns key columns of n jobs."""
        last = (inf,) * self._width
        found = np.full((n, self._width), inf)
        for row, job_id in enumerate(facts.job_id.tolist()):
            key = self._keys.get(job_id)
            if key is None:
                self.missing.add(job_id)
            found[row] = last if key is None else key
        return list(found.T)

    def renews(self, facts: object, n: int) -> BoolArray | None:
        """Returns None: whose service counts anew is part of an answer."""
        return None

    def take(self, answer: JobsRanked) -> bool:
        """Takes over an answer. Returns whether it is about all jobs, so that they may be compared."""
        about_all = answer.request_id == self.about_all
        keys = dict(zip(answer.job_ids, zip(*answer.key, strict=True), strict=True))
        self._keys = keys if about_all else self._keys | keys
        self._width = max(len(answer.key), self._width)
        if any(len(key) < self._width for key in self._keys.values()):
            self._keys = {job: (*key, *(0.0,) * (self._width - len(key))) for job, key in self._keys.items()}
        self.missing -= keys.keys()
        return about_all


def run_rank(command: RankJobs) -> JobsRanked:
    """Asks the policy, in its own process. Raises what it raises, and ValueError for answers that are none."""
    policy, facts, n = make(command.policy), command.facts, len(command.job_ids)
    assert isinstance(policy, OrderPolicy)
    renewed: list[JobId] = []
    if command.waiting.any() and isinstance(policy, ResetsService):
        again = checked_renewal(policy, facts, n) & command.waiting
        renewed = command.job_ids[again].tolist()
        facts = replace(facts, served_s=np.where(again, 0.0, facts.served_s))
    key = checked_key(policy, facts, n)
    if len(key) > _MOST_COLUMNS:
        raise ValueError(f"a key has {_MOST_COLUMNS} columns at most; this one has {len(key)}")
    columns = tuple(tuple(column.tolist()) for column in key)
    return JobsRanked(0.0, command.request_id, tuple(command.job_ids.tolist()), columns, tuple(renewed))


class LedgerOrderFacts:
    """`OrderFacts` of the jobs in these slots (for one job a slice of length one), each computed when it is read.

    `idle` states that the jobs hold nothing, so their attained service does not grow.
    """

    def __init__(self, ledger: Ledger, rows: IntArray | slice, *, idle: bool = False) -> None:
        self._ledger = ledger
        self._idle = idle
        self._columns = ledger.columns
        self._rows = rows
        self._attained_s: FloatArray | None = None
        self._remaining_s: FloatArray | None = None

    @property
    def job_id(self) -> IntArray:
        return self._columns.job_id[self._rows]

    @property
    def submitted_at(self) -> FloatArray:
        return self._columns.submitted_at[self._rows]

    @property
    def priority_class(self) -> IntArray:
        return self._columns.priority_class[self._rows]

    @property
    def gang(self) -> FloatArray:
        return self._columns.gang[self._rows]

    @property
    def deadline_at(self) -> FloatArray:
        return self._columns.deadline_at[self._rows]

    @property
    def attained_s(self) -> FloatArray:
        if self._attained_s is None:
            columns, rows = self._columns, self._rows
            self._attained_s = columns.attained_s[rows]
            if not self._idle:  # `count` is 0 for a job that holds nothing
                since_s = np.maximum(self._ledger.now - columns.settled_at[rows], 0.0)
                self._attained_s = self._attained_s + columns.count[rows] * since_s
        return self._attained_s

    @property
    def served_s(self) -> FloatArray:
        return self.attained_s - self._columns.renewed_at_s[self._rows]

    @property
    def waited_s(self) -> FloatArray:
        columns, rows = self._columns, self._rows
        return np.where(columns.pool[rows] >= 0, 0.0, self._ledger.now - columns.since_at[rows])

    @property
    def remaining_s(self) -> FloatArray:
        """Returns the remaining seconds by steps and speed, else by the submitter's guess; inf without either."""
        if self._remaining_s is None:
            self._remaining_s = remaining_on_best_s(self._ledger, self._rows)
        return self._remaining_s


def copied_facts(facts: OrderFacts) -> GivenOrderFacts:
    """Returns the facts as arrays of their own."""
    names = [field.name for field in fields(GivenOrderFacts)]
    return GivenOrderFacts(**{name: np.array(getattr(facts, name)) for name in names})


class RankOrdering(JobOrdering):
    """The ordering under an order policy, kept in heaps. Keys of many jobs are computed as arrays."""

    preempt_reason = "ranks before it"
    move_reason = "placed on"

    def __init__(self, ledger: Ledger, rules: RoundRules, policy: OrderPolicy) -> None:
        self._ledger = ledger
        self._rules = rules
        #: What is known of the order where its policy runs in another process.
        self.asked = AskedKeys(policy) if isinstance(policy, AskedOrder) else None
        self._policy = self.asked or GuardedOrder(policy, ledger.policy.failed)
        self.compares = self._policy.preemptive
        self.strict = self._policy.strict
        #: Ranks of jobs that were compared at this instant.
        self._ranks: dict[JobId, float] = {}
        self._ranked_at = nan
        self._ranking: _Ranking | None = None

    # ------------------------------------------------------------------------------------------ keys

    def _columns(self, rows: IntArray | slice) -> list[FloatArray]:
        """Returns the key as columns, most significant first: priority class, policy's columns, submission, job id."""
        columns = self._ledger.columns
        last = (columns.submitted_at[rows], columns.job_id[rows].astype(np.float64))
        own = self._policy.key(LedgerOrderFacts(self._ledger, rows), len(last[0]))
        return [-columns.priority_class[rows].astype(np.float64), *own, *last]

    def _remember(self, job_id: JobId, rank: float) -> None:
        if self._ranked_at != self._ledger.now:
            self._ranks.clear()
            self._ranked_at = self._ledger.now
        self._ranks[job_id] = rank

    def _rank(self, job: JobRecord) -> float:
        if self._ranked_at != self._ledger.now or job.job_id not in self._ranks:
            self._remember(job.job_id, self._columns(slice(job.slot, job.slot + 1))[1].item())
        return self._ranks[job.job_id]

    def keys(self, job: JobRecord) -> list[tuple[int, QueueKey]]:
        slot, columns = job.slot, self._ledger.columns
        facts = LedgerOrderFacts(self._ledger, slice(slot, slot + 1), idle=not job.place)
        own = [column.item() for column in self._policy.key(facts, 1)]
        key = (-columns.priority_class.item(slot), *own, columns.submitted_at.item(slot), job.job_id)
        return [(pool, key) for pool in self._ledger.class_of(job).pools]

    def _rank_all(self) -> "_Ranking":
        """Returns all active jobs in order. Computed once per event, because a round end needs it three times."""
        event_number = self._ledger.event_number
        if self._ranking is None or self._ranking.event_number != event_number:
            rows = self._ledger.columns.active.nonzero()[0]
            keys = self._columns(rows)
            order = np.lexsort(keys[::-1])
            self._ranking = _Ranking(event_number, rows[order], [column[order] for column in keys])
        return self._ranking

    # ------------------------------------------------------------------------------------------ keys from elsewhere

    def request_keys(self, cycle: Cycle) -> None:
        """Sends `RankJobs` for jobs without a key, after a round's end for all, if a policy elsewhere is idle."""
        asked, solves, columns = self.asked, cycle.solves, self._ledger.columns
        if asked is None:
            return
        asked.all_due |= cycle.due.round_ended
        if not (asked.all_due or asked.missing) or solves.in_flight or cycle.policy.fault is not None:
            return
        rows = columns.active.nonzero()[0]
        if not asked.all_due:
            rows = columns.slots_of(np.array(sorted(asked.missing), np.int64))
            rows = rows[rows >= 0]
        asked.missing.clear()
        waiting = self._waiting()[rows] & asked.all_due
        if len(rows):
            solves.last_request += 1
            solves.in_flight, solves.requested_at = solves.last_request, cycle.now
            asked.about_all = solves.in_flight if asked.all_due else 0
            facts = copied_facts(LedgerOrderFacts(self._ledger, rows))
            spec, job_ids = cycle.policy.spec, columns.job_id[rows].copy()
            cycle.commands.append(RankJobs(solves.in_flight, spec, job_ids, facts, waiting))
        asked.all_due = False

    def take_keys(self, answer: JobsRanked) -> bool:
        """Takes over keys and whose service counts anew; returns whether all jobs may now be compared."""
        assert self.asked is not None, "only a policy in another process answers"
        slots = self._ledger.columns.slots_of(np.array(answer.renewed, np.int64))
        slots = slots[slots >= 0]
        slots = slots[self._waiting()[slots]]
        self._ledger.columns.renewed_at_s[slots] = LedgerOrderFacts(self._ledger, slots).attained_s
        self._ranking, self._ranked_at = None, nan
        return self.asked.take(answer)

    # ------------------------------------------------------------------------------------------ queues

    def fill_queues(self, queues: JobQueues) -> None:
        """Fills the queues with every waiting job, once the policy has reset attained service (`renews`)."""
        ledger = self._ledger
        waiting = self._waiting()
        if not waiting.any():
            return
        self._renew(waiting.nonzero()[0])
        ranking = self._rank_all()
        chosen = waiting[ranking.rows].nonzero()[0]
        ids = ledger.columns.job_id[ranking.rows[chosen]].tolist()
        entries = list(zip(zip(*(column[chosen].tolist() for column in ranking.keys), strict=True), ids, strict=True))
        class_rows = ledger.columns.class_row[ranking.rows[chosen]]
        shapes = ledger.classes.shape_rows[class_rows].tolist()
        for pool, rates in enumerate(ledger.classes.rates[class_rows].T.tolist()):
            by_shape = defaultdict[int, list[tuple[QueueKey, JobId]]](list)
            for shape, rate, entry in zip(shapes, rates, entries, strict=True):
                if rate > 0:
                    by_shape[shape].append(entry)
            for shape in sorted(by_shape):
                queues.queue(pool, shape).plan(by_shape[shape])

    def _waiting(self) -> BoolArray:
        """Returns which slots have jobs that only lack a place; some may have one reserved (slots,)."""
        columns = self._ledger.columns
        waiting: BoolArray = columns.eligible & (columns.pool < 0)  # eligible implies active
        return waiting

    def _renew(self, rows: IntArray) -> None:
        facts = LedgerOrderFacts(self._ledger, rows)
        again = self._policy.renews(facts, len(rows))
        if again is not None:
            self._ranking = None
            self._ledger.columns.renewed_at_s[rows[again]] = facts.attained_s[again]

    # ------------------------------------------------------------------------------------------ preemption

    def challengers(self, most: int) -> Iterator[tuple[JobRecord, int]]:
        ledger, waiting = self._ledger, self._waiting()
        if not waiting.any():
            return
        ranking = self._rank_all()
        chosen = waiting[ranking.rows].nonzero()[0]
        rows = ranking.rows[chosen]
        job_ids, class_rows = ledger.columns.job_id[rows].tolist(), ledger.columns.class_row[rows].tolist()
        ranks = zip(*(column[chosen].tolist() for column in ranking.keys[:2]), strict=True)
        large_enough = {class_row: self._pools_large_enough(class_row) for class_row in set(class_rows)}
        lasts = self._last_ranks(ranking)
        last_of_all, looked_at = max(lasts, default=(-inf, -inf)), [0] * len(lasts)
        for job_id, class_row, rank in zip(job_ids, class_rows, ranks, strict=True):
            # Under a strict order the head blocks the rest even if it outranks no running job.
            if not self.strict and rank >= last_of_all:
                return
            fits = [pool for pool in large_enough[class_row] if self.strict or rank < lasts[pool]]
            on = [pool for pool in fits if looked_at[pool] < most]
            for pool in on:
                looked_at[pool] += 1
            job = ledger.jobs[job_id]
            if on and job.waits:
                self._remember(JobId(job_id), rank[1])
                yield from [(job, pool) for pool in self.pools_of(job) if pool in on]

    def _last_ranks(self, ranking: "_Ranking") -> list[tuple[float, float]]:
        """Returns (negated class, rank) of the last running job of each pool; (-inf, -inf) where none runs."""
        classes, ranks = ranking.keys[:2]
        pools = self._ledger.columns.pool[ranking.rows]
        places = [(pools == pool).nonzero()[0] for pool in range(self._ledger.columns.pools)]
        return [(classes.item(at[-1]), ranks.item(at[-1])) if len(at) else (-inf, -inf) for at in places]

    def _pools_large_enough(self, class_row: int) -> list[int]:
        """Returns the pools on which jobs of this class could run if the pools were empty."""
        job_class, pools = self._ledger.classes.classes[class_row], self._ledger.fleet.pools
        counts = self._ledger.classes.shapes[job_class.shape].counts
        return [pool for pool in job_class.pools if 0 < counts[pool] <= pools[pool].capacity]

    def pools_of(self, job: JobRecord) -> Sequence[int]:
        job_class = self._ledger.class_of(job)
        return job_class.fastest if self._policy.aware else job_class.pools

    def incumbents(self, pool: int, most: int) -> Incumbents:
        ledger, rules, now = self._ledger, self._rules, self._ledger.now
        columns, ranking = ledger.columns, self._rank_all()
        here = (columns.pool[ranking.rows] == pool) & (columns.fixed_at[ranking.rows] >= now)
        last = here.nonzero()[0][::-1][:most]
        slots = ranking.rows[last]
        jobs = [ledger.jobs[job_id] for job_id in columns.job_id[slots].tolist()]
        often = np.array([is_stopped_often(ledger, job) for job in jobs], np.bool_)
        return _RankedIncumbents(
            jobs,
            self,
            priority_class=columns.priority_class[slots].tolist(),
            before=(-ranking.keys[1][last]).tolist(),
            settled=~columns.loses_work[slots] & ~often & (now >= columns.profiling_until[slots]),
            protected=columns.protected_from(slots) + rules.protected_s > now,
            ran_s=now - columns.protected_from(slots),
            stop_s=ledger.stop_costs_s(slots, rules),
            left_s=remaining_here_of_all_s(ledger, slots),
        )

    def weaker_than(self, challenger: JobRecord, there: "_RankedIncumbents") -> Iterable[JobRecord]:
        """Yields the jobs whose place the challenger may take, weakest first.

        Jobs of a lower priority class yield at once, or once they are protected no longer. Inside a class, jobs of a
        later rank yield once they have run `hysteresis` times what the preemption costs, so restarts never take more
        than 1/(1 + hysteresis) of what the fleet delivers, whatever the order does.
        """
        own_class = challenger.request.priority_class
        own_rank, ripe = inf, there.ripe_after(self._ledger.restart_s(challenger, self._rules), self._rules)
        if self.compares:
            own_rank = self._rank(challenger)
        # The weakest come first: lower classes before the challenger's own, and in its own the latest ranks.
        lower, own = bisect_left(there.priority_class, own_class), bisect_right(there.priority_class, own_class)
        end = bisect_left(there.before, -own_rank, lower, own)
        yielding: Iterable[JobRecord] = there.jobs[:lower]
        if self._rules.protected_s > 0:
            yielding = compress(yielding, (~there.protected[:lower]).tolist())
        return chain(yielding, compress(there.jobs[lower:end], ripe[lower:end]))

    def protects(self, job: JobRecord) -> Protection | None:
        return may_be_stopped(self._ledger, job, StopFor.TURN) if self.compares else Protection.POLICY

    def alternatives(self, job: JobRecord, pool: int) -> list[int]:
        job_class = self._ledger.class_of(job)
        rates = job_class.speeds
        if not self._policy.aware or rates[pool] >= job_class.best_rate:
            return []
        return [other for other in job_class.fastest if rates[other] > rates[pool]]


@dataclass(slots=True)
class _Ranking:
    """All active jobs in the order they had at an event. Which of them wait or run may have changed since."""

    #: Number of the event (`Ledger.event_number`).
    event_number: int
    #: Slots in order, and their keys as columns, most significant first.
    rows: IntArray
    keys: list[FloatArray]


@dataclass(slots=True)
class _RankedIncumbents(Incumbents):
    """Incumbents of a pool as columns, the last in the order first."""

    order: RankOrdering
    #: Ascending by class; inside a class, the policy's first column, negated, ascending too.
    priority_class: list[int]
    before: list[float]
    #: Whether the job is not profiling, was not stopped too often, and does not lose its work when stopped.
    settled: BoolArray
    #: Whether the job keeps its place whoever wants it, if the rules protect jobs at all.
    protected: BoolArray
    #: Seconds since its ranks were up, lost if it is stopped, and left to run.
    ran_s: FloatArray
    stop_s: FloatArray
    left_s: FloatArray
    #: By the challenger's restart cost (seconds): which jobs have run long enough to be preempted. There are few costs.
    ripe: dict[float, list[bool]] = field(default_factory=dict)

    def ripe_after(self, start_s: float, rules: RoundRules) -> list[bool]:
        """Returns which jobs may be preempted by one of the same class whose restart takes `start_s` seconds."""
        found = self.ripe.get(start_s)
        if found is None:
            cost_s = start_s + self.stop_s
            ran_enough = self.ran_s >= np.maximum(rules.min_runtime_s, rules.hysteresis * cost_s)
            ran_enough &= ~self.protected
            # A job that is about to end frees its place sooner than a preemption could.
            found = self.ripe[start_s] = (self.settled & ran_enough & (self.left_s > cost_s)).tolist()
        return found

    def weaker_than(self, challenger: JobRecord) -> Iterable[JobRecord]:
        return self.order.weaker_than(challenger, self)
