"""Markets as they are modelled and simulated."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lifetimes import draw_lifetime_h

from optimizer.planning.reserved_capacity import (
    QueueLoad,
    erlang_b,
    erlang_c,
    reserve_for_long_jobs,
    reserve_with_waiting,
    reserve_without_waiting,
)
from optimizer.renting.lifetime_laws import (
    BathtubLifetime,
    CheckpointCosts,
    ExponentialLifetime,
    pooled_prior,
    useful_part,
    useful_parts,
    young_daly_h,
)
from scheduler.core.events import NodeJoined, RentFailed
from scheduler.providers.simulated_cloud import RentalTerms, SimulatedCloud
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.states import Reason

#: Parameters of the published code (HPDC'20).
BATHTUB = BathtubLifetime(0.4137, 0.9, 0.76, 24.0)


def test_waiting_game_buys_the_published_servers() -> None:
    """Arrivals .2, service .002, reserved at .4: 108 servers, price .467, .035 on demand; .432 where all wait."""
    load = QueueLoad(0.2, 0.002)
    best = reserve_without_waiting(load, 0.4)
    assert (best.servers, round(best.price, 3), round(best.on_demand, 3)) == (108, 0.467, 0.035)
    waiting = reserve_with_waiting(load, 0.4, 108)
    assert (round(waiting.price, 3), round(waiting.wait, 1)) == (0.432, 20.5)
    assert load.offered * (erlang_b(107, 100) - erlang_b(108, 100)) == pytest.approx(0.4162, abs=1e-4)
    assert load.offered * (erlang_b(108, 100) - erlang_b(109, 100)) == pytest.approx(0.3881, abs=1e-4)


def test_erlang_is_exact_where_it_is_known() -> None:
    """One server: a / (1 + a) blocked, a of the arrivals wait; too few servers: all wait."""
    assert erlang_b(1, 0.5) == pytest.approx(1 / 3)
    assert erlang_c(1, 0.5) == pytest.approx(0.5)
    assert erlang_b(2, 1.0) == pytest.approx(0.2)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(3, 3.0) == 1.0


def test_no_server_is_bought_that_does_not_pay() -> None:
    """At the price of on-demand machines nothing is reserved, and what cannot be is refused."""
    assert reserve_without_waiting(QueueLoad(1.0, 1.0), 1.0).servers == 0
    with pytest.raises(ValueError, match="never catch up"):
        reserve_with_waiting(QueueLoad(2.0, 1.0), 0.4, 2)
    with pytest.raises(ValueError, match="costs more than nothing"):
        reserve_without_waiting(QueueLoad(1.0, 1.0), 0.0)


def test_short_jobs_on_demand_leave_short_waits() -> None:
    """With no shortest length the rule is that of all jobs waiting; sending short ones away shortens the wait."""
    load = QueueLoad(0.2, 0.002)
    all_wait, none_short = reserve_with_waiting(load, 0.4, 108), reserve_for_long_jobs(load, 0.4, 108, 0.0)
    assert none_short.price == pytest.approx(all_wait.price)
    assert none_short.wait == pytest.approx(all_wait.wait)
    assert reserve_for_long_jobs(load, 0.4, 108, 60.0).wait < all_wait.wait


@given(st.floats(0.01, 3.0), st.floats(0.0, 30.0), st.integers(0, 1000))
def test_survival_never_rises_and_draws_follow_it(rate: float, age: float, seed: int) -> None:
    """Any law: within 0 and 1, falling; a machine that is drawn outlives no cap."""
    for law in (
        ExponentialLifetime(rate),
        BATHTUB,
    ):
        assert 1.0 >= law.survival(age) >= law.survival(age + 0.5) >= 0.0
        assert draw_lifetime_h(law, Random(seed)) >= 0.0
    assert draw_lifetime_h(BATHTUB, Random(seed), 1.0) <= 23.0 + 1e-6


def test_drawn_lives_have_the_laws_mean() -> None:
    """Two thousand draws within 5 % of 1 / rate and of the bathtub's mean."""
    random = Random(1)
    lives = [draw_lifetime_h(ExponentialLifetime(0.5), random) for _ in range(2000)]
    assert sum(lives) / len(lives) == pytest.approx(2.0, rel=0.05)
    tubs = [draw_lifetime_h(BATHTUB, random) for _ in range(2000)]
    mean_h = sum(BATHTUB.survival(number / 100) for number in range(2401)) / 100
    assert sum(tubs) / len(tubs) == pytest.approx(mean_h, rel=0.05)


