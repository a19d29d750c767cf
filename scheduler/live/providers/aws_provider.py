"""Machines of EC2: a machine is an instance with this cluster's tag, and its name is the instance's id.

The provider keeps no state: its machines are what EC2 lists under the tag. A request is one `run_instances` call with a
client token derived from the request's own token, which the server has stored before. So EC2 itself refuses to launch
twice, and the tag finds what was launched. On-demand prices come from the cluster file, spot prices from the market.

EC2 is called through boto3, in threads; each call is bounded in time, and each error has a kind. boto3 blocks and comes
with an extra (`pip install 'walras[aws]'`), so it is imported when the first client is made. boto3 itself repeats calls
after throttling, errors of the service and broken connections, a few times with growing pauses; what still fails is a
`ProviderProblem`.
"""

import asyncio
import hashlib
import hmac
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from scheduler.live.auth.access_control import EnrolmentTokens
from scheduler.live.providers.live_provider import ProviderContext, ReportGone, SpotPricePoint, region_name
from scheduler.live.providers.machine_boot import boot_script
from scheduler.providers.provider import MachineState, ProviderProblem, ProviderProblemKind, RentalOffer, RentedMachine
from walras.cluster import Market, NodeId, Pool, PoolId
from walras.errors import ConfigError
from walras.spec.cluster_file import AwsSettings, region_of

T = TypeVar("T")

_THREADS = 4
_CONNECT_S = 5.0
_READ_S = 20.0
_TRIES = 4
#: Seconds for a call with all its repetitions; by the limits above its thread ends soon after.
_CALL_S = 90.0

#: By EC2's whole error code, or its first part before a dot. Other errors are classified by their HTTP status.
_PROBLEM_KINDS: Mapping[str, ProviderProblemKind] = {
    "VcpuLimitExceeded": ProviderProblemKind.QUOTA,
    "InstanceLimitExceeded": ProviderProblemKind.QUOTA,
    "MaxSpotInstanceCountExceeded": ProviderProblemKind.QUOTA,
    "VolumeLimitExceeded": ProviderProblemKind.QUOTA,
    "InsufficientInstanceCapacity": ProviderProblemKind.CAPACITY,
    "InsufficientHostCapacity": ProviderProblemKind.CAPACITY,
    "InsufficientFreeAddressesInSubnet": ProviderProblemKind.CAPACITY,
    "SpotMaxPriceTooLow": ProviderProblemKind.CAPACITY,
    "RequestLimitExceeded": ProviderProblemKind.THROTTLED,
    "Throttling": ProviderProblemKind.THROTTLED,
    "ThrottlingException": ProviderProblemKind.THROTTLED,
    "RequestThrottled": ProviderProblemKind.THROTTLED,
    "EC2ThrottledException": ProviderProblemKind.THROTTLED,
    "InternalError": ProviderProblemKind.UNAVAILABLE,
    "InternalFailure": ProviderProblemKind.UNAVAILABLE,
    "Unavailable": ProviderProblemKind.UNAVAILABLE,
    "ServiceUnavailable": ProviderProblemKind.UNAVAILABLE,
    "IdempotentInstanceTerminated": ProviderProblemKind.GONE,
}
_FIRST_SERVER_ERROR = 500
#: Characters of a problem that are kept, since it becomes part of a reason.
_LONGEST = 500


def classify_ec2_error(code: str, status: int) -> ProviderProblemKind:
    """Returns the kind of problem of an EC2 error, by its code or else by its HTTP status."""
    known = _PROBLEM_KINDS.get(code) or _PROBLEM_KINDS.get(code.partition(".")[0])
    if known is not None:
        return known
    return ProviderProblemKind.UNAVAILABLE if status >= _FIRST_SERVER_ERROR else ProviderProblemKind.REFUSED


