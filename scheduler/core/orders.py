"""Who goes first under an order: by the policy's key, class by class. No solve is ever needed.

A waiting job's key stands still between round ends (jobs age only then); a running job's moves as it runs, and is
looked at when somebody wants its place. Between equals nobody moves: the first column of the key decides who outranks
whom.
"""

from collections.abc import Iterator
from math import nan

import numpy as np

from optimizer.policy import OrderPolicy, Renewing
from optimizer.problem import BoolArray, FloatArray, IntArray
from scheduler.core.facts import Facts
from scheduler.core.ledger import JobRecord, Ledger
from scheduler.core.lines import Key, Lines
from scheduler.core.rules import RoundRules
from walras.ids import JobId


class ByOrder:
    """An order of jobs, kept in heaps; keys are computed in arrays where many are needed."""

    claim_text = "ranks before it"
    explores = False
    shrinks = False
    move_text = "placed on"

    def __init__(self, ledger: Ledger, rules: RoundRules, policy: OrderPolicy) -> None:
        self._ledger = ledger
        self._rules = rules
        self._policy = policy
        self.compares = policy.preemptive
        self.strict = policy.strict
        #: Rank of jobs looked at in this instant's comparison.
        self._ranks: dict[JobId, float] = {}
        self._ranked_at = nan

    # ------------------------------------------------------------------------------------------ keys

    def _columns(self, rows: IntArray) -> list[FloatArray]:
        """The whole key in columns, most significant first: class, the policy's, submission, number."""
        columns = self._ledger.columns
        own = self._policy.key(Facts(self._ledger, rows))
        last = (columns.submitted_at[rows], columns.job_id[rows].astype(np.float64))
        return [-columns.priority_class[rows].astype(np.float64), *own, *last]

    def _ranked(self, rows: IntArray) -> IntArray:
        """The slots in order; their ranks are kept for this instant's comparisons."""
        keys = self._columns(rows)
        self._keep(rows, keys[1])
        return rows[np.lexsort(keys[::-1])]

    def _keep(self, rows: IntArray, ranks: FloatArray) -> None:
        if self._ranked_at != self._ledger.now:
            self._ranks.clear()
            self._ranked_at = self._ledger.now
        job_ids = self._ledger.columns.job_id[rows].tolist()
        self._ranks.update(zip(map(JobId, job_ids), ranks.tolist(), strict=True))

    def _rank(self, job: JobRecord) -> float:
        if self._ranked_at != self._ledger.now or job.job_id not in self._ranks:
            row = np.array([job.slot])
            self._keep(row, self._columns(row)[1])
        return self._ranks[job.job_id]

    def keys(self, job: JobRecord) -> list[tuple[int, Key]]:
        key = tuple(float(column[0]) for column in self._columns(np.array([job.slot])))
        return [(pool, key) for pool in np.flatnonzero(self._ledger.class_of(job).rates > 0).tolist()]

    # ------------------------------------------------------------------------------------------ lines

    def fill_lines(self, lines: Lines) -> None:
        """Put every waiting job in line, anew, after the policy has said whose service it counts anew."""
        ledger = self._ledger
        rows = self._waiting()
        if not len(rows):
            return
        self._renew(rows)
        keys = self._columns(rows)
        order = np.lexsort(keys[::-1])
        ids = ledger.columns.job_id[rows[order]].tolist()
        entries = list(zip(zip(*(column[order].tolist() for column in keys), strict=True), ids, strict=True))
        class_rows = ledger.columns.class_row[rows[order]]
        forms = np.array([job_class.form for job_class in ledger.classes.classes])[class_rows]
        runs_on = ledger.classes.rates[class_rows] > 0
        for pool in range(ledger.columns.pools):
            runs = runs_on[:, pool]
            for form in np.unique(forms[runs]).tolist():
                those = np.flatnonzero(runs & (forms == form)).tolist()
                lines.line(pool, form).plan([entries[at] for at in those])

    def _waiting(self) -> IntArray:
        """Slots of the jobs that miss nothing but a place; some may have one promised."""
        columns = self._ledger.columns
        return np.flatnonzero(columns.active & columns.eligible & (columns.pool < 0))

    def _renew(self, rows: IntArray) -> None:
        if isinstance(self._policy, Renewing):
            facts, columns = Facts(self._ledger, rows), self._ledger.columns
            again = self._policy.renews(facts)
            columns.renewed_at_s[rows[again]] = facts.attained_s[again]

    # ------------------------------------------------------------------------------------------ exchanges

    def contests(self, most: int) -> Iterator[tuple[JobRecord, int]]:
        columns = self._ledger.columns
        waiting = self._waiting()
        if not len(waiting):
            return
        rows = self._ranked(waiting)
        kinds, kind = np.unique(columns.class_row[rows], return_inverse=True)
        fits = np.array([self._fits(row) for row in kinds.tolist()])[kind]
        if not self.strict:  # under a strict order even a head that outranks nobody holds up the rest
            fits &= self._outrank_somebody(rows)
        first = fits & (np.cumsum(fits, axis=0) <= most)
        for at in np.flatnonzero(first.any(axis=1)).tolist():
            job = self._ledger.jobs[JobId(int(columns.job_id[rows[at]]))]
            if job.waits:
                for pool in self.pools_of(job):
                    if first[at, pool]:
                        yield job, pool

    def _outrank_somebody(self, rows: IntArray) -> BoolArray:
        """Whether a waiting job ranks before the last of those who hold a place, by pool (n, pools)."""
        columns = self._ledger.columns
        running = np.flatnonzero(columns.active & (columns.pool >= 0))
        challenger = self._columns(rows)
        better = np.zeros((len(rows), columns.pools), dtype=np.bool_)
        incumbent = self._columns(running)
        for pool in range(columns.pools):
            there = np.flatnonzero(columns.pool[running] == pool)
            if len(there):
                last = there[np.lexsort((incumbent[1][there], incumbent[0][there]))[-1]]
                by_class, by_rank = incumbent[0][last], incumbent[1][last]
                better[:, pool] = (challenger[0] < by_class) | ((challenger[0] == by_class) & (challenger[1] < by_rank))
        return better

    def _fits(self, class_row: int) -> list[bool]:
        """Pools on which jobs of the class could run, were they empty."""
        job_class, pools = self._ledger.classes.classes[class_row], self._ledger.fleet.pools
        counts = self._ledger.classes.forms[job_class.form].counts
        return [bool(job_class.rates[p.row] > 0) and 0 < counts[p.row] <= p.capacity for p in pools]

    def pools_of(self, job: JobRecord) -> list[int]:
        rates = self._ledger.class_of(job).rates
        order = np.argsort(-rates, kind="stable") if self._policy.aware else np.arange(len(rates))
        pools: list[int] = order[rates[order] > 0].tolist()
        return pools

    def incumbents(self, pool: int) -> list[JobRecord]:
        columns = self._ledger.columns
        rows = self._ranked(np.flatnonzero(columns.active & (columns.pool == pool)))
        return [self._ledger.jobs[JobId(job_id)] for job_id in columns.job_id[rows[::-1]].tolist()]

    def may_evict(self, challenger: JobRecord, incumbent: JobRecord, pool: int) -> bool:
        """A higher class at once. Inside a class a lower rank, once the incumbent has run for what an exchange costs.

        The incumbent's run is `hysteresis` times that cost at least, so restarts never take more than
        1/(1 + hysteresis) of what the fleet delivers, whatever the order does.
        """
        if challenger.request.priority_class != incumbent.request.priority_class:
            return challenger.request.priority_class > incumbent.request.priority_class
        now, ledger, rules = self._ledger.now, self._ledger, self._rules
        if not self.compares or self._rank(challenger) >= self._rank(incumbent):
            return False
        if incumbent.loses_work or now < incumbent.profiling_until:
            return False
        cost_s = ledger.restart_s(challenger, rules) + ledger.stop_cost_s(incumbent, rules)
        if now - incumbent.running_at < max(rules.min_runtime_s, rules.hysteresis * cost_s):
            return False
        # It would be gone as soon as the exchange would be through.
        return ledger.remaining_s(incumbent) > cost_s

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

    def may_learn(self, job: JobRecord, pool: int) -> bool:
        return False
