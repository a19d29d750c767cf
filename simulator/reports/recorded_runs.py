"""Recorded runs, and their simulation with measured costs: the same workload again, or another policy on it.

A recording holds what the simulator needs: the fleet, the jobs with their true work, the costs. It is made from events
and the commands that they caused, such as a server's journal. It is kept as JSON lines (a header, then a line for each
job), so that a run can be studied on another machine without the server's folder.

Two live runs of one workload differ, because milliseconds decide which job waits a second longer, and each decision
affects the next. A job's forecast is a simulation in which each attempt starts and exits as fast as the one of its
number did in the run. Beside it, several seeds each draw how much longer or shorter starts and exits take than the
measured means: their range shows how much is chance.

`resimulate` repeats the run of a workload file. `replay_recording` repeats a server's journal: its jobs are those that
were submitted, with the work that they turned out to have. The simulation starts empty and without any measured speed,
as the run did. User actions (holding, releasing, cancelling, changing priorities) happen again at the same instants.
Machines that the market revoked are revoked again; machines that failed are not. The recorded policies decide until
another policy replaces them, so the past is simulated, not copied.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from math import inf, isfinite, nan
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeVar

from pydantic import TypeAdapter
from rich.table import Table
from rich.text import Text

from optimizer.policy import PolicySpec
from scheduler.core.events import (
    JobBudgetChanged,
    JobCancelled,
    JobDeadlineChanged,
    JobHeld,
    JobProjectChanged,
    JobReleased,
    JobReprioritised,
    JobSubmitted,
    NodeJoined,
    PolicyChanged,
    PoolDeclared,
)
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import PlannedFailure, SimulatedJob, WorldParameters
from scheduler.world.engine import SolveClock, SolveTime
from scheduler.world.machines import PoolModel
from simulator.experiment import Experiment, workload_experiment
from simulator.faults import PoolRevocation
from simulator.file_access import bounded_bytes, damaged_file, written_whole
from simulator.ground_truth import ANY_COUNT, GroundTruth, PredictionSettings, SpeedKey, largest_by_type
from simulator.measured_costs import MeasuredCosts, RecordedEvent, measure_costs, recorded_completion_times
from simulator.reports.run_summary import nonfinite_to_none
from simulator.simulation import Scenario, Simulation, SimulationResult, simulate
from walras.cluster import Market, NodeId, Pool, PoolId
from walras.errors import ConfigError
from walras.job_request import JobId, JobRequest, Kind
from walras.spec.cluster_file import ClusterConfig
from walras.spec.workload_file import WorkloadFile

RECORDING_VERSION = 1
_BYTES_MAX = 512 * 1024 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedPool:
    """A pool as last declared, and the number of its owned machines."""

    pool: Pool
    machines: int


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job as it was submitted, and its true work."""

    at: float
    request: JobRequest
    #: Steps that it made until it ended (seconds of running where steps were not counted), and its exit code.
    steps: float
    exit_code: int = 0
    cancel_at: float = inf
    #: Seconds from submission to end; inf if it had not ended when the record did.
    jct_s: float = inf

    def simulated(self) -> SimulatedJob:
        """Returns the job for the simulator. A failed job never gets past its failure."""
        if not self.exit_code:
            return SimulatedJob(self.at, self.request, self.steps, cancel_at=self.cancel_at)
        failure = PlannedFailure(self.steps, self.exit_code)
        return SimulatedJob(self.at, self.request, 2.0 * self.steps, (failure,), self.cancel_at)


@dataclass(frozen=True, slots=True)
class UserActions:
    """User actions on jobs, apart from submissions and cancellations."""

    held: tuple[JobHeld, ...] = ()
    released: tuple[JobReleased, ...] = ()
    reprioritised: tuple[JobReprioritised, ...] = ()
    rebudgeted: tuple[JobBudgetChanged, ...] = ()
    redated: tuple[JobDeadlineChanged, ...] = ()
    moved: tuple[JobProjectChanged, ...] = ()


