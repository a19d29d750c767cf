"""Machines of AWS: refusals, launches, the market, boots, and a server that rents there."""

import asyncio
import base64
import hashlib
import os
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from scheduler.live.auth.access_control import EnrolmentTokens
from scheduler.live.providers.aws_provider import AwsProvider, Ec2Calls, classify_ec2_error
from scheduler.live.providers.machine_boot import boot_script, packed_wheel
from scheduler.live.providers.provisioning import MarketWatch
from scheduler.live.store.backup import back_up, restore
from scheduler.providers.provider import ProviderProblem, ProviderProblemKind
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
from tests.support.provider_kit import IMAGE, ON_DEMAND, SETTINGS, SPOT, aws_provider, ec2_client
from walras import __version__
from walras.cluster import NodeId, PoolId
from walras.errors import ConfigError, Conflict
from walras.spec.cluster_file import AwsSettings, ClusterConfig, region_of
from walras.spec.file_model import check_model

pytest.importorskip("boto3")


@pytest.fixture
def ec2(stand_in: str) -> Any:
    return ec2_client(stand_in)


class Scripted:
    """A client that answers `run_instances` from a script, and holds what it launched."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.launches: list[dict[str, Any]] = []

    def run_instances(self, **arguments: Any) -> Any:
        self.launches.append(arguments)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"Instances": answer}

    def get_paginator(self, operation: str) -> "Scripted":
        assert operation == "describe_instances"
        return self

    def paginate(self, **arguments: Any) -> list[Any]:
        return [{"Reservations": []}]


def instance(number: int, state: str = "pending") -> dict[str, Any]:
    return {"InstanceId": f"i-{number:017x}", "State": {"Name": state}}


def refused(code: str, status: int = 400) -> Exception:
    from botocore.exceptions import ClientError

    error = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(error, "RunInstances")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("VcpuLimitExceeded", 400, ProviderProblemKind.QUOTA),
        ("MaxSpotInstanceCountExceeded", 400, ProviderProblemKind.QUOTA),
        ("InsufficientInstanceCapacity", 500, ProviderProblemKind.CAPACITY),
        ("RequestLimitExceeded", 503, ProviderProblemKind.THROTTLED),
        ("InternalError", 500, ProviderProblemKind.UNAVAILABLE),
        ("SomethingNew", 502, ProviderProblemKind.UNAVAILABLE),
        ("UnauthorizedOperation", 403, ProviderProblemKind.REFUSED),
        ("InvalidAMIID.NotFound", 400, ProviderProblemKind.REFUSED),
        ("IdempotentInstanceTerminated", 400, ProviderProblemKind.GONE),
    ],
)
async def test_every_refusal_has_a_kind(code: str, status: int, kind: ProviderProblemKind) -> None:
    """Who reads the reason learns whether to wait, to ask for more, or to mend something."""
    with pytest.raises(ProviderProblem, match=code) as told:
        await aws_provider(Scripted(refused(code, status))).request("r1", SPOT, 1)
    assert (told.value.kind, told.value.missing) == (kind, None)
    assert classify_ec2_error(code, status) is kind


async def test_a_call_that_hangs_ends_in_time() -> None:
    """Nobody waits for EC2 longer than was said."""

    class Slow:
        def run_instances(self, **arguments: Any) -> None:
            time.sleep(0.3)

    calls = Ec2Calls(Slow, call_s=0.02)
    with pytest.raises(ProviderProblem) as told:
        await calls.call("run_instances")
    assert told.value.kind is ProviderProblemKind.UNAVAILABLE
    calls.close()


async def test_a_launch_is_the_same_call_whenever_it_is_repeated() -> None:
    """The client token and all that goes with it follow from the request, so EC2 knows it again; others differ."""
    client = Scripted([instance(1), instance(2)], [instance(1), instance(2)], [instance(3)])
    for _ in range(2):
        assert len(await aws_provider(client).request("r1", SPOT, 2)) == 2
    await aws_provider(client).request("r2", ON_DEMAND, 1)
    first, again, other = client.launches
    assert first == again
    assert first["ClientToken"] != other["ClientToken"]
    assert len(first["ClientToken"]) <= 64
    assert first["InstanceMarketOptions"]["SpotOptions"]["InstanceInterruptionBehavior"] == "terminate"
    assert "InstanceMarketOptions" not in other
    assert (first["MinCount"], first["MaxCount"]) == (1, 2)
    assert first["MetadataOptions"]["HttpTokens"] == "required"


async def test_a_launch_in_part_says_how_much_is_missing() -> None:
    """Two of three are kept; EC2 answers a known client token also with instances that were taken away."""
    with pytest.raises(ProviderProblem, match="2 of 3") as told:
        await aws_provider(Scripted([instance(1), instance(2)])).request("r1", SPOT, 3)
    assert (told.value.kind, told.value.missing) == (ProviderProblemKind.CAPACITY, 1)
    with pytest.raises(ProviderProblem) as told:
        await aws_provider(Scripted([instance(1, "terminated")])).request("r1", SPOT, 1)
    assert told.value.kind is ProviderProblemKind.GONE


async def test_only_machines_of_this_cluster_are_seen_and_ended(ec2: Any) -> None:
    """Another cluster of the account, and machines of nobody's, are left alone even if named."""
    plain = ec2.run_instances(ImageId="ami-12c6146b", InstanceType="m5.large", MinCount=1, MaxCount=1)
    strangers = [plain["Instances"][0]["InstanceId"]]
    other = aws_provider(ec2, cluster_id="c2")
    strangers += [machine.node_id for machine in await other.request("r1", SPOT, 1)]
    ours = aws_provider(ec2)
    for name in strangers:
        await ours.terminate(NodeId(name))
    assert await ours.describe() == ()
    states = ec2.describe_instances(InstanceIds=strangers)["Reservations"]
    assert {held["Instances"][0]["State"]["Name"] for held in states} == {"running"}


