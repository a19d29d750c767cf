"""What is deleted of jobs that ended long ago, and what never is."""

import asyncio
import json
import sqlite3
from contextlib import closing
from functools import partial
from math import inf
from pathlib import Path

import pytest

from scheduler.live.main import _prune_daily
from scheduler.live.store.backup import find_damage
from scheduler.live.store.data_folder import DataFolder, LogPlace, LogStore
from scheduler.live.store.event_journal import replay_folder
from scheduler.live.store.retention import prune
from scheduler.live.store.sqlite_store import SqliteStore, read_stored_journal
from scheduler.live.store.store_interface import JobQuery, WriteBatch
from scheduler.live.store.table_rows import ChargeKind, ChargeRow, JobRow, JournalRow, SpecRow
from tests.support.live_world import world
from tests.support.stores import open_store
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId
from walras.spec.cluster_file import KeepEntry
from walras.spec.file_model import check_model
from walras.states import JobState

pytestmark = pytest.mark.sql

DAY_S = 86_400.0
_LIFE = "0123456789abcdef"


def a_job(number: int, ended_at: float | None) -> WriteBatch:
    """A job with what is kept of one."""
    state = JobState.PENDING if ended_at is None else JobState.SUCCEEDED
    job = JobRow(JobId(number), "j", "p", "ada", "k", state, 50, 1, float(number), ended_at=ended_at)
    charge = ChargeRow(number, ChargeKind.USE, 0.0, 1.0, 1.0, 0.5, 0.5, "2026-11", PoolId("p"), "owned", "a100", 1.0,
                       NodeId(""), JobId(number), 1, "p", "ada")  # fmt: skip
    row = JournalRow(ended_at or 0.0, "event", "Woke", "{}")
    return WriteBatch(row, job, SpecRow(JobId(number), "{}", "{}"), charge)


@pytest.mark.sqlite_file
async def test_a_server_deletes_what_its_cluster_file_does_not_keep(tmp_path: Path) -> None:
    """Once at its start and daily from then on; the words of the file are lengths of time."""
    keep = check_model(KeepEntry, {"jobs": "10d"}, source="cluster")
    assert (keep.jobs, keep.logs) == (10 * DAY_S, 90 * DAY_S)
    async with world(tmp_path) as running:
        for number, ended_at in ((1, 1.0), (2, 95 * DAY_S), (3, 100 * DAY_S)):
            running.server.store.commit(a_job(number, ended_at))
        task = asyncio.create_task(_prune_daily(running.server, prune, DataFolder(tmp_path), keep))
        while running.server.store.job(JobId(1)) is not None:  # noqa: ASYNC110 - it is done in a thread
            await asyncio.sleep(0.01)
        task.cancel()
        assert [row.job_id for row in running.server.store.jobs(JobQuery())] == [3, 2]


def test_the_file_shrinks_once_no_server_holds_it(tmp_path: Path) -> None:
    """While one does, its new rows take the space of those that were deleted."""
    DataFolder(tmp_path).create()
    store = SqliteStore(tmp_path)
    for number in range(1, 1001):
        store.commit(a_job(number, ended_at=1.0 + number))
    store.commit(a_job(1001, ended_at=10 * DAY_S))
    prune(tmp_path, jobs_older_s=DAY_S, logs_older_s=DAY_S)
    before, counted = (tmp_path / "walras.db").stat().st_size, store.size_bytes()
    assert counted >= before
    store.close()
    assert prune(tmp_path, jobs_older_s=DAY_S, logs_older_s=DAY_S).jobs == 0
    assert (tmp_path / "walras.db").stat().st_size < before
    with closing(sqlite3.connect(tmp_path / "walras.db")) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
    again = SqliteStore(tmp_path)
    assert [row.job_id for row in again.jobs(JobQuery(limit=500))] == [1001]
    again.close()


