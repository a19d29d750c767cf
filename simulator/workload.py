"""From the files of an experiment to what a simulation takes: pools, the truth, jobs, incidents.

A workload is a Walras workload (YAML, as the live demo runs it) or a Gavel trace (.tsv or .trace).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from scheduler.cloud.simulated import RentalTerms
from simulator.faults import Revocation
from simulator.gavel import gavel_jobs, read_throughputs, read_trace
from simulator.job import SimulatedJob
from simulator.machines import PoolModel
from simulator.measured import MeasuredCosts
from simulator.truth import SpeedKey, Truth
from walras.cluster import Market
from walras.config import ClusterConfig, Workload, load_yaml
from walras.errors import ConfigError
from walras.ids import JobId, Kind, PoolId
from walras.job import JobSpec, to_request
from walras.request import ANY_ACCELERATOR

_TRACE_ENDINGS = (".tsv", ".trace")


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything about the world of one simulation but its seed. The jobs can be read once."""

    pools: tuple[PoolModel, ...]
    truth: Truth
    jobs: Iterable[SimulatedJob]
    incidents: tuple[Revocation, ...] = ()


def load_experiment(
    workload_path: str | Path,
    cluster_path: str | Path,
    *,
    speeds_path: str | Path | None = None,
    measured: MeasuredCosts | None = None,
) -> Experiment:
    """Read the files and check that they fit each other.

    `speeds_path` is a throughput table for a trace; without it, `throughputs/simulation_throughputs.json` beside the
    trace's folder is taken. Raises ConfigError (a UserError) for anything a person has to mend.
    """
    cluster = load_yaml(cluster_path, ClusterConfig)
    if Path(workload_path).suffix in _TRACE_ENDINGS:
        return _trace_experiment(Path(workload_path), cluster, speeds_path)
    return workload_experiment(load_yaml(workload_path, Workload), cluster, measured)


def pool_models(cluster: ClusterConfig) -> tuple[PoolModel, ...]:
    """The cluster's pools as the simulated world has them."""
    return tuple(PoolModel(entry.pool(), entry.machines, RentalTerms(entry.boot)) for entry in cluster.pools)


# ---------------------------------------------------------------------------------------------- Gavel traces


def _trace_experiment(trace: Path, cluster: ClusterConfig, speeds_path: str | Path | None) -> Experiment:
    if speeds_path is None:
        speeds_path = trace.parent.parent / "throughputs" / "simulation_throughputs.json"
        if not speeds_path.exists():
            raise ConfigError(
                f"{trace}: no throughput table is given, and there is none at {speeds_path}",
                field="speeds",
                fix="give one: --speeds FILE",
            )
    fleet = {entry.accelerator for entry in cluster.pools}
    truth = Truth(read_throughputs(speeds_path))
    missing = fleet - {key.accelerator for key in truth.speeds}
    if missing:
        raise ConfigError(f"{speeds_path}: no speeds for {', '.join(sorted(missing))} of the cluster", field="speeds")
    jobs = gavel_jobs(read_trace(trace), truth, fleet)
    return Experiment(pool_models(cluster), truth, _that_fit(jobs, cluster))


def _that_fit(jobs: Iterable[SimulatedJob], cluster: ClusterConfig) -> Iterator[SimulatedJob]:
    """Refuse a job that no pool could ever hold: it would wait for ever."""
    largest: dict[str, int] = {}
    for entry in cluster.pools:
        machines = entry.machines if entry.market is Market.OWNED else entry.quota
        largest[entry.accelerator] = max(largest.get(entry.accelerator, 0), machines * entry.accelerators)
    anything = max(largest.values(), default=0)
    for job in jobs:
        room = (
            anything if demand.accelerator == ANY_ACCELERATOR else largest.get(demand.accelerator, 0)
            for demand in job.request.demands
        )
        if not any(there >= demand.count for there, demand in zip(room, job.request.demands, strict=True)):
            wanted = " or ".join(f"{demand.count} x {demand.accelerator}" for demand in job.request.demands)
            raise ConfigError(
                f"job {job.request.job_id} ({job.name or job.request.kind}) wants {wanted}; no pool is that large",
                fix="choose a larger cluster",
            )
        yield job


