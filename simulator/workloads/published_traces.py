"""Readers of published trace formats: one function each, from a `TraceSource` to jobs in order of arrival.

**Gavel** (OSDI 2020). Ten tab-separated columns, no header: job type, command, folder, name of the steps argument,
whether it needs data, steps, scale factor, weight, SLO (a multiple of the time on a V100; not above 0: none), arrival
in seconds. A job has no name: it is identified by its line, from 0.

**Shockwave** (NSDI 2023). Gavel's columns with the batch rule (`static`, `accordion`, `gns`) after the scale factor and
the duration, in seconds, before the arrival.

**Philly** and similar traces, in the columns to which they are commonly converted. CSV with a header: `job_id`, `user`
(a tenant), `submit_time_s`, `num_gpus`, `duration_s` (of running, without waiting); optionally `gpu_type`, `cluster`,
`model`, `batch_size`, `total_steps`, `cpu` and `mem_gib` (of the whole job). A tenant of such a trace becomes a
project. Without a model, all jobs are of the kind `any`.

**Pollux** (OSDI 2021) and **Sia** (SOSP 2023). CSV with a header: `name`, `time` (arrival, s), `application`,
`num_replicas`, `batch_size` (global). A job's work is a number of epochs that the application's profile states and the
file does not, so these jobs have no length of their own.

**ElasticFlow** (ASPLOS 2023). CSV with a header: `job_id`, `submit_time` and `ddl` (both s since the trace began: the
deadline is an instant), `iteration`, `model_name`, `batch_size` (global), `num_gpu`, `duration` (s on `num_gpu`),
optionally `best_effort` (1: the deadline does not count).

**openb**: pods of Alibaba's GPU cluster of 2023 (`openb_pod_list_*.csv`). CSV with a header: `name`, `cpu_milli`,
`memory_mib`, `num_gpu`, `gpu_milli` (thousandths of one GPU), `gpu_spec` (types separated by `|`; empty: any), `qos`,
`creation_time`, `deletion_time`, `scheduled_time` (s). A pod runs from when it was scheduled, or else created, to its
deletion. A part of a GPU counts as a whole one, or as slices (`ReadOptions.slices`). A pod without a GPU is an error
unless bad rows are skipped.

**GFS**: Alibaba's jobs of high priority and on spot capacity (ASPLOS 2026, `job_info_df.csv`). CSV with a header:
`job_name`, `organization`, `gpu_model`, `cpu_request` and `gpu_request` (of one worker; a part of a GPU as in openb),
`worker_num`, `submit_time` (s), `duration` (s), `job_type`: `HP` jobs have high priority and run to their end, `Spot`
jobs have low priority and are preempted for them.

**Arena** (EuroSys 2026). CSV with a header: `job_id`, `submission_time` (s; the trace begins with its first job),
`num_iteration`, `model_name` (`bert__2.6B`), `deadline` (an instant, as the submission), `batch_size` (global),
`num_gpu`, `gpu_type`. Its converted form, whose instants count from the first job, has `submit_time_s`,
`iterations_in_file`, `model`, `params`, `deadline_s` and `num_gpus` instead.

**SWF**, the Standard Workload Format of the Parallel Workloads Archive: 18 numbers per line, `;` before comments. A
processor stands for an accelerator: requested ones, or allocated ones where none were requested (-1). The requested
time is the user's estimate; user, group and executable give user, project and kind. A job without a run time (cancelled
while it waited) is an error unless bad rows are skipped. Think times and queues are not used.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil, inf

from simulator.workloads.trace_source import (
    MAX_GANG,
    TraceJob,
    TraceRow,
    TraceSource,
    batch_in_kind,
    header_row_format,
    named_row_format,
    split_tabs,
)
from walras.errors import ConfigError

GAVEL_COLUMNS = (
    "job_type", "command", "folder", "steps_argument", "needs_data", "total_steps", "scale_factor", "priority_weight",
    "SLO", "arrival_time",
)  # fmt: skip
#: The accelerator type whose run times SLOs are multiples of.
GAVEL_REFERENCE = "v100"


def read_gavel(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    return source.jobs(source.lines(), named_row_format(GAVEL_COLUMNS, split_tabs), _gavel_job)


def _gavel_job(row: TraceRow) -> TraceJob:
    kind, slo = row.name("job_type"), row.number("SLO")
    return TraceJob(
        at=row.instant("arrival_time", least=0.0),
        name=str(row.line - 1),
        kind=kind,
        gang=row.gang("scale_factor"),
        steps=float(row.whole("total_steps")),
        duration_on=GAVEL_REFERENCE,
        weight=row.number("priority_weight", above=0.0),
        slo=slo if slo > 0 else None,
        batch=batch_in_kind(kind),
        line=row.line,
    )


SHOCKWAVE_COLUMNS = (*GAVEL_COLUMNS[:7], "mode", *GAVEL_COLUMNS[7:9], "duration", "arrival_time")
BATCH_RULES = ("static", "accordion", "gns")


def read_shockwave(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    return source.jobs(source.lines(), named_row_format(SHOCKWAVE_COLUMNS, split_tabs), _shockwave_job)


def _shockwave_job(row: TraceRow) -> TraceJob:
    rule = row.one_of("mode", BATCH_RULES)
    return replace(_gavel_job(row), duration_s=row.number("duration", above=0.0), batch_rule=rule)


PHILLY_REQUIRED = ("job_id", "submit_time_s", "num_gpus", "duration_s")
_GIB = 2**30


def read_philly(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival. A file of several traces needs the name of one (`ReadOptions.only`)."""
    lines = source.lines()
    return source.jobs(lines, header_row_format(source, lines, PHILLY_REQUIRED), _PhillyParser(source).job)