def test_a_zone_learns_from_what_happened_there() -> None:
    """The prior of other zones first; after many hours its own rate; a zone without revocations is not held safe."""
    prior = pooled_prior([(10, 100.0), (0, 100.0)], weight_h=20.0)
    assert prior.rate_per_h == pytest.approx(11 / 224)
    assert prior.seen(0, 1000.0).rate_per_h < 0.001
    assert prior.seen(300, 1000.0).rate_per_h == pytest.approx(0.3, rel=0.03)
    assert pooled_prior([(0, 100.0)]).rate_per_h > 0
    assert pooled_prior([]).rate_per_h > 0


def test_young_and_daly_lose_little_against_the_best_interval() -> None:
    """Its useful part is within half a percent of the best of a scan; no revocations leave it whole."""
    costs = CheckpointCosts(checkpoint_h=0.02, restart_h=0.05)
    best = max(useful_part(costs, 0.1, 0.01 * number) for number in range(1, 1000))
    assert best - useful_part(costs, 0.1) < 0.005
    assert young_daly_h(0.02, 10.0) == pytest.approx(0.4**0.5)
    assert useful_part(costs, 0.0) == 1.0
    assert useful_part(CheckpointCosts(0.02, 0.05, notice_h=0.03), 0.1) > useful_part(costs, 0.1)


def test_many_useful_parts_at_once_are_each_one_of_them() -> None:
    """The rates of a whole fleet go through the same law as one machine's."""
    cases = [
        (CheckpointCosts(0.02, 0.05), 0.1), (CheckpointCosts(0.02, 0.05, 0.03), 0.1), (CheckpointCosts(0.0, 0.1), 0.5),
        (CheckpointCosts(1, 1), 0.0),
    ]  # fmt: skip
    costs = np.array([[each.checkpoint_h, each.restart_h, each.notice_h] for each, _ in cases]).T
    found = useful_parts((costs[0], costs[1], costs[2]), np.array([rate for _, rate in cases]))
    assert found == pytest.approx([useful_part(each, rate) for each, rate in cases])


V100 = Shape("v100", "v100", 1, 2, 1 << 30)
SPOT = Pool(PoolId("v100/spot/z"), V100, Market.SPOT, "z", usd_per_h=3.6, quota=2, notice_s=10.0)
OWNED = Pool(PoolId("v100/owned/z"), V100)


def cloud(boot_s: float = 5.0, minimum_billing_s: float = 0.0, capacity: float = 100.0) -> SimulatedCloud:
    return SimulatedCloud({SPOT.pool_id: RentalTerms(boot_s, minimum_billing_s, capacity)})


def test_a_request_boots_machines_and_a_repeated_token_rents_nothing() -> None:
    """The token makes a request idempotent; a request for owned machines fails."""
    rented = cloud(boot_s=30.0)
    assert rented.request(10.0, "t1", SPOT, 1) == (NodeJoined(40.0, NodeId("t1-0"), SPOT.pool_id, "t1"),)
    assert rented.request(11.0, "t1", SPOT, 1) == ()
    (answer,) = SimulatedCloud({}, {NodeId("t1-0")}).request(10.0, "t1", SPOT, 1)
    assert isinstance(answer, NodeJoined)
    assert answer.node_id == "t1-1"
    (answer,) = cloud().request(0.0, "t1", OWNED, 1)
    assert isinstance(answer, RentFailed)


@pytest.mark.parametrize(("quota", "capacity", "granted"), [(2, 100.0, 2), (4, 1.0, 1), (0, 100.0, 0), (4, 0.0, 0)])
def test_quota_and_market_bound_what_is_granted(quota: int, capacity: float, granted: int) -> None:
    """What neither allows is refused by one RentFailed that says how many; the rest is granted."""
    pool = Pool(SPOT.pool_id, V100, Market.SPOT, quota=quota)
    answers = cloud(capacity=capacity).request(0.0, "t1", pool, 3)
    assert [type(answer) for answer in answers] == [NodeJoined] * granted + [RentFailed]
    assert isinstance(answers[-1], RentFailed)
    assert answers[-1].machines == 3 - granted


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
