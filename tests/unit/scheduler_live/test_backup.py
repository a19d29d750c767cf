"""Backup, restore, check and recovery of a data folder; and a database of the first release."""

import contextlib
import gzip
import json
import os
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from scheduler.live.auth.access_control import UserCaller, UserRole, caller_of_token, new_user_token
from scheduler.live.auth.people import USER, People
from scheduler.live.store.backup import accept_loss, back_up, find_damage, restore
from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.migrations import migrations
from scheduler.live.store.sqlite_store import SqliteStore, open_database
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import ChannelRow, JobRow, JournalRow, PeopleRow
from walras.cli.main import app
from walras.errors import ConfigError, Conflict, NotFound
from walras.job_request import JobId
from walras.resources.people import Caps, JobDefaults, ProjectSettings, RoleSettings, UserSettings
from walras.states import JobState

pytestmark = pytest.mark.sql

FIRST_RELEASE = Path(__file__).parent / "first_release.db.gz"


def a_commit(number: int) -> WriteBatch:
    job = JobRow(JobId(number), "j", "p", "ada", "k", JobState.PENDING, 50, 1, float(number))
    return WriteBatch(JournalRow(float(number), "event", "Woke", json.dumps({"n": number})), job)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A server's folder with ten jobs."""
    folder = DataFolder(tmp_path / "data")
    folder.create()
    store = SqliteStore(folder.path)
    folder.server_secret()
    folder.join_token()
    folder.admin_token_file.touch(mode=0o600)
    for number in range(1, 11):
        store.commit(a_commit(number))
    store.close()
    return folder.path


def test_a_backup_of_a_running_server_is_restored_as_a_new_incarnation(data: Path, tmp_path: Path) -> None:
    """Numbers stay; keys and the admin's token are there; the next job is above all that were ever given out."""
    store = SqliteStore(data)
    made = back_up(data, tmp_path / "backup")
    assert set(made.files) == {"walras.db", "secret.key", "join.token", "admin.token"}
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    for number in range(11, 16):
        store.commit(a_commit(number))
    identity, secret = store.identity(), DataFolder(data).server_secret()
    store.close()
    with pytest.raises(Conflict, match="holds a database"):
        restore(tmp_path / "backup", data)
    restore(tmp_path / "backup", data, replace=True)
    assert find_damage(data) == []
    store = SqliteStore(data)
    restored = store.identity()
    assert (restored.cluster_id == identity.cluster_id, restored.incarnation == identity.incarnation) == (True, False)
    assert DataFolder(data).server_secret() == secret
    assert store.job(JobId(10)) is not None
    assert store.job(JobId(11)) is None
    assert store.load().last_job_id == 15
    store.commit(a_commit(16))
    store.close()
    assert len(list(data.glob("replaced-*/walras.db"))) == 1
    SqliteStore(data).close()


def test_a_token_that_was_revoked_after_the_backup_stays_revoked(data: Path, tmp_path: Path) -> None:
    """Where the database before it tells so; where none does, the restore says that such tokens open again."""
    store = SqliteStore(data)
    rows = [new_user_token(UserCaller(user, UserRole.USER, ("p",)), "admin")[1] for user in ("ada", "bob")]
    store.commit(WriteBatch(*rows))
    back_up(data, tmp_path / "backup")
    rows[0].revoked_at = 5.0
    store.commit(WriteBatch(rows[0]))
    store.close()

    def opened(folder: Path, *words: str) -> tuple[list[str], bool]:
        told = CliRunner().invoke(app, ["admin", "restore", str(tmp_path / "backup"), "--data", str(folder), *words])
        assert told.exit_code == 0
        with contextlib.closing(SqliteStore(folder)) as restored:
            users = [row.user for row in restored.tokens() if row.revoked_at is None]
        return users, "tokens that were revoked" in told.output

    assert opened(data, "--replace") == (["bob"], False)
    assert opened(tmp_path / "new") == (["ada", "bob"], True)
    (data / "walras.db").write_bytes(b"no database")
    assert opened(data, "--replace") == (["ada", "bob"], True)


def _user(name: str, role: str, *projects: str, at: float = 1.0, removed: bool = False) -> PeopleRow:
    body = UserSettings(role=role, projects=list(projects)).model_dump_json()
    return PeopleRow(USER, name, body, at, "admin", removed=removed)


