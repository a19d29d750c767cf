"""Pods of Alibaba's GPU cluster of 2023 (`openb_pod_list_*.csv`).

CSV with a header: `name`, `cpu_milli`, `memory_mib`, `num_gpu`, `gpu_milli` (thousandths of one GPU), `gpu_spec` (types
separated by `|`; empty: any), `qos`, `creation_time`, `deletion_time`, `scheduled_time` (s). A pod runs from when it
was scheduled, or else created, to its deletion. A part of a GPU is taken for a whole one: gangs are of whole
accelerators. A pod without a GPU is no job of this kind, and an error unless bad rows are skipped.
"""

from collections.abc import Iterator

from simulator.workloads.job import TraceJob
from simulator.workloads.source import Row, Source, header_table

REQUIRED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_spec", "qos", "creation_time", "deletion_time")
_MIB = 2**20


def read_openb(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order."""
    lines = source.lines()
    return source.jobs(lines, header_table(source, lines, REQUIRED), _job)


def _job(row: Row) -> TraceJob:
    gang, at = row.gang("num_gpu"), row.number("creation_time", least=0.0)
    began_at = row.number("scheduled_time", least=at, default=at)
    return TraceJob(
        at=at,
        name=row.name("name"),
        kind="any",
        gang=gang,
        types=row.types("gpu_spec"),
        duration_s=row.number("deletion_time", above=began_at) - began_at,
        project=row.name("qos", "default"),
        cpus=row.number("cpu_milli", least=0.0) / 1000.0 / gang,
        memory_bytes=int(row.number("memory_mib", least=0.0) * _MIB / gang),
        line=row.line,
    )
