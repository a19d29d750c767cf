"""Faults of simulated machines, scripted to the second or drawn from the streams `faults` and `market`.

Every fault ends as in production. A machine that dies is first silent, then declared lost, and joins again once it is
repaired. A machine that is cut off returns with everything it has to report, or is given up when its lease ends (its
ranks end with the lease). A revoked machine gets its notice and is gone at the deadline.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from random import Random

from optimizer.renting.lifetime_laws import drawn_life_h, lifetime_of
from scheduler.core.commands import NodeCordoned
from scheduler.core.events import Event, NodeBack, NodeUncordoned, NodeUnreachable
from scheduler.providers.simulated_cloud import SpotRevocation
from scheduler.world.attempts import SimAttempt
from scheduler.world.engine import Action, RandomStreams
from scheduler.world.machines import NodeLink, PoolModel, SimNode, SimulatedMachines
from scheduler.world.world import SimulatedWorld
from walras.cluster import Market, NodeId, PoolId, parse_lifetime
from walras.contract import SECONDS_PER_HOUR
from walras.states import Reason


@dataclass(frozen=True, slots=True)
class SlowPeriods:
    """Mean seconds between two slow periods, their mean length, and the factor on the speed."""

    every_s: float = inf
    length_s: float = 600.0
    pace: float = 0.5


@dataclass(frozen=True, slots=True)
class FaultModel:
    """Rates of faults, and times to detection and repair. Times between faults are exponential."""

    #: Mean seconds between deaths, and between losses of contact, of one owned machine.
    death_every_s: float = inf
    cut_off_every_s: float = inf
    #: Mean seconds of a loss of contact.
    cut_off_s: float = 60.0
    #: Of one owned machine (another load, heat, a link), and of one attempt, whatever its machines (its data).
    slow: SlowPeriods = SlowPeriods()
    attempt_slow: SlowPeriods = SlowPeriods()
    #: Silence after which a machine counts as unreachable, and after which its lease has certainly ended.
    notice_silence_s: float = 30.0
    lease_s: float = 600.0
    #: Time from the declared loss to the repair.
    repair_s: float = 3600.0
    #: Time after which an administrator uncordons a machine that the scheduler cordoned.
    uncordon_s: float = inf
    #: No fault begins after this instant.
    until_at: float = inf


@dataclass(frozen=True, slots=True)
class PoolRevocation:
    """The market revokes machines of a pool, with notice, the oldest first. Without machines it has no effect."""

    at: float
    pool_id: PoolId
    #: Number of machines; None: the whole pool.
    machines: int | None = None


@dataclass(frozen=True, slots=True)
class NodeDeath:
    """A machine dies: the n-th of its pool at that instant, in order of joining."""

    at: float
    pool_id: PoolId
    index: int = 0


@dataclass(frozen=True, slots=True)
class NodeSlowdown:
    """A machine slows down to `pace` times its speed: the n-th of its pool, in order of joining."""

    at: float
    pool_id: PoolId
    index: int = 0
    pace: float = 0.5


@dataclass(frozen=True, slots=True)
class MarketChange:
    """The market of a pool changes its price or the number of machines that it offers."""

    at: float
    pool_id: PoolId
    #: Price of one machine; None: unchanged.
    usd_per_h: float | None = None
    #: Largest number of machines held in all; further ones are revoked with notice. None: unchanged.
    capacity: float | None = None


Incident = PoolRevocation | NodeDeath | NodeSlowdown | MarketChange


class FaultInjector:
    """Schedules the faults of one run, random and scripted."""

    def __init__(
        self,
        machines: SimulatedMachines,
        world: SimulatedWorld,
        model: FaultModel,
        streams: RandomStreams,
    ) -> None:
        self._engine = engine = machines.engine
        self._machines = machines
        self._world = world
        self._model = model
        self._random = streams.stream("faults")
        self._market = streams.stream("market")
        self._spells = streams.stream("stragglers")
        self._attempt_spells = streams.stream("slow attempts")
        self._prices = streams.stream("prices")
        machines.on_join.append(self._joined)
        if model.attempt_slow.every_s < inf:
            world.on_begin.append(self._begun)
        for pool_id, pool in machines.pools.items():
            if pool.reprice_every_s < inf:
                engine.schedule(pool.reprice_every_s, self._repriced, (pool_id, pool.pool.usd_per_h))
        engine.on_command[NodeCordoned] = self._cordoned

    def script(self, incidents: Iterable[Incident]) -> None:
        """Schedules these incidents."""
        actions: dict[type[Incident], Action] = {
            PoolRevocation: self._scripted_revocation,
            NodeDeath: self._scripted_death,
            NodeSlowdown: self._scripted_slowness,
            MarketChange: self._market_changed,
        }
        for incident in incidents:
            self._engine.schedule(incident.at, actions[type(incident)], incident)

    def _scripted_revocation(self, at: float, incident: PoolRevocation) -> Iterable[Event]:
        takebacks = self._machines.cloud.revoke(at, incident.pool_id, incident.machines)
        return [notice for takeback in takebacks for notice in self._notice(takeback)]

    def _scripted_death(self, at: float, incident: NodeDeath) -> Iterable[Event]:
        nodes = self._machines.in_pool(incident.pool_id)
        return self._die(at, nodes[incident.index]) if incident.index < len(nodes) else ()

    def _scripted_slowness(self, at: float, incident: NodeSlowdown) -> Iterable[Event]:
        nodes = self._machines.in_pool(incident.pool_id)
        if incident.index < len(nodes):
            self._world.slow(at, nodes[incident.index], incident.pace)
        return ()

    def _market_changed(self, at: float, change: MarketChange) -> Iterable[Event]:
        events: list[Event] = []
        if change.usd_per_h is not None:
            events.append(self._machines.reprice(at, change.pool_id, change.usd_per_h))
        if change.capacity is not None:
            beyond = self._machines.cloud.limit(change.pool_id, change.capacity)
            for takeback in self._machines.cloud.revoke(at, change.pool_id, beyond):
                events.extend(self._notice(takeback))
        return events

    # -- random faults

    def _joined(self, at: float, node: SimNode) -> None:
        pool = self._machines.pools[node.pool_id]
        if pool.pool.market is Market.SPOT:
            self._draw_life(at, node, pool)
        if pool.pool.market is Market.OWNED:
            self._draw(at, node, self._model.death_every_s, self._random, self._die)
            self._draw(at, node, self._model.cut_off_every_s, self._random, self._cut_off)
            self._draw(at, node, self._model.slow.every_s, self._spells, self._slow)

    def _draw_life(self, at: float, node: SimNode, pool: PoolModel) -> None:
        """Draws the instant at which the market revokes a machine that has just joined."""
        if not pool.lifetime:
            self._draw(at, node, pool.mean_life_s, self._market, self._revoke)
            return
        law = lifetime_of(parse_lifetime(pool.lifetime))
        taken_at = at + drawn_life_h(law, 1.0 - self._market.random()) * SECONDS_PER_HOUR
        if taken_at <= self._model.until_at:
            self._engine.schedule(taken_at, self._revoke, node)

    def _draw(self, at: float, node: SimNode, mean_s: float, random: Random, fault: Action) -> None:
        if mean_s == inf:
            return
        happens_at = at + random.expovariate(1.0 / mean_s)
        if happens_at <= self._model.until_at:
            self._engine.schedule(happens_at, fault, node)

    def _cordoned(self, now: float, command: NodeCordoned) -> None:
        if self._model.uncordon_s < inf:
            self._engine.schedule(now + self._model.uncordon_s, self._uncordon, command.node_id)

    def _uncordon(self, at: float, node_id: NodeId) -> Iterable[Event]:
        node = self._machines.nodes.get(node_id)
        return () if node is None or node.leaving is not None else (NodeUncordoned(at, node_id),)

    # -- deaths

    def _die(self, at: float, node: SimNode) -> Iterable[Event]:
        if node.link is not NodeLink.UP:
            return ()
        self._world.die(at, node)
        self._engine.schedule(at + self._model.notice_silence_s, self._silent, node)
        self._engine.schedule(at + max(self._model.lease_s, self._model.notice_silence_s), self._lost, node)
        return ()

    def _silent(self, at: float, node: SimNode) -> Iterable[Event]:
        if node.link is not NodeLink.DOWN:
            return ()
        return (NodeUnreachable(at, node.node_id),)

    def _lost(self, at: float, node: SimNode) -> Iterable[Event]:
        if node.link is NodeLink.GONE:
            return ()
        gone = self._machines.gone(at, node)
        if not node.token:
            self._engine.schedule(at + self._model.repair_s, self._machines.repaired, node)
        return gone

    # -- losses of contact

    def _cut_off(self, at: float, node: SimNode) -> Iterable[Event]:
        if node.link is not NodeLink.UP:
            return ()
        self._world.cut_off(node)
        back_in_s = self._random.expovariate(1.0 / self._model.cut_off_s)
        if back_in_s < self._model.lease_s:
            self._engine.schedule(at + back_in_s, self._back, node)
        else:
            self._engine.schedule(at + self._model.lease_s, self._lost, node)
        return (NodeUnreachable(at, node.node_id),)

    def _back(self, at: float, node: SimNode) -> Iterable[Event]:
        if node.link is not NodeLink.CUT_OFF:
            return ()
        events = self._world.reconnect(at, node)
        self._engine.schedule(at, self._catch_up, node)
        self._draw(at, node, self._model.cut_off_every_s, self._random, self._cut_off)
        return (NodeBack(at, node.node_id), *events)

    def _catch_up(self, at: float, node: SimNode) -> Iterable[Event]:
        return self._world.catch_up(at, node) if node.link is NodeLink.UP else ()

    # -- slow periods

    def _slow(self, at: float, node: SimNode) -> Iterable[Event]:
        if node.link is not NodeLink.GONE:
            self._world.slow(at, node, self._model.slow.pace)
            self._engine.schedule(at + self._spells.expovariate(1.0 / self._model.slow.length_s), self._well, node)
        return ()

    def _well(self, at: float, node: SimNode) -> Iterable[Event]:
        if node.link is not NodeLink.GONE:
            self._world.slow(at, node, 1.0)
            self._draw(at, node, self._model.slow.every_s, self._spells, self._slow)
        return ()

    def _begun(self, now: float, attempt: SimAttempt) -> None:
        slow_at = now + self._attempt_spells.expovariate(1.0 / self._model.attempt_slow.every_s)
        if slow_at <= self._model.until_at:
            self._engine.schedule(slow_at, self._slow_attempt, attempt)

    def _slow_attempt(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        if attempt.job.attempt is attempt:
            self._world.slow_attempt(at, attempt, self._model.attempt_slow.pace)
            length_s = self._attempt_spells.expovariate(1.0 / self._model.attempt_slow.length_s)
            self._engine.schedule(at + length_s, self._attempt_well, attempt)
        return ()

    def _attempt_well(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        if attempt.job.attempt is attempt:
            self._world.slow_attempt(at, attempt, 1.0)
            self._begun(at, attempt)
        return ()

    # -- prices

    def _repriced(self, at: float, subject: tuple[PoolId, float]) -> Iterable[Event]:
        """Draws another market price around the one of the cluster file."""
        pool_id, usual = subject
        pool = self._machines.pools[pool_id]
        usd_per_h = usual * self._prices.lognormvariate(0.0, pool.price_noise)
        if at + pool.reprice_every_s <= self._model.until_at:
            self._engine.schedule(at + pool.reprice_every_s, self._repriced, subject)
        return (self._machines.reprice(at, pool_id, usd_per_h),)

    # -- revocations

    def _revoke(self, at: float, node: SimNode) -> Iterable[Event]:
        takeback = self._machines.cloud.revoke_one(at, node.node_id)
        return () if takeback is None else self._notice(takeback)

    def _notice(self, takeback: SpotRevocation) -> Iterable[Event]:
        node = self._machines.nodes.get(takeback.notice.node_id)
        if node is None:
            # It was rented at this very instant, and joins before anything that is scheduled now.
            self._engine.schedule(takeback.notice.at, self._noticed_as_it_joins, takeback)
            return ()
        node.leaving = self._engine.schedule(takeback.end.at, self._taken_back, node)
        # A machine that is dead or out of reach cannot pass the notice on.
        return (takeback.notice,) if node.link is NodeLink.UP else ()

    def _noticed_as_it_joins(self, at: float, takeback: SpotRevocation) -> Iterable[Event]:
        return self._notice(takeback) if takeback.notice.node_id in self._machines.nodes else ()

    def _taken_back(self, at: float, node: SimNode) -> Iterable[Event]:
        return self._machines.gone(at, node, Reason.INFRA_SPOT_RECLAIM)
