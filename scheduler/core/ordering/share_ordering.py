"""Orders jobs by shares of time: the job that is owed most goes first.

The three classes of this folder contain all that differs between share, rank and plan policies after a decision; the
round mechanism uses them through `JobOrdering` and never looks at the policy.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from optimizer.problem import BoolArray, FloatArray, IntArray
from scheduler.core.rules import RoundRules
from scheduler.core.state.job_queues import JobQueues, QueueKey
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import fetching_on_pool_s, remaining_here_of_all_s, remaining_here_s
from scheduler.core.state.stopping import Protection, StopFor, is_stopped_often, may_be_stopped, without_fixed
from scheduler.core.state.working_set import Incumbents, JobOrdering
from walras.job_request import JobId

#: Tier of a job on a pool: it is entitled to it, may use it while free, or may not use it.
ENTITLED, SCAVENGER, UNWANTED = 0.0, 1.0, 2.0
#: Maximum tolerated lag, as a fraction of the limit on owed time (`RoundRules.owed_limit_rounds`). If all of it were
#: tolerated, a job owed the limit would have no arrears and could wait for ever.
_TOLERATED_MAX = 0.5
#: A preemption never needs an advantage above this fraction of the largest advantage that two jobs can reach.
_REACHABLE_PART = 0.9
#: Accelerator-seconds that a preemption must gain however cheap a restart is; otherwise equal jobs would swap for ever.
_LEAST_ADVANTAGE_S = 1.0
#: Number of queue entries made at once when the first of them is read.
_ENTRIES_AT_ONCE = 16


def _whole_seconds(owed_s: float) -> float:
    """Rounds to whole accelerator-seconds, because clocks jitter and a tie must stay a tie."""
    return float(round(owed_s))


def _equal_runs(of_shape: IntArray) -> list[tuple[int, int]]:
    """Returns (first, end) of each run of equal values."""
    if not len(of_shape):
        return []
    return list(pairwise([0, *((of_shape[1:] != of_shape[:-1]).nonzero()[0] + 1).tolist(), len(of_shape)]))


def _queue_entries(key: tuple[FloatArray | IntArray, ...], first: int, end: int) -> Iterator[tuple[QueueKey, JobId]]:
    """Yields queue entries from these columns of keys, the last of which is the job id. Entries are made lazily."""
    for at in range(first, end, _ENTRIES_AT_ONCE):
        part = [column[at : min(at + _ENTRIES_AT_ONCE, end)].tolist() for column in key]
        yield from zip(zip(*part, strict=True), part[-1], strict=True)


class ShareOrdering(JobOrdering):
    """Shares of time: the job owed most goes first; preemptions must pay for the restarts they cause (design 2).

    Waiting jobs are ordered by their *arrears*: what they are owed beyond a tolerated lag, which is a fraction of their
    attained service (`RoundRules.tolerated_lag`), at most half the limit on owed time. Running jobs are compared by
    what they are owed. So an arrival is served as soon as it is owed the cost of the preemption. Two equal jobs that
    run in turns change places once one has fallen behind by the tolerated lag: each turn lets attained service grow by
    the same factor, so the number of starts is logarithmic in a job's length, until turns are as long as the limit
    allows.

    The bound on lag: while a job waits, and one of its class with gang g that may be displaced runs in the place, the
    waiting job is owed less than

        min(tolerated_lag * received, limit / 2) + hysteresis * g * (both restarts) + what a round adds to either

    more than the running one. With `tolerated_lag` 0 this is the bound that hysteresis alone keeps.
    """

    compares = True
    profiles = True
    shrinks_gangs = True
    preempt_reason = "is owed this place"
    move_reason = "owed time on"

    def __init__(self, ledger: Ledger, rules: RoundRules) -> None:
        self._ledger = ledger
        self._rules = rules
        #: Tolerated fraction of attained service, and maximum of tolerated seconds per accelerator of a gang.
        self._tolerance = rules.tolerated_lag, _TOLERATED_MAX * rules.owed_limit_s

    def tier(self, job: JobRecord, pool: int) -> float:
        """Returns ENTITLED, SCAVENGER (fast enough to use the pool while it is free) or UNWANTED."""
        columns, job_class = self._ledger.columns, self._ledger.class_of(job)
        if columns.entitled[job.slot, pool] > 0:
            return ENTITLED
        rate = job_class.rates[pool]
        return SCAVENGER if rate > 0 and rate >= self._rules.opportunistic_rate * job_class.best_rate else UNWANTED

    def keys(self, job: JobRecord) -> list[tuple[int, QueueKey]]:
        rates = self._ledger.class_of(job).rates
        found = [(pool, self._key(job, pool)) for pool in range(len(rates)) if rates[pool] > 0]
        return [(pool, key) for pool, key in found if key is not None]

    def _key(self, job: JobRecord, pool: int) -> QueueKey | None:
        tier = self.tier(job, pool)
        if tier == UNWANTED:
            return None
        columns = self._ledger.columns
        columns.settle(job.slot, self._ledger.now)
        return (
            -job.request.priority_class,
            tier,
            -_whole_seconds(self._arrears_s(job, pool)),
            float(columns.submitted_at[job.slot]),
            job.job_id,
        )

    def fill_queues(self, queues: JobQueues) -> None:
        ledger, columns = self._ledger, self._ledger.columns
        rows = (columns.active & columns.eligible & (columns.pool < 0)).nonzero()[0]
        if queues.nominated:
            rows = rows[~np.isin(columns.job_id[rows], list(queues.nominated))]
        if not len(rows):
            return
        shapes = ledger.classes.shape_rows[columns.class_row[rows]]
        keys = columns.job_id[rows], columns.submitted_at[rows], -columns.priority_class[rows], shapes
        order = np.lexsort(keys)  # within a pool, jobs of one shape and priority form a group
        rows, shapes = rows[order], shapes[order]
        priority = -columns.priority_class[rows]
        group = np.append(0, ((shapes[1:] != shapes[:-1]) | (priority[1:] != priority[:-1])).cumsum())
        rates = ledger.classes.rates[columns.class_row[rows]]
        enough = self._rules.opportunistic_rate * rates.max(axis=1, initial=0.0)
        tolerated_s = self._tolerated_s(rows)
        for pool in range(columns.pools):
            entitled = columns.entitled[rows, pool] > 0
            chosen = (entitled | ((rates[:, pool] > 0) & (rates[:, pool] >= enough))).nonzero()[0]
            tier = np.where(entitled[chosen], ENTITLED, SCAVENGER)
            behind = -(np.round(columns.owed[rows[chosen], pool] - tolerated_s[chosen]) + 0.0)
            order = np.lexsort((behind, 2 * group[chosen] + tier))
            chosen, tier, behind = chosen[order], tier[order], behind[order]
            key = priority[chosen], tier, behind, columns.submitted_at[rows[chosen]], columns.job_id[rows[chosen]]
            for first, end in _equal_runs(shapes[chosen]):
                queues.queue(pool, int(shapes[chosen[first]])).plan(_queue_entries(key, first, end))

    def _arrears_s(self, job: JobRecord, pool: int) -> float:
        """Returns the accelerator-seconds that the job is owed on the pool beyond the tolerated lag."""
        columns, slot = self._ledger.columns, job.slot
        part, most_s = self._tolerance
        return float(columns.owed[slot, pool] - min(part * columns.attained_s[slot], most_s * columns.gang[slot]))

    def _tolerated_s(self, rows: IntArray) -> FloatArray:
        """Returns the tolerated lag of the jobs in these slots, accelerator-seconds."""
        columns = self._ledger.columns
        part, most_s = self._tolerance
        tolerated_s: FloatArray = np.minimum(part * columns.attained_s[rows], most_s * columns.gang[rows])
        return tolerated_s

    def challengers(self, most: int) -> Iterator[tuple[JobRecord, int]]:
        for state in self._ledger.fleet.pools:
            if state.capacity:
                for job in self._challengers(state.row, most):
                    yield job, state.row

    def pools_of(self, job: JobRecord) -> Sequence[int]:
        return [row for row in range(self._ledger.columns.pools) if self.tier(job, row) != UNWANTED]

    def _challengers(self, pool: int, most: int) -> list[JobRecord]:
        """Returns jobs entitled to this pool that wait, run elsewhere or are to grow there, most urgent first."""
        columns = self._ledger.columns
        rows = np.flatnonzero(columns.active & columns.eligible & (columns.entitled[:, pool] > 0))
        wanted = self._ledger.classes.counts[columns.class_row[rows], pool]
        rows = rows[(columns.pool[rows] != pool) | (columns.count[rows] < wanted)]
        arrears = np.round(columns.owed[rows, pool] - self._tolerated_s(rows))
        order = np.lexsort((columns.job_id[rows], columns.submitted_at[rows], -arrears, -columns.priority_class[rows]))[
            :most
        ]
        return list(map(self._ledger.jobs.__getitem__, columns.job_id[rows[order]].tolist()))

    def incumbents(self, pool: int, most: int) -> Incumbents:
        columns = self._ledger.columns
        rows = without_fixed(self._ledger, np.flatnonzero(columns.active & (columns.pool == pool)))
        owed = np.round(columns.owed[rows, pool])
        entitled = columns.entitled[rows, pool] > 0
        order = np.lexsort(
            (-columns.job_id[rows], -columns.submitted_at[rows], owed, entitled, columns.priority_class[rows])
        )
        ledger, now, slots = self._ledger, self._ledger.now, rows[order[:most]]
        jobs = list(map(ledger.jobs.__getitem__, columns.job_id[slots].tolist()))
        often = np.array([is_stopped_often(ledger, job) for job in jobs], np.bool_)
        # A job that was never entitled to its place gains no protection from running there.
        scavenger = np.array([job.scavenger for job in jobs], np.bool_) & ~columns.loses_work[slots]
        return _OwedIncumbents(
            jobs,
            self,
            pool,
            priority_class=columns.priority_class[slots],
            owed=columns.owed[slots, pool],
            stays=(now < columns.profiling_until[slots]) | often,
            guest=scavenger & (columns.entitled[slots, pool] <= 0),
            protected=columns.protected_from(slots) + self._rules.protected_s > now,
            ran_s=now - columns.protected_from(slots),
            stop_s=ledger.stop_costs_s(slots, self._rules),
            left_s=remaining_here_of_all_s(ledger, slots),
            gang=columns.gang[slots],
            loses_work=columns.loses_work[slots],
        )

    def outweighed(self, challenger: JobRecord, pool: int, there: "_OwedIncumbents") -> BoolArray:
        """Returns which running jobs the challenger may preempt: its arrears exceed theirs by the preemption's cost."""
        ledger, rules = self._ledger, self._rules
        own_class, count = challenger.request.priority_class, ledger.count_on(challenger, pool)
        cost_s = ledger.restart_s(challenger, rules) + fetching_on_pool_s(ledger, challenger, pool) + there.stop_s
        advantage = np.round(self._arrears_s(challenger, pool) - there.owed)
        pays = advantage >= np.maximum(_LEAST_ADVANTAGE_S, self._price_s(challenger, there, count * cost_s))
        # A job that is about to end frees its place sooner than a preemption could.
        ripe = (there.ran_s >= rules.min_runtime_s) & (there.left_s > cost_s)
        equal = (there.priority_class == own_class) & ~there.stays & (there.guest | (ripe & pays))
        found: BoolArray = (there.priority_class < own_class) | equal
        if rules.protected_s > 0:
            # A guest was promised nothing: it makes room at once.
            found &= there.guest | ~there.protected
        return found

    def _price_s(self, challenger: JobRecord, there: "_OwedIncumbents", cost_s: FloatArray) -> FloatArray:
        """Returns the accelerator-seconds that each preemption must gain: `hysteresis` times its cost, with a cap.

        Owed time is limited, so without the cap a gang whose restarts cost more than the limit would wait for ever. The
        cap does not apply to incumbents whose work would be lost, or they would never end.
        """
        columns, slot = self._ledger.columns, challenger.slot
        price_s: FloatArray = self._rules.hysteresis * cost_s
        part, most_s = self._tolerance
        limit_s, gang = self._rules.owed_limit_s, float(columns.gang[slot])
        own_s = limit_s * gang - min(part * float(columns.attained_s[slot]), most_s * gang)
        if price_s.max(initial=0.0) > _REACHABLE_PART * own_s:
            reached_s = _REACHABLE_PART * (own_s + limit_s * there.gang)
            price_s = np.minimum(price_s, np.where(there.loses_work, np.inf, reached_s))
        return price_s

    def may_move(self, job: JobRecord, pool: int, fetch_s: float = 0.0) -> bool:
        now, columns, rules = self._ledger.now, self._ledger.columns, self._rules
        here = int(columns.pool[job.slot])
        # A guest was promised nothing.
        is_guest = job.scavenger and not columns.loses_work[job.slot] and columns.entitled[job.slot, here] <= 0
        if (
            now - job.protected_from < (rules.min_runtime_s if is_guest else rules.least_run_s)
            or now < job.profiling_until
            or is_stopped_often(self._ledger, job)
        ):
            return False
        if remaining_here_s(self._ledger, job) <= rules.hysteresis * self._ledger.restart_s(job, rules):
            return False  # too near its end for another start to pay
        # A larger gang would have given it what it is owed beyond its gang where it runs already.
        counts_here = pool != here and columns.entitled[job.slot, here] > 0
        advantage = columns.owed[job.slot, pool] - (columns.owed[job.slot, here] if counts_here else 0.0)
        count = self._ledger.count_on(job, pool)
        cost = self._ledger.stop_cost_s(job, rules) + fetch_s
        return _whole_seconds(float(advantage)) >= max(_LEAST_ADVANTAGE_S, rules.hysteresis * count * cost)

    def protects(self, job: JobRecord) -> Protection | None:
        return may_be_stopped(self._ledger, job, StopFor.TURN)

    def is_entitled(self, job: JobRecord, pool: int) -> bool:
        return bool(self._ledger.columns.entitled[job.slot, pool] > 0)

    def may_profile(self, job: JobRecord, pool: int) -> bool:
        return self.tier(job, pool) != UNWANTED


@dataclass(slots=True)
class _OwedIncumbents(Incumbents):
    """Incumbents of a pool as columns, so that a challenger is compared with all of them at once."""

    ordering: ShareOrdering
    pool: int
    priority_class: IntArray
    owed: FloatArray
    #: Whether its speed on this pool is being profiled, or it was stopped too often.
    stays: BoolArray
    #: Whether the job has no share of the pool and had none when it started.
    guest: BoolArray
    #: Whether the job keeps its place whoever wants it, if the rules protect jobs at all.
    protected: BoolArray
    #: Seconds since its ranks were up, lost if it is stopped, and left to run.
    ran_s: FloatArray
    stop_s: FloatArray
    left_s: FloatArray
    gang: FloatArray
    #: Whether the job cannot save its work, so that a stop loses it.
    loses_work: BoolArray

    def weaker_than(self, challenger: JobRecord) -> Iterable[JobRecord]:
        outweighed = self.ordering.outweighed(challenger, self.pool, self)
        return map(self.jobs.__getitem__, np.flatnonzero(outweighed).tolist())
