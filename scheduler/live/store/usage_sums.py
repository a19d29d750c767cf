"""What attempts held of accelerators, from the ledger of money: by attempt and type, and by project in steps of time.

The ledger outlives the jobs' own rows, and has a row for every attempt, price and month. Sums have one row for each
attempt and accelerator type. Budgets count sums by day, and credits, which are rows of their own: both are read when a
server starts. A page draws equal steps of time as a line. What spans several days or steps is returned as it is, for
the caller to cut.

What the tables have of a period is read for a report on it: jobs, attempts, machines, and what they cost. These rows
are tuples that are passed on as JSON, some hundred at a time: they go to another process, and the encoding must not
hold up this one for longer than one piece.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from scheduler.live.store.sql_dialect import SqlConnection, SqlCursor
from scheduler.live.store.table_rows import ChargeRow
from walras.cluster import NodeId
from walras.job_request import JobId


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which use to sum. Empty fields do not filter; `projects` None: of all."""

    since_at: float
    #: The month of `since_at`, such as 2026-11; earlier months are not read.
    since_month: str
    #: Only charges with a smaller number.
    before_id: int
    accelerator: str = ""
    projects: tuple[str, ...] | None = None
    #: The most sums; a caller who asks for one more than it can use learns that there are too many.
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class AttemptUse:
    """What one attempt held of one accelerator type since an instant, as far as it is in the sums."""

    job_id: JobId
    attempt: int
    accelerator: str
    project: str
    user: str
    since_at: float
    until_at: float
    accelerator_s: float
    usd: float
    on_demand_usd: float
    #: None if the job's row is not kept any more.
    submitted_at: float | None


_SUMS = """
SELECT job_id, attempt, accelerator, project, user, min(from_at), max(until_at),
    sum(accelerators * (until_at - from_at)), sum(usd * (until_at - from_at) / (until_at - since_at)),
    sum(on_demand_usd * (until_at - from_at) / (until_at - since_at)),
    (SELECT submitted_at FROM jobs WHERE jobs.job_id = used.job_id)
FROM (SELECT *, max(since_at, ?) AS from_at FROM charges WHERE {where}) AS used
GROUP BY job_id, attempt, accelerator, project, user ORDER BY job_id, attempt LIMIT ?
"""


def _chosen(query: "UsageQuery | HeldQuery") -> tuple[list[str], list[Any]]:
    """Returns the conditions on charges of use that a query states, and the values in them and in `from_at`."""
    clauses = ["kind = 'use'", "until_at > ?", "until_at > since_at", "month >= ?", "charge_id < ?"]
    values: list[Any] = [query.since_at, query.since_at, query.since_month, query.before_id]
    if query.projects is not None:
        clauses.append(f"project IN ({', '.join('?' for _ in query.projects)})")
        values.extend(query.projects)
    return clauses, values


def sum_usage(connection: SqlConnection, query: UsageQuery) -> list[AttemptUse]:
    """Returns sums of written charges; of a charge that began before `since_at`, only the part after it counts."""
    clauses, values = _chosen(query)
    if query.accelerator:
        clauses.append("accelerator = ?")
        values.append(query.accelerator)
    cursor = connection.execute(_SUMS.format(where=" AND ".join(clauses)), [*values, query.limit])
    return [AttemptUse(*row) for row in cursor]


