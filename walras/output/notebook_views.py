"""Answers of the client in a notebook, any body of the REST API: how one is shown, and one as a pandas table.

Names, labels and messages come from other people: all of it is text, never markup. What is empty is left out; long
texts and long lists are cut.

`walras.frame(client.jobs())`: a listing becomes one row for each of its items, with the columns that the REST API
names. Instants become times of pandas in UTC; what is itself a mapping or a list stays one cell.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from walras.errors import ConfigError
from walras.output.html_page import html_section, html_table

if TYPE_CHECKING:
    import pandas as pd

#: The most rows of a table and characters of a cell that are shown.
_ROWS_MOST, _TEXT_MOST = 50, 300
#: The deepest nesting of tables inside tables.
_DEPTH_MOST = 3


def answer_html(answer: BaseModel) -> str:
    """Returns an answer as HTML: its plain fields as a table, and a table for each of its lists."""
    return _section(_title_of(answer), answer, 1)


def _section(title: str, answer: BaseModel, depth: int) -> str:
    facts, parts = list[tuple[str, str]](), list[str]()
    for name in type(answer).model_fields:
        value = getattr(answer, name)
        if value is None or value in ("", [], {}, ()):
            continue
        title_of_part = name.replace("_", " ")
        if isinstance(value, BaseModel) and depth < _DEPTH_MOST:
            parts.append(_section(title_of_part, value, depth + 1))
        elif isinstance(value, list) and isinstance(value[0], BaseModel):
            parts.append(_listing(title_of_part, value))
        else:
            facts.append((title_of_part, _cell(value)))
    table = html_table(("", ""), facts) if facts else ""
    return html_section(title, "", "\n".join([table, *parts]))


def _listing(title: str, items: Sequence[BaseModel]) -> str:
    """Returns items below each other, with the columns that at least one of them fills."""
    shown = items[:_ROWS_MOST]
    names = list(dict.fromkeys(name for item in shown for name in type(item).model_fields))
    rows = [[_cell(getattr(item, name, None)) for name in names] for item in shown]
    filled = [column for column in range(len(names)) if any(row[column] for row in rows)]
    left = len(items) - len(shown)
    table = html_table(
        [names[column].replace("_", " ") for column in filled], [[row[column] for column in filled] for row in rows]
    )
    return html_section(title, f"and {left} more" if left else "", table)


def _title_of(answer: BaseModel) -> str:
    fields = type(answer).model_fields
    if {"id", "name", "state"} <= fields.keys():
        return f"job {getattr(answer, 'id', '')}: {getattr(answer, 'name', '')}"[:_TEXT_MOST]
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(answer).__name__)
    return words.strip().removesuffix(" view")


def _cell(value: Any) -> str:
    """Returns a value as one line of text; empty for what is empty."""
    if value is None or value in ("", [], {}, ()):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, BaseModel):
        text = _cell({name: getattr(value, name) for name in type(value).model_fields})
    elif isinstance(value, Mapping):
        text = ", ".join(f"{name}: {_cell(each)}" for name, each in value.items() if _cell(each))
    elif isinstance(value, list | tuple):
        text = ", ".join(map(_cell, value))
    else:
        text = str(value)
    return text if len(text) <= _TEXT_MOST else f"{text[:_TEXT_MOST]}…"


#: Fields of RFC 3339 text, and what such a field's name ends in.
_INSTANTS, _INSTANT_END = ("as_of",), "_at"


def frame(answer: BaseModel | Iterable[Any]) -> "pd.DataFrame":
    """Returns jobs, machines, prices, money or any other answer of the client as a table.

    Args:
        answer: an answer that lists items (`client.prices()`, `client.money()`), several answers (`client.jobs()`,
            `client.nodes()`), or a single one, which is one row. Money's sum of all others is a row with the key
            `(N others)`.

    Raises ConfigError if pandas is not installed, TypeError for what is no answer.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ConfigError("pandas is not installed", fix="pip install 'walras[pandas]'") from None
    rows = [_row(each) for each in _items(answer)]
    table = pd.DataFrame.from_records(rows)
    for name in table.columns:
        values = [row.get(name) or None for row in rows]
        is_named_so = name in _INSTANTS or name.endswith(_INSTANT_END)
        # Numbers of such a name are none: a loss has a value that it levels off at.
        if is_named_so and all(value is None or isinstance(value, str) for value in values):
            table[name] = pd.to_datetime(values, utc=True, format="ISO8601").as_unit("us")
    return table


def _items(answer: BaseModel | Iterable[Any]) -> Iterable[Any]:
    """Returns the items of an answer that lists some, the answers given, or the answer alone."""
    if not isinstance(answer, BaseModel):
        return answer
    items = getattr(answer, "items", None)
    if not isinstance(items, list):
        return [answer]
    rest = getattr(answer, "rest", None)
    if isinstance(rest, BaseModel):
        return [*items, rest.model_copy(update={"key": f"({getattr(answer, 'rest_of', 0)} others)"})]
    return items


def _row(item: Any) -> Mapping[str, Any]:
    if isinstance(item, BaseModel):
        return item.model_dump(mode="json")
    raise TypeError(f"a {type(item).__name__} is no answer of the client")