async def test_the_market_is_what_the_history_says(ec2: Any) -> None:
    """Prices of declared spot pools alone, oldest first (the stand-in knows one price)."""
    points = await aws_provider(ec2).price_history(datetime.now(UTC) - timedelta(days=1))
    assert {point.pool_id for point in points} == {SPOT.pool_id}
    assert [point.since for point in points] == sorted(point.since for point in points)
    assert points[-1].usd_per_h == pytest.approx(0.00001)


async def test_the_machine_is_told_nothing_that_admits_others(ec2: Any) -> None:
    """User-data carries a token of this request; EC2 keeps the script as it was."""
    (machine,) = await aws_provider(ec2).request("r1", SPOT, 1)
    attribute = ec2.describe_instance_attribute(InstanceId=machine.node_id, Attribute="userData")
    script = base64.b64decode(attribute["UserData"]["Value"]).decode()
    assert EnrolmentTokens(b"secret").issue("r1") in script
    assert "wlr_join" not in script
    assert len(script) < 16_384


@pytest.mark.slow
async def test_throttling_is_waited_out() -> None:
    """A 503 is repeated after a pause by the client that a server uses."""
    from aiohttp import web

    from scheduler.live.providers.aws_provider import make_ec2_client

    seen: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(1)
        if len(seen) == 1:
            text = "<Response><Errors><Error><Code>RequestLimitExceeded</Code></Error></Errors></Response>"
            return web.Response(status=503, text=text)
        return web.Response(text="<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>")

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{runner.addresses[0][1]}")
            patch.setenv("AWS_ACCESS_KEY_ID", "none")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "none")
            client = await asyncio.to_thread(make_ec2_client, "us-east-1")
        assert await aws_provider(client).describe() == ()
    finally:
        await runner.cleanup()
    assert len(seen) == 2


POOL = {
    "shape": "g4dn.xlarge", "accelerator": "t4", "accelerators": 1, "cpus": 4, "memory": "16GiB", "market": "spot",
    "zone": "us-east-1a", "provider": "aws", "quota": 4, "usd_per_h": 0.19,
}  # fmt: skip
AWS = {"region": "us-east-1", "image": "ami-12c6146b", "server_url": "https://walras.example"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"server_url": "http://walras.example"}, "server_url"), ({"image": "ami 1; reboot"}, "image"),
        ({"install": ["walras; reboot"]}, "install"), ({"key": "AKIA"}, "key"),
    ],
)  # fmt: skip
def test_settings_that_would_not_do_are_refused(change: dict[str, Any], told: str) -> None:
    """Tokens travel encrypted, and nothing of the file becomes a command."""
    with pytest.raises(ConfigError, match=told):
        check_model(AwsSettings, {**AWS, **change}, source="cluster.yaml")


