"""The store in PostgreSQL, for one leading server and its standbys.

Three parts: the store, with the leader's connection for writing and connections of threads for reading; a connection
that takes the stores' statements; and the leadership. Commits go over the one connection that holds the leadership,
each with a check that the journal is where the last one left it: what another server wrote meanwhile is never
overwritten, and a commit whose answer was lost is not made twice. Files (logs, code, keys) stay in the data folder,
which all servers of a cluster share.

The tables are derived from those in SQLite, so that one list of migrations (`migrations.py`) serves both. It is applied
to an empty SQLite database in memory, whose columns, keys, indexes and append-only tables are then made in PostgreSQL;
tables of an older version get what they lack. The names of the migrations are kept, so that a server of an older
version refuses a database that a newer one has changed.

A connection translates the stores' statements, and classifies failures. A failure that may pass (a full disk, a
read-only or slow server, one that is starting) is `StoreUnavailable`: nothing of the transaction was written. A
connection that broke is `ConnectionLost`: this side does not know whether the transaction under way was written.
Messages never contain passwords.

The leader holds an advisory lock of the database and renews a row. The lock belongs to the connection that writes: when
the leader dies, its connection ends and the lock is free at once. A leader that is stopped or cut off keeps its
connection, so it also renews a row every two seconds. A standby that sees it unrenewed for `LEASE_S` terminates that
connection. From then on the old leader can write nothing: it never opens another one, notices this within two seconds
of running again, and ends.

A leader whose event loop or writer hangs would renew for ever, because renewing takes a thread of its own. So the loop
tells of its turns (`note_turn`), and without one for `_HUNG_S` the process writes the stacks of its threads and ends.
"""

import asyncio
import faulthandler
import logging
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar, Unpack

from sqlite_utils import Database

from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.journal_chain import ChainHead, JournalChain, load_head
from scheduler.live.store.migrations import SQL_FOR_BOTH, lend_functions, migrations
from scheduler.live.store.retention import Ages, PruneReport, prune_store
from scheduler.live.store.sql_dialect import SqlCursor, postgres_sql, postgres_value, postgres_values
from scheduler.live.store.sql_store import META_SQL, Absence, Store, write_rows
from scheduler.live.store.sqlite_store import connect_read_only
from scheduler.live.store.store_interface import EXIT_NOT_LEADING, LeadershipLost, StoreUnavailable, WriteBatch
from scheduler.live.store.table_declaration import TABLES, Table
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import ConfigError, Conflict

try:
    import psycopg
    from psycopg import conninfo, errors
except ImportError:  # the extra is not installed
    raise ConfigError(
        "the PostgreSQL driver is not installed", field="--store", fix="pip install 'walras[postgresql]'"
    ) from None

#: The most time of a statement, and of its wait for a lock, ms.
_STATEMENT_MS, _LOCK_MS = 20_000, 10_000
#: A peer that is silent for this long counts as gone, s.
_CONNECT_S, _SILENCE_S = 5, 10
#: Errors that may pass, and after which nothing of the transaction is written.
_PASSING = (
    errors.DiskFull, errors.ReadOnlySqlTransaction, errors.LockNotAvailable, errors.QueryCanceled, errors.OutOfMemory,
    errors.DeadlockDetected, errors.SerializationFailure, errors.ConfigurationLimitExceeded,
)  # fmt: skip


class ConnectionLost(StoreUnavailable):
    """The connection broke, or the server ended it. A reader may open another one; the writer may not."""


