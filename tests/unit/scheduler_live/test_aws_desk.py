"""A whole server that rents from EC2 (moto): what is paid for equals what is known, whatever happens in between."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.providers.aws_provider import AwsProvider
from scheduler.live.providers.pool_watch import MarketWatch
from scheduler.providers.provider import ProviderProblem, ProviderProblemKind
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
from tests.support.provider_kit import IMAGE, SPOT, ec2_client, stand_in_of_aws
from walras.cluster import NodeId
from walras.errors import Conflict

RENTING = {
    "policy": {"name": "throughput_per_dollar"},
    "rules": {"round_s": 10.0, "resolve_min_s": 1.0, "delay_usd_per_h": 100.0, "rent_keep_s": 5.0, "profiling_s": 1.0},
}
CLUSTER = {
    "pools": [
        {
            "shape": "g4dn.xlarge", "accelerator": "t4", "accelerators": 1, "cpus": 4, "memory": "16GiB",
            "market": "spot", "zone": "us-east-1a", "provider": "aws", "quota": 4, "usd_per_h": 0.19,
        }
    ],
    "aws": {"region": "us-east-1", "image": IMAGE, "server_url": "https://walras.example"},
}  # fmt: skip
FACTS = {
    "shape": "g4dn.xlarge", "accelerator": "t4", "accelerators": 1, "cpus": 4.0, "memory_bytes": 16 << 30,
    "market": "spot", "zone": "us-east-1a",
}  # fmt: skip


@pytest.fixture(scope="module")
def stand_in() -> Iterator[str]:
    with stand_in_of_aws() as url:
        yield url


@pytest.fixture
def ec2(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    client = ec2_client(stand_in)
    for name, value in {"ENDPOINT_URL": stand_in, "ACCESS_KEY_ID": "none", "SECRET_ACCESS_KEY": "none"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return client


@asynccontextmanager
async def renting(folder: Path) -> AsyncIterator[tuple[Face, AwsProvider]]:
    """A server with one job that is worth a machine of EC2."""
    async with facing(folder, policy=RENTING, cluster=CLUSTER) as face:
        w = face.world
        w.loop.effect_handlers.append(w.server.providers)
        aws = w.assembled.providers["aws"]
        assert isinstance(aws, AwsProvider)
        try:
            yield face, aws
        finally:
            await w.server.providers.close()
            await aws.close()


async def settle(face: Face) -> None:
    """Let calls to the provider end and be taken note of."""
    provisioner = face.world.server.providers
    while provisioner._tasks:
        await next(iter(set(provisioner._tasks)))
    await face.world.quiet()


async def rent_one(face: Face) -> str:
    """Submit a job; the token of the request that follows."""
    await face.world.submit({"resources": {"accelerators": "t4:1"}})
    await face.world.advance(2.0)
    await settle(face)
    (token,) = face.world.live_state.rents
    return str(token)


async def test_a_job_rents_runs_and_its_machine_is_given_back(tmp_path: Path, ec2: Any) -> None:
    """From a job that waits to an instance, an agent on it, and nothing that is left to pay."""
    async with renting(tmp_path) as (face, aws):
        token = await rent_one(face)
        (machine,) = await aws.describe()
        assert machine.token == token
        agent = await FakeAgent(face.world, machine.node_id, token, **FACTS).register()
        (start,) = await agent.start_all()
        await agent.end(start.job_id)
        await face.world.advance(11.0)
        await face.world.advance(11.0)
        await settle(face)
        assert (await aws.describe(), dict(face.world.live_state.rents)) == ((), {})


async def test_a_launch_in_part_keeps_what_came(tmp_path: Path, ec2: Any) -> None:
    """Two are asked for and one comes (the stand-in launches the least that was asked for): it may join, and the other
    is asked for later under a token of its own.
    """
    async with renting(tmp_path) as (face, aws):
        await face.world.submit({"resources": {"accelerators": "t4:2"}, "num_nodes": 2})
        await face.world.advance(2.0)
        await settle(face)
        ((token, rent),) = face.world.live_state.rents.items()
        (machine,) = await aws.describe()
        assert (machine.token, rent.machines) == (token, 1)
        agent = await FakeAgent(face.world, machine.node_id, token, **FACTS).register()
        for _ in range(2):
            await face.world.advance(19.0)
            await agent.beat()
            await settle(face)
        assert {each.token for each in await aws.describe()} > {token}


async def test_a_restarted_server_takes_up_its_machines(tmp_path: Path, ec2: Any) -> None:
    """The request is repeated and answered with the instance that it had led to."""
    async with renting(tmp_path) as (face, aws):
        token = await rent_one(face)
        before = await aws.describe()
    async with renting(tmp_path) as (face, aws):
        await face.world.server.providers.reconcile()
        await settle(face)
        assert (await aws.describe(), list(face.world.live_state.rents)) == (before, [token])


async def test_a_machine_that_answers_no_request_is_given_back(tmp_path: Path, ec2: Any) -> None:
    """What a former life launched and nobody knows of is found by its tag."""
    async with renting(tmp_path) as (face, aws):
        await aws.request("forgotten", SPOT, 1)
        await face.world.server.providers.reconcile()
        assert await aws.describe() == ()


async def test_what_does_not_answer_proves_nothing(tmp_path: Path, ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While EC2 cannot be asked, its machines are neither lost nor forgotten."""

    async def silent(self: AwsProvider) -> Any:
        raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "no answer")

    async with renting(tmp_path) as (face, aws):
        token = await rent_one(face)
        (machine,) = await aws.describe()
        await FakeAgent(face.world, machine.node_id, token, **FACTS).register()
        with monkeypatch.context() as patch:
            patch.setattr(AwsProvider, "describe", silent)
            await face.world.server.providers.reconcile()
        assert face.world.live_state.nodes[NodeId(machine.node_id)].is_member


