"""The queries that the stores of both databases share; each adds its connections and what it writes differently.

By job, the ledger of money has after years as many keys as there were jobs. So in sums of it only the most expensive
keys get sums of their own, and those that the caller names because they have open charges; the others are one sum.

A page of jobs has filters, an order, and a cursor. The order is always total: jobs that are equal in the column asked
for come newest first. A cursor names the last job of a page with its value in that column: pages neither skip nor
repeat a job, however many are submitted meanwhile.

How long the server was away is told by what its machine's clocks last showed, and not by wall time alone:

* If the machine has not been rebooted since (same boot id), its boot clock has counted the time, whatever was done to
  the wall clock.
* If it has, the wall clock says how long, but at least as long as the machine is up. What wall time claims beyond that
  is *unproved*. Waiting and lateness count it. A job's time limit and its charges count at most a lease of it, because
  without contact to the server an attempt lives no longer.
"""

import base64
import binascii
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from scheduler.live.store.sql_dialect import SqlConnection
from scheduler.live.store.store_interface import (
    MONEY_KEYS,
    AuditQuery,
    JobQuery,
    JobUsage,
    LoadedState,
    MoneyQuery,
    MoneySum,
    PriceQuery,
    WriteBatch,
)
from scheduler.live.store.table_declaration import TABLES, Table
from scheduler.live.store.table_rows import (
    LATEST_FIRST,
    AnswerRow,
    AttemptRow,
    AuditRow,
    ChargeKind,
    ChargeRow,
    CheckpointRow,
    JobRow,
    JournalRow,
    OutputsRow,
    PolicyRow,
    PriceRow,
    SpecRow,
    TokenRow,
)
from scheduler.live.store.usage_sums import (
    AttemptUse,
    HeldQuery,
    HeldRow,
    NodeAttemptRow,
    PastQuery,
    PastRows,
    UsageQuery,
    read_held,
    read_node_attempts,
    read_past,
    read_use_by_day,
    sum_usage,
)
from walras.clocks import Clocks
from walras.cluster import NodeId
from walras.errors import UserError
from walras.job_request import JobId
from walras.wire import ClusterIdentity

#: The columns by which jobs can be sorted; `-` before the word reverses the order.
SORT_COLUMNS = {
    "id": "job_id",
    "name": "name",
    "user": "user",
    "project": "project",
    "state": "state",
    "priority": "priority",
    "accelerators": "accelerators",
    "submitted": "submitted_at",
}
_SORTED_AS_TEXT = ("name", "user", "project", "state")
NEWEST_FIRST = "-id"


def check_sort(word: str) -> str:
    """Returns the word if jobs can be sorted by it. Raises UserError naming the words."""
    if word.removeprefix("-") not in SORT_COLUMNS:
        known = ", ".join(SORT_COLUMNS)
        raise UserError(f"jobs cannot be sorted by {word[:40]!r}", field="sort", fix=f"choose from {known}, or -WORD")
    return word


def cursor_after(row: JobRow, sort: str) -> str:
    """Returns the cursor of the page that begins behind this job."""
    if sort == NEWEST_FIRST:
        return str(row.job_id)
    value = getattr(row, SORT_COLUMNS[sort.removeprefix("-")])
    return base64.urlsafe_b64encode(json.dumps([value, row.job_id]).encode()).decode()


def parse_cursor(text: str, sort: str) -> tuple[Any, int] | None:
    """Returns (value of the column, job) of the job that the page is to follow; None for the first page.

    Raises UserError for an invalid cursor.
    """
    if not text or text == "0":
        return None
    if sort == NEWEST_FIRST and text.isascii() and text.isdecimal() and len(text) <= 18:
        return int(text), int(text)
    try:
        value, job_id = json.loads(base64.urlsafe_b64decode(text.encode()))
        kinds = str if sort.removeprefix("-") in _SORTED_AS_TEXT else (int, float)
        if isinstance(value, kinds) and isinstance(job_id, int) and abs(job_id) < 2**62:
            return value, job_id
    except (ValueError, TypeError, binascii.Error, RecursionError):
        pass
    raise UserError(f"{text[:40]!r} is no cursor of this listing", field="cursor", fix="take `next` of the page before")


