"""Arena's simulator as a scenario: under first come, first served, and under Walras's plan policies.

Runs of Arena's other policies are recorded, but their rules are not published in enough detail to reproduce them.

Under our policies a job may use every place of Arena's table on which it can run: 1 to 16 accelerators of any type, at
the speed of the best parallel plan known there. The policy knows those speeds, as Arena's own does. Starts and changes
of place cost the same as under first come, first served.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil

from optimizer.policy import Policy, PolicySpec
from scheduler.core.commands import Solve
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.round import MECHANISMS
from scheduler.core.events import Proposal
from scheduler.core.rules import RoundRules
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from simulator.ground_truth import AttemptCosts, GroundTruth
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, SchedulerWiring
from simulator.workloads.trace import TraceJob
from simulator.worlds.arena.arena_attempts import ROUND_S, TUNING, ArenaAttempts, TunedSpan, TuningCost
from simulator.worlds.arena.arena_places import GANG_MAX, ArenaModel, ArenaPlace, PlaceLaw, PlaceTable, read_places
from simulator.worlds.arena.arena_rounds import ArenaFcfs, ArenaRounds, keep_or_pack
from simulator.worlds.stepped_mechanism import PlannedMechanism, StepConfiguration
from simulator.worlds.world_run import LeastUse, WorldRequest, WorldRun, least_use, owned_pools, required_speeds
from walras.errors import ConfigError, UnknownPolicyError
from walras.job_request import Demand, JobId, JobRequest, Kind

#: The mechanism's name in `RoundRules`, and its parameters.
ARENA = "arena-eurosys26"
ARENA_RULES = RoundRules(mechanism=ARENA, round_s=ROUND_S, resolve_min_s=0.0, idle_to_round_end=True)
_FCFS = "fcfs"
#: The simulator runs this part of the file's iterations.
_ITERATIONS_PART = 5


def arena_policy_names() -> tuple[str, ...]:
    """Returns the policies of Arena's simulator that can be reproduced."""
    return (_FCFS,)


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


#: Called with every attempt that has ended.
SpanSink = Callable[[TunedSpan], None]


def arena_scenario(
    workload: ArenaWorkload, policy: str, *, pools: tuple[PoolModel, ...], on_span: SpanSink | None = None
) -> Scenario:
    """Returns a run of Arena's simulator over these jobs. Raises UnknownPolicyError."""
    if policy != _FCFS:
        raise UnknownPolicyError(f"'{policy}' of Arena's simulator is not known; known: {_FCFS}", field="policy.name")

    def make(spec: PolicySpec) -> ArenaFcfs:
        return ArenaFcfs()

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> ArenaRounds:
        return ArenaRounds(rules, workload.places)

    core = partial(SchedulerCore, make, {**MECHANISMS, ARENA: rounds})
    wiring = SchedulerWiring(core, _reject_solve, _pace(workload, TUNING, on_span))
    return Scenario(pools, _truth(workload, 0.0), PolicySpec(policy), ARENA_RULES, wiring=wiring)


def _reject_solve(command: Solve) -> Proposal:
    raise AssertionError(f"{command.policy.name} asks for no solve")


def _pace(workload: ArenaWorkload, tuning: TuningCost, on_span: SpanSink | None) -> "partial[ArenaAttempts]":
    return partial(ArenaAttempts, places=workload.places, models=workload.models, tuning=tuning, on_span=on_span)


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
    on_span: SpanSink | None = None,
) -> Scenario:
    """Returns a run of these jobs in Arena's world under one of Walras's plan policies, free to change gangs."""
    ways = ArenaConfigurations.of(workload, pools)

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> PlannedMechanism:
        return PlannedMechanism(rules.round_s, ways, keep_or_pack)

    core = partial(SchedulerCore, mechanisms={**MECHANISMS, ARENA: rounds})
    wiring = SchedulerWiring(core=core, pace=_pace(workload, tuning, on_span))
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
        return WorldRun(made.jobs, arena_scenario(made, request.policy.name, pools=pools), alone_s, least)
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
