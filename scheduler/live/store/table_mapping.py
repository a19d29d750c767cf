"""Rows as objects and as tuples: which table holds which rows, and the statement that writes each.

The order of a row's fields is the order of its columns in every statement. An enum or a bool, which SQLite stores as
text or number, is restored when a row is read.
"""

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

from scheduler.core.state.throughput import ScoredBelief
from scheduler.live.store.price_hours import PriceRow
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
    DrainedBy,
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
from scheduler.live.store.usage_sums import CreditRow
from walras.states import AttemptState, JobState, Reason

Row = TypeVar("Row")
#: Columns whose values are enums.
_ENUMS: dict[tuple[type, str], Any] = {
    (JobRow, "state"): JobState,
    (JobRow, "reason"): Reason,
    (AttemptRow, "state"): AttemptState,
    (ChargeRow, "kind"): ChargeKind,
    (AttemptRow, "reason"): Reason,
    (AttemptRow, "held_by"): Reason,
    (NodeRow, "drained_by"): DrainedBy,
}
#: Every table with its row type, in the order in which a commit writes them.
TABLES: tuple[tuple[str, Any], ...] = (
    ("journal", JournalRow),
    ("specs", SpecRow),
    ("jobs", JobRow),
    ("attempts", AttemptRow),
    ("parts", PartRow),
    ("nodes", NodeRow),
    ("outbox", OutboxRow),
    ("checkpoints", CheckpointRow),
    ("rents", RentRow),
    ("pools", PoolRow),
    ("speeds", SpeedRow),
    ("scores", ScoredBelief),
    ("facts", FactsRow),
    ("networks", NetworkRow),
    ("restart_costs", RestartCostRow),
    ("charges", ChargeRow),
    ("policies", PolicyRow),
    ("answers", AnswerRow),
    ("tokens", TokenRow),
    ("people", PeopleRow),
    ("audit", AuditRow),
    ("secrets", SecretRow),
    ("core_state", CoreStateRow),
    ("outputs", OutputsRow),
    ("channels", ChannelRow),
    ("notifications", NotificationRow),
    ("told", ToldRow),
    ("price_hours", PriceRow),
    ("bookings", BookingRow),
    ("credits", CreditRow),
)


def column_names(row_type: Any) -> tuple[str, ...]:
    """Returns the columns of a row type, in order."""
    return tuple(column.name for column in fields(row_type))


def column_list(row_type: Any) -> str:
    """Returns the columns of a row type, as statements list them."""
    return ", ".join(column_names(row_type))


def _replace_sql(table: str, row_type: Any) -> str:
    marks = ", ".join("?" for _ in fields(row_type))
    verb = "INSERT" if table in ("journal", "charges", "audit") else "INSERT OR REPLACE"
    return f"{verb} INTO {table} ({column_list(row_type)}) VALUES ({marks})"


#: By table: the statement that writes a row, and the function that returns the row's values.
REPLACE_SQL = {table: _replace_sql(table, row_type) for table, row_type in TABLES}
ROW_VALUES = {table: attrgetter(*(column.name for column in fields(row_type))) for table, row_type in TABLES}


def build_row(row_type: type[Row], values: Sequence[Any]) -> Row:
    """Returns a row object from a tuple in the order of its fields."""
    typed = list(values)
    for index, column in enumerate(fields(row_type)):  # type: ignore[arg-type]
        enum = _ENUMS.get((row_type, column.name))
        if typed[index] is None:
            continue
        if enum is not None:
            typed[index] = enum(typed[index])
        elif column.type is bool:
            typed[index] = bool(typed[index])
    return row_type(*typed)
