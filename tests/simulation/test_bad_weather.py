"""Whatever a market does for an hour: jobs end, `walras explain` says what is wrong, and nothing is left that is paid
for and not known. The real core, desk, janitor and store, a clock moved by hand, and a provider that follows a script.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

import pytest

from scheduler.core.events import PoolDeclared
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.live.loop import billing
from scheduler.live.loop.billing import spending_report, sum_charges
from scheduler.live.providers.pool_watch import MarketWatch
from scheduler.live.providers.provisioning import Provisioner
from scheduler.live.store.store_interface import MoneyQuery
from scheduler.providers.provider import MachineState, ProviderProblem, ProviderProblemKind, RentalOffer, RentedMachine
from tests.support.live_world import FakeAgent, World, world
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.errors import UserError
from walras.job_request import JobId
from walras.states import JobState

POOL = Pool(
    PoolId("ax2/spot/default"), Shape("ax2", "a", 2, 8.0, 1 << 34), Market.SPOT, usd_per_h=3.6, quota=3, boot_s=60.0
)
RENTING = {
    "policy": {"name": "throughput_per_dollar"},
    "rules": {
        "round_s": 60.0, "resolve_min_s": 1.0, "delay_usd_per_h": 100.0, "rent_keep_s": 120.0, "profiling_share": 0.0,
        "rent_backoff_s": 60.0, "rent_backoff_max_s": 600.0,
    },
}  # fmt: skip
STEP_S, JOB_S = 60.0, 600.0
BAD_FROM, BAD_UNTIL, END = 12, 72, 140


@dataclass(eq=False)
class ScriptedCloud:
    """A provider with one weather at a time. Billed from the request to the giving back, at the price of then."""

    now: Callable[[], float]
    weather: str = ""
    held: dict[NodeId, RentedMachine] = field(default_factory=dict)
    since_at: dict[NodeId, float] = field(default_factory=dict)
    granted: dict[str, tuple[RentedMachine, ...]] = field(default_factory=dict)
    usd: float = 0.0

    async def offers(self) -> tuple[RentalOffer, ...]:
        self._maybe_fail()
        prices = {"price 0": 0.0, "price nan": nan, "price x 100": 100 * POOL.usd_per_h}
        if self.weather == "price missing":
            return ()
        return (RentalOffer(POOL.pool_id, prices.get(self.weather, POOL.usd_per_h), POOL.quota),)

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[RentedMachine, ...]:
        if token not in self.granted:
            if self.weather == "quota":
                raise ProviderProblem(ProviderProblemKind.QUOTA, "no more vCPUs")
            if self.weather == "no capacity":
                raise ProviderProblem(ProviderProblemKind.CAPACITY, "none left")
            count = 1 if self.weather == "in part" else machines
            names = [NodeId(f"i-{len(self.granted)}-{row}") for row in range(count)]
            self.granted[token] = tuple(
                RentedMachine(name, pool.pool_id, token, MachineState.RUNNING) for name in names
            )
            self.held |= {machine.node_id: machine for machine in self.granted[token]}
            self.since_at |= dict.fromkeys(names, self.now())
            self._maybe_fail()  # done, and the answer is lost
            if count < machines:
                raise ProviderProblem(ProviderProblemKind.CAPACITY, f"{count} of {machines}", machines - count)
        return self.granted[token]

    async def describe(self) -> tuple[RentedMachine, ...]:
        self._maybe_fail()
        return tuple(self.held.values())

    async def terminate(self, node_id: NodeId) -> None:
        self._maybe_fail()
        if self.held.pop(node_id, None) is not None:
            self.usd += POOL.usd_per_h * (self.now() - self.since_at[node_id]) / 3600.0

    def _maybe_fail(self) -> None:
        if self.weather == "500":
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "internal error (500)")


@dataclass
class Rehearsal:
    """A server, its provider, and the agents of the machines that came up."""

    w: World
    cloud: ScriptedCloud
    provisioner: Provisioner
    agents: dict[NodeId, FakeAgent] = field(default_factory=dict)
    began_at: dict[tuple[JobId, int], float] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    async def minute(self) -> None:
        """Machines come up, jobs run and end, prices are asked for, the janitor sweeps."""
        w = self.w
        w.clock.at += STEP_S
        for node in w.live_state.nodes.values():  # silence is another watch's business
            node.heard_at = w.clock.at
        with suppress(ProviderProblem):
            await MarketWatch(w.loop, [self.cloud]).look(self.cloud)
        await w.advance(0.0)
        await self.calls_end()
        for machine in list(self.cloud.held.values()):
            await self._boot(machine)
        for node_id, agent in list(self.agents.items()):
            node = w.live_state.nodes[node_id]
            if not node.is_member:
                del self.agents[node_id]
                continue
            for start in await agent.start_all():
                self.began_at[start.job_id, start.attempt] = w.clock.at
            for job_id, attempt in list(agent.here):
                if w.clock.at - self.began_at[job_id, attempt] >= JOB_S:
                    await agent.end(job_id, attempt)
        await self.provisioner.janitor.sweep()
        await self.calls_end()
        for job_id in w.live_state.jobs:
            self.told |= {line.detail for line in pending_reasons(w.loop.core, job_id)}

    async def _boot(self, machine: RentedMachine) -> None:
        late = self.w.clock.at - self.cloud.since_at[machine.node_id] < POOL.boot_s
        if machine.node_id in self.agents or late or self.cloud.weather == "launches hang":
            return
        wrong = self.cloud.weather == "launches come up wrong"
        agent = FakeAgent(self.w, machine.node_id, machine.token, market="spot", accelerators=1 if wrong else 2)
        with suppress(UserError):
            self.agents[machine.node_id] = await agent.register()

    async def calls_end(self) -> None:
        while self.provisioner._tasks:
            await asyncio.gather(*list(self.provisioner._tasks), return_exceptions=True)
        await self.w.quiet()

    def records(self) -> set[NodeId]:
        return {node_id for node_id, node in self.w.live_state.nodes.items() if node.row.rent_token and node.is_member}

    def check_books(self) -> None:
        """The provider's list is the board's, the core's, and that of the requests that are not over."""
        state, fleet = self.w.live_state, self.w.loop.core.ledger.fleet
        assert set(self.cloud.held) == self.records()
        assert {machine.node_id for machine in fleet.machines if machine is not None} == self.records()
        assert all(not state.awaited for state in fleet.pools)
        here = [node.row.rent_token for node in state.nodes.values() if node.is_member]
        assert {token: rent.machines for token, rent in state.rents.items()} == {t: here.count(t) for t in here}

    def ledger_usd(self) -> float:
        state, store = self.w.live_state, self.w.server.store
        query = MoneyQuery("pool", state.next_charge_id)
        open_now = sum_charges(billing.open_charges(state, self.w.clock.now()), query)
        return float(spending_report(query, [*store.money(query), *open_now]).total_usd)


