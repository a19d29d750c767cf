"""Workload files (`walras.config.Workload`) as traces: what there is to count and to plot of them.

Commands, dependencies and incidents are not part of a trace, so a workload file is simulated as it is and never written
in another format.
"""

from collections.abc import Iterator

from simulator.workloads.job import TraceJob
from simulator.workloads.source import Source
from walras.config import Workload, load_yaml
from walras.ids import JobId
from walras.job import to_request
from walras.request import ANY_ACCELERATOR


def read_workload_file(source: Source) -> Iterator[TraceJob]:
    """The jobs, in order of arrival."""
    arrivals = load_yaml(source.path, Workload).jobs
    for number, arrival in enumerate(sorted(arrivals, key=lambda arrival: arrival.at), start=1):
        spec, project = arrival.job, arrival.project or arrival.job.project or "default"
        request = to_request(spec, JobId(number), user=arrival.user, project=project, at=arrival.at)
        types = tuple(demand.accelerator for demand in request.demands if demand.accelerator != ANY_ACCELERATOR)
        yield TraceJob(
            at=arrival.at,
            name=f"{number}-{spec.name}",
            kind=request.kind,
            gang=max(demand.count for demand in request.demands),
            types=types,
            steps=request.steps,
            duration_s=request.duration_s,
            speeds=request.declared,
            weight=request.weight,
            priority=request.priority,
            user=request.user,
            project=request.project,
            deadline_at=request.deadline_at,
            value_usd_per_h=request.value_usd_per_h,
            cpus=request.cpus_per_accelerator,
            memory_bytes=request.memory_bytes_per_accelerator,
        )