async def test_an_enrolment_token_admits_its_own_machines_only(tmp_path: Path, ec2: Any) -> None:
    """Of its request and pool, as many as were asked for, while the request is young; it opens nothing else."""
    async with renting(tmp_path) as (face, _):
        token = await rent_one(face)
        key = face.world.server.secrets.enrolment_tokens.issue(token)

        async def register(name: str, **change: Any) -> int:
            facts = {**FACTS, **change.pop("facts", {})}
            body = {"node_id": name, "rent_token": token, "facts": facts, "agent": "a" * 32, "boot_id": "b", **change}
            status, _ = await face.json("POST", "/agent/v1/register", body, token=key)
            return status

        assert await register("i-1", rent_token="") == 403
        assert await register("i-1", facts={"market": "owned"}) == 403
        assert await register("i-1") == 200
        assert await register("i-1") == 200  # it has lost its credential
        assert await register("i-1", agent="c" * 32) == 409  # a job on it that read its user-data
        assert await register("i-2") == 403
        assert (await face.json("GET", "/api/v1/jobs", token=key))[0] == 403
        assert (await face.json("POST", "/agent/v1/register", {}, token=key[:-1] + "x"))[0] == 401
        face.world.clock.at += 1801.0
        assert await register("i-1") == 403


async def test_a_price_that_moves_is_the_pool_s_price_from_then_on(tmp_path: Path, ec2: Any) -> None:
    """The market (of the stand-in: one price for ever) overrules the file; asking again changes nothing more."""
    async with renting(tmp_path) as (face, aws):
        watch = MarketWatch(face.world.loop, [aws])
        assert face.world.live_state.pools[SPOT.pool_id].usd_per_h == 0.19
        await watch.look(aws)
        declared = face.world.live_state.pools[SPOT.pool_id]
        assert declared.usd_per_h == pytest.approx(0.00001)
        await watch.look(aws)
        assert face.world.live_state.pools[SPOT.pool_id] is declared


async def test_a_cloud_holds_no_drills(tmp_path: Path, ec2: Any) -> None:
    """Taking machines of EC2 away is EC2's to do."""
    async with renting(tmp_path) as (face, _):
        with pytest.raises(Conflict, match="drills"):
            face.world.server.providers.revoke(SPOT.pool_id, 10.0)


async def test_a_hint_is_shown_and_takes_nothing_away(tmp_path: Path, ec2: Any) -> None:
    """The machine goes on taking jobs; who looks at it reads what EC2 said."""
    async with renting(tmp_path) as (face, aws):
        token = await rent_one(face)
        (machine,) = await aws.describe()
        agent = await FakeAgent(face.world, machine.node_id, token, **FACTS).register()
        await agent.start_all()
        await agent.beat({"type": "hint", "detail": "EC2 may take it away"})
        row = face.world.live_state.nodes[NodeId(machine.node_id)].row
        assert (row.detail, row.cordon, face.world.state(1)) == ("EC2 may take it away", "", "RUNNING")
