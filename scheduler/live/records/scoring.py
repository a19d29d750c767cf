"""Speeds that a server believed before it measured them, from its journal: a replay tells what was believed when."""

from collections.abc import Iterable
from pathlib import Path

from scheduler.core.core import SchedulerCore
from scheduler.core.ledger.throughput import Scored
from scheduler.live.records.journal import GENERATION, decode_event
from scheduler.live.records.rows import JournalRow
from scheduler.live.records.sqlite_store import read_journal


def scored_folder(folder: Path) -> list[Scored]:
    """Of a server's data folder; a running server is not disturbed."""
    return scored(read_journal(folder))


def scored(rows: Iterable[JournalRow]) -> list[Scored]:
    """Over all generations: what one has measured, the next one believes no longer but knows."""
    found: list[Scored] = []
    core = SchedulerCore()
    for row in rows:
        if row.kind == GENERATION:
            found += core.ledger.table.scored()
            core = SchedulerCore()
        elif row.kind != "command":
            core.handle(decode_event(row))
    return found + core.ledger.table.scored()
