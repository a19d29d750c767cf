from scheduler.cloud.simulated import SimulatedCloud
from scheduler.core.events import NodeJoined, NodeLeaving, NodeLost, RentFailed
from walras.cluster import Market, Pool, Shape
from walras.ids import PoolId

SPOT = Pool(PoolId("v100/spot/z"), Shape("v100", "v100", 1, 2, 1 << 30), Market.SPOT, "z", usd_per_h=3.6, quota=2)


def test_a_request_boots_machines_and_a_repeated_token_rents_nothing() -> None:
    """The token makes a request idempotent."""
    cloud = SimulatedCloud({SPOT.pool_id: 30.0})
    events = cloud.request(10.0, "t1", SPOT, 1)
    assert events == (NodeJoined(40.0, "t1-0", SPOT.pool_id, "t1"),)
    assert cloud.request(11.0, "t1", SPOT, 1) == ()


def test_the_quota_bounds_what_is_rented() -> None:
    """What the quota does not allow is refused by a RentFailed, the rest is granted."""
    cloud = SimulatedCloud({}, default_boot_s=5.0)
    events = cloud.request(0.0, "t1", SPOT, 3)
    assert [type(event) for event in events] == [NodeJoined, NodeJoined, RentFailed]


def test_a_revocation_warns_and_then_takes_the_machines() -> None:
    """Notice comes first, the loss exactly notice_s later, and only for machines that have joined."""
    cloud = SimulatedCloud({}, default_boot_s=5.0)
    cloud.request(0.0, "t1", SPOT, 1)
    assert cloud.revoke(1.0, SPOT.pool_id, 10.0) == ()
    events = cloud.revoke(6.0, SPOT.pool_id, 10.0)
    assert [(type(event), event.at) for event in events] == [(NodeLeaving, 6.0), (NodeLost, 16.0)]


def test_the_bill_runs_from_the_request_until_the_machine_is_given_back() -> None:
    """3.6 USD/h for 100 s is 0.1 USD, and nothing after."""
    cloud = SimulatedCloud({}, default_boot_s=5.0)
    cloud.request(0.0, "t1", SPOT, 1)
    cloud.terminate(100.0, "t1-0")
    assert abs(cloud.usd(500.0) - 0.1) < 1e-12
    assert not cloud.holds("t1-0")
