"""What the tables have of a period, for a report on it: jobs, attempts, machines, and what they cost.

Rows are read as tuples and passed on as JSON, some hundred at a time: they go to another process, and the encoding must
not hold up this one for longer than one piece.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from scheduler.live.store.sql_dialect import SqlConnection, SqlCursor

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