class PostgresConnection:
    """One connection, used by one thread at a time. A statement outside of `transaction` is one by itself."""

    def __init__(self, url: str, what_for: str) -> None:
        """Connect. Raises StoreUnavailable where no server answers, ConfigError for an invalid address."""
        self._shown = shown_address(url)
        try:
            self._db = psycopg.connect(
                url,
                autocommit=True,
                connect_timeout=_CONNECT_S,
                application_name=f"walras {what_for}",
                keepalives=1,
                keepalives_idle=_SILENCE_S,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=_SILENCE_S * 1000,
                options=f"-c statement_timeout={_STATEMENT_MS} -c lock_timeout={_LOCK_MS} -c timezone=UTC",
            )
        except psycopg.ProgrammingError as error:
            raise _bad_address(error) from None
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"no database at {self._shown}: {_first_line(error)}") from None
        # A commit must be durable when it returns, whatever the server's own default is.
        if self.execute("SELECT current_setting('synchronous_commit')").fetchone()[0] in ("off", "local"):
            self.execute("SET synchronous_commit = on")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_usable(self) -> bool:
        """False once the connection was found broken."""
        return not self._db.closed

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> SqlCursor:
        with self._named_failures():
            return self._db.execute(postgres_sql(sql).encode(), postgres_values(sql, parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> SqlCursor:
        cursor = self._db.cursor()
        with self._named_failures():
            cursor.executemany(
                postgres_sql(sql).encode(), [[postgres_value(value) for value in values] for values in parameters]
            )
        return cursor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is written or nothing, and is durable when the block is left. Raises StoreUnavailable."""
        with self._named_failures(), self._db.transaction():
            yield

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except _PASSING as error:
            raise StoreUnavailable(f"the database at {self._shown} refuses: {_first_line(error)}") from None
        except psycopg.OperationalError as error:
            if not self._db.closed:
                raise StoreUnavailable(f"the database at {self._shown} refuses: {_first_line(error)}") from None
            raise ConnectionLost(f"lost the database at {self._shown}: {_first_line(error)}") from None


def shown_address(url: str) -> str:
    """Returns host, port and name of a database, without password. Raises ConfigError for an invalid address."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise _bad_address(error) from None
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def _bad_address(error: Exception) -> ConfigError:
    del error  # it repeats the address, and so the password
    return ConfigError(
        "the address of the database cannot be read",
        field="--store",
        fix="write postgresql://USER@HOST:PORT/DATABASE; the password belongs into ~/.pgpass or PGPASSWORD",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]


log = logging.getLogger(__name__)

#: A leader that has not renewed for `LEASE_S` seconds is replaced; it renews every `_RENEW_S`.
LEASE_S, _RENEW_S = 8.0, 2.0
#: A leader whose loop takes no turn within this many seconds of running ends.
_HUNG_S = 10.0
#: Pause between two tries of a standby, s.
_LOOK_S = 0.5
_LOCK_KEY = 0x57414C52  # "WALR"
_TABLE = """
CREATE TABLE IF NOT EXISTS leadership (
    one BIGINT PRIMARY KEY CHECK (one = 1), epoch BIGINT NOT NULL, holder TEXT NOT NULL,
    renewed_at TIMESTAMPTZ NOT NULL)
"""


class Leadership:
    """The right to write, which `connection` alone has."""

    def __init__(self, url: str, connection: PostgresConnection, epoch: int) -> None:
        self.connection = connection
        self.epoch = epoch
        self._url = url
        self._ended = threading.Event()
        self._released = threading.Event()
        #: Renewals since the loop's last turn, which count only while the process runs; None before its first turn.
        self._since_turn: int | None = None
        self._lost: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._renew_for_ever, name="leadership", daemon=True)
        self._thread.start()

    async def wait_until_lost(self) -> None:
        """Never returns. Raises LeadershipLost once another server leads, or no database has answered for a lease."""
        loop, lost = asyncio.get_running_loop(), asyncio.Event()
        self._lost = lambda: loop.call_soon_threadsafe(lost.set)
        if self._ended.is_set():
            lost.set()
        await lost.wait()
        raise LeadershipLost("another server leads, or the database is gone")

    def note_turn(self) -> None:
        """Note that the server serves: a step went through its loop, and what was to be written before it is."""
        self._since_turn = 0

    def claim_folder(self, key_digest: str) -> None:
        """Record the data folder's key; only servers with this key may lead from then on."""
        self.connection.execute("UPDATE leadership SET key_digest = ?", [key_digest])

    def release(self) -> None:
        """Let the next server lead at once."""
        self._lost = None
        self._ended.set()
        self._released.set()
        self._thread.join()
        self.connection.close()

    def _renew_for_ever(self) -> None:
        """Renew in a thread and over a connection of its own, so that neither long work nor long commits delay it."""
        renewing: PostgresConnection | None = None
        misses = 0
        while not self._ended.wait(_RENEW_S):
            try:
                if renewing is None or not renewing.is_usable:
                    renewing = PostgresConnection(self._url, "leadership")
                sql = "UPDATE leadership SET renewed_at = clock_timestamp() WHERE epoch = ?"
                is_ours, misses = renewing.execute(sql, [self.epoch]).rowcount == 1, 0
            except StoreUnavailable as error:
                # Without the database nobody can lead, but after a lease without it another server may have.
                misses += 1
                is_ours = misses * _RENEW_S < LEASE_S
                log.warning("%s", error)
            if not is_ours:
                self._ended.set()
                if self._lost is not None:
                    self._lost()
                if self._since_turn is not None and not self._released.wait(_HUNG_S):
                    _end_hung_process()
            elif self._since_turn is not None:
                self._since_turn += 1
                if self._since_turn * _RENEW_S > _HUNG_S:
                    _end_hung_process()
        if renewing is not None:
            renewing.close()


def _end_hung_process() -> None:
    """End this process, and with it its connections; the stacks of its threads say what it was doing."""
    log.critical("no turn of the loop for %.0f s: the server ends, and another may lead", _HUNG_S)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(EXIT_NOT_LEADING)


def wait_for_leadership(url: str, stopped: threading.Event | None = None) -> Leadership:
    """Stand by until this server may lead, at once if no other does; returns the leadership.

    Raises StoreUnavailable where the database cannot be reached at first; later it is waited for. Soon after `stopped`
    is set, LeadershipLost is raised.
    """
    connection, told = PostgresConnection(url, "writer"), ""
    _ensure_table(connection)
    stopped = stopped or threading.Event()
    while True:
        try:
            if not connection.is_usable:
                connection = PostgresConnection(url, "writer")
            if connection.execute("SELECT pg_try_advisory_lock(?)", [_LOCK_KEY]).fetchone()[0]:
                return Leadership(url, connection, _begin_epoch(connection))
            _end_silent_leader(connection)
            holder = _holder(connection)
        except StoreUnavailable as error:
            holder = str(error)
        if holder != told:
            log.info("standing by: %s", holder)
            told = holder
        if stopped.wait(_LOOK_S):
            connection.close()
            raise LeadershipLost("stopped while it stood by")


def check_folder(url: str, key_digest: str) -> None:
    """Raise ConfigError where the servers of this database have another data folder. `key_digest`: of its key; empty:
    it has none yet.

    The folder has the key that seals secrets and signs tokens, and logs, code and checkpoints.
    """
    with PostgresConnection(url, "folder") as connection:
        _ensure_table(connection)
        row = connection.execute("SELECT key_digest FROM leadership").fetchone()
    if row is not None and row[0] not in ("", key_digest):
        raise ConfigError(
            "the servers of this database have another data folder: its secret.key is not this one's",
            field="--data",
            fix="name the folder that they share; if its key is lost for good, `UPDATE leadership SET key_digest = ''`",
        )


def _ensure_table(connection: PostgresConnection) -> None:
    # Two servers that start at once would both find no table.
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(?)", [_LOCK_KEY + 1])
        connection.execute(_TABLE)
        connection.execute("ALTER TABLE leadership ADD COLUMN IF NOT EXISTS key_digest TEXT NOT NULL DEFAULT ''")


def _begin_epoch(connection: PostgresConnection) -> int:
    row = connection.execute(
        "INSERT INTO leadership (one, epoch, holder, renewed_at) VALUES (1, 1, ?, clock_timestamp()) ON CONFLICT (one)"
        " DO UPDATE SET epoch = leadership.epoch + 1, holder = excluded.holder, renewed_at = clock_timestamp()"
        " RETURNING epoch",
        [f"{socket.gethostname()} (pid {os.getpid()})"],
    ).fetchone()
    return int(row[0])


def _holder(connection: PostgresConnection) -> str:
    row = connection.execute("SELECT holder FROM leadership").fetchone()
    return f"{row[0]} leads" if row else "another server begins to lead"


def _end_silent_leader(connection: PostgresConnection) -> None:
    """Terminate the connection of a leader that has not renewed for a lease."""
    row = connection.execute(
        "SELECT holder, extract(epoch FROM clock_timestamp() - renewed_at)::float8 FROM leadership"
    ).fetchone()
    if row is None or row[1] < LEASE_S:
        return
    log.warning("%s has been silent for %.1f s: its connection is ended", *row)
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        " AND classid = 0 AND objid = ?"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        [_LOCK_KEY],
    )


