"""One simulated run: takes a scheduler core, a simulated world and a workload, and returns a `SimulationResult`.

`Scenario` holds everything that determines a run besides its jobs. Equal scenarios and workloads give equal runs.
Conservation laws (steps, accelerator-seconds, money) are checked in every run. Parts that most runs leave out, such as
the prediction of speeds, are imported by the runs that have them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, JobTransitioned, Solve
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.events import EntityShare, Event, PolicyChanged, Proposal, SharesDeclared
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import FactsTold, RestartMeasured, ThroughputMeasured
from scheduler.core.state.fleet import split_gang
from scheduler.core.state.throughput import ScoredBelief
from scheduler.world.attempts import AttemptSimulator, JobProgress, SimulatedJob, WorldParameters
from scheduler.world.engine import (
    Engine,
    EventHandler,
    RandomStreams,
    RunLimits,
    RunOutcome,
    SolveStats,
    SolveTime,
    rare_garbage_collection,
)
from scheduler.world.machines import PoolModel, SimulatedMachines
from scheduler.world.world import MakeAttemptSimulator, SimulatedWorld
from simulator.faults import FaultInjector, FaultModel, Incident
from simulator.ground_truth import (
    GroundTruth,
    LengthEstimates,
    PredictionSettings,
    RandomFailures,
    SpeedKey,
    TruePhysics,
    inject_random_failures,
    largest_by_type,
    with_estimate_error,
)
from simulator.metrics import JobMetrics, JobMetricsSink, MetricsCollector, PoolMeter
from walras.cluster import PoolId
from walras.errors import ConfigError
from walras.job_request import JobId, JobRequest, Kind
from walras.model_facts import ModelFacts
from walras.states import JobState

if TYPE_CHECKING:
    from simulator.online_predictor import OnlinePredictor


#: Relative tolerance of the conservation laws, which sum over many segments of steps, seconds and money.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class SchedulerWiring:
    """The parts of a run that another simulator's world replaces (`simulator.worlds`)."""

    core: Callable[[], EventHandler] = SchedulerCore
    solver: Callable[[Solve], Proposal] = run_solve
    pace: MakeAttemptSimulator = AttemptSimulator


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that determines a run besides its workload. Equal scenarios and workloads give equal runs."""

    pools: tuple[PoolModel, ...]
    truth: GroundTruth
    policy: PolicySpec
    rules: RoundRules = field(default_factory=RoundRules)
    world: WorldParameters = field(default_factory=WorldParameters)
    faults: FaultModel = field(default_factory=FaultModel)
    incidents: tuple[Incident, ...] = ()
    solve_time: SolveTime = field(default_factory=SolveTime)
    lengths: LengthEstimates = field(default_factory=LengthEstimates)
    random_failures: RandomFailures = field(default_factory=RandomFailures)
    limits: RunLimits = field(default_factory=RunLimits)
    seed: int = 0
    #: True: an oracle announces speeds and restart costs of a kind before its first job is submitted.
    #: False: the scheduler learns them from reports (needs `world.report_s`).
    oracle: bool = True
    forecasts: PredictionSettings = field(default_factory=PredictionSettings)
    #: The parts of the fleet that projects and users were given.
    shares: tuple[EntityShare, ...] = ()
    wiring: SchedulerWiring = field(default_factory=SchedulerWiring)


@dataclass(slots=True)
class SimulationResult:
    outcome: RunOutcome
    ended_at: float
    first_submitted_at: float
    last_ended_at: float
    #: Jobs that ended, in order of their ends; empty if the caller passed a sink.
    jobs: list[JobMetrics]
    #: Jobs that did not end, by number.
    unfinished: list[JobMetrics]
    pools: list[PoolMeter]
    #: Cost of each pool's machines, USD.
    bills: dict[PoolId, float]
    #: Steps made by all jobs, and the part of them lost with attempts.
    worked_steps: float
    lost_steps: float
    events: int
    solves: SolveStats
    wall_s: float
    #: Violated conservation laws, in words. Any entry is a defect of the simulator or the scheduler.
    violations: list[str] = field(default_factory=list)
    #: Predicted speeds against measured ones; empty where an oracle announced the speeds.
    scored: list[ScoredBelief] = field(default_factory=list)
    #: Whether a random number was drawn. If not, another seed gives the same run.
    drawn: bool = True


class Simulation:
    """The parts of a run, wired together. `core` and the recorder serve tests and tools."""

    def __init__(
        self, scenario: Scenario, *, sink: JobMetricsSink | None = None, core: EventHandler | None = None
    ) -> None:
        self.scenario = scenario
        wiring = scenario.wiring
        self.core: EventHandler = core if core is not None else wiring.core()
        self.engine = Engine(self.core, wiring.solver, scenario.solve_time)
        self.ended: list[JobMetrics] = []
        self._streams = streams = RandomStreams(scenario.seed)
        self.metrics = MetricsCollector(self.engine, sink or self.ended.append, self._most_usd_per_h)
        self.machines = SimulatedMachines(self.engine, scenario.pools, streams.stream("boots"))
        physics = TruePhysics(scenario.truth, self.machines, scenario.world, streams)
        self.world = SimulatedWorld(self.machines, physics, scenario.world, streams, wiring.pace)
        self.faults = FaultInjector(self.machines, self.world, scenario.faults, streams)
        self.predictor = _predictor(self.engine, self.core, scenario.forecasts)
        self.engine.on_command[JobTransitioned] = self._transitioned
        self.world.on_end.append(self._job_ended)
        #: Number of jobs that have ended.
        self.jobs_ended = 0
        self._worked_steps = 0.0
        self._lost_steps = 0.0
        self._violations: list[str] = []
        self._began = 0.0

    def run(
        self,
        workload: Iterable[SimulatedJob],
        recorder: Callable[[Event, list[Command]], None] | None = None,
    ) -> SimulationResult:
        """Runs the workload to its end or to a limit."""
        self.begin(workload, recorder)
        with rare_garbage_collection():
            outcome = self.engine.run(self.scenario.limits)
        return self.finish(outcome)

    def begin(
        self,
        workload: Iterable[SimulatedJob],
        recorder: Callable[[Event, list[Command]], None] | None = None,
    ) -> None:
        """Prepares the run up to its first event; then the caller of `engine.run` decides how far it goes."""
        scenario, engine = self.scenario, self.engine
        engine.recorder = recorder
        self._began = perf_counter()
        engine.send_later(PolicyChanged(0.0, scenario.policy, scenario.rules))
        if scenario.shares:
            engine.send_later(SharesDeclared(0.0, scenario.shares))
        if self.predictor is not None:
            self.predictor.begin()
        self.machines.begin(0.0)
        self.faults.script(scenario.incidents)
        jobs = inject_random_failures(workload, scenario.random_failures, self._streams)
        jobs = with_estimate_error(jobs, scenario.lengths, self._streams.stream("lengths"))
        self.world.feed(jobs, _SpeedOracle(scenario).announce if scenario.oracle else _announce_nothing)

    def finish(self, outcome: RunOutcome) -> SimulationResult:
        """Returns the result of a run that ended with `outcome`. Raises ConfigError for a policy that failed."""
        engine = self.engine
        self._check_policy()
        self.metrics.settle(engine.now)
        self._check_fleet()
        return SimulationResult(
            outcome,
            engine.now,
            self.metrics.first_submitted_at,
            self.metrics.last_ended_at,
            self.ended,
            list(self.metrics.open.values()),
            list(self.metrics.pools.values()),
            {pool_id: self.machines.usd(pool_id, engine.now) for pool_id in self.metrics.pools},
            self._worked_steps,
            self._lost_steps,
            engine.events,
            engine.solve_stats,
            perf_counter() - self._began,
            self._violations,
            self.core.ledger.table.scored() if isinstance(self.core, SchedulerCore) else [],
            self._streams.drawn,
        )

    def _most_usd_per_h(self, job_id: JobId) -> float:
        ledger = self.core.ledger if isinstance(self.core, SchedulerCore) else None
        return inf if ledger is None else ledger.most_usd_per_h(ledger.jobs[job_id])

    def _transitioned(self, now: float, command: JobTransitioned) -> None:
        self.world.transitioned(now, command)
        self.metrics.job(now, command)

    # -- conservation laws

    def _job_ended(self, _: float, job: JobProgress, state: JobState) -> None:
        self.jobs_ended += 1
        self._worked_steps += job.worked_steps
        self._lost_steps += job.lost_steps
        credited = job.worked_steps - job.lost_steps
        job_id = job.plan.request.job_id
        if abs(credited - job.steps) > TOLERANCE * max(1.0, abs(credited), abs(job.steps)):
            self._violations.append(f"job {job_id} is credited {job.steps} steps, it made {credited}")
        if state is JobState.SUCCEEDED and job.steps != job.plan.steps:
            self._violations.append(f"job {job_id} succeeded after {job.steps} of {job.plan.steps} steps")

    def _check_policy(self) -> None:
        """Raises ConfigError for a policy that failed.

        Live jobs then run in queue order; a simulation that silently did the same would give figures of another policy.
        """
        core = self.engine.core
        fault = core.ledger.policy.fault if isinstance(core, SchedulerCore) else None
        if fault is not None:
            raise ConfigError(f"policy {self.scenario.policy.name.rpartition('/')[2]}: {fault}", field="policy")

    def _check_fleet(self) -> None:
        at = self.engine.now
        for pool_id, meter in self.metrics.pools.items():
            machine_s = self.machines.machine_s(pool_id, at)
            there_s = machine_s * meter.pool.shape.accelerators
            if meter.held_s > there_s * (1 + TOLERANCE):
                self._violations.append(f"{pool_id}: {meter.held_s} accelerator-seconds held, {there_s} were there")
            usd = self.machines.price_x_time(pool_id, at)
            if abs(meter.usd - usd) > 0.01:
                self._violations.append(f"{pool_id}: {meter.usd} USD counted, price x time is {usd}")
            if self.machines.usd(pool_id, at) < usd - 0.01:
                self._violations.append(f"{pool_id}: the bill is {self.machines.usd(pool_id, at)} USD, used were {usd}")


def simulate(
    workload: Iterable[SimulatedJob],
    scenario: Scenario,
    *,
    sink: JobMetricsSink | None = None,
    recorder: Callable[[Event, list[Command]], None] | None = None,
    watch: Callable[["Simulation"], None] | None = None,
) -> SimulationResult:
    """Runs a workload, in order of arrival, through the scheduler and a simulated world.

    `sink` takes each job's metrics when it has ended; without it `SimulationResult.jobs` collects them. `watch` is
    called with the run before it begins, so that another thread can observe it. Raises ConfigError where the workload
    turns out to be unreadable or the policy fails, and AssertionError for a defect of the scheduler (an accelerator
    granted twice, a resume from steps that no checkpoint has).
    """
    simulation = Simulation(scenario, sink=sink)
    if watch is not None:
        watch(simulation)
    return simulation.run(workload, recorder)


class _SpeedOracle:
    """Announces the true speeds and costs of a kind before its first job."""

    def __init__(self, scenario: Scenario) -> None:
        self._truth = scenario.truth
        #: Accelerators of the largest machine by type.
        shapes = (model.pool.shape for model in scenario.pools)
        self._fleet = largest_by_type((shape.accelerator, shape.accelerators) for shape in shapes)
        self._told: set[SpeedKey] = set()
        self._known: set[tuple[Kind, object, object]] = set()

    def announce(self, at: float, request: JobRequest) -> Iterable[Event]:
        if (request.kind, request.demands, request.sizes) in self._known:
            return ()
        self._known.add((request.kind, request.demands, request.sizes))
        costs = self._truth.costs_of(request.kind)
        events: list[Event] = [RestartMeasured(at, request.kind, costs.restart_s)]
        if (exchanged := self._truth.gradient_bytes.get(request.kind)) is not None:
            events.append(FactsTold(at, request.kind, ModelFacts(gradient_bytes=exchanged)))
        stated = bool(request.plans)  # its plans state its speed
        for accelerator, count in () if stated else self._truth.accelerators_of(request, self._fleet):
            key = SpeedKey(request.kind, accelerator, count)
            if key not in self._told:
                self._told.add(key)
                parts = tuple(split_gang(count, request.nodes, self._fleet[accelerator]))
                steps_per_s = self._truth.speed_segment(request.kind, accelerator, parts).steps_per_s
                events.append(ThroughputMeasured(at, request.kind, accelerator, count, steps_per_s))
        return events


def _announce_nothing(_: float, __: JobRequest) -> Iterable[Event]:
    return ()


def _predictor(engine: Engine, core: EventHandler, settings: PredictionSettings) -> "OnlinePredictor | None":
    if (settings.every_s == inf and not settings.asked) or not isinstance(core, SchedulerCore):
        return None
    from simulator.online_predictor import OnlinePredictor

    return OnlinePredictor(engine, core, settings)
