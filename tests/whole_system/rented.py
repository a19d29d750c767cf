"""A cloud that machines are rented from, and what befalls such machines.

`PlayedCloud` outlives the server, as a cloud does: what it holds is what is paid for. Machines boot, or never do; they
are taken away with notice and without; requests are refused, or carried out without an answer; lists fail.
"""

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from scheduler.live import assembly as assembly_module
from scheduler.live.providers import provisioning as provisioning_module
from scheduler.live.store.table_rows import ChargeKind
from scheduler.providers.provider import MachineState, ProviderProblem, ProviderProblemKind, RentalOffer, RentedMachine
from tests.whole_system.fake_machine import Machine
from tests.whole_system.plans import RENTED_POOL, Fault
from walras.cluster import NodeId, Pool, PoolId
from walras.spec.cluster_file import PoolEntry
from workers.agent.machine_notices import write_notice

if TYPE_CHECKING:
    from tests.whole_system.world import World

#: What the server's bill of a machine may be beyond its time with the cloud: until it can know of the end.
BILL_SLACK_S = 150.0
#: From giving a machine back until its bill is written.
UNWRITTEN_WITHIN_S = 5.0
#: A machine that ended this shortly before the end of a run may not be billed yet.
BILLED_WITHIN_S = 60.0
#: What is paid for and what the server knows are the same again so soon after healing.
KNOWN_WITHIN_S = 240.0


@dataclass
class Bill:
    """A machine's time with the cloud, paid for from its request."""

    since: float
    until: float = inf