T = TypeVar("T")

_ALIVE_SQL = (
    "INSERT INTO last_alive (id, at, unix_s, boot_id, boottime_s)"
    " VALUES (0, ?, extract(epoch FROM clock_timestamp())::float8, '', 0) ON CONFLICT (id) DO UPDATE"
    " SET at = excluded.at, unix_s = excluded.unix_s, boot_id = '', boottime_s = 0"
)


class PostgresStore(Store):
    """`Store` in a PostgreSQL database whose leadership this process holds."""

    _pool_order = "order_number"

    def __init__(
        self, url: str, leadership: Leadership, clocks: Clocks = SYSTEM_CLOCKS, chance: Random | None = None
    ) -> None:
        """Make the tables, or add what they lack. Raises ConfigError if a newer version has changed the database."""
        self._url, self._leadership, self._clocks = url, leadership, clocks
        self._db = leadership.connection
        empty = fresh_database(clocks, chance)
        shapes = read_tables(empty)
        if bring_up_to_date(self._db, shapes):
            with self._db.transaction():
                copy_rows(empty.conn, self._db, shapes)
        self._chain = JournalChain(load_head(self._db))
        super().__init__()

    # ---------------------------------------------------------------- writing

    def commit(self, batch: WriteBatch) -> None:
        self._chain.head = self._in_transaction(lambda: self._write(batch))

    def _write(self, batch: WriteBatch) -> ChainHead:
        found = self._db.execute("SELECT commits FROM chain FOR UPDATE").fetchone()[0]
        if found == self._chain.head.commits + 1:
            return load_head(self._db)  # the earlier try of this very commit was written, and only its answer was lost
        if found != self._chain.head.commits:
            raise LeadershipLost(f"another server wrote commit {found}; this one ends")
        write_rows(self._db, batch)
        for table in map(TABLES.__getitem__, batch.written):
            if table.is_numbered:
                newest = max(getattr(row, table.key[0]) for row in batch.written[table.row_type])
                self._db.execute(META_SQL, [f"last_{table.name}", max(newest, self._last_number(table))])
        return self._chain.extend(self._db, batch)

    def touch(self) -> None:
        self._in_transaction(lambda: self._db.execute("UPDATE meta SET value = value + 1 WHERE name = 'touched'"))

    def size_bytes(self) -> int:
        return int(self._value("SELECT pg_database_size(current_database())"))

    def note_alive(self, at: float) -> None:
        """Uses the clock of the database, because the next server may be another machine."""
        self._in_transaction(lambda: self._db.execute(_ALIVE_SQL, [at]))

    def absence(self) -> Absence | None:
        row = (
            self._reader()
            .execute("SELECT at, extract(epoch FROM clock_timestamp())::float8 - unix_s FROM last_alive")
            .fetchone()
        )
        # The clock of the database proves nothing, so time limits and charges count at most a lease of it.
        return None if row is None else Absence(max(0.0, row[1]), row[0] + max(0.0, row[1]), max(0.0, row[1]))

    def prune(self, data: Path, **ages: Unpack[Ages]) -> PruneReport:
        """As `retention.prune`, over a connection of its own."""
        with PostgresConnection(self._url, "retention") as connection:
            return prune_store(connection, connection.transaction, data, **ages)

    def close(self) -> None:
        self._close_readers()
        self._leadership.release()

    def _in_transaction(self, work: Callable[[], T]) -> T:
        try:
            with self._db.transaction():
                return work()
        except ConnectionLost as error:
            # Another server may lead by now: this connection was the right to write, and no other one has it.
            raise LeadershipLost(str(error)) from None

    # ---------------------------------------------------------------- reading

    def _connect_reader(self) -> PostgresConnection:
        return PostgresConnection(self._url, "reader")

    def _is_usable(self, reader: PostgresConnection) -> bool:
        return reader.is_usable

    def _last_number(self, table: Table[Any]) -> int:
        given = int(self._value("SELECT value FROM meta WHERE name = ?", f"last_{table.name}") or 0)
        # Rows that an earlier release copied from SQLite came without the note of their highest number.
        return max(given, int(self._value(f"SELECT max({table.key[0]}) FROM {table.name}") or 0))


