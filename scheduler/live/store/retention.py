"""Deletes what is old: rows, logs and checkpoints of jobs that ended long ago, and the beginning of the journal.

Charges stay: the ledger of money is kept.

Deletion goes in small transactions, so that it can be done while the server runs. Numbers of deleted jobs are not given
out again (the chain remembers the highest). A job stays while any older job has not ended, because that one may name
it. Of checkpoints only those in a folder of the job's own are deleted; what projects keep by name stays.

The journal is cut where a server began, so that the rest replays: whole generations are deleted, never the newest. The
digest of the chain at the cut is kept, so that the rest is checked as before.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.journal_chain import cut_chain, journal_cut
from scheduler.live.store.sql_dialect import SqlConnection
from walras.errors import NotFound

#: Jobs, and journal rows, that are deleted in one transaction, for which the server waits some milliseconds.
_JOBS_IN_A_BITE, _ROWS_IN_A_BITE = 200, 5000
#: How long such a transaction waits for the server's own commit, s.
_PATIENCE_S = 10.0
#: All tables with rows of a job, its own row last.
_TABLES_OF_JOB = ("specs", "parts", "attempts", "checkpoints", "outputs", "jobs")


@dataclass(frozen=True, slots=True)
class PruneReport:
    """How many ended jobs were deleted, of how many the logs and the checkpoints were, and how many journal rows."""

    jobs: int
    logs: int
    checkpoints: int = 0
    journal_rows: int = 0


def prune(
    data: Path,
    *,
    jobs_older_s: float,
    logs_older_s: float,
    checkpoints_older_s: float | None = None,
    journal_older_s: float | None = None,
) -> PruneReport:
    """Delete jobs, logs and checkpoints of jobs that ended longer ago than these seconds, and such journal generations.

    None leaves checkpoints, or the journal, as they are. Raises NotFound where there is no database.
    """
    path = data / "walras.db"
    if not path.is_file():
        raise NotFound(
            f"{data} holds no walras.db", field="data", fix="name the folder given to `walras server --data`"
        )
    connection = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE_S)
    try:
        return prune_store(
            connection,
            lambda: _transaction(connection),
            data,
            jobs_older_s=jobs_older_s,
            logs_older_s=logs_older_s,
            checkpoints_older_s=checkpoints_older_s,
            journal_older_s=journal_older_s,
        )
    finally:
        connection.close()


def prune_store(
    connection: SqlConnection,
    transaction: Callable[[], AbstractContextManager[None]],
    data: Path,
    *,
    jobs_older_s: float,
    logs_older_s: float,
    checkpoints_older_s: float | None = None,
    journal_older_s: float | None = None,
) -> PruneReport:
    """As `prune`, over a connection of any store; everything inside `transaction()` is one transaction of it."""
    now = _newest_instant(connection)
    folder = DataFolder(data)
    logs = _delete_logs(connection, folder, now - min(logs_older_s, jobs_older_s))
    checkpoints, journal_rows = 0, 0
    if checkpoints_older_s is not None:
        checkpoints = _delete_checkpoints(connection, folder, now - checkpoints_older_s)
    if journal_older_s is not None:
        journal_rows = _cut_journal(connection, transaction, now - journal_older_s)
    jobs = 0
    while bite := _oldest_ended(connection, now - jobs_older_s):
        with transaction():
            _delete_jobs(connection, bite)
        jobs += len(bite)
    return PruneReport(jobs, logs, checkpoints, journal_rows)


def _newest_instant(connection: SqlConnection) -> float:
    """Returns the present instant as the server last noted it; ages count from it, whatever the wall clock shows."""
    alive = connection.execute("SELECT coalesce(max(at), 0) FROM last_alive").fetchone()[0]
    journal = connection.execute("SELECT at FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
    return max(float(alive), float(journal[0]) if journal else 0.0)


def _oldest_ended(connection: SqlConnection, before_at: float) -> list[int]:
    """Returns some of the jobs that ended before an instant and are older than every job that has not ended."""
    rows = connection.execute(
        "SELECT job_id FROM jobs WHERE ended_at IS NOT NULL AND ended_at < ?"
        " AND job_id < coalesce((SELECT min(job_id) FROM jobs WHERE ended_at IS NULL), job_id + 1)"
        " ORDER BY job_id LIMIT ?",
        [before_at, _JOBS_IN_A_BITE],
    )
    return [row[0] for row in rows]


def _delete_jobs(connection: SqlConnection, job_ids: list[int]) -> None:
    for table in _TABLES_OF_JOB:
        connection.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(job_id,) for job_id in job_ids])


def _delete_checkpoints(connection: SqlConnection, folder: DataFolder, before_at: float) -> int:
    """Delete the own folders of jobs that ended before an instant and are older than every job that has not ended."""
    deleted = 0
    active = connection.execute("SELECT min(job_id) FROM jobs WHERE ended_at IS NULL").fetchone()[0]
    newest = connection.execute("SELECT last_job_id FROM chain").fetchone()[0]
    for job_id, path in folder.checkpoints_of_jobs():
        is_kept = job_id > newest or (active is not None and job_id >= active)
        if not is_kept and _ended_before(connection, job_id, before_at):
            shutil.rmtree(path, ignore_errors=True)
            deleted += 1
    return deleted


def _ended_before(connection: SqlConnection, job_id: int, before_at: float) -> bool:
    """Returns whether the job ended before an instant, or its row is deleted already."""
    row = connection.execute("SELECT ended_at FROM jobs WHERE job_id = ?", [job_id]).fetchone()
    return row is None or (row[0] is not None and row[0] < before_at)


def _cut_journal(
    connection: SqlConnection, transaction: Callable[[], AbstractContextManager[None]], before_at: float
) -> int:
    """Delete the generations that were over before an instant; returns how many rows were deleted."""
    begins = connection.execute(
        "SELECT max(seq) FROM journal WHERE kind = 'generation' AND at <= ?", [before_at]
    ).fetchone()[0]
    if begins is not None:
        last = connection.execute("SELECT max(seq) FROM journal WHERE seq < ?", [begins]).fetchone()[0]
        if last is not None and last > journal_cut(connection):
            with transaction():
                cut_chain(connection, last)
    # Rows that an earlier cut did not get to are deleted too.
    deleted, bite, cut = 0, -1, journal_cut(connection)
    while bite:
        with transaction():
            bite = connection.execute(
                "DELETE FROM journal WHERE seq IN (SELECT seq FROM journal WHERE seq <= ? ORDER BY seq LIMIT ?)",
                [cut, _ROWS_IN_A_BITE],
            ).rowcount
        deleted += bite
    return deleted


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _delete_logs(connection: SqlConnection, folder: DataFolder, before_at: float) -> int:
    """Delete the logs of jobs that ended before an instant, and of jobs whose rows are deleted; returns of how many."""
    deleted = set()
    newest = connection.execute("SELECT last_job_id FROM chain").fetchone()[0]
    for job_id, path in folder.logs_of_jobs():
        if job_id <= newest and _ended_before(connection, job_id, before_at):
            shutil.rmtree(path, ignore_errors=True)
            deleted.add(job_id)
    return len(deleted)
