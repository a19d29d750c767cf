"""Lifetimes, checkpoints, reserved servers: published figures where there are any, limits where there are none."""

from math import exp, inf
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lifetimes import draw_lifetime_h

from optimizer.planning.price_moves import StepFunction
from optimizer.planning.reserved_capacity import (
    QueueLoad,
    erlang_b,
    erlang_c,
    reserve_for_long_jobs,
    reserve_with_waiting,
    reserve_without_waiting,
)
from optimizer.renting.spot_lifetimes import (
    BathtubLifetime,
    CheckpointCosts,
    EmpiricalLifetime,
    ExponentialLifetime,
    RateBelief,
    mean_life,
    plan_checkpoints,
    pooled_prior,
    prefers_aged_machine,
    survival_from,
    useful_part,
    useful_parts,
    young_daly_h,
)

#: Parameters of the published code (HPDC'20).
BATHTUB = BathtubLifetime(0.4137, 0.9, 0.76, 24.0)


@pytest.mark.parametrize(("age", "gone"), [(1, 0.278), (3, 0.399), (12, 0.414), (22, 0.443), (23, 0.525), (24, 0.827)])
def test_the_bathtub_is_the_published_one(age: float, gone: float) -> None:
    """F(t) at six ages, and nobody lives beyond the cap."""
    assert BATHTUB.failed(age) == pytest.approx(gone, abs=5e-4)
    assert BATHTUB.survival(24.01) == 0.0


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
        RateBelief(rate, 10.0),
        EmpiricalLifetime.of([rate, 2 * rate], [3 * rate]),
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
    assert sum(tubs) / len(tubs) == pytest.approx(mean_life(BATHTUB, 24.0), rel=0.05)
    assert draw_lifetime_h(EmpiricalLifetime.of([1.0], [2.0]), Random(0)) in (inf, pytest.approx(1.0))


def test_machines_seen_alive_count_while_they_were_seen() -> None:
    """Kaplan and Meier: of four, one taken at 1, one last seen at 2, one taken at 3: 3/4, then 3/8."""
    law = EmpiricalLifetime.of([1.0, 3.0], [2.0, 4.0])
    assert [law.survival(age) for age in (0.5, 1.0, 2.5, 3.0, 9.0)] == [1.0, 0.75, 0.75, 0.375, 0.375]
    assert survival_from(law, 1.0, 2.0) == 0.5


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


def test_checkpoints_follow_the_bathtub() -> None:
    """Few in the middle of a life, more near its cap; never slower in the mean than Young and Daly's interval."""
    costs = CheckpointCosts(checkpoint_h=0.1, restart_h=0.1)
    middle = plan_checkpoints(BATHTUB, 6.0, costs, 8.0, 0.1)
    young = plan_checkpoints(BATHTUB, 6.0, costs, 0.0, 0.1)
    late = plan_checkpoints(BATHTUB, 6.0, costs, 20.0, 0.1)
    assert len(middle.segments_h) <= len(young.segments_h)
    assert middle.expected_h < young.expected_h < late.expected_h
    assert sum(middle.segments_h) == pytest.approx(6.0)
    assert prefers_aged_machine(BATHTUB, 6.0, 8.0)
    assert not prefers_aged_machine(BATHTUB, 6.0, 20.0)


def test_checkpoints_without_memory_are_evenly_spaced() -> None:
    """Exponential lives: the expected time is the closed form's at the chosen interval, within the steps' width."""
    rate, costs = 0.2, CheckpointCosts(checkpoint_h=0.1, restart_h=0.0)
    plan = plan_checkpoints(ExponentialLifetime(rate), 5.0, costs, 0.0, 0.1)
    segment = max(plan.segments_h)
    closed = sum((exp(rate * (length + 0.1)) - 1) / rate for length in plan.segments_h)
    assert plan.expected_h == pytest.approx(closed, rel=0.01)
    assert segment == pytest.approx(young_daly_h(0.1, 1 / rate), rel=0.35)


def test_steps_hold_until_the_next_change() -> None:
    """Values before, at and after changes; what a span costs; a change to the same value is none."""
    price = StepFunction.of([(10.0, 2.0), (0.0, 1.0), (20.0, 2.0), (30.0, 5.0)])
    assert [price.at(at) for at in (-1.0, 0.0, 9.9, 10.0, 99.0)] == [1.0, 1.0, 1.0, 2.0, 5.0]
    assert price.next_change_at(0.0) == 10.0
    assert price.next_change_at(10.0) == 30.0
    assert price.next_change_at(30.0) is None
    assert price.integral(5.0, 31.0) == pytest.approx(5.0 + 40.0 + 5.0)
    with pytest.raises(ValueError, match="ascend"):
        StepFunction((1.0, 1.0), (2.0, 3.0))
    with pytest.raises(ValueError, match="at least one"):
        StepFunction((), ())


def test_many_useful_parts_at_once_are_each_one_of_them() -> None:
    """The rates of a whole fleet go through the same law as one machine's."""
    cases = [
        (CheckpointCosts(0.02, 0.05), 0.1),
        (CheckpointCosts(0.02, 0.05, 0.03), 0.1),
        (CheckpointCosts(0.0, 0.1), 0.5),
        (CheckpointCosts(1, 1), 0.0),
    ]
    costs = np.array([[each.checkpoint_h, each.restart_h, each.notice_h] for each, _ in cases]).T
    found = useful_parts((costs[0], costs[1], costs[2]), np.array([rate for _, rate in cases]))
    assert found == pytest.approx([useful_part(each, rate) for each, rate in cases])
