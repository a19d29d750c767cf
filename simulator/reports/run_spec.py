"""One run of a study: its complete specification, the key derived from it, and its execution.

Two specifications with the same key give the same metrics, on any number of processes. The key covers the content of
every file, not its name, so a changed file makes another run.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

import walras
from optimizer.policy import PolicySpec, places_over_pools
from optimizer.registry import FILE_PREFIX, make
from scheduler.core.commands import Command
from scheduler.core.events import Event
from scheduler.core.explain.feasibility import PoolLimit, infeasibility
from scheduler.core.rules import RoundRules, dump_policy
from scheduler.world.attempts import SimulatedJob, WorldParameters
from scheduler.world.engine import SolveClock
from simulator.experiment import Experiment, load_experiment, trace_experiment
from simulator.measured_costs import load_measured_costs
from simulator.reports.baselines import BoundsChoice, JobBaselines
from simulator.reports.run_summary import RunSummary, SummaryContext, summarise_run
from simulator.shipped_configs import find_cluster, find_conditions, find_workload, is_path, load_named_policy
from simulator.simulation import Scenario, Simulation, SimulationResult, simulate
from simulator.workloads.formats import read_trace
from simulator.workloads.generators import generate_jobs, generator_request
from simulator.workloads.trace_source import GeneratedSettings, ReadOptions, ReadSettings, SkippedRows, Trace
from simulator.worlds.world_registry import (
    WALRAS,
    LeastUse,
    WorldRequest,
    find_world,
    make_world_run,
    resolve_world_policy,
)
from walras.errors import ConfigError, system_refusals
from walras.job_request import JobId
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml
from walras.states import JobState

if TYPE_CHECKING:
    from simulator.conditions import Conditions

#: Schema number of descriptions and of cells' files; a new number invalidates every cell.
SCHEMA = 3
_GENERATE = "generate:"
_REPORT_S = 60.0
#: Settings whose name differs from that of their field.
_SETTINGS = {"jobs": "trace_jobs", "rate_per_h": "rate"}
#: The policy with which finish-time fairness compares.
_REFERENCE = "isolated"
EventRecorder = Callable[[Event, list[Command]], None]
#: Called with the number of jobs (None: unknown) and the run.
RunWatcher = Callable[[int | None, Simulation], None]


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """Options of a generated workload; None: the generator's default."""

    jobs: int | None = None
    rate_per_h: float | None = None
    gangs: bool | None = None
    priorities: bool = False
    slos: bool = False
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """The source of the jobs: a file, the name of a shipped workload, or `generate:NAME`."""

    name: str
    format: str | None = None
    reading: ReadOptions = field(default_factory=ReadOptions)
    speeds: str | None = None
    measured: str | None = None
    #: For Sia's world: a folder that says how applications learn; None: the folder of their speeds.
    learning: str | None = None
    made: GeneratorOptions = field(default_factory=GeneratorOptions)

    @property
    def generator(self) -> str | None:
        """Returns the name of the generator; None for a file."""
        return self.name.removeprefix(_GENERATE) if self.name.startswith(_GENERATE) else None


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run. Generated jobs and all random draws follow from the seed, whatever the policy is."""

    source: WorkloadSource
    cluster: str
    policy: str
    seed: int = 0
    bounds: BoundsChoice = BoundsChoice.CHEAP
    #: True: the policy `isolated` is simulated too, for finish-time fairness against it.
    fairness: bool = False
    #: A file of conditions (`simulator.conditions`); None: no randomness, no costs and no faults.
    conditions: str | None = None
    #: The world whose rules and physics hold (`simulator.worlds.world_registry`).
    world: str = WALRAS
    #: Such as `1001-2000`: metrics over jobs cover these, in order of arrival. None: all jobs.
    window: str | None = None
    #: The run ends at this instant, seconds; None: when all jobs have ended.
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """The input of the simulator. The jobs can be iterated only once."""

    jobs: Iterable[SimulatedJob]
    scenario: Scenario
    #: Seconds of each job alone in a world where speeds and steps do not determine it.
    alone_s: Mapping[JobId, float] | None = None
    #: What each job needs there; None with `alone_s`: no lower bound is known.
    least: Mapping[JobId, LeastUse] | None = None
    #: Number of workload rows that could not be read and were left out.
    skipped: SkippedRows = field(default_factory=SkippedRows)
    #: Number of jobs, if it is known before they are made.
    count: int | None = None


@dataclass(slots=True)
class CompletedRun:
    """A run, its result, and the baselines of its jobs."""

    spec: RunSpec
    result: SimulationResult
    baselines: JobBaselines
    summary: RunSummary
    #: Number of workload rows that could not be read and were left out.
    skipped: SkippedRows = field(default_factory=SkippedRows)
    #: Whether another seed could give other metrics.
    depends_on_seed: bool = True


def may_be_without_chance(run: RunSpec) -> bool:
    """Returns whether nothing random precedes the run, so that only the run shows whether the seed is used."""
    return run.source.generator is None and run.world == WALRAS


def execute_run(run: RunSpec, recorder: EventRecorder | None = None, watch: RunWatcher | None = None) -> CompletedRun:
    """Simulates a run; `watch` is called with it before it begins. Raises ConfigError for errors in the input."""
    window = parse_window(run.window)
    ready = prepare_run(run)
    baselines = JobBaselines(ready.scenario.pools, ready.scenario.truth, ready.alone_s, ready.least)
    result = simulate(
        baselines.recorded(ready.jobs), ready.scenario, recorder=recorder, watch=watch and partial(watch, ready.count)
    )
    isolated, isolated_drew = _isolated_jct_s(run) if run.fairness else (None, False)
    is_measured = ready.scenario.solve_time.clock is SolveClock.MEASURED
    by_chance = result.drawn or isolated_drew or is_measured or not may_be_without_chance(run)
    bounds = run.bounds if baselines.has_bounds else BoundsChoice.NONE
    context = SummaryContext(baselines, bounds, isolated, ready.skipped.count, window)
    if window is not None and window[0] > len(baselines):
        raise ConfigError(
            f"no job is number {window[0]}: there are {len(baselines)}", field="window", fix="begin earlier"
        )
    return CompletedRun(run, result, baselines, summarise_run(result, context), ready.skipped, by_chance)


def parse_window(text: str | None) -> tuple[int, int] | None:
    """Parses `1001-2000`, both inclusive, counted from 1. Raises ConfigError."""
    if text is None:
        return None
    first, _, last = text.partition("-")
    if not all(each.isascii() and each.isdigit() and len(each) < 10 for each in (first, last)) or not (
        1 <= int(first) <= int(last)
    ):
        raise ConfigError(f"window {text!r}", field="window", fix="write numbers of jobs, such as 1001-2000")
    return int(first), int(last)


def _isolated_jct_s(run: RunSpec) -> tuple[dict[JobId, float], bool]:
    """Returns completion times under the reference policy, and whether a random number was drawn."""
    ready = prepare_run(replace(run, policy=_REFERENCE))
    result = simulate(ready.jobs, ready.scenario)
    return {job.job_id: job.jct_s for job in result.jobs if job.state is JobState.SUCCEEDED}, result.drawn


def prepare_run(run: RunSpec) -> PreparedRun:
    """Prepares the jobs and the scenario. Raises ConfigError for parts that do not fit together."""
    ready = _prepare(run)
    if run.until_s is None:
        return ready
    limits = replace(ready.scenario.limits, until_at=min(run.until_s, ready.scenario.limits.until_at))
    return replace(ready, scenario=replace(ready.scenario, limits=limits))


def _prepare(run: RunSpec) -> PreparedRun:
    _refuse_idle_options(run.source)
    if run.world != WALRAS:
        return _prepare_in_world(run)
    if run.source.learning is not None:
        raise ConfigError("only world 'sia' asks how applications learn", field="learning", fix="leave learning out")
    spec, rules = load_named_policy(run.policy)
    experiment = _load_experiment(run)
    _refuse_unplaced_roles(experiment, spec)
    scenario = _native_scenario(experiment, spec, rules, run.seed)
    if run.conditions is not None:
        scenario = _load_conditions(run.conditions).applied_to(scenario)
    return PreparedRun(experiment.jobs, scenario, skipped=experiment.skipped, count=experiment.count)


def _refuse_unplaced_roles(experiment: Experiment, spec: PolicySpec) -> None:
    """Raises ConfigError for a job with roles under a policy that would leave it waiting for ever."""
    jobs = experiment.jobs if isinstance(experiment.jobs, list) else []  # those of a trace have no roles
    limits = [
        PoolLimit(each.pool, float(max(each.machines, each.pool.quota) * each.pool.shape.accelerators))
        for each in experiment.pools
    ]
    for job in (job for job in jobs if job.request.has_roles):
        found = infeasibility(job.request, limits, over_pools=places_over_pools(make(spec)))
        if found is not None:
            raise ConfigError(f"job {job.request.job_id} ({job.name}) {found.detail}", field="policy", fix=found.fix)


def _refuse_idle_options(source: WorkloadSource) -> None:
    """Raises ConfigError for options without effect, because the user meant something else by them."""
    what = "generated jobs are not read" if source.generator is not None else f"{source.name} is read, not generated"
    idle = (
        {"format": source.format is not None, **_options_given(source.reading, ReadOptions())}
        if source.generator is not None
        else _options_given(source.made, GeneratorOptions())
    )
    for name, is_given in idle.items():
        if is_given:
            setting = _SETTINGS.get(name, name)
            raise ConfigError(f"{what}: {setting} would do nothing", field=setting, fix=f"leave {setting} out")


def _options_given(request: GeneratorOptions | ReadOptions, usual: GeneratorOptions | ReadOptions) -> dict[str, bool]:
    return {each.name: getattr(request, each.name) != getattr(usual, each.name) for each in fields(request)}


def _prepare_in_world(run: RunSpec) -> PreparedRun:
    world = find_world(run.world)
    source = run.source
    for given, option, why in (
        (run.conditions is not None, "conditions", "has costs and delays of its own"),
        (source.measured is not None, "measured", "has costs and speeds of its own"),
        (run.fairness and _REFERENCE not in world.policies, "fairness", f"has no policy {_REFERENCE!r}"),
        (
            run.bounds is BoundsChoice.ALL and not world.is_bounded,
            "bounds",
            "changes batches by the rounds in which a job runs, so no lower bound holds",
        ),
        (source.learning is not None and not world.learns, "learning", "does not ask how applications learn"),
    ):
        if given:
            raise ConfigError(f"world {run.world!r} {why}", field=option, fix=f"leave {option} out")
    spec, is_own = _policy_in_world(run)
    cluster = _load_cluster(run.cluster)
    trace = _load_trace(run)
    request = WorldRequest(run.world, trace, cluster, spec, is_own, run.seed, source.speeds, source.learning)
    made = make_world_run(world, request)
    return PreparedRun(made.jobs, made.scenario, made.alone_s, made.least, trace.skipped, len(trace.jobs))


def _policy_in_world(run: RunSpec) -> tuple[PolicySpec, bool]:
    world = find_world(run.world)
    try:
        spec = None if run.policy in world.policies else load_named_policy(run.policy)[0]
    except ConfigError:
        if is_path(run.policy):
            raise
        spec = None  # the error names the policies of this world
    return resolve_world_policy(world, run.policy, spec)


def _load_conditions(path: str) -> "Conditions":
    from simulator.conditions import Conditions

    return load_yaml(find_conditions(path), Conditions)


def _native_scenario(experiment: Experiment, spec: PolicySpec, rules: RoundRules, seed: int) -> Scenario:
    # Where a speed changes with progress, jobs report their speed, as live jobs do.
    world = WorldParameters(report_s=_REPORT_S) if experiment.truth.laws else WorldParameters()
    return Scenario(
        experiment.pools, experiment.truth, spec, rules, world=world, incidents=experiment.incidents, seed=seed
    )


def _load_experiment(run: RunSpec) -> Experiment:
    source = run.source
    if source.generator is not None:
        trace = _load_trace(run)
        return trace_experiment(trace, _load_cluster(run.cluster), source.speeds)
    return load_experiment(
        find_workload(source.name),
        find_cluster(run.cluster),
        speeds_path=source.speeds,
        measured=load_measured_costs(source.measured) if source.measured is not None else None,
        format=source.format,
        reading=source.reading,
    )


def _load_cluster(name: str) -> ClusterConfig:
    path = find_cluster(name)
    with system_refusals(path, fix="check the path and its permissions"):
        now = path.stat()
    return _cluster_in(path, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=100)
def _cluster_in(path: Path, _mtime_ns: int, _size: int) -> ClusterConfig:
    """Cached for the many runs of a grid and the episodes of an agent; read again when the file has changed."""
    return load_yaml(path, ClusterConfig)


def _load_trace(run: RunSpec) -> Trace:
    """Reads or generates the trace. Raises ConfigError for generated jobs with measurements."""
    source = run.source
    if source.generator is None:
        path = find_workload(source.name)
        return read_trace(path, source.format, source.reading)
    if source.measured is not None:
        raise ConfigError("generated jobs were never measured", field="measured", fix="leave measured out")
    request = generator_request(source.generator, seed=run.seed, **asdict(source.made))
    table = source.speeds if source.generator == "gavel" else None
    return Trace(source.generator, "generated", list(generate_jobs(source.generator, request, table)))


# ---------------------------------------------------------------------------------------------- the description


def describe_run(run: RunSpec) -> dict[str, Any]:
    """Returns everything that determines the metrics, as data. Raises ConfigError if a file or policy is missing."""
    return {
        "schema": SCHEMA,
        "walras": walras.__version__,
        "workload": _source_description(run),
        "cluster": _digest(find_cluster(run.cluster)),
        **_policy_description(run),
        "seed": run.seed,
        "bounds": run.bounds.value,
        **({} if run.window is None else {"window": parse_window(run.window)}),
        **({} if run.until_s is None else {"until_s": run.until_s}),
        **({} if run.conditions is None else {"conditions": _load_conditions(run.conditions).model_dump(mode="json")}),
    }


def _policy_description(run: RunSpec) -> dict[str, Any]:
    if run.world == WALRAS:
        reference = dump_policy(*load_named_policy(_REFERENCE)) if run.fairness else None
        spec, rules = load_named_policy(run.policy)
        return {"policy": dump_policy(spec, rules), "reference": reference, **_digest_of_policy_file(spec)}
    spec, is_own = _policy_in_world(run)
    policy = {"name": spec.name, "parameters": dict(spec.parameters), "own": is_own}
    return {"world": run.world, "policy": policy, "reference": _REFERENCE if run.fairness else None}


def _digest_of_policy_file(spec: PolicySpec) -> dict[str, str]:
    """Returns the digest of a policy's file beside its name; empty for policies that are not files."""
    if not spec.name.startswith(FILE_PREFIX):
        return {}
    return {"policy_file": _digest(Path(spec.name.removeprefix(FILE_PREFIX).rpartition(":")[0]))}


