"""Traces in the columns to which the Philly trace and its kin are commonly brought.

CSV with a header: `job_id`, `user` (a tenant), `submit_time_s`, `num_gpus`, `duration_s` (of running, without waiting);
where there are: `gpu_type`, `cluster`, `model`, `batch_size`, `total_steps`, `cpu` and `mem_gib` (of the whole job).
A tenant of such a trace is a project here. Without a model, all jobs are of the kind `any`.
"""

from collections.abc import Iterator

from simulator.workloads.job import TraceJob
from simulator.workloads.source import Row, Source, header_table
from walras.errors import ConfigError

REQUIRED = ("job_id", "submit_time_s", "num_gpus", "duration_s")
_GIB = 2**30


def read_philly(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order. A file that holds several traces needs the name of one (`Reading.only`)."""
    lines = source.lines()
    return source.jobs(lines, header_table(source, lines, REQUIRED), _Parser(source).job)


class _Parser:
    """Turns rows into jobs, all of one cluster."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._cluster = source.reading.only

    def job(self, row: Row) -> TraceJob | None:
        if not self._is_ours(row.text("cluster"), row.line):
            return None
        gang = row.gang("num_gpus")
        model, batch = row.name("model", ""), row.whole("batch_size", default=0) or None
        duration_s = row.number("duration_s", above=0.0, default=0.0) or None
        steps = float(row.whole("total_steps", default=0)) or None
        if duration_s is None and steps is None and not model:
            raise row.error("duration_s", "is empty", "give a duration, or leave the row out")
        return TraceJob(
            at=row.number("submit_time_s", least=0.0),
            name=row.name("job_id"),
            kind=f"{model} (batch size {batch})" if model and batch else model or "any",
            gang=gang,
            types=row.types("gpu_type"),
            steps=steps,
            duration_s=duration_s,
            project=row.name("user", "default"),
            cpus=row.number("cpu", least=0.0, default=0.0) / gang,
            memory_bytes=int(row.number("mem_gib", least=0.0, default=0.0) * _GIB / gang),
            batch=batch,
            line=row.line,
        )

    def _is_ours(self, cluster: str, line: int) -> bool:
        if not self._cluster:
            self._cluster = cluster
        if cluster == self._cluster:
            return True
        if self._source.reading.only:
            return False
        raise ConfigError(
            f"{self._source.path}:{line}: several traces in one file ({self._cluster[:80]!r}, {cluster[:80]!r})",
            field="cluster",
            fix=f"choose one: --only {self._cluster[:80]}",
        )
