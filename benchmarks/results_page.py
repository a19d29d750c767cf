"""Makes docs/results.md of the result files: `python -m benchmarks.results_page`.

`ROWS` of `results_rows.py` chooses figures of the result files; everything else of a row (figures, targets, command,
conditions, date) is read there, so a row cannot be edited by hand.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.result_files import FOLDER, RecordedRun, read_runs
from benchmarks.results_rows import SECTIONS, Row
from benchmarks.tables import Figure

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results.md"
MOST_ROWS, MOST_WORDS = 120, 25
#: The machine of rows that name none.
_USUAL = "2 cores"
_HEAD = """# Results

Figures of benchmarks, made by `python -m benchmarks.results_page` from `benchmarks/results/*.json`, which `python -m
benchmarks NAME --record` writes with all other figures, the conditions and the commit. Goals stand in brackets;
*missed* says that one was not met.

Measured on two cores of an x86-64 server (24 GiB, Linux, no GPU) unless the row names another machine. *busy*: other
work ran beside, times vary by some tens of percent. *data*: set `WALRAS_DATA` to the reference data. *dev*: install
`.[all,dev]`. JCT is the mean completion time, slowdown that of the worst job; x is the time that
jobs lose to contention, over the reference's.
"""


def page() -> str:
    """The page. Raises LookupError for a row whose figures are in no result file."""
    parts = [_HEAD]
    for title, rows in SECTIONS.items():
        lines = [f"| {' | '.join(cells(row))} |" for row in rows]
        head = "| What | Figure | Command | Conditions | Date |\n|---|---|---|---|---|"
        parts.append("\n".join((f"## {title}\n", head, *lines, "")))
    return "\n".join(parts)


def cells(row: Row, folder: Path = FOLDER) -> tuple[str, str, str, str, str]:
    """What, figure, command, conditions and date of a row."""
    run = read_runs(folder / f"{row.name}.json").get(row.row)
    if run is None:
        raise LookupError(f"benchmarks/results/{row.name}.json has no row {row.row!r}")
    shown = "; ".join(_shown(figure, label) for figure, label in _chosen(run, row))
    where = [part for part in run.conditions.split(", ") if part != _USUAL]
    return row.what, shown, f"`{run.command}`", ", ".join(filter(None, (*where, row.needs))), run.date


def _chosen(run: RecordedRun, row: Row) -> Iterator[tuple[Figure, str]]:
    tables = [table for table in run.tables if row.table in table.title]
    for wanted in row.figures:
        name, _, label = wanted.partition("|")
        named = [table.figures[name] for table in tables if name in table.figures]
        begun = [each for table in tables for key, each in table.figures.items() if key.startswith(name)]
        found = named or begun
        if not found:
            raise LookupError(f"benchmarks/results/{row.name}.json, {row.row}: no figure {name!r}")
        yield found[0], label


def _shown(figure: Figure, label: str) -> str:
    unit = f" {figure.unit}" if figure.unit else ""
    low, high = figure.at_least, figure.at_most
    if low is not None and high is not None:
        goal = _number(low) if low == high else f"{_number(low)}-{_number(high)}"
    else:
        goal = "".join(f"{sign} {_number(bound)}" for sign, bound in (("≥", low), ("≤", high)) if bound is not None)
    missed = "" if figure.met else ", missed"
    return f"{label} {_number(figure.value)}{unit}{f' ({goal}{missed})' if goal else ''}".strip()


def _number(value: float) -> str:
    """Three digits that count, all of those before the point."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    digits = max(0, 2 - len(str(int(abs(value)))) + 1) if abs(value) >= 1 else 3
    short = f"{value:,.{digits}f}" if abs(value) >= 0.01 else f"{value:.1g}"
    return re.sub(r"(\.\d*?)0+$", r"\1", short).rstrip(".") if "." in short else short


if __name__ == "__main__":
    PAGE.write_text(page())
