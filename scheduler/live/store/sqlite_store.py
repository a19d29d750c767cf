"""The store in one SQLite file: write-ahead log, synchronous commits, one writing connection, read-only readers.

A file lock refuses a second server on the same folder.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from scheduler.core.state.throughput import KINDS_MOST, ScoredBelief
from scheduler.live.store.database_file import (
    FolderLock,
    begin_new_cluster,
    check_database_is_there,
    check_nothing_was_lost,
    damaged,
    open_database,
)
from scheduler.live.store.job_listing import listing_sql
from scheduler.live.store.journal_chain import ChainHead, JournalChain, TipFile, load_head
from scheduler.live.store.last_alive import Absence, absence_since, load_last_alive, read_boot_id, store_last_alive
from scheduler.live.store.money_sums import sum_money, sum_spent
from scheduler.live.store.price_hours import PriceQuery, PriceRow, delete_price_hours, read_price_hours
from scheduler.live.store.report_rows import PastQuery, PastRows, read_past
from scheduler.live.store.store_interface import (
    AuditQuery,
    JobQuery,
    JobUsage,
    LoadedState,
    MoneyQuery,
    MoneySum,
    StoreUnavailable,
    WriteBatch,
)
from scheduler.live.store.table_mapping import REPLACE_SQL, ROW_VALUES, TABLES, build_row, column_list
from scheduler.live.store.table_rows import (
    AnswerRow,
    AttemptRow,
    AuditRow,
    ChannelRow,
    ChargeRow,
    CheckpointRow,
    CoreStateRow,
    FactsRow,
    JobRow,
    JournalRow,
    NetworkRow,
    NodeRow,
    NotificationRow,
    OutboxRow,
    OutputsRow,
    PartRow,
    PeopleRow,
    PolicyRow,
    PoolRow,
    RentRow,
    RestartCostRow,
    SecretRow,
    SpecRow,
    SpeedRow,
    TokenRow,
    ToldRow,
)
from scheduler.live.store.usage_sums import AttemptUse, UsageQuery, sum_usage
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.cluster import NodeId
from walras.errors import ConfigError, NotFound
from walras.job_request import JobId
from walras.wire import ClusterIdentity

Row = TypeVar("Row")
#: SQLite takes a limited number of values in one statement.
_IN_ONE_QUERY = 10_000
#: What SQLite says of a disk that is full, slow, or read by somebody else for long.
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
    """Raise StoreUnavailable for what a disk does, and what passes when there is room again."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF not in _PASSING_FAILURES:
            raise
        raise StoreUnavailable(f"{path} cannot be written: {error}") from None
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be written: {error}") from None


