"""How statements are put for PostgreSQL, and what its store does that SQLite's does not."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from scheduler.live.main import open_store as open_server_store
from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.job_listing import parse_cursor
from scheduler.live.store.sql_dialect import postgres_replace_sql, postgres_sql, postgres_value, postgres_values
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import (
    JobQuery,
    LeadershipLost,
    MoneyQuery,
    StoreUnavailable,
    WriteBatch,
)
from scheduler.live.store.table_rows import AuditRow, ChannelRow, JobRow, JournalRow, PoolRow
from tests.support.stores import database_of, open_store, shared_postgres
from walras.cli.main import app
from walras.cluster import PoolId
from walras.errors import ConfigError, UserError
from walras.job_request import JobId
from walras.states import JobState, Reason


@pytest.mark.parametrize(
    ("sql", "put"),
    [
        ("SELECT user FROM t WHERE a = ?", 'SELECT "user" FROM t WHERE a = %s'),
        ("SELECT 'user ? %' FROM users", "SELECT 'user ? %%' FROM users"),
        ("SELECT max(at) FROM t WHERE b > ?2 AND c = ?1", "SELECT max(at) FROM t WHERE b > %(p2)s AND c = %(p1)s"),
        ("SELECT sum(n * max(0, f(a, b) - c))", "SELECT sum(n * greatest(0, f(a, b) - c))"),
        ("a IN () OR instr(lower(name), ?) > 0", "a IN (NULL) OR strpos(lower(name), %s) > 0"),
    ],
)
def test_a_statement_is_put_for_postgresql(sql: str, put: str) -> None:
    assert postgres_sql(sql) == put


def test_values_are_put_as_columns_take_them() -> None:
    """Flags as numbers, our words as text, no NUL; by name where the statement numbers them."""
    assert postgres_values("? ?", [True, JobState.PENDING]) == [1, "PENDING"]
    assert type(postgres_value(Reason.WAIT_PRICE)) is str
    assert postgres_values("?2 ?1", ["a\0b", None]) == {"p1": "a\ufffdb", "p2": None}


def test_a_row_takes_the_place_of_the_one_with_its_key() -> None:
    assert postgres_replace_sql("t", ["a", "user"], ["a"]) == (
        'INSERT INTO t ("a", "user") VALUES (?, ?) ON CONFLICT (a) DO UPDATE SET "user" = excluded."user"'
    )
    assert postgres_replace_sql("t", ["a"], ["a"]).endswith("ON CONFLICT (a) DO NOTHING")
    assert postgres_replace_sql("t", ["a"], []) == 'INSERT INTO t ("a") VALUES (?)'


@pytest.mark.parametrize(("cursor", "sort"), [("WzEsIDFd", "name"), ("WyJhIiwgMV0=", "-priority")])
def test_a_cursor_of_another_kind_of_column_is_refused(cursor: str, sort: str) -> None:
    """A number behind which names would follow, and the other way round: databases differ in what they do with it."""
    with pytest.raises(UserError, match="is no cursor"):
        parse_cursor(cursor, sort)


def a_job(number: int, **more: object) -> JobRow:
    return JobRow(JobId(number), "j", "p", "ada", "k", JobState.PENDING, 50, 1, float(number), **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_commit_whose_answer_was_lost_is_not_made_twice(tmp_path: Path) -> None:
    """It is tried again, as after a timeout; and a leader that finds another's commit writes nothing."""
    store = open_store("postgresql", tmp_path)
    batch = WriteBatch(jobs=[a_job(1)], journal=[JournalRow(1.0, "event", "Woke", "{}")])
    before = store._chain.head  # type: ignore[attr-defined]
    store.commit(batch)
    store._chain.head = before  # type: ignore[attr-defined]
    store.commit(batch)
    assert len(list(store.journal(whole=True))) == 1
    store._chain.head = before  # type: ignore[attr-defined]
    store.commit(WriteBatch())
    store._chain.head = before  # type: ignore[attr-defined]
    store._db.execute("UPDATE chain SET commits = commits + 1")  # type: ignore[attr-defined]
    with pytest.raises(LeadershipLost, match="another server wrote"):
        store.commit(WriteBatch(jobs=[a_job(2)]))
    assert store.job(JobId(2)) is None
    store.close()


