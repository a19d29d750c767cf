"""Machines of EC2: a machine is an instance with this cluster's tag, and its name is the instance's id.

Nothing is kept here: what is held is what EC2 lists under the tag. A request is one `run_instances` under a client
token derived from the request's own, which the server wrote down before; so EC2 itself refuses to launch twice, and the
tag finds what was launched. Prices of on-demand machines are the cluster file's, those of spot machines the market's.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler.cloud.provider import Machine, MachineState, Offer, ProblemKind, ProviderProblem
from scheduler.live.access.enrolment_tokens import EnrolmentTokens
from scheduler.live.providers.aws_boot import boot_script
from scheduler.live.providers.aws_calls import Ec2Calls
from walras.cluster import Market, Pool
from walras.config import AwsSettings
from walras.ids import NodeId, PoolId

CLUSTER_TAG, REQUEST_TAG, POOL_TAG = "walras:cluster", "walras:request", "walras:pool"
_MOST_INSTANCES = 100_000
_MOST_PRICES = 100_000
_PRODUCT = "Linux/UNIX"
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}", re.ASCII)
#: Those that EC2 bills for, or may again; what shuts down costs nothing more and never comes back.
_STATES: Mapping[str, MachineState] = {
    "pending": MachineState.BOOTING,
    "running": MachineState.RUNNING,
    "stopping": MachineState.LEAVING,
    "stopped": MachineState.LEAVING,
}


@dataclass(frozen=True, slots=True)
class PricePoint:
    """What a spot machine of a pool cost from an instant on."""

    pool_id: PoolId
    since: datetime
    usd_per_h: float


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

    # ---------------------------------------------------------------- CloudProvider

    async def offers(self) -> tuple[Offer, ...]:
        """Spot pools without a price on the market just now are left out."""
        now = datetime.now(UTC)
        newest = {point.pool_id: point.usd_per_h for point in await self.price_history(now)}
        return tuple(
            Offer(pool_id, newest.get(pool_id, pool.usd_per_h), pool.quota)
            for pool_id, pool in self.pools.items()
            if pool.market is not Market.SPOT or pool_id in newest
        )

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[Machine, ...]:
        """As the protocol says; what is held already for the token is not asked for again."""
        found = await self._machines({REQUEST_TAG: token})
        if not found:
            answer = await self._calls.call("run_instances", **self._launch(token, pool, machines))
            found = tuple(filter(None, map(_machine, answer["Instances"])))
            if not found:
                raise ProviderProblem(ProblemKind.GONE, f"the machines of {pool.pool_id} that came are gone already")
        missing = machines - len(found)
        if missing > 0:
            problem = f"{len(found)} of {machines} machines of {pool.pool_id} granted"
            raise ProviderProblem(ProblemKind.CAPACITY, problem, missing)
        return found

    async def describe(self) -> tuple[Machine, ...]:
        return await self._machines({})

    async def terminate(self, node_id: NodeId) -> None:
        """Only what carries this cluster's tag is ended: a machine's name is what some agent said it was."""
        if not _INSTANCE_ID.fullmatch(node_id):
            return
        held = await self._machines({}, {"Name": "instance-id", "Values": [node_id]})
        for machine in held:
            await self._calls.call("terminate_instances", InstanceIds=[machine.node_id])

    # ---------------------------------------------------------------- the market

    async def price_history(self, since: datetime) -> list[PricePoint]:
        """Prices of the spot pools, oldest first: those in force at `since`, and every change after it."""
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
            PricePoint(by_place[place], row["Timestamp"], float(row["SpotPrice"]))
            for row in history
            if (place := (row["InstanceType"], row["AvailabilityZone"])) in by_place
        ]
        return sorted(points, key=lambda point: (point.since, point.pool_id))

    def close(self) -> None:
        """Machines stay: they are rented until they are given back."""
        self._calls.close()

    # ---------------------------------------------------------------- calls

    async def _machines(self, tags: Mapping[str, str], *filters: Mapping[str, Any]) -> tuple[Machine, ...]:
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
        return tuple(filter(None, map(_machine, instances)))

    def _launch(self, token: str, pool: Pool, machines: int) -> dict[str, Any]:
        """The arguments of a launch: the same for the same request, or EC2 would not know it again."""
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
            # A machine that shuts itself down ends; a stopped one would still cost its disk.
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


def _machine(instance: Mapping[str, Any]) -> Machine | None:
    """None for one that is gone."""
    state = _STATES.get(instance["State"]["Name"])
    tags: Sequence[Mapping[str, str]] = instance.get("Tags", ())
    named = {tag["Key"]: tag["Value"] for tag in tags}
    if state is None:
        return None
    return Machine(NodeId(instance["InstanceId"]), PoolId(named.get(POOL_TAG, "")), named.get(REQUEST_TAG, ""), state)
