"""Walras' own traces as CSV: a header, then one line for each job."""

import csv
from collections.abc import Iterator
from typing import TextIO

from simulator.workloads.job import Trace, TraceJob
from simulator.workloads.own import COLUMNS, REQUIRED, as_cell, columns_needed, own_parser, written
from simulator.workloads.source import Source, header_table
from walras.checking import nearest
from walras.errors import ConfigError


def read_own_csv(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order. A column that the format does not have is an error: it would be lost without a word."""
    lines = source.lines()
    table = header_table(source, lines, REQUIRED)
    for title in table.columns:
        if title not in COLUMNS:
            meant = nearest(title, COLUMNS)
            raise ConfigError(
                f"{source.path}:1: no trace has a column {title[:60]!r}",
                field=title[:60],
                fix=f"did you mean {meant!r}?" if meant else f"known: {', '.join(COLUMNS)}",
            )
    return source.jobs(lines, table, own_parser(table.columns))


def write_own_csv(trace: Trace, file: TextIO) -> None:
    """Header and rows."""
    columns = columns_needed(trace.jobs)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for job in trace.jobs:
        writer.writerow([as_cell(written(job, column)) for column in columns])
