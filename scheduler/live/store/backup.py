"""What an administrator does to a data folder from outside: back it up, restore it, check it, accept a loss.

A backup is a folder of the same layout, copied while the server runs: the database by SQLite's backup interface (as of
one instant), and of the rest what `FOLDER_ENTRIES` says. A restore begins a new incarnation of the cluster and
renumbers nothing; where the database that it replaces is known to have given out higher job numbers, the next job gets
a number above those. What was withdrawn there since the backup stays so, as far as it can be read (`_KINDS`).
"""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Set
from contextlib import closing
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from scheduler.live.store.data_folder import FOLDER_ENTRIES, DataFolder, InBackup
from scheduler.live.store.journal_chain import ChainHead, TipFile, accept_chain, find_chain_damage, load_head
from scheduler.live.store.sqlite_store import (
    FolderLock,
    SqliteStore,
    connect_read_only,
    database_in,
    find_page_damage,
    put_aside,
)
from scheduler.live.store.table_rows import PeopleRow
from walras.clocks import SYSTEM_CLOCKS, random_hex
from walras.errors import ConfigError, Conflict, UserError
from walras.resources.people import FIRST_ROLES, ProjectSettings, RoleSettings, UserSettings

_ALL_COPIED = {InBackup.COPIED, InBackup.WITH_LOGS}
#: A check reports less free disk space than this, bytes.
_LITTLE_SPACE = 1 << 30


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup or a restore has copied."""

    path: Path
    commits: int
    last_job_id: int
    files: tuple[str, ...]
    #: Of a restore: what was withdrawn since the backup and may be back, in words; what the database before it told of
    #: is not.
    may_be_back: tuple[str, ...] = ()


@dataclass(slots=True)
class _Withdrawals:
    """Rights that a backup must not bring back."""

    #: Statements that take them from the restored database, each with its rows of values.
    changes: list[tuple[str, list[tuple[Any, ...]]]] = field(default_factory=list)
    #: What may be back, in words, since it could not be read.
    unread: list[str] = field(default_factory=list)


def back_up(data: Path, to: Path, *, logs: bool = False) -> BackupReport:
    """Copy a data folder into a new folder, whether its server runs or not.

    Raises Conflict where the new folder exists already, NotFound where there is nothing to copy, ConfigError where the
    copy is damaged (because the original is).
    """
    if to.exists():
        raise Conflict(f"{to} is there already", field="TO", fix="name a folder that is not there yet")
    draft = to.with_name(f".{to.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    try:
        with _reading(data) as source, closing(sqlite3.connect(draft / "walras.db")) as target:
            source.backup(target)  # in one piece: each commit between two would begin it anew
        os.chmod(draft / "walras.db", 0o600)
        head = _checked_head(draft)
        tip = TipFile(draft, SYSTEM_CLOCKS.monotonic)
        tip.write(head)
        tip.close()
        copied = _copy(data, draft, _ALL_COPIED if logs else {InBackup.COPIED})
        _force(draft)
        os.replace(draft, to)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return BackupReport(to, head.commits, head.last_job_id, ("walras.db", *copied))


def restore(backup: Path, data: Path, *, replace: bool = False) -> BackupReport:
    """Make a data folder from a backup, as a new incarnation of its cluster. No server may run on it.

    With `replace`, the present files are put aside (into a folder `replaced-...` inside it); checkpoints stay, and so
    do logs if the backup has none. Raises Conflict where a database is there without `replace`, ConfigError for a
    damaged backup.
    """
    head = _checked_head(backup)
    DataFolder(data).create()
    lock = FolderLock(data)
    try:
        if (data / "walras.db").exists() and not replace:
            fix = "add --replace: what is there is put aside, not deleted"
            raise Conflict(f"{data} holds a database", field="--data", fix=fix)
        former = _last_tip(data)
        is_same = _is_same_cluster(backup, data)
        former = former if is_same else None
        withdrawn = _withdrawals(data, backup) if is_same else _Withdrawals(unread=list(_KINDS))
        database = (entry.name for entry in FOLDER_ENTRIES.values() if entry.in_backup is InBackup.DATABASE)
        put_aside(data, (*database, *_names(backup, _ALL_COPIED)))
        copied = _copy(backup, data, _ALL_COPIED)
        shutil.copy2(backup / "walras.db", data / "walras.db")
        os.chmod(data / "walras.db", 0o600)
        _begin_incarnation(data, former, "restored", withdrawn)
    finally:
        lock.release()
    files = "walras.db", *copied
    return BackupReport(data, head.commits, head.last_job_id, files, tuple(withdrawn.unread))


_OF_PEOPLE = "SELECT kind, name, body, changed_at, changed_by, removed FROM people"
_SETTINGS = {"user": UserSettings, "project": ProjectSettings, "role": RoleSettings}


def _withdrawals(data: Path, backup: Path) -> _Withdrawals:
    """Returns what a folder's database has withdrawn of what the backup has; each kind is read by itself."""
    found = _Withdrawals()
    for words, read in _KINDS.items():
        try:
            with _reading(data) as later, _reading(backup) as older:
                read(found, later, older)
        except (sqlite3.DatabaseError, UserError, ValueError, KeyError):  # damaged, or of a release with other tables
            found.unread.append(words)
    return found


