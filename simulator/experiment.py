"""Turns the files of an experiment into the input of a simulation: pools, ground truth, jobs, incidents.

A workload is a Walras workload file (YAML, as the live demo runs it) or a trace in any format that
`simulator.workloads.formats` reads.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from pathlib import Path

from scheduler.core.explain.feasibility import PoolLimit, infeasibility
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import PlannedFailure, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.faults import PoolRevocation
from simulator.goodput import (
    GoodputLaws,
    goodput_laws,
    is_law_file,
    law_name,
    read_goodput_laws,
    read_pollux_applications,
)
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.measured_costs import MeasuredCosts
from simulator.workloads.formats import WORKLOAD_FILE, detect_format, find_format, read_trace
from simulator.workloads.trace_binding import (
    TraceBinding,
    machine_sizes,
    most_machines,
    nominal_speeds,
    read_throughput_table,
)
from simulator.workloads.trace_source import ReadOptions, SkippedRows, Trace
from walras.cluster import PoolId
from walras.errors import ConfigError
from walras.job_request import JobId, JobRequest, Kind, plain_kind
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml
from walras.spec.job_groups import global_batch_of
from walras.spec.job_spec import JobSpec
from walras.spec.spec_request import to_request
from walras.spec.workload_file import ArrivalEntry, WorkloadFile

#: Largest number of jobs that an error names.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Experiment:
    """The world of one simulation, without its seed. The jobs can be iterated only once."""

    pools: tuple[PoolModel, ...]
    truth: GroundTruth
    jobs: Iterable[SimulatedJob]
    incidents: tuple[PoolRevocation, ...] = ()
    #: Rows of a trace that were left out.
    skipped: SkippedRows = field(default_factory=SkippedRows)
    #: Number of jobs, if it is known before they are made.
    count: int | None = None


def load_experiment(
    workload_path: str | Path,
    cluster_path: str | Path,
    *,
    speeds_path: str | Path | None = None,
    measured: MeasuredCosts | None = None,
    format: str | None = None,
    reading: ReadOptions | None = None,
) -> Experiment:
    """Reads the files and checks that they fit each other.

    `speeds_path` is a throughput table for a trace, or a YAML file of laws; without it, a Gavel trace uses the
    `throughputs/simulation_throughputs.json` beside its folder, if that exists. `format` names the workload's format
    where its ending and first line do not decide it; `reading` says how to handle bad rows of a trace. Raises
    ConfigError (a UserError) for errors in the user's input.
    """
    cluster = load_yaml(cluster_path, ClusterConfig)
    is_mapped = reading is not None and bool(reading.columns)
    known = find_format(format) if format is not None else detect_format(workload_path, is_mapped=is_mapped)
    if known.name == WORKLOAD_FILE and speeds_path is not None:
        raise ConfigError(
            f"{workload_path}: a workload file takes no `speeds`",
            field="speeds",
            fix="write `laws` into it, put speeds into the cluster file, or give --set measured=FILE",
        )
    if known.name == WORKLOAD_FILE and reading not in (None, ReadOptions()):
        raise ConfigError(
            f"{workload_path}: a workload file is read whole: skip_bad_rows and other choices of rows are for traces",
            fix="leave them out",
        )
    if known.name != WORKLOAD_FILE and measured is not None:
        raise ConfigError(
            f"{workload_path}: what was measured is about the jobs of a workload file, and this is a trace",
            field="measured",
            fix="give the workload file of that run, or --set speeds=FILE",
        )
    if known.name != WORKLOAD_FILE:
        skips = reading is not None and reading.skip_bad_rows
        trace = read_trace(workload_path, known.name, reading)
        return trace_experiment(trace, cluster, speeds_path, skip_unplaceable=skips)
    return workload_experiment(load_yaml(workload_path, WorkloadFile), cluster, measured)


def pool_models(cluster: ClusterConfig) -> tuple[PoolModel, ...]:
    """Returns the cluster's pools as models. Raises ConfigError for a topology that names none of their machines."""
    shapes = [entry.shape for entry in cluster.pools for _ in range(entry.machines)]
    names = [f"{shape}-{number}" for number, shape in enumerate(shapes, 1)]
    if cluster.topology is not None and not any(map(cluster.topology.topology.links.knows, names)):
        fix = f"simulated machines are called {names[0]} to {names[-1]}" if names else "there are no owned machines"
        raise ConfigError("topology: names none of the machines", field="topology", fix=fix)
    return tuple(
        PoolModel(entry.pool(), entry.machines, RentalTerms(entry.boot, minimum_billing_s=entry.minimum_billing))
        for entry in cluster.pools
    )


