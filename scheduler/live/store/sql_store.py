"""The queries that the stores of both databases share; each adds its connections and what it writes differently.

By job, the ledger of money has after years as many keys as there were jobs. So in sums of it only the most expensive
keys get sums of their own, and those that the caller names because they have open charges; the others are one sum.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from scheduler.core.state.throughput import KINDS_MOST, ScoredBelief
from scheduler.live.store.job_listing import listing_sql
from scheduler.live.store.last_alive import Absence, absence_since, load_last_alive, read_boot_id
from scheduler.live.store.price_hours import PriceQuery, PriceRow, delete_price_hours, read_price_hours
from scheduler.live.store.report_rows import PastQuery, PastRows, read_past
from scheduler.live.store.sql_dialect import SqlConnection
from scheduler.live.store.store_interface import (
    MONEY_KEYS,
    PAST_RENTS_MOST,
    AuditQuery,
    JobQuery,
    JobUsage,
    LoadedState,
    MoneyQuery,
    MoneySum,
    WriteBatch,
)
from scheduler.live.store.table_mapping import ROW_VALUES, TABLES, build_row, column_list
from scheduler.live.store.table_rows import (
    AnswerRow,
    AttemptRow,
    AuditRow,
    BookingRow,
    ChannelRow,
    ChargeKind,
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
from scheduler.live.store.usage_sums import (
    AttemptUse,
    CreditRow,
    HeldQuery,
    HeldRow,
    NodeAttemptRow,
    UsageQuery,
    read_held,
    read_node_attempts,
    read_use_by_day,
    sum_usage,
)
from walras.clocks import Clocks
from walras.cluster import NodeId
from walras.job_request import JobId
from walras.wire import ClusterIdentity

Row = TypeVar("Row")
#: A statement takes a limited number of values, so longer lists are read in parts.
_IN_ONE_QUERY = 10_000
#: Requests for machines of which the released ones are loaded too.
_RECENT_RENTS = 100


class SqlStore(ABC):
    """The reading half of `Store`, and the statements of a commit."""

    #: The clocks of this machine, compared with those of the last note to find how long the server was away.
    _clocks: Clocks
    #: The column that keeps the order in which pools were added.
    _pool_order: ClassVar[str]

    @abstractmethod
    def _reader(self) -> SqlConnection:
        """Returns this thread's own connection for reading."""

    @abstractmethod
    def _last_number(self, table: str) -> int:
        """Returns the highest number that was ever given to a row of a table whose numbers are never used again."""

    def identity(self) -> ClusterIdentity:
        cluster_id, incarnation = next(
            self._reader().execute("SELECT cluster_id, incarnation FROM incarnations ORDER BY seq DESC LIMIT 1")
        )
        return ClusterIdentity(cluster_id=cluster_id, incarnation=incarnation)

    def former_incarnations(self) -> tuple[str, ...]:
        cursor = self._reader().execute("SELECT incarnation FROM incarnations ORDER BY seq")
        return tuple(str(incarnation) for (incarnation,) in cursor)[:-1]

    def epoch_unix_s(self) -> float:
        return float(self._value("SELECT value FROM meta WHERE name = 'epoch_unix_s'"))

    def last_at(self) -> float:
        return float(self._value("SELECT at FROM journal ORDER BY seq DESC LIMIT 1") or 0.0)

    def absence(self) -> Absence | None:
        last = load_last_alive(self._reader())
        return None if last is None else absence_since(last, self._clocks, read_boot_id())

    def load(self) -> LoadedState:
        live = "job_id IN (SELECT job_id FROM attempts WHERE ended_at IS NULL)"
        # A machine that was released lately may still be listed by its provider, and is no unknown one then.
        recent = f"SELECT token FROM rents ORDER BY asked_at DESC LIMIT {_RECENT_RENTS}"
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
            nodes=tuple(self._select("nodes", NodeRow, f"state NOT IN ('released') OR rent_token IN ({recent})")),
            outbox=tuple(self._select("outbox", OutboxRow, "TRUE ORDER BY command_id")),
            checkpoints=tuple(
                self._select(
                    "checkpoints",
                    CheckpointRow,
                    "lost = 0 AND job_id IN (SELECT job_id FROM jobs WHERE ended_at IS NULL)"
                    " ORDER BY job_id, attempt, step",
                )
            ),
            rents=tuple(self._select("rents", RentRow, "state = 'asked'")),
            past_rents=tuple(
                self._select("rents", RentRow, f"state != 'asked' ORDER BY asked_at DESC LIMIT {PAST_RENTS_MOST}")
            )[::-1],
            pools=tuple(self._select("pools", PoolRow, f"TRUE ORDER BY {self._pool_order}")),
            speeds=tuple(self._select("speeds", SpeedRow, "TRUE")),
            scores=tuple(self._select("scores", ScoredBelief, "TRUE")),
            facts=tuple(self._select("facts", FactsRow, f"TRUE ORDER BY told_at DESC LIMIT {2 * KINDS_MOST}"))[::-1],
            networks=tuple(self._select("networks", NetworkRow, "TRUE ORDER BY pool_id")),
            restart_costs=tuple(self._select("restart_costs", RestartCostRow, "TRUE")),
            people=tuple(self._select("people", PeopleRow, "TRUE ORDER BY kind, name")),
            bookings=tuple(self._select("bookings", BookingRow, "TRUE ORDER BY booking_id")),
            credits=tuple(self._select("credits", CreditRow, "TRUE ORDER BY credit_id")),
            channels=tuple(self._select("channels", ChannelRow, "TRUE ORDER BY channel_id")),
            notifications=tuple(self._select("notifications", NotificationRow, "TRUE ORDER BY seq")),
            told=tuple(self._select("told", ToldRow, "TRUE")),
            core_state=self._first(self._select("core_state", CoreStateRow, "TRUE")),
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
            "SELECT job_id, accelerator, sum(accelerators * max(0, coalesce(ended_at, ?) - leased_at)),"
            " sum(usd + CASE WHEN ended_at IS NULL THEN usd_per_h * max(0, ? - usd_since_at) / 3600 ELSE 0 END)"
            f" FROM attempts WHERE job_id IN ({marks}) GROUP BY job_id, accelerator",
            [at, at, *wanted],
        )
        return [JobUsage(*values) for values in cursor]

    def charges(self, job_id: JobId | None = None) -> list[ChargeRow]:
        where, values = ("TRUE", ()) if job_id is None else ("job_id = ?", (job_id,))
        return self._select("charges", ChargeRow, f"{where} ORDER BY charge_id", *values)

    def spent(self) -> dict[tuple[str, str], float]:
        return sum_spent(self._reader())

    def spent_by_user(self) -> dict[tuple[str, str, str], float]:
        return sum_spent_by_user(self._reader())

    def use_by_day(self, epoch_unix_s: float) -> Iterator[tuple[Any, ...]]:
        return read_use_by_day(self._reader(), epoch_unix_s)

    def money(self, query: MoneyQuery, open_keys: Iterable[str] = ()) -> list[MoneySum]:
        return sum_money(self._reader(), query, open_keys)

    def price_hours(self, query: PriceQuery) -> list[PriceRow]:
        return read_price_hours(self._reader(), query)

    def attempt_uses(self, query: UsageQuery) -> list[AttemptUse]:
        return sum_usage(self._reader(), query)

    def held(self, query: HeldQuery) -> list[HeldRow]:
        return list(read_held(self._reader(), query))

    def node_attempts(self, node_id: NodeId, projects: tuple[str, ...] | None, limit: int) -> list[NodeAttemptRow]:
        return read_node_attempts(self._reader(), node_id, projects, limit)

    def past(self, query: PastQuery) -> PastRows:
        return read_past(self._reader(), query)

    def attempt_was_on(self, job_id: JobId, attempt: int, node_id: NodeId) -> bool:
        sql = "SELECT 1 FROM parts WHERE job_id = ? AND attempt = ? AND node_id = ?"
        return self._value(sql, job_id, attempt, node_id) is not None

    def checkpoint(self, job_id: JobId) -> CheckpointRow | None:
        newest = "job_id = ? AND lost = 0 ORDER BY attempt DESC, step DESC LIMIT 1"
        return self._first(self._select("checkpoints", CheckpointRow, newest, job_id))

    def checkpoint_content(self, ended_since_at: float) -> list[str]:
        newest = "row_number() OVER (PARTITION BY job_id ORDER BY attempt DESC, step DESC) AS newest"
        known = f"SELECT content, ended_at, {newest} FROM checkpoints JOIN jobs USING (job_id) WHERE lost = 0"
        kept = "CASE WHEN ended_at IS NULL THEN newest <= 2 ELSE newest = 1 AND ended_at >= ? END"
        sql = f"SELECT content FROM ({known}) AS known WHERE content != '' AND {kept}"
        rows = self._reader().execute(sql, [ended_since_at])
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
        return self._select("policies", PolicyRow, "TRUE ORDER BY version DESC LIMIT ?", limit)

    def answer(self, user: str, key: str) -> AnswerRow | None:
        return self._first(self._select("answers", AnswerRow, "user = ? AND key = ?", user, key))

    def token(self, sha256: str) -> TokenRow | None:
        return self._first(self._select("tokens", TokenRow, "sha256 = ?", sha256))

    def tokens(self) -> list[TokenRow]:
        return self._select("tokens", TokenRow, "TRUE ORDER BY created_at")

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

    def _select(self, table: str, row_type: type[Row], where: str, *values: Any) -> list[Row]:
        cursor = self._reader().execute(f"SELECT {column_list(row_type)} FROM {table} WHERE {where}", values)
        return [build_row(row_type, row) for row in cursor]

    def _value(self, sql: str, *values: Any) -> Any:
        row = self._reader().execute(sql, values).fetchone()
        return None if row is None else row[0]

    @staticmethod
    def _first(rows: list[Row]) -> Row | None:
        return rows[0] if rows else None


