"""HTML pages of figures and tables that need no network and no other file, and no script unless they are given one.

Names may come from strangers: all text goes through `html_text`, and nothing becomes an attribute. What is put into a
section as content is markup already. A page's policy forbids everything but its own style, and its script by its hash.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from walras.errors import UserError

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
