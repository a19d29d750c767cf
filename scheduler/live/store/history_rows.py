"""Who held accelerators when: projects in equal steps of time, from the ledger; a machine attempt by attempt.

A page draws the steps as a line. The ledger has a row for every attempt, price and month; rows within one step are
summed, and rows over several steps are returned as they are, for the caller to cut.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scheduler.live.store.sql_dialect import SqlConnection
from walras.cluster import NodeId
from walras.job_request import JobId


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
    clauses = ["kind = 'use'", "until_at > ?", "until_at > since_at", "month >= ?", "charge_id < ?"]
    values: list[Any] = [query.since_at, query.since_at, query.since_month, query.before_id]
    if query.projects is not None:
        clauses.append(f"project IN ({', '.join('?' for _ in query.projects)})")
        values.extend(query.projects)
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
