"""HTML pages of figures and tables that need no network and no other file, and no script unless they are given one.

Names may come from strangers: all text goes through `html_text`, and nothing becomes an attribute. What is put into a
section as content is markup already. A page's policy forbids everything but its own style, and its script by its hash.

Answers of the client show themselves in a notebook (`answer_html`): what is empty is left out; long texts and long
lists are cut. By `walras.frame(client.jobs())` a listing becomes one row for each of its items, with the columns that
the REST API names. Instants become times of pandas in UTC; what is itself a mapping or a list stays one cell.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from walras.errors import ConfigError, UserError

if TYPE_CHECKING:
    import pandas as pd


#: A chart is never narrower than its letters can be read: on a phone it is scrolled, as wide tables are.
_STYLE = """
:root { color-scheme: light dark; --text: #1c1c1c; --page: #fff; --soft: #444; --line: #e4e4e4; --bad: #a3261c; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --page: #16181c; --soft: #b4b4b4; --line: #33363c; --bad: #ff8a7d; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
       max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { margin: .3rem 0; color: var(--soft); }
table { border-collapse: collapse; font-size: .88rem; margin-top: .5rem; display: block; overflow-x: auto; }
h1, h2, p { overflow-wrap: anywhere; } section { overflow-x: auto; }
td, th { padding: .18rem .9rem .18rem 0; text-align: right; border-bottom: 1px solid var(--line);
         vertical-align: top; }
td:first-child, th:first-child, td.left { text-align: left; } th { font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; } svg { min-width: 34rem; max-width: 100%; height: auto; }
.time-slider label { display: inline-flex; flex: 1 1 20rem; gap: .5rem; align-items: center; }
.time-slider input { flex: 1; min-width: 8rem; } .time-slider output { font-variant-numeric: tabular-nums; }
.controls { display: flex; flex-wrap: wrap; gap: .3rem .8rem; align-items: center; }
.time-slider button { font: inherit; color: var(--text); background: none; border: 1px solid var(--soft); }
.cells { display: flex; flex-wrap: wrap; gap: 2px; width: 9rem; }
.cells span { width: 8px; height: 8px; border: 1px solid transparent; }
.cells .free { border-color: var(--soft); } .time-slider th { max-width: 13rem; overflow-wrap: anywhere;
                                                                text-align: left; }
@media print { :root { --text: #000; --page: #fff; --soft: #333; --line: #ccc; }
  body { margin: 0; max-width: none; } h2 { page-break-after: avoid; } svg { min-width: 0; } }
"""


def html_document(title: str, parts: Iterable[str], *, script: str = "") -> str:
    """Returns a whole page. `parts` are markup, one below the other; empty ones are left out.

    `script`: the text of the one script that the page runs; it must not hold the end of a script.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + (f"\n<script>{script}</script>" if script else "")
        + "\n</body></html>\n"
    )


def html_section(title: str, caption: str, content: str) -> str:
    """Returns a heading, a line below it unless `caption` is empty, and the content, which is markup."""
    return (
        f"<section><h2>{html_text(title)}</h2>{f'<p>{html_text(caption)}</p>' if caption else ''}\n{content}</section>"
    )


def html_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of text; titles that are all empty make no head."""
    head = "".join(f"<th>{html_text(title)}</th>" for title in titles) if any(titles) else ""
    cells = ("".join(f"<td>{html_text(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def html_paragraphs(lines: Iterable[str]) -> str:
    """Returns each line of text as a paragraph."""
    return "\n".join(f"<p>{html_text(line)}</p>" for line in lines)


def write_page(path: Path, page: str, field: str) -> None:
    """Write a page to a file. Raises UserError naming `field`, the option that said where."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"{path} cannot be written: {why}", field=field, fix="name another file") from None


def html_text(text: str) -> str:
    """Returns text in which nothing is markup."""
    return escape(text, quote=True)


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
