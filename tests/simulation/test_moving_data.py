"""Two regions whose prices move apart: a payer follows the lower price only where the saving repays its data."""

from dataclasses import replace

import pytest

from scheduler.core.commands import Command, Start
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts
from simulator.faults import MarketChange
from tests.simulation.rented_market import HOUR_S, SURE, job, rented, run, scenario
from walras.cluster import DataPath, PoolId
from walras.states import JobState

RULES = RoundRules(round_s=300.0, resolve_min_s=5.0, restart_default_s=5.0, rent_keep_s=300.0)
#: 100 GB, which are here in ten seconds and take 1,000 s to the other region.
SIZE, BESIDE = 100 * 10**9, DataPath(0.0, 10e9)
HOME = replace(SURE, pool_id=PoolId("box/on_demand/home"), zone="home", usd_per_h=2.0, data=BESIDE)
AWAY = replace(SURE, pool_id=PoolId("box/on_demand/away"), zone="away", usd_per_h=3.0)
COSTS = AttemptCosts(2.0, 1.0, 600.0, checkpoint_bytes=SIZE)


def spent(
    usd_per_gb: float, prices: list[tuple[float, float]], *, hours: float, told: bool = True
) -> tuple[int, float]:
    """Starts in the other region, and USD in all, of one job worth 5 USD an hour that begins at home.

    `prices`: hour and price of the other region's machines from then on. `told`: the scheduler knows the way of data.
    """
    way = DataPath(usd_per_gb, 0.1e9)
    away, moved = replace(AWAY, data=way if told else None), list[Start]()
    incidents = tuple(MarketChange(at_h * HOUR_S, AWAY.pool_id, usd_per_h=usd) for at_h, usd in prices)

    def watch(_: Event, commands: list[Command]) -> None:
        moved.extend(
            each
            for each in commands
            if isinstance(each, Start) and each.resume_steps and each.placement.pool_id == AWAY.pool_id
        )

    asked = scenario(rented(HOME), rented(away), rules=RULES, incidents=incidents, costs=COSTS)
    result = run(asked, [job(1, hours, value_usd_per_h=5.0)], watch)
    assert [each.state for each in result.jobs] == [JobState.SUCCEEDED]
    return len(moved), sum(result.bills.values()) + len(moved) * way.usd(SIZE)


@pytest.mark.parametrize(("usd_per_gb", "moves"), [(0.0, 1), (0.05, 1), (0.11, 0), (0.2, 0)])
def test_a_payer_moves_where_the_saving_repays_its_data_and_stays_where_it_does_not(
    usd_per_gb: float, moves: int
) -> None:
    """Ten hours are left when the price falls from 3 to 1: the move saves 1 USD an hour, less what it costs."""
    assert spent(usd_per_gb, [(1.0, 1.0)], hours=11.0)[0] == moves


@pytest.mark.parametrize(("left_h", "moves"), [(1.0, 0), (12.0, 1)])
def test_a_long_rest_repays_what_a_short_one_does_not(left_h: float, moves: int) -> None:
    assert spent(0.05, [(1.0, 1.0)], hours=1.0 + left_h)[0] == moves


def test_where_prices_come_and_go_ignoring_data_loses_money() -> None:
    """Every four hours the other region is cheaper by half for two: each time 20 USD of egress save 2 USD of rent."""
    prices = [(hour, usd) for start in range(2, 22, 4) for hour, usd in ((start, 1.0), (start + 2.0, 3.0))]
    blind_moves, blind_usd = spent(0.2, prices, hours=20.0, told=False)
    moves, usd = spent(0.2, prices, hours=20.0)
    assert blind_moves >= 3
    assert moves == 0
    assert usd == pytest.approx(2.0 * 20.0, rel=0.02)
    assert blind_usd > 1.5 * usd