class SqliteStore:
    """`Store` on `folder/walras.db`."""

    def __init__(
        self,
        folder: Path,
        clocks: Clocks = SYSTEM_CLOCKS,
        chance: Random | None = None,
        *,
        new_cluster: bool = False,
    ) -> None:
        """Open it; `new_cluster`: put what is there aside. Raises Conflict where another server holds it, ConfigError
        where it is missing, damaged, or older than what was acknowledged."""
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
            for table, _ in TABLES:
                rows = getattr(batch, table)
                if rows:
                    connection.executemany(REPLACE_SQL[table], map(ROW_VALUES[table], rows))
            if batch.last_command_id:
                connection.execute(
                    "INSERT OR REPLACE INTO meta (name, value) VALUES ('last_command_id', ?)", [batch.last_command_id]
                )
            if batch.answers_until > 0:
                connection.execute("DELETE FROM answers WHERE at < ?", [batch.answers_until])
            if batch.price_hours_until > 0:
                delete_price_hours(connection, batch.price_hours_until)
            for table, key, ended in batch.deletions():
                if ended:
                    connection.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(each,) for each in ended])
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

    # ---------------------------------------------------------------- reading

    def identity(self) -> ClusterIdentity:
        cluster_id, incarnation = next(
            self._reader().execute("SELECT cluster_id, incarnation FROM incarnations ORDER BY seq DESC LIMIT 1")
        )
        return ClusterIdentity(cluster_id=cluster_id, incarnation=incarnation)

    def former_incarnations(self) -> tuple[str, ...]:
        cursor = self._reader().execute("SELECT incarnation FROM incarnations ORDER BY seq DESC LIMIT -1 OFFSET 1")
        return tuple(incarnation for (incarnation,) in cursor)[::-1]

    def epoch_unix_s(self) -> float:
        return float(self._value("SELECT value FROM meta WHERE name = 'epoch_unix_s'"))

    def last_at(self) -> float:
        return float(self._value("SELECT at FROM journal ORDER BY seq DESC LIMIT 1") or 0.0)

    def absence(self) -> Absence | None:
        last = load_last_alive(self._reader())
        return None if last is None else absence_since(last, self._clocks, read_boot_id())

    def load(self) -> LoadedState:
        live = "job_id IN (SELECT job_id FROM attempts WHERE ended_at IS NULL)"
        return LoadedState(
            jobs=tuple(self._select("jobs", JobRow, "ended_at IS NULL")),
            attempts=tuple(self._select("attempts", AttemptRow, "ended_at IS NULL")),
            parts=tuple(
                part
                for part in self._select("parts", PartRow, live)
                if self._value(
                    "SELECT ended_at IS NULL FROM attempts WHERE job_id = ? AND attempt = ?", part.job_id, part.attempt
                )
            ),
            nodes=tuple(self._select("nodes", NodeRow, "state NOT IN ('released')")),
            outbox=tuple(self._select("outbox", OutboxRow, "1 ORDER BY command_id")),
            checkpoints=tuple(
                self._select(
                    "checkpoints",
                    CheckpointRow,
                    "NOT lost AND job_id IN (SELECT job_id FROM jobs WHERE ended_at IS NULL)"
                    " ORDER BY job_id, attempt, step",
                )
            ),
            rents=tuple(self._select("rents", RentRow, "state = 'asked'")),
            pools=tuple(self._select("pools", PoolRow, "1 ORDER BY rowid")),
            speeds=tuple(self._select("speeds", SpeedRow, "1")),
            scores=tuple(self._select("scores", ScoredBelief, "1")),
            facts=tuple(self._select("facts", FactsRow, f"1 ORDER BY told_at DESC LIMIT {2 * KINDS_MOST}"))[::-1],
            networks=tuple(self._select("networks", NetworkRow, "1 ORDER BY pool_id")),
            restart_costs=tuple(self._select("restart_costs", RestartCostRow, "1")),
            people=tuple(self._select("people", PeopleRow, "1 ORDER BY kind, name")),
            channels=tuple(self._select("channels", ChannelRow, "1 ORDER BY channel_id")),
            notifications=tuple(self._select("notifications", NotificationRow, "1 ORDER BY seq")),
            told=tuple(self._select("told", ToldRow, "1")),
            core_state=self._first(self._select("core_state", CoreStateRow, "1")),
            secrets=tuple(
                self._select("secrets", SecretRow, "job_id IN (SELECT job_id FROM jobs WHERE ended_at IS NULL)")
            ),
            last_job_id=int(self._value("SELECT last_job_id FROM chain") or 0),
            shares_checkpoints=bool(self._value("SELECT shares_folder FROM checkpoint_habit")),
            last_command_id=int(self._value("SELECT value FROM meta WHERE name = 'last_command_id'") or 0),
            last_charge_id=int(self._value("SELECT max(charge_id) FROM charges") or 0),
            last_channel_id=self._last_number("channels"),
            last_notification_seq=self._last_number("notifications"),
        )

    def journal(self, *, whole: bool = False) -> Iterator[JournalRow]:
        first = 0 if whole else self._value("SELECT max(seq) FROM journal WHERE kind = 'generation'") or 0
        cursor = self._reader().execute(
            f"SELECT {column_list(JournalRow)} FROM journal WHERE seq >= ? ORDER BY seq", [first]
        )
        for values in cursor:
            yield JournalRow(*values)

    def job(self, job_id: JobId) -> JobRow | None:
        return self._first(self._select("jobs", JobRow, "job_id = ?", job_id))

    def jobs(self, query: JobQuery) -> list[JobRow]:
        where, values = listing_sql(query)
        return self._select("jobs", JobRow, where, *values)

    def sweep_states(self, sweeps: Iterable[JobId]) -> dict[JobId, dict[str, int]]:
        counted = "SELECT state, count(*) FROM jobs WHERE sweep = ? GROUP BY state"
        return {sweep: dict(self._reader().execute(counted, [sweep]).fetchall()) for sweep in sweeps}

    def job_named(self, user: str, name: str) -> JobId | None:
        found = self._value("SELECT max(job_id) FROM jobs WHERE user = ? AND name = ?", user, name)
        return None if found is None else JobId(found)

    def spec(self, job_id: JobId) -> SpecRow | None:
        return self._first(self._select("specs", SpecRow, "job_id = ?", job_id))

    def attempts(self, job_id: JobId) -> list[AttemptRow]:
        return self._select("attempts", AttemptRow, "job_id = ? ORDER BY attempt", job_id)

    def usage(self, job_ids: Iterable[JobId], at: float) -> list[JobUsage]:
        wanted = list(job_ids)
        if len(wanted) > _IN_ONE_QUERY:
            return [*self.usage(wanted[:_IN_ONE_QUERY], at), *self.usage(wanted[_IN_ONE_QUERY:], at)]
        marks = ", ".join("?" for _ in wanted)
        cursor = self._reader().execute(
            "SELECT job_id, accelerator, sum(accelerators * max(0, coalesce(ended_at, ?1) - leased_at)),"
            " sum(usd + CASE WHEN ended_at IS NULL THEN usd_per_h * max(0, ?1 - usd_since_at) / 3600 ELSE 0 END)"
            f" FROM attempts WHERE job_id IN ({marks}) GROUP BY job_id, accelerator",
            [at, *wanted],
        )
        return [JobUsage(*values) for values in cursor]

    def charges(self, job_id: JobId | None = None) -> list[ChargeRow]:
        where, values = ("1", ()) if job_id is None else ("job_id = ?", (job_id,))
        return self._select("charges", ChargeRow, f"{where} ORDER BY charge_id", *values)

    def spent(self) -> dict[tuple[str, str], float]:
        return sum_spent(self._reader())

    def money(self, query: MoneyQuery, open_keys: Iterable[str] = ()) -> list[MoneySum]:
        return sum_money(self._reader(), query, open_keys)

    def price_hours(self, query: PriceQuery) -> list[PriceRow]:
        return read_price_hours(self._reader(), query)

    def attempt_uses(self, query: UsageQuery) -> list[AttemptUse]:
        return sum_usage(self._reader(), query)

    def past(self, query: PastQuery) -> PastRows:
        return read_past(self._reader(), query)

    def attempt_was_on(self, job_id: JobId, attempt: int, node_id: NodeId) -> bool:
        sql = "SELECT 1 FROM parts WHERE job_id = ? AND attempt = ? AND node_id = ?"
        return self._value(sql, job_id, attempt, node_id) is not None

    def checkpoint(self, job_id: JobId) -> CheckpointRow | None:
        newest = "job_id = ? AND NOT lost ORDER BY attempt DESC, step DESC LIMIT 1"
        return self._first(self._select("checkpoints", CheckpointRow, newest, job_id))

    def checkpoint_content(self, ended_since_at: float) -> list[str]:
        newest = "row_number() OVER (PARTITION BY job_id ORDER BY attempt DESC, step DESC) AS newest"
        known = f"SELECT content, ended_at, {newest} FROM checkpoints JOIN jobs USING (job_id) WHERE NOT lost"
        kept = "CASE WHEN ended_at IS NULL THEN newest <= 2 ELSE newest = 1 AND ended_at >= ? END"
        rows = self._reader().execute(f"SELECT content FROM ({known}) WHERE content != '' AND {kept}", [ended_since_at])
        return [str(content) for (content,) in rows]

    def expired_checkpoint_places(self, ended_since_at: float, ended_before_at: float) -> list[str]:
        ended = "FROM checkpoints JOIN jobs USING (job_id) WHERE store != '' AND ended_at BETWEEN ? AND ?"
        rows = self._reader().execute(f"SELECT DISTINCT store {ended}", [ended_since_at, ended_before_at])
        return [str(place) for (place,) in rows]

    def outputs(self, job_id: JobId) -> list[OutputsRow]:
        return self._select("outputs", OutputsRow, "job_id = ? ORDER BY node_rank", job_id)

    def output_trees(self) -> list[str]:
        return [row[0] for row in self._reader().execute("SELECT DISTINCT tree FROM outputs WHERE tree != ''")]

    def policies(self, limit: int = 100) -> list[PolicyRow]:
        return self._select("policies", PolicyRow, "1 ORDER BY version DESC LIMIT ?", limit)

    def answer(self, user: str, key: str) -> AnswerRow | None:
        return self._first(self._select("answers", AnswerRow, "user = ? AND key = ?", user, key))

    def token(self, sha256: str) -> TokenRow | None:
        return self._first(self._select("tokens", TokenRow, "sha256 = ?", sha256))

    def tokens(self) -> list[TokenRow]:
        return self._select("tokens", TokenRow, "1 ORDER BY created_at")

    def audit(self, query: AuditQuery) -> list[AuditRow]:
        clauses, values = ["at >= ?"], [query.since_at, *([query.user] if query.user else []), *(query.projects or ())]
        if query.user:
            clauses.append("user = ?")
        if query.projects is not None:
            clauses.append(f"project IN ({', '.join('?' for _ in query.projects)})")
        if not query.of_no_project:
            clauses.append("project <> ''")
        where = " AND ".join(clauses)
        return self._select("audit", AuditRow, f"{where} ORDER BY seq DESC LIMIT ?", *values, query.limit)

    # ---------------------------------------------------------------- plumbing

    def _reader(self) -> sqlite3.Connection:
        """This thread's own read-only connection."""
        reader: sqlite3.Connection | None = getattr(self._local, "reader", None)
        if reader is None:
            # close() may run in another thread; use stays with this one.
            reader = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
            self._local.reader = reader
            with self._readers_lock:
                self._readers.append(reader)
        return reader

    def _select(self, table: str, row_type: type[Row], where: str, *values: Any) -> list[Row]:
        cursor = self._reader().execute(f"SELECT {column_list(row_type)} FROM {table} WHERE {where}", values)
        return [build_row(row_type, row) for row in cursor]

    def _value(self, sql: str, *values: Any) -> Any:
        row = self._reader().execute(sql, values).fetchone()
        return None if row is None else row[0]

    def _last_number(self, table: str) -> int:
        """The highest number that a table whose numbers are used once ever gave to a row."""
        return int(self._value("SELECT seq FROM sqlite_sequence WHERE name = ?", table) or 0)

    @staticmethod
    def _first(rows: list[Row]) -> Row | None:
        return rows[0] if rows else None


def read_stored_journal(folder: Path) -> Iterator[JournalRow]:
    """The journal of a data folder as far as it is kept, read without taking its lock."""
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
