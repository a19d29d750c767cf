"""The store in one SQLite file: write-ahead log, synchronous commits, one writing connection, read-only readers.

A file lock refuses a second server on the same folder.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

from scheduler.live.store.database_file import (
    FolderLock,
    begin_new_cluster,
    check_database_is_there,
    check_nothing_was_lost,
    damaged,
    open_database,
)
from scheduler.live.store.journal_chain import ChainHead, JournalChain, TipFile, load_head
from scheduler.live.store.last_alive import store_last_alive
from scheduler.live.store.sql_store import SqlStore, write_rows
from scheduler.live.store.store_interface import (
    StoreUnavailable,
    WriteBatch,
)
from scheduler.live.store.table_mapping import REPLACE_SQL, column_list
from scheduler.live.store.table_rows import (
    JournalRow,
)
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import ConfigError, NotFound

Row = TypeVar("Row")
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


class SqliteStore(SqlStore):
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
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()

    # ---------------------------------------------------------------- writing

    def commit(self, batch: WriteBatch) -> None:
        with _named_failures(self._path):
            head = self._write(batch)
        self._chain.head = head
        self._tip.write(head)

    def _write(self, batch: WriteBatch) -> ChainHead:
        connection = self._db.conn
        with self._db.atomic():
            write_rows(connection, batch, REPLACE_SQL, "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)")
            last_job_id = max((row.job_id for row in batch.jobs), default=0)
            return self._chain.extend(connection, batch.journal, last_job_id)

    def touch(self) -> None:
        with _named_failures(self._path), self._db.atomic():
            self._db.execute("UPDATE meta SET value = value + 1 WHERE name = 'touched'")

    def note_alive(self, at: float) -> None:
        with _named_failures(self._path), self._db.atomic():
            store_last_alive(self._db.conn, at, self._clocks)

    def close(self) -> None:
        with self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()
        self._db.close()
        self._tip.close()
        self._lock.release()

    # ---------------------------------------------------------------- plumbing

    def _reader(self) -> sqlite3.Connection:
        """Returns this thread's own read-only connection."""
        reader: sqlite3.Connection | None = getattr(self._local, "reader", None)
        if reader is None:
            # close() may run in another thread; only this thread reads.
            reader = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
            self._local.reader = reader
            with self._readers_lock:
                self._readers.append(reader)
        return reader

    def _last_number(self, table: str) -> int:
        return int(self._value("SELECT seq FROM sqlite_sequence WHERE name = ?", table) or 0)


def read_stored_journal(folder: Path) -> Iterator[JournalRow]:
    """Yields the journal of a data folder as far as it is kept, without taking its lock. Raises NotFound."""
    path = folder / "walras.db"
    if not path.is_file():
        raise NotFound(
            f"{folder} holds no walras.db", field="data", fix="name the folder given to `walras server --data`"
        )
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        kept = "seq > coalesce((SELECT value FROM meta WHERE name = 'journal_cut'), 0)"
        for values in connection.execute(f"SELECT {column_list(JournalRow)} FROM journal WHERE {kept} ORDER BY seq"):
            yield JournalRow(*values)
    finally:
        connection.close()
