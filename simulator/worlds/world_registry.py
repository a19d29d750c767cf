"""The registry of worlds in which a run can happen: `walras`, exact and event-driven, and other simulators' worlds.

Only this module knows all of them. `WORLDS` describes each world and the policies that run there. The package of a
world is imported when a run in it is made, so a native run imports none of them. It turns a trace, a cluster and a
policy into a run, or raises a ConfigError that says what of the workload or the cluster that world cannot have.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import inf

from optimizer.policy import PlanPolicy, PolicySpec
from optimizer.registry import make
from optimizer.registry import names as registered
from scheduler.world.attempts import SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.experiment import pool_models
from simulator.simulation import Scenario
from simulator.workloads.trace_source import Trace, TraceJob
from walras.cluster import Market
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import nearest_or_all, nearest_word


@dataclass(frozen=True, slots=True)
class WorldRequest:
    """One requested run in another simulator's world."""

    world: str
    trace: Trace
    cluster: ClusterConfig
    policy: PolicySpec
    #: True: the policy is the world's own; False: a plan policy of Walras.
    is_own: bool
    seed: int = 0
    #: A throughput table, or a folder with the step times of applications.
    speeds: str | None = None
    #: A folder that says how applications learn; None: `speeds` contains that too.
    learning: str | None = None


@dataclass(frozen=True, slots=True)
class LeastUse:
    """What a job needs in a world, however it is run there. Lower bounds follow from it."""

    #: Seconds that it runs at least.
    alone_s: float
    #: Highest speed on each pool, as a part of the highest anywhere.
    pace: tuple[float, ...]
    #: Accelerators held in a pool are at least this number times the part of the pool's highest speed that they give.
    accelerators: float


def least_use(alone_s: float, ways: Iterable[tuple[int, int, float]], pools: int) -> LeastUse:
    """Returns the least use of a job that takes `alone_s` seconds at pace 1.

    Args:
        alone_s: seconds of the run if every part of the work is done in the way that is fastest for it.
        ways: every (row of a pool, accelerators, highest pace there), at least one with a pace above 0.
        pools: the number of pools.
    """
    known = [way for way in ways if way[2] > 0]
    pace = [max((speed for row, _, speed in known if row == pool), default=0.0) for pool in range(pools)]
    held = min(count * pace[row] / speed for row, count, speed in known)
    return LeastUse(alone_s, tuple(pace), held)


@dataclass(frozen=True, slots=True)
class WorldRun:
    """The jobs, which can be iterated only once, and the scenario."""

    jobs: Iterable[SimulatedJob]
    scenario: Scenario
    #: Seconds of each job alone, as its user configured it; None: speeds and steps determine them.
    alone_s: Mapping[JobId, float] | None = None
    #: What each job needs, if speeds and steps do not determine it; None: lower bounds follow from speeds and steps, or
    #: (with `alone_s`) none is known.
    least: Mapping[JobId, LeastUse] | None = None


def owned_pools(request: WorldRequest) -> tuple[PoolModel, ...]:
    """Returns the cluster's pools. Raises ConfigError for a pool that is rented or has no machine."""
    pools = pool_models(request.cluster)
    for model in pools:
        if model.pool.market is not Market.OWNED or not model.machines:
            raise ConfigError(
                f"world {request.world!r} has machines that are there from the start,"
                f" pool {model.pool.pool_id} has none",
                field="cluster",
                fix="choose a cluster of owned machines",
            )
    return pools


def only_pool(request: WorldRequest) -> PoolModel:
    """Returns the only pool of the cluster. Raises ConfigError if there are several."""
    pools = owned_pools(request)
    if len(pools) != 1:
        raise ConfigError(
            f"world {request.world!r} has one pool, the cluster has {len(pools)}",
            field="cluster",
            fix="choose a cluster of one pool",
        )
    return pools[0]


def required_speeds(request: WorldRequest, what: str) -> str:
    """Returns the path of the speeds. Raises ConfigError that names what is needed."""
    if request.speeds is None:
        raise ConfigError(
            f"world {request.world!r} takes its speeds from {what}",
            field="speeds",
            fix=f"give --set speeds=FILE with {what}",
        )
    return request.speeds


#: Features of a row that no other simulator's world supports.
_UNSUPPORTED: Mapping[str, Callable[[TraceJob], bool]] = {
    "depends on another job": lambda row: bool(row.depends_on),
    "fails at a step": lambda row: bool(row.failures),
    "is cancelled": lambda row: row.cancel_at < inf,
    "may not start before an instant": lambda row: row.not_before_at > 0,
    "has several gang sizes": lambda row: len(row.sizes) > 1,
    "is spread over machines": lambda row: row.nodes > 1,
    "may not be preempted": lambda row: not row.preemptible,
    "has a limit of time": lambda row: min(row.max_runtime_s, row.max_queue_s) < inf,
    "chooses its batch": lambda row: row.batch_max is not None,
}


