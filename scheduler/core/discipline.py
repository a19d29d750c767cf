"""Who goes first: by shares and what is owed, or by a fixed order.

Everything that differs between share policies and order policies once they have decided is in these two classes; the
round mechanism asks them and never looks at the policy.
"""

from collections.abc import Sequence
from math import inf
from typing import Protocol

import numpy as np

from optimizer.policy import OrderFacts, OrderPolicy
from scheduler.core.ledger import JobRecord, Ledger
from scheduler.core.lines import Key, Lines
from scheduler.core.rules import RoundRules
from walras.ids import JobId

#: A job is entitled to a pool, may use it while free, or may not use it.
ENTITLED, OPPORTUNIST, UNWANTED = 0.0, 1.0, 2.0
#: Accelerator-seconds that an exchange must gain however little a restart costs: equals would swap for ever.
_LEAST_ADVANTAGE_S = 1.0


class Discipline(Protocol):
    """The order of jobs on each pool, and who may take a place from whom."""

    #: True: running jobs are compared with waiting ones at round ends.
    compares: bool
    #: True: the first in line blocks everybody behind it.
    strict: bool

    def fill_lines(self, lines: Lines) -> None:
        """Put every waiting job in line, anew."""
        ...

    def key(self, job: JobRecord, pool: int) -> Key | None:
        """Place of one waiting job in the line of a pool; None if it must not run there."""
        ...

    def challengers(self, pool: int, most: int) -> list[JobRecord]:
        """Jobs that should run on this pool and do not, most urgent first: waiting, or running elsewhere."""
        ...

    def incumbents(self, pool: int) -> list[JobRecord]:
        """Jobs that hold accelerators of this pool, the first to go first."""
        ...

    def may_evict(self, challenger: JobRecord, incumbent: JobRecord, pool: int) -> bool:
        """Whether the challenger's claim to the pool outweighs the incumbent's and the cost of the exchange."""
        ...

    def may_move(self, job: JobRecord, pool: int) -> bool:
        """Whether a running job gains enough from leaving its pool for this one."""
        ...

    def can_be_stopped(self, job: JobRecord) -> bool:
        """Whether a running job may be asked to checkpoint and leave."""
        ...

    def is_entitled(self, job: JobRecord, pool: int) -> bool:
        """Whether the job has a right to the pool, not only leave to use it while it is free."""
        ...

    def alternatives(self, job: JobRecord, pool: int) -> list[int]:
        """Pools to try before this one for the job, best first."""
        ...


def _quantised(owed_s: float) -> float:
    """Whole accelerator-seconds: clocks jitter, and a tie must stay a tie."""
    return float(round(owed_s))