def has_cluster(connection: PostgresConnection) -> bool:
    """Returns whether a server has ever led on this database."""
    return connection.execute("SELECT to_regclass('incarnations') IS NOT NULL").fetchone()[0] is True


def copy_into_postgres(data: Path, leadership: Leadership) -> int:
    """Copy the stopped SQLite store of a data folder into an empty PostgreSQL database; returns how many rows it has.

    Raises Conflict where the database holds a cluster already, ConfigError where the folder's is of another version.
    """
    connection = leadership.connection
    empty = fresh_database(SYSTEM_CLOCKS, None)
    shapes = read_tables(empty)
    with closing(connect_read_only(data / "walras.db")) as source:
        with suppress(sqlite3.OperationalError):
            made = {name for (name,) in source.execute("SELECT name FROM _sqlite_migrations")}
            if made != {name for (name,) in empty.conn.execute("SELECT name FROM _sqlite_migrations")}:
                raise ConfigError(
                    f"{data} is of another version", field="--data", fix="start and stop this version's server on it"
                )
        with connection.transaction():
            if not bring_up_to_date(connection, shapes):
                fix = "name an empty database (createdb)"
                raise Conflict("the database holds a cluster already", field="--store", fix=fix)
            copied = copy_rows(source, connection, shapes)
            given = dict(source.execute("SELECT name, seq FROM sqlite_sequence"))
            connection.executemany(META_SQL, ((f"last_{name}", given.get(name, 0)) for name in _named("is_numbered")))
            leadership.claim_folder(DataFolder(data).key_digest())
            return copied


