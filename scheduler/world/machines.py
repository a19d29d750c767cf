"""The simulated machines: their state, which job holds which accelerator, and renting and releasing.

A machine knows jobs only by their number on an accelerator. `scheduler.providers.simulated_cloud` defines the terms of
renting (quota, boot time, bill, notice). Granting an accelerator to two attempts is a defect of the scheduler, and
stops the simulation.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import count
from math import inf
from random import Random

from scheduler.core.commands import Command, ReleaseNode, Rent
from scheduler.core.events import Event, NodeJoined, NodeLost, PoolDeclared
from scheduler.providers.simulated_cloud import RentalTerms, SimulatedCloud
from scheduler.world.engine import Engine, Timer
from walras.cluster import Market, NodeId, Placement, Pool, PoolId
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import JobId
from walras.states import Reason


class NodeLink(Enum):
    """Whether a simulated machine runs, and whether it can be reached."""

    UP = "up"
    #: It runs, but no message reaches it or comes from it.
    CUT_OFF = "cut off"
    #: Dead, and the scheduler does not know yet.
    DOWN = "down"
    #: Declared lost. If it is repaired it returns as a new `SimNode` of the same name.
    GONE = "gone"


class SimNode:
    __slots__ = ("devices", "guests", "inbox", "job_ids", "leaving", "link", "node_id", "pace", "pool_id", "token")

    def __init__(self, node_id: NodeId, pool_id: PoolId, accelerators: int, token: str = "") -> None:
        self.node_id = node_id
        self.pool_id = pool_id
        self.token = token
        self.link = NodeLink.UP
        #: Factor on its speed, in (0, 1].
        self.pace = 1.0
        #: Job that holds each accelerator.
        self.devices: list[JobId | None] = [None] * accelerators
        #: Second job on each accelerator that two jobs share.
        self.guests: dict[int, JobId] = {}
        #: Jobs with an attempt here, in order of start.
        self.job_ids: dict[JobId, None] = {}
        #: Commands that wait for the machine to be reached again.
        self.inbox: list[Command] = []
        #: Timer of its end, once its revocation was announced.
        self.leaving: Timer | None = None


#: A machine and the accelerators on it that an attempt holds.
HeldDevices = tuple[SimNode, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PoolModel:
    """A pool and the behaviour of its machines."""

    pool: Pool
    #: Owned machines at the start; rented machines are requested later.
    machines: int = 0
    #: The terms on which its machines are rented.
    terms: RentalTerms = field(default_factory=RentalTerms)
    #: Mean lifetime of a machine before a revocation, seconds; inf: only scripted revocations.
    mean_life_s: float = inf
    #: The law of the lifetimes as text (`walras.cluster`); empty: exponential.
    lifetime: str = ""
    #: Standard deviation of log(boot time / the terms' boot time); machines of one request are ready together.
    boot_noise: float = 0.0
    #: Boot times of its first requests, where they are known, in order; later ones take the terms' time.
    boots_s: tuple[float, ...] = ()
    #: Seconds between two market prices, and the standard deviation of log(price / the pool's price).
    reprice_every_s: float = inf
    price_noise: float = 0.0


class SimulatedMachines:
    """All machines, by id, in order of joining."""

    def __init__(self, engine: Engine, pools: Iterable[PoolModel], boots: Random | None = None) -> None:
        """`boots`: the random stream of boot times, for pools with boot noise."""
        self.nodes: dict[NodeId, SimNode] = {}
        self.pools: dict[PoolId, PoolModel] = {model.pool.pool_id: model for model in pools}
        #: Called with every machine that has just joined, and with every one that has just left.
        self.on_join: list[Callable[[float, SimNode], None]] = []
        self.on_gone: list[Callable[[float, SimNode], None]] = []
        self.engine = engine
        self._boots = boots
        self._requests = dict.fromkeys(self.pools, 0)
        self._serial = count(1)
        self._joined_at: dict[NodeId, float] = {}
        self._machine_s: dict[PoolId, float] = dict.fromkeys(self.pools, 0.0)
        #: For pools whose price has changed: integral of price over time until then, and the machine-seconds by then.
        self._repriced: dict[PoolId, tuple[float, float]] = {}
        engine.on_command[Rent] = self._rent
        engine.on_command[ReleaseNode] = self._release

    @cached_property
    def cloud(self) -> SimulatedCloud:
        """The provider of rented machines; a fleet that is owned never asks for it."""
        return SimulatedCloud({pool_id: model.terms for pool_id, model in self.pools.items()}, self.nodes)

    def begin(self, at: float) -> None:
        """Declares the pools, and lets the owned machines join."""
        for model in self.pools.values():
            self.engine.send_later(PoolDeclared(at, model.pool))
        for model in self.pools.values():
            for _ in range(model.machines):
                self.engine.schedule(at, self.join, self._owned(model.pool))

    def in_pool(self, pool_id: PoolId) -> list[SimNode]:
        """Machines of a pool, in order of joining."""
        return [node for node in self.nodes.values() if node.pool_id == pool_id]

    def usd(self, pool_id: PoolId, at: float) -> float:
        """Returns the cost of the pool's machines in USD: the bill of rented ones, price x time of owned ones."""
        if self.pools[pool_id].pool.market is Market.OWNED:
            return self.price_x_time(pool_id, at)
        return self.cloud.usd(at, pool_id)

    def price_x_time(self, pool_id: PoolId, at: float) -> float:
        """Returns the integral of the pool's price over its machine time, USD."""
        usd, counted_s = self._repriced.get(pool_id, (0.0, 0.0))
        return usd + (self.machine_s(pool_id, at) - counted_s) / SECONDS_PER_HOUR * self.pools[pool_id].pool.usd_per_h

    def reprice(self, at: float, pool_id: PoolId, usd_per_h: float) -> Event:
        """Changes the price of the pool's machines, including rented ones that are held."""
        self._repriced[pool_id] = (self.price_x_time(pool_id, at), self.machine_s(pool_id, at))
        model = self.pools[pool_id]
        pool = replace(model.pool, usd_per_h=usd_per_h)
        self.pools[pool_id] = replace(model, pool=pool)
        self.cloud.reprice(at, pool)
        return PoolDeclared(at, pool)

    def machine_s(self, pool_id: PoolId, at: float) -> float:
        """Returns the machine-seconds of the pool until now."""
        return self._machine_s[pool_id] + sum(at - self._joined_at[node.node_id] for node in self.in_pool(pool_id))

    # -- joining and leaving

    def join(self, at: float, node: SimNode) -> Iterable[Event]:
        """Lets the machine join."""
        self.nodes[node.node_id] = node
        self._joined_at[node.node_id] = at
        for listener in self.on_join:
            listener(at, node)
        return (NodeJoined(at, node.node_id, node.pool_id, node.token),)

    def repaired(self, at: float, node: SimNode) -> Iterable[Event]:
        """Lets a lost machine join again under its name, without jobs."""
        return self.join(at, SimNode(node.node_id, node.pool_id, len(node.devices), node.token))

    def gone(self, at: float, node: SimNode, reason: Reason = Reason.INFRA_NODE_LOST) -> Iterable[Event]:
        """Tells the scheduler that the machine is lost, with everything on it."""
        if self.nodes.pop(node.node_id, None) is None:
            return ()
        self._machine_s[node.pool_id] += at - self._joined_at.pop(node.node_id)
        node.link = NodeLink.GONE
        node.inbox.clear()
        if node.leaving is not None:
            self.engine.cancel(node.leaving)
            node.leaving = None
        if node.token:
            self.cloud.terminate(at, node.node_id)
        for listener in self.on_gone:
            listener(at, node)
        return (NodeLost(at, node.node_id, reason),)

    def _owned(self, pool: Pool) -> SimNode:
        return SimNode(NodeId(f"{pool.shape.name}-{next(self._serial)}"), pool.pool_id, pool.shape.accelerators)

    # -- accelerators

    def parts(self, placement: Placement) -> list[HeldDevices]:
        """Returns the machines of a placement that still exist, each with the accelerators it gives."""
        nodes = self.nodes
        return [(nodes[part.node_id], part.devices) for part in placement.parts if part.node_id in nodes]

    def hold(self, job_id: JobId, parts: list[HeldDevices], beside: JobId | None = None) -> None:
        """Gives an attempt of the job its accelerators; with `beside`, it shares those of that job."""
        for node, devices in parts:
            holders = node.devices
            for device in devices:
                holder = holders[device]
                assert holder == beside, f"{node.node_id}[{device}] is granted to job {job_id}; job {holder} holds it"
                if beside is None:
                    holders[device] = job_id
                else:
                    assert device not in node.guests, f"{node.node_id}[{device}] is granted to three jobs"
                    node.guests[device] = job_id
            node.job_ids[job_id] = None

    def free(self, job_id: JobId, parts: list[HeldDevices]) -> None:
        """Frees the accelerators of an attempt whose processes have ended, on machines that still exist."""
        for node, devices in parts:
            if node.link is not NodeLink.GONE:
                holders, guests = node.devices, node.guests
                for device in devices:
                    if guests and guests.get(device) == job_id:
                        del guests[device]
                        continue
                    assert holders[device] == job_id, f"{node.node_id}[{device}] is not held by job {job_id}"
                    holders[device] = guests.pop(device, None) if guests else None
                del node.job_ids[job_id]

    # -- renting

    def _rent(self, now: float, command: Rent) -> None:
        model = self.pools[command.pool_id]
        former = self._requests[command.pool_id]
        self._requests[command.pool_id] += 1
        boot_s = model.boots_s[former] if former < len(model.boots_s) else model.terms.boot_s
        if model.boot_noise and self._boots is not None:
            boot_s *= self._boots.lognormvariate(0.0, model.boot_noise)
        for answer in self.cloud.request(now, command.token, model.pool, command.machines, boot_s):
            if isinstance(answer, NodeJoined):
                self.engine.schedule(answer.at, self._ready, answer)
            else:
                self.engine.send_later(answer)

    def _ready(self, at: float, event: NodeJoined) -> Iterable[Event]:
        if not self.cloud.holds(event.node_id):
            return ()
        accelerators = self.pools[event.pool_id].pool.shape.accelerators
        return self.join(at, SimNode(event.node_id, event.pool_id, accelerators, event.token))

    def _release(self, now: float, command: ReleaseNode) -> None:
        node = self.nodes.get(command.node_id)
        if node is not None:
            assert not node.job_ids, f"{node.node_id} is given back while jobs {list(node.job_ids)} run on it"
            self.engine.schedule(now, self.gone, node)
