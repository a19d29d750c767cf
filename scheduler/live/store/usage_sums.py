"""What attempts held of accelerators, from the ledger of money: one sum for each attempt and accelerator type.

The ledger outlives the jobs' own rows, and has a row for every price and month, which are summed here. Budgets count
sums by day, and credits, which are rows of their own: both are read when a server starts. A charge over midnight is
returned as it is, for the caller to cut.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scheduler.live.store.sql_dialect import SqlConnection
from scheduler.live.store.table_rows import ChargeRow
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


def sum_usage(connection: SqlConnection, query: UsageQuery) -> list[AttemptUse]:
    """Returns sums of written charges; of a charge that began before `since_at`, only the part after it counts."""
    clauses = ["kind = 'use'", "until_at > ?", "until_at > since_at", "month >= ?", "charge_id < ?"]
    values: list[Any] = [query.since_at, query.since_at, query.since_month, query.before_id]
    if query.accelerator:
        clauses.append("accelerator = ?")
        values.append(query.accelerator)
    if query.projects is not None:
        clauses.append(f"project IN ({', '.join('?' for _ in query.projects)})")
        values.extend(query.projects)
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


@dataclass(frozen=True, slots=True)
class CreditRow:
    """An amount that was added to a budget: written once, never changed."""

    credit_id: int
    at: float
    #: Whose budget, as the rules name it; `team` is a group of users.
    project: str
    user: str
    team: str
    unit: str
    amount: float
    created_by: str
    reason: str


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