def test_a_pool_of_aws_needs_to_know_where() -> None:
    """The file is refused before anything starts."""
    with pytest.raises(ConfigError, match="aws"):
        check_model(ClusterConfig, {"pools": [POOL]}, source="cluster.yaml")
    assert check_model(ClusterConfig, {"pools": [POOL], "aws": AWS}, source="cluster.yaml").aws is not None


WEST = {**POOL, "zone": "us-west-2b", "usd_per_h": 0.1}
REGIONS = {"us-west-2": {"image": IMAGE, "security_groups": ["sg-1"]}, "us-west-2-lax-1": {"image": IMAGE}}


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("us-east-1a", "us-east-1"), ("us-west-2b", "us-west-2"), ("us-west-2-lax-1a", "us-west-2-lax-1"),
        ("us-west-2-den-1a", "us-west-2"), ("us-west-21a", None), ("eu-west-1a", None), ("", None),
    ],
)  # fmt: skip
def test_a_zone_lies_in_the_region_that_its_name_begins_with(zone: str, region: str | None) -> None:
    """The longest of those that the file names; a digit more is another region."""
    assert region_of(zone, ("us-east-1", *REGIONS)) == region


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pools": [{**POOL, "zone": "eu-west-1a"}]}, "eu-west-1a lies in no region"),
        ({"aws": {**AWS, "regions": {"us-east-1": {"image": IMAGE}}}}, "us-east-1 is the `region`"),
        ({"aws": {**AWS, "regions": {"us-west-2": {}}}}, "image"),
    ],
)  # fmt: skip
def test_regions_that_would_not_do_are_refused(change: dict[str, Any], told: str) -> None:
    """A pool in no region, a region twice, and one without an image, before anything starts."""
    with pytest.raises(ConfigError, match=told):
        check_model(ClusterConfig, {"pools": [POOL], "aws": {**AWS, "regions": REGIONS}, **change}, source="cluster")