def listing_sql(query: JobQuery) -> tuple[str, list[Any]]:
    """Returns the conditions, the order and the limit of a page, and the values in them."""
    clauses: list[str] = []
    values: list[Any] = []
    for column, wanted in (("state", query.states), ("project", query.projects)):
        if wanted is not None and (wanted or column == "project"):
            clauses.append(f"{column} IN ({', '.join('?' for _ in wanted)})")
            values.extend(wanted)
    for column, value in (("user", query.user), ("project", query.project)):
        if value:
            clauses.append(f"{column} = ?")
            values.append(value)
    if query.name_part:
        clauses.append("instr(lower(name), lower(?)) > 0")
        values.append(query.name_part)
    if query.active:
        clauses.append("ended_at IS NULL")
    clauses += [] if query.sweep is None else [f"sweep = {query.sweep:d}"]
    if query.fold_sweeps:  # of a sweep's jobs that match, only the newest
        alike = " AND ".join(clauses) or "TRUE"
        newest = f"(SELECT max(job_id) FROM jobs AS each WHERE each.sweep = jobs.sweep AND {alike})"
        clauses.append(f"(sweep IS NULL OR job_id = {newest})")
        values += values
    column = SORT_COLUMNS[query.sort.removeprefix("-")]
    descends = query.sort.startswith("-")
    if query.after is not None:
        if column == "job_id":
            clauses.append(f"job_id {'<' if descends else '>'} ?")
            values.append(query.after[1])
        else:
            clauses.append(f"({column} {'<' if descends else '>'} ? OR ({column} = ? AND job_id < ?))")
            values += [query.after[0], *query.after]
    order = f"{column} {'DESC' if descends else 'ASC'}" + ("" if column == "job_id" else ", job_id DESC")
    return f"{' AND '.join(clauses) or 'TRUE'} ORDER BY {order} LIMIT ?", [*values, query.limit]


Row = TypeVar("Row")
#: A statement takes a limited number of values, so longer lists are read in parts.
_IN_ONE_QUERY = 10_000


class ReadingConnection(SqlConnection, Protocol):
    """A connection that one thread reads over."""

    def close(self) -> None: ...


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class LastAlive:
    """What the clocks of the server's machine showed when the server last noted them."""

    #: Seconds since the cluster's epoch.
    at: float
    unix_s: float
    boot_id: str
    boottime_s: float


@dataclass(frozen=True, slots=True)
class Absence:
    """How long a server was away, s."""

    elapsed_s: float
    #: The present instant, seconds since the cluster's epoch.
    now_at: float
    #: The part of it that only the wall clock shows.
    unproved_s: float = 0.0


