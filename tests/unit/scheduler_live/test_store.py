"""The store's contract. Another database is another fixture."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.live.store.sql_store import Store
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import JobQuery, WriteBatch
from scheduler.live.store.table_rows import (
    AnswerRow,
    AttemptRow,
    AuditRow,
    ChannelRow,
    CheckpointRow,
    JobRow,
    JournalRow,
    NotificationRow,
    OutboxRow,
    PartRow,
    SpecRow,
)
from tests.support.charges import charge
from tests.support.stores import open_store, open_test_store
from walras.cluster import NodeId, PoolId
from walras.errors import ConfigError, Conflict
from walras.job_request import JobId
from walras.states import AttemptState, JobState, Reason


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    with open_test_store(request.param, tmp_path) as store:
        yield store


def a_job(number: int, **more: object) -> JobRow:
    row = JobRow(JobId(number), "j", "p", "ada", "k", JobState.PENDING, 50, 1, float(number))
    return replace(row, **more)  # type: ignore[arg-type]


def an_attempt(job_id: int, number: int, **more: object) -> AttemptRow:
    row = AttemptRow(JobId(job_id), number, AttemptState.RUNNING, PoolId("p"), "a100", True, 2, 10.0, "[]")
    return replace(row, **more)  # type: ignore[arg-type]


def test_rows_come_back_as_they_went_in(store: Store) -> None:
    """Enums, None, booleans and text that looks like SQL."""
    job = a_job(1, name="'); DROP TABLE jobs; --", reason=Reason.WAIT_PRICE, steps_per_s=None, labels='{"a": "ü"}')
    attempt = an_attempt(1, 1, state=AttemptState.STOPPING, reason=Reason.POLICY_MOVED, profiling=True)
    store.commit(WriteBatch(job, attempt, SpecRow(JobId(1), "{}", "{}")))
    assert store.job(JobId(1)) == job
    assert store.attempts(JobId(1)) == [attempt]
    assert store.spec(JobId(1)) == SpecRow(JobId(1), "{}", "{}")
    assert store.job(JobId(2)) is None


def test_a_commit_is_all_or_nothing(store: Store) -> None:
    """A row that cannot be written takes the whole batch with it."""
    broken = SpecRow(JobId(1), None, "")  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"(?i)not.null"):
        store.commit(WriteBatch(JournalRow(1.0, "event", "Woke", "{}"), a_job(1), broken))
    assert store.job(JobId(1)) is None
    assert list(store.journal(whole=True)) == []
    store.commit(WriteBatch(a_job(1)))
    assert store.job(JobId(1)) is not None


def test_pages_filter_and_follow_the_id(store: Store) -> None:
    """Newest first; every filter alone and together; projects that are not visible are not there."""
    rows = [a_job(n, user="ada" if n % 2 else "bob", project=f"p{n % 3}") for n in range(1, 10)]
    rows[0] = replace(rows[0], state=JobState.FAILED, ended_at=5.0)
    store.commit(WriteBatch(*rows))

    def ids(query: JobQuery) -> list[int]:
        return [row.job_id for row in store.jobs(query)]

    assert ids(JobQuery(limit=3)) == [9, 8, 7]
    assert ids(JobQuery(limit=3, after=(7, 7))) == [6, 5, 4]
    assert ids(JobQuery(user="bob", active=True)) == [8, 6, 4, 2]
    assert ids(JobQuery(states=("FAILED",))) == [1]
    assert ids(JobQuery(projects=("p0", "p1"), project="p1")) == [7, 4, 1]
    assert ids(JobQuery(projects=())) == []
    assert store.job_named("ada", "j") == 9
    assert store.job_named("eve", "j") is None


def test_what_is_not_over_is_loaded(store: Store) -> None:
    """Active jobs with their live attempts and newest checkpoints, and commands that nobody confirmed."""
    ended = an_attempt(1, 1, state=AttemptState.PREEMPTED, ended_at=20.0)
    parts = [PartRow(JobId(1), n, NodeId("n"), 0, ended=n == 1, ordered=True) for n in (1, 2)]
    points = [CheckpointRow(JobId(1), n, step, "p", "d", 1.0) for n, step in ((1, 5.0), (2, 3.0), (1, 9.0))]
    outbox = [OutboxRow(n, NodeId("n"), "{}") for n in (7, 8)]
    done = a_job(2, state=JobState.SUCCEEDED, ended_at=1.0)
    batch = WriteBatch(a_job(1), done, ended, an_attempt(1, 2), *parts, *points, *outbox)
    batch.last_command_id = 8
    store.commit(batch)
    store.commit(WriteBatch().delete(OutboxRow, 7))
    loaded = store.load()
    assert [row.job_id for row in loaded.rows(JobRow)] == [1]
    assert [row.attempt for row in loaded.rows(AttemptRow)] == [2]
    assert [(part.attempt, part.ended, part.ordered) for part in loaded.rows(PartRow)] == [(2, False, True)]
    assert [row.step for row in loaded.rows(CheckpointRow)][-1] == 3.0  # of the newest attempt
    assert [row.command_id for row in loaded.rows(OutboxRow)] == [8]
    assert (loaded.last_job_id, loaded.last_command_id) == (2, 8)
    assert store.attempt_was_on(JobId(1), 1, NodeId("n"))
    assert not store.attempt_was_on(JobId(1), 1, NodeId("m"))


def test_the_journal_answers_and_use_are_read(store: Store) -> None:
    """Answers are kept by user and key, use and money are added up by type until the instant asked about."""
    rows = [JournalRow(float(n), "generation" if n in (0, 2) else "event", "X", str(n)) for n in range(4)]
    store.commit(WriteBatch(*rows))
    assert list(store.journal()) == rows[2:]
    assert list(store.journal(whole=True)) == rows
    assert store.last_at() == 3.0
    one, two = AnswerRow("ada", "k", "h", "1", 0.0), AnswerRow("bob", "k", "h", "2", 0.0)
    store.commit(WriteBatch(one, two))
    assert (store.answer("ada", "k"), store.answer("bob", "k"), store.answer("eve", "k")) == (one, two, None)
    ended = an_attempt(1, 1, started_at=13.0, ended_at=20.0, usd=0.5)
    live = an_attempt(1, 2, accelerator="v100", leased_at=30.0, usd=0.1, usd_per_h=3600.0, usd_since_at=40.0)
    store.commit(WriteBatch(a_job(1), ended, live))
    usage = {
        used.accelerator: (used.accelerator_s, round(used.usd, 9), used.held_s)
        for used in store.usage([JobId(1)], 50.0)
    }
    assert usage == {"a100": (20.0, 0.5, 7.0), "v100": (40.0, 10.1, 0)}


@pytest.mark.parametrize("table", ["audit", "charges"])
def test_ledgers_are_only_added_to(store: Store, table: str) -> None:
    """The database itself refuses to change or delete rows of money and of the audit, whoever writes."""
    asked = AuditRow(1.0, "ada", "user", "::1", "POST /x", "job 1", "p", "null", "{}")
    store.commit(WriteBatch(asked, charge(1, 1.0, job=1)))
    for sql in (f"UPDATE {table} SET project = 'q'", f"DELETE FROM {table}"):
        with pytest.raises(Exception, match="append only"):
            store._db.execute(sql)  # type: ignore[attr-defined]


def test_numbers_of_channels_and_notifications_are_not_given_twice(store: Store) -> None:
    """Also when the newest row is deleted: a server that starts then counts on above it."""
    channels = [ChannelRow(number, "ada", "h", b"x", "[]", 0.0) for number in (1, 2, 3)]
    notifications = [NotificationRow(number, f"n{number}", 1, "{}", 0, 0.0) for number in (1, 2)]
    store.commit(WriteBatch(*channels, *notifications))
    store.commit(WriteBatch().delete(ChannelRow, 1, 3).delete(NotificationRow, 1, 2))
    loaded = store.load()
    assert [row.channel_id for row in loaded.rows(ChannelRow)] == [2]
    assert (loaded.rows(NotificationRow), loaded.last_numbers) == ((), {ChannelRow: 3, NotificationRow: 2})


#: Tables that a release before had and this one has no more, as its migrations made them.
_FORMER = (
    "CREATE TABLE policy_shadow (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL)",
    "CREATE TABLE notes (note_id INTEGER PRIMARY KEY, job_id INTEGER NOT NULL, text TEXT NOT NULL)",
    "CREATE INDEX notes_job ON notes (job_id, note_id)",
    "CREATE TABLE reports (report_id INTEGER PRIMARY KEY, title TEXT NOT NULL)",
    "INSERT INTO policy_shadow VALUES (1, '{}')",
    "INSERT INTO notes VALUES (1, 1, 'the data were wrong')",
    "INSERT INTO reports VALUES (1, 'both')",
)


@pytest.mark.sqlite_file
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_database_with_tables_that_nobody_uses_any_more_opens_without_them(kind: str, tmp_path: Path) -> None:
    """The policy in the shadow, notes and published reports go; jobs stay, and the next start finds nothing to do."""
    store = open_store(kind, tmp_path)
    store.commit(WriteBatch(a_job(1)))
    made, named = "_sqlite_migrations", "SELECT name FROM sqlite_master"
    if kind != "sqlite":
        made, named = "schema_changes", "SELECT table_name FROM information_schema.tables"
    for sql in (*_FORMER, f"DELETE FROM {made} WHERE name = 'drop_shadow_notes_and_reports'"):
        store._db.execute(sql)  # type: ignore[attr-defined]
    store.close()
    for _ in range(2):
        store = open_store(kind, tmp_path)
        assert [row.job_id for row in store.load().rows(JobRow)] == [1]
        tables = {name for (name,) in store._db.execute(named)}  # type: ignore[attr-defined]
        assert tables & {"jobs", "policy_shadow", "notes", "reports"} == {"jobs"}
        store.close()


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    """The message names the process that holds it; once that is gone the folder opens again."""
    first = SqliteStore(tmp_path)
    with pytest.raises(Conflict, match=r"pid \d+"):
        SqliteStore(tmp_path)
    first.close()
    SqliteStore(tmp_path).close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """By its name, with what helps, and without holding the folder."""
    (tmp_path / "walras.db").write_text("overwritten by a mistake")
    with pytest.raises(ConfigError, match=r"walras\.db is damaged: file is not a database") as refused:
        SqliteStore(tmp_path)
    assert "backup" in refused.value.fix
    (tmp_path / "walras.db").unlink()
    SqliteStore(tmp_path).close()
