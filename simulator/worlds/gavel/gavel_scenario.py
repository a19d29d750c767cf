"""Gavel's simulator as a scenario: its policies by name, its round mechanism and its time model.

In the round mechanism priority is share over received time, and each type is filled in one greedy pass. It follows
`GavelScheduler._update_priorities` and `_schedule_jobs_on_workers` as they behave, defects included:

* a solve waits until `RoundRules.resolve_min_s` have passed since the last one, and newcomers wait for the solve;
* after an idle gap the time since the last round counts as received;
* leftover accelerators go to the next job in order, whether or not it has a share there.

The world moves in lockstep: decisions are made only at `RoundEnded`. `ServiceTable` has one row for each job, and one
for each pair of jobs that may share accelerators. Rows are in order of creation (a job's own, then its pairs with the
jobs then active, by id), which breaks ties; the arrays have one column per pool.

Attempts run in lockstep, as in round-based simulators: in a round an attempt makes as many whole steps as fit into the
round's length, or as are left. The round ends with its last attempt, so its length differs from the configured one. A
job that completes ends at its own instant. Starts and stops cost nothing. While nothing runs, the clock jumps to the
next arrival.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from optimizer.policy import Policy, PolicySpec
from optimizer.problem import BoolArray, FloatArray, IntArray
from scheduler.core.commands import BeginRound
from scheduler.core.cycle import solve_requests
from scheduler.core.events import AttemptEnded, AttemptStarted, EndCause, Event, RoundEnded
from scheduler.core.placement.attempt_lifecycle import revoke_attempt, start_attempt
from scheduler.core.placement.search import find_free_place
from scheduler.core.rules import RoundRules
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from scheduler.world.attempts import AttemptSimulator, SimAttempt, SimAttemptPhase, WorldParameters
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import PoolModel, SimulatedMachines
from scheduler.world.world import MakeAttemptSimulator
from simulator.experiment import speeds_path_of, trace_experiment
from simulator.ground_truth import GroundTruth
from simulator.simulation import Scenario, SchedulerWiring
from simulator.workloads.trace_binding import read_pair_speeds
from simulator.worlds.gavel.heuristic_policies import (
    GavelAlloX,
    GavelFifo,
    GavelFifoPacked,
    GavelFifoPerf,
    GavelGandiva,
    GavelIsolated,
    GavelPolicy,
    PairSpeeds,
    gavel_problem,
    gavel_solver,
)
from simulator.worlds.gavel.program_policies import (
    ConeSolver,
    GavelFinishTimeFairness,
    GavelMaxMinFairness,
    GavelMaxSumThroughput,
    GavelMinTotalDuration,
    GavelWaterFilling,
    solve_cone_program,
    with_cone_solver,
)
from simulator.worlds.stepped_mechanism import own_wiring
from simulator.worlds.world_registry import WorldRequest, WorldRun, owned_pools
from walras.contract import EXIT_CHECKPOINTED
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.states import Reason

#: Stands for the second member in the row of a single job.
ALONE = JobId(-1)

#: The pool of each selected job, and the job with which it shares accelerators.
GavelSelection = dict[JobId, tuple[int, JobId]]


@dataclass(slots=True)
class NewServiceRow:
    """A job, or two jobs with equal gangs, and the pools on which all members have a speed."""

    first: JobId
    second: JobId
    count: int
    runs: BoolArray


class ServiceTable:
    """Received time, deficit (both in seconds) and share of every row on every pool."""

    def __init__(self, pools: int, prior_s: float) -> None:
        self._prior_s = prior_s
        self._index: dict[tuple[int, int], int] = {}
        self.first: IntArray = np.zeros(0, np.int64)
        self.second: IntArray = np.zeros(0, np.int64)
        self.count: IntArray = np.zeros(0, np.int64)
        self.runs: BoolArray = np.zeros((0, pools), bool)
        self.time_s: FloatArray = np.zeros((0, pools))
        #: Seconds received by all rows since the last solve, removed rows included, and a prior for each row.
        self.busy_s: FloatArray = np.zeros(pools)
        self.deficit_s: FloatArray = np.zeros((0, pools))
        #: Shares of the last solve, not rounded, because noise of 1e-9 orders the rows that get leftover accelerators.
        self.share: FloatArray = np.zeros((0, pools))
        #: Whether the last solve covered all members of the row.
        self.allocated: BoolArray = np.zeros(0, bool)
        #: (members, gang, allocated) of every row for the greedy pass; rebuilt when rows or shares change.
        self._plain: list[tuple[int, int, int, bool]] = []

    def __len__(self) -> int:
        return len(self.first)

    def add(self, new: Sequence[NewServiceRow]) -> None:
        """Adds rows: a new job starts with half a round received, a new pair with none."""
        if not new:
            return
        alone = np.array([row.second == ALONE for row in new])
        pools = self.runs.shape[1]
        fresh = np.zeros((len(new), pools))
        self.first = np.append(self.first, [row.first for row in new])
        self.second = np.append(self.second, [row.second for row in new])
        self.count = np.append(self.count, [row.count for row in new])
        self.runs = np.vstack([self.runs, [row.runs for row in new]])
        self.time_s = np.vstack([self.time_s, fresh + np.where(alone, self._prior_s, 0.0)[:, None]])
        self.deficit_s = np.vstack([self.deficit_s, fresh])
        self.share = np.vstack([self.share, fresh])
        self.allocated = np.append(self.allocated, np.zeros(len(new), bool))
        self._reindex()

    def drop(self, ended: Collection[JobId]) -> None:
        """Removes the rows of these ended jobs, and of every pair that contains one of them."""
        stays = np.ones(len(self), bool)
        for job_id in ended:  # there is rarely more than one per round
            stays &= (self.first != job_id) & (self.second != job_id)
        self.first, self.second, self.count = self.first[stays], self.second[stays], self.count[stays]
        self.runs, self.time_s, self.deficit_s = self.runs[stays], self.time_s[stays], self.deficit_s[stays]
        self.share, self.allocated = self.share[stays], self.allocated[stays]
        self._reindex()

    def _reindex(self) -> None:
        pairs = zip(self.first.tolist(), self.second.tolist(), strict=True)
        self._index = {pair: row for row, pair in enumerate(pairs)}
        self._list_plainly()

    def _list_plainly(self) -> None:
        columns = (self.first.tolist(), self.second.tolist(), self.count.tolist(), self.allocated.tolist())
        self._plain = list(zip(*columns, strict=True))

    def find(self, first: JobId, second: JobId) -> int | None:
        """Returns the row of a job, or of a pair in ascending order of numbers; None if it was removed."""
        return self._index.get((first, second))

    def row(self, first: JobId, second: JobId = ALONE) -> int:
        """Returns the row of a job or of a pair (members in either order)."""
        return self._index[first, second] if second == ALONE or first < second else self._index[second, first]

    def credit(self, received: Iterable[tuple[int | None, int, float]]) -> None:
        """Credits (row, pool, seconds) of the round that has ended; row None: the row was removed.

        A row occurs at most once.
        """
        busy_s, known = self.busy_s.tolist(), []
        for cell in received:
            busy_s[cell[1]] += cell[2]  # one by one: the order of a sum decides its last digit
            if cell[0] is not None:
                known.append(cell)
        self.busy_s[:] = busy_s
        if known:
            rows, pools, times_s = zip(*known, strict=True)
            self.time_s[rows, pools] += times_s

    def settle(self, since_s: float) -> None:
        """Updates deficits before a solve: time due to each row in the last `since_s` seconds, less time received."""
        due_s = np.where(self.allocated[:, None], self.share * since_s, 0.0)
        self.deficit_s += due_s - (self.time_s - self._prior_s)
        self.time_s[:] = self._prior_s
        self.busy_s[:] = self._prior_s * len(self)

    def allocate(self, asked: Iterable[JobId], cells: Sequence[tuple[int, int]], shares: Sequence[float]) -> None:
        """Takes the answer of a solve: shares of (row, pool) cells, and the jobs that the solve covered."""
        known = {ALONE, *asked}
        members = zip(self.first.tolist(), self.second.tolist(), strict=True)
        self.allocated = np.array([first in known and second in known for first, second in members], bool)
        self._list_plainly()
        self.share[:] = 0.0
        if cells:
            rows, pools = np.array(cells).T
            self.share[rows, pools] = np.clip(shares, 0.0, 1.0)

    def select(self, pools: Sequence[int], free: Sequence[int], *, only_shares: bool) -> GavelSelection:
        """Selects the jobs of the next round in one greedy pass per pool, by share over received time, then deficit,
        then share.

        A row that the last solve did not cover takes its place like any other and then leaves it empty. With
        `only_shares`, rows without a share get no accelerators.
        """
        # Gavel divides twice; a single division would break other ties among shares that differ in the last digit.
        part = self.time_s / np.maximum(self.busy_s, self._prior_s)
        priority = np.divide(self.share, part, out=np.zeros(part.shape), where=part > 0)
        allowed = self.runs & (priority > 0) if only_shares else self.runs
        order = np.lexsort((-self.share, -self.deficit_s, -priority), axis=0)
        taken: set[int] = set()
        chosen: GavelSelection = {}
        rows = self._plain
        for pool in pools:
            ranked = order[:, pool]
            _fill_pool(pool, free[pool], [rows[row] for row in ranked[allowed[ranked, pool]].tolist()], taken, chosen)
        return chosen


def _fill_pool(
    pool: int, free: int, ranked: Sequence[tuple[int, int, int, bool]], taken: set[int], chosen: GavelSelection
) -> None:
    """Gives the free accelerators of a pool to rows (members, gang, covered by the last solve), in this order."""
    for first, second, count, allocated in ranked:
        if count > free or first in taken or second in taken:
            continue
        taken.add(first)
        if second != ALONE:
            taken.add(second)
        free -= count
        if allocated:
            chosen[JobId(first)] = pool, JobId(second)
            if second != ALONE:
                chosen[JobId(second)] = pool, JobId(first)
        if not free:
            return


#: The order in which types are filled.
TYPE_ORDER = ("v100", "p100", "k80")


def full_time_received(ran_s: float, began: bool) -> float:
    """Returns all of the run time: a start costs nothing."""
    return ran_s


@dataclass(frozen=True, slots=True)
class GavelRules:
    """Differences in the mechanism between Gavel's policies, and between its forks."""

    #: Seed with which the order of types is shuffled before every round; None: the order is fixed.
    shuffle_seed: int | None = None
    #: True: rows without a share get no accelerators (the FIFO policies).
    only_shares: bool = False
    #: Speeds at which two jobs may share accelerators; None: no job shares.
    pairs: PairSpeeds | None = None
    #: Seconds that count as received, by the run time of a job and whether it was started for this round.
    received_s: Callable[[float, bool], float] = full_time_received


