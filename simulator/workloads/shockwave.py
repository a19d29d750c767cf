"""Traces of Shockwave (NSDI 2023): Gavel's columns with the batch rule (`static`, `accordion`, `gns`) after the scale
factor and the duration, in seconds, before the arrival. A job is known by its line, from 0.
"""

from collections.abc import Iterator

from simulator.workloads.gavel import COLUMNS as GAVEL_COLUMNS
from simulator.workloads.gavel import REFERENCE
from simulator.workloads.job import TraceJob
from simulator.workloads.source import Row, Source, batch_of, cut_tabs, named_table

COLUMNS = (*GAVEL_COLUMNS[:7], "mode", *GAVEL_COLUMNS[7:9], "duration", "arrival_time")
BATCH_RULES = ("static", "accordion", "gns")


def read_shockwave(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order."""
    return source.jobs(source.lines(), named_table(COLUMNS, cut_tabs), _job)


def _job(row: Row) -> TraceJob:
    kind, slo, rule = row.name("job_type"), row.number("SLO"), row.text("mode")
    if rule not in BATCH_RULES:
        raise row.error("mode", f"is {rule[:40]!r}", f"write one of {', '.join(BATCH_RULES)}")
    return TraceJob(
        at=row.number("arrival_time", least=0.0),
        name=str(row.line - 1),
        kind=kind,
        gang=row.gang("scale_factor"),
        steps=float(row.whole("total_steps")),
        duration_s=row.number("duration", above=0.0),
        duration_on=REFERENCE,
        weight=row.number("priority_weight", above=0.0),
        slo=slo if slo > 0 else None,
        batch=batch_of(kind),
        batch_rule=rule,
        line=row.line,
    )
