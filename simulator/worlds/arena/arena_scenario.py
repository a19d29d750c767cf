"""Arena's simulator as a scenario: under first come, first served, and under Walras's plan policies.

Runs of Arena's other policies are recorded, but their rules are not published in enough detail to reproduce them.

Under our policies a job may use every place of Arena's table on which it can run: 1 to 16 accelerators of any type, at
the speed of the best parallel plan known there. The policy knows those speeds, as Arena's own does. Starts and changes
of place cost the same as under first come, first served.

Time passes in whole rounds, and all events happen at the starts of rounds. A job ends at the first start of a round by
which its run time contains all of its iterations, counted in whole iterations. A start costs the seconds of tuning the
parallel plan: tuning that fits into a round costs throughput but no progress, longer tuning one round of progress and
the throughput of two. The scheduler gets a report in rounds in which a job ends or is submitted, because no other round
could change a decision.

First come, first served has a queue for each type. Every job keeps the type and the gang that it requested, and no job
is preempted or moved. Waiting jobs are tried only in rounds in which a job has ended.

Arena's table of places has the speed of a model with a batch on a number of machines of a type, under the best known
plan. It is CSV with a header: `model`, `params`, `batch_size`, `gpu_type`, `nodes`, `gpus_per_node`,
`seconds_per_iteration` (of the whole batch), `status`: `ok`; `oom` (does not fit) and `over_300s` (too slow for a
round), which no job may use; `absent` (not measured), for which the simulator has the following rules:

* A place that is not the best of its size has the throughput of the best one, less a tenth for each halving of the
accelerators per machine.
* A best place has the throughput of the next larger measured model of the family there, times 1.8 for each step between
the two models.

Throughputs are samples per second, rounded to three decimals; iteration times follow from them, with three decimals.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, floor
from pathlib import Path

from optimizer.policy import Policy, PolicySpec
from scheduler.core.commands import BeginRound
from scheduler.core.events import (
    Event,
    RoundEnded,
)
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import Place
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from scheduler.world.attempts import (
    AttemptCosts,
    SimAttempt,
    SimAttemptPhase,
    SimulatedJob,
    SpeedSegment,
    WorldParameters,
)
from scheduler.world.engine import RandomStreams, Timer
from scheduler.world.machines import PoolModel, SimulatedMachines
from simulator.ground_truth import GroundTruth
from simulator.simulation import Scenario
from simulator.workloads.trace_source import ReadOptions, TraceJob, TraceRow, TraceSource, header_row_format
from simulator.worlds.stepped_mechanism import (
    Move,
    OrderBySubmission,
    Room,
    StepConfiguration,
    StepEndMechanism,
    StepPlacement,
    WantedAccelerators,
    WholeStepAttempts,
    admit_arrivals,
    fill_emptiest,
    free_room,
    keep_in_place,
    own_wiring,
    plan_wiring,
)
from simulator.worlds.world_registry import LeastUse, WorldRequest, WorldRun, least_use, owned_pools, required_speeds
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobRequest, Kind

#: Families of models, with their parameters from small to large.
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "wide_resnet": ("500M", "1B", "2B", "4B", "6.8B", "13B"),
    "bert": ("760M", "1.3B", "2.6B", "6.7B", "15B", "39B"),
    "moe": ("690M", "1.3B", "2.4B", "10B", "27B", "70B"),
}
_COLUMNS = (
    "model", "params", "batch_size", "gpu_type", "nodes", "gpus_per_node", "seconds_per_iteration", "status",
)  # fmt: skip
_STATUSES = ("ok", "oom", "over_300s", "absent")
#: Factor on a gang's throughput for each halving of its accelerators per machine.
_SPREAD = 0.9
#: Throughput of a model relative to the next larger one, where only the larger one was measured.
_SMALLER_MODEL = 1.8
#: Accelerators of a gang: a power of two up to this number.
GANG_MAX = 16


@dataclass(frozen=True, slots=True)
class ArenaModel:
    """A model with its batch size."""

    model: str
    params: str
    batch: int

    @property
    def kind(self) -> str:
        """Returns the name of the kind in a trace."""
        return f"{self.model} {self.params} (batch size {self.batch})"


@dataclass(frozen=True, slots=True)
class ArenaPlace:
    """A number of machines of one type, with equally many accelerators used on each."""

    accelerator: str
    machines: int
    each: int

    @property
    def accelerators(self) -> int:
        """Number of accelerators on all machines."""
        return self.machines * self.each


#: Seconds per iteration; None: the model cannot run there.
_Measured = Mapping[tuple[ArenaModel, ArenaPlace], float | None]


@dataclass(frozen=True, slots=True, eq=False)
class PlaceTable:
    """Speeds by model and place."""

    measured: _Measured
    #: Accelerators per machine, by type.
    machine_size: Mapping[str, int]
    _throughputs: dict[tuple[ArenaModel, ArenaPlace], float] = field(default_factory=dict)

    def models(self) -> dict[str, ArenaModel]:
        """Returns all models that have a row, by the name of their kind."""
        return {model.kind: model for model, _ in self.measured}

    def best_place(self, accelerator: str, count: int) -> ArenaPlace:
        """Returns the densest place for `count` accelerators: a part of one machine, or whole machines."""
        size = self.machine_size[accelerator]
        return ArenaPlace(accelerator, 1, count) if count <= size else ArenaPlace(accelerator, count // size, size)

    def throughput(self, model: ArenaModel, place: ArenaPlace) -> float:
        """Returns samples per second; 0 where the model cannot run or the speed is unknown."""
        found = self._throughputs.get((model, place))
        if found is None:
            found = self._throughputs[model, place] = self._throughput(model, place)
        return found

    def seconds_per_iteration(self, model: ArenaModel, place: ArenaPlace) -> float:
        """Returns the seconds of an iteration over the whole batch. The model must be able to run there."""
        return round(model.batch / self.throughput(model, place), 3)

    def place_of(self, accelerator: str, parts: tuple[int, ...]) -> ArenaPlace:
        """Returns the place whose speed a gang with `parts` accelerators on its machines has.

        A gang with uneven parts counts as evenly spread, with a power of two on each machine that is at most its
        smallest part.
        """
        count, least = sum(parts), min(parts)
        each = 1 << (least.bit_length() - 1)
        while count % each:
            each //= 2
        return ArenaPlace(accelerator, count // each, each)

    def _throughput(self, model: ArenaModel, place: ArenaPlace) -> float:
        if (model, place) in self.measured:
            return _samples_per_s(model, self.measured[model, place])
        best = self.best_place(place.accelerator, place.accelerators)
        if place != best:
            halvings = (best.each // place.each).bit_length() - 1
            return self.throughput(model, best) * _SPREAD**halvings
        family = _FAMILIES.get(model.model, ())
        larger = family[family.index(model.params) + 1 :] if model.params in family else ()
        for steps, params in enumerate(larger, start=1):
            other = ArenaModel(model.model, params, model.batch)
            if (other, place) in self.measured:
                return _samples_per_s(other, self.measured[other, place]) * _SMALLER_MODEL**steps
        return 0.0


def _samples_per_s(model: ArenaModel, seconds: float | None) -> float:
    return 0.0 if seconds is None else round(model.batch / seconds, 3)


@dataclass(frozen=True, slots=True)
class PlaceLaw:
    """A `simulator.ground_truth.SpeedLaw`: iterations per second of one model, by place."""

    table: PlaceTable
    model: ArenaModel

    def speed_segment(self, accelerator: str, parts: tuple[int, ...], steps: float) -> SpeedSegment:
        """Returns iterations per second, independent of progress; 0 where the model cannot run."""
        place = self.table.place_of(accelerator, parts)
        if self.table.throughput(self.model, place) <= 0:
            return SpeedSegment(0.0)
        return SpeedSegment(1.0 / self.table.seconds_per_iteration(self.model, place))


def read_places(path: str | Path, machine_size: Mapping[str, int]) -> PlaceTable:
    """Reads a table for machines of these sizes. Raises ConfigError that names file, line and column."""
    source = TraceSource(path, ReadOptions())
    lines = source.lines()
    measured: dict[tuple[ArenaModel, ArenaPlace], float | None] = {}
    for row in source.rows(lines, header_row_format(source, lines, _COLUMNS)):
        key, status = _row_key(row), row.name("status")
        if status not in _STATUSES:
            raise row.error("status", f"is {status!r}", f"name one of {', '.join(_STATUSES)}")
        if key in measured:
            raise row.error("model", "has this place twice", "remove one of the rows")
        if status != "absent":
            measured[key] = row.number("seconds_per_iteration", above=0.0) if status == "ok" else None
    if not measured:
        raise ConfigError(f"{path}: no place was measured", fix="check the path")
    return PlaceTable(measured, dict(machine_size))


def _row_key(row: TraceRow) -> tuple[ArenaModel, ArenaPlace]:
    types = row.types("gpu_type")
    if len(types) != 1:
        raise row.error("gpu_type", f"names {len(types)} types", "name one")
    place = ArenaPlace(types[0], row.gang("nodes"), row.gang("gpus_per_node"))
    return ArenaModel(row.name("model"), row.name("params"), row.whole("batch_size")), place


#: Length of a round, seconds.
ROUND_S = 300.0
#: Largest number of rounds of progress that the tuning of a start costs.
_TUNED_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class TuningCost:
    """The cost of tuning the parallel plan after a start or a change of placement."""

    per_accelerator_s: float
    most_s: float

    def seconds(self, accelerators: int) -> float:
        """Returns the seconds of tuning of a gang of that size."""
        return min(self.per_accelerator_s * accelerators, self.most_s)

    def lost_s(self, accelerators: int) -> float:
        """Returns the seconds of progress that the tuning costs."""
        return _TUNED_ROUNDS * ROUND_S if self.seconds(accelerators) > ROUND_S else 0.0


#: Tuning under all policies but Arena's own, and under Arena's own, which tunes only plans that were not measured.
TUNING = TuningCost(150.0, 600.0)
ARENA_TUNING = TuningCost(10.0, 40.0)


def rounds_needed(iterations: float, iteration_s: float) -> int:
    """Returns the rounds until the run time contains that many whole iterations."""
    rounds = max(1, ceil(iterations * iteration_s / ROUND_S))
    while floor(rounds * ROUND_S / iteration_s) < iterations:
        rounds += 1
    while rounds > 1 and floor((rounds - 1) * ROUND_S / iteration_s) >= iterations:
        rounds -= 1
    return rounds


@dataclass(slots=True)
class _Run:
    """An attempt that is running."""

    attempt: SimAttempt
    iteration_s: float
    #: Instant from which its run time counts, and the job's iterations before it.
    counts_from: float
    base_steps: float
    ends_at: float
    timer: Timer

    def steps_at(self, at: float) -> float:
        """Returns the iterations of the job at the start of a round before its end."""
        return self.base_steps + floor(max(0.0, at - self.counts_from) / self.iteration_s)


class ArenaAttempts(WholeStepAttempts):
    """Simulates attempts in whole rounds: iterations are counted at their starts."""

    def __init__(
        self,
        machines: SimulatedMachines,
        model: WorldParameters,
        streams: RandomStreams,
        *,
        workload: "ArenaWorkload",
        tuning: TuningCost,
    ) -> None:
        super().__init__(machines, model, streams)
        machines.engine.on_command[BeginRound] = self._begin_round
        self._places = workload.places
        self._models = workload.models
        self._tuning = tuning
        #: Running attempts, in order of start.
        self._live: dict[JobId, _Run] = {}
        #: The last instant for which a report was scheduled.
        self._report_at = -1.0

    # -- called by the world

    def begin(self, now: float, attempt: SimAttempt) -> None:
        self._hold_devices(attempt)
        parts = tuple(len(devices) for _, devices in attempt.parts)
        accelerator = self._machines.pools[attempt.parts[0][0].pool_id].pool.shape.accelerator
        model, place = self._models[attempt.job.plan.request.kind], self._places.place_of(accelerator, parts)
        tuning_s = self._tuning.seconds(sum(parts))
        attempt.costs = replace(attempt.costs, start_s=tuning_s)
        attempt.base_at, attempt.up_at = now, now + tuning_s
        iteration_s = self._places.seconds_per_iteration(model, place)
        counts_from = now + self._tuning.lost_s(sum(parts))
        left = attempt.job.plan.steps - attempt.job.steps
        ends_at = counts_from + ROUND_S * rounds_needed(left, iteration_s)
        attempt.timer = self._engine.schedule(attempt.up_at, self._ranks_up, attempt)
        self._live[attempt.job_id] = _Run(
            attempt,
            iteration_s,
            counts_from,
            attempt.job.steps,
            ends_at,
            self._engine.schedule(ends_at, self._due),
        )

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        if attempt.phase in (SimAttemptPhase.STOPPING, SimAttemptPhase.DEAD):
            return
        run = self._take_off(attempt)
        self._credit(attempt, run.steps_at(now))
        attempt.phase = SimAttemptPhase.STOPPING
        self._set_timer(attempt, now, self._stopped_at_once)

    def kill(self, at: float, attempt: SimAttempt) -> None:
        self._take_off(attempt)
        super().kill(at, attempt)

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        return self._due(at, None)

    # -- called by timers and the scheduler

    def _begin_round(self, now: float, command: BeginRound) -> None:
        """Does nothing: the next report comes with the next end or arrival."""

    def _due(self, at: float, _: object) -> Iterable[Event]:
        """Schedules the report of this instant after its other events."""
        if at > self._report_at:
            self._report_at = at
            self._engine.schedule(at, self._report_round)
        return ()

    def _report_round(self, at: float, _: object) -> Iterable[Event]:
        ended = [run.attempt for run in self._live.values() if run.ends_at <= at]
        for attempt in ended:
            self._take_off(attempt)
        events = [self._succeeded(at, attempt) for attempt in ended]
        for run in self._live.values():
            self._credit(run.attempt, run.steps_at(at))
            run.attempt.job.saved_steps = run.attempt.job.steps
        steps = [run.attempt.job.steps for run in self._live.values()]
        return (*events, RoundEnded(at, list(self._live), steps, [at] * len(steps)))

    def _take_off(self, attempt: SimAttempt) -> _Run:
        run = self._live.pop(attempt.job_id)
        self._engine.cancel(run.timer)
        return run


class ArenaFcfs(OrderBySubmission):
    """First come, first served: `ArenaRounds` makes the decisions."""

    preemptive = False


class ArenaRounds(StepEndMechanism):
    """First come, first served at the starts of rounds."""

    def __init__(self, rules: RoundRules, places: PlaceTable) -> None:
        super().__init__(rules.round_s)
        self._places = places
        #: Waiting jobs in order of submission, and running jobs.
        self._waiting: list[JobId] = []
        self._running: set[JobId] = set()

    def step_ended(self, cycle: Cycle) -> None:
        ledger, arrived = cycle.ledger, admit_arrivals(cycle)
        running = {job.job_id for job in ledger if job.holds}
        rooms = {state.pool.shape.accelerator: free_room(cycle, state.row) for state in ledger.fleet.pools}
        started: list[Move] = []
        if running != self._running:
            self._waiting = self._start_in_order(cycle, self._waiting, rooms, set(), started)
        types = {ledger.jobs[job_id].request.demands[0].accelerator for job_id in self._waiting}
        self._waiting += self._start_in_order(cycle, arrived, rooms, types, started)
        self._running = running | {job.job_id for job, _, _ in started}
        self.reallocation.begin(cycle, running, started)

    def _start_in_order(
        self, cycle: Cycle, job_ids: Sequence[JobId], rooms: dict[str, Room], blocked: set[str], started: list[Move]
    ) -> list[JobId]:
        """Starts the jobs that fit; the first of a type that does not fit blocks its type. Returns the waiting jobs."""
        ledger, waiting = cycle.ledger, list[JobId]()
        pool_rows = {state.pool.shape.accelerator: state.row for state in ledger.fleet.pools}
        for job_id in job_ids:
            (demand,) = ledger.jobs[job_id].request.demands
            best, room = self._places.best_place(demand.accelerator, demand.count), rooms[demand.accelerator]
            place = () if demand.accelerator in blocked else _emptiest(room, best)
            if not place:
                blocked.add(demand.accelerator)
                waiting.append(job_id)
                continue
            for row, count in place:
                room[row] -= count
            started.append((ledger.jobs[job_id], pool_rows[demand.accelerator], place))
        return waiting


def _emptiest(room: Room, best: ArenaPlace) -> Place:
    """Returns the machines with most free accelerators, the first of equals; () where the gang does not fit on them."""
    rows = sorted(room, key=lambda row: (-room[row], row))[: best.machines]
    fits = len(rows) == best.machines and room[rows[-1]] >= best.each
    return tuple((row, best.each) for row in rows) if fits else ()


def _place_evenly(cycle: Cycle, pool: int, count: int) -> Place:
    size = cycle.ledger.fleet.pools[pool].pool.shape.accelerators
    return pack_evenly(free_room(cycle, pool), count, min(count, size))


def _keep_in_place(cycle: Cycle, wanted: WantedAccelerators) -> StepPlacement:
    """As `keep_in_place`, in Arena's order and with its even parts."""
    return keep_in_place(cycle, dict(sorted(wanted.items())), _place_evenly)