class GavelRounds:
    """A `RoundMechanism`: solves if the minimum interval has passed, ranks, reallocates, begins the next round."""

    def __init__(self, cycle: Cycle, rules: RoundRules, gavel: GavelRules) -> None:
        self._rules = rules
        self._gavel = gavel
        self._random = None if gavel.shuffle_seed is None else Random(gavel.shuffle_seed)
        self._rows = ServiceTable(0, rules.round_s / 2)
        self._now_on: GavelSelection = {}
        self._next: GavelSelection = {}
        #: Instant of admission of each job, including jobs that have ended since the last round.
        self._known: dict[JobId, float] = {}
        self._stopping: list[JobRecord] = []
        #: Jobs that were started for this round; empty in the first round, in which no job is replaced.
        self._started: set[JobId] = set()
        self._is_first = True
        #: Number of active jobs at the last event; instants at which jobs that ran in this round ended.
        self._active = 0
        self._ended_at: dict[JobId, float] = {}
        self._began_at = 0.0
        self._reset_at = 0.0
        self._is_planning = False
        self._is_solving = False
        #: Whether a job arrived, ended or made no steps since the last solve request.
        self._changed = True
        cycle.ledger.columns.counts_owed = False  # `ServiceTable` counts received time instead, in Gavel's way

    def settle(self, cycle: Cycle) -> None:
        """Acts when a round has ended, a solve was answered, or the last of the stopping jobs has ended."""
        self._note_ends(cycle)
        if cycle.due.lockstep_round is not None:
            self._round_ended(cycle)
        if self._is_solving and not cycle.solves.in_flight:
            self._is_solving = False
            self._take_answer(cycle)
            self._plan(cycle)
        elif self._is_planning:
            self._move(cycle)

    # -- a round has ended

    def _round_ended(self, cycle: Cycle) -> None:
        beat = cycle.due.lockstep_round
        assert beat is not None
        self._forget_ended(cycle)
        self._credit(dict(zip(beat.job_ids, beat.stopped_at, strict=True)))
        if self._now_on:
            self._began_at = beat.at
        elif not cycle.backlog.arrived:
            self._reset_at = 0.0  # no job runs and none will arrive, so the solve does not wait
        self._admit(cycle)
        is_due = cycle.now - self._reset_at >= self._rules.resolve_min_s or self._reset_at == 0
        if self._changed and is_due:
            self._rows.settle(cycle.now - self._reset_at)
            self._reset_at = cycle.now
            self._changed = False
            if cycle.ledger.jobs:
                self._is_solving = True
                solve_requests.request_solve(cycle, gavel_problem(cycle.ledger, self._known))
                return
        self._plan(cycle)

    def _forget_ended(self, cycle: Cycle) -> None:
        ended = [job_id for job_id in self._known if job_id not in cycle.ledger.jobs]
        if ended:
            self._rows.drop(ended)
            for job_id in ended:
                del self._known[job_id]

    def _note_ends(self, cycle: Cycle) -> None:
        if len(cycle.ledger.jobs) < self._active:
            self._changed = True
            ended = (job_id for job_id in self._now_on if job_id not in cycle.ledger.jobs)
            for job_id in ended:
                self._ended_at.setdefault(job_id, cycle.now)
        self._active = len(cycle.ledger.jobs)

    def _credit(self, stopped_at: dict[JobId, float]) -> None:
        """Credits the round's time in Gavel's order of summation: the last to stop first. A pair's time counts once."""
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
        """Admits new jobs from the next round on."""
        ledger, (arrived, cycle.backlog.arrived) = cycle.ledger, (cycle.backlog.arrived, [])
        if not arrived:
            return
        if not len(self._rows):
            self._rows = ServiceTable(len(ledger.fleet.pools), self._rules.round_s / 2)
        new: list[NewServiceRow] = []
        for job_id in sorted(job_id for job_id in arrived if job_id in ledger.jobs and job_id not in self._known):
            job = ledger.jobs[job_id]
            ledger.set_eligible(job)
            self._changed = True
            count = max(cycle.ledger.shape_of(job).counts)
            new.append(NewServiceRow(job_id, ALONE, count, ledger.class_of(job).rates > 0))
            if self._gavel.pairs is not None:
                new.extend(self._pairs_of(cycle, job, count, self._gavel.pairs))
            self._known[job_id] = cycle.now
        self._rows.add(new)

    def _pairs_of(self, cycle: Cycle, job: JobRecord, count: int, speeds: PairSpeeds) -> list[NewServiceRow]:
        ledger, pairs = cycle.ledger, []
        accelerators = [state.pool.shape.accelerator for state in ledger.fleet.pools]
        for other_id in self._known:
            other = ledger.jobs[other_id]
            if max(cycle.ledger.shape_of(other).counts) != count:
                continue
            one, two = other.request.kind, job.request.kind
            runs = np.array(
                [
                    speeds.colocated_speed(one, two, a, count) > 0 and speeds.colocated_speed(two, one, a, count) > 0
                    for a in accelerators
                ]
            )
            pairs.append(NewServiceRow(other_id, job.job_id, count, runs))
        return pairs

    # -- a solve is answered

    def _take_answer(self, cycle: Cycle) -> None:
        proposal = cycle.policy.proposal
        if proposal is None or cycle.policy.solved_at < self._reset_at:
            self._changed = True
            return  # the solve failed, so the last shares stay in force
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
            revoke_attempt(cycle, job, Reason.POLICY_PREEMPTED)
        self._is_planning = True
        self._move(cycle)

    def _move(self, cycle: Cycle) -> None:
        """Starts the new jobs of the round and begins it, once all stopped jobs have ended."""
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
                start_attempt(cycle, job, pool, jobs[other].place, beside=jobs[other])
            else:
                place = find_free_place(cycle, job, pool)
                assert place is not None, f"no room for job {job_id} in {fleet.pools[pool].pool.pool_id}"
                start_attempt(cycle, job, pool, place)
            self._now_on[job_id] = pool, other
        cycle.commands.append(BeginRound(self._rules.round_s))