@pytest.mark.slow
def test_what_is_kept_outlives_the_server(tmp_path: Path) -> None:
    """Identity, the order of pools as they were written last, numbers that were used; text with a NUL in it."""
    store = open_store("postgresql", tmp_path)
    pools = [PoolRow(PoolId(name), "{}") for name in ("b", "a", "c")]
    store.commit(WriteBatch(pools=pools, jobs=[a_job(7, detail="no\0thing")]))
    store.commit(WriteBatch(pools=[PoolRow(PoolId("b"), "[]")]))
    channel = ChannelRow(4, "ada", "x", b"\0sealed", "[]", 1.0)
    store.commit(WriteBatch(channels=[channel]))
    store.commit(WriteBatch(channels_done=[4]))
    store.note_alive(50.0)
    who = store.identity()
    store.close()
    again = open_store("postgresql", tmp_path)
    loaded = again.load()
    assert again.identity() == who
    assert [row.pool_id for row in loaded.pools] == ["a", "c", "b"]
    assert (loaded.last_channel_id, loaded.last_job_id, loaded.jobs[0].detail) == (4, 7, "no\ufffdthing")
    absence = again.absence()
    assert absence is not None
    assert 0.0 <= absence.elapsed_s < 60.0
    assert absence.now_at == pytest.approx(50.0 + absence.elapsed_s)
    assert again.money(MoneyQuery("job", before_id=10), open_keys=["3"]) == []
    again.close()


@pytest.mark.slow
def test_ledgers_are_only_added_to(tmp_path: Path) -> None:
    """The database itself refuses to change or delete rows of the audit."""
    store = open_store("postgresql", tmp_path)
    store.commit(WriteBatch(audit=[AuditRow(1.0, "ada", "user", "::1", "POST /x", "job 1", "p", "null", "{}")]))
    for sql in ("UPDATE audit SET at = 2", "DELETE FROM audit"):
        with pytest.raises(Exception, match="append only"):
            store._db.execute(sql)  # type: ignore[attr-defined]
    store.close()


@pytest.mark.slow
def test_a_database_that_takes_no_writes_is_named_and_tried_again(tmp_path: Path) -> None:
    store = open_store("postgresql", tmp_path)
    store._db.execute("SET default_transaction_read_only = on")  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.commit(WriteBatch(jobs=[a_job(1)]))
    store._db.execute("SET default_transaction_read_only = off")  # type: ignore[attr-defined]
    store.commit(WriteBatch(jobs=[a_job(1)]))
    assert [row.job_id for row in store.jobs(JobQuery())] == [1]
    store.close()


