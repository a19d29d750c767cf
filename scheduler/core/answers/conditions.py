"""What people should know of a job that runs or waits, with its numbers: it may miss its deadline, money runs low, its
speed is not that of its kind, or it makes no steps.

Computed when asked, from the ledger alone, like reasons.
"""

from dataclasses import dataclass

from scheduler.core.core import SchedulerCore
from scheduler.core.handlers.deadlines import at_risk_text, outlook
from walras.ids import JobId

AT_RISK, BUDGET_LOW, SPEED_DIFFERS, NO_STEPS = "at_risk", "budget_low", "speed_differs", "no_steps"
#: A job whose steps are stated, and that has not told of one for so long since its ranks were up.
STEPLESS_S = 600.0


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    detail: str


def conditions(core: SchedulerCore, job_id: JobId) -> tuple[Condition, ...]:
    """All that hold now; none of a job that is not active."""
    job = core.ledger.jobs.get(job_id)
    if job is None:
        return ()
    found = []
    deadline, spending = outlook(core.ledger, job), core.cycle.spending
    if deadline is not None and deadline.is_at_risk:
        found.append(Condition(AT_RISK, at_risk_text(deadline)))
    for account in spending.accounts_of(job):
        if any(spent >= account.warn_at * limit for spent, limit, _ in spending.spent_now(account)):
            found.append(Condition(BUDGET_LOW, spending.text(account)))
    if core.ledger.kind_of(job) != job.request.kind:
        detail = f"counted as {core.ledger.kind_of(job)!r}; give jobs that differ a `profile` each"
        found.append(Condition(SPEED_DIFFERS, detail))
    silent_s = core.ledger.now - job.running_at
    if job.holds and silent_s >= STEPLESS_S and job.request.steps is not None and job.steps <= job.start_steps:
        detail = (
            f"no step was counted in {silent_s / 60:.0f} min: its speed and what is left of its {job.request.steps:g} "
            "steps are unknown; steps are counted by walras.training.Loop in the script, or leave `steps` out"
        )
        found.append(Condition(NO_STEPS, detail))
    return tuple(found)