def _restored(data: Path, backup: Path) -> tuple[dict[str, tuple[str, list[str], bool]], bool]:
    """What the users may do in a restored folder, by name, and whether the command warns."""
    told = CliRunner().invoke(app, ["admin", "restore", str(backup), "--data", str(data), "--replace"])
    assert told.exit_code == 0
    with contextlib.closing(SqliteStore(data)) as store:
        people = People.of(store.load().rows(PeopleRow))
    found = {name: (each.role, each.projects, people.is_removed(name)) for name, each in people.users.items()}
    return found, "removed or lost a role" in " ".join(told.output.split())


def test_what_users_lost_after_the_backup_does_not_come_back(data: Path, tmp_path: Path) -> None:
    """Removed users with their addresses, lowered roles, projects taken away; what they were given since is not there
    either. Roles are words in any case.
    """
    then = [_user(name, "Operator", "p", "q") for name in ("ada", "bob", "cy", "dan", "eve", "same")]
    then += [ChannelRow(n, user, "a", b"", "[]", 1.0) for n, user in enumerate(("ada", "same"), 1)]  # type: ignore[list-item]
    later = [
        _user("ada", "operator", "p", "q", at=2.0, removed=True), _user("bob", "viewer", "p", "q", at=2.0),
        _user("cy", "admin", "p", at=2.0), _user("dan", "operator", "r", at=2.0), _user("eve", "admin", "*", at=2.0),
        _user("new", "user", "p", at=2.0),
    ]  # fmt: skip
    with contextlib.closing(SqliteStore(data)) as store:
        store.commit(WriteBatch(*then))
        back_up(data, tmp_path / "backup")
        batch = WriteBatch(*later)
        batch.delete(ChannelRow, 1)
        store.commit(batch)
    kept = {
        "ada": ("Operator", ["p", "q"], True), "bob": ("viewer", ["p", "q"], False), "cy": ("Operator", ["p"], False),
        "dan": ("Operator", ["r"], False), "eve": ("Operator", ["p", "q"], False),
        "same": ("Operator", ["p", "q"], False),
    }  # fmt: skip
    for _ in range(2):
        assert _restored(data, tmp_path / "backup") == (kept, False)
        with contextlib.closing(SqliteStore(data)) as store:
            assert [row.user for row in store.load().rows(ChannelRow)] == ["same"]


def _capped(kind: str, name: str, settings: ProjectSettings | RoleSettings, *, removed: bool = False) -> PeopleRow:
    return PeopleRow(kind, name, settings.model_dump_json(), 1.0, "admin", removed)


def test_caps_that_were_lowered_after_the_backup_stay_low(data: Path, tmp_path: Path) -> None:
    """Of roles and projects, set before or not; what was raised, or given with the caps, is the backup's."""
    low, high = Caps(max_priority=10, may_pin=False), Caps(max_priority=90, may_pin=True, max_weight=5.0)
    given = {"defaults": JobDefaults(priority=5)}
    then = [
        _capped("role", "user", RoleSettings(caps=high)), _capped("role", "operator", RoleSettings(caps=low)),
        _capped("project", "p", ProjectSettings(caps=high)), _capped("project", "q", ProjectSettings(caps=low)),
        _capped("project", "gone", ProjectSettings(caps=low), removed=True),
    ]  # fmt: skip
    later = [
        _capped("role", "user", RoleSettings(caps=low)), _capped("role", "operator", RoleSettings(caps=high)),
        _capped("project", "p", ProjectSettings(caps=low, **given)),
        _capped("project", "q", ProjectSettings(caps=low), removed=True),
        _capped("project", "gone", ProjectSettings(caps=high)),
        _capped("project", "new", ProjectSettings(caps=low)), _capped("project", "free", ProjectSettings()),
    ]  # fmt: skip
    with contextlib.closing(SqliteStore(data)) as store:
        store.commit(WriteBatch(*then))
        back_up(data, tmp_path / "backup")
        store.commit(WriteBatch(*later))
    lowest = low.model_copy(update={"max_weight": 5.0})
    for _ in range(2):
        assert _restored(data, tmp_path / "backup") == ({}, False)
        with contextlib.closing(SqliteStore(data)) as store:
            people = People.of(store.load().rows(PeopleRow))
        assert people.projects == {
            "p": ProjectSettings(caps=lowest), "q": ProjectSettings(caps=low), "gone": ProjectSettings(caps=high),
            "new": ProjectSettings(caps=low),
        }  # fmt: skip
        assert (people.roles["user"].caps, people.roles["operator"].caps) == (lowest, lowest)


