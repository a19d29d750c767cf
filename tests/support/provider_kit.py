"""Providers of every kind behind the one protocol, for tests that hold them to it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from scheduler.core.events import RentFailed
from scheduler.live.auth.access_control import EnrolmentTokens
from scheduler.live.providers.aws_provider import AwsProvider, Ec2Calls
from scheduler.live.providers.local_provider import AgentLauncher, LocalPool, LocalProvider
from scheduler.live.providers.slurm_provider import SlurmCommands, SlurmProvider
from scheduler.providers.provider import CloudProvider, ProviderProblem, ProviderProblemKind, RentalOffer, RentedMachine
from scheduler.providers.simulated_cloud import RentalTerms, SimulatedCloud
from tests.support.fake_slurm import FakeSlurm
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.spec.cluster_file import AwsSettings, SlurmSettings

REGION = "us-east-1"
#: An image that the stand-in of EC2 knows.
IMAGE = "ami-12c6146b"
T4 = Shape("g4dn.xlarge", "t4", 1, 4.0, 16 << 30)
SPOT = Pool(PoolId("g4dn.xlarge/spot/us-east-1a"), T4, Market.SPOT, "us-east-1a", 0.19, 4, 120.0)
ON_DEMAND = Pool(PoolId("g4dn.xlarge/on_demand/us-east-1a"), T4, Market.ON_DEMAND, "us-east-1a", 0.526, 4)
SETTINGS = AwsSettings(region=REGION, image=IMAGE, server_url="https://walras.example:8443")


class SimulatedProvider:
    """The cloud in virtual time, behind the protocol: a request answers with its machines."""

    def __init__(self, cloud: SimulatedCloud) -> None:
        self._cloud = cloud

    async def offers(self) -> tuple[RentalOffer, ...]:
        return tuple(RentalOffer(pool.pool_id, pool.usd_per_h, pool.quota) for pool in (SPOT, ON_DEMAND))

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[RentedMachine, ...]:
        for answer in self._cloud.request(0.0, token, pool, machines):
            if isinstance(answer, RentFailed):
                raise ProviderProblem(ProviderProblemKind.CAPACITY, answer.reason, answer.machines)
        return tuple(machine for machine in await self.describe() if machine.token == token)

    async def describe(self) -> tuple[RentedMachine, ...]:
        return self._cloud.describe(0.0)

    async def terminate(self, node_id: NodeId) -> None:
        self._cloud.terminate(0.0, node_id)


class Kit:
    """A cloud of some kind, and providers over it: `again` is another one, as after a restart of the server."""

    def __init__(self, name: str, folder: Path, ec2: Any = None) -> None:
        self.name, self._folder, self._ec2 = name, folder, ec2
        self._cloud = SimulatedCloud({pool.pool_id: RentalTerms(boot_s=5.0, capacity=1) for pool in (SPOT, ON_DEMAND)})
        self._open: list[Any] = []

    def provider(self) -> CloudProvider:
        match self.name:
            case "simulated":
                return SimulatedProvider(self._cloud)
            case "local":
                # A process that looks like an agent and does nothing.
                launcher = AgentLauncher(("/bin/sh", "-c", "sleep 60; :"), self._folder / "join.token", environment={})
                local = LocalProvider(
                    self._folder, {pool.pool_id: LocalPool(pool) for pool in (SPOT, ON_DEMAND)}, launcher
                )
                self._open.append(local)
                return local
            case "slurm":
                settings = SlurmSettings(commands=str(FakeSlurm(self._folder).bin))
                commands = SlurmCommands(settings, "walras-1")
                return SlurmProvider(settings, (SPOT, ON_DEMAND), EnrolmentTokens(b"secret"), commands)
            case _:
                return aws_provider(self._ec2)

    async def close(self) -> None:
        for provider in self._open:
            await provider.describe()
            await provider.close()


def aws_provider(client: Any, cluster_id: str = "c1", **settings: Any) -> AwsProvider:
    """Over a given client of boto3, or something like it."""
    enrolments = EnrolmentTokens(b"secret")
    changed = SETTINGS.model_copy(update=settings)
    return AwsProvider(cluster_id, changed, (SPOT, ON_DEMAND), enrolments, Ec2Calls(lambda: client))


@contextlib.contextmanager
def stand_in_of_aws() -> Iterator[str]:
    """A server of moto, of EC2, S3 and the rest; its URL. Skips where moto is not installed."""
    server_module = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        # What an earlier one of this process held is still there.
        urlopen(Request(f"{url}/moto-api/reset", method="POST"), timeout=300).close()
        yield url
    finally:
        server.stop()


def ec2_client(url: str, region: str = REGION) -> Any:
    """Of a stand-in that holds no instances there yet."""
    import boto3

    client = boto3.client(
        "ec2", region_name=region, endpoint_url=url, aws_access_key_id="none", aws_secret_access_key="none"
    )
    for page in client.get_paginator("describe_instances").paginate():
        ids = [instance["InstanceId"] for held in page["Reservations"] for instance in held["Instances"]]
        if ids:
            client.terminate_instances(InstanceIds=ids)
    return client