class BySharesOwed:
    """Shares of time: whoever is owed most goes first; exchanges must pay for the restarts they cause (design 2)."""

    compares = True
    strict = False

    def __init__(self, ledger: Ledger, rules: RoundRules) -> None:
        self._ledger = ledger
        self._rules = rules

    def tier(self, job: JobRecord, pool: int) -> float:
        """ENTITLED, OPPORTUNIST (fast enough to use the pool while it is free) or UNWANTED."""
        columns, job_class = self._ledger.columns, self._ledger.class_of(job)
        if columns.entitled[job.slot, pool] > 0:
            return ENTITLED
        rate = job_class.rates[pool]
        return OPPORTUNIST if rate > 0 and rate >= self._rules.opportunistic_rate * job_class.best_rate else UNWANTED

    def key(self, job: JobRecord, pool: int) -> Key | None:
        tier = self.tier(job, pool)
        if tier == UNWANTED:
            return None
        columns = self._ledger.columns
        columns.settle(job.slot, self._ledger.now)
        owed = _quantised(float(columns.owed[job.slot, pool]))
        return (
            -job.request.priority_class,
            tier,
            -owed,
            float(columns.submitted_at[job.slot]),
            job.job_id,
        )

    def fill_lines(self, lines: Lines) -> None:
        ledger, columns = self._ledger, self._ledger.columns
        waiting = [job for job in ledger.jobs.values() if lines.is_waiting(job.job_id)]
        if not waiting:
            return
        rows = np.array([job.slot for job in waiting])
        classes = ledger.classes.classes
        class_rows = columns.class_row[rows]
        rates = np.array([job_class.rates for job_class in classes])[class_rows]
        forms = np.array([job_class.form for job_class in classes])[class_rows]
        enough = self._rules.opportunistic_rate * rates.max(axis=1, initial=0.0)
        for pool in range(columns.pools):
            entitled = columns.entitled[rows, pool] > 0
            tier = np.where(entitled, ENTITLED, OPPORTUNIST)
            wanted = entitled | ((rates[:, pool] > 0) & (rates[:, pool] >= enough))
            owed = np.round(columns.owed[rows, pool]) + 0.0
            order = np.lexsort(
                (columns.job_id[rows], columns.submitted_at[rows], -owed, tier, -columns.priority_class[rows])
            )
            order = order[wanted[order]]
            for form in np.unique(forms[order]).tolist():
                those = order[forms[order] == form]
                ids = columns.job_id[rows[those]].tolist()
                keys = zip(
                    (-columns.priority_class[rows[those]]).tolist(),
                    tier[those].tolist(),
                    (-owed[those]).tolist(),
                    columns.submitted_at[rows[those]].tolist(),
                    ids,
                    strict=True,
                )
                lines.line(pool, form).plan(list(zip(keys, ids, strict=True)))

    def challengers(self, pool: int, most: int) -> list[JobRecord]:
        columns = self._ledger.columns
        rows = np.flatnonzero(
            columns.active & columns.eligible & (columns.entitled[:, pool] > 0) & (columns.pool != pool)
        )
        owed = np.round(columns.owed[rows, pool])
        order = np.lexsort((columns.job_id[rows], columns.submitted_at[rows], -owed, -columns.priority_class[rows]))[
            :most
        ]
        return [self._ledger.jobs[JobId(int(columns.job_id[row]))] for row in rows[order]]

    def incumbents(self, pool: int) -> list[JobRecord]:
        columns = self._ledger.columns
        rows = np.flatnonzero(columns.active & (columns.pool == pool))
        owed = np.round(columns.owed[rows, pool])
        entitled = columns.entitled[rows, pool] > 0
        order = np.lexsort(
            (-columns.job_id[rows], -columns.submitted_at[rows], owed, entitled, columns.priority_class[rows])
        )
        return [self._ledger.jobs[JobId(int(columns.job_id[row]))] for row in rows[order]]

    def may_evict(self, challenger: JobRecord, incumbent: JobRecord, pool: int) -> bool:
        now, columns, rules = self._ledger.now, self._ledger.columns, self._rules
        if challenger.request.priority_class != incumbent.request.priority_class:
            return challenger.request.priority_class > incumbent.request.priority_class
        if now < incumbent.profiling_until:
            return False
        if incumbent.opportunist and not incumbent.loses_work and columns.entitled[incumbent.slot, pool] <= 0:
            return True  # it never had a right to the place, and earns none by sitting there
        if now - incumbent.running_at < rules.min_runtime_s:
            return False
        count = self._ledger.classes.forms[self._ledger.class_of(challenger).form].counts[pool]
        cost = self._ledger.restart_s(challenger, rules) + self._ledger.stop_cost_s(incumbent, rules)
        if self._ledger.remaining_s(incumbent) <= cost:
            return False  # it will be gone as soon as the exchange would be through
        advantage = columns.owed[challenger.slot, pool] - columns.owed[incumbent.slot, pool]
        return _quantised(float(advantage)) >= max(_LEAST_ADVANTAGE_S, rules.hysteresis * count * cost)

    def may_move(self, job: JobRecord, pool: int) -> bool:
        now, columns, rules = self._ledger.now, self._ledger.columns, self._rules
        here = int(columns.pool[job.slot])
        if now - job.running_at < rules.min_runtime_s or now < job.profiling_until:
            return False
        if self._ledger.remaining_s(job) <= rules.hysteresis * self._ledger.restart_s(job, rules):
            return False  # too near its end for another start to pay
        owed_here = columns.owed[job.slot, here] if columns.entitled[job.slot, here] > 0 else 0.0
        advantage = columns.owed[job.slot, pool] - owed_here
        count = self._ledger.classes.forms[self._ledger.class_of(job).form].counts[pool]
        cost = self._ledger.stop_cost_s(job, rules)
        return _quantised(float(advantage)) >= max(_LEAST_ADVANTAGE_S, rules.hysteresis * count * cost)

    def can_be_stopped(self, job: JobRecord) -> bool:
        return job.request.preemptible and not job.loses_work

    def is_entitled(self, job: JobRecord, pool: int) -> bool:
        return bool(self._ledger.columns.entitled[job.slot, pool] > 0)

    def alternatives(self, job: JobRecord, pool: int) -> list[int]:
        return []  # shares have already chosen the pool


