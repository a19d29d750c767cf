"""A data folder over the years: ports, keys, lost rows, damaged pages, and a server's absence."""

import contextlib
import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.live.assembly import discount_unproved_time
from scheduler.live.loop.event_loop import Clock
from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.sql_store import LastAlive, absence_since
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import JobRow, JournalRow
from tests.support.live_world import FakeAgent, World
from walras.clocks import Clocks
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.states import JobState

pytestmark = pytest.mark.sql


def a_commit(number: int) -> WriteBatch:
    job = JobRow(JobId(number), "j", "p", "ada", "k", JobState.PENDING, 50, 1, float(number))
    return WriteBatch(JournalRow(float(number), "event", "Woke", json.dumps({"n": number})), job)


def fill(folder: Path, commits: int = 30) -> None:
    """A database as a killed server leaves it: with its write-ahead log."""
    child = os.fork()
    if child == 0:
        store = SqliteStore(folder)
        for number in range(1, commits + 1):
            store.commit(a_commit(number))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (folder / "walras.db-wal").stat().st_size > 0


def test_the_port_survives_a_server_that_was_killed_while_it_started(tmp_path: Path) -> None:
    """It is in a file of its own from the first start; `server.json` alone, of an older version, does too."""
    folder = DataFolder(tmp_path)
    assert folder.kept_port() == 0
    folder.announce("http://127.0.0.1:4711", 4711)
    assert folder.kept_port() == 4711
    folder.keep_port(4711)
    folder.server_file.unlink()
    assert DataFolder(tmp_path).kept_port() == 4711


@pytest.mark.parametrize("text", ["", "\n", "not hexadecimal", "abcd"])
def test_a_secret_key_that_is_none_is_refused_with_words(tmp_path: Path, text: str) -> None:
    """Job tokens would be keyed by nothing, and an empty bearer would admit machines."""
    (tmp_path / "secret.key").write_text(text)
    with pytest.raises(ConfigError, match=r"secret\.key") as refused:
        DataFolder(tmp_path).server_secret()
    assert "backup" in refused.value.fix
    (tmp_path / "join.token").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        DataFolder(tmp_path).join_token()


def test_a_log_cut_to_two_thirds_is_noticed(tmp_path: Path) -> None:
    """SQLite takes the rest of the log for the end; the tip knows better, and how many are missing."""
    fill(tmp_path)
    log = tmp_path / "walras.db-wal"
    os.truncate(log, log.stat().st_size * 2 // 3)
    with pytest.raises(ConfigError, match=r"\d+ acknowledged commits are missing.*jobs up to number 30") as refused:
        SqliteStore(tmp_path)
    assert "admin restore" in refused.value.fix


def test_a_killed_server_s_log_is_taken_whole_and_a_torn_tip_leaves_the_slot_before_it(tmp_path: Path) -> None:
    """No false alarm, again and again; whichever of the two slots was being written."""
    fill(tmp_path, 7)
    for slot in (None, None, 0, 1):
        if slot is not None:
            data = bytearray((tmp_path / "tip").read_bytes())
            data[slot * 512 + 5] ^= 0xFF
            (tmp_path / "tip").write_bytes(bytes(data))
        store = SqliteStore(tmp_path)
        assert store.load().last_job_id == 7
        store.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE journal SET payload = '{}' WHERE seq = 10", "DELETE FROM journal WHERE seq = 10",
        "DELETE FROM journal WHERE seq = 30", "UPDATE journal SET at = at + 1 WHERE seq = 30",
    ],
)  # fmt: skip
def test_a_changed_journal_is_noticed(tmp_path: Path, change: str) -> None:
    """Rows that were changed, taken from the middle, or from the end."""
    fill(tmp_path)
    connection = sqlite3.connect(tmp_path / "walras.db", isolation_level=None)
    connection.execute(change)
    connection.close()
    with pytest.raises(ConfigError, match="journal"):
        SqliteStore(tmp_path)


