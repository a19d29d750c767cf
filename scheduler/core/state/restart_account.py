"""What restarts for the benefit of others took of the time that jobs got: the account behind `Protection.RESTARTS`.

    taken + cost of a stop  <=  CUT_PART x (time that ended jobs had, that active jobs had, and that they still need)

All in accelerator-seconds; what ended is halved every day. A job of unknown length counts as needing as much again.
Stops for a higher class are not counted: they come before any economy.
"""

from collections.abc import Iterable

import numpy as np

from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import remaining_on_best_s

#: The most that restarts may take of the time of jobs that plans stop for others of their class, or move.
CUT_PART = 0.05


def stop_cost_s(ledger: Ledger, job: JobRecord) -> float:
    """Returns the accelerator-seconds that a restart of the job takes where it is."""
    return ledger.columns.count.item(job.slot) * ledger.restart_s(job, ledger.policy.rules)


def is_outclassed(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether a job of a higher class waits."""
    return len(ledger.columns.waiting_above(job.request.priority_class)) > 0


def is_on_rented(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether the job holds rented machines."""
    return bool(job.place) and ledger.fleet.pools[ledger.columns.pool.item(job.slot)].rented


def have_had_their_part(ledger: Ledger, jobs: Iterable[JobRecord]) -> bool:
    """Returns whether stops of these jobs for others, all of one exchange, would take more than the part that restarts
    may take.

    Not of those on rented machines, whether these are worth their price comes first, nor while a higher class waits.
    """
    if not ledger.policy.plans:
        return False
    cost_s = sum(stop_cost_s(ledger, job) for job in jobs if _is_weighed(ledger, job))
    account = ledger.restarts
    return cost_s > 0 and account.taken_s * account.kept(ledger.now) + cost_s > CUT_PART * _time_of_jobs_s(ledger)


def _is_weighed(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether the account bounds stops of the job."""
    weighs = not ledger.policy.weighs_stops_of(job.request)
    return weighs and not is_on_rented(ledger, job) and not is_outclassed(ledger, job)


def note_stop(ledger: Ledger, job: JobRecord) -> None:
    """Records that the job is stopped for others, or moved."""
    if not is_outclassed(ledger, job):
        ledger.restarts.add(ledger.now, taken_s=stop_cost_s(ledger, job))


def _time_of_jobs_s(ledger: Ledger) -> float:
    """Returns the accelerator-seconds that jobs had, and that active ones need by what is known."""
    account, columns = ledger.restarts, ledger.columns
    if account.known_at_event != ledger.event_number:
        rows = columns.active.nonzero()[0]
        had_s = columns.attained_s[rows] + columns.count[rows] * (ledger.now - columns.settled_at[rows])
        left_s = remaining_on_best_s(ledger, rows) * columns.gang[rows]
        account.known_at_event = ledger.event_number
        account.known_s = float((had_s + np.where(np.isfinite(left_s), left_s, had_s)).sum())
    return account.ended_s * account.kept(ledger.now) + account.known_s
