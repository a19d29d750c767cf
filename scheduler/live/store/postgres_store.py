"""The store in PostgreSQL: the leader's connection for writing, and connections of threads for reading.

Commits go over the one connection that holds the leadership (`leadership.py`), each with a check that the journal is
where the last one left it: what another server wrote meanwhile is never overwritten, and a commit whose answer was lost
is not made twice. Files (logs, code, keys) stay in the data folder, which all servers of a cluster share.

The tables are derived from those in SQLite, so that one list of migrations (`migrations.py`) serves both. It is applied
to an empty SQLite database in memory, whose columns, keys, indexes and append-only tables are then made in PostgreSQL;
tables of an older version get what they lack. The names of the migrations are kept, so that a server of an older
version refuses a database that a newer one has changed.
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from sqlite_utils import Database

from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.journal_chain import ChainHead, JournalChain, load_head
from scheduler.live.store.last_alive import Absence
from scheduler.live.store.leadership import Leadership
from scheduler.live.store.migrations import SQL_FOR_BOTH, lend_functions, migrations
from scheduler.live.store.postgres_connection import ConnectionLost, PostgresConnection
from scheduler.live.store.retention import PruneReport, prune_store
from scheduler.live.store.sql_dialect import postgres_replace_sql, postgres_sql
from scheduler.live.store.sql_store import SqlStore, write_rows
from scheduler.live.store.store_interface import LeadershipLost, WriteBatch
from scheduler.live.store.table_mapping import TABLES, column_names
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import ConfigError, Conflict

T = TypeVar("T")

_META_SQL = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_ALIVE_SQL = (
    "INSERT INTO last_alive (id, at, unix_s, boot_id, boottime_s)"
    " VALUES (0, ?, extract(epoch FROM clock_timestamp())::float8, '', 0) ON CONFLICT (id) DO UPDATE"
    " SET at = excluded.at, unix_s = excluded.unix_s, boot_id = '', boottime_s = 0"
)
#: Tables whose numbers are never used again, and the column of the number.
_NUMBERED = {"channels": "channel_id", "notifications": "seq"}
#: Tables whose rows are only added and never replaced.
_ADDED = ("journal", "charges", "audit")


class PostgresStore(SqlStore):
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
        keys = {shape.name: () if shape.name in _ADDED else shape.key for shape in shapes}
        self._replace_sql = {
            table: postgres_replace_sql(
                table,
                column_names(row_type),
                keys[table],
                "order_number = excluded.order_number" if table == "pools" else "",
            )
            for table, row_type in TABLES
        }
        self._chain = JournalChain(load_head(self._db))
        self._local = threading.local()
        self._readers: list[PostgresConnection] = []
        self._readers_lock = threading.Lock()

    # ---------------------------------------------------------------- writing

    def commit(self, batch: WriteBatch) -> None:
        self._chain.head = self._in_transaction(lambda: self._write(batch))

    def _write(self, batch: WriteBatch) -> ChainHead:
        found = self._db.execute("SELECT commits FROM chain FOR UPDATE").fetchone()[0]
        if found == self._chain.head.commits + 1:
            return load_head(self._db)  # the earlier try of this very commit was written, and only its answer was lost
        if found != self._chain.head.commits:
            raise LeadershipLost(f"another server wrote commit {found}; this one ends")
        write_rows(self._db, batch, self._replace_sql, _META_SQL)
        for table, column in _NUMBERED.items():
            if rows := getattr(batch, table):
                newest = max(getattr(row, column) for row in rows)
                self._db.execute(_META_SQL, [f"last_{table}", max(newest, self._last_number(table))])
        last_job_id = max((row.job_id for row in batch.jobs), default=0)
        return self._chain.extend(self._db, batch.journal, last_job_id)

    def touch(self) -> None:
        self._in_transaction(lambda: self._db.execute("UPDATE meta SET value = value + 1 WHERE name = 'touched'"))

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

    def prune(
        self,
        data: Path,
        *,
        jobs_older_s: float,
        logs_older_s: float,
        checkpoints_older_s: float | None = None,
        journal_older_s: float | None = None,
    ) -> PruneReport:
        """As `retention.prune`, over a connection of its own."""
        with PostgresConnection(self._url, "retention") as connection:
            return prune_store(
                connection,
                connection.transaction,
                data,
                jobs_older_s=jobs_older_s,
                logs_older_s=logs_older_s,
                checkpoints_older_s=checkpoints_older_s,
                journal_older_s=journal_older_s,
            )

    def close(self) -> None:
        with self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()
        self._leadership.release()

    def _in_transaction(self, work: Callable[[], T]) -> T:
        try:
            with self._db.transaction():
                return work()
        except ConnectionLost as error:
            # Another server may lead by now: this connection was the right to write, and no other one has it.
            raise LeadershipLost(str(error)) from None

    # ---------------------------------------------------------------- reading

    def _reader(self) -> PostgresConnection:
        reader: PostgresConnection | None = getattr(self._local, "reader", None)
        if reader is None or not reader.is_usable:
            reader = PostgresConnection(self._url, "reader")
            with self._readers_lock:
                self._readers = [each for each in self._readers if each.is_usable] + [reader]
            self._local.reader = reader
        return reader

    def _last_number(self, table: str) -> int:
        given = int(self._value("SELECT value FROM meta WHERE name = ?", f"last_{table}") or 0)
        # Rows that an earlier release copied from SQLite came without the note of their highest number.
        return max(given, int(self._value(f"SELECT max({_NUMBERED[table]}) FROM {table}") or 0))


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
    source = sqlite3.connect(f"{(data / 'walras.db').absolute().as_uri()}?mode=ro", uri=True)
    try:
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
            connection.executemany(_META_SQL, [(f"last_{table}", given.get(table, 0)) for table in _NUMBERED])
            leadership.claim_folder(DataFolder(data).key_digest())
            return copied
    finally:
        source.close()


# ------------------------------------------------------------------------------------------ tables


_TYPES = {"INTEGER": "BIGINT", "REAL": "DOUBLE PRECISION", "TEXT": "TEXT", "BLOB": "BYTEA"}
#: Tables that SQLite keeps in the order of writing; in PostgreSQL a column keeps that order.
_ORDERED = ("pools",)
#: The table with the names of the migrations that were made.
_CHANGES = "schema_changes"
_APPEND_ONLY = """
CREATE OR REPLACE FUNCTION walras_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'append only'; END $$
"""


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
        if self.name in _ORDERED:
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
        order = " ORDER BY rowid" if shape.name in _ORDERED else ""
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
