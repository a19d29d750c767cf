"""Events about what projects and users have of the fleet: what people set, and what a former core had counted."""

from dataclasses import dataclass
from typing import NamedTuple

from walras.cluster import Pool

#: The scope of a limit over all pools; other scopes are an accelerator type, or the id of a pool.
FLEET = "fleet"


def scope_covers(scope: str, pool: Pool) -> bool:
    """Whether accelerators of the pool count against a limit of this scope."""
    return scope in (FLEET, pool.pool_id, pool.shape.accelerator)


@dataclass(frozen=True, slots=True)
class ShareLimit:
    """Accelerators of a scope that are held at once at most."""

    scope: str
    accelerators: int


@dataclass(frozen=True, slots=True)
class EntityShare:
    """What a project ("vision"), or a user inside one ("vision/ada"), has of the fleet."""

    name: str
    #: Part of the parent's share against the siblings with work to do.
    weight: float = 1.0
    #: Fraction of all accelerators that it gets before anybody gets more than that.
    guaranteed: float = 0.0
    limits: tuple[ShareLimit, ...] = ()


@dataclass(slots=True)
class SharesDeclared:
    """From now on these hold, in place of all that were declared before. Who is not named has weight 1 alone."""

    at: float
    shares: tuple[EntityShare, ...] = ()


class RememberedUse(NamedTuple):
    """What a project or user had used when that last changed, so that nothing is written while nothing changes."""

    name: str
    #: Instant of what follows: accelerator-seconds, old parts halved, and held then; both again in fair-share units.
    at: float
    used_s: float
    units_s: float
    held: float
    units: float
    #: Instant of what follows: accelerator-seconds behind its share, and how fast that grows; 0 under policies without
    #: such memory.
    behind_at: float = 0.0
    behind_s: float = 0.0
    behind_rate: float = 0.0


class RememberedLengths(NamedTuple):
    """How far what a user's jobs stated of their length came true (`statement_records`), when the last one ended."""

    name: str
    at: float
    #: Accelerator-seconds of ended jobs, the same weighed by log(true over stated), and jobs; old ones halved.
    used_s: float
    said_s: float
    jobs: float


class RememberedWeights(NamedTuple):
    """How heavy a user's ended jobs were by what they stated (`statement_records`)."""

    name: str
    at: float
    #: Accelerator-seconds of ended jobs, and the same weighed by log(weight); old ones halved.
    used_s: float
    said_s: float


ShareEvent = SharesDeclared