class LockstepAttempts(AttemptSimulator):
    """Simulates attempts in rounds. Speeds may be noisy; costs, reports and planned failures are not modelled."""

    def __init__(self, machines: SimulatedMachines, model: WorldParameters, streams: RandomStreams) -> None:
        super().__init__(machines, model, streams)
        machines.engine.on_command[BeginRound] = self._begin_round
        #: Running attempts, in order of start.
        self._live: dict[JobId, SimAttempt] = {}
        #: Steps of each job in this round, and when they are done; completions are reported one by one.
        self._steps: dict[JobId, float] = {}
        self._stops_at: dict[JobId, float] = {}
        self._round_s = 0.0
        #: Nothing runs and the scheduler has nothing to run: the next arrivals end the idle round.
        self._idle = True
        #: Whether jobs have arrived since the last round ended.
        self._has_arrivals = False
        #: Whether the workload has ended, and whether an idle round has reported that.
        self._arrivals_over = False
        self._idle_reported = False
        self._starting: list[SimAttempt] = []
        self._stopping: list[SimAttempt] = []

    # -- called by the world

    def begin(self, now: float, attempt: SimAttempt) -> None:
        self._hold_devices(attempt)
        attempt.phase = SimAttemptPhase.RUNNING
        self._live[attempt.job_id] = attempt
        if not self._starting:
            self._engine.schedule(now, self._started)
        self._starting.append(attempt)

    def set_rate(self, now: float, attempt: SimAttempt, full_rate: float) -> None:
        attempt.full_rate = full_rate  # called only between rounds
        attempt.rate = full_rate * attempt.pace

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        if attempt.phase is not SimAttemptPhase.RUNNING:
            return
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[attempt.job_id]
        if not self._stopping:
            self._engine.schedule(now, self._stopped)
        self._stopping.append(attempt)

    def kill(self, at: float, attempt: SimAttempt) -> None:
        self._live.pop(attempt.job_id, None)
        attempt.phase = SimAttemptPhase.DEAD

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        self._has_arrivals = True
        return self._end_round(at) if self._idle else ()

    def no_more_arrivals(self) -> None:
        self._arrivals_over = True

    # -- called by timers and the scheduler

    def _started(self, at: float, _: object) -> Iterable[Event]:
        attempts, self._starting = self._starting, []
        return [AttemptStarted(at, attempt.job_id, attempt.number) for attempt in attempts]

    def _stopped(self, at: float, _: object) -> Iterable[Event]:
        attempts, self._stopping = self._stopping, []
        for attempt in attempts:
            self.release(attempt)
        return [
            AttemptEnded(
                at,
                attempt.job_id,
                attempt.number,
                EndCause.EXITED,
                EXIT_CHECKPOINTED,
                steps=attempt.job.steps,
            )
            for attempt in attempts
        ]

    def _begin_round(self, now: float, command: BeginRound) -> None:
        if not self._live:
            self._wait_for_arrivals(now)
            return
        self._idle_reported, self._round_s = False, command.round_s
        steps, stops_at = {}, {}
        last_at = now
        for job_id, attempt in self._live.items():
            made, stop_at = self._round_of(now, attempt)
            steps[job_id], stops_at[job_id] = made, stop_at
            if stop_at > last_at:
                last_at = stop_at
            if self._completes(attempt, made):
                self._engine.schedule(stop_at, self._completed, attempt)
        self._steps, self._stops_at = steps, stops_at
        self._engine.schedule(last_at, self._round_over)

    def _round_of(self, now: float, attempt: SimAttempt) -> tuple[float, float]:
        """Returns the steps that the attempt makes in the round that begins now, and the instant at which it stops."""
        job = attempt.job
        steps: float = self._whole_steps(attempt)
        left = job.plan.steps - job.steps
        if left < steps:
            steps = left
        stops_at = now + steps / attempt.rate
        if attempt.partner is not None:  # a pair makes the steps for which its slower member has time
            other = attempt.partner
            others = min(self._whole_steps(other), other.job.plan.steps - other.job.steps)
            stops_at = max(stops_at, now + others / other.rate)
        return steps, stops_at

    def _completes(self, attempt: SimAttempt, steps: float) -> bool:
        return steps == attempt.job.plan.steps - attempt.job.steps

    def _whole_steps(self, attempt: SimAttempt) -> int:
        """Returns the steps that fit into a round. Raises ConfigError if none does."""
        steps = int(attempt.rate * self._round_s)
        if steps < 1:
            job = attempt.job_id
            raise ConfigError(f"job {job} makes no step in a round of {self._round_s:g} s", field="rules.round_s")
        return steps

    def _completed(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        job, job_id = attempt.job, attempt.job_id
        if attempt.phase is not SimAttemptPhase.RUNNING:
            return ()
        job.worked_steps += self._steps[job_id]
        job.steps = job.plan.steps
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[job_id]
        self.release(attempt)
        return (AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, 0, steps=job.steps),)

    def _round_over(self, at: float, _: object) -> Iterable[Event]:
        events: list[Event] = []
        for job_id, attempt in list(self._live.items()):
            events.extend(self._count_round(at, attempt, self._steps[job_id]))
        return (*events, *self._end_round(at))

    def _count_round(self, at: float, attempt: SimAttempt, steps: float) -> Iterable[Event]:
        """Counts and saves the round's steps; returns further events."""
        job = attempt.job
        job.steps += steps
        job.worked_steps += steps
        job.saved_steps = job.steps
        return ()

    def _end_round(self, at: float) -> Iterable[Event]:
        """Ends the round: all attempts wait for the scheduler to begin the next one."""
        self._idle = self._has_arrivals = False
        attempts = self._live
        steps, stopped_at = (
            [attempt.job.steps for attempt in attempts.values()],
            [self._stops_at[job_id] for job_id in attempts],
        )
        return (RoundEnded(at, list(attempts), steps, stopped_at),)

    def _wait_for_arrivals(self, now: float) -> None:
        """Waits for arrivals: the next one ends the idle round. The end of the workload is reported once."""
        if self._has_arrivals or (self._arrivals_over and not self._idle_reported):
            self._idle_reported = self._arrivals_over
            self._engine.schedule(now, self._end_idle_round)
        else:
            self._idle = True

    def _end_idle_round(self, at: float, _: object) -> Iterable[Event]:
        return self._end_round(at)