def test_without_boto3_the_fix_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An optional part that is missing is named with the command that brings it."""
    from scheduler.live.providers.aws_provider import make_ec2_client

    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError) as told:
        make_ec2_client("us-east-1")
    assert "walras[aws]" in told.value.fix


RENTING = {
    "policy": {"name": "throughput_per_dollar"},
    "rules": {"round_s": 10.0, "resolve_min_s": 1.0, "delay_usd_per_h": 100.0, "rent_keep_s": 5.0, "profiling_s": 1.0},
}
CLUSTER = {"pools": [POOL], "aws": {**AWS, "image": IMAGE}}
FACTS = {
    "shape": "g4dn.xlarge", "accelerator": "t4", "accelerators": 1, "cpus": 4.0, "memory_bytes": 16 << 30,
    "market": "spot", "zone": "us-east-1a",
}  # fmt: skip


Shop = tuple[Face, AwsProvider]


@pytest.fixture
def ec2_desk(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    client = ec2_client(stand_in)
    for name, value in {"ENDPOINT_URL": stand_in, "ACCESS_KEY_ID": "none", "SECRET_ACCESS_KEY": "none"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return client


@asynccontextmanager
async def renting(folder: Path, cluster: Any = CLUSTER) -> AsyncIterator[Shop]:
    """A server with one job that is worth a machine of EC2."""
    async with facing(folder, policy=RENTING, cluster=cluster) as face:
        w = face.world
        w.loop.effect_handlers.append(w.server.providers)
        aws = w.assembled.providers["aws"]
        assert isinstance(aws, AwsProvider)
        try:
            yield face, aws
        finally:
            await w.server.providers.close()
            for each in w.assembled.providers.values():
                await each.close()


@pytest.fixture
async def shop(tmp_path: Path, ec2_desk: Any) -> AsyncIterator[Shop]:
    async with renting(tmp_path) as found:
        yield found


async def settle(face: Face) -> None:
    """Let calls to the provider end and be taken note of."""
    provisioner = face.world.server.providers
    while provisioner._tasks:
        await next(iter(set(provisioner._tasks)))
        await asyncio.sleep(0)  # one that has ended is taken out of them by the loop
    await face.world.quiet()


async def rent_one(face: Face) -> str:
    """Submit a job; the token of the request that follows."""
    await face.world.submit({"resources": {"accelerators": "t4:1"}})
    await face.world.advance(2.0)
    await settle(face)
    (token,) = face.world.live_state.rents
    return str(token)


async def test_a_job_rents_runs_and_its_machine_is_given_back(shop: Shop) -> None:
    """From a job that waits to an instance, an agent on it, and nothing that is left to pay."""
    face, aws = shop
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


async def test_a_launch_in_part_keeps_what_came(shop: Shop) -> None:
    """One of two comes: it may join, and the other is asked for later under a token of its own."""
    face, aws = shop
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


async def test_a_restarted_server_takes_up_its_machines(tmp_path: Path, ec2_desk: Any) -> None:
    """The request is repeated and answered with the instance that it had led to."""
    async with renting(tmp_path) as (face, aws):
        token = await rent_one(face)
        before = await aws.describe()
    async with renting(tmp_path) as (face, aws):
        await face.world.server.providers.reconcile()
        await settle(face)
        assert (await aws.describe(), list(face.world.live_state.rents)) == (before, [token])


async def test_what_does_not_answer_proves_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """While EC2 cannot be asked, its machines are neither lost nor forgotten."""

    async def silent(self: AwsProvider) -> Any:
        raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "no answer")

    face, aws = shop
    token = await rent_one(face)
    (machine,) = await aws.describe()
    await FakeAgent(face.world, machine.node_id, token, **FACTS).register()
    with monkeypatch.context() as patch:
        patch.setattr(AwsProvider, "describe", silent)
        await face.world.server.providers.reconcile()
    assert face.world.live_state.nodes[NodeId(machine.node_id)].is_member


@pytest.fixture
def two_regions(ec2_desk: Any) -> dict[str, Any]:
    """A cluster file; its further region is cheaper."""
    security = ec2_client(os.environ["AWS_ENDPOINT_URL"], "us-west-2").describe_security_groups()["SecurityGroups"]
    further = {"us-west-2": {"image": IMAGE, "security_groups": [security[0]["GroupId"]]}}
    pools = [{**POOL, "market": "on_demand"}, {**WEST, "market": "on_demand"}]
    return {"pools": pools, "aws": {**AWS, "image": IMAGE, "regions": further}}


@pytest.fixture
async def regions(tmp_path: Path, two_regions: dict[str, Any]) -> AsyncIterator[Shop]:
    async with renting(tmp_path, two_regions) as found:
        yield found


async def test_a_job_rents_in_the_cheaper_region_and_its_machine_is_given_back_there(regions: Shop) -> None:
    face, east = regions
    west: Any = face.world.assembled.providers["aws us-west-2"]
    token = await rent_one(face)
    (machine,) = await west.describe()
    assert (await east.describe(), machine.token, machine.pool_id) == ((), token, "g4dn.xlarge/on_demand/us-west-2b")
    facts = {**FACTS, "market": "on_demand", "zone": "us-west-2b"}
    agent = await FakeAgent(face.world, machine.node_id, token, **facts).register()
    (start,) = await agent.start_all()
    await agent.end(start.job_id)
    for _ in range(2):
        await face.world.advance(11.0)
    await settle(face)
    assert (await west.describe(), dict(face.world.live_state.rents)) == ((), {})
    names = {pool: face.world.server.providers.provider_name(pool) for pool in face.world.live_state.pools}
    assert set(names.values()) == {"aws"}


async def test_a_region_that_does_not_answer_hinders_no_other(regions: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody requested is found and given back in the region that answers, and kept in the other."""
    face, east = regions
    west: Any = face.world.assembled.providers["aws us-west-2"]
    for provider in (east, west):
        (pool,) = provider.pools.values()
        await provider.request("forgotten", pool, 1)

    async def silent() -> Any:
        raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(east, "describe", silent)
        assert not await face.world.server.providers.janitor.sweep()
    assert (len(await east.describe()), len(await west.describe())) == (1, 0)


