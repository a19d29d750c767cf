"""Never a leaked machine: after whatever a cloud does, its list equals our records."""

import asyncio
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scheduler.core.commands import Rent
from scheduler.core.events import JobSubmitted, PoolDeclared, PoolRemoved, RentFailed
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.restore_events import RentRestored
from scheduler.live.providers.pool_watch import MarketWatch, play_market_script
from scheduler.live.providers.provisioning import Provisioner
from scheduler.live.services.agent_gateway import declare_node_lost
from scheduler.live.store.table_rows import RentRow
from scheduler.providers.provider import RentedMachine
from tests.support.flaky_cloud import FlakyCloud
from tests.support.live_world import FakeAgent, World, world
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.errors import UserError
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


@pytest.mark.parametrize("seed", range(12))
async def test_the_providers_list_equals_our_records_after_every_scenario(tmp_path: Path, seed: int) -> None:
    """Partial and hung launches, 500s, quota, an hour without machines, jumps of the clock: all agree in the end."""
    random = Random(seed)
    async with world(tmp_path) as w:
        cloud, provisioner = await open_shop(w, seed)
        for number in range(14):
            match random.randrange(6):
                case 0 | 1:
                    await ask(w, f"t{number}", random.randint(1, 3))
                case 2:
                    await join(w, cloud, random)
                case 3:
                    members = sorted(records(w))
                    if members:
                        node_id = random.choice(members)
                        if random.random() < 0.5:
                            await provisioner._release(node_id)
                        else:  # taken away, and nobody says so
                            cloud.held.pop(node_id, None)
                case 4:
                    w.clock.at += random.choice((1.0, 60.0, 700.0, 86_400.0))
                    cloud.empty_until_at = w.clock.at + random.choice((0.0, 3600.0))
                case 5:
                    await provisioner.janitor.sweep()
            await calls_end(provisioner) if random.random() < 0.7 else await asyncio.sleep(0)
        await calls_end(provisioner)
        cloud.is_well = True
        for node in w.live_state.nodes.values():  # silence is another watch's business
            node.heard_at = w.clock.at
        for _ in range(3):
            w.clock.at += 1000.0
            await provisioner.janitor.sweep()
        assert set(cloud.held) == records(w)
        fleet = w.loop.core.ledger.fleet
        assert {machine.node_id for machine in fleet.machines if machine is not None} == records(w)
        assert all(not state.awaited for state in fleet.pools)
        here = [node.row.rent_token for node in w.live_state.nodes.values() if node.is_member]
        assert {token: rent.machines for token, rent in w.live_state.rents.items()} == {t: here.count(t) for t in here}


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


async def test_a_machine_given_back_after_its_pool_was_removed_is_charged(tmp_path: Path) -> None:
    """A cloud that would not take it back in time lists it still: what it has cost is in the books."""
    async with world(tmp_path) as w:
        cloud, provisioner, machine = await rent_by_a_failed_request(w)
        assert "t" in w.live_state.past_rents
        await w.emit(lambda at: PoolRemoved(at, SPOT.pool_id))
        w.clock.at += 1000.0
        await provisioner.janitor.sweep()
        assert machine.node_id not in cloud.held
        assert w.live_state.spent_usd[""] == pytest.approx(1.0)


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


@pytest.mark.parametrize("seed", range(4))
async def test_a_server_that_was_killed_amid_it_leaks_nothing(tmp_path: Path, seed: int) -> None:
    """Requests under way, machines that came up meanwhile, machines that went: all agree after the start."""
    random = Random(seed)
    async with world(tmp_path) as w:
        cloud, provisioner = await open_shop(w, seed)
        cloud.is_well = True
        for number in range(3):
            await ask(w, f"t{number}", 2)
            if random.random() < 0.7:
                await calls_end(provisioner)
            if random.random() < 0.7:
                await join(w, cloud, random)
        await provisioner.close()
        at = w.clock.at
    for node_id in list(cloud.held):
        if random.random() < 0.3:
            del cloud.held[node_id]
    async with world(tmp_path, at=at + 10.0) as again:
        provisioner = Provisioner(again.loop, {SPOT.pool_id: cloud}, call_s=1.0)
        again.loop.effect_handlers.append(provisioner)
        await provisioner.reconcile()
        await calls_end(provisioner)
        await join(again, cloud, random)
        again.clock.at += 1000.0
        await provisioner.janitor.sweep()
        assert set(cloud.held) == records(again)


async def test_what_a_provider_could_not_do_is_told_and_asked_again_later(tmp_path: Path) -> None:
    """The kind of problem and the wait are in `explain`; each failure doubles the wait."""
    async with world(tmp_path) as w:
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


async def test_a_launch_that_hangs_is_given_back_and_paid_for_once(tmp_path: Path) -> None:
    """From the request until it is given back, also where the listing still shows it afterwards."""
    async with world(tmp_path) as w:
        cloud, provisioner = await open_shop(w)
        cloud.is_well = True
        await w.emit(lambda at: PoolDeclared(at, replace(SPOT, usd_per_h=3.6)))
        await ask(w, "t", 1)
        await calls_end(provisioner)
        (machine,) = cloud.held.values()
        w.clock.at += 1000.0
        await provisioner.janitor.sweep()
        assert cloud.held == {}
        cloud.held[machine.node_id] = machine
        await provisioner.janitor.sweep()
        rows = w.server.store.charges()
        assert [(row.node_id, row.since_at, row.until_at) for row in rows] == [(machine.node_id, 0.0, 1000.0)]
        assert sum(row.usd for row in rows) == pytest.approx(1.0)
        assert w.loop.core.cycle.spending.everything.used == pytest.approx(1.0)
        (state,) = [each for each in w.loop.core.ledger.fleet.pools if each.rented]
        assert not state.awaited


async def test_a_listing_that_lags_loses_no_machine(tmp_path: Path) -> None:
    """A machine that is missing once may only be new; one that is missing twice is lost, its jobs go elsewhere."""
    async with world(tmp_path) as w:
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


async def test_a_market_script_moves_prices_and_takes_machines_away(tmp_path: Path) -> None:
    """Each step at its time, as a market would; a pool without machines has nothing to lose."""
    async with world(tmp_path) as w:
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


async def test_prices_that_cannot_be_are_not_believed(tmp_path: Path) -> None:
    """0, nothing and infinity leave the last price; 100 times the price is a price."""
    async with world(tmp_path) as w:
        cloud, _ = await open_shop(w)
        cloud.is_well = True
        watch = MarketWatch(w.loop, [cloud])
        for offered, believed in ((1.5, 1.5), (0.0, 1.5), (nan, 1.5), (inf, 1.5), (150.0, 150.0)):
            cloud.usd_per_h = offered
            await watch.look(cloud)
            assert w.live_state.pools[SPOT.pool_id].usd_per_h == believed