@pytest.mark.slow
def test_a_database_that_is_slow_is_named_and_tried_again(tmp_path: Path) -> None:
    """Somebody else holds a row for longer than a statement may wait; nothing of the batch is written until then."""
    store = open_store("postgresql", tmp_path)
    from scheduler.live.store.postgres_connection import PostgresConnection  # its driver is an extra

    store._db.execute("SET lock_timeout = '200ms'")  # type: ignore[attr-defined]
    with PostgresConnection(database_of(tmp_path), "test") as other, other.transaction():
        other.execute("SELECT commits FROM chain FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            store.commit(WriteBatch(jobs=[a_job(1)]))
        assert store.job(JobId(1)) is None
    store.commit(WriteBatch(jobs=[a_job(1)]))
    assert store.job(JobId(1)) is not None
    store.close()


@pytest.mark.slow
def test_a_database_of_a_newer_version_is_refused_with_words(tmp_path: Path) -> None:
    store = open_store("postgresql", tmp_path)
    store._db.execute("INSERT INTO schema_changes VALUES ('keep_the_future')")  # type: ignore[attr-defined]
    store.close()
    with pytest.raises(ConfigError, match="a newer version of Walras"):
        open_store("postgresql", tmp_path)


@pytest.mark.slow
def test_a_sqlite_store_moves_into_postgresql(tmp_path: Path) -> None:
    """Everything that is loaded, the whole journal, and the chain go along; numbers that were given, also to rows that
    are deleted, are not given again; a second copy is refused.
    """
    old = SqliteStore(tmp_path)
    rows = [JournalRow(float(n), "event", "Woke", str(n)) for n in range(2500)]
    old.commit(WriteBatch(jobs=[a_job(1), a_job(2)], journal=rows, pools=[PoolRow(PoolId("b"), "{}")]))
    channels = [ChannelRow(number, "ada", "h", b"x", "[]", 0.0) for number in (1, 2)]
    old.commit(WriteBatch(channels=channels))
    old.commit(WriteBatch(channels_done=[2]))
    expected, journal, who = old.load(), list(old.journal(whole=True)), old.identity()
    old.close()
    shared_postgres()
    command = ["admin", "to-postgresql", "--data", str(tmp_path), "--store", database_of(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stdout.split()[:1]) == (0, ["copied"]), done.output
    assert CliRunner().invoke(app, command).exit_code == 2, "the database holds a cluster already"
    new = open_store("postgresql", tmp_path)
    assert (new.load(), list(new.journal(whole=True)), new.identity()) == (expected, journal, who)
    assert new.load().last_channel_id == 2
    new.commit(WriteBatch(journal=rows[:1]))
    assert len(list(new.journal(whole=True))) == 2501
    new.close()


@pytest.mark.slow
def test_old_records_are_deleted_over_postgresql(tmp_path: Path) -> None:
    """Ended jobs and generations of the journal go; what is newer, and numbers that were given, stay."""
    store = open_store("postgresql", tmp_path)
    day = 86_400.0
    begins = [JournalRow(n * day, "generation", "X", "") for n in (0, 5, 10)]
    ended = a_job(1, ended_at=1.0)
    store.commit(WriteBatch(jobs=[ended, a_job(2)], journal=begins))
    told = store.prune(tmp_path, jobs_older_s=day, logs_older_s=day, journal_older_s=4 * day)  # type: ignore[attr-defined]
    assert (told.jobs, told.journal_rows) == (1, 1)
    assert [row.at for row in store.journal(whole=True)] == [5 * day, 10 * day]
    assert store.load().last_job_id == 2
    assert [store.job(JobId(number)) is None for number in (1, 2)] == [True, False]
    store.close()


@pytest.mark.slow
def test_what_opens_the_database_is_never_shown() -> None:
    """An address without a server, and one that cannot be read: named, without the password."""
    shared_postgres()
    from scheduler.live.store.leadership import wait_for_leadership

    for address, error in (
        ("postgresql://walras:sesame@127.0.0.1:1/db", StoreUnavailable),
        ("postgresql://walras:sesame@[", ConfigError),
    ):
        with pytest.raises(error) as found:
            wait_for_leadership(address)
        assert "sesame" not in str(found.value)


@pytest.mark.slow
def test_a_server_with_another_data_folder_is_refused(tmp_path: Path) -> None:
    """Secrets sealed under the other key would not open, and logs and code lie elsewhere. It is told so at once, while
    another leads and afterwards, and leaves no key in its folder; the first folder is the database's from then on."""
    url = shared_postgres().new_database()
    ours, others = DataFolder(tmp_path / "ours"), DataFolder(tmp_path / "others")
    for folder in (ours, others):
        folder.create()
    for _ in range(2):
        opened = open_server_store(ours, url)
        for _ in range(2):
            with pytest.raises(ConfigError, match="another data folder"):
                open_server_store(others, url)
            opened.store.close()
        assert not (others.path / "secret.key").exists()
        others.server_secret()
        with pytest.raises(ConfigError, match="another data folder"):
            open_server_store(others, url)
        (others.path / "secret.key").unlink()


@pytest.mark.slow
def test_a_copied_cluster_belongs_to_the_folder_that_it_was_copied_from(tmp_path: Path) -> None:
    url = shared_postgres().new_database()
    ours, others = DataFolder(tmp_path / "ours"), DataFolder(tmp_path / "others")
    for folder in (ours, others):
        folder.create()
    SqliteStore(ours.path).close()
    ours.server_secret()
    copied = CliRunner().invoke(app, ["admin", "to-postgresql", "--data", str(ours.path), "--store", url])
    assert copied.exit_code == 0, copied.output
    with pytest.raises(ConfigError, match="another data folder"):
        open_server_store(others, url)
    open_server_store(ours, url).store.close()
