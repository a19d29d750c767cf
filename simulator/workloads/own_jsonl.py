"""Walras' own traces as JSON lines: one object for each job, its fields the columns of the CSV form."""

import json
from collections.abc import Iterator, Sequence
from typing import TextIO

from simulator.workloads.job import Trace, TraceJob
from simulator.workloads.own import COLUMNS, REQUIRED, as_cell, own_parser, written
from simulator.workloads.source import Source, named_table
from walras.checking import nearest


def read_own_jsonl(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order."""
    return source.jobs(source.lines(), named_table(COLUMNS, _cells), own_parser(COLUMNS))


def _cells(line: str) -> Sequence[str]:
    try:
        data = json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    unknown = next((name for name in data if name not in COLUMNS), None)
    if unknown is not None:
        meant = nearest(unknown, COLUMNS)
        raise ValueError(f"no field {unknown[:60]!r}" + (f"; did you mean {meant!r}?" if meant else ""))
    missing = next((name for name in REQUIRED if name not in data), None)
    if missing is not None:
        raise ValueError(f"no field {missing!r}")
    return [as_cell(data.get(column)) for column in COLUMNS]


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def write_own_jsonl(trace: Trace, file: TextIO) -> None:
    """One line for each job."""
    for job in trace.jobs:
        fields = {column: written(job, column) for column in COLUMNS}
        file.write(json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n")
