"""The store in one SQLite file: write-ahead log, synchronous commits, one writing connection, read-only readers.

Opening it checks that the database is there and whole, and migrates it after making a copy. Every start looks for
damage, for a bounded time. A folder that has keys but no database has lost it: to continue would begin a new cluster
under old names, so that is done only when asked for. A file lock refuses a second server on the same folder.
"""

import fcntl
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from sqlite_utils import Database

from scheduler.live.store.data_folder import FOLDER_ENTRIES
from scheduler.live.store.journal_chain import ChainHead, JournalChain, TipFile, find_chain_damage, load_head
from scheduler.live.store.migrations import lend_functions, migrations
from scheduler.live.store.sql_store import Store, store_last_alive, write_rows
from scheduler.live.store.store_interface import StoreUnavailable, WriteBatch
from scheduler.live.store.table_declaration import TABLES, Table
from scheduler.live.store.table_rows import JournalRow
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import ConfigError, Conflict, NotFound

#: The longest time that a start checks the database's pages, s; `walras admin check` has no such bound.
_CHECK_S = 20.0
#: Databases up to this size, bytes, are checked with their indexes.
_WHOLE_CHECK_BYTES = 64 << 20
_RESTORE = "restore a backup with `walras admin restore BACKUP --data DIR --replace`"

log = logging.getLogger(__name__)


def connect_read_only(path: Path, **options: Any) -> sqlite3.Connection:
    """Returns a connection that reads a database, whoever holds its folder's lock; `options` are those of sqlite3."""
    connection: sqlite3.Connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, **options)
    return connection


def database_in(folder: Path) -> Path:
    """Returns the file of a folder's database. Raises NotFound where there is none."""
    path = folder / "walras.db"
    if not path.is_file() or path.stat().st_size == 0:
        fix = "name the folder given to `walras server --data`, or a backup of one"
        raise NotFound(f"{folder} holds no walras.db", field="data", fix=fix)
    return path


def check_database_is_there(folder: Path, *, new_cluster: bool) -> None:
    """Raise ConfigError where a folder has the keys of a cluster, but no database or an empty one."""
    path = folder / "walras.db"
    kept = [name for name in ("secret.key", "admin.token", "tip") if (folder / name).exists()]
    if new_cluster or not kept or _has_tables(path):
        return
    what = "is empty" if path.exists() else "is missing"
    raise ConfigError(
        f"{path} {what}, though {', '.join(kept)} of a cluster lie beside it",
        field="--data",
        fix=f"{_RESTORE}; or begin a new cluster here with `walras server --new-cluster`",
    )


def begin_new_cluster(folder: Path) -> None:
    """Put the keys and the database of a former cluster aside: nothing of it may be taken for the new cluster's."""
    put_aside(folder, tuple(entry.name for entry in FOLDER_ENTRIES.values() if entry.of_cluster))
    (folder / "logs").mkdir(mode=0o700, exist_ok=True)


def put_aside(folder: Path, names: tuple[str, ...]) -> None:
    """Move those of these files that there are into a new folder inside their folder."""
    there = [name for name in names if (folder / name).exists()]
    if not there:
        return
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = next(path for number in range(1000) if not (path := folder / f"replaced-{stamp}-{number}").exists())
    aside.mkdir(mode=0o700)
    for name in there:
        os.replace(folder / name, aside / name)


def _has_tables(path: Path) -> bool:
    """Returns whether the file has a server's tables; True also if it cannot be read."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    try:
        with closing(connect_read_only(path)) as connection:
            return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone())
    except sqlite3.DatabaseError:
        return True


def open_database(path: Path, clocks: Clocks = SYSTEM_CLOCKS, chance: Random | None = None) -> Database:
    """Returns the database, migrated to this release. Raises ConfigError where its pages are damaged."""
    # Calls come one at a time, but from the writer thread, not from the one that opens.
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    os.chmod(path, 0o600)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    damage = find_page_damage(connection, path, bound_s=_CHECK_S, clocks=clocks)
    if damage:
        connection.close()
        raise damaged(path, damage)
    database = Database(connection)
    _copy_before_migrations(database, path)
    lend_functions(database, clocks, chance)
    with database.atomic():  # all of them or none, and one wait for the disk
        migrations.apply(database)
    return database


def damaged(path: Path, damage: str) -> ConfigError:
    """Returns the error that people get for a database that cannot be read."""
    return ConfigError(f"{path} is damaged: {damage}", field="--data", fix=f"{_RESTORE} (docs/operations.md)")


def find_page_damage(
    connection: sqlite3.Connection,
    path: Path,
    *,
    bound_s: float,
    whole: bool = False,
    clocks: Clocks = SYSTEM_CLOCKS,
) -> str:
    """Returns what SQLite's own check finds; empty if nothing, or if `bound_s` was over before the check ended."""
    whole = whole or path.stat().st_size <= _WHOLE_CHECK_BYTES
    began = clocks.monotonic()
    connection.set_progress_handler(lambda: clocks.monotonic() - began > bound_s, 100_000)
    try:
        found = [row[0] for row in connection.execute(f"PRAGMA {'integrity_check' if whole else 'quick_check'}(3)")]
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            return str(error)
        log.warning("%s was not checked to its end within %.0f s; `walras admin check` does", path, bound_s)
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        connection.set_progress_handler(None, 0)
    log.info("%s checked in %.2f s", path, clocks.monotonic() - began)
    return "" if found == ["ok"] else "; ".join(found)


