"""A table is declared once, at its row class: name, key, how long its rows are kept, and which a start loads.

`TABLES` has the declarations, in order. From them follow the statements of both databases, what a transaction may write
and delete (`WriteBatch`), what a start loads (`LoadedState`), and what retention deletes. Columns are the row's fields,
in order; what a migration makes of the table must have them. The tables lie in one database, so a backup, a copy into
PostgreSQL and a new cluster take all of them or none.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from scheduler.live.store.sql_dialect import SqlConnection

Row = TypeVar("Row")


class Kept(Enum):
    """How long a row, or a file, is kept."""

    FOR_EVER = "as long as its cluster"
    UNTIL_DELETED = "until the server deletes it by its key, because what it is about is over"
    BY_AGE = "until its own instant is a stated time ago"
    WITH_JOURNAL = "as long as its generation of the journal"
    #: A table kept so has `job_id` first in its key.
    WITH_JOB = "as long as the rows of its job"
    WITH_LOGS = "as long as its job's logs"
    WITH_CHECKPOINTS = "as long as its job's checkpoints"


@dataclass(slots=True)
class Table(Generic[Row]):
    """The declaration of a table, and what follows from it."""

    name: str
    row_type: type[Row]
    kept: Kept
    #: Columns that identify a row, which another row with the same key replaces; without a key, rows are only added.
    key: tuple[str, ...] = ()
    #: The condition, and the order, of the rows that a start loads; None: it loads none.
    loaded: str | None = None
    #: If more than 0: only so many of them are loaded, those first in this order, and the first come last.
    loaded_most: int = 0
    #: The order in which rows were written is kept, and loaded.
    is_ordered: bool = False
    #: The key is a number that is never given out again.
    is_numbered: bool = False
    #: The column by whose instant rows are deleted, and how long after it, s.
    aged_by: str = ""
    kept_s: float = 0.0
    columns: tuple[str, ...] = field(init=False)
    #: The values of a row, in the order of the columns.
    values: Callable[[Row], tuple[Any, ...]] = field(init=False)
    #: The statement that writes a row.
    write_sql: str = field(init=False)
    _restored: tuple[tuple[int, Any], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.columns = tuple(each.name for each in fields(self.row_type))  # type: ignore[arg-type]
        self.values = attrgetter(*self.columns)
        marks = ", ".join("?" for _ in self.columns)
        self.write_sql = f"INSERT INTO {self.name} ({self.column_list}) VALUES ({marks})"
        if self.key:
            renewed = ", ".join(f'"{each}" = excluded."{each}"' for each in self.columns if each not in self.key)
            then = f"DO UPDATE SET {renewed}" if renewed else "DO NOTHING"
            self.write_sql += f" ON CONFLICT ({', '.join(self.key)}) {then}"
        types = get_type_hints(self.row_type)
        found = ((place, _restorer(types[column])) for place, column in enumerate(self.columns))
        self._restored = tuple((place, restore) for place, restore in found if restore is not None)

    @property
    def column_list(self) -> str:
        """The columns, as statements list them."""
        return ", ".join(f'"{column}"' for column in self.columns)

    def build(self, values: Sequence[Any]) -> Row:
        """Returns a row from its values; flags and enums, which databases have as numbers and texts, are restored."""
        typed = list(values)
        for place, restore in self._restored:
            if typed[place] is not None:
                typed[place] = restore(typed[place])
        return self.row_type(*typed)

    def select(self, connection: SqlConnection, where: str, *values: Any) -> list[Row]:
        """Returns the rows that a condition chooses, in the order that follows it."""
        rows = connection.execute(f"SELECT {self.column_list} FROM {self.name} WHERE {where}", values)
        return [self.build(row) for row in rows]

    def load(self, connection: SqlConnection, order_of_writing: str) -> tuple[Row, ...]:
        """Returns the rows that a start needs; `order_of_writing` names the column that has it in this database."""
        where = (self.loaded or "FALSE") + (f" ORDER BY {order_of_writing}" if self.is_ordered else "")
        if self.loaded_most:
            return tuple(self.select(connection, f"{where} LIMIT {self.loaded_most}")[::-1])
        return tuple(self.select(connection, where))

    def write(self, connection: SqlConnection, rows: Sequence[Row]) -> None:
        """Add rows, or replace those with their keys."""
        if self.is_ordered:  # a row that is replaced comes last
            self.delete(connection, [getattr(row, self.key[0]) for row in rows])
        connection.executemany(self.write_sql, map(self.values, rows))

    def delete(self, connection: SqlConnection, keys: Iterable[int | str]) -> None:
        """Delete the rows with these values in the key's first column."""
        connection.executemany(f"DELETE FROM {self.name} WHERE {self.key[0]} = ?", ((key,) for key in keys))

    def expire(self, connection: SqlConnection, before_at: float) -> None:
        """Delete the rows whose own instant is before this one."""
        connection.execute(f"DELETE FROM {self.name} WHERE {self.aged_by} < ?", [before_at])


def _restorer(column_type: Any) -> Any:
    """Returns the enum or `bool` of a column that may also be None; None for other columns."""
    kinds = [each for each in (column_type, *get_args(column_type)) if isinstance(each, type)]
    return next((each for each in kinds if each is bool or issubclass(each, Enum)), None)


#: By row class: every table, in the order of the declarations.
TABLES: dict[type[Any], Table[Any]] = {}


def table(name: str, *key: str, kept: Kept, **options: Any) -> Callable[[type[Row]], type[Row]]:
    """Declares a table of the decorated row class; see `Table` for the options."""

    def declare(row_type: type[Row]) -> type[Row]:
        TABLES[row_type] = Table(name, row_type, kept, key, **options)
        return row_type

    return declare