def test_old_jobs_go_in_bites_while_the_server_runs_and_money_stays(tmp_path: Path) -> None:
    """Their numbers are not given out again; the journal is whole; what is active, or not older, stays."""
    DataFolder(tmp_path).create()
    store = SqliteStore(tmp_path)
    logs = LogStore(tmp_path / "logs", 1000)
    for number in range(1, 451):
        store.commit(a_job(number, ended_at=number * 0.1 * DAY_S))
    store.commit(a_job(451, ended_at=None))
    store.commit(a_job(452, ended_at=99.0 * DAY_S))
    store.commit(WriteBatch(JournalRow(100.0 * DAY_S, "event", "Woke", "{}")))
    for number in (1, 440, 451, 452, 453):
        logs.append(LogPlace(number, 1, 0, _LIFE), 0, b"line\n")
    told = prune(tmp_path, jobs_older_s=56.0 * DAY_S, logs_older_s=30.0 * DAY_S)
    assert (told.jobs, told.logs) == (439, 2)
    assert [row.job_id for row in store.jobs(JobQuery(limit=500))] == [452, 451, *range(450, 439, -1)]
    assert store.spec(JobId(1)) is None
    assert len(store.charges()) == 452
    assert [number for number in (1, 440, 451, 452, 453) if logs.size(LogPlace(number, 1, 0, _LIFE))] == [451, 452, 453]
    told = prune(tmp_path, jobs_older_s=0.0, logs_older_s=0.0)
    assert told.jobs == 11  # of those after an active job none goes: it may name them
    store.commit(a_job(453, ended_at=None))
    store.close()
    store = SqliteStore(tmp_path)
    assert store.load().last_job_id == 453
    store.close()
    assert not any("journal" in each for each in find_damage(tmp_path))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_one_user_s_ended_jobs_leave_room_for_those_of_others(tmp_path: Path, kind: str) -> None:
    """Half of what others leave; the oldest ended go, with their logs; not what an active job or sweep needs."""
    DataFolder(tmp_path).create()
    store, logs = open_store(kind, tmp_path), LogStore(tmp_path / "logs", 1000)
    of_file = partial(prune, tmp_path)
    delete_old = of_file if isinstance(store, SqliteStore) else partial(store.prune, tmp_path)
    store.commit(a_job(1, ended_at=None))  # an old job that waits keeps nothing of others'
    for number in range(2, 40):
        batch = a_job(number, ended_at=100.0 - number)  # the later its number, the earlier it ended
        (job,) = batch.written[JobRow]
        job.user = "bob" if number < 6 else "ada"
        job.sweep = JobId(38) if number in (38, 39) else None
        store.commit(batch)
        logs.append(LogPlace(number, 1, 0, _LIFE), 0, b"line\n")
    needs, running = a_job(40, ended_at=None), a_job(41, ended_at=None)
    needs.put(SpecRow(JobId(40), "{}", json.dumps({"depends_on": [37]})))
    running.written[JobRow][0].sweep = JobId(38)
    store.commit(needs)
    store.commit(running)
    assert store.ended_jobs_of_users() == {"ada": 34, "bob": 4}
    told = delete_old(jobs_older_s=inf, logs_older_s=inf, jobs_most=24)
    assert (told.jobs, told.logs) == (24, 24)
    left = [1, 2, 3, 4, 5, *range(6, 13), 37, 38, 39, 40, 41]
    assert sorted(row.job_id for row in store.jobs(JobQuery(limit=500))) == left
    assert [number for number in range(2, 40) if logs.size(LogPlace(number, 1, 0, _LIFE))] == left[1:-2]
    assert delete_old(jobs_older_s=inf, logs_older_s=inf, jobs_most=24).jobs == 0
    assert len(store.charges()) == 41
    store.close()


def test_logs_go_wherever_they_were_written_and_those_of_active_jobs_stay(tmp_path: Path) -> None:
    """Of attempts of this incarnation, of one before a restore, and of before there were incarnations."""
    DataFolder(tmp_path).create()
    store, logs = SqliteStore(tmp_path), LogStore(tmp_path / "logs", 1000)
    store.commit(a_job(1, ended_at=1.0))
    store.commit(a_job(2, ended_at=None))
    store.commit(a_job(3, ended_at=50 * DAY_S))
    for incarnation in (_LIFE, "f" * 16, ""):
        for number in (1, 2, 3):
            logs.append(LogPlace(number, 1, 0, incarnation), 0, b"line\n")
    told = prune(tmp_path, jobs_older_s=1e9, logs_older_s=30 * DAY_S)
    store.close()
    assert told.logs == 1
    for incarnation in (_LIFE, "f" * 16, ""):
        assert [number for number in (1, 2, 3) if logs.size(LogPlace(number, 1, 0, incarnation))] == [2, 3]


@pytest.mark.sqlite_file
async def test_the_journal_is_cut_where_a_server_began_and_what_is_left_is_checked_and_replays(tmp_path: Path) -> None:
    """While the server runs. The newest generation stays, however old; a changed row behind the cut is noticed."""
    for start in range(3):
        async with world(tmp_path, at=start * 100 * DAY_S) as w:
            await w.submit({})
            await w.advance(DAY_S)
    generations = sum(row.kind == "generation" for row in read_stored_journal(tmp_path))
    assert generations == 3

    def cut(days: float) -> int:
        told = prune(tmp_path, jobs_older_s=1e9, logs_older_s=1e9, journal_older_s=days * DAY_S)
        return told.journal_rows

    async with world(tmp_path, at=300 * DAY_S) as w:
        await w.advance(DAY_S)
        assert cut(1e4) == 0
        assert cut(200.5) > 0  # an instant within the second generation
        await w.submit({})
        report = replay_folder(tmp_path)
        assert (report.identical, report.generations) == (True, 3)
        assert cut(150.0) == 0
    assert not any("journal" in each for each in find_damage(tmp_path))
    async with world(tmp_path, at=400 * DAY_S) as w:
        assert cut(0.0) > 0
        assert len(w.live_state.jobs) == 4
    report = replay_folder(tmp_path)
    assert (report.identical, report.generations) == (True, 1)
    assert not any("journal" in each for each in find_damage(tmp_path))
    connection = sqlite3.connect(tmp_path / "walras.db")
    with connection:
        connection.execute("DELETE FROM journal WHERE seq = (SELECT min(seq) FROM journal)")
    connection.close()
    assert any("journal" in each for each in find_damage(tmp_path))


def test_checkpoints_of_long_ended_jobs_go_and_those_of_projects_stay(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.create()
    store = SqliteStore(tmp_path)
    for number, ended_at in ((1, 1.0), (2, 50 * DAY_S), (3, None), (4, 1.0)):
        store.commit(a_job(number, ended_at))
    store.commit(a_job(5, 51 * DAY_S))
    kept = [folder.checkpoints / "jobs" / str(number) for number in range(1, 7)]
    named = folder.checkpoints / "projects" / "project-p" / "1"
    for path in (*kept, named):
        (path / "attempt-1").mkdir(parents=True)
    told = prune(tmp_path, jobs_older_s=1e9, logs_older_s=1e9, checkpoints_older_s=30 * DAY_S)
    assert told.checkpoints == 1
    assert [path.name for path in kept if path.exists()] == ["2", "3", "4", "5", "6"]
    assert named.exists()
    assert prune(tmp_path, jobs_older_s=1e9, logs_older_s=1e9).checkpoints == 0
    store.close()