#: The mechanism's name in `RoundRules`, and its parameters. Jobs save at each round's end, so no interval is planned.
GAVEL = "gavel"
GAVEL_RULES = RoundRules(
    mechanism=GAVEL, plan_checkpoints=False, round_s=360.0, resolve_min_s=1920.0, idle_to_round_end=True
)

#: Gavel has one random generator per purpose; the one for the order of types is seeded with the seed plus this.
_SHUFFLE = 5


#: USD per hour of one accelerator (Google, 2020).
GAVEL_USD_PER_H = {"v100": 0.74, "p100": 0.43, "k80": 0.135}


@dataclass(frozen=True, slots=True)
class _PolicyEntry:
    """A policy under Gavel's name, and the rules of the mechanism under it."""

    make: Callable[[int, GroundTruth], GavelPolicy]
    shuffles: bool = False
    only_shares: bool = False
    packs: bool = False
    #: Whether it gives each job one accelerator.
    no_gangs: bool = False


#: By Gavel's names, the policies that can be reproduced; `fifo_fixed` is `fifo` without its defect.
GAVEL_POLICIES: dict[str, _PolicyEntry] = {
    "isolated": _PolicyEntry(lambda seed, truth: GavelIsolated(), shuffles=True),
    "fifo": _PolicyEntry(lambda seed, truth: GavelFifo(seed), shuffles=True, only_shares=True),
    "fifo_fixed": _PolicyEntry(lambda seed, truth: GavelFifo(seed, fixed=True), shuffles=True, only_shares=True),
    "fifo_perf": _PolicyEntry(lambda seed, truth: GavelFifoPerf(), only_shares=True),
    "fifo_packed": _PolicyEntry(lambda seed, truth: GavelFifoPacked(truth), only_shares=True, packs=True),
    "allox": _PolicyEntry(lambda seed, truth: GavelAlloX(), no_gangs=True),
    "max_min_fairness": _PolicyEntry(lambda seed, truth: GavelMaxMinFairness(aware=False), shuffles=True),
    "max_min_fairness_perf": _PolicyEntry(lambda seed, truth: GavelMaxMinFairness()),
    "max_min_fairness_packed": _PolicyEntry(lambda seed, truth: GavelMaxMinFairness(pairs=truth), packs=True),
    "max_min_fairness_water_filling_perf": _PolicyEntry(lambda seed, truth: GavelWaterFilling()),
    "finish_time_fairness": _PolicyEntry(lambda seed, truth: GavelFinishTimeFairness(aware=False), shuffles=True),
    "finish_time_fairness_perf": _PolicyEntry(lambda seed, truth: GavelFinishTimeFairness()),
    "min_total_duration": _PolicyEntry(lambda seed, truth: GavelMinTotalDuration(aware=False), shuffles=True),
    "min_total_duration_perf": _PolicyEntry(lambda seed, truth: GavelMinTotalDuration()),
    "min_total_duration_packed": _PolicyEntry(lambda seed, truth: GavelMinTotalDuration(pairs=truth), packs=True),
    "max_sum_throughput_perf": _PolicyEntry(lambda seed, truth: GavelMaxSumThroughput()),
    "max_sum_throughput_normalized_by_cost_perf": _PolicyEntry(
        lambda seed, truth: GavelMaxSumThroughput(GAVEL_USD_PER_H)
    ),
    "max_sum_throughput_normalized_by_cost_perf_SLOs": _PolicyEntry(
        lambda seed, truth: GavelMaxSumThroughput(GAVEL_USD_PER_H, keeps_deadlines=True)
    ),
    "gandiva": _PolicyEntry(lambda seed, truth: GavelGandiva(truth, seed), packs=True),
}