# ---------------------------------------------------------------------------------------------- traces


def trace_experiment(
    trace: Trace,
    cluster: ClusterConfig,
    speeds_path: str | Path | None = None,
    *,
    skip_unplaceable: bool = False,
) -> Experiment:
    """Returns the experiment of a trace on a cluster. Its jobs are made one by one, when the simulation needs them.

    Raises ConfigError for a job that cannot run there, before anything runs; `skip_unplaceable`: leaves out such
    rows, and those that its machines could never hold, and counts them as skipped.
    """
    speeds_path = speeds_path_of(trace, speeds_path)
    laws = _trace_laws(speeds_path)
    table = read_throughput_table(speeds_path) if speeds_path is not None and laws is None else {}
    missing = {entry.accelerator for entry in cluster.pools} - {key.accelerator for key in table}
    if table and missing:
        raise ConfigError(f"{speeds_path}: no speeds for {', '.join(sorted(missing))} of the cluster", field="speeds")
    looked = (
        f" (there is none at {_table_beside_trace(trace)})" if trace.format == "gavel" and speeds_path is None else ""
    )
    placing = TraceBinding(
        nominal_speeds(cluster),
        declared=cluster.speeds,
        table=table,
        laws=laws,
        machines=machine_sizes(cluster),
        source=trace.source,
        hint=f"give a throughput table that has it: --set speeds=FILE{looked}",
    )
    if skip_unplaceable:
        trace = _without_bad_rows(trace, placing, cluster)
    # All jobs are made once here, so that a mistake is reported now and not after an hour.
    never = _unplaceable(placing.jobs(trace.jobs), cluster)
    if never:
        raise _never_runs(never)
    truth = GroundTruth(placing.speeds, laws={} if laws is None else laws.of)
    return Experiment(
        pool_models(cluster), truth, placing.jobs(trace.jobs), skipped=trace.skipped, count=len(trace.jobs)
    )


def _without_bad_rows(trace: Trace, placing: TraceBinding, cluster: ClusterConfig) -> Trace:
    """Returns the trace without rows that cannot become jobs (no length, no speed here) or that no machine could hold.

    They are counted as skipped, with those that wait for them. Raises ConfigError where none is left.
    """
    while trace.jobs:
        bad = placing.unbindable(trace.jobs) or _unplaceable(placing.jobs(trace.jobs), cluster)
        if not bad:
            return trace
        first = (*trace.skipped.first, *islice(bad.values(), _NAMED_MAX))
        rows = [row for place, row in enumerate(trace.jobs) if place not in bad]
        trace = replace(trace, jobs=rows, skipped=SkippedRows(trace.skipped.count + len(bad), first))
    why = "; ".join(trace.skipped.first[:_NAMED_MAX])
    raise ConfigError(f"{trace.source}: no row can become a job on this cluster: {why}", fix="choose another cluster")


def speeds_path_of(trace: Trace, speeds_path: str | Path | None) -> str | Path | None:
    """Returns the file of speeds: the given one, else the table in the folder of a Gavel trace, if it exists."""
    if speeds_path is None and trace.format == "gavel" and _table_beside_trace(trace).exists():
        return _table_beside_trace(trace)
    return speeds_path


def _table_beside_trace(trace: Trace) -> Path:
    return Path(trace.source).parent.parent / "throughputs" / "simulation_throughputs.json"


def _trace_laws(path: str | Path | None) -> GoodputLaws | None:
    """Returns the laws of a YAML file or of a folder of Pollux profiles; None if the path holds no laws."""
    if path is None:
        return None
    if Path(path).is_dir():
        applications = read_pollux_applications(path)
        return GoodputLaws(applications, {name: application.work for name, application in applications.items()})
    return read_goodput_laws(path) if is_law_file(path) else None