def test_shares_that_were_lowered_after_the_backup_stay_low(data: Path, tmp_path: Path) -> None:
    """Of projects and of users in them: limits, guarantees, weights and what a project owns; more is not given."""

    def rows(p: dict[str, object], q: dict[str, object]) -> list[PeopleRow]:
        return [_capped("project", name, ProjectSettings.model_validate(each)) for name, each in (("p", p), ("q", q))]

    ada = {"weight": 4.0, "guaranteed": 0.3, "limits": {"fleet": 4}}
    then = rows(
        {"share": {"weight": 2.0, "guaranteed": 0.5, "limits": {"fleet": 8, "a": 2}, "owned": {"a": 4, "b": 1}},
         "users": {"ada": ada, "bob": ada}},
        {"share": {"limits": {"fleet": 2}}},
    )  # fmt: skip
    later = rows(
        {"share": {"weight": 1.0, "guaranteed": 0.2, "limits": {"fleet": 4, "a": 3, "b": 1}, "owned": {"a": 2}},
         "users": {"ada": {"weight": 5.0, "limits": {"fleet": 0}}, "cy": {"limits": {"a": 1}}}},
        {"share": {"weight": 3.0, "guaranteed": 0.3, "owned": {"b": 1}}, "users": {"dan": ada | {"limits": {}}}},
    )  # fmt: skip
    low = ProjectSettings.model_validate(
        {"share": {"weight": 1.0, "guaranteed": 0.2, "limits": {"fleet": 4, "a": 2, "b": 1}, "owned": {"a": 2}},
         "users": {"ada": {"weight": 4.0, "limits": {"fleet": 0}}, "bob": {"limits": {"fleet": 4}},
                   "cy": {"limits": {"a": 1}}}}
    )  # fmt: skip
    with contextlib.closing(SqliteStore(data)) as store:
        store.commit(WriteBatch(*then))
        back_up(data, tmp_path / "backup")
        store.commit(WriteBatch(*later))
    for _ in range(2):
        assert _restored(data, tmp_path / "backup") == ({}, False)
        with contextlib.closing(SqliteStore(data)) as store:
            people = People.of(store.load().rows(PeopleRow))
        assert people.projects == {"p": low, "q": ProjectSettings.model_validate({"share": {"limits": {"fleet": 2}}})}


def test_a_user_who_is_not_understood_hides_no_other(data: Path, tmp_path: Path) -> None:
    with contextlib.closing(SqliteStore(data)) as store:
        store.commit(WriteBatch(_user("ada", "user", "p"), _user("bob", "auditor", "p")))
        back_up(data, tmp_path / "backup")
        store.commit(WriteBatch(_user("ada", "user", "p", at=2.0, removed=True)))
    kept = {"ada": ("user", ["p"], True), "bob": ("auditor", ["p"], False)}
    assert _restored(data, tmp_path / "backup") == (kept, True)


@pytest.mark.parametrize("what", ["another cluster", "another release", "no table"])
def test_a_restore_warns_where_it_cannot_tell_what_users_lost(data: Path, tmp_path: Path, what: str) -> None:
    """A user of that name in another cluster is another user."""
    with contextlib.closing(SqliteStore(data)) as store:
        token = new_user_token(UserCaller("ada", UserRole.USER, ("p",)), "admin")[1]
        store.commit(WriteBatch(_user("ada", "operator", "p"), token))
        back_up(data, tmp_path / "backup")
        token.revoked_at = 5.0
        store.commit(WriteBatch(_user("ada", "viewer", "p", at=2.0), token))
    change = {
        "another cluster": "UPDATE incarnations SET cluster_id = 'other'",
        "another release": """UPDATE people SET body = '{"role": "auditor", "projects": ["p"]}'""",
        "no table": "DROP TABLE people",
    }[what]
    with contextlib.closing(sqlite3.connect(data / "walras.db")) as connection:
        connection.execute(change)
        connection.commit()
    assert _restored(data, tmp_path / "backup") == ({"ada": ("operator", ["p"], False)}, True)
    with contextlib.closing(SqliteStore(data)) as restored:
        assert (restored.tokens()[0].revoked_at is None) == (what == "another cluster")  # known by itself


