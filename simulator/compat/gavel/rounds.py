"""Gavel's round mechanism, for the scheduler core: priorities by share over time received, a greedy pass per type.

Follows `GavelScheduler._update_priorities` and `_schedule_jobs_on_workers` as they behave, defects included:

* a solve waits for the gate (`RoundRules.resolve_min_s` since the last one) and newcomers wait for the solve;
* after an idle gap the time since the last round counts as received;
* leftover accelerators go to whoever ranks next, wanted there or not.

The world moves in step (`simulator.lockstep`): nothing happens but at `RoundEnded`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np

from scheduler.core import resolve
from scheduler.core.commands import BeginRound
from scheduler.core.cycle import Cycle
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.placement.attempts import revoke, start
from scheduler.core.placement.claims import form_of
from scheduler.core.rules import RoundRules
from simulator.compat.gavel.problem import gavel_problem
from simulator.compat.gavel.rows import ALONE, NewRow, Rows, Selection
from walras.ids import JobId, Kind
from walras.reasons import Reason

#: The order in which types are filled.
TYPE_ORDER = ("v100", "p100", "k80")


class PairSpeeds(Protocol):
    """Speeds of two jobs on the same accelerators (`simulator.truth.Truth`)."""

    def beside(self, kind: Kind, other: Kind, accelerator: str, count: int) -> float:
        """Speed of the first kind beside the second; 0 where they do not go together."""
        ...


def all_of_it(ran_s: float, began: bool) -> float:
    """Nothing is lost by starting: what a job ran for is what it received."""
    return ran_s


@dataclass(frozen=True, slots=True)
class GavelRules:
    """What differs between Gavel's policies, and between its forks, in the mechanism."""

    #: The order of types is drawn anew for every round, from this seed; None: it never changes.
    shuffle_seed: int | None = None
    #: Rows without a share fill nothing (the FIFO policies).
    only_shares: bool = False
    #: Two jobs may share accelerators at these speeds; None: no job shares.
    pairs: PairSpeeds | None = None
    #: Seconds that count as received by a job that ran for so long, and was started for this round or not.
    received_s: Callable[[float, bool], float] = all_of_it


