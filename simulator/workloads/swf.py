"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers to a line, `;` before comments.

A processor stands for an accelerator: requested ones, or allocated ones where nothing was requested (-1). The time that
was requested is the user's estimate; user, group and executable give user, project and kind. A job without a run time
(cancelled while it waited) is an error unless bad rows are skipped. Think times and queues are not used.
"""

from collections.abc import Iterator

from simulator.workloads.job import TraceJob
from simulator.workloads.source import Row, Source, named_table

COLUMNS = (
    "job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "cpu_time", "used_memory_kb",
    "requested_processors", "requested_time", "requested_memory_kb", "status", "user", "group", "executable", "queue",
    "partition", "preceding_job", "think_time",
)  # fmt: skip
_KIB = 2**10


def read_swf(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order."""
    records = ((number, line) for number, line in source.lines() if line.strip() and not line.lstrip().startswith(";"))
    return source.jobs(records, named_table(COLUMNS, str.split), _job)


def _job(row: Row) -> TraceJob:
    asked = "requested_processors" if row.number("requested_processors") > 0 else "allocated_processors"
    estimate_s, memory_kb = row.number("requested_time"), row.number("requested_memory_kb")
    return TraceJob(
        at=row.number("submit_time", least=0.0),
        name=str(row.whole("job_number")),
        kind=_known("executable", row, "any"),
        gang=row.gang(asked),
        duration_s=row.number("run_time", above=0.0),
        estimate_s=estimate_s if estimate_s > 0 else None,
        user=_known("user", row, ""),
        project=_known("group", row, "default"),
        memory_bytes=int(max(memory_kb, 0.0) * _KIB),
        line=row.line,
    )


def _known(column: str, row: Row, unknown: str) -> str:
    """A number that stands for a name; -1: not known."""
    number = int(row.number(column))
    return f"{column}-{number}" if number >= 0 else unknown