@pytest.mark.sql
async def test_a_pool_that_is_added_is_rented_in_the_region_of_its_zone(
    tmp_path: Path, two_regions: dict[str, Any]
) -> None:
    """Also by a server that starts later; both ask for its price there."""
    added = {"aws": "us-east-1c", "aws us-west-2": "us-west-2c"}
    for begun in (False, True):
        async with renting(tmp_path, two_regions) as (face, _):
            for name, zone in added.items():
                if not begun:
                    assert (await face.json("POST", "/api/v1/pools", {**POOL, "zone": zone}))[0] == 201
                provider: Any = face.world.assembled.providers[name]
                spot = PoolId(f"g4dn.xlarge/spot/{zone}")
                assert spot in provider.pools
                assert {offer.pool_id for offer in await provider.offers()} == set(provider.pools)
                assert (len(provider.pools), face.world.server.providers.provider_name(spot)) == (2, "aws")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"zone": "eu-west-1a"}, "zone"), ({"zone": "us-west-21a"}, "zone"),
        ({"provider": "aws us-west-2"}, "provider"), ({"provider": "aws us-west-2", "zone": "us-west-2c"}, "provider"),
    ],
)  # fmt: skip
async def test_a_pool_in_no_region_of_the_cluster_file_is_not_added(
    regions: Shop, change: dict[str, Any], field: str
) -> None:
    """As the file itself would not be loaded; a region's provider has no name of its own there."""
    face, _ = regions
    before = set(face.world.live_state.pools)
    status, told = await face.json("POST", "/api/v1/pools", {**POOL, "zone": "us-east-1c", **change})
    assert (status, told["field"], set(face.world.live_state.pools)) == (400, field, before)
    assert field == "provider" or "us-east-1, us-west-2" in told["fix"]
    assert "aws" in told["fix"]


@pytest.mark.parametrize("is_added", [True, False])
async def test_a_region_is_not_dropped_from_the_file_while_its_machines_are_paid_for(
    tmp_path: Path, two_regions: dict[str, Any], caplog: pytest.LogCaptureFixture, is_added: bool
) -> None:
    """A machine that came, and then one that joined, keep the server from starting; they go on when it is back."""
    east_alone = {"pools": two_regions["pools"][:1], "aws": {**AWS, "image": IMAGE}}
    zone = "us-west-2c" if is_added else "us-west-2b"
    cheap = PoolId(f"g4dn.xlarge/on_demand/{zone}")

    async def is_refused() -> None:
        with pytest.raises(ConfigError, match=f"^{cheap} is rented by nobody, and 1 of its machines") as refused:
            async with renting(tmp_path, east_alone):
                pass
        assert (refused.value.field, f"region of zone {zone}" in refused.value.fix) == ("aws", True)

    async with renting(tmp_path, two_regions) as (face, _):
        if is_added:
            pool = {**POOL, "market": "on_demand", "zone": zone, "usd_per_h": 0.01}
            await face.done("POST", "/api/v1/pools", pool, status=201)
        token = await rent_one(face)
        assert face.world.live_state.rents[token].pool_id == cheap
        west: Any = face.world.assembled.providers["aws us-west-2"]
        held = await west.describe()
        (node_id,) = (machine.node_id for machine in held)
    await is_refused()
    async with renting(tmp_path, two_regions) as (face, _):
        await FakeAgent(face.world, node_id, token, **{**FACTS, "market": "on_demand", "zone": zone}).register()
    await is_refused()
    async with renting(tmp_path, two_regions) as (face, _):
        server = face.world.server.providers
        await server.reconcile()
        assert face.world.live_state.nodes[node_id].is_member
        assert server.provider_name(cheap) == "aws"
        west = face.world.assembled.providers["aws us-west-2"]
        assert await west.describe() == held
        await server._release(node_id)
        assert await west.describe() == ()
    caplog.clear()
    async with renting(tmp_path, east_alone) as (face, east):
        assert f"{cheap} is rented by nobody: describe aws" in caplog.text
        assert (cheap in east.pools, face.world.server.providers.provider_name(cheap)) == (False, "")
        await face.done("PATCH", f"/api/v1/pools/{quote(cheap, safe='')}", {"quota": 3})
        assert cheap not in east.pools


OWNED = {"shape": "x1", "accelerator": "a", "accelerators": 1, "cpus": 1, "memory": "1GiB", "machines": 1}