def use_of_charge(charge: ChargeRow, query: UsageQuery, submitted_at: float | None) -> AttemptUse | None:
    """Returns a charge that is not written yet, as the store would sum it; None if the query does not ask for it."""
    from_at = max(charge.since_at, query.since_at)
    if charge.job_id == 0 or charge.until_at <= from_at or query.accelerator not in ("", charge.accelerator):
        return None
    if query.projects is not None and charge.project not in query.projects:
        return None
    held_s = charge.until_at - from_at
    part = held_s / (charge.until_at - charge.since_at)
    return AttemptUse(
        charge.job_id, charge.attempt, charge.accelerator, charge.project, charge.user, from_at, charge.until_at,
        charge.accelerators * held_s, charge.usd * part, charge.on_demand_usd * part, submitted_at,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ for budgets


#: The day (UTC) of an instant, cut to whole seconds.
_DAY = "CAST({at} + ? AS BIGINT) / 86400"


def read_use_by_day(connection: SqlConnection, epoch_unix_s: float) -> Iterator[tuple[Any, ...]]:
    """Yields (project, user, since, until, USD, accelerator-seconds, unit-seconds), times in Unix seconds.

    Charges within one day are summed; charges over midnight are returned as they are.
    """
    begun, ended = _DAY.format(at="since_at"), _DAY.format(at="until_at")
    what = "accelerators * (until_at - since_at), units * (until_at - since_at)"
    sums = "sum(usd), sum(accelerators * (until_at - since_at)), sum(units * (until_at - since_at))"
    within = (
        f"SELECT project, user, min(since_at) + ?, min(since_at) + ?, {sums} FROM charges"
        f" WHERE kind = 'use' AND {begun} = {ended} GROUP BY project, user, {begun}"
    )
    beyond = (
        f"SELECT project, user, since_at + ?, until_at + ?, usd, {what} FROM charges"
        f" WHERE kind = 'use' AND {begun} <> {ended}"
    )
    yield from connection.execute(within, [epoch_unix_s] * 5)
    yield from connection.execute(beyond, [epoch_unix_s] * 4)


# ------------------------------------------------------------------------------------------ who held what when


@dataclass(frozen=True, slots=True)
class HeldQuery:
    """Which use to return. `projects` None: of all."""

    since_at: float
    #: The month of `since_at`, such as 2026-11; earlier months are not read.
    since_month: str
    #: Only charges with a smaller number.
    before_id: int
    #: Length of a step, whole seconds.
    step_s: int
    projects: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class HeldRow:
    """What one project held between two instants, which lie within one step or are those of one charge."""

    project: str
    since_at: float
    until_at: float
    accelerator_s: float
    #: The same in accelerators of the fleet's average speed for the jobs.
    unit_s: float


@dataclass(frozen=True, slots=True)
class NodeAttemptRow:
    """One attempt that had a part of its gang on a machine."""

    job_id: JobId
    attempt: int
    name: str
    project: str
    user: str
    state: str
    reason: str | None
    #: Accelerators of the whole gang.
    accelerators: int
    leased_at: float
    started_at: float | None
    ended_at: float | None


_STEP = "CAST({at} - ? AS BIGINT) / ?"


def read_held(connection: SqlConnection, query: HeldQuery) -> Iterator[HeldRow]:
    """Yields what projects held since the query's instant, as far as it is in the ledger."""
    clauses, values = _chosen(query)
    rows = f"(SELECT *, max(since_at, ?) AS from_at FROM charges WHERE {' AND '.join(clauses)}) AS used"
    first, last = _STEP.format(at="from_at"), _STEP.format(at="until_at")
    step = [query.since_at, query.step_s]
    sums = "sum(accelerators * (until_at - from_at)), sum(units * (until_at - from_at))"
    within = (
        f"SELECT project, min(from_at), max(until_at), {sums} FROM {rows}"
        f" WHERE {first} = {last} GROUP BY project, {first}"
    )
    beyond = (
        "SELECT project, from_at, until_at, accelerators * (until_at - from_at), units * (until_at - from_at)"
        f" FROM {rows} WHERE {first} <> {last}"
    )
    for found in connection.execute(within, [*values, *step, *step, *step]):
        yield HeldRow(*found)
    for found in connection.execute(beyond, [*values, *step, *step]):
        yield HeldRow(*found)


def read_node_attempts(
    connection: SqlConnection, node_id: NodeId, projects: tuple[str, ...] | None, limit: int
) -> list[NodeAttemptRow]:
    """Returns the newest attempts that were on a machine, newest first, of some projects or (None) of all."""
    clause, values = "parts.node_id = ?", list[Any]([node_id])
    if projects is not None:
        clause += f" AND jobs.project IN ({', '.join('?' for _ in projects)})"
        values.extend(projects)
    sql = (
        "SELECT jobs.job_id, attempts.attempt, jobs.name, jobs.project, jobs.user, attempts.state, attempts.reason,"
        " attempts.accelerators, attempts.leased_at, attempts.started_at, attempts.ended_at"
        " FROM parts JOIN attempts ON attempts.job_id = parts.job_id AND attempts.attempt = parts.attempt"
        f" JOIN jobs ON jobs.job_id = parts.job_id WHERE {clause} ORDER BY attempts.leased_at DESC, jobs.job_id LIMIT ?"
    )
    return [NodeAttemptRow(*row) for row in connection.execute(sql, [*values, limit])]


# ------------------------------------------------------------------------------------------ rows for reports


#: How many rows are encoded at once.
_ROWS_IN_A_PIECE = 500


@dataclass(frozen=True, slots=True)
class PastQuery:
    """Which period, and whose jobs; `projects` None: of all."""

    since_at: float
    until_at: float
    #: The month of `since_at`, such as 2026-11.
    since_month: str
    #: Only charges with a smaller number.
    before_charge_id: int
    projects: tuple[str, ...] | None = None
    #: The most jobs.
    limit: int = 1000


class PastJobRow(NamedTuple):
    """A job that was there within the period; `request` is the core's view if it came and succeeded within it."""

    job_id: int
    project: str
    kind: str
    state: str
    submitted_at: float
    ended_at: float | None
    steps: float
    steps_per_s: float | None
    request: str | None


class PastAttemptRow(NamedTuple):
    """An attempt of any user within the period; `reached` are its steps if it was interrupted and they are known."""

    job_id: int
    attempt: int
    state: str
    accelerator: str
    accelerators: int
    leased_at: float
    started_at: float | None
    ended_at: float | None
    placement: str
    checkpoint_step: float | None
    reached: float | None


class PastSpeedRow(NamedTuple):
    """The newest speed that was measured of a gang."""

    kind: str
    accelerator: str
    accelerators: int
    steps_per_s: float


class PastMachineRow(NamedTuple):
    """An owned machine, in whatever state it is now."""

    pool_id: str
    state: str
    joined_at: float


class PastRentRow(NamedTuple):
    """A period for which a rented machine was paid for."""

    accelerator: str
    accelerators: float
    since_at: float
    until_at: float


class PastUseRow(NamedTuple):
    """What a project held of an accelerator type, and what that cost."""

    project: str
    accelerator: str
    accelerator_s: float
    usd: float
    on_demand_usd: float


@dataclass(frozen=True, slots=True)
class PastRows:
    """The rows of each kind, as JSON texts that are lists of rows."""

    jobs: list[str]
    attempts: list[str]
    speeds: list[str]
    machines: list[str]
    rents: list[str]
    uses: list[str]
    job_count: int


INTERRUPTED = ("PREEMPTED", "NODE_LOST", "LEASE_EXPIRED")

_JOBS = """
SELECT job_id, project, kind, state, submitted_at, ended_at, steps, steps_per_s,
    CASE WHEN state = 'SUCCEEDED' AND submitted_at >= ?1 THEN
        (SELECT request FROM specs WHERE specs.job_id = jobs.job_id) END
FROM jobs WHERE submitted_at <= ?2 AND (ended_at IS NULL OR ended_at > ?1) {also} ORDER BY job_id LIMIT ?3
"""
_ATTEMPTS = f"""
SELECT job_id, attempt, state, accelerator, accelerators, leased_at, started_at, ended_at, placement, checkpoint_step,
    CASE WHEN state IN {INTERRUPTED} THEN (SELECT max(steps) FROM parts
        WHERE parts.job_id = attempts.job_id AND parts.attempt = attempts.attempt) END
FROM attempts WHERE leased_at <= ?2 AND (ended_at IS NULL OR ended_at > ?1) ORDER BY job_id, attempt
"""
_RENTS = """
SELECT accelerator, accelerators, since_at, until_at FROM charges
WHERE kind = 'machine' AND until_at > ?1 AND until_at > since_at AND month >= ?2 AND charge_id < ?3
"""
_USES = """
SELECT project, accelerator, sum(accelerators * (until_at - from_at)),
    sum(usd * (until_at - from_at) / (until_at - since_at)),
    sum(on_demand_usd * (until_at - from_at) / (until_at - since_at))
FROM (SELECT *, max(since_at, ?1) AS from_at FROM charges
    WHERE kind = 'use' AND until_at > ?1 AND until_at > since_at AND month >= ?2 AND charge_id < ?3 {also}) AS used
GROUP BY project, accelerator
"""


def read_past(connection: SqlConnection, query: PastQuery) -> PastRows:
    """Returns rows of the query's projects for jobs and uses, and of everybody for attempts and machines."""
    projects = query.projects or ()
    marks = ", ".join(f"?{4 + place}" for place in range(len(projects)))
    also = "" if query.projects is None else f"AND project IN ({marks})"
    counted = [0]

    def pieces(sql: str, *values: Any, counts: bool = False) -> list[str]:
        cursor = connection.execute(sql, values)
        return [json.dumps(rows) for rows in _in_pieces(cursor, counted if counts else [0])]

    window, ledger = (query.since_at, query.until_at), (query.since_at, query.since_month, query.before_charge_id)
    return PastRows(
        jobs=pieces(_JOBS.format(also=also), *window, query.limit, *projects, counts=True),
        attempts=pieces(_ATTEMPTS, *window),
        speeds=pieces("SELECT kind, accelerator, count, steps_per_s FROM speeds"),
        machines=pieces("SELECT pool_id, state, joined_at FROM nodes WHERE rent_token = ''"),
        rents=pieces(_RENTS, *ledger),
        uses=pieces(_USES.format(also=also), *ledger, *projects),
        job_count=counted[0],
    )


def _in_pieces(cursor: SqlCursor, counted: list[int]) -> Iterator[list[Any]]:
    while rows := cursor.fetchmany(_ROWS_IN_A_PIECE):
        counted[0] += len(rows)
        yield rows
