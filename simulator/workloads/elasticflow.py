"""Traces of ElasticFlow (ASPLOS 2023).

CSV with a header: `job_id`, `submit_time` and `ddl` (both s since the trace began: the deadline is an instant),
`iteration`, `model_name`, `batch_size` (global), `num_gpu`, `duration` (s on `num_gpu`), maybe `best_effort` (1: the
deadline does not count).
"""

from collections.abc import Iterator
from math import inf

from simulator.workloads.job import TraceJob
from simulator.workloads.source import Row, Source, header_table

REQUIRED = ("job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration")


def read_elasticflow(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order."""
    lines = source.lines()
    return source.jobs(lines, header_table(source, lines, REQUIRED), _job)


def _job(row: Row) -> TraceJob:
    at, batch = row.number("submit_time", least=0.0), row.whole("batch_size")
    return TraceJob(
        at=at,
        name=row.name("job_id"),
        kind=f"{row.name('model_name')} (batch size {batch})",
        gang=row.gang("num_gpu"),
        steps=float(row.whole("iteration")),
        duration_s=row.number("duration", above=0.0),
        deadline_at=inf if row.text("best_effort") == "1" else row.number("ddl", above=at),
        batch=batch,
        line=row.line,
    )