def read_boot_id() -> str:
    """Returns the id of this machine's present boot; empty where the kernel does not state it."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def absence_since(last: LastAlive, clocks: Clocks, boot_id: str) -> Absence:
    """Returns how much time has passed since the server last noted its clocks."""
    uptime_s, wall_s = clocks.boottime(), clocks.wall() - last.unix_s
    if boot_id and boot_id == last.boot_id and uptime_s >= last.boottime_s:
        elapsed_s = uptime_s - last.boottime_s
        return Absence(elapsed_s, last.at + elapsed_s)
    # A container's boot clock may be its host's: it bounds the absence only where the machine was booted since.
    proved_s = uptime_s if boot_id and last.boot_id and boot_id != last.boot_id else 0.0
    elapsed_s = max(proved_s, wall_s)
    return Absence(elapsed_s, last.at + elapsed_s, elapsed_s - proved_s)


def store_last_alive(connection: SqlConnection, at: float, clocks: Clocks) -> None:
    """Write what the clocks show at this instant."""
    connection.execute(
        "INSERT OR REPLACE INTO last_alive (id, at, unix_s, boot_id, boottime_s) VALUES (0, ?, ?, ?, ?)",
        [at, clocks.wall(), read_boot_id(), clocks.boottime()],
    )


def load_last_alive(connection: SqlConnection) -> LastAlive | None:
    """Returns what was written last; None in a database of an older version."""
    row = connection.execute("SELECT at, unix_s, boot_id, boottime_s FROM last_alive").fetchone()
    return None if row is None else LastAlive(*row)


#: Writes a named value.
META_SQL = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


class Store(ABC):
    """The durable state of the server; one class for each database.

    One thread calls the writing half, any thread the reading half. A commit is atomic and durable when it returns: only
    then does the server answer or act.
    """

    #: The clocks of this machine, compared with those of the last note to find how long the server was away.
    _clocks: Clocks
    #: The column that keeps the order in which pools were added.
    _pool_order: ClassVar[str]

    @abstractmethod
    def commit(self, batch: WriteBatch) -> None:
        """Write everything or nothing; durable on return. Raises StoreUnavailable where a later try may succeed."""

    @abstractmethod
    def touch(self) -> None:
        """Write a value, to test that writing works. Raises StoreUnavailable."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Returns how much of the disk the database takes."""

    @abstractmethod
    def note_alive(self, at: float) -> None:
        """Record that the server was at this instant now, by all clocks of its machine."""

    @abstractmethod
    def close(self) -> None:
        """Close the database and release its lock."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._readers: list[ReadingConnection] = []
        self._readers_lock = threading.Lock()

    @abstractmethod
    def _connect_reader(self) -> ReadingConnection:
        """Returns a new connection for reading."""

    def _is_usable(self, reader: Any) -> bool:
        """Returns False for a connection that was found broken."""
        return True

    def _reader(self) -> SqlConnection:
        """Returns this thread's own connection for reading."""
        reader: ReadingConnection | None = getattr(self._local, "reader", None)
        if reader is None or not self._is_usable(reader):
            reader = self._local.reader = self._connect_reader()
            with self._readers_lock:
                self._readers = [each for each in self._readers if self._is_usable(each)] + [reader]
        return reader

    def _close_readers(self) -> None:
        with self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()

    @abstractmethod
    def _last_number(self, table: Table[Any]) -> int:
        """Returns the highest number that was ever given to a row of a table whose numbers are never used again."""

    def identity(self) -> ClusterIdentity:
        """Returns the cluster's id, and the incarnation of this database."""
        cluster_id, incarnation = next(
            self._reader().execute("SELECT cluster_id, incarnation FROM incarnations ORDER BY seq DESC LIMIT 1")
        )
        return ClusterIdentity(cluster_id=cluster_id, incarnation=incarnation)

    def former_incarnations(self) -> tuple[str, ...]:
        """Returns the incarnations of this cluster before this one, oldest first; there are some after a restore."""
        cursor = self._reader().execute("SELECT incarnation FROM incarnations ORDER BY seq")
        return tuple(str(incarnation) for (incarnation,) in cursor)[:-1]

    def epoch_unix_s(self) -> float:
        """Returns the Unix time of instant 0, seconds."""
        return float(self._value("SELECT value FROM meta WHERE name = 'epoch_unix_s'"))

    def last_at(self) -> float:
        """Returns the latest instant in the journal."""
        return float(self._value("SELECT at FROM journal ORDER BY seq DESC LIMIT 1") or 0.0)

    def absence(self) -> Absence | None:
        """Returns how long no server has noted its clocks here; None: none ever did."""
        last = load_last_alive(self._reader())
        return None if last is None else absence_since(last, self._clocks, read_boot_id())

    def load(self) -> LoadedState:
        """Returns everything that is not over."""
        reader = self._reader()
        return LoadedState(
            tables={row_type: each.load(reader, self._pool_order) for row_type, each in TABLES.items() if each.loaded},
            last_job_id=int(self._value("SELECT last_job_id FROM chain") or 0),
            last_command_id=int(self._value("SELECT value FROM meta WHERE name = 'last_command_id'") or 0),
            last_charge_id=int(self._value("SELECT max(charge_id) FROM charges") or 0),
            last_numbers={row_type: self._last_number(each) for row_type, each in TABLES.items() if each.is_numbered},
            shares_checkpoints=bool(self._value("SELECT shares_folder FROM checkpoint_habit")),
        )

    def journal(self, *, whole: bool = False) -> Iterator[JournalRow]:
        """Returns the journal in order: of the current generation (since the last start), or the whole of it."""
        first = 0 if whole else self._value("SELECT max(seq) FROM journal WHERE kind = 'generation'") or 0
        cursor = self._reader().execute(
            f"SELECT {TABLES[JournalRow].column_list} FROM journal WHERE seq >= ? ORDER BY seq", [first]
        )
        for values in cursor:
            yield JournalRow(*values)

    def job(self, job_id: JobId) -> JobRow | None:
        return self._first(self._select(JobRow, "job_id = ?", job_id))

    def jobs(self, query: JobQuery) -> list[JobRow]:
        where, values = listing_sql(query)
        return self._select(JobRow, where, *values)

    def sweep_states(self, sweeps: Iterable[JobId]) -> dict[JobId, dict[str, int]]:
        """Returns how many jobs of each sweep are in each state."""
        counted = "SELECT state, count(*) FROM jobs WHERE sweep = ? GROUP BY state"
        return {sweep: dict(self._reader().execute(counted, [sweep]).fetchall()) for sweep in sweeps}

    def job_named(self, user: str, name: str) -> JobId | None:
        """Returns the user's newest job of that name; None if there is none."""
        found = self._value("SELECT max(job_id) FROM jobs WHERE user = ? AND name = ?", user, name)
        return None if found is None else JobId(found)

    def spec(self, job_id: JobId) -> SpecRow | None:
        return self._first(self._select(SpecRow, "job_id = ?", job_id))

    def attempts(self, job_id: JobId) -> list[AttemptRow]:
        return self._select(AttemptRow, "job_id = ? ORDER BY attempt", job_id)

    def usage(self, job_ids: Iterable[JobId], at: float) -> list[JobUsage]:
        """Returns accelerator-seconds and USD by job and accelerator type until `at`."""
        wanted = list(job_ids)
        if len(wanted) > _IN_ONE_QUERY:
            return [*self.usage(wanted[:_IN_ONE_QUERY], at), *self.usage(wanted[_IN_ONE_QUERY:], at)]
        marks = ", ".join("?" for _ in wanted)
        cursor = self._reader().execute(
            "SELECT job_id, accelerator, sum(accelerators * max(0, coalesce(ended_at, ?) - leased_at)),"
            " sum(usd + CASE WHEN ended_at IS NULL THEN usd_per_h * max(0, ? - usd_since_at) / 3600 ELSE 0 END),"
            " sum(coalesce(ended_at - started_at, 0))"
            f" FROM attempts WHERE job_id IN ({marks}) GROUP BY job_id, accelerator",
            [at, at, *wanted],
        )
        return [JobUsage(*values) for values in cursor]

    def charges(self, job_id: JobId | None = None) -> list[ChargeRow]:
        """Returns the charges of one job, or of all, in order."""
        where, values = ("TRUE", ()) if job_id is None else ("job_id = ?", (job_id,))
        return self._select(ChargeRow, f"{where} ORDER BY charge_id", *values)

    def spent(self) -> dict[tuple[str, str], float]:
        """Returns USD by (project, month), as budgets count it; project "" is everything."""
        cursor = self._reader().execute(
            "SELECT project, month, sum(usd) FROM charges WHERE kind = 'use' GROUP BY 1, 2 UNION ALL"
            " SELECT '', month, sum(usd) FROM charges WHERE kind = 'machine' OR market = 'owned' GROUP BY 1, 2"
        )
        return {(project, month): usd for project, month, usd in cursor}

    def spent_by_user(self) -> dict[tuple[str, str, str], float]:
        """Returns USD by (project, user, month), as budgets of users count it."""
        sql = "SELECT project, user, month, sum(usd) FROM charges WHERE kind = 'use' GROUP BY 1, 2, 3"
        return {(project, user, month): usd for project, user, month, usd in self._reader().execute(sql)}

    def use_by_day(self, epoch_unix_s: float) -> Iterator[tuple[Any, ...]]:
        """Returns use as budgets count it, days summed: the rows of `usage_sums.read_use_by_day`."""
        return read_use_by_day(self._reader(), epoch_unix_s)

    def money(self, query: MoneyQuery, open_keys: Iterable[str] = ()) -> list[MoneySum]:
        """Returns sums of written charges, apart for each of the most expensive keys and of `open_keys`."""
        return sum_money(self._reader(), query, open_keys)

    def price_hours(self, query: PriceQuery) -> list[PriceRow]:
        """Returns what one more accelerator of each pool was worth, hour by hour, in order of time."""
        where = "since_at > ? AND until_at > ?" + (" AND pool_id = ?" if query.pool_id else "")
        values = [query.since_at - 3600.0, query.since_at, *([query.pool_id] if query.pool_id else []), query.limit]
        return self._select(PriceRow, f"{where} ORDER BY since_at DESC, pool_id LIMIT ?", *values)[::-1]

    def attempt_uses(self, query: UsageQuery) -> list[AttemptUse]:
        """Returns what attempts held of each accelerator type, as far as it is in the ledger."""
        return sum_usage(self._reader(), query)

    def held(self, query: HeldQuery) -> list[HeldRow]:
        """Returns what projects held of accelerators when, as far as it is in the ledger."""
        return list(read_held(self._reader(), query))

    def node_attempts(self, node_id: NodeId, projects: tuple[str, ...] | None, limit: int) -> list[NodeAttemptRow]:
        """Returns the newest attempts that were on a machine, newest first, of some projects or (None) of all."""
        return read_node_attempts(self._reader(), node_id, projects, limit)

    def past(self, query: PastQuery) -> PastRows:
        """Returns the jobs, attempts, machines and costs of a period."""
        return read_past(self._reader(), query)

    def attempt_was_on(self, job_id: JobId, attempt: int, node_id: NodeId) -> bool:
        sql = "SELECT 1 FROM parts WHERE job_id = ? AND attempt = ? AND node_id = ?"
        return self._value(sql, job_id, attempt, node_id) is not None

    def checkpoint(self, job_id: JobId) -> CheckpointRow | None:
        """Returns the newest checkpoint that was recorded of a job; None if there is none."""
        newest = f"job_id = ? AND lost = 0 ORDER BY {LATEST_FIRST} LIMIT 1"
        return self._first(self._select(CheckpointRow, newest, job_id))

    def checkpoint_content(self, ended_since_at: float) -> list[str]:
        """Returns the names of checkpoint content that may be needed.

        That is of the newest two checkpoints of a job that is not over, and of the newest one of a job that ended at
        this instant or later.
        """
        newest = f"row_number() OVER (PARTITION BY job_id ORDER BY {LATEST_FIRST}) AS newest"
        known = f"SELECT content, ended_at, {newest} FROM checkpoints JOIN jobs USING (job_id) WHERE lost = 0"
        kept = "CASE WHEN ended_at IS NULL THEN newest <= 2 ELSE newest = 1 AND ended_at >= ? END"
        sql = f"SELECT content FROM ({known}) AS known WHERE content != '' AND {kept}"
        rows = self._reader().execute(sql, [ended_since_at])
        return [str(content) for (content,) in rows]

    def superseded_checkpoints(self, within_s: float) -> list[tuple[str, str]]:
        """Returns content and store (`CheckpointRow`) of what newer checkpoints superseded, in the jobs that recorded
        one in the last `within_s` before the newest of all.
        """
        newest = f"row_number() OVER (PARTITION BY job_id ORDER BY {LATEST_FIRST}) AS newest"
        late = "SELECT job_id FROM checkpoints WHERE recorded_at >= (SELECT max(recorded_at) FROM checkpoints) - ?"
        known = f"SELECT content, store, {newest} FROM checkpoints WHERE job_id IN ({late})"
        sql = f"SELECT content, store FROM ({known}) AS known WHERE content != '' AND newest > 2"
        return [(str(content), str(store)) for content, store in self._reader().execute(sql, [within_s])]

    def jobs_over(self, job_ids: Iterable[int], before_at: float) -> list[int]:
        """Returns those of these jobs that ended before an instant, or whose rows have been deleted since."""
        rows = self._reader().execute("SELECT job_id FROM jobs WHERE ended_at IS NULL OR ended_at >= ?", [before_at])
        kept, last = {row[0] for row in rows}, int(self._value("SELECT last_job_id FROM chain") or 0)
        return [job_id for job_id in job_ids if job_id <= last and job_id not in kept]

    def expired_checkpoint_places(self, ended_since_at: float, ended_before_at: float) -> list[str]:
        """Returns the places in object stores of jobs that ended between two instants."""
        ended = "FROM checkpoints JOIN jobs USING (job_id) WHERE store != '' AND ended_at BETWEEN ? AND ?"
        rows = self._reader().execute(f"SELECT DISTINCT store {ended}", [ended_since_at, ended_before_at])
        return [str(place) for (place,) in rows]

    def outputs(self, job_id: JobId) -> list[OutputsRow]:
        """Returns the newest results of each machine of the gang, by node rank."""
        return self._select(OutputsRow, "job_id = ? ORDER BY node_rank", job_id)

    def users_of_jobs(self) -> dict[int, str]:
        """Returns the user of every job."""
        return {row[0]: row[1] for row in self._reader().execute("SELECT job_id, user FROM jobs")}

    def ended_jobs_of_users(self) -> dict[str, int]:
        """Returns how many jobs that ended are kept of each user."""
        sql = "SELECT user, count(*) FROM jobs WHERE ended_at IS NOT NULL GROUP BY user"
        return dict(self._reader().execute(sql).fetchall())

    def output_trees(self) -> list[str]:
        """Returns the trees of all results that are kept."""
        return [row[0] for row in self._reader().execute("SELECT DISTINCT tree FROM outputs WHERE tree != ''")]

    def policies(self) -> list[PolicyRow]:
        """Returns the newest hundred versions of the policy, newest first."""
        return self._select(PolicyRow, "TRUE ORDER BY version DESC LIMIT 100")

    def answer(self, user: str, key: str) -> AnswerRow | None:
        return self._first(self._select(AnswerRow, "user = ? AND key = ?", user, key))

    def tokens(self) -> list[TokenRow]:
        return self._select(TokenRow, "TRUE ORDER BY created_at")

    def audit(self, query: AuditQuery) -> list[AuditRow]:
        """Returns the audit rows that match, newest first."""
        clauses, values = ["at >= ?"], [query.since_at, *([query.user] if query.user else []), *(query.projects or ())]
        if query.user:
            clauses.append("user = ?")
        if query.projects is not None:
            clauses.append(f"project IN ({', '.join('?' for _ in query.projects)})")
        if not query.of_no_project:
            clauses.append("project <> ''")
        where = " AND ".join(clauses)
        return self._select(AuditRow, f"{where} ORDER BY seq DESC LIMIT ?", *values, query.limit)

    # ---------------------------------------------------------------- plumbing

    def _select(self, row_type: type[Row], where: str, *values: Any) -> list[Row]:
        return TABLES[row_type].select(self._reader(), where, *values)

    def _value(self, sql: str, *values: Any) -> Any:
        row = self._reader().execute(sql, values).fetchone()
        return None if row is None else row[0]

    @staticmethod
    def _first(rows: list[Row]) -> Row | None:
        return rows[0] if rows else None


