"""Deletes what is old: rows, logs and checkpoints of jobs that ended long ago, and the beginning of the journal.

Which tables and folders these are, their declarations say. The ledger of money stays.

Of the ended jobs that a server keeps in all, each user has a share; beyond it the user's oldest go first, whatever
their age, except those that an active job depends on, or whose sweep is not over.

Deletion goes in small transactions, so that it can be done while the server runs. Numbers of deleted jobs are not given
out again (the chain remembers the highest). A job stays while any older job has not ended, because that one may name
it. Of checkpoints only those in a folder of the job's own are deleted; what projects keep by name stays.

The journal is cut where a server began, so that the rest replays: whole generations are deleted, never the newest. The
digest of the chain at the cut is kept, so that the rest is checked as before.
"""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NotRequired, TypedDict, Unpack

from scheduler.live.holder_shares import HolderShares
from scheduler.live.store.data_folder import FOLDER_ENTRIES, DataFolder, FolderEntry
from scheduler.live.store.journal_chain import cut_chain, journal_cut
from scheduler.live.store.sql_dialect import SqlConnection
from scheduler.live.store.sqlite_store import FolderLock, database_in
from scheduler.live.store.table_declaration import TABLES, Kept
from walras.errors import Conflict

#: Jobs, and journal rows, that are deleted in one transaction, for which the server waits some milliseconds.
_JOBS_IN_A_BITE, _ROWS_IN_A_BITE = 200, 5000
#: How long such a transaction waits for the server's own commit, s.
_PATIENCE_S = 10.0
#: Jobs that ended and are kept, of all users together.
ENDED_JOBS_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class PruneReport:
    """How many ended jobs were deleted, of how many the logs and the checkpoints were, and how many journal rows."""

    jobs: int
    logs: int
    checkpoints: int = 0
    journal_rows: int = 0


class Ages(TypedDict):
    """How long ago a job ended, or a generation of the journal, s, of which something is deleted; None: nothing is."""

    jobs_older_s: float
    logs_older_s: float
    checkpoints_older_s: NotRequired[float | None]
    journal_older_s: NotRequired[float | None]
    #: Ended jobs that are kept, of all users together.
    jobs_most: NotRequired[int]


def prune(data: Path, **ages: Unpack[Ages]) -> PruneReport:
    """Delete what is older than these ages. Raises NotFound where there is no database."""
    with closing(sqlite3.connect(database_in(data), isolation_level=None, timeout=_PATIENCE_S)) as connection:
        told = prune_store(connection, lambda: _transaction(connection), data, **ages)
        _shrink(connection, data)
        return told


def _shrink(connection: sqlite3.Connection, data: Path) -> None:
    """Give the space of deleted rows back to the disk. Where a server holds the folder, its new rows take it."""
    with suppress(Conflict, sqlite3.OperationalError):
        lock = FolderLock(data)
        try:
            connection.execute("VACUUM")
        finally:
            lock.release()


def prune_store(
    connection: SqlConnection,
    transaction: Callable[[], AbstractContextManager[None]],
    data: Path,
    **ages: Unpack[Ages],
) -> PruneReport:
    """As `prune`, over a connection of any store; everything inside `transaction()` is one transaction of it."""
    now, jobs_older_s = _newest_instant(connection), ages["jobs_older_s"]
    beyond = _beyond_shares(connection, ages.get("jobs_most", ENDED_JOBS_MOST))
    for begin in range(0, len(beyond), _JOBS_IN_A_BITE):
        _delete_jobs(connection, transaction, beyond[begin : begin + _JOBS_IN_A_BITE])
    older_s = {
        Kept.WITH_JOB: jobs_older_s,
        Kept.WITH_LOGS: min(ages["logs_older_s"], jobs_older_s),
        Kept.WITH_CHECKPOINTS: ages.get("checkpoints_older_s"),
    }
    deleted: dict[Kept, set[int]] = {kept: set() for kept in older_s}
    for entry in FOLDER_ENTRIES.values():
        if (older := older_s.get(entry.kept)) is not None:
            gone = frozenset(beyond)
            deleted[entry.kept] |= _delete_folders(connection, DataFolder(data), entry, now - older, gone)
    journal_rows, jobs = 0, len(beyond)
    if (journal_older_s := ages.get("journal_older_s")) is not None:
        journal_rows = _cut_journal(connection, transaction, now - journal_older_s)
    while bite := _oldest_ended(connection, now - jobs_older_s):
        _delete_jobs(connection, transaction, bite)
        jobs += len(bite)
    return PruneReport(jobs, len(deleted[Kept.WITH_LOGS]), len(deleted[Kept.WITH_CHECKPOINTS]), journal_rows)