def _take_tokens(found: _Withdrawals, later: sqlite3.Connection, _: sqlite3.Connection) -> None:
    revoked = later.execute("SELECT revoked_at, sha256 FROM tokens WHERE revoked_at IS NOT NULL").fetchall()
    found.changes.append(("UPDATE tokens SET revoked_at = ? WHERE sha256 = ? AND revoked_at IS NULL", revoked))


def _take_people(found: _Withdrawals, later: sqlite3.Connection, older: sqlite3.Connection) -> None:
    first, kept, unread = _people(older), [], []
    for key, row in _people(later).items():
        if key not in first and row.kind == "user":
            continue
        before = first.get(key) or _as_at_first(row)
        after = _without(before, row)
        if after is None:
            unread.append(f"{row.kind} {row.name}")
        elif after != before:
            kept.append(astuple(after))
    put = "INSERT OR REPLACE INTO people (kind, name, body, changed_at, changed_by, removed) VALUES (?, ?, ?, ?, ?, ?)"
    found.changes.append((put, kept))
    found.unread += [f"{_PEOPLE}: {', '.join(unread)}"] if unread else []


def _take_channels(found: _Withdrawals, later: sqlite3.Connection, older: sqlite3.Connection) -> None:
    after, before = (set(each.execute("SELECT channel_id, user, shown FROM channels")) for each in (later, older))
    found.changes.append(("DELETE FROM channels WHERE channel_id = ?", [(number,) for number, _, _ in before - after]))


def _take_pools(found: _Withdrawals, later: sqlite3.Connection, older: sqlite3.Connection) -> None:
    after, before = (dict(each.execute("SELECT pool_id, body FROM pools")) for each in (later, older))
    lower = []
    for pool_id in sorted(before.keys() & after.keys()):
        had, has = json.loads(before[pool_id]), json.loads(after[pool_id])
        quota, is_drained = min(had["quota"], has["quota"]), had["drained"] or has["drained"] or has["removed"]
        changed = {"quota": quota, "least": min(had["least"], quota), "drained": is_drained}
        lower.append((json.dumps(had | changed), pool_id))
    found.changes.append(("UPDATE pools SET body = ? WHERE pool_id = ?", lower))


def _take_machines(found: _Withdrawals, later: sqlite3.Connection, older: sqlite3.Connection) -> None:
    drained = "SELECT cordon, detail, drain_until_at, drained_by, node_id FROM nodes WHERE drained_by <> ''"
    older.execute(drained)  # it has a place for them
    drain = "UPDATE nodes SET cordon = ?, detail = ?, drain_until_at = ?, drained_by = ?"
    found.changes.append((f"{drain} WHERE node_id = ? AND drained_by = ''", later.execute(drained).fetchall()))


