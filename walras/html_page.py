"""HTML pages of figures and tables that need no network, no script and no other file.

Names may come from strangers: all text goes through `html_text`, and nothing becomes an attribute. What is put into a
section as content is markup already.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from walras.errors import UserError

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c1c1c; background: #fff; margin: 2rem auto; max-width: 62rem;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { margin: .3rem 0; color: #444; }
table { border-collapse: collapse; font-size: .88rem; margin-top: .5rem; display: block; overflow-x: auto; }
h1, p { overflow-wrap: anywhere; }
td, th { padding: .18rem .9rem .18rem 0; text-align: right; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
td:first-child, th:first-child, td.left { text-align: left; } th { font-weight: 600; }
.bad { color: #a3261c; font-weight: 600; } svg { max-width: 100%; height: auto; }
@media print { body { margin: 0; max-width: none; } h2 { page-break-after: avoid; } }
"""


def html_document(title: str, parts: Iterable[str]) -> str:
    """Returns a whole page. `parts` are markup, one below the other; empty ones are left out."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
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
