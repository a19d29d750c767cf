"""A provider that misbehaves as clouds do, by a seed, until it is told to be well."""

import asyncio
from collections.abc import Callable
from random import Random

from scheduler.providers.provider import MachineState, ProviderProblem, ProviderProblemKind, RentalOffer, RentedMachine
from walras.cluster import NodeId, Pool


class FlakyCloud:
    """`CloudProvider` and revocable: quotas, an hour without machines, errors before and after the fact, parts of
    launches, calls that hang, listings that lag.
    """

    def __init__(self, now: Callable[[], float], pool: Pool, seed: int) -> None:
        self._now = now
        self._pool = pool
        self._random = Random(f"{seed}/cloud")
        self.is_well = False
        #: It takes no machine back.
        self.keeps = False
        self.usd_per_h = pool.usd_per_h
        #: No machine is to be had until then.
        self.empty_until_at = 0.0
        self.held: dict[NodeId, RentedMachine] = {}
        self._granted: dict[str, tuple[NodeId, ...]] = {}

    async def offers(self) -> tuple[RentalOffer, ...]:
        await self._trouble()
        return (RentalOffer(self._pool.pool_id, self.usd_per_h, self._pool.quota),)

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[RentedMachine, ...]:
        await self._trouble()
        if token not in self._granted:
            granted = self._grant(token, pool, machines)
            self._granted[token] = granted
            await self._trouble()  # done, and the answer is lost
            if len(granted) < machines:
                missing = machines - len(granted)
                raise ProviderProblem(ProviderProblemKind.CAPACITY, f"{len(granted)} of {machines}", missing)
        return tuple(self.held[node_id] for node_id in self._granted[token] if node_id in self.held)

    def _grant(self, token: str, pool: Pool, machines: int) -> tuple[NodeId, ...]:
        if self._now() < self.empty_until_at:
            raise ProviderProblem(ProviderProblemKind.CAPACITY, f"{pool.pool_id}: none left")
        if len(self.held) + machines > pool.quota:
            raise ProviderProblem(ProviderProblemKind.QUOTA, f"{pool.quota} machines at most")
        some = machines if self.is_well or self._random.random() < 0.6 else self._random.randint(0, machines)
        names = tuple(NodeId(f"{token}-{index}") for index in range(some))
        for node_id in names:
            self.held[node_id] = RentedMachine(node_id, pool.pool_id, token, MachineState.RUNNING)
        return names

    async def describe(self) -> tuple[RentedMachine, ...]:
        await self._trouble()
        lags = not self.is_well and self._random.random() < 0.2
        return tuple(self.held.values())[: -1 if lags else None]

    async def terminate(self, node_id: NodeId) -> None:
        await self._trouble()
        if self.keeps:
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "not now")
        self.held.pop(node_id, None)
        await self._trouble()

    async def revoke(self, node_id: NodeId, notice_s: float) -> None:
        self.held.pop(node_id, None)

    async def _trouble(self) -> None:
        if self.is_well:
            return
        match self._random.randrange(12):
            case 0:
                raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "internal error (500)")
            case 1:
                raise ProviderProblem(ProviderProblemKind.THROTTLED, "too many calls")
            case 2:
                await asyncio.sleep(3600.0)
            case 3:
                raise ConnectionResetError("connection reset")
            case _:
                pass
