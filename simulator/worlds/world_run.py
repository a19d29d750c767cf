"""The request and the run of another simulator's world, and checks of workloads and clusters that it cannot have."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from optimizer.policy import PolicySpec
from simulator.experiment import pool_models
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario
from simulator.workloads.trace import Trace, TraceJob
from walras.cluster import Market
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.spec.cluster_file import ClusterConfig


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
            f"world {request.world!r} takes its speeds from {what}", field="speeds", fix=f"give --speeds with {what}"
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
