"""Workloads of Pollux (OSDI 2021) and Sia (SOSP 2023).

CSV with a header: `name`, `time` (arrival, s), `application`, `num_replicas`, `batch_size` (global). A job's work is a
number of epochs that the application's profile knows and the file does not, so these jobs have no length of their own.
"""

from collections.abc import Iterator

from simulator.workloads.job import TraceJob
from simulator.workloads.source import Row, Source, header_table

REQUIRED = ("name", "time", "application", "num_replicas", "batch_size")


def read_pollux(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order."""
    lines = source.lines()
    return source.jobs(lines, header_table(source, lines, REQUIRED), _job)


def _job(row: Row) -> TraceJob:
    return TraceJob(
        at=row.number("time", least=0.0),
        name=row.name("name"),
        kind=row.name("application"),
        gang=row.gang("num_replicas"),
        batch=row.whole("batch_size"),
        line=row.line,
    )