async def test_a_pool_that_is_dropped_from_the_file_rents_nothing_more_and_its_machines_are_given_back(
    tmp_path: Path, two_regions: dict[str, Any]
) -> None:
    """While its region is described; what the file says holds again when it names the pool again."""
    cheap = PoolId("g4dn.xlarge/on_demand/us-west-2b")
    async with renting(tmp_path, two_regions) as (face, _):
        token = await rent_one(face)
        west: Any = face.world.assembled.providers["aws us-west-2"]
        ((node_id, quota),) = (
            (each.node_id, face.world.live_state.pools[cheap].quota) for each in await west.describe()
        )
        facts = {**FACTS, "market": "on_demand", "zone": "us-west-2b"}
        await FakeAgent(face.world, node_id, token, **facts).register()
    async with renting(tmp_path, {**two_regions, "pools": [OWNED]}) as (face, _):
        assert (face.world.live_state.pools[cheap].quota, quota) == (0, POOL["quota"])
        west = face.world.assembled.providers["aws us-west-2"]
        assert len(await west.describe()) == 1
        await face.world.server.providers._release(node_id)
        assert await west.describe() == ()
        await face.done("PATCH", f"/api/v1/pools/{quote(cheap, safe='')}", {"quota": 3})
    async with renting(tmp_path, {**two_regions, "pools": [OWNED]}) as (face, _):
        assert face.world.live_state.pools[cheap].quota == 3, "as an administrator has set it since"
    async with renting(tmp_path, two_regions) as (face, _):
        assert face.world.live_state.pools[cheap].quota == quota


async def test_machines_of_a_pool_are_not_left_to_another_provider(tmp_path: Path, two_regions: dict[str, Any]) -> None:
    """The file names the pool with another one now, which knows nothing of them."""
    async with renting(tmp_path, two_regions) as (face, _):
        token = await rent_one(face)
        state, provider = face.world.live_state, face.world.server.providers
        pool = state.pools[state.rents[token].pool_id]
        provider.take_up_again([pool])
        with pytest.raises(ConfigError, match="1 of its machines cannot be given back"):
            provider.take_up_again([replace(pool, provider="rack")])


async def test_a_request_without_an_answer_is_not_repeated_for_a_pool_that_rents_nothing_more(
    tmp_path: Path, two_regions: dict[str, Any]
) -> None:
    async with renting(tmp_path, two_regions) as (face, _):
        state, asked = face.world.live_state, list[str]()
        west: Any = face.world.assembled.providers["aws us-west-2"]

        async def request(token: str, *_: Any) -> tuple[()]:
            asked.append(token)
            return ()

        west.request = request
        token = await rent_one(face)
        pool_id = state.rents[token].pool_id
        await face.world.server.providers.reconcile()
        await settle(face)
        assert asked == [token, token], "while it may rent, what nobody has answered is asked again"
        await face.done("PATCH", f"/api/v1/pools/{quote(pool_id, safe='')}", {"quota": 0})
        await face.world.server.providers.reconcile()
        await settle(face)
        assert (token in state.rents, len(asked)) == (False, 2)


async def test_an_enrolment_token_admits_its_own_machines_only(shop: Shop) -> None:
    """Of its request and pool, as many as were asked for, while the request is young; it opens nothing else."""
    face, _aws = shop
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


async def test_a_price_that_moves_is_the_pool_s_price_from_then_on(shop: Shop) -> None:
    """The market overrules the file; what nobody knows of is found by its tag and given back; drills are EC2's."""
    face, aws = shop
    watch = MarketWatch(face.world.loop, aws)
    assert face.world.live_state.pools[SPOT.pool_id].usd_per_h == 0.19
    await watch.look()
    declared = face.world.live_state.pools[SPOT.pool_id]
    assert declared.usd_per_h == pytest.approx(0.00001)
    await watch.look()
    assert face.world.live_state.pools[SPOT.pool_id] is declared
    with pytest.raises(Conflict, match="drills"):
        face.world.server.providers.revoke(SPOT.pool_id, 10.0)
    await aws.request("forgotten", SPOT, 1)
    await face.world.server.providers.reconcile()
    assert await aws.describe() == ()