def gavel_scenario(
    pools: tuple[PoolModel, ...],
    truth: GroundTruth,
    policy: str,
    *,
    seed: int = 0,
    solver: ConeSolver = solve_cone_program,
) -> Scenario:
    """Returns a run of Gavel's simulator under one of `GAVEL_POLICIES`.

    Each pool becomes one machine, because Gavel does not model which machine runs a job.
    """
    entry = GAVEL_POLICIES[policy]
    gavel = GavelRules(
        shuffle_seed=seed + _SHUFFLE if entry.shuffles else None,
        only_shares=entry.only_shares,
        pairs=truth if entry.packs else None,
    )
    wiring = gavel_wiring(with_cone_solver(entry.make(seed, truth), solver), gavel)
    merged = tuple(map(merge_machines, pools))
    return Scenario(merged, truth, PolicySpec(policy), GAVEL_RULES, seed=seed, wiring=wiring)


def gavel_wiring(
    policy: GavelPolicy, gavel: GavelRules, mechanism: str = GAVEL, pace: MakeAttemptSimulator = LockstepAttempts
) -> SchedulerWiring:
    """Returns the parts of a run in which this policy decides and Gavel's rounds carry its shares out."""

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> GavelRounds:
        return GavelRounds(cycle, rules, gavel)

    return own_wiring(mechanism, lambda spec: policy, rounds, pace, gavel_solver(policy))