def test_what_a_backup_of_an_older_release_has_no_place_for_is_named(data: Path, tmp_path: Path) -> None:
    """And it is restored all the same."""
    back_up(data, tmp_path / "backup")
    with contextlib.closing(sqlite3.connect(tmp_path / "backup/walras.db")) as older:
        for table, column in (("nodes", "drained_by"), ("rents", "launched")):
            older.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    told = restore(tmp_path / "backup", data, replace=True).may_be_back
    assert told == ("drained machines", "rented machines, which are paid for")


def test_a_backup_ends_however_often_its_server_commits(data: Path, tmp_path: Path) -> None:
    """It is of one instant: a copy in pieces begins anew whenever something was written between two of them."""
    with contextlib.closing(sqlite3.connect(data / "walras.db")) as filled:
        filled.execute("CREATE TABLE ballast AS SELECT randomblob(40000000) AS bytes")
        filled.commit()
    store, is_over = SqliteStore(data), threading.Event()

    def commit() -> int:
        number = 10
        while not is_over.is_set() and number < 2000:
            number += 1
            store.commit(a_commit(number))
        return number

    with ThreadPoolExecutor(1) as writing:
        written = writing.submit(commit)
        made = back_up(data, tmp_path / "backup")
        is_over.set()
        assert made.commits < written.result()
    store.close()


def test_a_restore_into_an_empty_folder_needs_nothing_else(data: Path, tmp_path: Path) -> None:
    """On another machine, with the logs if they were copied."""
    (data / "logs/3/1").mkdir(parents=True)
    (data / "logs/3/1/0.log").write_bytes(b"line\n")
    back_up(data, tmp_path / "backup", logs=True)
    restore(tmp_path / "backup", tmp_path / "new")
    store = SqliteStore(tmp_path / "new")
    assert store.load().last_job_id == 10
    store.close()
    assert (tmp_path / "new/logs/3/1/0.log").read_bytes() == b"line\n"


