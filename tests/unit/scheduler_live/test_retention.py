"""What is deleted of jobs that ended long ago, and what never is."""

import asyncio
from pathlib import Path

from scheduler.live.main import _prune_daily
from scheduler.live.store.backup import find_damage
from scheduler.live.store.data_folder import DataFolder, LogStore
from scheduler.live.store.retention import prune
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import JobQuery, WriteBatch
from scheduler.live.store.table_rows import ChargeKind, ChargeRow, JobRow, JournalRow, SpecRow
from tests.support.live_world import world
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId
from walras.spec.cluster_file import KeepEntry
from walras.spec.file_model import check_model
from walras.states import JobState

DAY_S = 86_400.0


def a_job(number: int, ended_at: float | None) -> WriteBatch:
    """A job with what is kept of one."""
    state = JobState.PENDING if ended_at is None else JobState.SUCCEEDED
    job = JobRow(JobId(number), "j", "p", "ada", "k", state, 50, 1, float(number), ended_at=ended_at)
    charge = ChargeRow(number, ChargeKind.USE, 0.0, 1.0, 1.0, 0.5, 0.5, "2026-11", PoolId("p"), "owned", "a100", 1.0,
                       NodeId(""), JobId(number), 1, "p", "ada")  # fmt: skip
    row = JournalRow(ended_at or 0.0, "event", "Woke", "{}")
    return WriteBatch(journal=[row], jobs=[job], specs=[SpecRow(JobId(number), "{}", "{}")], charges=[charge])


async def test_a_server_deletes_what_its_cluster_file_does_not_keep(tmp_path: Path) -> None:
    """Once at its start and daily from then on; the words of the file are lengths of time."""
    keep = check_model(KeepEntry, {"jobs": "10d"}, source="cluster")
    assert (keep.jobs, keep.logs) == (10 * DAY_S, 90 * DAY_S)
    async with world(tmp_path) as running:
        for number, ended_at in ((1, 1.0), (2, 95 * DAY_S), (3, 100 * DAY_S)):
            running.server.store.commit(a_job(number, ended_at))
        task = asyncio.create_task(_prune_daily(running.server, DataFolder(tmp_path), keep))
        while running.server.store.job(JobId(1)) is not None:  # noqa: ASYNC110 - it is done in a thread
            await asyncio.sleep(0.01)
        task.cancel()
        assert [row.job_id for row in running.server.store.jobs(JobQuery())] == [3, 2]


def test_old_jobs_go_in_bites_while_the_server_runs_and_money_stays(tmp_path: Path) -> None:
    """Their numbers are not given out again; the journal is whole; what is active, or not older, stays."""
    DataFolder(tmp_path).create()
    store = SqliteStore(tmp_path)
    logs = LogStore(tmp_path / "logs", 1000)
    for number in range(1, 451):
        store.commit(a_job(number, ended_at=number * 0.1 * DAY_S))
    store.commit(a_job(451, ended_at=None))
    store.commit(a_job(452, ended_at=100.0 * DAY_S))
    for number in (1, 440, 451, 452, 453):
        logs.append(number, 1, 0, 0, b"line\n")
    told = prune(tmp_path, jobs_older_s=56.0 * DAY_S, logs_older_s=30.0 * DAY_S)
    assert (told.jobs, told.logs) == (439, 2)
    assert [row.job_id for row in store.jobs(JobQuery(limit=500))] == [452, 451, *range(450, 439, -1)]
    assert store.spec(JobId(1)) is None
    assert len(store.charges()) == 452
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["451", "452", "453"]
    told = prune(tmp_path, jobs_older_s=0.0, logs_older_s=0.0)
    assert told.jobs == 11  # of those after an active job none goes: it may name them
    store.commit(a_job(453, ended_at=None))
    store.close()
    store = SqliteStore(tmp_path)
    assert store.load().last_job_id == 453
    store.close()
    assert not any("journal" in each for each in find_damage(tmp_path))