def merge_machines(model: PoolModel) -> PoolModel:
    """Merges the pool's machines into one, for worlds that do not model which of them runs a job."""
    shape, machines = model.pool.shape, model.machines
    large = replace(
        shape,
        accelerators=shape.accelerators * machines,
        cpus=shape.cpus * machines,
        memory_bytes=shape.memory_bytes * machines,
    )
    usd_per_h = model.pool.usd_per_h * machines
    return replace(model, pool=replace(model.pool, shape=large, usd_per_h=usd_per_h), machines=1)


def gavel_world_run(request: WorldRequest) -> WorldRun:
    """Makes the run. Raises ConfigError for a cluster, speeds or a gang that Gavel's simulator cannot have."""
    pools = owned_pools(request)
    _reject_gangs(request)
    types = [model.pool.shape.accelerator for model in pools]
    if len(set(types)) < len(types) or not set(types) <= set(TYPE_ORDER):
        raise ConfigError(
            f"world 'gavel' has one pool each of {', '.join(TYPE_ORDER)}, the cluster has {', '.join(types)}",
            field="cluster",
            fix="choose a cluster such as gavel-12-12-12",
        )
    experiment = trace_experiment(request.trace, request.cluster, request.speeds)
    if experiment.truth.laws:
        raise ConfigError(
            "world 'gavel' has speeds that never change, and `speeds` gives laws",
            field="speeds",
            fix="give a throughput table",
        )
    table = speeds_path_of(request.trace, request.speeds)
    truth = experiment.truth if table is None else replace(experiment.truth, pairs=read_pair_speeds(table, types))
    return WorldRun(experiment.jobs, gavel_scenario(pools, truth, request.policy.name, seed=request.seed))


def _reject_gangs(request: WorldRequest) -> None:
    """Raises ConfigError for the first gang under a policy that knows none."""
    if not GAVEL_POLICIES[request.policy.name].no_gangs:
        return
    gang = next((row for row in request.trace.jobs if row.gang > 1), None)
    if gang is not None:
        raise ConfigError(
            f"line {gang.line}: job {gang.name!r} is a gang of {gang.gang},"
            f" which policy {request.policy.name!r} of world {request.world!r} does not know",
            field="policy",
            fix="choose another policy",
        )