def _source_description(run: RunSpec) -> dict[str, Any]:
    source = run.source
    files: Iterable[tuple[str, str | None]] = (
        ("speeds", source.speeds),
        ("measured", source.measured),
        ("learning", source.learning),
    )
    data: dict[str, Any] = {name: _digest(Path(path)) for name, path in files if path is not None}
    if source.generator is not None:
        request = generator_request(source.generator, seed=run.seed, **asdict(source.made))
        return {**data, "generator": source.generator, "asked": asdict(request)}
    path = find_workload(source.name)
    beside = path.parent.parent / "throughputs" / "simulation_throughputs.json"
    if source.speeds is None and beside.exists():
        data["beside"] = _digest(beside)
    return {**data, "file": _digest(path), "format": source.format, "reading": asdict(source.reading)}


def _digest(path: Path) -> str:
    with system_refusals(path, fix="check the path"):
        if path.is_dir():  # profiles of applications
            files = sorted(each for each in path.rglob("*.csv*") if each.is_file())
            named = [f"{each.relative_to(path)} {_digest(each)}" for each in files]
            return hashlib.sha256("\n".join(named).encode()).hexdigest()
        now = path.stat()
        return _digest_of(path, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=1000)
def _digest_of(path: Path, _mtime_ns: int, _size: int) -> str:
    """Cached for the many runs of a grid; computed again when the file has changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_key(description: dict[str, Any]) -> str:
    """Returns the run's key: a hash of its description."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# ------------------------------------------------------------------------------------------ what `--set` may say


