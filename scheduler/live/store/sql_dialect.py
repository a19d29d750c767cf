"""SQL for SQLite and PostgreSQL: what the stores need of a connection, and the translation for PostgreSQL.

Statements are written once, in the SQL that both understand, with SQLite's placeholders (`?`, or `?1` for a value used
twice). `postgres_sql` translates what differs: placeholders, the reserved word `user`, the larger of two numbers, the
position of a text within another, an empty list, the cut to whole numbers. Statements must
avoid what both accept with different meanings: a condition is written `= 0` or `TRUE`, never as a number alone.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

#: A text in quotes, or a part of the statement without one.
_PIECES = re.compile(r"'(?:[^']|'')*'|[^']+")
_NUMBERED = re.compile(r"\?([0-9]+)")
#: Cuts in SQLite, rounds in PostgreSQL.
_CUT = re.compile(r"CAST\(([^()]*) AS BIGINT\)")


class SqlCursor(Protocol):
    """The rows of an answer."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchmany(self, size: int = ..., /) -> list[Any]: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...


class SqlConnection(Protocol):
    """What readers and writers of tables need: a connection of `sqlite3`, or one with the same methods."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> SqlCursor: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> SqlCursor: ...


@lru_cache(maxsize=1024)
def postgres_sql(sql: str) -> str:
    """Returns the statement for PostgreSQL's driver. Numbered placeholders become `%(p1)s`, others `%s`."""
    return "".join(
        piece.replace("%", "%%") if piece.startswith("'") else _postgres_words(piece.replace("%", "%%"))
        for piece in _PIECES.findall(sql)
    )


def _postgres_words(text: str) -> str:
    text = re.sub(r'(?<!")\buser\b(?!")', '"user"', text)
    text = text.replace("instr(", "strpos(").replace("IN ()", "IN (NULL)")
    text = _CUT.sub(r"CAST(trunc(\1) AS BIGINT)", text)
    text = _NUMBERED.sub(r"%(p\1)s", text).replace("?", "%s")
    return _greatest_of_two(text)


def _greatest_of_two(text: str) -> str:
    """Replaces `max(a, b)` of two values by `greatest(a, b)`; the aggregate `max(a)` stays."""
    out, at = [], 0
    for found in re.finditer(r"\bmax\(", text):
        depth, has_two = 1, False
        for letter in text[found.end() :]:
            depth += {"(": 1, ")": -1}.get(letter, 0)
            has_two = has_two or (letter == "," and depth == 1)
            if depth == 0:
                break
        out += [text[at : found.start()], "greatest(" if has_two else "max("]
        at = found.end()
    return "".join([*out, text[at:]])


def postgres_values(sql: str, values: Sequence[Any]) -> Sequence[Any] | Mapping[str, Any]:
    """Returns the values of a statement, by name where its placeholders have numbers; flags become 0 and 1."""
    plain = [postgres_value(value) for value in values]
    if _NUMBERED.search(sql) is None:
        return plain
    return {f"p{number}": value for number, value in enumerate(plain, 1)}


def postgres_value(value: Any) -> Any:
    """Returns a value as a column takes it: flags as 0 and 1, enums as text, NUL in a text replaced."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value).replace("\0", "\ufffd")
    return value