def write_rows(connection: SqlConnection, batch: WriteBatch) -> None:
    """Write and delete the rows of a batch, journal rows included."""
    for row_type, rows in batch.written.items():
        TABLES[row_type].write(connection, rows)
    if batch.last_command_id:
        connection.execute(META_SQL, ["last_command_id", batch.last_command_id])
    for row_type, before_at in batch.expired.items():
        if before_at > 0:
            TABLES[row_type].expire(connection, before_at)
    for row_type, keys in batch.deleted.items():
        TABLES[row_type].delete(connection, keys)


# ------------------------------------------------------------------------------------------ sums of money


#: `dearest` are the keys that cost most, counted as `spending_report` counts.
_SUMS = """
WITH keys AS MATERIALIZED (
    SELECT {key} AS name, sum(CASE WHEN {paid} THEN usd ELSE 0 END) AS paid_usd
    FROM charges WHERE {where} AND {counted} GROUP BY 1),
named AS MATERIALIZED (
    SELECT name FROM (SELECT name FROM keys ORDER BY paid_usd DESC, name LIMIT ?) AS dearest {also}),
others AS (SELECT (SELECT count(*) FROM keys) - (SELECT count(*) FROM keys WHERE name IN (SELECT name FROM named)))
SELECT CAST({key} AS TEXT), kind, market = 'owned', {sums}, 0
    FROM charges WHERE {where} AND {key} IN (SELECT name FROM named) GROUP BY {key}, 2, 3
UNION ALL
SELECT '', kind, market = 'owned', {sums}, (SELECT * FROM others)
    FROM charges WHERE {where} AND {key} NOT IN (SELECT name FROM named) GROUP BY 2, 3
"""
_SUMMED = "sum(usd), sum(on_demand_usd), sum(accelerators * (until_at - since_at))"
#: Which sums are shown under a key, and which of them it pays: use of rented machines is in the machines' bill already.
_OF_PLACES = {"counted": "TRUE", "paid": "kind = 'machine' OR market = 'owned'"}
_OF_PEOPLE = {"counted": "kind = 'use'", "paid": "TRUE"}


