"""A machine that was launched is paid for, whether it joins or not, and whoever sees it go."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from scheduler.core.events import PoolDeclared
from scheduler.live.providers.provisioning import Provisioner
from scheduler.providers.provider import MachineState, RentedMachine
from tests.support.flaky_cloud import FlakyCloud
from tests.support.live_world import World, world
from tests.unit.scheduler_live.test_janitor import SPOT, ask, calls_end, join, open_shop
from walras.cluster import NodeId
from walras.states import Reason


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


async def test_a_machine_that_is_taken_before_it_joined_is_paid_for_and_asked_for_again(tmp_path: Path) -> None:
    """Once, up to when it was missed; the core knows at once that it will not come."""
    async with world(tmp_path) as w:
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


async def test_one_of_two_that_is_taken_before_it_joined_leaves_the_other_expected(tmp_path: Path) -> None:
    """The request goes on for the machine that is coming, which joins and is paid for as any other."""
    async with world(tmp_path) as w:
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


async def test_a_machine_that_is_taken_while_the_server_is_down_is_paid_for(tmp_path: Path) -> None:
    """The row of its request names it: no listing does."""
    async with world(tmp_path) as w:
        cloud, provisioner = await launched(w)
        await provisioner.close()
    cloud.held.clear()
    async with world(tmp_path, at=60.0) as w:
        provisioner = Provisioner(w.loop, {SPOT.pool_id: cloud}, call_s=1.0)
        await provisioner.janitor.sweep(patient=False)
        await provisioner.janitor.sweep()
        assert paid(w) == {"t-0": w.clock.at}
        assert w.live_state.rents == {}


async def test_a_machine_that_came_though_the_answer_was_lost_is_paid_for_when_it_is_taken(tmp_path: Path) -> None:
    """A listing named it once."""
    async with world(tmp_path) as w:
        cloud, provisioner = await launched(w, 0)
        await ask(w, "u", 1)
        cloud.held[NodeId("u-0")] = RentedMachine(NodeId("u-0"), SPOT.pool_id, "u", MachineState.BOOTING)
        await provisioner.janitor.sweep()
        cloud.held.clear()
        w.clock.at = 30.0
        for _ in range(2):
            await provisioner.janitor.sweep()
        assert paid(w) == {"u-0": 30.0}


async def test_a_machine_given_back_by_a_server_that_died_before_it_wrote_the_bill_is_paid_for(tmp_path: Path) -> None:
    """Nothing lists it any more: the next server finds its name and pays, once."""
    async with world(tmp_path) as w:
        cloud, provisioner = await launched(w)
        await provisioner.close()
        await cloud.terminate(NodeId("t-0"))
    async with swept_after_restart(tmp_path, cloud, 1000.0) as w:
        assert paid(w) == {"t-0": 1000.0}


async def test_a_machine_given_back_that_is_listed_still_after_a_restart_is_paid_for_once(tmp_path: Path) -> None:
    """Its request says that it is paid for."""
    async with world(tmp_path) as w:
        cloud, provisioner = await launched(w)
        (machine,) = cloud.held.values()
        w.clock.at = 1000.0
        await provisioner.janitor.sweep()
        assert cloud.held == {}
        await provisioner.close()
    cloud.held[machine.node_id] = machine
    async with swept_after_restart(tmp_path, cloud, 1060.0) as w:
        assert paid(w) == {"t-0": 1000.0}


async def test_a_machine_that_its_provider_reports_gone_before_it_joined_is_paid_for(tmp_path: Path) -> None:
    """At once, without waiting for listings; a second report changes nothing."""
    async with world(tmp_path) as w:
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