def make_ec2_client(region: str) -> Any:
    """Returns an EC2 client; boto3 finds credentials and endpoint as usual. Raises ConfigError without boto3."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise ConfigError("pools of provider aws need boto3", field="pools", fix="pip install 'walras[aws]'") from None
    retries = {"mode": "standard", "total_max_attempts": _TRIES}
    config = Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S, retries=retries, max_pool_connections=_THREADS)
    return boto3.client("ec2", region_name=region, config=config)


class Ec2Calls:
    """Calls of EC2 in threads of their own, until `close`."""

    def __init__(self, client_factory: Callable[[], Any], call_s: float = _CALL_S) -> None:
        self._factory = client_factory
        self._call_s = call_s
        self._threads = ThreadPoolExecutor(_THREADS, "aws")
        #: Made at the first call, because finding credentials may call a network.
        self._client: Any = None
        self._lock = threading.Lock()

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Returns the answer of one operation. Raises ProviderProblem."""
        return await self._bounded(operation, lambda client: getattr(client, operation)(**arguments))

    async def pages(self, operation: str, key: str, most: int, **arguments: Any) -> list[Any]:
        """Returns all items that a paged operation lists under a key. Raises ProviderProblem for more than `most`."""
        return await self._bounded(operation, lambda client: _all_pages(client, operation, key, most, arguments))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _bounded(self, operation: str, work: Callable[[Any], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._carried_out, operation, work)
        try:
            return await asyncio.wait_for(future, self._call_s)
        except TimeoutError:
            problem = f"{operation}: no answer within {self._call_s:g} s"
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, problem) from None

    def _carried_out(self, operation: str, work: Callable[[Any], T]) -> T:
        client = self._ready()
        # botocore is installed: otherwise there would be no client.
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            return work(client)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            raise ProviderProblem(classify_ec2_error(code, status), f"{operation}: {error}"[:_LONGEST]) from None
        except HTTPClientError as error:
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, f"{operation}: {error}"[:_LONGEST]) from None
        except BotoCoreError as error:
            raise ProviderProblem(ProviderProblemKind.REFUSED, f"{operation}: {error}"[:_LONGEST]) from None

    def _ready(self) -> Any:
        with self._lock:
            if self._client is None:
                try:
                    self._client = self._factory()
                except ConfigError as error:
                    raise ProviderProblem(ProviderProblemKind.REFUSED, f"{error}; {error.fix}") from None
        return self._client


def _all_pages(client: Any, operation: str, key: str, most: int, arguments: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    for page in client.get_paginator(operation).paginate(**arguments):
        found += page[key]
        if len(found) > most:
            raise ProviderProblem(ProviderProblemKind.REFUSED, f"{operation}: more than {most} answers")
    return found


CLUSTER_TAG, REQUEST_TAG, POOL_TAG = "walras:cluster", "walras:request", "walras:pool"
_MOST_INSTANCES = 100_000
_MOST_PRICES = 100_000
_PRODUCT = "Linux/UNIX"
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}", re.ASCII)
#: The states that EC2 bills for, or may bill for again; an instance that shuts down costs nothing more.
_STATES: Mapping[str, MachineState] = {
    "pending": MachineState.BOOTING,
    "running": MachineState.RUNNING,
    "stopping": MachineState.LEAVING,
    "stopped": MachineState.LEAVING,
}


