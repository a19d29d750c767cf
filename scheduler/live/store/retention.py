"""What is deleted of jobs that ended long ago: their rows, their logs. Charges are not: the ledger of money is kept.

It goes in small bites, each a transaction of its own, so that it can be done while the server runs. Numbers of jobs
that are gone are not given out again (the chain remembers the newest), and the journal stays whole: it is what the
chain proves. No job goes that is newer than one which is not over: that one may name it.
"""

import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from walras.errors import NotFound

#: Jobs deleted in one transaction: some milliseconds in which the server waits to write.
_JOBS_IN_A_BITE = 200
#: How long a bite waits for the server's own commit, s.
_PATIENCE_S = 10.0
#: Everything that is kept of a job, its own row last.
_TABLES_OF_JOB = ("specs", "parts", "attempts", "checkpoints", "jobs")


@dataclass(frozen=True, slots=True)
class PruneReport:
    """How many ended jobs were deleted, and of how many the logs were."""

    jobs: int
    logs: int


def prune(data: Path, *, jobs_older_s: float, logs_older_s: float) -> PruneReport:
    """Delete jobs, and logs of jobs, that ended longer ago than these. Raises NotFound where there is no database."""
    path = data / "walras.db"
    if not path.is_file():
        raise NotFound(
            f"{data} holds no walras.db", field="data", fix="name the folder given to `walras server --data`"
        )
    connection = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE_S)
    try:
        now = _newest_instant(connection)
        logs = _delete_logs(connection, data / "logs", now - min(logs_older_s, jobs_older_s))
        jobs = 0
        while bite := _oldest_ended(connection, now - jobs_older_s):
            _delete_jobs(connection, bite)
            jobs += len(bite)
        return PruneReport(jobs, logs)
    finally:
        connection.close()


def _newest_instant(connection: sqlite3.Connection) -> float:
    """Now, by the cluster's own time, as the server last noted it; ages count from it, whatever a wall clock says."""
    alive = connection.execute("SELECT coalesce(max(at), 0) FROM last_alive").fetchone()[0]
    journal = connection.execute("SELECT at FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
    return max(float(alive), float(journal[0]) if journal else 0.0)


def _oldest_ended(connection: sqlite3.Connection, before_at: float) -> list[int]:
    """A bite of jobs that ended before an instant and are older than every job that is not over."""
    rows = connection.execute(
        "SELECT job_id FROM jobs WHERE ended_at IS NOT NULL AND ended_at < ?"
        " AND job_id < coalesce((SELECT min(job_id) FROM jobs WHERE ended_at IS NULL), job_id + 1)"
        " ORDER BY job_id LIMIT ?",
        [before_at, _JOBS_IN_A_BITE],
    )
    return [row[0] for row in rows]


def _delete_jobs(connection: sqlite3.Connection, job_ids: list[int]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for table in _TABLES_OF_JOB:
            connection.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(job_id,) for job_id in job_ids])
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _delete_logs(connection: sqlite3.Connection, folder: Path, before_at: float) -> int:
    """Delete the logs of jobs that ended before an instant, and of jobs whose rows are gone."""
    deleted = 0
    newest = connection.execute("SELECT last_job_id FROM chain").fetchone()[0]
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        if not path.name.isascii() or not path.name.isdigit() or int(path.name) > newest:
            continue
        row = connection.execute("SELECT ended_at FROM jobs WHERE job_id = ?", [int(path.name)]).fetchone()
        if row is None or (row[0] is not None and row[0] < before_at):
            shutil.rmtree(path, ignore_errors=True)
            deleted += 1
    return deleted
