"""How statements are put for PostgreSQL, and what its store does that SQLite's does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scheduler.live.main import open_store as open_server_store
from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.sql_dialect import postgres_sql, postgres_value, postgres_values
from scheduler.live.store.sql_store import Store, parse_cursor
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import JobQuery, LeadershipLost, MoneyQuery, StoreUnavailable, WriteBatch
from scheduler.live.store.table_rows import ChannelRow, ChargeKind, ChargeRow, JobRow, JournalRow, PoolRow
from tests.support.stores import database_of, open_store, open_test_store, shared_postgres
from walras.cli.main import app
from walras.cluster import NodeId, PoolId
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
        ("CAST(at + ? AS BIGINT) / 7", "CAST(trunc(at + %s) AS BIGINT) / 7"),
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


@pytest.mark.parametrize(("cursor", "sort"), [("WzEsIDFd", "name"), ("WyJhIiwgMV0=", "-priority")])
def test_a_cursor_of_another_kind_of_column_is_refused(cursor: str, sort: str) -> None:
    """A number behind which names would follow, and the other way round: databases differ in what they do with it."""
    with pytest.raises(UserError, match="is no cursor"):
        parse_cursor(cursor, sort)


def a_job(number: int, **more: object) -> JobRow:
    return JobRow(JobId(number), "j", "p", "ada", "k", JobState.PENDING, 50, 1, float(number), **more)  # type: ignore[arg-type]


def a_charge(number: int, since_at: float, until_at: float) -> ChargeRow:
    return ChargeRow(
        number, ChargeKind.USE, since_at, until_at, 1.0, 1.0, 1.0, "1970-01", PoolId("p"), "owned", "a", 1.0,
        NodeId(""), JobId(1), 1, "p", "ada",
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_test_store("postgresql", tmp_path) as store:
        yield store


@pytest.mark.slow
def test_a_commit_whose_answer_was_lost_is_not_made_twice(store: Store) -> None:
    """It is tried again, as after a timeout; and a leader that finds another's commit writes nothing."""
    batch = WriteBatch(a_job(1), JournalRow(1.0, "event", "Woke", "{}"))
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
        store.commit(WriteBatch(a_job(2)))
    assert store.job(JobId(2)) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_use_counts_on_the_day_in_which_it_was(kind: str, tmp_path: Path) -> None:
    """Also where it began in the last half second of the day before, to which PostgreSQL's own cut would round."""
    with open_test_store(kind, tmp_path) as store:
        for number, (since_at, until_at) in enumerate([(86_399.7, 86_410.0), (90_000.0, 93_600.0)], 1):
            store.commit(WriteBatch(a_charge(number, since_at, until_at)))
        spans = sorted(row[2:4] for row in store.use_by_day(0.0))
    assert spans == [(86_399.7, 86_410.0), (90_000.0, 90_000.0)]


@pytest.mark.slow
def test_what_is_kept_outlives_the_server(tmp_path: Path) -> None:
    """Identity, the order of pools as they were written last, numbers that were used; text with a NUL in it."""
    store = open_store("postgresql", tmp_path)
    pools = [PoolRow(PoolId(name), "{}") for name in ("b", "a", "c")]
    store.commit(WriteBatch(*pools, a_job(7, detail="no\0thing")))
    store.commit(WriteBatch(PoolRow(PoolId("b"), "[]")))
    channel = ChannelRow(4, "ada", "x", b"\0sealed", "[]", 1.0)
    store.commit(WriteBatch(channel))
    store.commit(WriteBatch().delete(ChannelRow, 4))
    store.note_alive(50.0)
    who = store.identity()
    store.close()
    again = open_store("postgresql", tmp_path)
    loaded = again.load()
    assert again.identity() == who
    assert [row.pool_id for row in loaded.rows(PoolRow)] == ["a", "c", "b"]
    assert (loaded.last_numbers[ChannelRow], loaded.last_job_id, loaded.rows(JobRow)[0].detail) == (
        4, 7, "no\ufffdthing",
    )  # fmt: skip
    absence = again.absence()
    assert 0.0 <= absence.elapsed_s < 60.0
    assert absence.now_at == pytest.approx(50.0 + absence.elapsed_s)
    assert again.money(MoneyQuery("job", before_id=10), open_keys=["3"]) == []
    again.close()


