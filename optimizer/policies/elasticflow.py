"""ElasticFlow: admits deadlines that it can guarantee, and gives the other accelerators by marginal return.

    minimum satisfactory share   the smallest k such that the job ends by its deadline with at most k accelerators of
                                 one pool at any time, given the shares guaranteed to jobs with earlier deadlines
    admission                    an arriving job is admitted if every admitted job still has such a share
    marginal return              (rate(k') - rate(k)) / (best rate per accelerator) / (k' - k), largest first

Jobs that were not admitted, have no deadline, or have an unknown length run on the accelerators that are left. If an
admitted job can no longer meet its deadline (after a failure, or because it is longer than declared), the policy
guarantees it the share with which it ends earliest.

A promise is a number of accelerators of one pool in every interval from now on. With a share k, a job has in each
interval its largest configuration of at most k accelerators that are left there; every change costs it a restart. Times
are in seconds from now.
"""

import dataclasses
from bisect import bisect_left, bisect_right, insort
from dataclasses import field, replace
from math import inf
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.assignment import plan_draft as drafts
from optimizer.assignment.column_assignment import gain_by_value, grow_greedily, place_in_column
from optimizer.assignment.plan_draft import ElasticJobs, elastic_jobs_of
from optimizer.decision import Memory, Plan, Quote
from optimizer.policy import MovesJobs, Newcomer
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

_TINY = 1e-9


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ScalingCurve:
    """A job's configurations in one pool, ascending (k,): row of `Columns`, accelerators, steps per second."""

    pool: int
    column: tuple[int, ...]
    count: tuple[float, ...]
    speed: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DeadlineNeed:
    """The work that a job has left, and the instant by which it must be done."""

    steps: float
    due_s: float
    restart_s: float
    #: The column in which the job runs now, -1: none.
    running: int


@dataclasses.dataclass(frozen=True, slots=True)
class PromisedInterval:
    """An interval of time in which a job keeps one configuration (rung -1: it has none)."""

    start_s: float
    end_s: float
    rung: int


@dataclasses.dataclass(frozen=True, slots=True)
class SharePromise:
    """A share of one pool promised to a job: its configuration in each interval, and when the job ends (inf: never)."""

    ladder: ScalingCurve
    stretches: tuple[PromisedInterval, ...]
    ends_s: float

    @property
    def cost(self) -> float:
        """Accelerator-seconds that the job holds until its end."""
        return sum(
            (each.end_s - each.start_s) * self.ladder.count[each.rung] for each in self.stretches if each.rung >= 0
        )

    @property
    def column(self) -> int:
        """Column in which the job is now, -1: none."""
        first = self.stretches[0].rung if self.stretches else -1
        return self.ladder.column[first] if first >= 0 else -1


@dataclasses.dataclass(slots=True, eq=False)
class PoolTimeline:
    """What is left of a pool: `free[i]` accelerators from `start_s[i]` to the next."""

    start_s: list[float]
    free: list[float]

    def take(self, start_s: float, end_s: float, count: float) -> None:
        """Promises `count` accelerators in an interval, and takes them from what is left."""
        for instant in (start_s, end_s):
            self._cut(instant)
        for at in range(bisect_left(self.start_s, start_s), bisect_left(self.start_s, end_s)):
            self.free[at] -= count

    def _cut(self, instant: float) -> None:
        if instant == inf:
            return
        at = bisect_right(self.start_s, instant) - 1
        if self.start_s[at] < instant:
            insort(self.start_s, instant)
            self.free.insert(at + 1, self.free[at])


