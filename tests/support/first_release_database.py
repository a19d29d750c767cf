"""Makes the database of the first release that a test opens: `python -m tests.support.first_release_database TO.gz`.

The tables of then (migrations up to `keep_targets`), the recorded journal of a run, and one row or more in every other
table. Run once; the file is kept, so that later migrations meet what is really out there.
"""

import gzip
import json
import sqlite3
import sys
import tempfile
from pathlib import Path

from sqlite_utils import Database

from scheduler.live.store.migrations import migrations

_JOURNAL = Path(__file__).parents[1] / "unit/scheduler_live/recorded_journal.jsonl.gz"
#: The first migration that the first release did not have.
_AFTER = "name_cluster"
_ROWS = 2


def make_database(path: Path) -> None:
    """Write it."""
    database = Database(sqlite3.connect(path, isolation_level=None))
    migrations.apply(database, stop_before=_AFTER)
    with gzip.open(_JOURNAL, "rt") as file:
        lines = [json.loads(line) for line in file]
    rows = [tuple(line.values()) if isinstance(line, dict) else tuple(line) for line in lines][:2000]
    database.conn.executemany("INSERT INTO journal (at, kind, type, payload) VALUES (?, ?, ?, ?)", rows)
    for table in sorted(set(database.table_names()) - {"journal", "meta", "_sqlite_migrations"}):
        _fill(database, table)
    database.close()


def _fill(database: Database, table: str) -> None:
    shared = {"state": "SUCCEEDED", "reason": None, "placement": "[]", "month": "2026-11", "ended_at": 9.0}
    if table == "charges":
        shared["kind"] = "use"
    columns = list(database.conn.execute(f"PRAGMA table_info({table})"))
    for number in range(1, _ROWS + 1):
        values = [shared[name] if name in shared else _value(name, kind, number) for _, name, kind, *_ in columns]
        marks = ", ".join("?" for _ in values)
        database.conn.execute(f"INSERT INTO {table} VALUES ({marks})", values)


def _value(name: str, kind: str, number: int) -> object:
    return {"INTEGER": number, "REAL": float(number)}.get(kind, f"{name}-{number}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "walras.db"
        make_database(made)
        Path(sys.argv[1]).write_bytes(gzip.compress(made.read_bytes(), 9, mtime=0))