def test_what_agents_and_tokens_know_a_server_by_is_in_its_backup(data: Path, tmp_path: Path) -> None:
    """Without one of these a server on another machine is another one: nobody would trust, find or understand it."""
    names = ("secret.key", "join.token", "admin.token", "tls.crt", "tls.key", "port")
    for name in names:
        (data / name).write_text(f"{name} as it was")
    back_up(data, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new")
    assert [(tmp_path / "new" / name).read_text() for name in names] == [f"{name} as it was" for name in names]


def test_what_cannot_be_backed_up_or_restored_is_said(data: Path, tmp_path: Path) -> None:
    """A folder that is there, one that holds nothing, a damaged backup, a server that runs: nothing is touched."""
    back_up(data, tmp_path / "backup")
    with pytest.raises(Conflict, match="there already"):
        back_up(data, tmp_path / "backup")
    with pytest.raises(NotFound):
        back_up(tmp_path / "nothing", tmp_path / "other")
    assert not list(tmp_path.glob(".other*"))
    store = SqliteStore(data)
    with pytest.raises(Conflict, match="in use"):
        restore(tmp_path / "backup", data, replace=True)
    store.close()
    connection = sqlite3.connect(tmp_path / "backup/walras.db", isolation_level=None)
    connection.execute("UPDATE journal SET payload = 'x' WHERE seq = 5")
    connection.close()
    with pytest.raises(ConfigError, match="journal"):
        restore(tmp_path / "backup", data, replace=True)
    SqliteStore(data).close()


def test_a_database_put_back_by_hand_is_refused_until_its_loss_is_accepted(data: Path, tmp_path: Path) -> None:
    """Five commits are missing; then it is a new incarnation that gives out none of their numbers."""
    back_up(data, tmp_path / "backup")
    store = SqliteStore(data)
    for number in range(11, 16):
        store.commit(a_commit(number))
    before = store.identity().incarnation
    store.close()
    (data / "walras.db").write_bytes((tmp_path / "backup/walras.db").read_bytes())
    with pytest.raises(ConfigError, match="5 acknowledged commits are missing") as refused:
        SqliteStore(data)
    assert "accept-loss" in refused.value.fix
    assert "5 acknowledged commits are missing" in find_damage(data)[0]
    assert accept_loss(data) == 5
    store = SqliteStore(data)
    assert store.load().last_job_id == 15
    assert store.identity().incarnation != before
    store.close()
    assert find_damage(data) == []


def test_check_names_everything_that_is_wrong(data: Path) -> None:
    """Keys that are missing, empty or open to others; rows that were changed in the middle of the journal."""
    (data / "secret.key").write_text("")
    (data / "join.token").unlink()
    os.chmod(data / "admin.token", 0o644)
    connection = sqlite3.connect(data / "walras.db", isolation_level=None)
    connection.execute("UPDATE journal SET payload = 'x' WHERE seq = 2")
    connection.close()
    told = "\n".join(find_damage(data))
    for words in ("secret.key is empty", "join.token is missing", "admin.token can be read by others", "row"):
        assert words in told, told


def test_the_commands_say_what_they_did(data: Path, tmp_path: Path) -> None:
    """And an administrator who was locked out comes in again, without a server."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["admin", *words])

    assert run("check", "--data", str(data)).exit_code == 0
    assert "up to number 10" in run("backup", "--data", str(data), str(tmp_path / "b")).stdout
    assert run("restore", str(tmp_path / "b"), "--data", str(data)).exit_code == 2
    assert run("recover-token", "--data", str(data)).exit_code == 0
    token = (data / "admin.token").read_text().strip()
    assert token.startswith("wlr_u_")
    assert (data / "admin.token").stat().st_mode & 0o077 == 0
    store = SqliteStore(data)
    callers = [caller_of_token(row, row.created_at) for row in store.tokens()]
    store.close()
    assert [(caller.name, caller.role.word) for caller in callers if caller] == [("admin", "admin")]
    (data / "secret.key").write_text("")
    assert run("check", "--data", str(data)).exit_code == 1


def rows_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table of the first release, by table."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {
        table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
        for table in tables
        if not table.startswith(("sqlite_", "_sqlite_"))
    }
    connection.close()
    return found


def first_release_in(folder: Path) -> tuple[Path, dict[str, list[tuple[object, ...]]]]:
    """A database of the first release in this folder, and its rows."""
    path = folder / "walras.db"
    path.write_bytes(gzip.decompress(FIRST_RELEASE.read_bytes()))
    return path, rows_of(path)


def test_a_database_of_the_first_release_opens_and_keeps_every_row(tmp_path: Path) -> None:
    """And the file as it was lies beside it; the second start copies nothing anew."""
    path, before = first_release_in(tmp_path)
    assert len(before["journal"]) > 100
    assert all(before[table] for table in before)
    for _ in range(2):
        SqliteStore(tmp_path).close()
        after = rows_of(path)
        for table, rows in before.items():
            # Each project has its own of what its kinds have learnt.
            kept = [row[: len(rows[0])] for row in after[table] if not str(row[0]).startswith("@")]
            assert kept == rows, table
    assert after["checkpoint_habit"] == [(1,)]  # its machines share a disk: nothing is sent unasked
    assert find_damage(tmp_path) == ["secret.key is missing", "join.token is missing"]
    copies = list(tmp_path.glob("walras.db.before-*"))
    assert [copy.name for copy in copies] == ["walras.db.before-name_cluster"]
    assert rows_of(copies[0]) == before


def test_the_way_back_from_an_upgrade_is_of_the_last_one(tmp_path: Path) -> None:
    """Whoever went back by the copy and upgrades again later must not get the rows of the first time."""
    (path, _), copy = first_release_in(tmp_path), tmp_path / "walras.db.before-name_cluster"
    SqliteStore(tmp_path).close()
    for name in ("walras.db", "walras.db-wal", "walras.db-shm", "tip"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(copy, path)
    with contextlib.closing(sqlite3.connect(path)) as older:
        older.execute("UPDATE meta SET value = 41 WHERE name = 'touched'")
        older.commit()
    kept = rows_of(path)
    SqliteStore(tmp_path).close()
    assert rows_of(copy) == kept


def test_an_upgrade_that_fails_at_its_end_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = first_release_in(tmp_path)
    monkeypatch.setattr(migrations._migrations[-1], "fn", lambda db: db.execute("DROP TABLE absent"))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        open_database(path)
    assert rows_of(path) == before


def test_an_upgrade_without_room_for_a_copy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is changed."""
    path, before = first_release_in(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(ConfigError, match="too little to copy"):
        SqliteStore(tmp_path)
    assert rows_of(path) == before