def _check_fit(jobs: Iterable[SimulatedJob], cluster: ClusterConfig) -> list[SimulatedJob]:
    """Returns the jobs. Raises ConfigError, naming the first of those that no machines of the cluster could ever hold.

    Such a job would wait for ever, and under a strict order every job behind it would too.
    """
    jobs = list(jobs)
    found = _unplaceable(jobs, cluster)
    if found:
        raise _never_runs(found)
    return jobs


def _unplaceable(jobs: Iterable[SimulatedJob], cluster: ClusterConfig) -> dict[int, str]:
    """Returns what each job that could never run lacks, by its place among the jobs."""
    pools = [PoolLimit(entry.pool(), float(most_machines(entry) * entry.accelerators)) for entry in cluster.pools]
    known: dict[tuple[object, ...], str] = {}
    found: dict[int, str] = {}
    for place, job in enumerate(jobs):
        request = job.request
        key = (request.demands, request.sizes, request.nodes, request.mixed, request.cpus_per_accelerator,
               request.memory_bytes_per_accelerator, request.plans)  # fmt: skip
        lack = known.get(key)
        if lack is None:
            lack = known[key] = _lack(request, pools)
        if lack:
            found[place] = f"job {request.job_id} ({job.name or request.kind}) {lack}"
    return found


def _lack(request: JobRequest, pools: Sequence[PoolLimit]) -> str:
    """Returns why the job could never run; empty if it could. An elastic job counts at its smallest size."""
    if request.spreads and request.fork_max == 1:
        never = infeasibility(request, pools)
        return "" if never is None else never.detail
    wanted = " or ".join(f"{demand.count} x {demand.accelerator}" for demand in request.demands)
    counts = {
        demand: max((each.most for each in pools if replace(request, demands=(demand,)).accepts(each.pool)), default=0)
        for demand in request.demands
    }
    if not any(there >= demand.count for demand, there in counts.items()):
        return f"wants {wanted}; no pool is that large"
    least = request
    if request.sizes:
        least = replace(request, demands=tuple(replace(each, count=min(request.sizes)) for each in request.demands))
    found = infeasibility(least, pools)
    return "" if found is None else found.detail


def _never_runs(found: Mapping[int, str]) -> ConfigError:
    named = "; ".join(islice(found.values(), _NAMED_MAX))
    rest = f"; and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    what = "1 job" if len(found) == 1 else f"{len(found)} jobs"
    return ConfigError(
        f"{what} could never run on this cluster: {named}{rest}",
        fix="choose a larger cluster, or ask less of a machine; skip_bad_rows=true leaves such jobs of a trace out",
    )


# ---------------------------------------------------------------------------------------------- Walras workloads


def workload_experiment(workload: WorkloadFile, cluster: ClusterConfig, measured: MeasuredCosts | None) -> Experiment:
    """Returns a workload file on a cluster, with measured speeds, else those of the cluster's emulation table."""
    laws = goodput_laws(workload.laws)
    jobs = _workload_jobs(workload, laws)
    stated = ((job.request.kind, each.job.facts) for job, each in zip(jobs, workload.jobs, strict=True))
    exchanged = {kind: facts.gradient_bytes for kind, facts in stated if facts is not None and facts.gradient_bytes}
    truth = replace(_workload_truth(cluster, measured), laws=laws.of, gradient_bytes=exchanged)
    if measured is not None:
        jobs = measured.applied_to(jobs)
    jobs = _check_fit((_with_steps(job, row) for row, job in enumerate(jobs)), cluster)
    fleet = sorted({entry.accelerator for entry in cluster.pools})
    for job in (job for job in jobs if not job.request.plans):
        ways = truth.accelerators_of(job.request, fleet)
        # Every configuration is looked up, so that the error names a missing speed.
        speeds = [truth.steps_per_s(job.request.kind, accelerator, count) for accelerator, count in ways]
        if not any(speeds):
            raise ConfigError(
                f"job {job.request.job_id} ({job.name}) makes no step on {', '.join(fleet)} with any gang it may have",
                field=f"laws.{law_name(job.request.kind)}.on",
                fix="add a step time for its type and gang, with samples that its batch can be cut to",
            )
    jobs.sort(key=lambda job: job.at)
    incidents = [PoolRevocation(i.at, cluster.entry(i.revoke).pool_id, i.machines) for i in workload.incidents]
    if measured is None:
        return Experiment(pool_models(cluster), truth, jobs, tuple(incidents), count=len(jobs))
    return _as_measured(Experiment(pool_models(cluster), truth, jobs, tuple(incidents)), jobs, measured)