def _copy_before_migrations(database: Database, path: Path) -> None:
    """Copy the file before it is migrated, as a way back from an upgrade. Raises ConfigError without space."""
    pending = [each.name for each in migrations.pending(database)]
    is_new = not database.table_names()
    if is_new or not pending:
        return
    copy = path.with_name(f"walras.db.before-{pending[0]}")
    draft = copy.with_name(f".{copy.name}.draft")
    free = shutil.disk_usage(path.parent).free
    if free < 2 * path.stat().st_size:
        raise ConfigError(
            f"{path.parent} has {free >> 20} MiB left, too little to copy the database before it is upgraded",
            field="--data",
            fix="free some space (twice the size of walras.db)",
        )
    with closing(sqlite3.connect(draft)) as target:
        os.chmod(draft, 0o600)
        database.conn.backup(target)
    os.replace(draft, copy)
    log.info("kept the database as it was in %s", copy)


def check_nothing_was_lost(connection: sqlite3.Connection, path: Path, tip: ChainHead | None) -> None:
    """Raise ConfigError where the journal lacks acknowledged rows, or differs from what was written."""
    damage = find_chain_damage(connection, tip)
    if damage:
        fix = f"{_RESTORE}; or go on without what is lost: `walras admin check --accept-loss --data DIR`"
        raise ConfigError(f"{path}: {damage}", field="--data", fix=fix)


class FolderLock:
    """The lock of a data folder, which the one server that may write there holds until its process ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115 - held for the life of the server
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise Conflict(
                f"{folder} is in use by another server (pid {holder})", fix="stop that server, or choose another --data"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


#: SQLite's errors for a disk that is full or slow, or a database that another process reads for long.
_PASSING_FAILURES = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
}


@contextmanager
def _named_failures(path: Path) -> Iterator[None]:
    """Raise StoreUnavailable for failures of the disk, and for those that may pass."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF not in _PASSING_FAILURES:
            raise
        raise StoreUnavailable(f"{path} cannot be written: {error}") from None
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be written: {error}") from None


class SqliteStore(Store):
    """`Store` in `folder/walras.db`."""

    _pool_order = "rowid"

    def __init__(
        self,
        folder: Path,
        clocks: Clocks = SYSTEM_CLOCKS,
        chance: Random | None = None,
        *,
        new_cluster: bool = False,
    ) -> None:
        """Open it; `new_cluster` puts what is there aside.

        Raises Conflict where another server holds it, ConfigError where it is missing, damaged, or older than what was
        acknowledged.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(folder)
        self._path = folder / "walras.db"
        self._clocks = clocks
        self._tip = TipFile(folder, clocks.monotonic)
        try:
            if new_cluster:
                begin_new_cluster(folder)
            check_database_is_there(folder, new_cluster=new_cluster)
            self._db = open_database(self._path, clocks, chance)
            check_nothing_was_lost(self._db.conn, self._path, self._tip.read())
        except sqlite3.DatabaseError as error:
            self._lock.release()
            raise damaged(self._path, str(error)) from None
        except ConfigError:
            self._lock.release()
            raise
        self._chain = JournalChain(load_head(self._db.conn))
        self._tip.write(self._chain.head)
        super().__init__()

    # ---------------------------------------------------------------- writing

    def commit(self, batch: WriteBatch) -> None:
        with _named_failures(self._path):
            head = self._write(batch)
        self._chain.head = head
        self._tip.write(head)

    def _write(self, batch: WriteBatch) -> ChainHead:
        connection = self._db.conn
        with self._db.atomic():
            write_rows(connection, batch)
            return self._chain.extend(connection, batch)

    def touch(self) -> None:
        with _named_failures(self._path), self._db.atomic():
            self._db.execute("UPDATE meta SET value = value + 1 WHERE name = 'touched'")

    def size_bytes(self) -> int:
        return sum(each.stat().st_size for each in self._path.parent.glob(f"{self._path.name}*"))

    def note_alive(self, at: float) -> None:
        with _named_failures(self._path), self._db.atomic():
            store_last_alive(self._db.conn, at, self._clocks)

    def close(self) -> None:
        self._close_readers()
        self._db.close()
        self._tip.close()
        self._lock.release()

    # ---------------------------------------------------------------- plumbing

    def _connect_reader(self) -> sqlite3.Connection:
        # close() may run in another thread; only the thread that asked for it reads.
        return connect_read_only(self._path, check_same_thread=False)

    def _last_number(self, table: Table[Any]) -> int:
        return int(self._value("SELECT seq FROM sqlite_sequence WHERE name = ?", table.name) or 0)


def read_stored_journal(folder: Path) -> Iterator[JournalRow]:
    """Yields the journal of a data folder as far as it is kept, without taking its lock. Raises NotFound."""
    with closing(connect_read_only(database_in(folder))) as connection:
        kept = "seq > coalesce((SELECT value FROM meta WHERE name = 'journal_cut'), 0)"
        columns = TABLES[JournalRow].column_list
        for values in connection.execute(f"SELECT {columns} FROM journal WHERE {kept} ORDER BY seq"):
            yield JournalRow(*values)
