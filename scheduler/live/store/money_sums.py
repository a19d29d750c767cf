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
WITH sums AS MATERIALIZED (
    SELECT {key} AS name, kind, market = 'owned' AS is_owned, sum(usd) AS usd, sum(on_demand_usd) AS on_demand_usd,
        sum(accelerators * (until_at - since_at)) AS accelerator_s
    FROM charges WHERE {where} GROUP BY 1, 2, 3),
keys AS MATERIALIZED (
    SELECT name, sum(CASE WHEN {paid} THEN usd ELSE 0 END) AS paid_usd FROM sums WHERE {counted} GROUP BY name),
named AS MATERIALIZED (
    SELECT name FROM (SELECT name FROM keys ORDER BY paid_usd DESC, name LIMIT ?) AS dearest {also}),
others AS (SELECT (SELECT count(*) FROM keys) - (SELECT count(*) FROM keys WHERE name IN (SELECT name FROM named))),
told AS MATERIALIZED (SELECT *, name IN (SELECT name FROM named) AS is_named FROM sums)
SELECT CAST(name AS TEXT), kind, is_owned, usd, on_demand_usd, accelerator_s, 0 FROM told WHERE is_named
UNION ALL
SELECT '', kind, is_owned, sum(usd), sum(on_demand_usd), sum(accelerator_s), (SELECT * FROM others) FROM told
    WHERE NOT is_named GROUP BY kind, is_owned
"""
#: Which sums are shown under a key, and which of them it pays: use of rented machines is in the machines' bill already.
_OF_PLACES = {"counted": "TRUE", "paid": "kind = 'machine' OR is_owned"}
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
    named = [int(key) if query.by == "job" else key for key in dict.fromkeys(open_keys)]
    also = f"UNION SELECT name FROM sums WHERE name IN ({', '.join('?' for _ in named)})" if named else ""
    sql = _SUMS.format(key=MONEY_KEYS[query.by], where=" AND ".join(clauses), also=also, **owned_by)
    cursor = connection.execute(sql, [*values, query.limit, *named])
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