@dataclasses.dataclass(slots=True, eq=False)
class PromisedShares:
    """What is left in every pool after all promises so far."""

    timelines: list[PoolTimeline] = field(default_factory=list)

    @classmethod
    def of(cls, capacity: FloatArray) -> "PromisedShares":
        """Returns pools of this capacity (p,) in which nothing is promised yet."""
        return cls([PoolTimeline([0.0], [float(count)]) for count in capacity])

    def least(self, ladders: list[ScalingCurve], need: DeadlineNeed) -> SharePromise | None:
        """Returns the cheapest of the minimum satisfactory shares, one per curve; None where no share ends the job in
        time.
        """
        found = [promise for ladder in ladders if (promise := self._least_in(ladder, need)) is not None]
        return min(found, key=lambda promise: promise.cost, default=None)

    def soonest(self, ladders: list[ScalingCurve], need: DeadlineNeed) -> SharePromise | None:
        """Returns the share with which the job ends soonest, in time or not; None where no share ever ends it."""
        found = [self._follow(ladder, rung, need) for ladder in ladders for rung in range(len(ladder.count))]
        best = min(found, key=lambda promise: (promise.ends_s, promise.cost), default=None)
        return best if best is not None and best.ends_s < inf else None

    def keep(self, promise: SharePromise) -> None:
        """Subtracts the promised accelerators from what is left."""
        timeline = self.timelines[promise.ladder.pool]
        for each in promise.stretches:
            if each.rung >= 0:
                timeline.take(each.start_s, each.end_s, promise.ladder.count[each.rung])

    def _least_in(self, ladder: ScalingCurve, need: DeadlineNeed) -> SharePromise | None:
        fastest = 0.0
        for rung, speed in enumerate(ladder.speed):
            fastest = max(fastest, speed)
            if need.steps > fastest * need.due_s:
                continue  # The job misses its deadline even with the whole pool to itself.
            promise = self._follow(ladder, rung, need)
            if promise.ends_s <= need.due_s + _TINY:
                return promise
        return None

    def _follow(self, ladder: ScalingCurve, most: int, need: DeadlineNeed) -> SharePromise:
        """Returns the promise that follows from a share as large as the curve's rung `most`."""
        timeline = self.timelines[ladder.pool]
        left, held, owed_s = need.steps, need.running, 0.0
        stretches: list[PromisedInterval] = []
        for at, start_s in enumerate(timeline.start_s):
            end_s = timeline.start_s[at + 1] if at + 1 < len(timeline.start_s) else inf
            rung = bisect_right(ladder.count, timeline.free[at] + _TINY, 0, most + 1) - 1
            if rung < 0:
                stretches.append(PromisedInterval(start_s, end_s, -1))
                held = -1
                continue
            if ladder.column[rung] != held:
                held, owed_s = ladder.column[rung], need.restart_s
            ends_s = start_s + owed_s + left / ladder.speed[rung]
            stretches.append(PromisedInterval(start_s, min(end_s, ends_s), rung))
            if ends_s <= end_s:
                return SharePromise(ladder, tuple(stretches), ends_s)
            left -= max(end_s - start_s - owed_s, 0.0) * ladder.speed[rung]
            owed_s = max(owed_s - (end_s - start_s), 0.0)
        return SharePromise(ladder, tuple(stretches), inf)


MEASURE = drafts.PlanMeasure(
    "deadlines that hold, against those that each job alone could hold", "jobs", "accelerators' worth of the job's work"
)