class StudySettings(GeneratedSettings, ReadSettings):
    """The same for every run of a study."""

    trace_jobs: Annotated[int, Field(ge=1)] | None = None
    """Generated: number of jobs."""
    speeds: str | None = None
    """Throughput table or speed laws (YAML) for the jobs of a trace."""
    measured: str | None = None
    """Speeds and costs measured in a live run (`measured.json`)."""
    learning: str | None = None
    """World sia: folder with the applications' statistical efficiency; default: next to the speeds."""
    conditions: str | None = None
    """A conditions file or a shipped name: costs, noise, faults, markets."""
    world: str = WALRAS
    """Scheduling rules and physics; `walras simulate workload list` names them."""
    window: str | None = None
    """Report metrics for this range of arrivals only, such as 1001-2000; all jobs run."""
    bounds: BoundsChoice = BoundsChoice.CHEAP
    """Lower bounds to compute: none, those cheap at this size, or all."""
    fairness: bool = False
    """Also simulate the `isolated` policy, for finish-time fairness."""

    def run(self, workload: str, cluster: str, policy: str, seed: int, rate_per_h: float | None) -> RunSpec:
        """Returns a run with all that is said, also of workloads of another kind."""
        made = GeneratorOptions(self.trace_jobs, rate_per_h, self.gangs, self.priorities, self.slos, self.stretch)
        source = WorkloadSource(workload, self.format, self.reading(), self.speeds, self.measured, self.learning, made)
        options = (self.bounds, self.fairness, self.conditions, self.world, self.window)
        return RunSpec(source, cluster, policy, seed, *options)


class RunSettings(StudySettings):
    """What `walras simulate run` and `compare` take."""

    rate: Annotated[float, Field(ge=0)] | None = None
    """Generated: arrivals per hour; 0: all at once."""

    other_words: ClassVar[dict[str, str]] = {**ReadSettings.other_words, "rates": "rate", "jobs": "trace_jobs"}
