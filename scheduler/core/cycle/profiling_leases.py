"""Profiling leases: short runs of real jobs where the speed of their kind is unknown. Their steps count.

Every start on an unmeasured pool is such a lease. This module adds deliberate ones at round ends: one cell (kind, pool)
at a time per free part of the profiling budget, and only where the kind has enough work left to repay it. Where the
speed is predicted with an interval, what may repay it is the time that the kind saves if it is faster than predicted.
"""

from functools import partial
from math import erfc, exp, inf, log, sqrt

import numpy as np

from scheduler.core.placement.preemption import INCUMBENTS_MAX, take_place
from scheduler.core.placement.search import FoundPlace, find_free_place, find_victims
from scheduler.core.placement.where import may_hold
from scheduler.core.state.job_classes import JobClass
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import unreported_on_best_of_all_s, unreported_on_best_s
from scheduler.core.state.stopping import StopFor, may_be_stopped
from scheduler.core.state.throughput import BelievedSpeed
from scheduler.core.state.working_set import Cycle, JobOrdering
from walras.job_request import JobId, Kind, plain_kind

#: Cells tried in one round, and jobs tried for each cell. The limit bounds the work of a round.
CELLS_MAX = 8
CANDIDATES_MAX = 4
#: Width of an interval that holds a normal variable four times out of five, in its deviations.
_WIDTH = 2.563
#: Deviations above count as this.
_DEVIATION_MOST = 5.0


def open_profiling_leases(cycle: Cycle) -> list[tuple[JobRecord, int]]:
    """Opens profiling leases within the budget, most remaining work first. Returns (job, pool row) of each lease."""
    ordering, opened = cycle.ordering, list[tuple[JobRecord, int]]()
    if not ordering.profiles or cycle.policy.rules.profiling_share <= 0:
        return opened
    if cycle.ledger.classes.all_measured:
        return opened
    budget = _budget(cycle)
    if budget < 1:
        return opened
    for class_row, pool in _unmeasured_cells(cycle)[:CELLS_MAX]:
        for job in _candidates(cycle, ordering, class_row, pool):
            count = cycle.ledger.shape_of(job).counts[pool]
            if count <= budget and _open_lease(cycle, job, pool):
                budget -= count
                opened.append((job, pool))
                break
    return opened


def hoped_saving(speed: BelievedSpeed) -> float:
    """Returns the expected part of its time that a job saves on a place that may be faster than believed.

    With X, its true speed, log-normal around the believed p: E[max(1 - p / X, 0)], since it can leave a slower place.
    1 for a speed without an interval, of which nobody knows how far off it is.
    """
    if speed.low is None or speed.high is None or not 0.0 < speed.low < speed.high:
        return 1.0
    deviation = min(log(speed.high / speed.low) / _WIDTH, _DEVIATION_MOST)
    return 0.5 - 0.5 * exp(deviation**2 / 2.0) * erfc(deviation / sqrt(2.0))


def _budget(cycle: Cycle) -> float:
    """Returns the accelerators that may still start profiling: one gang may always profile, in a small fleet too."""
    ledger = cycle.ledger
    capacity = sum(state.capacity for state in ledger.fleet.pools)
    learning = [ledger.jobs[job_id] for job_id in ledger.profiling if ledger.jobs[job_id].profiling_until > ledger.now]
    profiling = sum(job.placement.accelerators for job in learning if job.placement is not None)
    share = cycle.policy.rules.profiling_share * capacity - profiling
    return max(share, 0.0) if profiling else max(share, float(capacity))


def _unmeasured_cells(cycle: Cycle) -> list[tuple[int, int]]:
    """Returns (class, pool) of every unmeasured cell worth a lease, those that tell most of a new type first, then
    by remaining work.
    """
    ledger, rules = cycle.ledger, cycle.policy.rules
    columns, classes = ledger.columns, ledger.classes.classes
    rows = np.flatnonzero(columns.active & columns.eligible)
    class_rows = columns.class_row[rows]
    work_s = np.bincount(class_rows, unreported_on_best_of_all_s(ledger, rows), len(classes))
    runs = set(zip(class_rows.tolist(), columns.pool[rows].tolist(), strict=True))
    learning = {(classes[class_row].kind, pool) for class_row, pool in runs if pool >= 0}
    reserved = {reservation.pool for reservation in cycle.reservations.values()}
    cells: list[tuple[int, int]] = []
    for class_row in np.argsort(-work_s, kind="stable").tolist():
        job_class = classes[class_row]
        least_s = rules.profiling_payback * ledger.costs.restart_s(job_class.kind, rules.restart_default_s)
        if work_s[class_row] < least_s:
            break
        usable = [p.row for p in ledger.fleet.pools if p.capacity and job_class.rates[p.row] > 0 and p.slow_of is None]
        if len(usable) < 2:
            continue  # the job must run where it is, so its speed elsewhere would change no decision
        for pool in usable:
            if job_class.measured[pool] or pool in reserved or (job_class.kind, pool) in learning:
                continue
            if not rules.weigh_intervals or work_s[class_row] * _hoped_saving_on(ledger, job_class, pool) >= least_s:
                cells.append((class_row, pool))
    return sorted(cells, key=lambda cell: not ledger.table.is_first(*_cell_key(ledger, classes[cell[0]], cell[1])))