#: The most sets of arriving jobs that are tried at one decision.
_JUDGED = 24


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class ElasticFlow:
    """Meets deadlines with the fewest accelerators; gives the rest to the jobs with the largest marginal speedup.

    Source: Gu et al., ElasticFlow, ASPLOS 2023.
    """

    slack: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="Safety margin: the fraction of the time to its deadline by which a job should finish early.",
        ),
    ] = 0.0
    #: Every event is decided from scratch, so running jobs may be resized.
    moves: MovesJobs = True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan, and the memory with the ids of admitted and refused jobs."""
        facts = elastic_jobs_of(problem)
        order = _by_deadline(problem, facts)
        held = _Admission(problem, facts, self.slack)
        admitted, refused = held.admit(order, memory)
        promises = held.promises(order, admitted)
        draft = drafts.begin_plan(problem)
        for row, promise in promises.items():
            if promise is not None and promise.column >= 0 and not facts.pinned[row]:
                place_in_column(problem, draft, promise.column)
        value = _worth(problem, facts)
        classes = problem.jobs.priority_class
        for priority_class in np.unique(classes)[::-1].tolist():
            grow_greedily(problem, facts, draft, gain_by_value(problem, value), classes == priority_class)
        draft.reached = float(held.kept(promises))
        draft.bound = float(_met_alone(problem, facts, order))
        plan = drafts.finish_plan(problem, value, draft, MEASURE)
        rest = plan.rows[~np.isin(plan.rows, list(promises))]
        rows = np.array([*(row for row in order if row in promises), *rest.tolist()], dtype=np.int64)
        ids = problem.jobs.job_id
        memory = {"admitted": ids[sorted(admitted)].tolist(), "refused": ids[sorted(refused)].tolist()}
        return replace(plan, rows=rows), memory

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns each configuration's speed over the job's best speed per accelerator (c,): until the next plan the
        job runs on what no other wants.
        """
        usable = newcomer.usable
        if not usable.any():
            return np.zeros(len(usable))
        best = (newcomer.steps_per_s / newcomer.count)[usable].max()
        return np.where(usable, newcomer.weight * newcomer.steps_per_s / best, 0.0)


class _Admission:
    """The shares promised to the jobs of one problem."""

    def __init__(self, problem: Problem, facts: ElasticJobs, slack: float) -> None:
        self._problem, self._facts, self._slack = problem, facts, slack
        self._ladders: dict[int, list[ScalingCurve]] = {}

    def admit(self, order: list[int], memory: Memory) -> tuple[set[int], set[int]]:
        """Returns the rows of admitted and of refused jobs: earlier decisions stay, and arriving jobs are admitted
        while every admitted job keeps its share.

        Arriving jobs are judged in the order of submission, as many together as can be admitted; those that the work
        limit leaves out are judged next time.
        """
        before = {name: set(memory[name]) for name in ("admitted", "refused")} if memory else {}
        ids, submitted_at = self._problem.jobs.job_id.tolist(), self._problem.jobs.submitted_at
        admitted = {row for row in order if ids[row] in before.get("admitted", ())}
        refused = {row for row in order if ids[row] in before.get("refused", ())}
        new = [row for row in order if row not in admitted and row not in refused]
        new.sort(key=lambda row: (submitted_at[row], ids[row]))
        late = self._late(order, admitted)
        judged, at, batch = 0, 0, len(new)
        while at < len(new) and judged < _JUDGED:
            judged += 1
            together = set(new[at : at + batch])
            if self._late(order, admitted | together) <= late:
                admitted |= together
                at, batch = at + batch, 2 * batch
            elif batch > 1:
                batch //= 2
            else:
                refused |= together
                at += 1
        return admitted, refused

    def promises(self, order: list[int], admitted: set[int]) -> dict[int, SharePromise | None]:
        """Returns the promise to each admitted job (None: no share ends it), those due first before the others."""
        left = self._begin(admitted)
        found: dict[int, SharePromise | None] = {}
        for row in order:
            if row not in admitted:
                continue
            ladders, need = self._ladders_of(row), self._need(row)
            promise = left.least(ladders, need) or left.soonest(ladders, need)
            found[row] = promise
            if promise is not None:
                left.keep(promise)
        return found

    def kept(self, promises: dict[int, SharePromise | None]) -> int:
        return len(promises) - len(self._missed(promises))

    def _late(self, order: list[int], admitted: set[int]) -> set[int]:
        return self._missed(self.promises(order, admitted))

    def _missed(self, promises: dict[int, SharePromise | None]) -> set[int]:
        return {row for row, each in promises.items() if each is None or each.ends_s > self._need(row).due_s + 1e-9}

    def _begin(self, admitted: set[int]) -> PromisedShares:
        """Returns pools in which nothing is promised but what jobs hold that cannot be stopped and are not in
        `admitted`.
        """
        problem, facts = self._problem, self._facts
        left = PromisedShares.of(problem.pools.capacity)
        for row in np.flatnonzero(facts.pinned).tolist():
            column = int(facts.running[row])
            if row in admitted and self._ladders_of(row):
                continue
            ends_s = float(problem.jobs.remaining_steps[row] / problem.columns.steps_per_s[column])
            ours = problem.columns.use_column == column
            for pool, count in zip(problem.columns.use_pool[ours], problem.columns.use_count[ours], strict=True):
                left.timelines[int(pool)].take(0.0, ends_s, float(count))
        return left

    def _need(self, row: int) -> DeadlineNeed:
        jobs, facts = self._problem.jobs, self._facts
        due_s = (float(jobs.deadline_at[row]) - self._problem.at) * (1.0 - self._slack)
        steps = float(jobs.remaining_steps[row])
        return DeadlineNeed(steps, due_s, float(facts.restart_s[row]), int(facts.running[row]))

    def _ladders_of(self, row: int) -> list[ScalingCurve]:
        """Returns the job's configurations of one pool each, pool by pool."""
        if row not in self._ladders:
            columns, facts = self._problem.columns, self._facts
            ours = np.flatnonzero(facts.usable & (columns.job == row) & _single(self._problem))
            self._ladders[row] = [
                _ladder(columns.steps_per_s, facts, ours[facts.pool[ours] == pool], int(pool))
                for pool in np.unique(facts.pool[ours])
            ]
        return self._ladders[row]


