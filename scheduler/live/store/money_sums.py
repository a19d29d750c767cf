"""Sums over the ledger of money, in SQL: by project, user, job, pool or month, with the most expensive keys apart.

By job, a ledger of years has as many keys as there were jobs. So only the most expensive keys get sums of their own,
and those that the caller names because they have open charges; the others are one sum.
"""

from collections.abc import Iterable
from typing import Any

from scheduler.live.store.sql_dialect import SqlConnection
from scheduler.live.store.store_interface import MONEY_KEYS, MoneyQuery, MoneySum
from scheduler.live.store.table_rows import ChargeKind

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
