"""A cloud that machines are rented from, and what befalls such machines.

`PlayedCloud` outlives the server, as a cloud does: what it holds is what is paid for. Machines boot, or never do; they
are taken away with notice and without, by the market or by an operator's drill; requests are refused, or carried out
without an answer; lists fail.
"""

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import aiohttp

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
#: The janitor of the server looks around so often.
SWEEP_S = 3.0
#: A machine that was taken is missing in two listings, and given up, so soon; the lease of its agent runs out later.
MISSED_WITHIN_S = 10.0
#: After listings have failed the server looks around less often, at most so long.
CAUTIOUS_FOR_S = 8 * SWEEP_S
#: A machine that ended this shortly before the end of a run may not be billed yet.
BILLED_WITHIN_S = 60.0
#: What is paid for and what the server knows are the same again so soon after healing.
KNOWN_WITHIN_S = 240.0


@dataclass
class Bill:
    """A machine's time with the cloud, paid for from its request; when servers were told of the machine."""

    since: float
    until: float = inf
    told_at: list[float] = field(default_factory=list)


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
        #: The next machines are taken so soon after they were rented, s.
        self.take_after: list[float] = []
        #: Since when the server has had nothing that keeps it from missing a machine.
        self._unhindered_since = inf
        self._seen: Any = None

    def changes(self) -> list[tuple[Any, str, Any]]:
        """Where the server finds its providers, and paces that only cost time."""
        return [
            (assembly_module, "build_providers", lambda _: {"local": self}),
            (provisioning_module, "JANITOR_SWEEP_S", SWEEP_S),
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
            return self._told(self._asked[token])
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
            if self.take_after:
                self._later(self.take_after.pop(0), self.end, machine.node_id, "taken away while it booted")
        if self.answers_lost > 0:
            self.answers_lost -= 1
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "no answer")
        return self._told(found)

    async def describe(self) -> tuple[RentedMachine, ...]:
        await asyncio.sleep(0.1)
        if self._loop.time() < self.lists_nothing_until:
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "no list")
        return self._told(tuple(self.held.values()))

    def _told(self, machines: tuple[RentedMachine, ...]) -> tuple[RentedMachine, ...]:
        for machine in machines:
            self.bills[machine.node_id].told_at.append(self._loop.time())
        return machines

    async def terminate(self, node_id: NodeId) -> None:
        await asyncio.sleep(0.1)
        if self._loop.time() < self.lists_nothing_until:
            raise ProviderProblem(ProviderProblemKind.THROTTLED, "too many calls")
        self.end(node_id, "given back")

    async def revoke(self, node_id: NodeId, notice_s: float) -> None:
        """The machine goes even if the server that asked for it dies meanwhile."""
        self._give_notice(node_id, notice_s)
        self._later(notice_s, self.end, node_id, "revoked")
        await asyncio.sleep(notice_s + 0.05)

    # ---------------------------------------------------------------- machines

    def _give_notice(self, node_id: NodeId, notice_s: float) -> None:
        with contextlib.suppress(OSError):
            write_notice(self._world.folder / node_id, notice_s)

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
            world.machines[name] = Machine(name, self._loop, world.observer, booted_at=self._loop.time())
            world.observer.machines.append(world.machines[name])
            world.agents[name] = world.start_agent(name)

    def _later(self, delay_s: float, call: Any, *args: Any) -> None:
        """Whoever asked for it may die meanwhile."""
        self._loop.call_at(self._loop.time() + delay_s, call, *args, context=self._world._context)

    # ---------------------------------------------------------------- faults

    async def befall(self, fault: Fault) -> None:
        """Let a fault of `plans.RENTED_KINDS` happen; what has no agent yet can only be taken."""
        held = next(iter(self.held), None)
        oldest = next((name for name in self.held if name in self._world.machines), None)
        match fault.kind:
            case "take" if held is not None:
                self.end(held, "taken away")
            case "take_with_notice" if oldest is not None:
                self._give_notice(oldest, fault.amount)
                await asyncio.sleep(fault.amount)
                self.end(oldest, "taken away after a notice")
            case "rent_refused":
                self.refuses_until = self._loop.time() + fault.amount
            case "rent_unanswered":
                self.answers_lost += 1
            case "never_boots":
                self.never_boot += 1
            case "take_booting":
                self.take_after.append(fault.amount)
            case "revoke":
                asked = {"pool_id": self.entry.pool_id, "notice_s": fault.amount}
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    await self._world.call("POST", "pools:revoke", asked)
            case "no_lists":
                self.lists_nothing_until = self._loop.time() + fault.amount

    def heal(self) -> None:
        self.refuses_until, self.lists_nothing_until = -inf, min(self.lists_nothing_until, self._loop.time())
        self.answers_lost = self.never_boot = 0
        self.take_after.clear()

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
        until: dict[NodeId, float] = {}
        usd_per_s, found = self.entry.usd_per_h / 3600.0, []
        for charge in store.charges():
            if charge.kind is ChargeKind.MACHINE:
                paid[charge.node_id] += charge.usd
                if charge.since_at < until.get(charge.node_id, -inf) - 1e-6:
                    found.append(f"{charge.node_id} is charged twice for what came after {charge.since_at:.1f} s")
                until[charge.node_id] = charge.until_at
        for name, bill in self.bills.items():
            if bill.until > self._loop.time() - BILLED_WITHIN_S:
                continue
            held_s, paid_s = bill.until - bill.since, paid[name] / usd_per_s
            if paid_s == 0.0 and not any(self._was_written_down(at) for at in bill.told_at):
                continue
            if not held_s - 1.0 <= paid_s <= held_s + BILL_SLACK_S:
                found.append(f"{name} was held {held_s:.1f} s and is charged for {paid_s:.1f} s")
        return found

    def _was_written_down(self, told_at: float) -> bool:
        """The server lived long enough to write down what it was told: from then on the machine is never forgotten."""
        within_s = self._world.observer.commit_may_take_s
        return not any(told_at <= at < told_at + within_s for at in self._world.server_died_at)

    def missed_too_late(self, server: Any) -> list[str]:
        """Machines that were taken some time ago, and that the server still counts on. To be called now and then."""
        world, now = self._world, self._loop.time()
        is_hindered = world.is_disk_full or world.slow_disk_s > 1.0 or now < self.lists_nothing_until + CAUTIOUS_FOR_S
        is_hindered |= world.life is not None and now < world.life.process.stopped_until
        if server is None or server is not self._seen or is_hindered or now < world.observer.split_until:
            self._seen, self._unhindered_since = server, now
            return []
        overdue = now - MISSED_WITHIN_S
        gone = [name for name, bill in self.bills.items() if max(bill.until, self._unhindered_since) < overdue]
        nodes = server.loop.state.nodes
        return [
            f"{name} was {now - self.bills[name].until:.1f} s ago taken away and is still a machine of the fleet"
            for name in gone
            if name in nodes and nodes[name].is_member
        ]


def rented_entry(shape: dict[str, Any], accelerators: int, usd_per_h: float) -> dict[str, Any]:
    """The rented pool as the cluster file says it."""
    return {
        **shape, "shape": RENTED_POOL, "accelerators": accelerators, "usd_per_h": usd_per_h * accelerators,
        "market": "spot", "provider": "local", "quota": 3, "least": 1, "notice": "5s", "boot": "3s",
    }  # fmt: skip