async def test_a_hint_is_shown_and_takes_nothing_away(shop: Shop) -> None:
    """The machine goes on taking jobs; who looks at it reads what EC2 said."""
    face, aws = shop
    token = await rent_one(face)
    (machine,) = await aws.describe()
    agent = await FakeAgent(face.world, machine.node_id, token, **FACTS).register()
    await agent.start_all()
    await agent.beat({"type": "hint", "detail": "EC2 may take it away"})
    row = face.world.live_state.nodes[NodeId(machine.node_id)].row
    assert (row.detail, row.cordon, face.world.state(1)) == ("EC2 may take it away", "", "RUNNING")


STUBS = {
    "curl": 'case "$*" in *PUT*) echo session;; *@-*) cat >/dev/null;; *) echo i-0abc;; esac',
    "id": "exit 0",
    "chown": ":",
    "shutdown": 'echo shutdown >>"$LOG"',
    "systemctl": 'echo "systemctl $*" >>"$LOG"',
    "systemd-run": 'echo "systemd-run $*" >>"$LOG"',
    "python3": "exit ${PYTHON3:-0}",
    "runuser": 'echo "as $2" >>"$LOG"; shift 3; exec "$@"',
    "sha256sum": 'cat >>"$LOG"',
}


def boot(tmp_path: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script below a folder."""
    for folder in ("bin", "var/lib", "opt/walras/bin", "etc/systemd/system"):
        (tmp_path / folder).mkdir(parents=True)
    stubs = {tmp_path / "bin" / name: body for name, body in STUBS.items()}
    stubs[tmp_path / "opt/walras/bin/pip"] = 'echo "pip $*" >>"$LOG"'
    stubs[tmp_path / "opt/walras/bin/walras"] = 'printf "%s\\n" "$@"'
    for path, body in stubs.items():
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    for root in ("/var/lib/walras", "/opt/walras", "/etc/systemd"):
        script = script.replace(root, f"{tmp_path}{root}")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    known = {"PATH": path, "LOG": str(tmp_path / "log"), **environment}
    return subprocess.run(["bash", "-c", script], env=known, capture_output=True, text=True, timeout=30)


def test_a_machine_boots_into_an_agent(tmp_path: Path) -> None:
    """Tokens lie in files of their own (0600), the agent is installed, named after the instance, and a service."""
    done = boot(tmp_path, boot_script(SETTINGS, SPOT, "r1", "wlr_e_token"))
    assert (done.returncode, done.stderr) == (0, "")
    state = tmp_path / "var/lib/walras"
    assert (state / "enrolment.token").read_text() == "wlr_e_token\n"
    assert (state / "rent.token").read_text() == "r1\n"
    assert {stat.S_IMODE((state / f"{name}.token").stat().st_mode) for name in ("enrolment", "rent")} == {0o600}
    log = (tmp_path / "log").read_text()
    wheel = packed_wheel()
    assert f"pip install --quiet {tmp_path}/opt/walras/{wheel.name}[torch]" in log
    assert f"{wheel.sha256}  " in log
    assert log.count("as walras") == 2
    assert "systemctl enable --now walras-agent.service" in log
    assert "wlr_e_token" not in log
    line = subprocess.run([state / "agent.sh"], capture_output=True, text=True, timeout=30).stdout.split()
    flags = dict(zip(line[1::2], line[2::2], strict=False))
    assert line[0] == "agent"
    assert "wlr_e_token" not in line
    assert (flags["--server"], flags["--market"], flags["--zone"]) == (SETTINGS.server_url, "spot", "us-east-1a")
    assert line[-3:] == ["--spot-notices", "--node", "i-0abc"]


def test_a_machine_that_cannot_become_one_ends_itself(tmp_path: Path) -> None:
    """An installation that fails shuts the machine down, which ends the rental; one never admitted does later."""
    done = boot(tmp_path, boot_script(SETTINGS, ON_DEMAND, "r1", "wlr_e_token"), PYTHON3="1")
    log = (tmp_path / "log").read_text().splitlines()
    assert done.returncode != 0
    assert log[-1] == "shutdown"
    assert log[0].startswith("systemd-run --on-active=1800")
    assert "credential.json || shutdown" in log[0]


def test_an_image_that_has_all_installs_nothing() -> None:
    """`install: []`: the image brings the command; on-demand machines are given no notices to look for."""
    script = boot_script(SETTINGS.model_copy(update={"install": ()}), ON_DEMAND, "r1", "wlr_e_token")
    assert "curl -sSf --retry 5 -m 300" not in script
    assert "pip install" not in script
    assert "--spot-notices" not in script


@pytest.mark.parametrize("name", ["", "; reboot", "$(reboot)", "'"])
def test_the_script_is_well_formed_whatever_the_names(name: str) -> None:
    """Names of the cluster file are quoted."""
    settings = SETTINGS.model_copy(update={"server_url": f"https://x{name}"})
    script = boot_script(settings, SPOT, "r1", "wlr_e_token")
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=30).returncode == 0
    (line,) = [line for line in script.splitlines() if line.startswith("exec ")]
    said = subprocess.run(
        ["bash", "-c", line.replace("exec /opt/walras/bin/walras", "printf '%s\\n'")],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert f"https://x{name}" in said.stdout.splitlines()


@pytest.mark.parametrize("wanted", ["walras", "walras[torch]==0.1", "Walras [torch]", "WALRAS>=0"])
def test_no_index_is_asked_for_our_name(wanted: str) -> None:
    """Whatever the cluster file says of it; other names are left as they are."""
    settings = SETTINGS.model_copy(update={"install": ("numpy>=2", wanted)})
    (line,) = [line for line in boot_script(settings, SPOT, "r1", "t").splitlines() if "bin/pip install" in line]
    _, installed = line.split(" --quiet ")
    names = shlex.split(installed)
    assert names[0] == "numpy>=2"
    assert names[1].removesuffix("[torch]") == f"/opt/walras/{packed_wheel().name}"


@pytest.mark.slow
def test_the_wheel_is_the_release_that_runs_here(tmp_path: Path) -> None:
    """pip installs it into a folder of its own, and its agent starts from there; its hashes hold."""
    wheel = packed_wheel()
    assert wheel.sha256 == hashlib.sha256(wheel.content).hexdigest()
    (tmp_path / wheel.name).write_bytes(wheel.content)
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(tmp_path / "to"), str(tmp_path / wheel.name)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True, timeout=120)
    asked = "import walras, workers.agent.startup; print(walras.__file__, walras.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "to")}
    command = [sys.executable, "-P", "-c", asked]
    told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert told.stdout.split() == [str(tmp_path / "to/walras/__init__.py"), __version__], told.stderr


async def test_only_a_machine_that_may_join_fetches_the_wheel(face: Face) -> None:
    token = face.world.server.secrets.enrolment_tokens.issue("r1")
    answer = await face.call("GET", "/agent/v1/wheel", token=token)
    assert (answer.status, await answer.read()) == (200, packed_wheel().content)
    assert (await face.call("GET", "/agent/v1/wheel")).status in (401, 403, 404)


@pytest.mark.sqlite_file
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_machine_of_a_further_region_goes_on_after_a_restore(
    tmp_path: Path, two_regions: dict[str, Any], is_known: bool
) -> None:
    """Where the backup has its request; without one it is given back there, since nobody would pay for it."""
    data = tmp_path / "data"
    async with renting(data, two_regions) as (face, _):
        if not is_known:
            back_up(data, tmp_path / "backup")
        token = await rent_one(face)
        west: Any = face.world.assembled.providers["aws us-west-2"]
        (machine,) = await west.describe()
        if is_known:
            back_up(data, tmp_path / "backup")
        facts = {**FACTS, "market": "on_demand", "zone": "us-west-2b"}
        await (await FakeAgent(face.world, machine.node_id, token, **facts).names_itself().register()).start_all()
    restore(tmp_path / "backup", data, replace=True)
    async with renting(data, two_regions) as (face, _):
        server, west = face.world.server.providers, face.world.assembled.providers["aws us-west-2"]
        await server.reconcile()
        assert await server.janitor.sweep()
        assert [each.token for each in await west.describe()] == ([token] if is_known else [])
        if is_known:
            agent = await FakeAgent(face.world, machine.node_id, token, **facts).names_itself().register()
            assert [start.job_id for start in await agent.start_all()] == [1]
            await server.reconcile()
            assert len(await west.describe()) == 1
