"""One simulated run: a scheduler core, a world, a workload, and what came of them."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, JobTransitioned, Solve
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, PolicyChanged, Proposal, RestartMeasured, ThroughputMeasured
from scheduler.core.ledger.fleet import split
from scheduler.core.ledger.throughput import Scored
from scheduler.core.rules import RoundRules
from scheduler.core.solving import solve
from simulator.attempts import Attempts, Job, WorldModel
from simulator.engine import Core, Engine, Limits, Outcome, SolveStats, SolveTime
from simulator.faults import FaultModel, Faults, Incident
from simulator.job import SimulatedJob
from simulator.lengths import Lengths, as_told
from simulator.machines import Machines, PoolModel
from simulator.metrics import JobMeasure, Metrics, PoolMeter, Sink
from simulator.mishaps import Mishaps, befallen
from simulator.predicting import Forecasts, Predicting
from simulator.streams import Streams
from simulator.truth import SpeedKey, Truth
from simulator.world import MakeAttempts, World
from walras.ids import Kind, PoolId
from walras.request import JobRequest
from walras.states import JobState

#: Steps may differ by this part from rate x time (sums of many stretches), and seconds and money likewise.
TOLERANCE = 1e-6
#: Objects made since the last search for unreachable cycles before the next.
_YOUNG_MAX = 50_000


@dataclass(frozen=True, slots=True)
class Wiring:
    """The parts that a run is made of. A compatibility profile brings others (`simulator.compat`)."""

    core: Callable[[], Core] = SchedulerCore
    solver: Callable[[Solve], Proposal] = solve
    pace: MakeAttempts = Attempts


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides a run besides the workload. Equal scenarios and workloads give equal runs."""

    pools: tuple[PoolModel, ...]
    truth: Truth
    policy: PolicySpec
    rules: RoundRules = field(default_factory=RoundRules)
    world: WorldModel = field(default_factory=WorldModel)
    faults: FaultModel = field(default_factory=FaultModel)
    incidents: tuple[Incident, ...] = ()
    solve_time: SolveTime = field(default_factory=SolveTime)
    lengths: Lengths = field(default_factory=Lengths)
    mishaps: Mishaps = field(default_factory=Mishaps)
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    #: True: the scheduler is told speeds and restart costs before a job of the kind is submitted.
    #: False: it learns them from what jobs report (needs `world.report_s`).
    oracle: bool = True
    forecasts: Forecasts = field(default_factory=Forecasts)
    wiring: Wiring = field(default_factory=Wiring)


@dataclass(slots=True)
class Result:
    """What came of a run."""

    outcome: Outcome
    ended_at: float
    first_submitted_at: float
    last_ended_at: float
    #: Jobs that ended, in order of ending (empty if the caller took them with a sink of its own).
    jobs: list[JobMeasure]
    #: Jobs that did not end, by number.
    unfinished: list[JobMeasure]
    pools: list[PoolMeter]
    #: What each pool's machines cost, USD.
    bills: dict[PoolId, float]
    #: Steps made over all jobs, and those of them lost with an attempt.
    worked_steps: float
    lost_steps: float
    events: int
    solves: SolveStats
    wall_s: float
    #: Conservation laws that did not hold, in words. Anything here is a mistake of ours.
    violations: list[str] = field(default_factory=list)
    #: What was believed of speeds before they were measured; nothing where they were told.
    scored: list[Scored] = field(default_factory=list)


