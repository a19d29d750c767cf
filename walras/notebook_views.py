"""How a notebook shows an answer of the client: a job, the cluster, prices or any other body of the REST API.

Names, labels and messages come from other people: all of it is text, never markup. What is empty is left out; long
texts and long lists are cut.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from walras.html_page import html_section, html_table

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