class _PhillyParser:
    """Turns rows into jobs, all of one cluster."""

    def __init__(self, source: TraceSource) -> None:
        self._source = source
        self._cluster = source.reading.only

    def job(self, row: TraceRow) -> TraceJob | None:
        if not self._is_ours(row.text("cluster"), row.line):
            return None
        gang = row.gang("num_gpus")
        model, batch = row.name("model", ""), row.whole("batch_size", default=0) or None
        duration_s = row.number("duration_s", above=0.0, default=0.0) or None
        steps = float(row.whole("total_steps", default=0)) or None
        if duration_s is None and steps is None and not model:
            raise row.error("duration_s", "is empty", "give a duration, or leave the row out")
        return TraceJob(
            at=row.instant("submit_time_s", least=0.0),
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
            fix=f"choose one: --set only={self._cluster[:80]}",
        )


POLLUX_REQUIRED = ("name", "time", "application", "num_replicas", "batch_size")


def read_pollux(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    lines = source.lines()
    return source.jobs(lines, header_row_format(source, lines, POLLUX_REQUIRED), _pollux_job)


def _pollux_job(row: TraceRow) -> TraceJob:
    return TraceJob(
        at=row.instant("time", least=0.0),
        name=row.name("name"),
        kind=row.name("application"),
        gang=row.gang("num_replicas"),
        batch=row.whole("batch_size"),
        line=row.line,
    )


ELASTICFLOW_REQUIRED = ("job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration")


def read_elasticflow(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    lines = source.lines()
    return source.jobs(lines, header_row_format(source, lines, ELASTICFLOW_REQUIRED), _elasticflow_job)


def _elasticflow_job(row: TraceRow) -> TraceJob:
    at, batch = row.instant("submit_time", least=0.0), row.whole("batch_size")
    return TraceJob(
        at=at,
        name=row.name("job_id"),
        kind=f"{row.name('model_name')} (batch size {batch})",
        gang=row.gang("num_gpu"),
        steps=float(row.whole("iteration")),
        duration_s=row.number("duration", above=0.0),
        deadline_at=inf if row.text("best_effort") == "1" else row.instant("ddl", above=at),
        batch=batch,
        line=row.line,
    )


OPENB_REQUIRED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_spec", "qos", "creation_time", "deletion_time")
_MIB = 2**20
_WHOLE = 1e-9


def read_openb(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    lines = source.lines()
    job = partial(_openb_job, slices=source.reading.slices)
    return source.jobs(lines, header_row_format(source, lines, OPENB_REQUIRED), job)


def _openb_job(row: TraceRow, *, slices: int) -> TraceJob:
    gang, at = row.gang("num_gpu") * slices, row.instant("creation_time", least=0.0)
    if slices > 1 and gang == slices:
        gang = _slices_of(row.number("gpu_milli", above=0.0, most=1000.0, default=1000.0) / 1000.0, slices)
    began_at = row.instant("scheduled_time", least=at, default=at)
    return TraceJob(
        at=at,
        name=row.name("name"),
        kind="any",
        gang=gang,
        types=row.types("gpu_spec"),
        duration_s=row.instant("deletion_time", above=began_at) - began_at,
        project=row.name("qos", "default"),
        cpus=row.number("cpu_milli", least=0.0) / 1000.0 / gang,
        memory_bytes=int(row.number("memory_mib", least=0.0) * _MIB / gang),
        line=row.line,
    )


def _slices_of(part: float, slices: int) -> int:
    """Returns the number of slices that hold this many GPUs, at `slices` per GPU."""
    return ceil(part * slices - _WHOLE)


GFS_REQUIRED = (
    "job_name",
    "organization",
    "gpu_model",
    "gpu_request",
    "worker_num",
    "submit_time",
    "duration",
    "job_type",
)
#: Priority of each type of job, and whether it may be preempted.
_GFS_TYPES = {"HP": (80, False), "Spot": (20, True)}


def read_gfs(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    lines = source.lines()
    job = partial(_gfs_job, slices=source.reading.slices)
    return source.jobs(lines, header_row_format(source, lines, GFS_REQUIRED), job)


def _gfs_job(row: TraceRow, *, slices: int) -> TraceJob:
    worker = _slices_of(row.number("gpu_request", above=0.0, most=MAX_GANG), slices)
    gang = row.gang("worker_num") * worker
    if gang > MAX_GANG:
        raise row.error("worker_num", f"makes {gang} accelerators", f"give at most {MAX_GANG} in all")
    told = row.text("job_type")
    if told not in _GFS_TYPES:
        raise row.error("job_type", f"is {told[:40]!r}", f"give {' or '.join(_GFS_TYPES)}")
    priority, preemptible = _GFS_TYPES[told]
    return TraceJob(
        at=row.instant("submit_time", least=0.0),
        name=row.name("job_name"),
        kind="any",
        gang=gang,
        types=row.types("gpu_model"),
        duration_s=row.number("duration", above=0.0),
        project=row.name("organization", "default"),
        priority=priority,
        preemptible=preemptible,
        cpus=row.number("cpu_request", least=0.0, default=0.0) / worker,
        line=row.line,
    )


ARENA_REQUIRED = ("job_id", "batch_size", "gpu_type")
_ARENA_PUBLISHED = ("submission_time", "num_iteration", "model_name", "deadline", "num_gpu")
_ARENA_BROUGHT = ("submit_time_s", "iterations_in_file", "model", "params", "deadline_s", "num_gpus")


def read_arena(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    lines = source.lines()
    table = header_row_format(source, lines, ARENA_REQUIRED)
    is_brought = "submit_time_s" in table.columns
    for name in _ARENA_BROUGHT if is_brought else _ARENA_PUBLISHED:
        if name not in table.columns:
            raise ConfigError(f"{source.path}: no column {name}", field=name, fix="add it, or name the format: --from")
    began_at: list[float] = [0.0] if is_brought else []

    def job(row: TraceRow) -> TraceJob:
        if not began_at:
            began_at.append(row.number("submission_time", least=0.0))
        return _arena_job(row, began_at[0], is_brought=is_brought)

    return source.jobs(lines, table, job)


def _arena_job(row: TraceRow, began_at: float, *, is_brought: bool) -> TraceJob:
    submitted, iterations, deadline, gang = (
        ("submit_time_s", "iterations_in_file", "deadline_s", "num_gpus")
        if is_brought
        else ("submission_time", "num_iteration", "deadline", "num_gpu")
    )
    at, batch = row.number(submitted, least=began_at), row.whole("batch_size")
    model = f"{row.name('model')} {row.name('params')}" if is_brought else row.name("model_name").replace("__", " ", 1)
    return TraceJob(
        at=at - began_at,
        name=row.name("job_id"),
        kind=f"{model} (batch size {batch})",
        gang=row.gang(gang),
        types=row.types("gpu_type"),
        steps=float(row.whole(iterations)),
        deadline_at=row.number(deadline, above=at) - began_at,
        batch=batch,
        line=row.line,
    )


SWF_COLUMNS = (
    "job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "cpu_time", "used_memory_kb",
    "requested_processors", "requested_time", "requested_memory_kb", "status", "user", "group", "executable", "queue",
    "partition", "preceding_job", "think_time",
)  # fmt: skip
_KIB = 2**10


def read_swf(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    records = ((number, line) for number, line in source.lines() if line.strip() and not line.lstrip().startswith(";"))
    return source.jobs(records, named_row_format(SWF_COLUMNS, str.split), _swf_job)


def _swf_job(row: TraceRow) -> TraceJob:
    processors = "requested_processors" if row.number("requested_processors") > 0 else "allocated_processors"
    estimate_s, memory_kb = row.number("requested_time"), row.number("requested_memory_kb")
    return TraceJob(
        at=row.instant("submit_time", least=0.0),
        name=str(row.whole("job_number")),
        kind=_swf_name("executable", row, "any"),
        gang=row.gang(processors),
        duration_s=row.number("run_time", above=0.0),
        estimate_s=estimate_s if estimate_s > 0 else None,
        user=_swf_name("user", row, ""),
        project=_swf_name("group", row, "default"),
        memory_bytes=int(max(memory_kb, 0.0) * _KIB),
        line=row.line,
    )


def _swf_name(column: str, row: TraceRow, unknown: str) -> str:
    """Makes a name of a number; returns `unknown` for -1."""
    number = int(row.number(column))
    return f"{column}-{number}" if number >= 0 else unknown
