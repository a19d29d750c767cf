"""What a page of jobs asks the database: filters, an order, and where the previous page ended.

The order is always total: jobs that are equal in the column asked for come newest first. A cursor names the last job of
a page with its value in that column: pages neither skip nor repeat a job, however many are submitted meanwhile.
"""

import base64
import binascii
import json
from typing import Any

from scheduler.live.store.store_interface import JobQuery
from scheduler.live.store.table_rows import JobRow
from walras.errors import UserError

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
