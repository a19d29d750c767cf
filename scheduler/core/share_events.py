"""Events about shares of the fleet: shares and limits that people set, and what a former core had counted."""

from dataclasses import dataclass
from typing import NamedTuple

from walras.cluster import Pool

#: Scope of a limit over all pools; other scopes are an accelerator type or a pool id.
FLEET = "fleet"


def scope_covers(scope: str, pool: Pool) -> bool:
    """Returns whether accelerators of the pool count against a limit of this scope."""
    return scope in (FLEET, pool.pool_id, pool.shape.accelerator)


@dataclass(frozen=True, slots=True)
class ShareLimit:
    """Maximum of accelerators of a scope that are held at once."""

    scope: str
    accelerators: int


@dataclass(frozen=True, slots=True)
class EntityShare:
    """Share of a project ("vision"), or of a user inside one ("vision/ada")."""

    name: str
    #: Weight against siblings that have work to do, in dividing the parent's share.
    weight: float = 1.0
    #: Fraction of all accelerators that it gets before others get more than their guarantees.
    guaranteed: float = 0.0
    limits: tuple[ShareLimit, ...] = ()


@dataclass(slots=True)
class SharesDeclared:
    """Replaces all shares declared before by these. A project or user that is not named has weight 1 and no limit."""

    at: float
    shares: tuple[EntityShare, ...] = ()


class RememberedUse(NamedTuple):
    """Recorded use of a project or user, as of its last change, so that nothing is stored while nothing changes."""

    name: str
    #: `at` is the instant of the next four: decayed accelerator-seconds, accelerators held then; both in fair-share
    #: units.
    at: float
    used_s: float
    units_s: float
    held: float
    units: float
    #: Instant of the next two: accelerator-seconds behind its share, and their growth per second; 0 under policies that
    #: do not count it.
    behind_at: float = 0.0
    behind_s: float = 0.0
    behind_rate: float = 0.0


class RememberedLengths(NamedTuple):
    """How a user's stated lengths compare with true ones (`statement_records`), as of the user's last ended job."""

    name: str
    at: float
    #: Decayed sums over ended jobs: accelerator-seconds, the same times log(true / stated length), and number of jobs.
    used_s: float
    said_s: float
    jobs: float


class RememberedWeights(NamedTuple):
    """Weights that a user stated for ended jobs (`statement_records`)."""

    name: str
    at: float
    #: Decayed sums over ended jobs: accelerator-seconds, and the same times log(weight).
    used_s: float
    said_s: float


ShareEvent = SharesDeclared