# ------------------------------------------------------------------------------------------ tables


_TYPES = {"INTEGER": "BIGINT", "REAL": "DOUBLE PRECISION", "TEXT": "TEXT", "BLOB": "BYTEA"}
#: The table with the names of the migrations that were made.
_CHANGES = "schema_changes"
_APPEND_ONLY = """
CREATE OR REPLACE FUNCTION walras_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'append only'; END $$
"""


def _named(option: str) -> set[str]:
    """Returns the names of the tables that are declared with an option."""
    return {each.name for each in TABLES.values() if getattr(each, option)}


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table: its columns as PostgreSQL declares them, its key, its indexes, and whether rows may only be added."""

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]
    indexes: dict[str, str]
    is_append_only: bool

    def create_sql(self) -> str:
        """Returns the statement that makes the table."""
        columns = [f'"{name}" {declared}' for name, declared in self.columns.items()]
        if self.name in _named("is_ordered"):  # SQLite has the order of writing in `rowid`
            columns.append("order_number BIGINT GENERATED BY DEFAULT AS IDENTITY")
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(self.key)})")
        return f"CREATE TABLE {self.name} ({', '.join(columns)})"


def fresh_database(clocks: Clocks, chance: Random | None) -> Database:
    """Returns the SQLite database of a new cluster in memory, with a name and an instant 0 of its own."""
    database = Database(sqlite3.connect(":memory:", isolation_level=None))
    lend_functions(database, clocks, chance)
    migrations.apply(database)
    return database


def read_tables(database: Database) -> list[TableShape]:
    """Returns the tables of a SQLite database on which all migrations were made."""
    rows = database.conn.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    tables = [name for kind, name, _, _ in rows if kind == "table" and not name.startswith(("sqlite_", "_sqlite_"))]
    shapes = []
    for table in tables:
        columns, key = {}, []
        for _, name, declared, is_needed, default, place in database.conn.execute(f"PRAGMA table_info({table})"):
            columns[name] = _TYPES[declared] + (" NOT NULL" if is_needed else "")
            columns[name] += "" if default is None else f" DEFAULT {default}"
            key += [(place, name, declared)] if place else []
        if len(key) == 1 and key[0][2] == "INTEGER":
            columns[key[0][1]] = "BIGINT GENERATED BY DEFAULT AS IDENTITY"
        of_table = [each for each in rows if each[2] == table]
        indexes = {name: postgres_sql(sql) for kind, name, _, sql in of_table if kind == "index" and sql}
        stays = any(kind == "trigger" for kind, *_ in of_table)
        shapes.append(TableShape(table, columns, tuple(name for _, name, _ in sorted(key)), indexes, stays))
    return shapes


def bring_up_to_date(connection: PostgresConnection, shapes: list[TableShape]) -> bool:
    """Make the tables, or what they lack, in one transaction. Returns True if the database held no cluster before.

    Raises ConfigError for a database that a newer version has changed.
    """
    with connection.transaction():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {_CHANGES} (name TEXT PRIMARY KEY)")
        made = {name for (name,) in connection.execute(f"SELECT name FROM {_CHANGES}")}
        known = _names_of_changes()
        if unknown := made - set(known):
            raise ConfigError(
                f"a newer version of Walras has changed this database ({min(unknown)})",
                field="--store",
                fix="start the version that the other server runs",
            )
        connection.execute(_APPEND_ONLY)
        for shape in shapes:
            _bring_table_up_to_date(connection, shape)
        new = [name for name in known if name not in made]
        for sql in (sql for name in new for sql in SQL_FOR_BOTH.get(name, ())):
            connection.execute(sql)
        connection.executemany(f"INSERT INTO {_CHANGES} (name) VALUES (?)", [(name,) for name in new])
    return not made


def _names_of_changes() -> list[str]:
    return [each.name for each in migrations.pending(Database(memory=True))]


def _bring_table_up_to_date(connection: PostgresConnection, shape: TableShape) -> None:
    there = connection.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = ?",
        [shape.name],
    ).fetchall()
    if not there:
        connection.execute(shape.create_sql())
    else:
        for name in shape.columns.keys() - {row[0] for row in there}:
            connection.execute(f'ALTER TABLE {shape.name} ADD COLUMN "{name}" {shape.columns[name]}')
    for name, sql in shape.indexes.items():
        connection.execute(sql.replace(f"INDEX {name}", f"INDEX IF NOT EXISTS {name}"))
    if shape.is_append_only:
        connection.execute(
            f"CREATE OR REPLACE TRIGGER {shape.name}_stay BEFORE UPDATE OR DELETE ON {shape.name}"
            " FOR EACH ROW EXECUTE FUNCTION walras_append_only()"
        )


def copy_rows(source: sqlite3.Connection, connection: PostgresConnection, shapes: list[TableShape]) -> int:
    """Copy every row of a SQLite database into empty tables; returns how many. To be called within a transaction."""
    copied = 0
    for shape in shapes:
        names = ", ".join(f'"{name}"' for name in shape.columns)
        order = " ORDER BY rowid" if shape.name in _named("is_ordered") else ""
        cursor = source.execute(f"SELECT {names} FROM {shape.name}{order}")
        marks = ", ".join("?" for _ in shape.columns)
        while rows := cursor.fetchmany(1000):
            connection.executemany(f"INSERT INTO {shape.name} ({names}) VALUES ({marks})", _typed(rows, shape))
            copied += len(rows)
        for name, declared in shape.columns.items():
            if "IDENTITY" in declared:
                connection.execute(
                    f"SELECT setval(pg_get_serial_sequence('{shape.name}', '{name}'),"
                    f' coalesce((SELECT max("{name}") FROM {shape.name}), 0) + 1, FALSE)'
                )
    return copied


def _typed(rows: list[Any], shape: TableShape) -> list[list[Any]]:
    """Returns the rows with floats in every real column: SQLite keeps a whole number there as it came."""
    is_real = ["DOUBLE" in declared for declared in shape.columns.values()]
    return [
        [float(value) if real and value is not None else value for value, real in zip(row, is_real, strict=True)]
        for row in rows
    ]