class Simulation:
    """The parts of a run, wired together. `recorder` and `core` are there for tests and tools."""

    def __init__(self, scenario: Scenario, *, sink: Sink | None = None, core: Core | None = None) -> None:
        self.scenario = scenario
        wiring = scenario.wiring
        self.core: Core = core if core is not None else wiring.core()
        self.engine = Engine(self.core, wiring.solver, scenario.solve_time)
        self.ended: list[JobMeasure] = []
        self._streams = streams = Streams(scenario.seed)
        self.metrics = Metrics(self.engine, sink if sink is not None else self.ended.append)
        self.machines = Machines(self.engine, scenario.pools, streams.stream("boots"))
        self.world = World(self.engine, self.machines, scenario.truth, scenario.world, streams, wiring.pace)
        self.faults = Faults(self.engine, self.machines, self.world, scenario.faults, streams)
        self.predicting: Predicting | None = None
        if scenario.forecasts.every_s < inf and isinstance(self.core, SchedulerCore):
            self.predicting = Predicting(self.engine, self.core, scenario.forecasts)
        self.engine.on_command[JobTransitioned] = self._transitioned
        self.world.on_end.append(self._job_ended)
        self._worked_steps = 0.0
        self._lost_steps = 0.0
        self._violations: list[str] = []

    def run(
        self,
        workload: Iterable[SimulatedJob],
        recorder: Callable[[Event, list[Command]], None] | None = None,
    ) -> Result:
        """Run the workload to its end (or a limit)."""
        scenario, engine = self.scenario, self.engine
        engine.recorder = recorder
        began = perf_counter()
        engine.schedule(0.0, _first, PolicyChanged(0.0, scenario.policy, scenario.rules))
        if self.predicting is not None:
            self.predicting.begin()
        self.machines.begin(0.0)
        self.faults.script(scenario.incidents)
        jobs = befallen(workload, scenario.mishaps, self._streams)
        jobs = as_told(jobs, scenario.lengths, self._streams.stream("lengths"))
        self.world.feed(jobs, _Oracle(scenario).foretell if scenario.oracle else _silent)
        with _few_collections():
            outcome = engine.run(scenario.limits)
        self.metrics.settle(engine.now)
        self._check_fleet()
        return Result(
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
            perf_counter() - began,
            self._violations,
            self.core.ledger.table.scored() if isinstance(self.core, SchedulerCore) else [],
        )

    def _transitioned(self, now: float, command: JobTransitioned) -> None:
        self.world.transitioned(now, command)
        self.metrics.job(now, command)

    # -- what must be true whatever the scheduler does

    def _job_ended(self, _: float, job: Job, state: JobState) -> None:
        self._worked_steps += job.worked_steps
        self._lost_steps += job.lost_steps
        credited = job.worked_steps - job.lost_steps
        job_id = job.plan.request.job_id
        if not _equal(credited, job.steps):
            self._violations.append(f"job {job_id} is credited {job.steps} steps, it made {credited}")
        if state is JobState.SUCCEEDED and job.steps != job.plan.steps:
            self._violations.append(f"job {job_id} succeeded after {job.steps} of {job.plan.steps} steps")

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
    sink: Sink | None = None,
    recorder: Callable[[Event, list[Command]], None] | None = None,
) -> Result:
    """Run a workload (in order of arrival) through the scheduler and a simulated world.

    `sink` takes each job's measure when it has ended; without it `Result.jobs` collects them. Raises ConfigError where
    the workload turns out to be unreadable, and AssertionError for a mistake of the scheduler (an accelerator granted
    twice, a resume from steps that no checkpoint has).
    """
    return Simulation(scenario, sink=sink).run(workload, recorder)


class _Oracle:
    """Tells the truth about a kind before the first job that needs it."""

    def __init__(self, scenario: Scenario) -> None:
        self._truth = scenario.truth
        #: Accelerators of the largest machine by type.
        self._fleet: dict[str, int] = {}
        for shape in (model.pool.shape for model in scenario.pools):
            self._fleet[shape.accelerator] = max(shape.accelerators, self._fleet.get(shape.accelerator, 0))
        self._told: set[SpeedKey] = set()
        self._known: set[tuple[Kind, object, object]] = set()

    def foretell(self, at: float, request: JobRequest) -> Iterable[Event]:
        if (request.kind, request.demands, request.sizes) in self._known:
            return ()
        self._known.add((request.kind, request.demands, request.sizes))
        costs = self._truth.costs_of(request.kind)
        events: list[Event] = [RestartMeasured(at, request.kind, costs.restart_s)]
        for accelerator, count in self._truth.accelerators_of(request, self._fleet):
            key = SpeedKey(request.kind, accelerator, count)
            if key not in self._told:
                self._told.add(key)
                parts = tuple(split(count, request.nodes, self._fleet[accelerator]))
                steps_per_s = self._truth.stretch(request.kind, accelerator, parts).steps_per_s
                events.append(ThroughputMeasured(at, request.kind, accelerator, count, steps_per_s))
        return events


@contextmanager
def _few_collections() -> Iterator[None]:
    """A run makes many small objects and hardly a cycle among them: looking for cycles so often finds nothing.

    What was there before, such as the jobs of a trace, is not looked at again and again.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _YOUNG_MAX) if before[0] else 0, *before[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def _silent(_: float, __: JobRequest) -> Iterable[Event]:
    return ()


def _first(_: float, event: Event) -> Iterable[Event]:
    return (event,)


def _equal(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(1.0, abs(a), abs(b))
