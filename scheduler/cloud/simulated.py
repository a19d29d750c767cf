"""A cloud in virtual time: boot delays, quotas, notices, revocations and the bill.

Pure: time comes in as `at`, what will happen goes out as events with their instants (the caller delivers them, and asks
`holds` first, because a machine may have been given back meanwhile). It decides nothing about renting.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.core.events import Event, NodeJoined, NodeLeaving, NodeLost, RentFailed
from walras.cluster import Pool
from walras.ids import NodeId, PoolId
from walras.reasons import Reason


@dataclass(slots=True)
class _Rented:
    node_id: NodeId
    pool: Pool
    token: str
    requested_at: float
    joined_at: float
    gone_at: float | None = None


class SimulatedCloud:
    """Machines by the hour: billed from the request until they are given back or taken away."""

    def __init__(self, boot_s: Mapping[PoolId, float], default_boot_s: float = 60.0) -> None:
        self._boot_s = dict(boot_s)
        self._default_boot_s = default_boot_s
        self._machines: dict[NodeId, _Rented] = {}
        self._by_token: dict[str, tuple[NodeId, ...]] = {}

    def request(self, at: float, token: str, pool: Pool, machines: int) -> tuple[Event, ...]:
        """Rent machines: a `NodeJoined` for each that is to be had, one `RentFailed` for those over the quota.

        A token that is known already rents nothing more and answers nothing.
        """
        if token in self._by_token:
            return ()
        granted = max(0, min(machines, pool.quota - self._held(pool.pool_id)))
        joined_at = at + self._boot_s.get(pool.pool_id, self._default_boot_s)
        events: list[Event] = []
        for index in range(granted):
            node_id = NodeId(f"{token}-{index}")
            self._machines[node_id] = _Rented(node_id, pool, token, at, joined_at)
            events.append(NodeJoined(joined_at, node_id, pool.pool_id, token))
        self._by_token[token] = tuple(NodeId(f"{token}-{index}") for index in range(granted))
        if granted < machines:
            events.append(RentFailed(at, token, f"quota of {pool.quota} machines in {pool.pool_id}"))
        return tuple(events)

    def terminate(self, at: float, node_id: NodeId) -> None:
        """Give a machine back; its bill ends. Unknown or gone machines are no error."""
        machine = self._machines.get(node_id)
        if machine is not None and machine.gone_at is None:
            machine.gone_at = max(at, machine.requested_at)

    def revoke(self, at: float, pool_id: PoolId, notice_s: float) -> tuple[Event, ...]:
        """Take every machine of a pool away: notice now, gone after `notice_s`."""
        events: list[Event] = []
        for machine in self._machines.values():
            if machine.pool.pool_id == pool_id and machine.gone_at is None and machine.joined_at <= at:
                events.append(NodeLeaving(at, machine.node_id, at + notice_s))
                events.append(NodeLost(at + notice_s, machine.node_id, Reason.INFRA_SPOT_RECLAIM))
        return tuple(sorted(events, key=lambda event: event.at))

    def holds(self, node_id: NodeId) -> bool:
        """True while the machine is rented (booting included)."""
        machine = self._machines.get(node_id)
        return machine is not None and machine.gone_at is None

    def usd(self, at: float) -> float:
        """The whole bill until `at`."""
        return (
            sum(
                machine.pool.usd_per_h
                * max(0.0, (at if machine.gone_at is None else machine.gone_at) - machine.requested_at)
                for machine in self._machines.values()
            )
            / 3600.0
        )

    def _held(self, pool_id: PoolId) -> int:
        return sum(m.pool.pool_id == pool_id and m.gone_at is None for m in self._machines.values())
