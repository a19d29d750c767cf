"""Traces of Gavel (OSDI 2020).

Ten tab-separated columns, no header: job type, command, folder, name of the steps argument, whether it needs data,
steps, scale factor, weight, SLO (a multiple of the time on a V100; not above 0: none), arrival in seconds. A job has
no name: it is known by its line, from 0.
"""

from collections.abc import Iterator

from simulator.workloads.job import TraceJob
from simulator.workloads.source import Row, Source, batch_of, cut_tabs, named_table

COLUMNS = (
    "job_type", "command", "folder", "steps_argument", "needs_data", "total_steps", "scale_factor", "priority_weight",
    "SLO", "arrival_time",
)  # fmt: skip
#: The type that SLOs are multiples of.
REFERENCE = "v100"


def read_gavel(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order."""
    return source.jobs(source.lines(), named_table(COLUMNS, cut_tabs), _job)


def _job(row: Row) -> TraceJob:
    kind, slo = row.name("job_type"), row.number("SLO")
    return TraceJob(
        at=row.number("arrival_time", least=0.0),
        name=str(row.line - 1),
        kind=kind,
        gang=row.gang("scale_factor"),
        steps=float(row.whole("total_steps")),
        duration_on=REFERENCE,
        weight=row.number("priority_weight", above=0.0),
        slo=slo if slo > 0 else None,
        batch=batch_of(kind),
        line=row.line,
    )