# ---------------------------------------------------------------------------------------------- Walras workloads


def workload_experiment(workload: Workload, cluster: ClusterConfig, measured: MeasuredCosts | None) -> Experiment:
    """A workload file on a cluster: speeds from what was measured, else from the cluster's emulation table."""
    truth = _workload_truth(cluster, measured)
    jobs = _workload_jobs(workload)
    if measured is not None:
        jobs = measured.applied_to(jobs)
    jobs = list(_that_fit((_with_steps(job, row) for row, job in enumerate(jobs)), cluster))
    fleet = sorted({entry.accelerator for entry in cluster.pools})
    for job in jobs:
        for accelerator, count in truth.accelerators_of(job.request, fleet):
            truth.steps_per_s(job.request.kind, accelerator, count)  # says which one is missing
    jobs.sort(key=lambda job: job.at)
    incidents = [Revocation(i.at, cluster.entry(i.revoke).pool_id, i.machines) for i in workload.incidents]
    if measured is None:
        return Experiment(pool_models(cluster), truth, jobs, tuple(incidents))
    return _as_measured(Experiment(pool_models(cluster), truth, jobs, tuple(incidents)), jobs, measured)


def _as_measured(experiment: Experiment, jobs: list[SimulatedJob], measured: MeasuredCosts) -> Experiment:
    """The experiment on the clock of the run that was measured, with its boot times and revocations."""
    begins_at = measured.begins_at
    boots = {pool.pool_id: pool.boot_s for pool in measured.pools}
    pools = tuple(
        replace(model, terms=replace(model.terms, boot_s=boots.get(model.pool.pool_id, model.terms.boot_s)))
        for model in experiment.pools
    )
    seen = [Revocation(each.at, PoolId(each.pool_id)) for each in measured.revocations]
    return Experiment(
        pools,
        experiment.truth,
        [replace(job, at=job.at + begins_at, cancel_at=job.cancel_at + begins_at) for job in jobs],
        tuple(replace(each, at=each.at + begins_at) for each in seen or experiment.incidents),
    )


def _workload_truth(cluster: ClusterConfig, measured: MeasuredCosts | None) -> Truth:
    table = {
        SpeedKey(Kind(kind), accelerator): speed
        for kind, speeds in cluster.speeds.items()
        for accelerator, speed in speeds.items()
    }
    if measured is None:
        return Truth(table)
    known = measured.truth()
    return Truth({**table, **known.speeds}, known.costs, known.default_costs)


def _workload_jobs(workload: Workload) -> list[SimulatedJob]:
    """Jobs in the order of the file, numbered in order of arrival (as a server would number them)."""
    order = sorted(range(len(workload.jobs)), key=lambda row: workload.jobs[row].at)
    number = {row: JobId(position) for position, row in enumerate(order, start=1)}
    by_name: dict[str, JobId] = {}
    jobs: dict[int, SimulatedJob] = {}
    for row in order:
        arrival = workload.jobs[row]
        spec, project = arrival.job, arrival.project or arrival.job.project or "default"
        depends_on = tuple(_dependency(spec, row, wanted, by_name) for wanted in spec.depends_on)
        request = to_request(
            spec, number[row], user=arrival.user, project=project, at=arrival.at, depends_on=depends_on
        )
        jobs[row] = SimulatedJob(arrival.at, request, spec.steps or 0.0, name=spec.name)
        by_name[spec.name] = number[row]
    return [jobs[row] for row in range(len(workload.jobs))]


def _dependency(spec: JobSpec, row: int, wanted: int | str, by_name: dict[str, JobId]) -> JobId:
    if isinstance(wanted, int):
        return JobId(wanted)
    if wanted not in by_name:
        raise ConfigError(
            f"jobs[{row}]: {spec.name!r} depends on {wanted!r}, which is not submitted before it",
            field=f"jobs[{row}].job.depends_on",
        )
    return by_name[wanted]


def _with_steps(job: SimulatedJob, row: int) -> SimulatedJob:
    if job.steps <= 0:
        raise ConfigError(
            f"jobs[{row}]: nobody said how many steps {job.name!r} takes",
            field=f"jobs[{row}].job.steps",
            fix="add `steps:`, or give measured costs that have the job",
        )
    return job
