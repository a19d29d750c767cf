"""Walras' own trace format: what its columns are, how they are written and read back without loss.

The same columns as CSV (a header, then one line for each job) and as JSON lines (one object for each job). `at`,
`name`, `kind` and `gang` are always there; what all jobs leave at its default is not written. Numbers are written so
that they read back as the same number. Opens no file: see `simulator.workloads.own_csv` and `own_jsonl`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from math import inf
from sys import intern
from typing import Any

from simulator.workloads.job import TraceJob
from simulator.workloads.shockwave import BATCH_RULES
from simulator.workloads.source import Row

REQUIRED = ("at", "name", "kind", "gang")
_DEFAULTS: dict[str, Any] = {
    "types": (), "steps": None, "duration_s": None, "duration_on": "", "estimate_s": None, "speeds": (), "weight": 1.0,
    "priority": 50, "user": "", "project": "default", "deadline_at": inf, "slo": None, "value_usd_per_h": None,
    "cpus": 0.0, "memory_bytes": 0, "batch": None, "batch_rule": "",
}  # fmt: skip
COLUMNS = (*REQUIRED, *_DEFAULTS)
assert {*COLUMNS, "line"} == {field.name for field in fields(TraceJob)}, "a field of a job has no column"


def columns_needed(jobs: Iterable[TraceJob]) -> list[str]:
    """The columns that some job has something in, in their fixed order."""
    rest = dict(_DEFAULTS)
    for job in jobs:
        used = [column for column, default in rest.items() if getattr(job, column) != default]
        for column in used:
            del rest[column]
    return [column for column in COLUMNS if column not in rest]


def written(job: TraceJob, column: str) -> Any:
    """The job's value as JSON has it; None where it is the default."""
    value = getattr(job, column)
    if column in _DEFAULTS and value == _DEFAULTS[column]:
        return None
    if column == "types":
        return list(value)
    return dict(value) if column == "speeds" else value


def as_cell(value: Any) -> str:
    """A JSON value as one cell of text: lists are joined by `|`, pairs by `=`. ValueError for what no column holds."""
    match value:
        case None:
            return ""
        case bool():
            raise ValueError("true and false have no place in a trace")
        case str():
            return value
        case int() | float():
            return repr(value)
        case list():
            return "|".join(as_cell(item) for item in value)
        case dict():
            return "|".join(f"{name}={as_cell(item)}" for name, item in value.items())
    raise ValueError(f"a value of type {type(value).__name__}")


def own_parser(columns: Collection[str]) -> Callable[[Row], TraceJob]:
    """What reads a row of these columns, and no others, as a job. It raises ConfigError naming file, line, column."""
    present = [(column, read) for column, read in _OPTIONAL.items() if column in columns]

    def job(row: Row) -> TraceJob:
        more = {column: read(row, column) for column, read in present if row.text(column)}
        return TraceJob(
            at=row.number("at", least=0.0),
            name=row.name("name"),
            kind=row.name("kind"),
            gang=row.gang("gang"),
            line=row.line,
            **more,
        )

    return job


def _above_zero(row: Row, column: str) -> float:
    return row.number(column, above=0.0)


def _not_negative(row: Row, column: str) -> float:
    return row.number(column, least=0.0)


def _batch_rule(row: Row, column: str) -> str:
    rule = row.text(column)
    if rule not in BATCH_RULES:
        raise row.error(column, f"is {rule[:40]!r}", f"write one of {', '.join(BATCH_RULES)}")
    return intern(rule)


def _speeds(row: Row, column: str) -> tuple[tuple[str, float], ...]:
    text = row.text(column)
    speeds: dict[str, float] = {}
    for part in text.split("|"):
        name, _, number = part.partition("=")
        accelerator = row.accelerator(name, column)
        try:
            speed = float(number)
        except ValueError:
            speed = -1.0
        if not 0 <= speed <= 1e9 or accelerator in speeds:
            raise row.error(column, f"is {text[:60]!r}", "write such as `a100=12.5|v100=6`, each type once")
        speeds[accelerator] = speed
    return tuple(sorted(speeds.items()))


#: How a cell that is not empty is read, by column.
_OPTIONAL: dict[str, Callable[[Row, str], Any]] = {
    "types": Row.types,
    "steps": _above_zero,
    "duration_s": _above_zero,
    "duration_on": lambda row, column: row.accelerator(row.text(column), column),
    "estimate_s": _above_zero,
    "speeds": _speeds,
    "weight": _above_zero,
    "priority": lambda row, column: row.whole(column, least=0, most=100),
    "user": Row.name,
    "project": Row.name,
    "deadline_at": lambda row, column: row.number(column),
    "slo": _above_zero,
    "value_usd_per_h": _not_negative,
    "cpus": _not_negative,
    "memory_bytes": lambda row, column: row.whole(column, least=0),
    "batch": lambda row, column: row.whole(column),
    "batch_rule": _batch_rule,
}
assert _OPTIONAL.keys() == _DEFAULTS.keys(), "a column is not read"