def _cell_key(ledger: Ledger, job_class: JobClass, pool: int) -> tuple[Kind, str, int]:
    count = ledger.classes.shapes[job_class.shape].counts[pool]
    return job_class.kind, ledger.fleet.pools[pool].pool.shape.accelerator, count


def _hoped_saving_on(ledger: Ledger, job_class: JobClass, pool: int) -> float:
    """Returns `hoped_saving` of jobs of the class on the pool."""
    return hoped_saving(ledger.table.speed(*_cell_key(ledger, job_class, pool), ledger.classes.nominal))


def _candidates(cycle: Cycle, ordering: JobOrdering, class_row: int, pool: int) -> list[JobRecord]:
    """Returns jobs of the class that could go to the pool now: waiting ones first, then those with most work left."""
    columns = cycle.ledger.columns
    rows = np.flatnonzero(columns.active & columns.eligible & (columns.class_row == class_row))
    left = columns.steps_total[rows] - columns.steps[rows]
    rows = rows[np.lexsort((columns.job_id[rows], -left, columns.pool[rows] >= 0))]
    found: list[JobRecord] = []
    for row in rows[: 4 * CANDIDATES_MAX]:
        job = cycle.ledger.jobs[JobId(int(columns.job_id[row]))]
        if ordering.may_profile(job, pool) and _may_go(cycle, job):
            found.append(job)
    return found[:CANDIDATES_MAX]


def _may_go(cycle: Cycle, job: JobRecord) -> bool:
    """Returns whether the job waits, or has run long enough elsewhere, and has enough work left to repay the lease."""
    rules = cycle.policy.rules
    if job.job_id in cycle.queues.nominated or job.job_id in cycle.sharing.pairs or job.ready_at > cycle.now:
        return False  # a lease of a co-located job would measure its speed alone
    if unreported_on_best_s(cycle.ledger, job) < rules.profiling_s + cycle.ledger.restart_s(job, rules):
        return False
    ledger = cycle.ledger
    if job.waits:  # it could not be moved away again, however slow the pool is
        return may_be_stopped(ledger, job, StopFor.MEASURING) is None
    can_leave = not (may_be_stopped(ledger, job, StopFor.PLACE) or may_be_stopped(ledger, job, StopFor.TURN))
    return can_leave and cycle.now - job.protected_from >= rules.least_run_s and cycle.now >= job.profiling_until


def _open_lease(cycle: Cycle, job: JobRecord, pool: int) -> bool:
    """Takes a free place for the lease, else that of incumbents past their minimum run. Returns False if none."""
    if not may_hold(cycle, job, pool, cycle.ledger.shape_of(job).counts[pool]):
        return False
    place = find_free_place(cycle, job, pool)
    if place is not None:
        found: FoundPlace | None = FoundPlace(pool, place)
    else:
        incumbents = cycle.ordering.incumbents(pool, INCUMBENTS_MAX).jobs
        found = find_victims(cycle, job, pool, filter(partial(_may_disturb, cycle, job), incumbents))
    if found is None:
        return False
    pool_id = cycle.ledger.fleet.pools[pool].pool.pool_id
    detail = f"the speed of {plain_kind(job.request.kind)} on {pool_id} is unknown"
    take_place(cycle, job, found, detail, move_detail=f"to learn its speed on {pool_id}")
    return True


def _may_disturb(cycle: Cycle, job: JobRecord, incumbent: JobRecord) -> bool:
    rules = cycle.policy.rules
    ran_s = cycle.now - incumbent.running_at if incumbent.running_at < inf else 0.0
    return (
        not incumbent.loses_work
        and incumbent.request.priority_class <= job.request.priority_class
        and ran_s >= rules.least_run_s
        and cycle.now >= incumbent.profiling_until
        and unreported_on_best_s(cycle.ledger, incumbent) >= cycle.ledger.restart_s(incumbent, rules)
    )