#: The event of each action.
_ACTS: dict[str, Any] = {
    "held": JobHeld, "released": JobReleased, "reprioritised": JobReprioritised, "rebudgeted": JobBudgetChanged,
    "redated": JobDeadlineChanged, "moved": JobProjectChanged,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordingHeader:
    """A recording without its jobs."""

    recording: int
    pools: tuple[RecordedPool, ...]
    #: Every policy that became active, with its instant.
    policies: tuple[PolicyChanged, ...]
    costs: MeasuredCosts
    acts: UserActions = UserActions()
    #: Jobs of unknown length, and jobs that depend on them.
    left_out: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run. Jobs are in order of arrival."""

    header: RecordingHeader
    jobs: tuple[RecordedJob, ...]

    def under(self, policies: tuple[PolicyChanged, ...]) -> "Recording":
        """Returns the same run under these policies."""
        return replace(self, header=replace(self.header, policies=policies))


def make_recording(recorded: Sequence[RecordedEvent]) -> Recording:
    """Makes a recording of a run. Raises ConfigError for a record without policy, pools or any job of known length."""
    costs = measure_costs(recorded)
    pools: dict[PoolId, Pool] = {}
    nodes: dict[PoolId, set[NodeId]] = {}
    submitted: dict[JobId, JobSubmitted] = {}
    cancelled: dict[JobId, float] = {}
    for event, _ in recorded:
        if isinstance(event, PoolDeclared):
            pools[event.pool.pool_id] = event.pool
        elif isinstance(event, NodeJoined):
            nodes.setdefault(event.pool_id, set()).add(event.node_id)
        elif isinstance(event, JobSubmitted):
            submitted.setdefault(event.job.job_id, event)
        elif isinstance(event, JobCancelled):
            cancelled.setdefault(event.job_id, event.at)
    jobs, left_out = _recorded_jobs(
        submitted, cancelled, costs, recorded_completion_times(_about_submitted_jobs(recorded, submitted))
    )
    # A simulation calls a policy of another package itself.
    policies = tuple(replace(event, asked=None) for event, _ in recorded if isinstance(event, PolicyChanged))
    if not (jobs and pools and policies):
        raise ConfigError("the record holds no job that ended, no pool or no policy", fix="let a job end first")
    owned = {pool_id: len(nodes.get(pool_id, ())) * (pool.market is Market.OWNED) for pool_id, pool in pools.items()}
    acts = {name: tuple(each for each, _ in recorded if isinstance(each, kind)) for name, kind in _ACTS.items()}
    fleet = tuple(RecordedPool(pool, owned[pool_id]) for pool_id, pool in pools.items())
    # Each job carries its own measurements; a reader would count separate rows twice.
    return Recording(
        RecordingHeader(
            RECORDING_VERSION,
            fleet,
            policies,
            costs.model_copy(update={"jobs": ()}),
            UserActions(**acts),
            tuple(left_out),
        ),
        tuple(jobs),
    )


def _about_submitted_jobs(
    recorded: Sequence[RecordedEvent], submitted: dict[JobId, JobSubmitted]
) -> list[RecordedEvent]:
    """Removes commands about jobs whose submission is not in the record."""
    return [
        (event, [command for command in commands if getattr(command, "job_id", None) in submitted])
        for event, commands in recorded
    ]


def _recorded_jobs(
    submitted: dict[JobId, JobSubmitted],
    cancelled: dict[JobId, float],
    costs: MeasuredCosts,
    jct_s: dict[JobId, float],
) -> tuple[list[RecordedJob], list[JobId]]:
    seen = {measured.row: measured for measured in costs.jobs}
    timed = {speed.kind for speed in costs.speeds}
    jobs: dict[JobId, RecordedJob] = {}
    left_out: dict[JobId, None] = {}
    for row, (job_id, event) in enumerate(submitted.items()):
        measured = seen.get(row)
        # A job that did not run to its end gets its declared steps, if the speed of its kind is known.
        steps = measured.steps if measured is not None else event.job.steps if event.job.kind in timed else None
        if steps is None or not set(event.job.depends_on) <= jobs.keys():
            left_out[job_id] = None
            continue
        exit_code = measured.exit_code if measured is not None else 0
        ended = jct_s.get(job_id, inf)
        jobs[job_id] = RecordedJob(event.at, event.job, steps, exit_code, cancelled.get(job_id, inf), ended)
    return list(jobs.values()), list(left_out)


# --------------------------------------------------------------------------------------------------------- the file

_HEADER, _JOB = TypeAdapter(RecordingHeader), TypeAdapter(RecordedJob)


def write_recording(recording: Recording, path: Path) -> None:
    """Writes the recording as JSON lines. Infinite instants are written as `Infinity`, which Python reads back."""
    whole = written_whole(path, fix="choose another path", field="export")
    with whole as half, half.open("w", encoding="utf-8") as file:
        file.write(json.dumps(_HEADER.dump_python(recording.header, mode="json")) + "\n")
        for job in recording.jobs:
            file.write(json.dumps(_JOB.dump_python(job, mode="json")) + "\n")


def read_recording(path: Path) -> Recording:
    """Reads a recording. Raises ConfigError naming the file and the line."""
    fix = "give a server's folder, or a file made by --export"
    content = bounded_bytes(path, _BYTES_MAX, refused=fix, too_large="give a file made by --export")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error}", fix=fix) from None
    if not lines:
        raise ConfigError(f"{path}: is empty", fix="give a file made by --export")
    header = _parsed(_HEADER, lines[0], path, 1)
    if header.recording != RECORDING_VERSION:
        raise ConfigError(f"{path}: of version {header.recording}, not {RECORDING_VERSION}", fix="export it again")
    jobs = tuple(_parsed(_JOB, line, path, number) for number, line in enumerate(lines[1:], 2))
    numbers = [job.request.job_id for job in jobs]
    if len(set(numbers)) < len(numbers) or any(a.at > b.at for a, b in pairwise(jobs)):
        raise ConfigError(f"{path}: jobs are numbered twice, or not in order of arrival", fix="export it again")
    return Recording(header, jobs)


def _parsed(adapter: TypeAdapter[T], line: str, path: Path, number: int) -> T:
    try:
        data: Any = json.loads(line)
        return adapter.validate_python(data)
    except (ValueError, RecursionError) as error:
        raise damaged_file(f"{path}:{number}", error, "", "give a file made by --export") from None


RESIMULATION_SEEDS = 9
#: As agents and in-job clients report: at every heartbeat, with speeds over windows of half a second after two steps.
_HEARTBEAT_S = 5.0
_HEARTBEATS_PER_LEASE = 10.0
_WINDOW_S = 0.5
_UNMEASURED_STEPS = 2.0


@dataclass(frozen=True, slots=True)
class ResimulatedJob:
    """Completion times of one job in the run and in the simulations, seconds."""

    job_id: JobId
    run_s: float
    #: With the measured times of each attempt; least and largest with these and with drawn ones.
    simulated_s: float
    least_s: float
    most_s: float

    @property
    def error(self) -> float:
        """Returns |simulated - run| / run."""
        return abs(self.simulated_s - self.run_s) / self.run_s

    @property
    def unexplained(self) -> float:
        """Returns how far the run lies outside the range of the simulations, over the run's length; 0 inside.

        The simulations differ in how long starts and exits take, and so in the order of what happens at nearly the
        same instant.
        """
        return max(self.least_s - self.run_s, self.run_s - self.most_s, 0.0) / self.run_s


def resimulate(
    recorded: Sequence[RecordedEvent],
    workload: WorkloadFile,
    cluster: ClusterConfig,
    policy: tuple[PolicySpec, RoundRules],
    *,
    seeds: int = RESIMULATION_SEEDS,
) -> list[ResimulatedJob]:
    """Simulates a recorded run, and with several seeds of drawn costs; returns the jobs that ended in it, by number.

    Like the run, a simulation starts without any measured speed, learns speeds from reports, and predicts others. Jobs
    arrive when they did, to the millisecond: one that the workload has at the instant of a solve may miss that solve.
    """
    run_s, costs = recorded_completion_times(recorded), measure_costs(recorded)
    arrived_at = {event.job.job_id: event.at for event, _ in recorded if isinstance(event, JobSubmitted)}
    drawn = costs.without_single_times()
    simulated: dict[JobId, list[float]] = {job_id: [] for job_id in run_s}
    for seed, known in ((0, costs), *((seed, drawn) for seed in range(seeds))):
        experiment = workload_experiment(workload, cluster, known)
        jobs = [replace(job, at=arrived_at.get(job.request.job_id, job.at)) for job in experiment.jobs]
        result = simulate(jobs, resimulation_scenario(experiment, known, cluster, policy, seed))
        for job in result.jobs:
            if job.job_id in simulated:
                simulated[job.job_id].append(job.jct_s)
    return [
        ResimulatedJob(job_id, run_s[job_id], seen[0], min(seen), max(seen))
        for job_id, seen in sorted(simulated.items())
        if seen and run_s[job_id] > 0
    ]


def recorded_predictions(costs: MeasuredCosts) -> PredictionSettings:
    """Returns settings by which a simulation predicts speeds when the run did, from the facts that the run knew."""
    if not costs.predictions:
        return PredictionSettings()
    from optimizer.planning.machine_recommendation import specs_by_accelerator
    from walras.spec.catalog import load_catalog

    return PredictionSettings(
        asked=tuple((each.at + costs.begins_at, each.took_s) for each in costs.predictions),
        sheets=specs_by_accelerator(load_catalog()),
        facts=tuple(facts.told(costs.begins_at) for facts in costs.facts),
    )


def resimulation_scenario(
    experiment: Experiment,
    costs: MeasuredCosts,
    cluster: ClusterConfig,
    policy: tuple[PolicySpec, RoundRules],
    seed: int,
) -> Scenario:
    """Returns the scenario of a live cluster, from its configuration and the measured costs."""
    spec, rules = policy
    return Scenario(
        experiment.pools,
        experiment.truth,
        spec,
        rules,
        world=live_world_parameters(costs, rules, cluster.lease),
        incidents=experiment.incidents,
        solve_time=SolveTime(SolveClock.FIXED, costs.solve_s),
        seed=seed,
        oracle=False,
        forecasts=recorded_predictions(costs),
    )


def live_world_parameters(costs: MeasuredCosts, rules: RoundRules, lease_s: float | None = None) -> WorldParameters:
    """Returns the report intervals of a live cluster with leases of `lease_s` seconds (None: unknown).

    A beat follows the answer to the one before, so that beats lie further apart than an agent waits: as far as the
    reports do in which they came.
    """
    if lease_s is None:
        report_s = costs.beat_s or _HEARTBEAT_S
    else:
        waits_s = min(_HEARTBEAT_S, lease_s / _HEARTBEATS_PER_LEASE)
        beats = round(costs.report_gap_s / waits_s)
        report_s = costs.report_gap_s / beats if beats else waits_s
    return WorldParameters(
        report_s=report_s,
        # The server forwards progress once a round, or sooner where a profiling lease is shorter.
        forward_every_s=min([length for length in (rules.round_s, rules.profiling_s) if length > 0], default=1.0),
        window_s=_WINDOW_S,
        unmeasured_steps=_UNMEASURED_STEPS,
        cost_noise=costs.cost_noise,
        attempt_times=costs.attempt_times(),
    )


UserAction = JobHeld | JobReleased | JobReprioritised | JobBudgetChanged | JobDeadlineChanged | JobProjectChanged


@dataclass(frozen=True, slots=True)
class ReplayedJob:
    """Completion times of one job in the recording and in the simulations, seconds."""

    job_id: JobId
    kind: str
    recorded_s: float
    #: Median, least and largest over the seeds.
    simulated_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class RecordingReplay:
    """The result of simulating a recording."""

    jobs: tuple[ReplayedJob, ...]
    results: tuple[SimulationResult, ...]

    @property
    def median_error(self) -> float:
        """Returns the median of |simulated - recorded| / recorded over the jobs; nan without jobs."""
        errors = [abs(job.simulated_s - job.recorded_s) / job.recorded_s for job in self.jobs if job.recorded_s > 0]
        return median(errors) if errors else nan


def with_policy_from(recording: Recording, spec: PolicySpec, rules: RoundRules, from_s: float) -> Recording:
    """Returns the run under its own policies until `from_s` seconds after its first submission, then under this one."""
    from_at = recording.jobs[0].at + from_s if from_s > 0 else 0.0
    before = [change for change in recording.header.policies if change.at < from_at]
    return recording.under((*before, PolicyChanged(from_at, spec, rules)))


def replay_recording(recording: Recording, seeds: Sequence[int]) -> RecordingReplay:
    """Simulates the recording once per seed. Compares the jobs that ended in the run and in every simulation."""
    simulated: dict[JobId, list[float]] = {}
    results = []
    for seed in seeds:
        result = _simulate_recording(recording, seed)
        results.append(result)
        for ended in result.jobs:
            simulated.setdefault(ended.job_id, []).append(ended.jct_s)
    jobs = []
    for job in recording.jobs:
        seen = simulated.get(job.request.job_id, [])
        if isfinite(job.jct_s) and len(seen) == len(results):
            times = (job.jct_s, median(seen), min(seen), max(seen))
            jobs.append(ReplayedJob(job.request.job_id, job.request.kind, *times))
    return RecordingReplay(tuple(jobs), tuple(results))


def _simulate_recording(recording: Recording, seed: int) -> SimulationResult:
    header, costs = recording.header, recording.header.costs
    first, *later = header.policies
    pools = tuple(costs.with_boots(PoolModel(each.pool, each.machines, RentalTerms(0.0))) for each in header.pools)
    scenario = Scenario(
        pools,
        completed_truth(recording),
        first.policy,
        first.rules,
        world=live_world_parameters(costs, first.rules),
        incidents=tuple(PoolRevocation(seen.at + costs.begins_at, PoolId(seen.pool_id)) for seen in costs.revocations),
        solve_time=SolveTime(SolveClock.FIXED, costs.solve_s),
        seed=seed,
        oracle=False,
        forecasts=recorded_predictions(costs),
    )
    simulation = Simulation(scenario)
    acts: Iterable[PolicyChanged | UserAction] = chain(later, *(getattr(header.acts, name) for name in _ACTS))
    for event in acts:
        simulation.engine.send_later(event)
    return simulation.run(job.simulated() for job in recording.jobs)


def completed_truth(recording: Recording) -> GroundTruth:
    """Returns the measured speeds, and an estimate for every configuration that was not measured.

    The estimate scales a speed measured elsewhere by the ratio of the types' nominal speeds and of the gangs' sizes; it
    is the median if the kind was measured in several places.
    """
    truth = recording.header.costs.truth()
    shapes = (each.pool.shape for each in recording.header.pools)
    nominal = largest_by_type((shape.accelerator, shape.nominal_speed) for shape in shapes)
    measured: dict[Kind, list[SpeedKey]] = {}
    for key in truth.speeds:
        if key.accelerator in nominal and key.count != ANY_COUNT:
            measured.setdefault(key.kind, []).append(key)
    guessed: dict[SpeedKey, float] = {}
    for job in recording.jobs:
        kind = job.request.kind
        for accelerator, count in truth.accelerators_of(job.request, nominal):
            wanted = SpeedKey(kind, accelerator, count)
            if wanted in truth.speeds or wanted in guessed or kind not in measured:
                continue
            guessed[wanted] = median(
                truth.speeds[key] * nominal[accelerator] / nominal[key.accelerator] * count / key.count
                for key in measured[kind]
            )
    return replace(truth, speeds={**truth.speeds, **guessed})


def replay_table(replayed: RecordingReplay) -> Table:
    """Returns a table of every job's completion time, recorded and simulated, and the means."""
    runs = len(replayed.results)
    table = Table(title=f"completion times, recorded and simulated ({runs} {'seed' if runs == 1 else 'seeds'})")
    for title in ("job", "kind", "recorded s", "simulated s", "least", "most", "change"):
        table.add_column(title, justify="left" if title == "kind" else "right")
    for job in replayed.jobs:
        times = (job.recorded_s, job.simulated_s, job.least_s, job.most_s)
        table.add_row(
            str(job.job_id),
            Text(job.kind),
            *(f"{each:,.1f}" for each in times),
            _relative_change(job.simulated_s, job.recorded_s),
        )
    if replayed.jobs:
        recorded, simulated = (
            mean(getattr(job, name) for job in replayed.jobs) for name in ("recorded_s", "simulated_s")
        )
        table.add_section()
        table.add_row(
            "mean", "", f"{recorded:,.1f}", f"{simulated:,.1f}", "", "", _relative_change(simulated, recorded)
        )
    return table


def _relative_change(after: float, before: float) -> str:
    return f"{after / before - 1.0:+.1%}" if before > 0 else "-"


def replay_json(replayed: RecordingReplay, recording: Recording) -> dict[str, Any]:
    """Returns the comparison as plain data."""
    return nonfinite_to_none(
        {
            "seeds": len(replayed.results),
            "median_error": replayed.median_error,
            "left_out": list(recording.header.left_out),
            "jobs": [asdict(job) for job in replayed.jobs],
        }
    )
