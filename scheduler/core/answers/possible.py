"""Whether a fleet could ever run a job, however long it waits, and what would have to change.

The one answer for admission, dry runs and explanations. How large a pool may come to be is the caller's knowledge: the
core counts machines it has seen and machines it may rent; a server also those that its cluster file names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from scheduler.core.ledger.classes import count_on
from scheduler.core.ledger.fleet import Fleet, PoolState, split
from walras.checking import nearest
from walras.cluster import Pool, Shape
from walras.ids import PoolId
from walras.reasons import Reason
from walras.request import ANY_ACCELERATOR, JobRequest

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no waiting will help."""

    reason: Reason
    #: The field of a job spec to change.
    field: str
    #: The constraint with its numbers.
    detail: str
    fix: str


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """A pool, and the accelerators it may come to have (inf where nobody knows)."""

    pool: Pool
    most: float


def limits(fleet: Fleet, expected: Mapping[PoolId, int]) -> list[PoolLimit]:
    """What each pool may come to have; `expected`: machines known of from elsewhere, joined or not."""
    return [PoolLimit(state.pool, _most(state, expected.get(state.pool.pool_id, 0))) for state in fleet.pools]


def _most(state: PoolState, expected: int) -> float:
    size = state.pool.shape.accelerators
    if state.rented:
        return float(max(state.pool.quota, state.machines) * size)
    machines = max(state.most_machines, expected)
    return float(machines * size) if machines else inf


def obstacle(request: JobRequest, pools: Iterable[PoolLimit]) -> Obstacle | None:
    """What keeps the job from ever running on these pools; None if nothing does, or there is no pool yet."""
    pools = list(pools)
    if not pools:
        return None
    wanted = wanted_text(request)
    typed = [limit for limit in pools if _wants(request, limit.pool.shape.accelerator)]
    if not typed:
        return _no_such_type(request, wanted, pools)
    fitting = [limit for limit in typed if _fits_machines(request, limit.pool)]
    if not fitting:
        return _too_large_for_machines(request, typed)
    if not any(_is_large_enough(request, limit) for limit in fitting):
        spread = f" over {request.nodes} machines" if request.nodes > 1 else ""
        sizes = ", ".join(f"{limit.pool.pool_id}: {limit.most:g}" for limit in fitting)
        return Obstacle(
            Reason.CONFIG_EXCEEDS_FLEET,
            "resources.accelerators",
            f"wants {wanted}{spread} in one pool; the most there can be is {sizes}",
            "ask for fewer accelerators, or have machines (or quota) added first",
        )
    return None


def wanted_text(request: JobRequest) -> str:
    """The acceptable gangs in words."""
    words = (f"{d.count} x {'any' if d.accelerator == ANY_ACCELERATOR else d.accelerator}" for d in request.demands)
    return " or ".join(words)


def _wants(request: JobRequest, accelerator: str) -> bool:
    return any(demand.accelerator in (accelerator, ANY_ACCELERATOR) for demand in request.demands)


def _no_such_type(request: JobRequest, wanted: str, pools: list[PoolLimit]) -> Obstacle:
    have = sorted({limit.pool.shape.accelerator for limit in pools})
    meant = next(filter(None, (nearest(demand.accelerator, have) for demand in request.demands)), None)
    hint = f"did you mean {meant!r}? " if meant else ""
    return Obstacle(
        Reason.CONFIG_NO_SUCH_ACCELERATOR,
        "resources.accelerators",
        f"wants {wanted}; this fleet has {', '.join(have)}",
        f"{hint}change resources.accelerators, or have such machines added first",
    )


def _fits_machines(request: JobRequest, pool: Pool) -> bool:
    """Whether empty machines of this shape could hold the gang's parts."""
    count, shape = count_on(request.demands, request.nodes, pool), pool.shape
    if not count:
        return False
    part = max(split(count, request.nodes, shape.accelerators))
    cpus, memory_bytes = part * request.cpus_per_accelerator, part * request.memory_bytes_per_accelerator
    return cpus <= shape.cpus + 1e-9 and memory_bytes <= shape.memory_bytes


def _is_large_enough(request: JobRequest, limit: PoolLimit) -> bool:
    count, size = count_on(request.demands, request.nodes, limit.pool), limit.pool.shape.accelerators
    return limit.most >= count and limit.most / size >= len(split(count, request.nodes, size))


def _too_large_for_machines(request: JobRequest, typed: list[PoolLimit]) -> Obstacle:
    shapes = "; ".join(shape_text(limit.pool.shape) for limit in typed)
    if not any(count_on(request.demands, request.nodes, limit.pool) for limit in typed):
        return Obstacle(
            Reason.CONFIG_EXCEEDS_LARGEST_NODE,
            "num_nodes",
            f"wants {wanted_text(request)} spread evenly over {request.nodes} machines; a machine has at most {shapes}",
            "choose num_nodes so that every machine's part fits on one",
        )
    per_each = f"{request.cpus_per_accelerator:g} cpus and {request.memory_bytes_per_accelerator / _GIB:.3g} GiB"
    return Obstacle(
        Reason.CONFIG_EXCEEDS_LARGEST_NODE,
        "resources",
        f"wants {wanted_text(request)} with {per_each} for each; a machine has at most {shapes}",
        "ask for less resources.cpus or resources.memory (both count for each accelerator)",
    )


def shape_text(shape: Shape) -> str:
    """A kind of machine in words."""
    memory = f"{shape.memory_bytes / _GIB:.3g} GiB"
    return f"{shape.name}: {shape.accelerators} x {shape.accelerator}, {shape.cpus:g} cpus, {memory}"
