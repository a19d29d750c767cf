"""What the scheduler takes for granted of every cloud, held against each: simulated, local, Slurm, and EC2 (moto)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.live.providers import local_provider
from scheduler.live.providers.local_provider import AgentLauncher, LocalPool, LocalProvider, find_agent_process
from scheduler.providers.provider import MachineState, ProviderProblem
from tests.support.provider_kit import ON_DEMAND, SPOT, Kit, ec2_client
from tests.support.waiting import until
from walras.cluster import NodeId

KINDS = ("simulated", "local", "slurm", "aws")


@pytest.fixture(params=KINDS)
async def kit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kit]:
    client = ec2_client(request.getfixturevalue("stand_in")) if request.param == "aws" else None
    kit = Kit(request.param, tmp_path / "machines", client)
    yield kit
    await kit.close()


async def test_what_was_asked_for_is_listed_under_its_token_and_pool(kit: Kit) -> None:
    """A janitor can tell every machine's request."""
    cloud = kit.provider()
    (spot,) = await cloud.request("r1", SPOT, 1)
    (plain,) = await cloud.request("r2", ON_DEMAND, 1)
    listed = {machine.node_id: (machine.token, machine.pool_id) for machine in await cloud.describe()}
    assert listed == {spot.node_id: ("r1", SPOT.pool_id), plain.node_id: ("r2", ON_DEMAND.pool_id)}


async def test_a_request_that_is_repeated_rents_nothing_more(kit: Kit) -> None:
    """A server that died between the call and its record asks again with the same token."""
    first = await kit.provider().request("r1", SPOT, 1)
    again = kit.provider()
    await again.describe()
    repeated = await again.request("r1", SPOT, 1)
    assert [machine.node_id for machine in repeated] == [machine.node_id for machine in first]
    assert len(await again.describe()) == 1


async def test_machines_are_listed_after_a_restart(kit: Kit) -> None:
    """What is held is known to whoever asks next, not only to whoever rented it."""
    (machine,) = await kit.provider().request("r1", SPOT, 1)
    (found,) = await kit.provider().describe()
    assert (found.node_id, found.token, found.pool_id) == (machine.node_id, "r1", SPOT.pool_id)
    assert found.state in (MachineState.BOOTING, MachineState.RUNNING)


async def test_what_was_given_back_is_gone_however_often_it_is_said(kit: Kit) -> None:
    """Giving back can be repeated; only that machine goes."""
    cloud = kit.provider()
    (gone,) = await cloud.request("r1", SPOT, 1)
    (kept,) = await cloud.request("r2", ON_DEMAND, 1)
    for _ in range(2):
        await cloud.terminate(gone.node_id)
    assert [machine.node_id for machine in await cloud.describe()] == [kept.node_id]


@pytest.mark.parametrize("name", ["i-0123456789abcdef0", "nobody", "r1-0", "../etc", ""])
async def test_giving_back_what_never_was_is_no_error(kit: Kit, name: str) -> None:
    """A janitor may know machines that the cloud has forgotten."""
    cloud = kit.provider()
    await cloud.terminate(NodeId(name))
    assert await cloud.describe() == ()


async def test_what_cannot_be_had_is_told_and_the_rest_is_listed(kit: Kit) -> None:
    """Held = asked for less what the problem says is missing, also after the request is repeated."""
    cloud = kit.provider()
    with pytest.raises(ProviderProblem) as told:
        await cloud.request("r1", SPOT, SPOT.quota + 1)
    missing = told.value.missing
    held = await cloud.describe()
    assert len(held) == (0 if missing is None else SPOT.quota + 1 - missing)
    assert {machine.token for machine in held} <= {"r1"}


async def test_every_pool_is_offered_at_a_price(kit: Kit) -> None:
    """Offers name the pools that were declared, with a price and the quota."""
    offers = {offer.pool_id: offer for offer in await kit.provider().offers()}
    assert set(offers) == {SPOT.pool_id, ON_DEMAND.pool_id}
    assert all(offer.usd_per_h > 0 and offer.quota == 4 for offer in offers.values())


async def test_an_agent_that_cannot_be_started_again_is_tried_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, or no process left: the jobs of the machine run on meanwhile, and the server too."""
    monkeypatch.setattr(local_provider, "_WATCH_S", 0.01)
    monkeypatch.setattr(local_provider, "_START_AGAIN_S", 0.01)
    program, away = tmp_path / "agent", tmp_path / "away"
    program.write_text("#!/bin/sh\nsleep 60; :\n")
    program.chmod(0o755)
    launcher = AgentLauncher((str(program),), tmp_path / "join.token", environment={})
    cloud = LocalProvider(tmp_path / "machines", {SPOT.pool_id: LocalPool(SPOT)}, launcher)
    (machine,) = await cloud.request("r1", SPOT, 1)
    held = cloud._machines[machine.node_id]
    program.rename(away)
    watching = asyncio.create_task(cloud.watch())
    held.process.kill()
    await until(lambda: watching.done() or caplog.text.count("cannot start an agent") > 1, 10.0, "it was tried")
    assert not watching.done()
    assert [each.node_id for each in await cloud.describe()] == [machine.node_id]
    away.rename(program)
    await until(lambda: held.process.poll() is None, 10.0, "it is started again")
    watching.cancel()
    await cloud.close()


async def test_of_a_request_whose_agents_do_not_start_nothing_is_held(tmp_path: Path) -> None:
    """Those that did start go too: the problem says that none will come."""
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\nsleep 60; :\n")
    program.chmod(0o755)
    launcher = AgentLauncher((str(program),), tmp_path / "join.token", environment={})
    cloud = LocalProvider(tmp_path / "machines", {SPOT.pool_id: LocalPool(SPOT)}, launcher)
    first, second, _ = [machine.node_id for machine in await cloud.request("r1", SPOT, 3)]
    await cloud.close()
    (tmp_path / "machines" / second).rename(tmp_path / "taken")
    (tmp_path / "machines" / second).touch()
    with pytest.raises(ProviderProblem, match="cannot start an agent"):
        await cloud.request("r1", SPOT, 3)
    assert await cloud.describe() == ()
    assert find_agent_process(tmp_path / "machines" / first) is None