class PlayedCloud:
    """`LiveProvider` of the pool `plans.RENTED_POOL`."""

    def __init__(self, world: "World", entry: PoolEntry) -> None:
        self._world, self._loop = world, world.loop
        self.entry = entry
        self.pools: dict[PoolId, object] = {entry.pool_id: entry.pool()}
        #: Booting machines included.
        self.held: dict[NodeId, RentedMachine] = {}
        self.bills: dict[NodeId, Bill] = {}
        self._asked: dict[str, tuple[RentedMachine, ...]] = {}
        self.refuses_until = self.lists_nothing_until = -inf
        self.answers_lost = self.never_boot = 0

    def changes(self) -> list[tuple[Any, str, Any]]:
        """Where the server finds its providers, and paces that only cost time."""
        return [
            (assembly_module, "build_providers", lambda _: {"local": self}),
            (provisioning_module, "JANITOR_SWEEP_S", 10.0),
            (provisioning_module, "_BOOT_LEAST_S", 60.0),
        ]

    def attach(self, server_url: str, report_gone: Any) -> None:
        """Agents know where the server is."""

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """The machines stay."""

    # ---------------------------------------------------------------- what the server asks

    async def offers(self) -> tuple[RentalOffer, ...]:
        return (RentalOffer(self.entry.pool_id, self.entry.usd_per_h, self.entry.quota),)

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[RentedMachine, ...]:
        await asyncio.sleep(0.2)
        if token in self._asked:
            return self._asked[token]
        if self._loop.time() < self.refuses_until:
            raise ProviderProblem(ProviderProblemKind.CAPACITY, "none are left")
        if len(self.held) + machines > self.entry.quota:
            raise ProviderProblem(ProviderProblemKind.QUOTA, f"{len(self.held)} are held")
        names = [NodeId(f"r{len(self.bills) + number}") for number in range(machines)]
        found = tuple(RentedMachine(name, self.entry.pool_id, token, MachineState.BOOTING) for name in names)
        self._asked[token] = found
        for machine in found:
            self.held[machine.node_id], self.bills[machine.node_id] = machine, Bill(self._loop.time())
            self._world.observer.tell(f"the cloud rents out {machine.node_id} for {token}")
            if self.never_boot > 0 and not self._world.is_healed:
                self.never_boot -= 1
            else:
                self._later(self.entry.boot, self._boot, machine)
        if self.answers_lost > 0:
            self.answers_lost -= 1
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "no answer")
        return found

    async def describe(self) -> tuple[RentedMachine, ...]:
        await asyncio.sleep(0.1)
        if self._loop.time() < self.lists_nothing_until:
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "no list")
        return tuple(self.held.values())

    async def terminate(self, node_id: NodeId) -> None:
        await asyncio.sleep(0.1)
        if self._loop.time() < self.lists_nothing_until:
            raise ProviderProblem(ProviderProblemKind.THROTTLED, "too many calls")
        self.end(node_id, "given back")

    # ---------------------------------------------------------------- machines

    def token_of(self, name: str) -> str:
        machine = self.held.get(NodeId(name))
        return "" if machine is None else machine.token

    def end(self, node_id: NodeId, why: str) -> None:
        """It is no more, with all that ran on it."""
        if self.held.pop(node_id, None) is None:
            return
        world = self._world
        world.observer.tell(f"{node_id} is {why}")
        self.bills[node_id].until = self._loop.time()
        world.observer.lost_at[node_id] = inf  # no machine of this name comes again
        life, machine = world.agents.pop(node_id, None), world.machines.pop(node_id, None)
        if life is not None:
            life.process.kill()
        if machine is not None:
            machine.reboot()
            world.observer.machines.remove(machine)

    def _boot(self, rented: RentedMachine) -> None:
        if rented.node_id in self.held:
            world, name = self._world, str(rented.node_id)
            self.held[rented.node_id] = RentedMachine(name, rented.pool_id, rented.token, MachineState.RUNNING)  # type: ignore[arg-type]
            world.machines[name] = Machine(name, self._loop, world.observer)
            world.observer.machines.append(world.machines[name])
            world.agents[name] = world.start_agent(name)

    def _later(self, delay_s: float, call: Any, *args: Any) -> None:
        """Whoever asked for it may die meanwhile."""
        self._loop.call_at(self._loop.time() + delay_s, call, *args, context=self._world._context)

    # ---------------------------------------------------------------- faults

    async def befall(self, fault: Fault) -> None:
        """Let a fault of `plans.RENTED_KINDS` happen."""
        oldest = next((name for name in self.held if name in self._world.machines), None)
        match fault.kind:
            case "take" if oldest is not None:
                self.end(oldest, "taken away")
            case "take_with_notice" if oldest is not None:
                with contextlib.suppress(OSError):
                    write_notice(self._world.folder / oldest, fault.amount)
                await asyncio.sleep(fault.amount)
                self.end(oldest, "taken away after a notice")
            case "rent_refused":
                self.refuses_until = self._loop.time() + fault.amount
            case "rent_unanswered":
                self.answers_lost += 1
            case "never_boots":
                self.never_boot += 1
            case "no_lists":
                self.lists_nothing_until = self._loop.time() + fault.amount

    def heal(self) -> None:
        self.refuses_until = self.lists_nothing_until = -inf
        self.answers_lost = self.never_boot = 0

    # ---------------------------------------------------------------- what must hold

    def unknown(self, server: Any) -> list[str]:
        """Machines that are paid for and that the server does not have, and the other way round."""
        nodes = {} if server is None else server.loop.state.nodes
        known = {name for name, node in nodes.items() if node.row.rent_token and node.is_member}
        return sorted({str(name) for name in known ^ set(self.held)})

    def wrong_bills(self, store: Any) -> list[str]:
        """Machines whose charges are not their time x price, as far as the server could know when they ended."""
        if self._world.observer.restored_at > -inf:
            return []  # charges of before are forgotten with the backup
        paid: dict[NodeId, float] = defaultdict(float)
        for charge in store.charges():
            if charge.kind is ChargeKind.MACHINE:
                paid[charge.node_id] += charge.usd
        usd_per_s, found = self.entry.usd_per_h / 3600.0, []
        for name, bill in self.bills.items():
            if bill.until > self._loop.time() - BILLED_WITHIN_S:
                continue
            held_s, paid_s = bill.until - bill.since, paid[name] / usd_per_s
            if paid_s == 0.0 and self._died_meanwhile(bill.until):
                continue
            if not held_s - 1.0 <= paid_s <= held_s + BILL_SLACK_S:
                found.append(f"{name} was held {held_s:.1f} s and is charged for {paid_s:.1f} s")
        return found

    def _died_meanwhile(self, until: float) -> bool:
        """The server died between giving a machine back and writing its bill: nothing lists that machine any more."""
        return any(until <= at < until + UNWRITTEN_WITHIN_S for at in self._world.server_died_at)


def rented_entry(shape: dict[str, Any], accelerators: int, usd_per_h: float) -> dict[str, Any]:
    """The rented pool as the cluster file says it."""
    return {
        **shape, "shape": RENTED_POOL, "accelerators": accelerators, "usd_per_h": usd_per_h * accelerators,
        "market": "spot", "provider": "local", "quota": 3, "least": 1, "notice": "5s", "boot": "3s",
    }  # fmt: skip
