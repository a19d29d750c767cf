"""Why a job is not running: every binding constraint with its numbers, and the smallest change that would help.

Computed when asked, from the ledger alone. Reasons that no waiting will cure (`CONFIG:*`) come first.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.core.core import SchedulerCore
from scheduler.core.ledger import JobRecord
from walras.ids import JobId
from walras.reasons import Reason
from walras.states import JobState


@dataclass(frozen=True, slots=True)
class ReasonLine:
    reason: Reason
    #: The constraint with its numbers.
    detail: str
    #: What would change it; empty when only time will.
    fix: str = ""


def explain(core: SchedulerCore, job_id: JobId) -> tuple[ReasonLine, ...]:
    """All reasons why an active job does not run, most binding first; empty for a running or unknown job."""
    job = core.ledger.jobs.get(job_id)
    if job is None or job.state in (JobState.RUNNING, JobState.STARTING):
        return ()
    if job.state is JobState.HELD:
        return (ReasonLine(job.hold_reason or Reason.HOLD_USER, "held", f"walras release {job_id}"),)
    if job.state in (JobState.PREEMPTING, JobState.CANCELLING):
        return (ReasonLine(Reason.WAIT_PREEMPTING, "its attempt is checkpointing and stopping"),)
    if job.state is JobState.UNREACHABLE:
        return (ReasonLine(Reason.WAIT_NOT_EVALUATED, "no heartbeat from its machine; its lease has not run out"),)
    never = _configuration(core, job)
    if never:
        return never
    return (*_gates(core, job), *_places(core, job))


def _configuration(core: SchedulerCore, job: JobRecord) -> tuple[ReasonLine, ...]:
    ledger = core.ledger
    counts = ledger.classes.forms[ledger.class_of(job).form].counts
    wanted = " or ".join(f"{d.count} x {'any' if d.accelerator == '*' else d.accelerator}" for d in job.request.demands)
    if not any(counts):
        have = ", ".join(sorted({state.pool.shape.accelerator for state in ledger.fleet.pools})) or "none"
        return (
            ReasonLine(
                Reason.CONFIG_NO_SUCH_ACCELERATOR,
                f"wants {wanted}; this fleet has {have}",
                "change resources.accelerators, or add such machines",
            ),
        )
    could = [
        (state, max(state.capacity, state.pool.quota * state.pool.shape.accelerators))
        for state, count in zip(ledger.fleet.pools, counts, strict=True)
        if count
    ]
    if all(most < counts[state.row] for state, most in could):
        sizes = ", ".join(f"{state.pool.pool_id}: {most}" for state, most in could)
        return (
            ReasonLine(
                Reason.CONFIG_EXCEEDS_FLEET,
                f"wants {wanted}; the most there can be now is {sizes}",
                "ask for fewer accelerators, or add machines",
            ),
        )
    return ()


def _gates(core: SchedulerCore, job: JobRecord) -> tuple[ReasonLine, ...]:
    now = core.ledger.now
    lines: list[ReasonLine] = []
    if job.blocked_by:
        blockers = ", ".join(map(str, sorted(job.blocked_by)))
        lines.append(ReasonLine(Reason.WAIT_DEPENDENCY, f"waits for job {blockers}"))
    if job.ready_at > now:
        is_backoff = job.ready_at != job.request.not_before_at
        reason = Reason.WAIT_BACKOFF if is_backoff else Reason.WAIT_NOT_BEFORE
        lines.append(ReasonLine(reason, f"not before {job.ready_at - now:.0f} s from now"))
    return tuple(lines)


def _places(core: SchedulerCore, job: JobRecord) -> tuple[ReasonLine, ...]:
    ledger, claim = core.ledger, core.cycle.claims.get(job.job_id)
    lines: list[ReasonLine] = []
    if claim is not None:
        missing = sum(claim.needs.values())
        pool_id = ledger.fleet.pools[claim.pool].pool.pool_id
        reason = Reason.WAIT_PREEMPTING if claim.exchange else Reason.WAIT_RESERVATION
        lines.append(
            ReasonLine(
                reason,
                f"{missing} of {sum(claim.wanted.values())} accelerators of its place on {pool_id} are not free yet",
            )
        )
    job_class = ledger.class_of(job)
    form = ledger.classes.forms[job_class.form]
    columns = ledger.columns
    for state in ledger.fleet.pools:
        count = form.counts[state.row]
        if not count:
            continue
        owed = float(columns.owed[job.slot, state.row])
        share = float(columns.entitled[job.slot, state.row]) / count
        standing = f"share {share:.2f}, owed {owed:.0f} accelerator-seconds, {_ahead(core, job, state.row)} ahead"
        need = f"{state.pool.pool_id}: needs {count}, {state.free} of {state.capacity} free"
        if state.free < count:
            waits_for = Reason.WAIT_PROVISIONING if state.awaited else Reason.WAIT_CAPACITY
            lines.append(ReasonLine(waits_for, f"{need}; {standing}"))
        elif ledger.fleet.find(state.row, form) is None:
            lines.append(ReasonLine(Reason.WAIT_FRAGMENTED, f"{need}, but not on few enough machines; {standing}"))
        else:
            price = _price(core, state.row)
            lines.append(ReasonLine(Reason.WAIT_PRICE, f"{need}; {standing}{price}"))
    return tuple(lines)


def _price(core: SchedulerCore, pool: int) -> str:
    standing = core.ledger.standing
    if standing is None or standing.quote is None or pool >= len(standing.quote.prices):
        return ""
    return f"; price {standing.quote.prices[pool]:.3g} {standing.quote.unit}"


def _ahead(core: SchedulerCore, job: JobRecord, pool: int) -> int:
    """Waiting jobs with a better place in the pool's line."""
    discipline = core.cycle.discipline
    if discipline is None:
        return 0
    mine = discipline.key(job, pool)
    if mine is None:
        return 0
    columns = core.ledger.columns
    rows = np.flatnonzero(columns.active & columns.eligible & (columns.pool < 0))
    others = (core.ledger.jobs[JobId(int(columns.job_id[row]))] for row in rows)
    keys = (discipline.key(other, pool) for other in others if other.waits)
    return sum(1 for key in keys if key is not None and key < mine)
