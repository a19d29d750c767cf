"""Reports about attempts that a former incarnation of the database granted, after a restore.

The backup is older than the world: agents report the newest checkpoint and the end of the attempts that they know. An
attempt of a job in the tables, with a higher number than theirs, is newer than all they know. So its checkpoint is the
newest one, and if it finished, the job has finished: such a job is held, and its detail says why, so that people
decide.
"""

import logging

from scheduler.core.events import JobHeld
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.live_state import LiveJob, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.checkpoint_records import keep_checkpoint
from walras.job_request import JobId
from walras.states import Reason
from walras.wire import AttemptReport, CommittedReport, EndedReport

log = logging.getLogger(__name__)


def job_of_former_life(state: LiveState, report: AttemptReport) -> LiveJob | None:
    """Returns the job that a report of a former incarnation is about, if it is the same job and the report is news.

    Returns None too where the number was given to another job since, or where an attempt of this incarnation runs: it
    began from what was known here, and earlier attempts say nothing about it.
    """
    job = state.jobs.get(JobId(report.job_id))
    if job is None or report.incarnation not in state.former or job.row.incarnation == state.identity.incarnation:
        return None
    newest = 0 if job.attempt is None else job.attempt.row.attempt
    grown_here = job.attempt is not None and job.attempt.row.incarnation == state.identity.incarnation
    return None if grown_here or report.attempt <= newest else job


def recover_report(transaction: Transaction, job: LiveJob, report: AttemptReport) -> None:
    """Record what a former attempt saved or finished.

    The core is not told: it counts attempts that it granted. A later start resumes from the checkpoint.
    """
    if isinstance(report, CommittedReport):
        if (row := keep_checkpoint(transaction, job, report)) is not None:
            log.info("job %d: a checkpoint at step %g made after the backup counts", row.job_id, row.step)
    elif isinstance(report, EndedReport) and report.cause == "exited" and report.exit_code == 0:
        _hold_finished(transaction, job, report.attempt)


def _hold_finished(transaction: Transaction, job: LiveJob, attempt: int) -> None:
    """Hold a job that a later attempt than the tables know has finished: people decide whether it is to run again."""
    detail = f"attempt {attempt} ended with exit code 0 after the backup was made: release it to run it again"
    log.warning("job %d: %s", job.row.job_id, detail)
    emit(transaction, JobHeld(transaction.at, job.row.job_id, Reason.HOLD_ADMIN))
    job.row.detail = detail
    transaction.job_changed(job)
