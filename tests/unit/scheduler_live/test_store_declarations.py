"""A table and a kind of file are declared once; statements, load, deletion, retention, backup and copies follow."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlite_utils import Database

from scheduler.live.store.backup import back_up, find_damage, restore
from scheduler.live.store.data_folder import EACH_INCARNATION, FOLDER_ENTRIES, DataFolder, FolderEntry, InBackup
from scheduler.live.store.migrations import lend_functions, migrations
from scheduler.live.store.retention import prune
from scheduler.live.store.sql_store import Store
from scheduler.live.store.sqlite_store import SqliteStore, begin_new_cluster
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_declaration import TABLES, Kept, table
from scheduler.live.store.table_rows import JobRow, JournalRow, SpecRow
from tests.support.stores import database_of, open_store, open_test_store, shared_postgres
from walras.job_request import JobId
from walras.states import JobState

pytestmark = pytest.mark.sql
#: Tables that the stores keep for themselves.
_OWN = {"meta", "incarnations", "chain", "chain_marks", "last_alive", "checkpoint_habit"}


@dataclass(frozen=True, slots=True)
class LabelRow:
    """What a feature may keep of a job."""

    job_id: JobId
    user: str
    state: JobState
    is_shown: bool


@pytest.fixture
def with_labels() -> Iterator[None]:
    """A table that is declared and made by a migration, and nothing else."""
    before = list(migrations._migrations)

    @migrations()
    def keep_labels(db: Database) -> None:
        columns = "job_id INTEGER, user TEXT, state TEXT, is_shown INTEGER"
        db.execute(f"CREATE TABLE labels ({columns}, PRIMARY KEY (job_id, user))")

    table("labels", "job_id", "user", kept=Kept.WITH_JOB, loaded="is_shown = 1 ORDER BY user")(LabelRow)
    yield
    del TABLES[LabelRow]
    migrations._migrations[:] = before


def an_ended_job() -> JobRow:
    return JobRow(JobId(1), "j", "p", "ada", "k", JobState.SUCCEEDED, 50, 1, 1.0, ended_at=2.0)


def labels_of(store: Store) -> tuple[LabelRow, ...]:
    return store.load().rows(LabelRow)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("with_labels")
def test_a_declared_table_is_written_replaced_and_loaded(kind: str, tmp_path: Path) -> None:
    """By both databases, flags and enums as they were; the second row with a key takes the place of the first."""
    ada, bob = (LabelRow(JobId(1), user, JobState.PENDING, user != "eve") for user in ("ada", "bob"))
    changed = LabelRow(JobId(1), "bob", JobState.SUCCEEDED, True)
    with open_test_store(kind, tmp_path) as store:
        store.commit(WriteBatch(bob, LabelRow(JobId(1), "eve", JobState.PENDING, False), ada))
        store.commit(WriteBatch(changed))
        assert labels_of(store) == (ada, changed)


@pytest.mark.usefixtures("with_labels")
def test_a_declared_table_is_backed_up_and_pruned(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data")
    row = LabelRow(JobId(1), "ada", JobState.PENDING, True)
    store.commit(WriteBatch(an_ended_job(), SpecRow(JobId(1), "{}", "{}"), row, JournalRow(9.0, "event", "Woke", "{}")))
    back_up(tmp_path / "data", tmp_path / "backup")
    assert prune(tmp_path / "data", jobs_older_s=1.0, logs_older_s=1.0).jobs == 1
    assert labels_of(store) == ()
    store.close()
    restore(tmp_path / "backup", tmp_path / "elsewhere")
    store = SqliteStore(tmp_path / "elsewhere")
    assert labels_of(store) == (row,)
    store.close()


@pytest.mark.slow
@pytest.mark.usefixtures("with_labels")
def test_a_declared_table_is_copied_into_postgresql(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    row = LabelRow(JobId(1), "ada", JobState.PENDING, True)
    store.commit(WriteBatch(row))
    store.close()
    shared_postgres()
    from scheduler.live.store.postgres_store import (
        copy_into_postgres,
        wait_for_leadership,  # its driver is an extra
    )

    leadership = wait_for_leadership(database_of(tmp_path))
    copy_into_postgres(tmp_path, leadership)
    leadership.release()
    store = open_store("postgresql", tmp_path)
    assert labels_of(store) == (row,)
    store.close()


def test_what_is_declared_is_what_the_migrations_made() -> None:
    """Every table has its declaration, with these columns and this key; rows without a key cannot be changed."""
    db = Database(memory=True)
    lend_functions(db)
    migrations.apply(db)
    made = {name for name in db.table_names() if not name.startswith(("sqlite_", "_"))}
    declared = {each.name: each for each in TABLES.values()}
    assert set(declared) == made - _OWN
    for name, each in declared.items():
        columns = {column.name: column.is_pk for column in db[name].columns}
        assert set(each.columns) == columns.keys() - ({"seq"} if name in ("journal", "audit") else set()), name
        if each.key:
            assert set(each.key) == {column for column, place in columns.items() if place}, name


def test_only_what_is_declared_so_is_deleted_by_a_transaction() -> None:
    with pytest.raises(AssertionError):
        WriteBatch().delete(JobRow, 1)
    with pytest.raises(AssertionError):
        WriteBatch().expire(JobRow, 1.0)


def test_a_declared_kind_of_file_is_in_backup_check_new_cluster_and_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read one declaration: nobody has to think of them."""
    key = FolderEntry("new.key", InBackup.COPIED, of_cluster=True, is_secret=True)
    traces = FolderEntry("traces", InBackup.COPIED, is_folder=True, kept=Kept.WITH_JOB, jobs_in=(".", EACH_INCARNATION))
    for entry in (key, traces):
        monkeypatch.setitem(FOLDER_ENTRIES, entry.name, entry)
    data = tmp_path / "data"
    DataFolder(data).create()
    for job in ("1", f"{'a' * 16}/1", "2"):
        (data / "traces" / job).mkdir(parents=True)
    store = SqliteStore(data)
    store.commit(WriteBatch(an_ended_job(), JournalRow(9.0, "event", "Woke", "{}")))
    store.close()
    (data / "new.key").write_text("new")
    (data / "new.key").chmod(0o644)
    assert any("new.key can be read by others" in each for each in find_damage(data))
    back_up(data, tmp_path / "backup")
    prune(data, jobs_older_s=1.0, logs_older_s=1.0)
    assert sorted(path.name for path in (data / "traces").rglob("*")) == ["2", "a" * 16]
    restore(tmp_path / "backup", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere/new.key").read_text() == "new"
    assert (tmp_path / "elsewhere/traces" / ("a" * 16) / "1").is_dir()
    (data / "new.key").write_text("newer")
    restore(tmp_path / "backup", data, replace=True)
    assert (data / "new.key").read_text() == "new"
    assert [path.read_text() for path in data.glob("replaced-*/new.key")] == ["newer"]
    begin_new_cluster(data)
    assert not (data / "new.key").exists()