def _as_measured(experiment: Experiment, jobs: list[SimulatedJob], measured: MeasuredCosts) -> Experiment:
    """Returns the experiment on the clock of the measured run, with its boot times and revocations."""
    begins_at = measured.begins_at
    seen = [PoolRevocation(each.at, PoolId(each.pool_id)) for each in measured.revocations]
    return Experiment(
        tuple(map(measured.with_boots, experiment.pools)),
        experiment.truth,
        [replace(job, at=job.at + begins_at, cancel_at=job.cancel_at + begins_at) for job in jobs],
        tuple(replace(each, at=each.at + begins_at) for each in seen or experiment.incidents),
        count=len(jobs),
    )


def _workload_truth(cluster: ClusterConfig, measured: MeasuredCosts | None) -> GroundTruth:
    table = {
        SpeedKey(Kind(kind), accelerator): speed
        for kind, speeds in cluster.speeds.items()
        for accelerator, speed in speeds.items()
    }
    if measured is None:
        return GroundTruth(table)
    known = measured.truth()
    stated = {
        replace(key, kind=kind): speed
        for kind in known.costs
        for key, speed in table.items()
        if key.kind == plain_kind(kind)
    }
    return GroundTruth({**table, **stated, **known.speeds}, known.costs, known.default_costs)


def _workload_jobs(workload: WorkloadFile, laws: GoodputLaws) -> list[SimulatedJob]:
    """Returns jobs in the order of the file, numbered in order of arrival (as a server would number them)."""
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
        lawful = _request_under_law(spec, row, request, laws)
        jobs[row] = _simulated_job(arrival, lawful, laws.steps(spec.profile or "") if lawful is not request else None)
        by_name[spec.name] = number[row]
    return [jobs[row] for row in range(len(workload.jobs))]


def _request_under_law(spec: JobSpec, row: int, request: JobRequest, laws: GoodputLaws) -> JobRequest:
    """Returns the request with the kind that follows from its law and its batch."""
    if spec.profile is not None and spec.profile in laws:
        least = global_batch_of(spec.batch)
        most = None
        if spec.batch is not None and spec.batch.is_chosen:
            most = spec.batch.max if spec.batch.max is not None else laws.batch_most(spec.profile)
        kind = laws.kind_of(spec.profile, least, most, f"jobs[{row}]")
        return replace(request, kind=kind, steps=spec.steps or laws.steps(spec.profile))
    if spec.batch is not None and spec.batch.is_chosen:
        raise ConfigError(
            f"jobs[{row}]: {spec.name!r} chooses its batch, and no law says what that is worth",
            field=f"jobs[{row}].job.batch",
            fix="give it a `profile` that the workload's `laws` have, or a fixed batch",
        )
    return request


def _simulated_job(arrival: ArrivalEntry, request: JobRequest, usual_steps: float | None) -> SimulatedJob:
    """Returns the job with its true work, failures and cancellation; 0 steps where none are stated."""
    true = arrival.simulated
    steps = true.steps or arrival.job.steps or usual_steps or 0.0
    failures = tuple(PlannedFailure(each.part * steps, each.exit_code, each.times) for each in true.failures)
    cancel_at = inf if true.cancel is None else true.cancel
    return SimulatedJob(arrival.at, request, steps, failures, cancel_at, arrival.job.name)


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
            f"jobs[{row}]: the steps of {job.name!r} are unknown",
            field=f"jobs[{row}].job.steps",
            fix="add `steps:`, or give measured costs that have the job",
        )
    return job
