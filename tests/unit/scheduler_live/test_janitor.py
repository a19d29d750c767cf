"""Never a leaked machine, and none that is paid for twice or not at all, whatever a cloud does."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from math import inf, nan
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.core.commands import Rent
from scheduler.core.events import JobSubmitted, PoolDeclared, PoolRemoved, RentFailed, RentRestored
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.live.providers import provisioning
from scheduler.live.providers.live_provider import SpotPricePoint
from scheduler.live.providers.provisioning import MarketWatch, Provisioner, play_market_script
from scheduler.live.services.agent_gateway import declare_node_lost
from scheduler.live.store.backup import back_up, restore
from scheduler.live.store.table_rows import RentRow
from scheduler.providers.provider import MachineState, ProviderProblem, ProviderProblemKind, RentalOffer, RentedMachine
from tests.support.flaky_cloud import FlakyCloud
from tests.support.live_world import FakeAgent, World, world
from tests.whole_system.virtual_loop import VirtualLoop
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.errors import ConfigError, UserError
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.spec.cluster_file import MarketStep
from walras.states import Reason

SPOT = Pool(PoolId("ax2/spot/default"), Shape("ax2", "a", 2, 8.0, 1 << 34), Market.SPOT, quota=6, boot_s=30.0)


async def open_shop(w: World, seed: int = 0) -> tuple[FlakyCloud, Provisioner]:
    cloud = FlakyCloud(w.clock.now, SPOT, seed)
    provisioner = Provisioner(w.loop, {SPOT.pool_id: cloud}, call_s=0.005, request_s=0.005)
    w.loop.effect_handlers.append(provisioner)
    await w.emit(lambda at: PoolDeclared(at, SPOT))
    return cloud, provisioner


async def ask(w: World, token: str, machines: int) -> None:
    """As the core would."""

    def step(transaction: Any) -> None:
        from scheduler.live.loop.apply_commands import emit

        rent = transaction.state.rents[token] = RentRow(token, SPOT.pool_id, machines, transaction.at)
        transaction.rent_changed(rent)
        emit(transaction, RentRestored(transaction.at, token, SPOT.pool_id, machines))
        transaction.effects.rents.append(Rent(token, SPOT.pool_id, machines))

    await w.loop.perform(step)


async def calls_end(provisioner: Provisioner) -> None:
    while provisioner._tasks:
        await asyncio.gather(*list(provisioner._tasks), return_exceptions=True)


async def join(w: World, cloud: FlakyCloud, random: Random) -> None:
    """Some of the machines that run come up; some come up as something else, some never do."""
    for machine in list(cloud.held.values()):
        node = w.live_state.nodes.get(machine.node_id)
        if (node is None or not node.is_member) and (cloud.is_well or random.random() < 0.5):
            wrong = not cloud.is_well and random.random() < 0.3
            agent = FakeAgent(w, machine.node_id, machine.token, market="spot", accelerators=4 if wrong else 2)
            try:
                await agent.register()
            except UserError:
                continue


def records(w: World) -> set[NodeId]:
    return {node_id for node_id, node in w.live_state.nodes.items() if node.row.rent_token and node.is_member}


async def rent_by_a_failed_request(w: World) -> tuple[FlakyCloud, Provisioner, RentedMachine]:
    """A machine at 3.6 USD/h that the cloud holds for a request that is over for the server."""
    cloud, provisioner = await open_shop(w)
    await w.emit(lambda at: PoolDeclared(at, replace(SPOT, usd_per_h=3.6)))
    cloud.is_well = True
    await ask(w, "t", 1)
    await calls_end(provisioner)
    (machine,) = cloud.held.values()
    await w.emit(lambda at: RentFailed(at, "t", "did not come up"))
    return cloud, provisioner, machine


async def test_a_machine_given_back_after_its_pool_was_removed_is_charged(w: World) -> None:
    """A cloud that would not take it back in time lists it still: what it has cost is in the books."""
    cloud, provisioner, machine = await rent_by_a_failed_request(w)
    assert "t" in w.live_state.past_rents
    await w.emit(lambda at: PoolRemoved(at, SPOT.pool_id))
    w.clock.at += 1000.0
    await provisioner.janitor.sweep()
    assert machine.node_id not in cloud.held
    assert w.live_state.spent_usd[""] == pytest.approx(1.0)


async def test_a_machine_given_back_after_its_pool_was_removed_is_charged_after_a_restart(tmp_path: Path) -> None:
    """The pool is no pool any more, and its price is known. A pool of that name may be added again."""
    async with world(tmp_path) as w:
        cloud, provisioner, machine = await rent_by_a_failed_request(w)
        await w.emit(lambda at: PoolRemoved(at, SPOT.pool_id))
        await provisioner.close()
    async with swept_after_restart(tmp_path, cloud, 1000.0) as w:
        assert machine.node_id not in cloud.held
        assert w.live_state.spent_usd[""] == pytest.approx(1.0)
        assert SPOT.pool_id not in w.live_state.pools
        await w.emit(lambda at: PoolDeclared(at, SPOT))
    async with world(tmp_path) as again:
        assert again.live_state.pools[SPOT.pool_id] == SPOT


async def test_a_machine_of_a_failed_request_is_charged_after_a_restart(tmp_path: Path) -> None:
    """The cloud said no and rented it out all the same; the server was killed before it saw the machine."""
    async with world(tmp_path) as w:
        cloud, provisioner, machine = await rent_by_a_failed_request(w)
        await provisioner.close()
        at = w.clock.at
    async with world(tmp_path, at=at) as w:
        provisioner = Provisioner(w.loop, {SPOT.pool_id: cloud}, call_s=1.0)
        w.clock.at += 1000.0
        await provisioner.janitor.sweep()
        assert machine.node_id not in cloud.held
        assert w.live_state.spent_usd[""] == pytest.approx(1.0)


async def test_what_a_provider_could_not_do_is_told_and_asked_again_later(w: World) -> None:
    """The kind of problem and the wait are in `explain`; each failure doubles the wait."""
    cloud, provisioner = await open_shop(w)
    cloud.is_well, cloud.empty_until_at = True, 3600.0
    request = JobRequest(JobId(900), Kind("k"), demands=(Demand("a", 2),))
    w.loop.core.handle(JobSubmitted(w.clock.at, request))
    waits = []
    for number in range(3):
        await ask(w, f"t{number}", 1)
        await calls_end(provisioner)
        (state,) = [each for each in w.loop.core.ledger.fleet.pools if each.rented]
        waits.append(state.rent_not_before - w.clock.at)
        (line, *_) = pending_reasons(w.loop.core, JobId(900))
        assert line.reason is Reason.WAIT_PROVISIONING
        assert "capacity: ax2/spot/default: none left" in line.detail
    assert waits == [30.0, 60.0, 120.0]


async def test_a_listing_that_lags_loses_no_machine(w: World) -> None:
    """A machine that is missing once may only be new; one that is missing twice is lost, its jobs go elsewhere."""
    cloud, provisioner = await open_shop(w)
    cloud.is_well = True
    await ask(w, "t", 1)
    await calls_end(provisioner)
    await join(w, cloud, Random(0))
    (node_id,) = records(w)
    machine = cloud.held.pop(node_id)
    await provisioner.janitor.sweep()
    assert records(w) == {node_id}
    cloud.held[node_id] = machine
    await provisioner.janitor.sweep()
    del cloud.held[node_id]
    await provisioner.janitor.sweep()
    assert records(w) == {node_id}
    await provisioner.janitor.sweep()
    assert records(w) == set()
    assert w.live_state.nodes[node_id].row.detail == Reason.INFRA_NODE_LOST
    await w.loop.perform(
        lambda transaction: declare_node_lost(transaction, node_id, Reason.INFRA_NODE_LOST)
    )  # again: no error


async def test_a_market_script_moves_prices_and_takes_machines_away(w: World) -> None:
    """Each step at its time, as a market would; a pool without machines has nothing to lose."""
    cloud, provisioner = await open_shop(w)
    cloud.is_well = True
    await ask(w, "t", 2)
    await calls_end(provisioner)
    await join(w, cloud, Random(0))
    assert len(records(w)) == 2
    steps = [
        MarketStep.model_validate({"at": 0, "pool": SPOT.pool_id, "revoke": 0}),
        MarketStep.model_validate({"at": 0, "pool": SPOT.pool_id, "usd_per_h": 2.5}),
    ]
    playing = asyncio.create_task(play_market_script(w.loop, provisioner, steps))
    await w.quiet()
    await calls_end(provisioner)
    playing.cancel()
    assert w.live_state.pools[SPOT.pool_id].usd_per_h == 2.5
    assert (records(w), cloud.held) == (set(), {})


async def test_prices_that_cannot_be_are_not_believed(w: World) -> None:
    """0, nothing and infinity leave the last price; 100 times the price is a price."""
    cloud, _ = await open_shop(w)
    cloud.is_well = True
    watch = MarketWatch(w.loop, cloud)
    for offered, believed in ((1.5, 1.5), (0.0, 1.5), (nan, 1.5), (inf, 1.5), (150.0, 150.0)):
        cloud.usd_per_h = offered
        await watch.look()
        assert w.live_state.pools[SPOT.pool_id].usd_per_h == believed


def test_a_region_that_does_not_answer_delays_the_prices_and_queues_of_no_other() -> None:
    """It is asked on, each call for so long; nobody waits for that. In virtual time."""
    virtual, asked = VirtualLoop(), defaultdict[str, list[float]](list)

    class Place(FlakyCloud):
        def __init__(self, name: str) -> None:
            super().__init__(virtual.time, SPOT, 0)
            self.name = name

        async def offers(self) -> tuple[RentalOffer, ...]:
            return tuple(await self._answer("offers"))

        async def waits(self) -> dict[PoolId, float]:
            return dict(await self._answer("waits"))

        async def price_history(self, since: datetime) -> list[SpotPricePoint]:
            return []

        async def _answer(self, what: str) -> tuple[()]:
            asked[f"{self.name} {what}"].append(virtual.time() - began_at)
            if self.name == "silent":
                await asyncio.Event().wait()
            return ()

    async def watched() -> None:
        loop: Any = SimpleNamespace(state=SimpleNamespace(pools={}))
        places = {name: Place(name) for name in ("silent", "well")}
        watches = [asyncio.create_task(watch()) for watch in provisioning.pool_watches(loop, places).values()]
        await asyncio.sleep(1000.0)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    began_at = virtual.time()
    virtual.run_until_complete(watched())
    virtual.close()
    assert asked["well offers"] == [0.0, 300.0, 600.0, 900.0]
    assert asked["well waits"] == [30.0 * (n + 1) for n in range(33)]
    assert asked["silent offers"] == [0.0, 420.0, 840.0]
    assert asked["silent waits"] == [30.0 + 150.0 * n for n in range(7)]


async def launched(w: World, machines: int = 1) -> tuple[FlakyCloud, Provisioner]:
    """A cloud that has launched machines at 3.6 USD/h, a cent for 10 s, for the request `t`; none has joined."""
    cloud, provisioner = await open_shop(w)
    cloud.is_well = True
    await w.emit(lambda at: PoolDeclared(at, replace(SPOT, usd_per_h=3.6)))
    await ask(w, "t", machines)
    await calls_end(provisioner)
    return cloud, provisioner


def paid(w: World) -> dict[str, float]:
    return {str(row.node_id): pytest.approx(row.until_at - row.since_at) for row in w.server.store.charges()}


@asynccontextmanager
async def swept_after_restart(folder: Path, cloud: FlakyCloud, at: float) -> AsyncIterator[World]:
    """The server that starts then, and has compared its machines with what the cloud lists."""
    async with world(folder, at=at) as w:
        provisioner = Provisioner(w.loop, {SPOT.pool_id: cloud}, call_s=1.0)
        for _ in range(3):
            await provisioner.janitor.sweep()
        yield w


async def test_a_machine_that_is_taken_before_it_joined_is_paid_for_and_asked_for_again(w: World) -> None:
    """Once, up to when it was missed; the core knows at once that it will not come."""
    cloud, provisioner = await launched(w)
    w.clock.at = 50.0
    cloud.held.clear()
    await provisioner.janitor.sweep()
    assert paid(w) == {}
    w.clock.at = 80.0
    for _ in range(3):
        await provisioner.janitor.sweep()
    assert paid(w) == {"t-0": 80.0}
    assert w.loop.core.cycle.spending.everything.used == pytest.approx(0.08)
    assert w.live_state.rents == {}
    (state,) = [each for each in w.loop.core.ledger.fleet.pools if each.rented]
    assert not state.awaited


async def test_one_of_two_that_is_taken_before_it_joined_leaves_the_other_expected(w: World) -> None:
    """The request goes on for the machine that is coming, which joins and is paid for as any other."""
    cloud, provisioner = await launched(w, 2)
    del cloud.held[NodeId("t-0")]
    w.clock.at = 40.0
    for _ in range(2):
        await provisioner.janitor.sweep()
    assert w.live_state.rents["t"].machines == 1
    await join(w, cloud, Random(0))
    w.clock.at = 100.0
    await provisioner._release(NodeId("t-1"))
    await provisioner.janitor.sweep()
    assert paid(w) == {"t-0": 40.0, "t-1": pytest.approx(60.0)}  # the last of two stretches: its boot came before
    assert w.live_state.spent_usd[""] == pytest.approx(0.14)


async def test_a_machine_that_came_though_the_answer_was_lost_is_paid_for_when_it_is_taken(w: World) -> None:
    """A listing named it once."""
    cloud, provisioner = await launched(w, 0)
    await ask(w, "u", 1)
    cloud.held[NodeId("u-0")] = RentedMachine(NodeId("u-0"), SPOT.pool_id, "u", MachineState.BOOTING)
    await provisioner.janitor.sweep()
    cloud.held.clear()
    w.clock.at = 30.0
    for _ in range(2):
        await provisioner.janitor.sweep()
    assert paid(w) == {"u-0": 30.0}


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_machine_that_was_given_back_or_taken_around_a_restart_is_paid_for_once(
    tmp_path: Path, is_known: bool
) -> None:
    """Nothing lists it any more: the next server finds its name. One whose bill was written may be listed still."""
    async with world(tmp_path) as w:
        cloud, provisioner = await launched(w)
        held = dict(cloud.held)
        if is_known:
            w.clock.at = 1000.0
            await provisioner.janitor.sweep()
            assert cloud.held == {}
        await provisioner.close()
    cloud.held = held if is_known else {}
    async with swept_after_restart(tmp_path, cloud, 1060.0) as w:
        assert paid(w) == {"t-0": 1000.0 if is_known else 1060.0}
        assert w.live_state.rents == {}


async def test_a_machine_that_its_provider_reports_gone_before_it_joined_is_paid_for(w: World) -> None:
    """At once, without waiting for listings; a second report changes nothing."""
    cloud, provisioner = await launched(w)
    cloud.held.clear()
    w.clock.at = 20.0
    for _ in range(2):
        await provisioner.gone(NodeId("t-0"), Reason.INFRA_NODE_LOST, "t")
    assert paid(w) == {"t-0": 20.0}
    assert w.live_state.rents == {}


async def test_a_machine_that_had_joined_and_is_given_back_after_a_restart_is_paid_for_once(tmp_path: Path) -> None:
    """The server died after it had let the machine go and before its provider was told: only the rest is charged."""
    async with world(tmp_path) as w:
        cloud, provisioner = await launched(w)
        (machine,) = cloud.held.values()
        w.clock.at = 40.0
        await join(w, cloud, Random(0))
        w.clock.at = 100.0
        await provisioner._release(NodeId("t-0"))
        await calls_end(provisioner)
        assert w.live_state.spent_usd[""] == pytest.approx(0.1)
        await provisioner.close()
    cloud.held[machine.node_id] = machine
    async with swept_after_restart(tmp_path, cloud, 160.0) as w:
        assert cloud.held == {}
        assert sum(row.usd for row in w.server.store.charges()) == pytest.approx(0.16)


async def test_a_machine_that_could_not_be_given_back_before_a_restart_needs_its_provider(tmp_path: Path) -> None:
    """A server that nobody lets give it back says so and does not start; one that can does, and forgets it then."""
    rack = replace(SPOT, provider="rack", usd_per_h=3.6)
    async with world(tmp_path) as w:
        cloud, provisioner = await launched(w)
        await join(w, cloud, Random(0))
        w.clock.at = 100.0
        cloud.keeps = True
        await provisioner._release(NodeId("t-0"))
        await provisioner.close()
        at = w.clock.at
    async with world(tmp_path, at=at) as w:
        with pytest.raises(ConfigError, match="1 of its machines cannot be given back"):
            Provisioner(w.loop, {}).take_up_again([rack])
        cloud.keeps, w.clock.at = False, 200.0
        provisioner = Provisioner(w.loop, {SPOT.pool_id: cloud}, call_s=1.0)
        for _ in range(3):
            await provisioner.janitor.sweep()
        assert cloud.held == {}
        assert sum(row.usd for row in w.server.store.charges()) == pytest.approx(0.2)
        Provisioner(w.loop, {}).take_up_again([rack])


@pytest.mark.sqlite_file
@pytest.mark.parametrize("has_joined", [False, True])
@pytest.mark.parametrize("knows_pool", [False, True])
async def test_machines_rented_after_a_backup_are_given_back_and_paid_for_after_its_restore(
    tmp_path: Path, has_joined: bool, knows_pool: bool
) -> None:
    """Where their region is dropped at the same time the server says so and does not start."""
    data, rack = tmp_path / "data", replace(SPOT, provider="rack", usd_per_h=3.6)
    async with world(data) as w:
        if knows_pool:
            await w.emit(lambda at: PoolDeclared(at, SPOT))
        back_up(data, tmp_path / "backup")
        cloud, provisioner = await launched(w)
        if has_joined:
            await join(w, cloud, Random(0))
        await provisioner.close()
    assert restore(tmp_path / "backup", data, replace=True).may_be_back == ()
    async with world(data, at=100.0) as w:
        assert SPOT.pool_id in w.live_state.pools
        with pytest.raises(ConfigError, match="1 of its machines cannot be given back"):
            Provisioner(w.loop, {}).take_up_again([rack])
        await w.emit(lambda at: PoolDeclared(at, rack))
        provisioner = Provisioner(w.loop, {SPOT.pool_id: cloud}, call_s=1.0)
        for _ in range(4):
            await provisioner.janitor.sweep()
        assert (cloud.held, paid(w)) == ({}, {"t-0": 100.0})
        Provisioner(w.loop, {}).take_up_again([rack])


FAR = replace(SPOT, pool_id=PoolId("ax2/spot/far"), zone="far")


class Region(FlakyCloud):
    """A cloud that is well, counts how often it is asked, and answers after a while, or says that it cannot."""

    def __init__(self, w: World, pool: Pool) -> None:
        super().__init__(w.clock.now, pool, 0)
        self.is_well, self.is_silent, self.asked = True, False, 0
        self.was_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def describe(self) -> tuple[RentedMachine, ...]:
        self.asked += 1
        self.was_asked.set()
        await self.may_answer.wait()
        if self.is_silent:
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "no answer")
        return await super().describe()


async def two_regions(w: World) -> tuple[Region, Region, Provisioner]:
    near, far = Region(w, SPOT), Region(w, FAR)
    provisioner = Provisioner(w.loop, {SPOT.pool_id: near, FAR.pool_id: far}, call_s=5.0)
    w.loop.effect_handlers.append(provisioner)
    for pool in (SPOT, FAR):
        await w.emit(lambda at, pool=pool: PoolDeclared(at, replace(pool, usd_per_h=3.6)))
    return near, far, provisioner


async def test_a_region_that_is_silent_is_asked_less_often_and_no_other_is(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rounds 1, 3, 7, 15 and 31 of the first 40; once it answers it is asked in every round again."""
    near, far, provisioner = await two_regions(w)
    near.is_silent = True
    monkeypatch.setattr(provisioning, "JANITOR_SWEEP_S", 0.0)
    watching = asyncio.create_task(provisioner.janitor.watch())

    async def until_far_was_asked(times: int) -> None:
        while far.asked < times:  # noqa: ASYNC110 - each round of the watch asks it once
            await asyncio.sleep(0)

    await until_far_was_asked(40)
    assert near.asked == 5
    near.is_silent = False
    await until_far_was_asked(63)
    before = near.asked
    await until_far_was_asked(83)
    watching.cancel()
    assert near.asked - before == 20


async def test_a_region_that_answers_late_is_not_waited_for_by_another(w: World) -> None:
    """The first is answered only after the second was asked."""
    near, far, provisioner = await two_regions(w)
    near.may_answer = far.was_asked
    assert await provisioner.janitor.sweep()
    assert (near.asked, far.asked) == (1, 1)


async def test_a_machine_that_is_listed_still_is_charged_once_whatever_other_regions_list(w: World) -> None:
    """It had joined and was given back; its cloud takes it back only in the end."""
    near, far, provisioner = await two_regions(w)
    await ask(w, "t", 1)
    await calls_end(provisioner)
    held = dict(near.held)
    await join(w, near, Random(0))
    w.clock.at = 100.0
    await provisioner._release(NodeId("t-0"))
    for at in (160.0, 300.0, 500.0):
        w.clock.at, near.held = at, dict(held)
        await provisioner.janitor.sweep()
        assert near.held == {}
    assert sum(row.usd for row in w.server.store.charges()) == pytest.approx(0.16)
    assert far.asked == 3