def _take_rented(found: _Withdrawals, later: sqlite3.Connection, older: sqlite3.Connection) -> None:
    """Name what was rented since the backup: it answers no open request, and is paid for until it is gone."""
    read = "SELECT token, pool_id, machines, asked_at, launched FROM rents"
    before = {row[0] for row in older.execute(read)}
    here: dict[str, dict[str, bool]] = {}
    for token, node_id in later.execute("SELECT rent_token, node_id FROM nodes WHERE state IN ('up', 'unreachable')"):
        here.setdefault(token, {})[node_id] = False
    rents, pools = [], set()
    for token, pool_id, machines, asked_at, launched in later.execute(read):
        named = json.loads(launched) | here.get(token, {})
        if token not in before and named:
            rents.append((token, pool_id, machines, asked_at, json.dumps(named)))
            pools.add(pool_id)
    closed = {"quota": 0, "least": 0, "drained": True}
    stored = later.execute("SELECT pool_id, body FROM pools").fetchall()
    bodies = [(each, json.dumps(json.loads(body) | closed)) for each, body in stored if each in pools]
    rented = "INSERT OR IGNORE INTO rents (token, pool_id, machines, asked_at, state, launched)"
    found.changes.append((f"{rented} VALUES (?, ?, ?, ?, 'ended', ?)", rents))
    found.changes.append(("INSERT OR IGNORE INTO pools (pool_id, body) VALUES (?, ?)", bodies))


def _take_policy(found: _Withdrawals, later: sqlite3.Connection, older: sqlite3.Connection) -> None:
    after, before = (each.execute("SELECT max(version) FROM policies").fetchone()[0] for each in (later, older))
    found.unread += [f"{_POLICY}: version {after} was in force"] if (after or 0) > (before or 0) else []


_PEOPLE = "users who were removed or lost a role, caps and shares that were lowered"
_POLICY = "budgets and rules of the policy"
#: What is withdrawn, in words, and what reads it in both databases.
_KINDS: Mapping[str, Callable[[_Withdrawals, sqlite3.Connection, sqlite3.Connection], None]] = {
    "tokens that were revoked": _take_tokens,
    _PEOPLE: _take_people,
    "addresses of notifications": _take_channels,
    "quotas and drains of pools": _take_pools,
    "drained machines": _take_machines,
    "rented machines, which are paid for": _take_rented,
    _POLICY: _take_policy,
}


def _people(connection: sqlite3.Connection) -> dict[tuple[str, str], PeopleRow]:
    found = (PeopleRow(*values) for values in connection.execute(_OF_PEOPLE))
    rows = (_as_at_first(row) if row.removed and row.kind != "user" else row for row in found)
    return {(row.kind, row.name): replace(row, removed=bool(row.removed)) for row in rows}


def _as_at_first(row: PeopleRow) -> PeopleRow:
    """Returns the row of a role or a project that nobody has set."""
    settings = FIRST_ROLES.get(row.name) if row.kind == "role" else None
    body = (settings or _SETTINGS.get(row.kind, RoleSettings)()).model_dump_json()
    return replace(row, body=body, removed=False)


def _without(row: PeopleRow, later: PeopleRow) -> PeopleRow | None:
    """Returns a row without what a later one has taken from whom it is of; None if it is not understood."""
    try:
        settings: Any = _SETTINGS[row.kind]
        before, after = (settings.model_validate_json(each.body) for each in (row, later))
        kept = before.without_what(after)
    except (KeyError, ValueError):  # of another release
        return None
    is_removed = row.removed or (later.removed and row.kind == "user")
    if (kept, is_removed) == (before, row.removed):
        return row
    return replace(later, body=kept.model_dump_json(), removed=is_removed)


def _names(folder: Path, kinds: Set[InBackup]) -> list[str]:
    """Returns the names of the files and folders of these kinds that there are."""
    return [each.name for each in FOLDER_ENTRIES.values() if each.in_backup in kinds and (folder / each.name).exists()]


def _copy(source: Path, target: Path, kinds: Set[InBackup]) -> list[str]:
    """Copies the files and folders of these kinds that there are; returns their names."""
    names = _names(source, kinds)
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        else:
            shutil.copy2(source / name, target / name)
    return names


def accept_loss(data: Path) -> int:
    """Let a server start on a database that lacks acknowledged commits; returns how many it lacks.

    The database becomes a new incarnation, and no job number that was given out is given out again. Raises ConfigError
    where its pages are damaged: then only a backup helps.
    """
    lock = FolderLock(data)
    try:
        tip = TipFile(data, SYSTEM_CLOCKS.monotonic).read()
        with _reading(data) as connection:
            damage = find_page_damage(connection, data / "walras.db", bound_s=float("inf"))
            if damage:
                fix = "restore a backup: `walras admin restore BACKUP --data DIR --replace`"
                raise ConfigError(f"{data / 'walras.db'}: {damage}", field="--data", fix=fix)
            lost = 0 if tip is None else max(0, tip.commits - load_head(connection).commits)
        _begin_incarnation(data, tip, "went on after a loss")
    finally:
        lock.release()
    return lost


