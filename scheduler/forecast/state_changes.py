"""Changes of the cluster that people ask about, as the events that would bring them, and in words.

Machines can be added only to an existing pool, because job speeds on an unknown shape are unknown. Removed machines
leave at once, like drained ones: jobs save what they can.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, inf

from optimizer.policy import PolicySpec
from scheduler.core.events import Event, JobSubmitted, NodeJoined, NodeLeaving, PolicyChanged, PoolDeclared
from scheduler.core.rules import RoundRules
from scheduler.core.share_events import SharesDeclared
from scheduler.forecast.core_copy import CoreSnapshot
from walras.cluster import Market, NodeId, Pool
from walras.errors import NotFound
from walras.job_request import JobRequest
from walras.states import Reason

#: Maximum of names listed in an error.
_NAMED_MOST = 8


@dataclass(frozen=True, slots=True)
class AddedMachines:
    """More accelerators of a type, in whole machines. `market` None: any, an owned pool first."""

    accelerator: str
    accelerators: int
    market: Market | None = None


@dataclass(frozen=True, slots=True)
class StateChanges:
    """A set of changes that happen together."""

    added: tuple[AddedMachines, ...] = ()
    #: Machines, pools, or accelerator types to remove, each with all its machines.
    removed: tuple[str, ...] = ()
    policy: tuple[PolicySpec, RoundRules] | None = None
    submitted: tuple[JobRequest, ...] = ()
    #: Projects, or users inside one (`vision/ada`), whose limits are lifted.
    unlimited: tuple[str, ...] = ()


def events_of_changes(snapshot: CoreSnapshot, changes: StateChanges) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    """Returns the events, and words for each change except changes of jobs, which have no names here.

    Raises NotFound for names that the cluster does not have.
    """
    events, words = list[Event](), list[str]()
    fleet = _Fleet(snapshot)
    if changes.policy is not None:
        events.append(PolicyChanged(snapshot.at, *changes.policy))
        words.append(f"policy {changes.policy[0].name}")
    for name in changes.unlimited:
        shares = next((each.shares for each in reversed(events) if isinstance(each, SharesDeclared)), None)
        events.append(_unlimited(snapshot.shares if shares is None else SharesDeclared(snapshot.at, shares), name))
        words.append(f"no limit on {name}")
    for number, added in enumerate(changes.added, 1):
        pool = fleet.pool_for(added)
        machines = ceil(added.accelerators / pool.shape.accelerators)
        for machine in range(1, machines + 1):
            node_id = NodeId(f"what-if-{number}-{machine}")
            events.append(NodeJoined(snapshot.at, node_id, pool.pool_id))
        words.append(f"{machines} x {pool.shape.name} more in {pool.pool_id}")
    for name in changes.removed:
        events += fleet.leaving(name, snapshot.at)
        words.append(f"without {name}")
    for request in changes.submitted:
        events.append(JobSubmitted(snapshot.at, request))
    return tuple(events), tuple(words)


def _unlimited(declared: SharesDeclared, name: str) -> SharesDeclared:
    if not any(share.name == name and share.limits for share in declared.shares):
        # The caller may not see which other names have limits.
        raise NotFound(f"no limit is set on {name}", field="no_limit", fix="see the limits of yours: walras share")
    shares = tuple(replace(share, limits=()) if share.name == name else share for share in declared.shares)
    return SharesDeclared(declared.at, shares)


class _Fleet:
    """Pools and machines of a snapshot, by name."""

    def __init__(self, snapshot: CoreSnapshot) -> None:
        self._pools = {each.pool.pool_id: each.pool for each in snapshot.fleet if isinstance(each, PoolDeclared)}
        self._nodes = {each.node_id: each.pool_id for each in snapshot.fleet if isinstance(each, NodeJoined)}

    def pool_for(self, added: AddedMachines) -> Pool:
        """Returns the pool to extend: an owned one before a rented one, then the cheaper.

        Raises NotFound without one.
        """
        wanted = added.accelerator.casefold()
        fits = [
            pool
            for pool in self._pools.values()
            if pool.shape.accelerators
            and pool.shape.accelerator.casefold() == wanted
            and added.market in (None, pool.market)
            and not pool.drained
        ]
        if not fits:
            market = "" if added.market is None else f", {added.market}"
            known = sorted({f"{pool.shape.accelerator} ({pool.market})" for pool in self._pools.values()})
            raise NotFound(
                f"no pool of {added.accelerator}{market} takes jobs",
                field="add",
                fix=f"the cluster has {_listed(known)}; a pool is added by `walras admin pool add`",
            )
        return min(fits, key=lambda pool: (pool.market is not Market.OWNED, pool.usd_per_h, pool.pool_id))

    def leaving(self, name: str, at: float) -> Iterator[Event]:
        """Yields events that remove the machine, the pool, or all pools of the type. Raises NotFound for other names.

        Removed pools rent no more machines.
        """
        if name in self._nodes:
            yield NodeLeaving(at, NodeId(name), inf, Reason.HOLD_ADMIN)
            return
        chosen = {
            pool_id: pool
            for pool_id, pool in self._pools.items()
            if pool_id == name or pool.shape.accelerator.casefold() == name.casefold()
        }
        if not chosen:
            known = sorted({*self._pools, *(pool.shape.accelerator for pool in self._pools.values())} - {""})
            raise NotFound(
                f"no machine, pool or accelerator type {name}", field="remove", fix=f"there are {_listed(known)}"
            )
        for pool in chosen.values():
            yield PoolDeclared(at, replace(pool, drained=True))
        for node_id, pool_id in self._nodes.items():
            if pool_id in chosen:
                yield NodeLeaving(at, node_id, inf, Reason.HOLD_ADMIN)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED_MOST]) + (" ..." if len(names) > _NAMED_MOST else "")
