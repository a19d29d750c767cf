"""What EC2 in particular is told and what its answers come to; its stand-in is moto, or a client played by hand."""

import asyncio
import base64
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.auth.access_control import EnrolmentTokens
from scheduler.live.providers.aws_provider import Ec2Calls, classify_ec2_error
from scheduler.providers.provider import ProviderProblem, ProviderProblemKind
from tests.support.provider_kit import ON_DEMAND, SPOT, aws_provider, ec2_client, stand_in_of_aws
from walras.cluster import NodeId
from walras.errors import ConfigError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model
from walras.spec.provider_settings import AwsSettings

pytest.importorskip("boto3")


@pytest.fixture(scope="module")
def stand_in() -> Iterator[str]:
    with stand_in_of_aws() as url:
        yield url


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
    """Two of three come: the third is reported, the two are kept."""
    with pytest.raises(ProviderProblem, match="2 of 3") as told:
        await aws_provider(Scripted([instance(1), instance(2)])).request("r1", SPOT, 3)
    assert (told.value.kind, told.value.missing) == (ProviderProblemKind.CAPACITY, 1)


async def test_a_repeated_launch_of_machines_that_are_gone_is_no_success() -> None:
    """EC2 answers a known client token with its instances, though they were taken away meanwhile."""
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
        ({"server_url": "http://walras.example"}, "server_url"),
        ({"image": "ami 1; reboot"}, "image"),
        ({"install": ["walras; reboot"]}, "install"),
        ({"key": "AKIA"}, "key"),
    ],
)
def test_settings_that_would_not_do_are_refused(change: dict[str, Any], told: str) -> None:
    """Tokens travel encrypted, and nothing of the file becomes a command."""
    with pytest.raises(ConfigError, match=told):
        check_model(AwsSettings, {**AWS, **change}, source="cluster.yaml")


def test_a_pool_of_aws_needs_to_know_where() -> None:
    """The file is refused before anything starts."""
    with pytest.raises(ConfigError, match="aws"):
        check_model(ClusterConfig, {"pools": [POOL]}, source="cluster.yaml")
    assert check_model(ClusterConfig, {"pools": [POOL], "aws": AWS}, source="cluster.yaml").aws is not None


def test_without_boto3_the_fix_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An optional part that is missing is named with the command that brings it."""
    import sys

    from scheduler.live.providers.aws_provider import make_ec2_client

    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError) as told:
        make_ec2_client("us-east-1")
    assert "walras[aws]" in told.value.fix