def write_rows(connection: SqlConnection, batch: WriteBatch, replace_sql: Mapping[str, str], meta_sql: str) -> None:
    """Write and delete the rows of a batch, journal rows included; `meta_sql` writes a named value."""
    for table, _ in TABLES:
        rows = getattr(batch, table)
        if rows:
            connection.executemany(replace_sql[table], map(ROW_VALUES[table], rows))
    if batch.last_command_id:
        connection.execute(meta_sql, ["last_command_id", batch.last_command_id])
    if batch.answers_until > 0:
        connection.execute("DELETE FROM answers WHERE at < ?", [batch.answers_until])
    if batch.price_hours_until > 0:
        delete_price_hours(connection, batch.price_hours_until)
    for table, key, ended in batch.deletions():
        if ended:
            connection.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(each,) for each in ended])


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


def sum_spent_by_user(connection: SqlConnection) -> dict[tuple[str, str, str], float]:
    """Returns USD by (project, user, month), which budgets of users count."""
    cursor = connection.execute(
        "SELECT project, user, month, sum(usd) FROM charges WHERE kind = 'use' GROUP BY 1, 2, 3"
    )
    return {(project, user, month): usd for project, user, month, usd in cursor}


def sum_spent(connection: SqlConnection) -> dict[tuple[str, str], float]:
    """Returns USD by (project, month), and by month in all under project "", which budgets count."""
    cursor = connection.execute(
        "SELECT project, month, sum(usd) FROM charges WHERE kind = 'use' GROUP BY 1, 2 UNION ALL"
        " SELECT '', month, sum(usd) FROM charges WHERE kind = 'machine' OR market = 'owned' GROUP BY 1, 2"
    )
    return {(project, month): usd for project, month, usd in cursor}