def pack_evenly(room: Room, count: int, each: int) -> Place:
    """Places equal parts of `each` accelerators, one part per machine, on the fullest machines that have room for them.

    If too few machines have room, the parts are halved repeatedly. If even single accelerators do not fit, the emptiest
    machines hold as many as they can. The pool must have room for the gang.
    """
    while each:
        fits = sorted((row for row in room if room[row] >= each), key=lambda row: (room[row], row))
        if len(fits) * each >= count:
            return tuple((row, each) for row in fits[: count // each])
        each //= 2
    return fill_emptiest(room, count)


#: The mechanism's name in `RoundRules`, and its parameters.
ARENA = "arena-eurosys26"
ARENA_RULES = RoundRules(mechanism=ARENA, round_s=ROUND_S, resolve_min_s=0.0, idle_to_round_end=True)
#: The simulator runs this part of the file's iterations.
_ITERATIONS_PART = 5


@dataclass(frozen=True, slots=True)
class ArenaWorkload:
    """Jobs, numbered from 1 in the order of their rows, and the speed of each kind by place."""

    jobs: tuple[SimulatedJob, ...]
    models: Mapping[Kind, ArenaModel]
    places: PlaceTable


def arrival_round(at: float) -> int:
    """Returns the round in which a job arrives: the one before the first that starts at or after its submission."""
    return max(0, ceil(at / ROUND_S) - 1)


def arena_workload(rows: Iterable[TraceJob], places: PlaceTable) -> ArenaWorkload:
    """Converts the rows to jobs, each on the type that it requests.

    Raises ConfigError for a model that is not in the table, and for a job that cannot run on the place it requests.
    """
    known = places.models()
    jobs: list[SimulatedJob] = []
    models: dict[Kind, ArenaModel] = {}
    for number, row in enumerate(rows, start=1):
        kind = Kind(row.kind)
        if row.kind not in known:
            raise ConfigError(f"line {row.line}: no place of {row.kind!r} is in the table", field="kind", fix="add one")
        if len(row.types) != 1 or row.types[0] not in places.machine_size:
            types = ", ".join(places.machine_size)
            raise ConfigError(
                f"line {row.line}: {row.name!r} names no type of this cluster",
                field="types",
                fix=f"name one of {types}",
            )
        models[kind] = known[row.kind]
        if (
            row.gang.bit_count() != 1
            or row.gang > GANG_MAX
            or not places.throughput(models[kind], places.best_place(row.types[0], row.gang))
        ):
            raise ConfigError(
                f"line {row.line}: {row.name!r} cannot run on {row.gang} x {row.types[0]}",
                field="gang",
                fix="choose a place of the table",
            )
        steps = float(int(row.steps or 0) // _ITERATIONS_PART)
        if steps < 1:
            raise ConfigError(f"line {row.line}: {row.name!r} has nothing to do", field="steps", fix="give 5 or more")
        request = JobRequest(JobId(number), kind, demands=(Demand(row.types[0], row.gang),), steps=steps)
        jobs.append(SimulatedJob(ROUND_S * arrival_round(row.at), request, steps, name=row.name))
    return ArenaWorkload(tuple(jobs), models, places)


def arena_scenario(workload: ArenaWorkload, *, pools: tuple[PoolModel, ...]) -> Scenario:
    """Returns a run of Arena's simulator over these jobs, first come, first served."""

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> ArenaRounds:
        return ArenaRounds(rules, workload.places)

    wiring = own_wiring(ARENA, lambda spec: ArenaFcfs(), rounds, _pace(workload, TUNING))
    return Scenario(pools, _truth(workload, 0.0), PolicySpec("fcfs"), ARENA_RULES, wiring=wiring)


def _pace(workload: ArenaWorkload, tuning: TuningCost) -> "partial[ArenaAttempts]":
    return partial(ArenaAttempts, workload=workload, tuning=tuning)


def _truth(workload: ArenaWorkload, restart_s: float) -> GroundTruth:
    laws = {kind: PlaceLaw(workload.places, model) for kind, model in workload.models.items()}
    return GroundTruth({}, default_costs=AttemptCosts(start_s=restart_s), laws=laws)


@dataclass(frozen=True, slots=True)
class ArenaConfigurations:
    """Returns every best place, of a power of two of accelerators, on which a job can run."""

    by_kind: Mapping[Kind, tuple[StepConfiguration, ...]]

    @classmethod
    def of(cls, workload: ArenaWorkload, pools: tuple[PoolModel, ...]) -> "ArenaConfigurations":
        """Computes the places of these jobs on these pools."""
        return cls({kind: tuple(_ways(workload.places, model, pools)) for kind, model in workload.models.items()})

    def __call__(self, job: JobRecord) -> tuple[StepConfiguration, ...]:
        return self.by_kind[job.request.kind]


def _ways(places: PlaceTable, model: ArenaModel, pools: tuple[PoolModel, ...]) -> Iterable[StepConfiguration]:
    for row, pool in enumerate(pools):
        shape = pool.pool.shape
        for count in (1 << power for power in range(GANG_MAX.bit_length())):
            place = places.best_place(shape.accelerator, count)
            if place.machines <= pool.machines and places.throughput(model, place):
                yield StepConfiguration(row, count, 1.0 / places.seconds_per_iteration(model, place))


def arena_plan_scenario(
    workload: ArenaWorkload,
    policy: PolicySpec,
    *,
    pools: tuple[PoolModel, ...],
    tuning: TuningCost = TUNING,
) -> Scenario:
    """Returns a run of these jobs in Arena's world under one of Walras's plan policies, free to change gangs."""
    ways = ArenaConfigurations.of(workload, pools)
    wiring = plan_wiring(ARENA, ways, _keep_in_place, _pace(workload, tuning))
    truth = _truth(workload, tuning.lost_s(GANG_MAX))
    return Scenario(pools, truth, policy, ARENA_RULES, wiring=wiring)


def arena_world_run(request: WorldRequest) -> WorldRun:
    """Makes the run. Raises ConfigError for a cluster, places or a trace that Arena's simulator cannot have."""
    pools = owned_pools(request)
    sizes = {model.pool.shape.accelerator: model.pool.shape.accelerators for model in pools}
    if len(sizes) < len(pools):
        raise ConfigError("world 'arena' has one pool of each type", field="cluster", fix="choose arena-1280")
    made = arena_workload(request.trace.jobs, read_places(required_speeds(request, "a table of places"), sizes))
    alone_s = {job.request.job_id: _alone_s(made, job) for job in made.jobs}
    least = arena_least_use(made, pools)
    if request.is_own:
        return WorldRun(made.jobs, arena_scenario(made, pools=pools), alone_s, least)
    return WorldRun(made.jobs, arena_plan_scenario(made, request.policy, pools=pools), alone_s, least)


def arena_least_use(workload: ArenaWorkload, pools: tuple[PoolModel, ...]) -> dict[JobId, LeastUse]:
    """Returns what each job needs whatever places it has: iterations take no less time than on its fastest place.

    Tuning and rounds only add to it. Places of the types that a job may not use under first come, first served count,
    too, so that the bound holds for every policy.
    """
    ways = {kind: list(_every_way(workload.places, model, pools)) for kind, model in workload.models.items()}
    found: dict[JobId, LeastUse] = {}
    for job in workload.jobs:
        mine = ways[job.request.kind]
        best = max(speed for _, _, speed in mine)
        paces = ((row, count, speed / best) for row, count, speed in mine)
        found[job.request.job_id] = least_use(job.steps / best, paces, len(pools))
    return found


def _every_way(places: PlaceTable, model: ArenaModel, pools: tuple[PoolModel, ...]) -> Iterable[tuple[int, int, float]]:
    """Yields (row of the pool, accelerators, iterations per second) of every place on which the model can run."""
    for row, pool in enumerate(pools):
        shape = pool.pool.shape
        for count in (1 << power for power in range(GANG_MAX.bit_length())):
            for each in (1 << power for power in range(min(count, shape.accelerators).bit_length())):
                place = ArenaPlace(shape.accelerator, count // each, each)
                if place.machines <= pool.machines and places.throughput(model, place):
                    yield row, count, 1.0 / places.seconds_per_iteration(model, place)


def _alone_s(made: ArenaWorkload, job: SimulatedJob) -> float:
    """Returns the run time alone in seconds, on the type and with the gang of the file."""
    (demand,) = job.request.demands
    place = made.places.best_place(demand.accelerator, demand.count)
    return job.steps * made.places.seconds_per_iteration(made.models[job.request.kind], place)