def sum_money(connection: SqlConnection, query: MoneyQuery, open_keys: Iterable[str] = ()) -> list[MoneySum]:
    """Returns sums of written charges, apart for each of the `query.limit` most expensive keys and of `open_keys`."""
    assert query.by in MONEY_KEYS, query.by
    clauses: list[str] = ["charge_id < ?"]
    values: list[Any] = [query.before_id]
    for column, wanted in (("month", query.month), ("project", query.project)):
        if wanted:
            clauses.append(f"{column} = ?")
            values.append(wanted)
    if query.projects is not None:
        clauses.append(f"kind = 'use' AND project IN ({', '.join('?' for _ in query.projects)})")
        values.extend(query.projects)
    owned_by = _OF_PLACES if MONEY_KEYS[query.by] in ("pool_id", "month") else _OF_PEOPLE
    key, where = MONEY_KEYS[query.by], " AND ".join(clauses)
    named = [int(each) if query.by == "job" else each for each in dict.fromkeys(open_keys)]
    also, also_values = "", []
    if named:
        also = f"UNION SELECT {key} FROM charges WHERE {where} AND {key} IN ({', '.join('?' for _ in named)})"
        also_values = [*values, *named]
    sql = _SUMS.format(key=key, where=where, sums=_SUMMED, also=also, **owned_by)
    cursor = connection.execute(sql, [*values, query.limit, *also_values, *values, *values])
    return [MoneySum(row[0], ChargeKind(row[1]), bool(row[2]), *row[3:]) for row in cursor]