@pytest.mark.slow
def test_a_database_that_takes_no_writes_is_named_and_tried_again(store: Store) -> None:
    store._db.execute("SET default_transaction_read_only = on")  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.commit(WriteBatch(a_job(1)))
    store._db.execute("SET default_transaction_read_only = off")  # type: ignore[attr-defined]
    store.commit(WriteBatch(a_job(1)))
    assert [row.job_id for row in store.jobs(JobQuery())] == [1]


@pytest.mark.slow
def test_a_database_that_is_slow_is_named_and_tried_again(store: Store, tmp_path: Path) -> None:
    """Somebody else holds a row for longer than a statement may wait; nothing of the batch is written until then."""
    from scheduler.live.store.postgres_store import PostgresConnection  # its driver is an extra

    store._db.execute("SET lock_timeout = '200ms'")  # type: ignore[attr-defined]
    with PostgresConnection(database_of(tmp_path), "test") as other, other.transaction():
        other.execute("SELECT commits FROM chain FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            store.commit(WriteBatch(a_job(1)))
        assert store.job(JobId(1)) is None
    store.commit(WriteBatch(a_job(1)))
    assert store.job(JobId(1)) is not None


@pytest.mark.slow
def test_a_database_of_a_newer_version_is_refused_with_words(tmp_path: Path) -> None:
    store = open_store("postgresql", tmp_path)
    store._db.execute("INSERT INTO schema_changes VALUES ('keep_the_future')")  # type: ignore[attr-defined]
    store.close()
    with pytest.raises(ConfigError, match="a newer version of Walras"):
        open_store("postgresql", tmp_path)


@pytest.mark.slow
def test_a_sqlite_store_moves_into_postgresql(tmp_path: Path) -> None:
    """All that is loaded, journal, chain and numbers that were given go along; a second copy is refused."""
    old = SqliteStore(tmp_path)
    rows = [JournalRow(float(n), "event", "Woke", str(n)) for n in range(2500)]
    old.commit(WriteBatch(a_job(1), a_job(2), *rows, PoolRow(PoolId("b"), "{}")))
    channels = [ChannelRow(number, "ada", "h", b"x", "[]", 0.0) for number in (1, 2)]
    old.commit(WriteBatch(*channels))
    old.commit(WriteBatch().delete(ChannelRow, 2))
    expected, journal, who = old.load(), list(old.journal(whole=True)), old.identity()
    old.close()
    shared_postgres()
    command = ["admin", "to-postgresql", "--data", str(tmp_path), "--store", database_of(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stdout.split()[:1]) == (0, ["copied"]), done.output
    assert CliRunner().invoke(app, command).exit_code == 2, "the database holds a cluster already"
    new = open_store("postgresql", tmp_path)
    assert (new.load(), list(new.journal(whole=True)), new.identity()) == (expected, journal, who)
    assert new.load().last_numbers[ChannelRow] == 2
    new.commit(WriteBatch(*rows[:1]))
    assert len(list(new.journal(whole=True))) == 2501
    new.close()


@pytest.mark.slow
def test_old_records_are_deleted_over_postgresql(store: Store, tmp_path: Path) -> None:
    """Ended jobs and generations of the journal go; what is newer, and numbers that were given, stay."""
    day = 86_400.0
    begins = [JournalRow(n * day, "generation", "X", "") for n in (0, 5, 10)]
    ended = a_job(1, ended_at=1.0)
    store.commit(WriteBatch(ended, a_job(2), *begins))
    told = store.prune(tmp_path, jobs_older_s=day, logs_older_s=day, journal_older_s=4 * day)  # type: ignore[attr-defined]
    assert (told.jobs, told.journal_rows) == (1, 1)
    assert [row.at for row in store.journal(whole=True)] == [5 * day, 10 * day]
    assert store.load().last_job_id == 2
    assert [store.job(JobId(number)) is None for number in (1, 2)] == [True, False]


@pytest.mark.slow
def test_what_opens_the_database_is_never_shown() -> None:
    """An address without a server, and one that cannot be read: named, without the password."""
    shared_postgres()
    from scheduler.live.store.postgres_store import wait_for_leadership

    for address, error in (
        ("postgresql://walras:sesame@127.0.0.1:1/db", StoreUnavailable),
        ("postgresql://walras:sesame@[", ConfigError),
    ):
        with pytest.raises(error) as found:
            wait_for_leadership(address)
        assert "sesame" not in str(found.value)


@pytest.mark.slow
def test_a_server_with_another_data_folder_is_refused(tmp_path: Path) -> None:
    """At once, while another leads and afterwards, without a key left; the first folder is the database's."""
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