def _delete_jobs(
    connection: SqlConnection, transaction: Callable[[], AbstractContextManager[None]], bite: list[int]
) -> None:
    with transaction():
        for table in reversed(TABLES.values()):  # the jobs' own rows last
            if table.kept is Kept.WITH_JOB:
                table.delete(connection, bite)


def shares_of_ended_jobs(jobs: Mapping[str, int], most: int = ENDED_JOBS_MOST) -> HolderShares:
    """Returns who has how many of the ended jobs that are kept; `jobs`: how many, by user."""
    shares = HolderShares("ended jobs", most)
    for user, count in jobs.items():
        shares.put_back(user, count)
    return shares


def _beyond_shares(connection: SqlConnection, most: int) -> list[int]:
    """Returns the oldest ended jobs of users who have more than their share, whose rows nobody needs."""
    counts = connection.execute("SELECT user, count(*) FROM jobs WHERE ended_at IS NOT NULL GROUP BY user")
    shares, found = shares_of_ended_jobs(dict(counts.fetchall()), most), list[int]()
    if not any(held > shares.share_of(user) for user, held in shares.held.items()):
        return found
    active = "FROM specs JOIN jobs USING (job_id) WHERE ended_at IS NULL"
    needed = {
        job_id
        for (request,) in connection.execute(f"SELECT request {active}").fetchall()
        for job_id in json.loads(request).get("depends_on", ())
    }
    sweeps = "SELECT sweep FROM jobs WHERE ended_at IS NULL AND sweep IS NOT NULL"
    for user, held in sorted(shares.held.items(), key=lambda each: (-each[1], each[0])):
        if (excess := held - shares.share_of(user)) <= 0:
            continue
        oldest = connection.execute(
            "SELECT job_id FROM jobs WHERE user = ? AND ended_at IS NOT NULL"
            f" AND (sweep IS NULL OR sweep NOT IN ({sweeps})) ORDER BY ended_at, job_id LIMIT ?",
            [user, excess + len(needed)],
        )
        going = [row[0] for row in oldest.fetchall() if row[0] not in needed][:excess]
        shares.give_back(user, len(going))
        found += going
    return found


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


def _delete_folders(
    connection: SqlConnection, folder: DataFolder, entry: FolderEntry, before_at: float, gone: Set[int]
) -> set[int]:
    """Delete files of jobs that ended before an instant, or whose rows are deleted; returns the jobs' numbers.

    All but logs stay while any older job has not ended. `gone`: jobs whose files go whatever their age; for ages
    without end, they alone.
    """
    first_kept = connection.execute("SELECT last_job_id FROM chain").fetchone()[0] + 1
    active = connection.execute("SELECT min(job_id) FROM jobs WHERE ended_at IS NULL").fetchone()[0]
    if active is not None and entry.kept is not Kept.WITH_LOGS:
        first_kept = min(first_kept, active)
    deleted = set()
    for job_id, path in folder.folders_of_jobs(entry):
        is_old = before_at > -inf and job_id < first_kept and _ended_before(connection, job_id, before_at)
        if is_old or job_id in gone:
            shutil.rmtree(path, ignore_errors=True)
            deleted.add(job_id)
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
