"""A PostgreSQL whose disk is full: the server lives, says so, writes nothing by halves, and goes on with room."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scheduler.live.store.sql_store import Store
from scheduler.live.store.store_interface import StoreUnavailable, WriteBatch
from scheduler.live.store.table_rows import JobRow, JournalRow
from tests.support.postgres_server import PostgresServer, running_postgres
from tests.support.real_server import A, wait_for
from tests.support.standby_pair import StandbyPair
from tests.support.waiting import stays
from walras.job_request import JobId
from walras.states import JobState

pytestmark = pytest.mark.slow

_SIZE_MIB = 48


class SmallDisk:
    """A file system of its own for the tables of a database; the write-ahead log lies elsewhere and has room."""

    def __init__(self, database: PostgresServer, folder: Path) -> None:
        self._folder = folder
        self._filler = folder / "filler"
        (folder / "tables").mkdir()
        database.add_tablespace("small", folder / "tables")
        self.address = database.new_database("small")

    def fill(self) -> None:
        """Until not one page of a table fits."""
        with open(self._filler, "ab", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="small"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m,mode=755", "none", folder], check=True)
        stack.callback(subprocess.run, ["umount", "-l", folder], check=False)
        yield SmallDisk(stack.enter_context(running_postgres()), folder)


def _batch(number: int) -> WriteBatch:
    job = JobRow(JobId(number), "j", "p", "ada", "k", JobState.PENDING, 50, 1, 1.0)
    # Does not compress away: the point is that it needs room.
    journal = [JournalRow(float(number), "event", "JobSubmitted", os.urandom(200_000).hex())]
    return WriteBatch(*journal, job)


def _until_refused(store: Store) -> tuple[JobId, str]:
    """The job of the first commit that does not fit, and why; free room within the tables' files takes some."""
    for number in range(2, 42):
        try:
            store.commit(_batch(number))
        except StoreUnavailable as error:
            return JobId(number), str(error)
    raise AssertionError("every commit fits")


def test_a_refused_commit_writes_nothing_and_may_be_made_again(disk: SmallDisk) -> None:
    """The store says that the database refuses, not that the leadership is lost; with room the same batch is taken."""
    from scheduler.live.store.postgres_store import PostgresStore, wait_for_leadership

    store = PostgresStore(disk.address, wait_for_leadership(disk.address))
    try:
        store.commit(_batch(1))
        disk.fill()
        refused, why = _until_refused(store)
        assert "refuses" in why
        assert "No space left on device" in why
        assert store.job(refused) is None
        assert store.job(JobId(refused - 1)) is not None, "it reads on while it cannot write"
        disk.free()
        store.commit(_batch(refused))
        assert store.job(refused) is not None
    finally:
        store.close()


def test_a_server_outlives_a_full_database(disk: SmallDisk, tmp_path: Path) -> None:
    """Submits are answered 503 while it is full and taken afterwards; what runs goes on; the same process leads."""
    pair = StandbyPair(tmp_path, disk.address, [A], lease="60s")
    spec = {"run": "sleep 30; echo done >> ends", "workdir": str(tmp_path), "resources": {"accelerators": "a:1"}}
    try:
        pair.start()
        leads = pair.leader
        assert leads is not None
        process = pair.process_of(leads)
        pair.start_agent("n1", servers=pair.urls)
        running = int(pair.call("POST", "/jobs", spec, "running")[1]["id"])
        pair.until_running(running)
        disk.fill()
        # A specification that does not compress: the free room within pages is soon gone.
        bulky = {**spec, "run": "true", "envs": {"FILLER": os.urandom(20_000).hex()}}
        statuses: list[int] = []

        def is_refused() -> bool:
            statuses.append(pair.call("POST", "/jobs", bulky, f"bulky-{len(statuses)}")[0])
            return statuses[-1] == 503

        wait_for(is_refused, 60, "a submit is refused")
        # Longer than the leadership's own lease.
        stays(lambda: process.poll() is None, 12.0, "it lives")
        assert pair.leader == leads
        disk.free()
        wait_for(lambda: pair.call("POST", "/jobs", spec, "after")[0] in (200, 201), 60, "submits are taken again")
        pair.until_state(running, "SUCCEEDED", 90)
        assert len(pair.job(running)["attempt_list"]) == 1
        assert pair.leader == leads
        for number, status in enumerate(statuses):
            taken = pair.call("POST", "/jobs", bulky, f"bulky-{number}")
            assert taken[0] in (200, 201), "each may be submitted again under its key"
            assert status in (200, 201, 503)
    finally:
        pair.close()
