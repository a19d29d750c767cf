"""Opening the database of a data folder: is it there, is it whole, is it of today; a copy before it is changed.

A folder that has keys but no database has lost it: going on would begin a new cluster under old names, so that is done
only when asked for. Damage is looked for at every start, for a bounded time.
"""

import fcntl
import logging
import os
import shutil
import sqlite3
import time
from pathlib import Path
from random import Random

from sqlite_utils import Database

from scheduler.live.store.journal_chain import ChainHead, find_chain_damage
from scheduler.live.store.migrations import lend_functions, migrations
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import ConfigError, Conflict

#: A start spends at most this long on the pages of the database, s; `walras admin check` has no such bound.
_CHECK_S = 20.0
#: Smaller databases are checked with their indexes, bytes.
_WHOLE_CHECK_BYTES = 64 << 20
_RESTORE = "restore a backup with `walras admin restore BACKUP --data DIR --replace`"

log = logging.getLogger(__name__)


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
    """Put the keys and the database of a former cluster aside, so that nothing of it is mistaken for the new one's."""
    names = ("walras.db", "walras.db-wal", "walras.db-shm", "tip", "secret.key", "admin.token", "join.token", "logs")
    put_aside(folder, names)
    (folder / "logs").mkdir(mode=0o700, exist_ok=True)


def put_aside(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Move these files of the folder into a new folder inside it; None where none of them is there."""
    there = [name for name in names if (folder / name).exists()]
    if not there:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = next(path for number in range(1000) if not (path := folder / f"replaced-{stamp}-{number}").exists())
    aside.mkdir(mode=0o700)
    for name in there:
        os.replace(folder / name, aside / name)
    return aside


def _has_tables(path: Path) -> bool:
    """Returns whether the file has the tables of a server. It may still be unreadable."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone())
    except sqlite3.DatabaseError:
        return True
    finally:
        connection.close()


def open_database(path: Path, clocks: Clocks = SYSTEM_CLOCKS, chance: Random | None = None) -> Database:
    """The database with its tables of today. Raises ConfigError where its pages are damaged."""
    # Calls come one at a time, from the writer thread; the thread that opens is another one.
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
    migrations.apply(database)
    return database


def damaged(path: Path, damage: str) -> ConfigError:
    """What a person is told of a database that cannot be read."""
    return ConfigError(f"{path}: {damage}", field="--data", fix=f"{_RESTORE} (docs/operations.md)")


def find_page_damage(
    connection: sqlite3.Connection,
    path: Path,
    *,
    bound_s: float,
    whole: bool = False,
    clocks: Clocks = SYSTEM_CLOCKS,
) -> str:
    """What SQLite's own check says, in words; empty where all is well, or where the time was up before the end."""
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
    """Keep the file as the older version left it: a way back from an upgrade."""
    pending = [each.name for each in migrations.pending(database)]
    is_new = not database.table_names()
    if is_new or not pending:
        return
    copy = path.with_name(f"walras.db.before-{pending[0]}")
    draft = copy.with_name(f".{copy.name}.draft")
    if copy.exists():
        return
    free = shutil.disk_usage(path.parent).free
    if free < 2 * path.stat().st_size:
        raise ConfigError(
            f"{path.parent} has {free >> 20} MiB left, too little to copy the database before it is upgraded",
            field="--data",
            fix="free some space (twice the size of walras.db)",
        )
    target = sqlite3.connect(draft)
    try:
        os.chmod(draft, 0o600)
        database.conn.backup(target)
    finally:
        target.close()
    os.replace(draft, copy)
    log.info("kept the database as it was in %s", copy)


def check_nothing_was_lost(connection: sqlite3.Connection, path: Path, tip: ChainHead | None) -> None:
    """Raise ConfigError where the journal ends before what was acknowledged, or differs from what was written."""
    damage = find_chain_damage(connection, tip)
    if damage:
        fix = f"{_RESTORE}; or go on without what is lost: `walras admin accept-loss --data DIR`"
        raise ConfigError(f"{path}: {damage}", field="--data", fix=fix)


class FolderLock:
    """Held by the one server that may write in a data folder; freed by the kernel when its process dies."""

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
