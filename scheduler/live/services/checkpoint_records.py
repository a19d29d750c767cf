"""Where checkpoints are kept, and from which one a job resumes.

A job resumes from the newest checkpoint that was recorded under the fence of its attempt and is not lost. Two are kept.
If a machine finds that the newest is torn, or that its store does not have it, the one before takes its place; without
one the job begins anew. Each loss uses up a checkpoint, so a script that wrongly reports losses soon has none left, and
then fails by itself.
"""

import logging
import os.path
from dataclasses import dataclass, replace
from pathlib import Path

from scheduler.core.events import CheckpointRecorded
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.live_state import LiveAttempt, LiveJob
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import CheckpointRow
from walras.storage.checkpoint_store import SERVER_STORE, is_object_store, shared_folder
from walras.storage.object_store import ObjectFolder
from walras.wire import CommittedReport

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointPlaces:
    """Where jobs save: the folder of checkpoints, and the store they are sent to; empty: machines share the folder."""

    folder: Path
    store: str = ""

    def store_of(self, folder: Path) -> str:
        """Returns where the checkpoints of one folder are sent: in an object store, to a place of their own."""
        inner = folder.relative_to(self.folder)
        return f"{self.store}/{inner.as_posix()}" if is_object_store(self.store) else self.store


def checkpoint_places(setting: str | None, folder: Path, *, is_shared: bool) -> CheckpointPlaces:
    """Returns the places that the cluster file states; else the server's store, or the shared folder of an older
    cluster.

    `folder`: the server's own. `is_shared`: all machines see it. Raises ConfigError for a store that cannot be opened.
    """
    if setting is None:
        return CheckpointPlaces(folder, "" if is_shared else SERVER_STORE)
    if is_object_store(setting):
        ObjectFolder(setting)  # fails now if it cannot be opened: the server deletes superseded ones there
    shared = shared_folder(setting)
    return CheckpointPlaces(folder, setting) if shared is None else CheckpointPlaces(shared)


def keep_checkpoint(transaction: Transaction, job: LiveJob, report: CommittedReport) -> CheckpointRow | None:
    """Make a commit the job's newest checkpoint; returns None for an older one or one in a wrong place."""
    known, manifest = job.checkpoint, report.manifest
    if (known is not None and manifest.step < known.step) or not is_inside(job, report):
        return None
    # A machine must not direct others to a place of its own choice.
    if manifest.store not in ("", job.launch.store, "" if known is None else known.store):
        log.warning("job %d: its checkpoint is in %s, where none belong", job.row.job_id, manifest.store)
        return None
    row = CheckpointRow(
        job.row.job_id,
        report.attempt,
        manifest.step,
        manifest.path,
        manifest.digest,
        recorded_at=transaction.at,
        content=manifest.content,
        upload_s=report.upload_s,
        lag_s=report.lag_s,
        store=manifest.store,
    )
    if known is not None and (known.attempt, known.step) != (row.attempt, row.step):
        dropped, job.earlier_checkpoint = job.earlier_checkpoint, known
        if dropped is not None and dropped.store:
            transaction.state.superseded_places.add(dropped.store)
        elif dropped is not None and dropped.content:
            transaction.state.superseded.add(dropped.content)
    job.checkpoint = row
    transaction.batch.put(row)
    job.row.steps = max(job.row.steps, manifest.step)
    transaction.job_changed(job)
    return row


def lose_checkpoint(transaction: Transaction, job: LiveJob, attempt: LiveAttempt, digest: str, why: str) -> None:
    """Fall back to the earlier checkpoint, because the one that this attempt began with is lost.

    `digest`: of the lost one, or empty. Where the attempt began with no such checkpoint, nothing is lost.
    """
    lost, began = job.checkpoint, attempt.row
    if lost is None or lost.recorded_at > began.leased_at or digest not in ("", lost.digest):
        return
    if began.checkpoint_step is not None and lost.attempt == began.attempt:  # its own: `leased_at` may have been moved
        return
    give_up_checkpoint(transaction, job, why)
    steps = 0.0 if job.checkpoint is None else job.checkpoint.step
    emit(transaction, CheckpointRecorded(transaction.at, job.row.job_id, attempt.row.attempt, steps, lost=True))


def give_up_checkpoint(transaction: Transaction, job: LiveJob, why: str) -> None:
    """Put the earlier checkpoint in the place of the newest, which is lost."""
    lost = job.checkpoint
    assert lost is not None
    log.error("job %d: its checkpoint at step %g is lost: %s", job.row.job_id, lost.step, why)
    transaction.batch.put(replace(lost, lost=True))
    job.checkpoint, job.earlier_checkpoint = job.earlier_checkpoint, None


def is_inside(job: LiveJob, report: CommittedReport) -> bool:
    """Returns whether the checkpoint lies in the job's own folder, or in a store, by whose name of it a machine fetches
    it: its path then is of the data folder that the attempt was started from, which may have moved since.
    """
    if report.manifest.content:
        return True
    folder = _absolute_path(job.launch.checkpoint_dir)
    return os.path.commonpath([folder, _absolute_path(report.manifest.path)]) == folder


def _absolute_path(path: str) -> str:
    return os.path.normpath(os.path.join("/", path))