class GavelRounds:
    """A `RoundMechanism`: solve if the gate allows, rank, move who must move, begin the next round."""

    def __init__(self, cycle: Cycle, rules: RoundRules, gavel: GavelRules) -> None:
        self._rules = rules
        self._gavel = gavel
        self._random = None if gavel.shuffle_seed is None else Random(gavel.shuffle_seed)
        self._rows = Rows(0, rules.round_s / 2)
        self._now_on: Selection = {}
        self._next: Selection = {}
        #: When each job was admitted; those that have ended since the last round are still here.
        self._known: dict[JobId, float] = {}
        self._stopping: list[JobRecord] = []
        #: Jobs that were started for this round; those of the very first are none, they replace nobody.
        self._started: set[JobId] = set()
        self._is_first = True
        #: Jobs there were at the last event, and when those ended that ran in this round.
        self._active = 0
        self._ended_at: dict[JobId, float] = {}
        self._began_at = 0.0
        self._reset_at = 0.0
        self._is_planning = False
        self._asked = False
        #: A job has come, ended or made nothing since the last solve was asked for.
        self._changed = True
        cycle.ledger.columns.counts_owed = False  # what each has received is counted in `Rows`, in Gavel's way

    def settle(self, cycle: Cycle) -> None:
        """Nothing to do but where a round has ended, a solve is answered, or the last that must go is gone."""
        self._note_ends(cycle)
        if cycle.beat is not None:
            self._round_ended(cycle)
        if self._asked and not cycle.in_flight:
            self._asked = False
            self._take_answer(cycle)
            self._plan(cycle)
        elif self._is_planning:
            self._move(cycle)

    # -- a round has ended

    def _round_ended(self, cycle: Cycle) -> None:
        beat, cycle.beat = cycle.beat, None
        assert beat is not None
        self._forget_ended(cycle)
        self._credit(dict(zip(beat.job_ids, beat.stopped_at, strict=True)))
        if self._now_on:
            self._began_at = beat.at
        elif not cycle.arrived:
            self._reset_at = 0.0  # nothing runs and nothing will come: the gate opens
        self._admit(cycle)
        is_due = cycle.now - self._reset_at >= self._rules.resolve_min_s or self._reset_at == 0
        if self._changed and is_due:
            self._rows.settle(cycle.now - self._reset_at)
            self._reset_at = cycle.now
            self._changed = False
            if cycle.ledger.jobs:
                self._asked = True
                resolve.ask(cycle, gavel_problem(cycle.ledger, self._known))
                return
        self._plan(cycle)

    def _forget_ended(self, cycle: Cycle) -> None:
        ended = [job_id for job_id in self._known if job_id not in cycle.ledger.jobs]
        if ended:
            self._rows.drop(ended)
            for job_id in ended:
                del self._known[job_id]

    def _note_ends(self, cycle: Cycle) -> None:
        """Jobs that have just ended received time until now."""
        if len(cycle.ledger.jobs) < self._active:
            self._changed = True
            ended = (job_id for job_id in self._now_on if job_id not in cycle.ledger.jobs)
            for job_id in ended:
                self._ended_at.setdefault(job_id, cycle.now)
        self._active = len(cycle.ledger.jobs)

    def _credit(self, stopped_at: dict[JobId, float]) -> None:
        """The time of the round, summed up in Gavel's order: the last to stop first. A pair's counts once."""
        stopped_at.update(self._ended_at)
        self._ended_at = {}
        received: list[tuple[int | None, int, float]] = []
        started, now_on, row_of = self._started, self._now_on, self._rows.find
        began_at, received_in = self._began_at, self._gavel.received_s
        for behind_s, job_id in sorted([(-at, job_id) for job_id, at in stopped_at.items() if job_id in now_on]):
            pool, other = now_on[job_id]
            if other != ALONE and other < job_id:
                continue
            ran_s = -behind_s - began_at
            if ran_s <= 0.0:
                self._changed = True
            received.append((row_of(job_id, other), pool, received_in(ran_s, job_id in started)))
        self._rows.credit(received)

    def _admit(self, cycle: Cycle) -> None:
        """Newcomers take part from now on."""
        ledger, (arrived, cycle.arrived) = cycle.ledger, (cycle.arrived, [])
        if not arrived:
            return
        if not len(self._rows):
            self._rows = Rows(len(ledger.fleet.pools), self._rules.round_s / 2)
        new: list[NewRow] = []
        for job_id in sorted(job_id for job_id in arrived if job_id in ledger.jobs and job_id not in self._known):
            job = ledger.jobs[job_id]
            ledger.set_eligible(job)
            self._changed = True
            count = max(form_of(cycle, job).counts)
            new.append(NewRow(job_id, ALONE, count, ledger.class_of(job).rates > 0))
            if self._gavel.pairs is not None:
                new.extend(self._pairs_of(cycle, job, count, self._gavel.pairs))
            self._known[job_id] = cycle.now
        self._rows.add(new)

    def _pairs_of(self, cycle: Cycle, job: JobRecord, count: int, speeds: PairSpeeds) -> list[NewRow]:
        ledger, pairs = cycle.ledger, []
        accelerators = [state.pool.shape.accelerator for state in ledger.fleet.pools]
        for other_id in self._known:
            other = ledger.jobs[other_id]
            if max(form_of(cycle, other).counts) != count:
                continue
            one, two = other.request.kind, job.request.kind
            runs = np.array(
                [speeds.beside(one, two, a, count) > 0 and speeds.beside(two, one, a, count) > 0 for a in accelerators]
            )
            pairs.append(NewRow(other_id, job.job_id, count, runs))
        return pairs

    # -- a solve is answered

    def _take_answer(self, cycle: Cycle) -> None:
        proposal = cycle.standing.proposal
        if proposal is None or cycle.standing.solved_at < self._reset_at:
            self._changed = True
            return  # the solve failed: what was decided before goes on
        known = self._known
        alone = zip(proposal.job_ids, proposal.pool_rows, proposal.shares, strict=True)
        cells = [((self._rows.row(job), pool), share) for job, pool, share in alone if job in known]
        cells += [
            ((self._rows.row(one, two), pool), share)
            for one, two, pool, share in proposal.packed
            if one in known and two in known
        ]
        self._rows.allocate(proposal.asked, [cell for cell, _ in cells], [share for _, share in cells])

    # -- the next round

    def _plan(self, cycle: Cycle) -> None:
        pools = cycle.ledger.fleet.pools
        order = list(TYPE_ORDER)
        if self._random is not None:
            self._random.shuffle(order)
        row_of = {state.pool.shape.accelerator: state.row for state in pools}
        self._next = self._rows.select(
            [row_of[name] for name in order if name in row_of],
            [state.capacity for state in pools],
            only_shares=self._gavel.only_shares,
        )
        jobs = cycle.ledger.jobs
        before, self._now_on, self._stopping = self._now_on, {}, []
        for job_id, where in before.items():
            if job_id not in jobs:
                continue
            if self._next.get(job_id) == where and (where[1] == ALONE or where[1] in jobs):
                self._now_on[job_id] = where
            else:
                self._stopping.append(jobs[job_id])
        for job in self._stopping:
            revoke(cycle, job, Reason.POLICY_PREEMPTED)
        self._is_planning = True
        self._move(cycle)

    def _move(self, cycle: Cycle) -> None:
        """Start the newcomers of the round and begin it, once everybody who must go has gone."""
        while self._stopping and not self._stopping[-1].holds:
            self._stopping.pop()
        if self._stopping:
            return
        self._is_planning = False
        fleet, jobs = cycle.ledger.fleet, cycle.ledger.jobs
        self._started = set() if self._is_first else self._next.keys() - self._now_on.keys()
        self._is_first = self._is_first and not self._next
        for job_id, (pool, other) in self._next.items():
            if job_id in self._now_on:
                continue
            job = jobs[job_id]
            if other in self._now_on:
                start(cycle, job, pool, jobs[other].place, beside=jobs[other])
            else:
                place = fleet.find(pool, form_of(cycle, job))
                assert place is not None, f"no room for job {job_id} in {fleet.pools[pool].pool.pool_id}"
                start(cycle, job, pool, place)
            self._now_on[job_id] = pool, other
        cycle.commands.append(BeginRound(self._rules.round_s))