SAID = {
    "fair": "", "price 0": "", "price nan": "", "price missing": "",
    "price x 100": "an hour of it is worth 100 USD by the policy, and 2 accelerators here cost 360 USD/h",
    "quota": "quota: no more vCPUs", "no capacity": "capacity: none left", "in part": "machines are on their way",
    "launches hang": "came up but did not join", "launches come up wrong": "came up but did not join",
    "500": "internal error (500)", "clock jumps": "",
}  # fmt: skip


@pytest.mark.parametrize("weather", SAID)
async def test_after_an_hour_of_it_the_providers_list_equals_our_records(tmp_path: Path, weather: str) -> None:
    """Two jobs before, four in the midst of it: all end, the provider and we know the same machines, and its bill is
    in the ledger to the cent.
    """
    async with world(tmp_path, policy=RENTING) as w:
        cloud = ScriptedCloud(w.clock.now)
        provisioner = Provisioner(w.loop, {POOL.pool_id: cloud})
        w.loop.effect_handlers.append(provisioner)
        await w.emit(lambda at: PoolDeclared(at, POOL))
        rehearsal, jobs = Rehearsal(w, cloud, provisioner), list[JobId]()
        for minute in range(END):
            if minute in (0, 1, BAD_FROM + 2, BAD_FROM + 30):
                jobs += [await w.submit({"resources": {"accelerators": "a:2"}}) for _ in range(1 + (minute > 1))]
                await rehearsal.calls_end()
            cloud.weather = weather if BAD_FROM <= minute < BAD_UNTIL else ""
            if weather == "clock jumps" and minute in (BAD_FROM, BAD_FROM + 8):
                w.clock.at += 7200.0
            await rehearsal.minute()
        assert [w.state(job_id) for job_id in jobs] == [JobState.SUCCEEDED] * len(jobs)
        rehearsal.check_books()
        assert cloud.held == {}, "machines that nobody needs are given back"
        assert any(SAID[weather] in detail for detail in rehearsal.told), sorted(rehearsal.told)
        if weather != "price x 100":
            assert rehearsal.ledger_usd() == pytest.approx(cloud.usd, abs=0.005)