def find_damage(data: Path) -> list[str]:
    """Returns everything that is wrong with a data folder, in words. Reads it whole, whether its server runs or not."""
    found = []
    try:
        # Read before the database, which may then be newer than the tip, but never older.
        tip = TipFile(data, SYSTEM_CLOCKS.monotonic).read()
    except ConfigError as error:
        tip = None
        found.append(str(error))
    try:
        with _reading(data) as connection:
            connection.execute("BEGIN")
            pages = find_page_damage(connection, data / "walras.db", bound_s=float("inf"), whole=True)
            found.append(f"walras.db: {pages}" if pages else "")
            found.append("" if pages else find_chain_damage(connection, tip, whole=True))
    except (sqlite3.DatabaseError, UserError) as error:
        found.append(f"walras.db: {error}")
    folder = DataFolder(data)
    for name, read in (("secret.key", folder.server_secret), ("join.token", folder.join_token)):
        if not (data / name).is_file():
            found.append(f"{name} is missing")
            continue
        try:
            read()
        except ConfigError as error:
            found.append(str(error))
    for entry in FOLDER_ENTRIES.values():
        path = data / entry.name
        if entry.is_secret and path.is_file() and path.stat().st_mode & 0o077:
            found.append(f"{entry.name} can be read by others; chmod 600 {path}")
    free = shutil.disk_usage(data).free
    if free < _LITTLE_SPACE:
        found.append(f"{free >> 20} MiB are left on the disk")
    return [each for each in found if each]


def _begin_incarnation(data: Path, former: ChainHead | None, why: str, withdrawn: _Withdrawals | None = None) -> None:
    """Add an incarnation to the database; its chain counts on from the known end of the former database."""
    with closing(sqlite3.connect(data / "walras.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO incarnations (cluster_id, incarnation, began_unix_s, why)"
            " SELECT cluster_id, ?, ?, ? FROM incarnations ORDER BY seq DESC LIMIT 1",
            [random_hex(None, 16), SYSTEM_CLOCKS.wall(), why],
        )
        for change, rows in [] if withdrawn is None else withdrawn.changes:
            connection.executemany(change, rows)
        head = accept_chain(connection, former)
        connection.execute("COMMIT")
    (data / "tip").unlink(missing_ok=True)
    tip = TipFile(data, SYSTEM_CLOCKS.monotonic)
    tip.write(head)
    tip.close()


def _checked_head(folder: Path) -> ChainHead:
    """Returns the end of a backup's chain. Raises ConfigError where it is damaged, or of a version without a chain."""
    path = folder / "walras.db"
    fix = "choose another backup"
    try:
        with _reading(folder) as connection:
            damage = find_page_damage(connection, path, bound_s=float("inf")) or find_chain_damage(
                connection, None, whole=True
            )
            if damage:
                raise ConfigError(f"{path}: {damage}", field="FROM", fix=fix)
            return load_head(connection)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            fix = "start this version's server on it once (`walras server --data`), then restore from there"
        raise ConfigError(f"{path}: {error}", field="FROM", fix=fix) from None
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path}: {error}", field="FROM", fix=fix) from None


def _last_tip(data: Path) -> ChainHead | None:
    try:
        return TipFile(data, SYSTEM_CLOCKS.monotonic).read()
    except ConfigError:
        return None


def _is_same_cluster(one: Path, other: Path) -> bool:
    """Returns False if the databases are of different clusters; True if of one, or if one of them cannot be read."""
    found = []
    for folder in (one, other):
        try:
            with _reading(folder) as connection:
                found.append(connection.execute("SELECT cluster_id FROM incarnations LIMIT 1").fetchone())
        except (sqlite3.DatabaseError, UserError):
            return True
    return bool(found[0] == found[1])


def _reading(folder: Path) -> closing[sqlite3.Connection]:
    """Opens a folder's database for reading, without taking its lock. Raises NotFound where there is none."""
    return closing(connect_read_only(database_in(folder), isolation_level=None))


def _force(folder: Path) -> None:
    """Force everything in the folder to disk."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_stopped(data: Path) -> SqliteStore:
    """Opens the database of a stopped server for writing. Raises NotFound where there is none."""
    database_in(data)
    return SqliteStore(data)