def reject_unsupported_jobs(request: WorldRequest) -> None:
    """Raises ConfigError for the first job that uses a feature that the world does not support."""
    for row in request.trace.jobs:
        strange = next((what for what, asks in _UNSUPPORTED.items() if asks(row)), None)
        if strange is not None:
            raise ConfigError(
                f"line {row.line}: job {row.name!r} {strange}, which world {request.world!r} does not know",
                field="workload",
                fix="leave that out, or run it with --world walras",
            )


#: The name of Walras's own world.
WALRAS = "walras"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWorld:
    """Another simulator's world."""

    name: str
    #: Description in one line.
    about: str
    #: The simulator's own policies, by its own names (a test compares them with those of its package).
    policies: tuple[str, ...]
    #: Whether Walras's plan policies run there too.
    takes_plans: bool = False
    #: Whether lower bounds are known.
    is_bounded: bool = False
    #: Whether the world takes a second folder that says how applications learn.
    learns: bool = False
    #: What makes the run, as `package.module:function`; imported when one is made.
    run: str


_FOREIGN_WORLDS = (
    ForeignWorld(
        name="gavel",
        about="Gavel's simulator (OSDI 2020): rounds of 360 s, solves 1,920 s apart, nothing costs time",
        policies=(
            "isolated", "fifo", "fifo_fixed", "fifo_perf", "fifo_packed", "allox", "max_min_fairness",
            "max_min_fairness_perf", "max_min_fairness_packed", "max_min_fairness_water_filling_perf",
            "finish_time_fairness", "finish_time_fairness_perf", "min_total_duration", "min_total_duration_perf",
            "min_total_duration_packed", "max_sum_throughput_perf", "max_sum_throughput_normalized_by_cost_perf",
            "max_sum_throughput_normalized_by_cost_perf_SLOs", "gandiva",
        ),
        is_bounded=True,
        run="simulator.worlds.gavel.gavel_scenario:gavel_world_run",
    ),
    ForeignWorld(
        name="pollux",
        about="the Pollux artifact's (OSDI 2021): steps of 60 s, 30 s for every start, batches and gangs that adapt",
        policies=("tiresias", "optimus"),
        takes_plans=True,
        run="simulator.worlds.pollux.pollux_scenario:pollux_world_run",
    ),
    ForeignWorld(
        name="sia",
        about="Sia's (SOSP 2023): the same on three types, restarts by application; its Gavel decides every 360 s",
        policies=("gavel",),
        takes_plans=True,
        learns=True,
        run="simulator.worlds.sia.sia_scenario:sia_world_run",
    ),
    ForeignWorld(
        name="shockwave",
        about="Shockwave's (NSDI 2023): rounds of 120 s, 20 s lost by a start, batches that change as jobs train",
        policies=("gandiva_fair", "max_min_fairness", "max_sum_throughput_perf", "min_total_duration"),
        takes_plans=True,
        run="simulator.worlds.shockwave.shockwave_scenario:shockwave_world_run",
    ),
    ForeignWorld(
        name="arena",
        about="Arena's (EuroSys 2026): rounds of 300 s on four types, gangs change type and size and are tuned then",
        policies=("fcfs",),
        takes_plans=True,
        is_bounded=True,
        run="simulator.worlds.arena.arena_scenario:arena_world_run",
    ),
)  # fmt: skip
WORLDS: Mapping[str, ForeignWorld] = {world.name: world for world in _FOREIGN_WORLDS}


def find_world(name: str) -> ForeignWorld:
    """Returns another simulator's world. Raises ConfigError that suggests the nearest name."""
    if name not in WORLDS:
        known = (WALRAS, *WORLDS)
        fix = nearest_or_all(name, known, "name one of ")
        raise ConfigError(f"no world is called {name!r}", field="world", fix=fix)
    return WORLDS[name]


def plan_policy_names() -> tuple[str, ...]:
    """Returns the names of our policies that answer with a plan."""
    return tuple(name for name in registered() if isinstance(make(PolicySpec(name)), PlanPolicy))


def resolve_world_policy(world: ForeignWorld, name: str, spec: PolicySpec | None) -> tuple[PolicySpec, bool]:
    """Returns the policy of that name in the world, and whether it is the world's own.

    `spec` is our policy of that name, None if we have none. A bare name means the world's own policy before ours.
    Raises ConfigError where the world cannot run it.
    """
    if name in world.policies:
        return PolicySpec(name), True
    if spec is not None and world.takes_plans and isinstance(make(spec), PlanPolicy):
        return spec, False
    known = (*world.policies, *(plan_policy_names() if world.takes_plans else ()))
    meant = nearest_word(name, known)
    why = ", which answers no plan" if world.takes_plans else ": only its own policies run there"
    raise ConfigError(
        f"world {world.name!r} cannot run policy {name!r}" + (why if spec is not None else ""),
        field="policy",
        fix=f"did you mean {meant!r}?" if meant else f"name one of {', '.join(dict.fromkeys(known))}",
    )


def make_world_run(world: ForeignWorld, request: WorldRequest) -> WorldRun:
    """Makes the run. Raises ConfigError for a workload or a cluster that does not fit the world."""
    reject_unsupported_jobs(request)
    module, _, function = world.run.partition(":")
    made: WorldRun = getattr(import_module(module), function)(request)
    return made