def _ladder(speed: FloatArray, facts: ElasticJobs, columns: IntArray, pool: int) -> ScalingCurve:
    rising = columns[np.argsort(facts.size[columns], kind="stable")]
    return ScalingCurve(pool, tuple(rising.tolist()), tuple(facts.size[rising].tolist()), tuple(speed[rising].tolist()))


def _single(problem: Problem) -> BoolArray:
    """Returns whether each column takes accelerators of one pool only (c,)."""
    single: BoolArray = np.bincount(problem.columns.use_column, minlength=len(problem.columns)) == 1
    return single


def _timed(problem: Problem) -> BoolArray:
    """Returns whether each job has a deadline and a known length (n,)."""
    timed: BoolArray = np.isfinite(problem.jobs.deadline_at) & np.isfinite(problem.jobs.remaining_steps)
    return timed


def _by_deadline(problem: Problem, facts: ElasticJobs) -> list[int]:
    """Returns the rows of jobs with a deadline: first those that cannot be stopped, then those due first."""
    jobs = problem.jobs
    order = np.lexsort((jobs.job_id, jobs.submitted_at, jobs.deadline_at, ~facts.pinned))
    rows: list[int] = order[_timed(problem)[order]].tolist()
    return rows


def _met_alone(problem: Problem, facts: ElasticJobs, order: list[int]) -> int:
    """Returns how many of these jobs could end in time if each had the fleet to itself."""
    columns, jobs = problem.columns, problem.jobs
    rate = np.zeros(len(jobs))
    np.maximum.at(rate, columns.job[facts.usable], columns.steps_per_s[facts.usable])
    start_s = np.where(facts.running >= 0, 0.0, facts.restart_s)
    ends_s = np.divide(jobs.remaining_steps, rate, out=np.full(len(jobs), np.inf), where=rate > 0) + start_s
    return int((ends_s[order] <= jobs.deadline_at[order] - problem.at + 1e-9).sum())


def _worth(problem: Problem, facts: ElasticJobs) -> FloatArray:
    """Returns each column's speed over the job's best speed per accelerator, times its weight (c,); 0 where it cannot
    be used.
    """
    columns = problem.columns
    best = np.zeros(len(problem.jobs))
    dense = np.where(facts.usable, columns.steps_per_s / np.maximum(facts.size, 1.0), 0.0)
    np.maximum.at(best, columns.job, dense)
    worth = np.zeros(len(columns))
    np.divide(columns.steps_per_s, best[columns.job], out=worth, where=facts.usable)
    return worth * problem.jobs.weight[columns.job]