def test_damaged_pages_are_noticed(tmp_path: Path) -> None:
    """Each page in use, one after the other, overwritten in its middle: refused by name."""
    fill(tmp_path)
    SqliteStore(tmp_path).close()
    path = tmp_path / "walras.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM")  # pages of tables that a migration has dropped hold nothing
    whole = path.read_bytes()
    for page in range(len(whole) // 4096):
        damaged = bytearray(whole)
        damaged[page * 4096 : page * 4096 + 200] = b"\xff" * 200
        path.write_bytes(bytes(damaged))
        with pytest.raises(ConfigError, match=r"walras\.db is damaged: "):
            SqliteStore(tmp_path)


@pytest.mark.parametrize("empty", [True, False])
def test_keys_without_their_database_are_no_new_cluster(tmp_path: Path, empty: bool) -> None:
    """Unless that is asked for: then what was there is put aside, the keys too."""
    DataFolder(tmp_path).create()
    old = DataFolder(tmp_path).server_secret()
    if empty:
        (tmp_path / "walras.db").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"walras\.db is (empty|missing)") as refused:
        SqliteStore(tmp_path)
    assert "--new-cluster" in refused.value.fix
    SqliteStore(tmp_path, new_cluster=True).close()
    assert DataFolder(tmp_path).server_secret() != old
    assert [path.read_text().strip() for path in tmp_path.glob("replaced-*/secret.key")] == [old.hex()]


class HandClocks:
    """A machine's clocks, moved by hand."""

    def __init__(self) -> None:
        self.wall_s, self.boottime_s = 1_000_000.0, 500.0

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: self.wall_s, lambda: self.boottime_s, lambda: self.boottime_s)


def test_an_absence_on_the_same_boot_is_told_by_the_boot_clock() -> None:
    """Over a boot by wall time, no less than the machine is up; what is claimed beyond that is unproved."""
    machine, last = HandClocks(), LastAlive(100.0, 1_000_000.0, "b1", 500.0)
    machine.boottime_s += 30.0
    for jump_s in (3600.0, 0.0, -86_400.0):
        machine.wall_s = 1_000_030.0 + jump_s
        found = absence_since(last, machine.clocks, "b1")
        assert (found.elapsed_s, found.now_at, found.unproved_s) == (30.0, 130.0, 0.0)
    machine, last = HandClocks(), LastAlive(100.0, 1_000_000.0, "b1", 500.0)
    machine.boottime_s, machine.wall_s = 40.0, 1_003_640.0
    found = absence_since(last, machine.clocks, "b2")
    assert (found.elapsed_s, found.unproved_s) == (3640.0, 3600.0)
    machine.wall_s = 900_000.0
    found = absence_since(last, machine.clocks, "b2")
    assert (found.elapsed_s, found.now_at, found.unproved_s) == (40.0, 140.0, 0.0)


def test_a_wall_clock_that_jumps_while_the_server_is_down_moves_no_instant(tmp_path: Path) -> None:
    """The store's clocks say how long it was away; the server's clock goes on from there."""
    machine = HandClocks()
    store = SqliteStore(tmp_path, machine.clocks)
    store.note_alive(100.0)
    store.close()
    machine.wall_s, machine.boottime_s = machine.wall_s + 3600.0, machine.boottime_s + 5.0
    store = SqliteStore(tmp_path, machine.clocks)
    absence = store.absence()
    clock = Clock(store.epoch_unix_s(), store.last_at(), machine.clocks, absence.now_at)
    assert clock.now() == 105.0
    store.close()


async def test_time_that_only_wall_time_claims_counts_at_most_a_lease(w: World, agent: FakeAgent) -> None:
    """Of a live attempt: its time limit and its charges. Waiting jobs have none of either."""
    job_id = await w.submit({})
    await w.quiet()
    await agent.start_all()
    attempt = w.live_state.jobs[job_id].attempt
    before = replace(attempt.row)
    lease_s = w.loop.settings.lease_s
    discount_unproved_time(w.live_state, 15.0, lease_s)
    assert attempt.row == before
    discount_unproved_time(w.live_state, 3600.0, lease_s)
    assert attempt.row.started_at == before.started_at + 3580.0
    assert (attempt.row.leased_at, attempt.row.usd_since_at) == (
        before.leased_at + 3580.0,
        before.usd_since_at + 3580.0,
    )
