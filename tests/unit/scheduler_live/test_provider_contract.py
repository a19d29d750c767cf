"""What the scheduler takes for granted of every cloud, held against each: simulated, local, Slurm, and EC2 (moto)."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from scheduler.providers.provider import MachineState, ProviderProblem
from tests.support.provider_kit import ON_DEMAND, SPOT, Kit, ec2_client, stand_in_of_aws
from walras.cluster import NodeId

KINDS = ("simulated", "local", "slurm", "aws")


@pytest.fixture(scope="module")
def stand_in() -> Iterator[str]:
    with stand_in_of_aws() as url:
        yield url


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