class ByOrder:
    """A fixed order: heaps that change only with the jobs themselves; no solve is ever needed."""

    def __init__(self, ledger: Ledger, rules: RoundRules, policy: OrderPolicy) -> None:
        self._ledger = ledger
        self._rules = rules
        self._policy = policy
        self.compares = policy.preemptive
        self.strict = policy.strict

    def _key(self, job: JobRecord) -> Key:
        ledger, columns = self._ledger, self._ledger.columns
        columns.settle(job.slot, ledger.now)
        best = ledger.class_of(job).best_rate
        request = job.request
        left = inf if request.steps is None or best <= 0 else max(0.0, request.steps - job.steps) / best
        facts = OrderFacts(
            job_id=job.job_id,
            submitted_at=float(columns.submitted_at[job.slot]),
            priority_class=request.priority_class,
            gang=request.demands[0].count if request.demands else 1,
            attained_s=float(columns.attained_s[job.slot]),
            remaining_s=left,
            deadline_at=request.deadline_at,
        )
        return (-request.priority_class, *self._policy.key(facts), job.job_id)

    def key(self, job: JobRecord, pool: int) -> Key | None:
        return self._key(job) if self._ledger.class_of(job).rates[pool] > 0 else None

    def fill_lines(self, lines: Lines) -> None:
        for job in self._ledger.jobs.values():
            if lines.is_waiting(job.job_id):
                key = self._key(job)
                for pool in np.flatnonzero(self._ledger.class_of(job).rates > 0).tolist():
                    lines.push(job, pool, key)

    def challengers(self, pool: int, most: int) -> list[JobRecord]:
        columns = self._ledger.columns
        rows = np.flatnonzero(columns.active & columns.eligible & (columns.pool < 0))
        jobs = [self._ledger.jobs[JobId(int(columns.job_id[row]))] for row in rows]
        runnable = [job for job in jobs if job.waits and self._ledger.class_of(job).rates[pool] > 0]
        return sorted(runnable, key=self._key)[:most]

    def incumbents(self, pool: int) -> list[JobRecord]:
        columns = self._ledger.columns
        rows: Sequence[int] = np.flatnonzero(columns.active & (columns.pool == pool)).tolist()
        jobs = [self._ledger.jobs[JobId(int(columns.job_id[row]))] for row in rows]
        return sorted(jobs, key=self._key, reverse=True)

    def may_evict(self, challenger: JobRecord, incumbent: JobRecord, pool: int) -> bool:
        if challenger.request.priority_class != incumbent.request.priority_class:
            return challenger.request.priority_class > incumbent.request.priority_class
        ran_s = self._ledger.now - incumbent.running_at
        if incumbent.loses_work:
            return False
        return self.compares and ran_s >= self._rules.min_runtime_s and self._key(challenger) < self._key(incumbent)

    def may_move(self, job: JobRecord, pool: int) -> bool:
        return False

    def can_be_stopped(self, job: JobRecord) -> bool:
        return self.compares and job.request.preemptible and not job.loses_work

    def is_entitled(self, job: JobRecord, pool: int) -> bool:
        return True

    def alternatives(self, job: JobRecord, pool: int) -> list[int]:
        job_class = self._ledger.class_of(job)
        rates = job_class.rates
        if not self._policy.aware or rates[pool] >= job_class.best_rate:
            return []
        better = np.flatnonzero(rates > rates[pool])
        ranked: list[int] = better[np.argsort(-rates[better], kind="stable")].tolist()
        return ranked
