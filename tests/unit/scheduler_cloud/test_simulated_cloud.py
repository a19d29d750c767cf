"""What renting means: boot time, limits, notice, and the bill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.events import NodeJoined, RentFailed
from scheduler.providers.simulated_cloud import RentalTerms, SimulatedCloud
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.states import Reason

V100 = Shape("v100", "v100", 1, 2, 1 << 30)
SPOT = Pool(PoolId("v100/spot/z"), V100, Market.SPOT, "z", usd_per_h=3.6, quota=2, notice_s=10.0)
OWNED = Pool(PoolId("v100/owned/z"), V100)


def cloud(boot_s: float = 5.0, minimum_billing_s: float = 0.0, capacity: float = 100.0) -> SimulatedCloud:
    return SimulatedCloud({SPOT.pool_id: RentalTerms(boot_s, minimum_billing_s, capacity)})


def test_a_request_boots_machines_and_a_repeated_token_rents_nothing() -> None:
    """The token makes a request idempotent."""
    rented = cloud(boot_s=30.0)
    assert rented.request(10.0, "t1", SPOT, 1) == (NodeJoined(40.0, NodeId("t1-0"), SPOT.pool_id, "t1"),)
    assert rented.request(11.0, "t1", SPOT, 1) == ()


@pytest.mark.parametrize(("quota", "capacity", "granted"), [(2, 100.0, 2), (4, 1.0, 1), (0, 100.0, 0), (4, 0.0, 0)])
def test_quota_and_market_bound_what_is_granted(quota: int, capacity: float, granted: int) -> None:
    """What neither allows is refused by one RentFailed that says how many; the rest is granted."""
    pool = Pool(SPOT.pool_id, V100, Market.SPOT, quota=quota)
    answers = cloud(capacity=capacity).request(0.0, "t1", pool, 3)
    assert [type(answer) for answer in answers] == [NodeJoined] * granted + [RentFailed]
    assert isinstance(answers[-1], RentFailed)
    assert answers[-1].machines == 3 - granted


def test_owned_machines_are_not_for_rent() -> None:
    """A request for them fails."""
    (answer,) = cloud().request(0.0, "t1", OWNED, 1)
    assert isinstance(answer, RentFailed)


def test_a_machine_given_back_makes_room() -> None:
    """Quota and market count the machines that are held now, booting ones included."""
    rented = cloud(capacity=1.0)
    rented.request(0.0, "t1", SPOT, 1)
    assert isinstance(rented.request(1.0, "t2", SPOT, 1)[0], RentFailed)
    rented.terminate(2.0, NodeId("t1-0"))
    assert isinstance(rented.request(3.0, "t3", SPOT, 1)[0], NodeJoined)


def test_a_revocation_takes_those_that_were_ready_first() -> None:
    """Notice now, the end the pool's notice later; n machines, or all; booting and leaving ones do not count."""
    rented = cloud()
    rented.request(0.0, "t1", SPOT, 1)
    rented.request(1.0, "t2", SPOT, 1)
    assert rented.revoke(1.0, SPOT.pool_id) == ()
    (first,) = rented.revoke(6.0, SPOT.pool_id, 1)
    assert (first.notice.at, first.notice.node_id, first.notice.gone_at) == (6.0, "t1-0", 16.0)
    assert (first.end.at, first.end.node_id, first.end.reason) == (16.0, "t1-0", Reason.INFRA_SPOT_RECLAIM)
    assert [takeback.notice.node_id for takeback in rented.revoke(7.0, SPOT.pool_id)] == ["t2-0"]
    assert rented.revoke(8.0, SPOT.pool_id) == ()
    assert rented.revoke_one(8.0, NodeId("t2-0")) is None


def test_the_bill_runs_from_ready_until_the_machine_is_given_back() -> None:
    """3.6 USD/h for 100 s is 0.1 USD; booting costs nothing, nor does what comes after the end."""
    rented = cloud(boot_s=50.0)
    rented.request(0.0, "t1", SPOT, 1)
    assert rented.usd(50.0, SPOT.pool_id) == 0.0
    rented.terminate(150.0, NodeId("t1-0"))
    assert rented.usd(500.0, SPOT.pool_id) == pytest.approx(0.1)
    assert not rented.holds(NodeId("t1-0"))


def test_a_short_rental_costs_the_minimum() -> None:
    """A machine that was ready is paid for the minimum; one given back while it boots for nothing."""
    rented = cloud(boot_s=5.0, minimum_billing_s=60.0)
    rented.request(0.0, "t1", SPOT, 1)
    rented.terminate(6.0, NodeId("t1-0"))
    assert rented.usd(6.0, SPOT.pool_id) == pytest.approx(0.06)
    rented.request(10.0, "t2", SPOT, 1)
    rented.terminate(12.0, NodeId("t2-0"))
    assert rented.usd(20.0, SPOT.pool_id) == pytest.approx(0.06)


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 3), st.booleans()), max_size=30))
def test_neither_quota_nor_bill_is_ever_wrong(turns: list[tuple[float, int, bool]]) -> None:
    """However machines come and go, at most `quota` are held, and the bill only grows, by price x machines x time."""
    rented, at, usd, names = cloud(), 0.0, 0.0, []
    for number, (pause_s, machines, gives_back) in enumerate(turns):
        most = SPOT.quota * pause_s * SPOT.usd_per_h / 3600.0
        at += pause_s
        assert -1e-12 <= rented.usd(at, SPOT.pool_id) - usd <= most + 1e-9
        usd = rented.usd(at, SPOT.pool_id)
        answers = rented.request(at, f"t{number}", SPOT, machines)
        names += [answer.node_id for answer in answers if isinstance(answer, NodeJoined)]
        if gives_back and names:
            rented.terminate(at, names.pop(0))
        assert sum(map(rented.holds, names)) == len(names) <= SPOT.quota
