"""Reads workload files (`walras.config.Workload`) as traces, to count, plot and convert their jobs.

A trace has only the jobs: commands, environments, incidents and laws are left out. Simulations read a workload file
directly, and no command writes one.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from simulator.workloads.trace import TraceFailure, TraceJob
from simulator.workloads.trace_source import TraceSource
from walras.errors import ConfigError
from walras.job_request import ANY_ACCELERATOR, JobId, JobIdentity, JobLimits, group_fields
from walras.spec.file_model import load_yaml
from walras.spec.job_groups import global_batch_of
from walras.spec.spec_request import to_request
from walras.spec.workload_file import ArrivalEntry, WorkloadFile


def read_workload_file(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    workload = load_yaml(source.path, WorkloadFile)
    named: dict[str, str] = {}
    for number, arrival in enumerate(sorted(workload.jobs, key=lambda arrival: arrival.at), start=1):
        job = _trace_job(source.path, number, arrival, named)
        law = workload.laws.get(job.kind)
        is_chosen = law is not None and arrival.job.batch is not None and arrival.job.batch.adaptive
        yield replace(job, batch_max=law.batch.max) if is_chosen and law and job.batch_max is None else job
        named[arrival.job.name] = named[str(number)] = f"{number}-{arrival.job.name}"


def check_convertible(path: str) -> None:
    """Raises ConfigError for features that a trace cannot state, so that nothing is lost silently."""
    workload = load_yaml(path, WorkloadFile)
    if workload.incidents:
        raise ConfigError(
            f"{path}: incidents happen to machines, and a trace has jobs alone",
            field="incidents",
            fix="put them into a file of conditions, or simulate the workload file as it is",
        )
    for row, arrival in enumerate(workload.jobs):
        if len({demand.count for demand in arrival.job.resources.accelerators}) > 1:
            raise ConfigError(
                f"{path}: jobs[{row}] takes another number of accelerators by their type, and a trace has one `gang`",
                field=f"jobs[{row}].job.resources.accelerators",
                fix="give all types the same number, or simulate the workload file as it is",
            )
        if arrival.job.plans:
            raise ConfigError(
                f"{path}: jobs[{row}] has a menu of plans, and a trace has one `gang`",
                field=f"jobs[{row}].job.plans",
                fix="simulate the workload file as it is",
            )
        if arrival.job.hold:
            raise ConfigError(
                f"{path}: jobs[{row}] is held, and a trace has no user who releases it",
                field=f"jobs[{row}].job.hold",
                fix="remove hold, or give not_before",
            )


def _trace_job(path: str, number: int, arrival: ArrivalEntry, named: dict[str, str]) -> TraceJob:
    spec, true, project = arrival.job, arrival.simulated, arrival.project or arrival.job.project or "default"
    request = to_request(spec, JobId(number), user=arrival.user, project=project, at=arrival.at)
    types = tuple(demand.accelerator for demand in request.demands if demand.accelerator != ANY_ACCELERATOR)
    steps = true.steps if true.steps is not None else request.steps
    factor = request.steps / true.steps if true.steps is not None and request.steps is not None else 1.0
    return TraceJob(
        at=arrival.at,
        name=f"{number}-{spec.name}",
        kind=request.kind,
        gang=max(demand.count for demand in request.demands),
        types=types,
        steps=steps,
        estimate_s=request.duration_s if request.steps is None else None,
        estimate_factor=0.0 if true.steps is not None and request.steps is request.duration_s is None else factor,
        speeds=request.declared,
        sizes=request.sizes,
        fork_max=request.fork_max,
        mixed=request.mixed,
        nodes=request.nodes,
        cpus=request.cpus_per_accelerator,
        memory_bytes=request.memory_bytes_per_accelerator,
        depends_on=tuple(_dependency_above(path, spec.name, wanted, named) for wanted in spec.depends_on),
        condition="finished" if request.depends_on_any_end else "",
        cancel_at=inf if true.cancel is None else true.cancel,
        max_restarts=request.retry.max_restarts,
        restart_codes=request.retry.on_exit_codes,
        failures=tuple(TraceFailure(each.part, each.exit_code, each.times) for each in true.failures),
        batch=global_batch_of(spec.batch),
        batch_max=None if spec.batch is None else spec.batch.max,
        **group_fields(request, JobIdentity, JobLimits),
    )


def _dependency_above(path: str, name: str, wanted: int | str, named: dict[str, str]) -> str:
    if str(wanted) not in named:
        raise ConfigError(
            f"{path}: {name!r} depends on {wanted!r}, which is not submitted before it",
            field="depends_on",
            fix="name a job that arrives earlier",
        )
    return named[str(wanted)]