class AwsProvider:
    """`CloudProvider` over EC2 in one region."""

    def __init__(
        self,
        cluster_id: str,
        settings: AwsSettings,
        pools: Iterable[Pool],
        enrolments: EnrolmentTokens,
        calls: Ec2Calls,
    ) -> None:
        self._cluster_id = cluster_id
        self._settings = settings
        self.pools = {pool.pool_id: pool for pool in pools}
        self._enrolments = enrolments
        self._calls = calls

    @property
    def region(self) -> str:
        return self._settings.region

    def take_up(self, pool: Pool) -> None:
        self.pools[pool.pool_id] = pool

    # ---------------------------------------------------------------- CloudProvider

    async def offers(self) -> tuple[RentalOffer, ...]:
        """Returns the offers of all pools, without spot pools that have no market price at present."""
        now = datetime.now(UTC)
        newest = {point.pool_id: point.usd_per_h for point in await self.price_history(now)}
        return tuple(
            RentalOffer(pool_id, newest.get(pool_id, pool.usd_per_h), pool.quota)
            for pool_id, pool in self.pools.items()
            if pool.market is not Market.SPOT or pool_id in newest
        )

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[RentedMachine, ...]:
        """Launches machines as the protocol says; a repeated request for the same token launches none again."""
        found = await self._machines({REQUEST_TAG: token})
        if not found:
            answer = await self._calls.call("run_instances", **self._launch(token, pool, machines))
            found = tuple(filter(None, map(_machine_of_instance, answer["Instances"])))
            if not found:
                raise ProviderProblem(
                    ProviderProblemKind.GONE, f"the machines of {pool.pool_id} that came are gone already"
                )
        missing = machines - len(found)
        if missing > 0:
            problem = f"{len(found)} of {machines} machines of {pool.pool_id} granted"
            raise ProviderProblem(ProviderProblemKind.CAPACITY, problem, missing)
        return found

    async def describe(self) -> tuple[RentedMachine, ...]:
        return await self._machines({})

    async def terminate(self, node_id: NodeId) -> None:
        """Terminates the instance if it carries this cluster's tag: an agent reported the id, so it is not trusted."""
        if not _INSTANCE_ID.fullmatch(node_id):
            return
        held = await self._machines({}, {"Name": "instance-id", "Values": [node_id]})
        for machine in held:
            await self._calls.call("terminate_instances", InstanceIds=[machine.node_id])

    # ---------------------------------------------------------------- the market

    async def price_history(self, since: datetime) -> list[SpotPricePoint]:
        """Returns prices of the spot pools, oldest first: those in force at `since`, and every change after it."""
        spot = [pool for pool in self.pools.values() if pool.market is Market.SPOT]
        if not spot:
            return []
        history = await self._calls.pages(
            "describe_spot_price_history",
            "SpotPriceHistory",
            _MOST_PRICES,
            InstanceTypes=sorted({pool.shape.name for pool in spot}),
            ProductDescriptions=[_PRODUCT, f"{_PRODUCT} (Amazon VPC)"],
            StartTime=since,
        )
        by_place = {(pool.shape.name, pool.zone): pool.pool_id for pool in spot}
        points = [
            SpotPricePoint(by_place[place], row["Timestamp"], float(row["SpotPrice"]))
            for row in history
            if (place := (row["InstanceType"], row["AvailabilityZone"])) in by_place
        ]
        return sorted(points, key=lambda point: (point.since, point.pool_id))

    def attach(self, server_url: str, report_gone: ReportGone) -> None:
        """Nothing to keep: machines call the settings' `server_url`, and the janitor notices when one is gone."""

    async def watch(self) -> None:
        """Wait for ever: EC2's list says which machines are held, and the janitor reads it."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close the threads. Machines stay: they are rented until they are given back."""
        self._calls.close()

    # ---------------------------------------------------------------- calls

    async def _machines(self, tags: Mapping[str, str], *filters: Mapping[str, Any]) -> tuple[RentedMachine, ...]:
        wanted = {CLUSTER_TAG: self._cluster_id, **tags}
        reservations = await self._calls.pages(
            "describe_instances",
            "Reservations",
            _MOST_INSTANCES,
            Filters=[
                *({"Name": f"tag:{name}", "Values": [value]} for name, value in wanted.items()),
                {"Name": "instance-state-name", "Values": list(_STATES)},
                *filters,
            ],
        )
        instances = (instance for reservation in reservations for instance in reservation["Instances"])
        return tuple(filter(None, map(_machine_of_instance, instances)))

    def _launch(self, token: str, pool: Pool, machines: int) -> dict[str, Any]:
        """Returns the arguments of a launch, equal for the same request, or EC2 would refuse the client token."""
        settings = self._settings
        names = {
            CLUSTER_TAG: self._cluster_id,
            REQUEST_TAG: token,
            POOL_TAG: str(pool.pool_id),
            "Name": f"walras {pool.pool_id}",
        }
        tags = [{"Key": name, "Value": value} for name, value in names.items()]
        arguments: dict[str, Any] = {
            "ClientToken": hashlib.sha256(f"{self._cluster_id}/{token}".encode()).hexdigest()[:64],
            "ImageId": settings.image,
            "InstanceType": pool.shape.name,
            "MinCount": 1,
            "MaxCount": machines,
            "Placement": {"AvailabilityZone": pool.zone},
            "UserData": boot_script(settings, pool, token, self._enrolments.issue(token)),
            # An instance that shuts itself down is terminated; a stopped one would still cost its disk.
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
            "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        }
        if pool.market is Market.SPOT:
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            arguments["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        if pool.zone in settings.subnets:
            arguments["SubnetId"] = settings.subnets[pool.zone]
        if settings.security_groups:
            arguments["SecurityGroupIds"] = list(settings.security_groups)
        if settings.instance_profile is not None:
            arguments["IamInstanceProfile"] = {"Name": settings.instance_profile}
        return arguments


def _machine_of_instance(instance: Mapping[str, Any]) -> RentedMachine | None:
    """Returns the machine of an instance; None for one that is gone."""
    state = _STATES.get(instance["State"]["Name"])
    tags: Sequence[Mapping[str, str]] = instance.get("Tags", ())
    named = {tag["Key"]: tag["Value"] for tag in tags}
    if state is None:
        return None
    return RentedMachine(
        NodeId(instance["InstanceId"]), PoolId(named.get(POOL_TAG, "")), named.get(REQUEST_TAG, ""), state
    )


def build_aws_provider(context: ProviderContext) -> dict[str, AwsProvider]:
    """Returns a provider for each region, so that one that does not answer hinders no other; even without pools there.

    AWS knows a cluster by a name that is derived from its data folder.
    """
    entries = context.entries_of("aws")
    settings = None if context.cluster is None else context.cluster.aws
    if settings is None:
        return {}
    cluster_id = hmac.new(context.secret, b"aws cluster", hashlib.sha256).hexdigest()[:16]
    enrolments, regions = EnrolmentTokens(context.secret, context.folder.pin()), settings.in_each_region()
    built = {}
    for region, own in regions.items():
        pools = [entry.pool() for entry in entries if region_of(entry.zone, regions) == region]
        calls = Ec2Calls(partial(make_ec2_client, region))
        name = "aws" if own is settings else region_name("aws", region)
        built[name] = AwsProvider(cluster_id, own, pools, enrolments, calls)
    return built
