"""A cloud in virtual time: boot delays, quotas, a market of limited capacity, revocations with notice, and the bill.

It is pure: time is an argument `at`, and future events are returned with their instants. The caller delivers them, and
first asks `holds`, because a machine may have been returned, or have died, meanwhile. The scheduler decides whether to
rent; the caller decides when the market reclaims machines.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice
from math import inf

from scheduler.core.events import NodeJoined, NodeLeaving, NodeLost, RentFailed
from scheduler.providers.provider import MachineState, RentedMachine
from walras.cluster import Market, NodeId, Pool, PoolId, billed_until, usd_of
from walras.states import Reason


@dataclass(frozen=True, slots=True)
class RentalTerms:
    """How machines of one pool are rented, besides the price, quota and notice that the pool itself states."""

    #: Seconds from request to a ready machine.
    boot_s: float = 0.0
    #: Minimum of seconds for which a machine that was ready is billed.
    minimum_billing_s: float = 0.0
    #: Number of machines that the market has; requests beyond it are refused. inf: only the quota counts.
    capacity: float = inf


@dataclass(slots=True)
class _Rented:
    node_id: NodeId
    pool: Pool
    token: str
    ready_at: float
    #: When it will be gone, once notice was given; inf before.
    leaves_at: float = inf
    #: Since when its price is the pool's, and its bill until then.
    priced_at: float = -inf
    before_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotRevocation:
    """Notice for one machine, and its end."""

    notice: NodeLeaving
    end: NodeLost


class SimulatedCloud:
    """Machines by the hour: billed from the moment they are ready until they are returned or reclaimed."""

    def __init__(self, terms: Mapping[PoolId, RentalTerms], taken: Container[NodeId] = ()) -> None:
        """`taken`: the names of all machines, which change with them; no machine gets one of these."""
        self._terms, self._taken = dict(terms), taken
        self._tokens: set[str] = set()
        #: Machines held, in order of request.
        self._held: dict[PoolId, dict[NodeId, _Rented]] = {}
        #: Bill of machines that are gone, USD.
        self._settled_usd: dict[PoolId, float] = {}

    def request(
        self, at: float, token: str, pool: Pool, machines: int, boot_s: float | None = None
    ) -> tuple[NodeJoined | RentFailed, ...]:
        """Rents machines. Returns a `NodeJoined` for each that is available, and one `RentFailed` for the others.

        `boot_s` are the seconds until these are ready, if other than the terms state. A token that is known already
        rents nothing more and returns nothing.
        """
        if token in self._tokens:
            return ()
        self._tokens.add(token)
        terms = self._terms.get(pool.pool_id, RentalTerms())
        held = self._held.setdefault(pool.pool_id, {})
        quota = 0 if pool.market is Market.OWNED else pool.quota
        ready_at = at + (terms.boot_s if boot_s is None else boot_s)
        granted = int(max(0, min(machines, quota - len(held), terms.capacity - len(held))))
        answers: list[NodeJoined | RentFailed] = []
        names = (name for index in count() if (name := NodeId(f"{token}-{index}")) not in self._taken)
        for name in islice(names, granted):
            machine = _Rented(name, pool, token, ready_at)
            held[machine.node_id] = machine
            answers.append(NodeJoined(machine.ready_at, machine.node_id, pool.pool_id, token))
        if granted < machines:
            limit = f"the quota is {quota}" if quota <= terms.capacity else f"the market has {terms.capacity:g}"
            reason = f"{pool.pool_id}: {granted} of {machines} machines granted, {limit}"
            answers.append(RentFailed(at, token, reason, machines - granted))
        return tuple(answers)

    def describe(self, at: float) -> tuple[RentedMachine, ...]:
        """Returns every machine that is held, pool by pool in order of request."""
        return tuple(
            RentedMachine(machine.node_id, pool_id, machine.token, _state(machine, at))
            for pool_id, held in self._held.items()
            for machine in held.values()
        )

    def terminate(self, at: float, node_id: NodeId) -> None:
        """Ends the bill of a machine that was returned or is gone. Unknown machines are no error."""
        for pool_id, held in self._held.items():
            machine = held.pop(node_id, None)
            if machine is not None:
                self._settled_usd[pool_id] = self._settled_usd.get(pool_id, 0.0) + self._usd(machine, at)

    def revoke(self, at: float, pool_id: PoolId, machines: int | None = None) -> tuple[SpotRevocation, ...]:
        """Reclaims machines of a pool, those that are ready longest first; None: all of them.

        Each gets the notice that its pool states. Machines that boot or are leaving already do not count.
        """
        held = self._held.get(pool_id, {}).values()
        ready = sorted(
            (machine for machine in held if machine.ready_at <= at and machine.leaves_at == inf),
            key=lambda machine: machine.ready_at,
        )
        return tuple(self._take_back(at, machine) for machine in ready[:machines])

    def reprice(self, at: float, pool: Pool) -> None:
        """Sets the market's price for all machines of the pool from now on."""
        for machine in self._held.get(pool.pool_id, {}).values():
            if at > machine.ready_at:
                since = max(machine.priced_at, machine.ready_at)
                machine.before_usd += usd_of(machine.pool.usd_per_h, at - since)
                machine.priced_at = at
            machine.pool = pool

    def limit(self, pool_id: PoolId, capacity: float) -> int:
        """Sets the market's capacity. Returns how many of the machines held (and staying) exceed it."""
        self._terms[pool_id] = replace(self._terms.get(pool_id, RentalTerms()), capacity=capacity)
        held = sum(machine.leaves_at == inf for machine in self._held.get(pool_id, {}).values())
        return int(max(0.0, held - capacity))

    def revoke_one(self, at: float, node_id: NodeId) -> SpotRevocation | None:
        """Reclaims this machine; returns None if it is not there, or is leaving already."""
        machine = self._find(node_id)
        if machine is None or machine.ready_at > at or machine.leaves_at < inf:
            return None
        return self._take_back(at, machine)

    def holds(self, node_id: NodeId) -> bool:
        """Returns whether the machine is rented (booting included)."""
        return self._find(node_id) is not None

    def usd(self, at: float, pool_id: PoolId) -> float:
        """Returns the whole bill of a pool until `at`, USD."""
        running = sum(self._usd(machine, at) for machine in self._held.get(pool_id, {}).values())
        return self._settled_usd.get(pool_id, 0.0) + running

    def _find(self, node_id: NodeId) -> _Rented | None:
        return next((held[node_id] for held in self._held.values() if node_id in held), None)

    def _take_back(self, at: float, machine: _Rented) -> SpotRevocation:
        machine.leaves_at = at + machine.pool.notice_s
        return SpotRevocation(
            NodeLeaving(at, machine.node_id, machine.leaves_at),
            NodeLost(machine.leaves_at, machine.node_id, Reason.INFRA_SPOT_RECLAIM),
        )

    def _usd(self, machine: _Rented, at: float) -> float:
        """Returns one machine's bill: nothing before it is ready, then at least the minimum and whole steps."""
        if at <= machine.ready_at:
            return 0.0
        least_s = self._terms.get(machine.pool.pool_id, RentalTerms()).minimum_billing_s
        billed = replace(machine.pool, minimum_billing_s=least_s)
        until, since = billed_until(billed, machine.ready_at, at), max(machine.priced_at, machine.ready_at)
        return machine.before_usd + usd_of(machine.pool.usd_per_h, until - since)


def _state(machine: _Rented, at: float) -> MachineState:
    if machine.leaves_at < inf:
        return MachineState.LEAVING
    return MachineState.BOOTING if at < machine.ready_at else MachineState.RUNNING
