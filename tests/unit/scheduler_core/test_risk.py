"""What spot machines are worth, by how they fared here."""

import numpy as np
import pytest

from scheduler.core.cycle.problem_snapshot import SpotRuns, lasting_fractions, revocation_rates
from scheduler.core.state.fleet import PoolState
from walras.cluster import Market, Pool, PoolId, Shape

_HOUR_S = 3600.0


def _pool(zone: str, market: Market = Market.SPOT, notice_s: float = 0.0) -> PoolState:
    shape = Shape("v100x4", "v100", 4, 32, 10**11)
    state = PoolState(Pool(PoolId(f"v100x4/{market}/{zone}"), shape, market, zone, 4.0, 10, notice_s, boot_s=180.0), 0)
    state.lives.began(0.0)
    return state


def _runs(count: float, pools: int = 1) -> SpotRuns:
    return SpotRuns(np.arange(pools), np.full(pools, count), np.full(pools, 60.0))


def test_machines_that_stay_lose_nothing() -> None:
    """Owned and on-demand machines keep their speed."""
    pools = [_pool("a", Market.OWNED), _pool("a", Market.ON_DEMAND)]
    assert lasting_fractions(pools, _HOUR_S, _runs(4.0, 2)).tolist() == [1.0, 1.0]


def test_a_zone_that_takes_machines_back_counts_less_than_one_that_does_not() -> None:
    """Ten revocations in ten machine-hours are remembered against the zone, and less against the other one."""
    taking, keeping = _pool("a"), _pool("b")
    for _ in range(10):
        taking.lives.began(0.0)
        taking.lives.ended(_HOUR_S, 0.0, taken=True)
    rates = revocation_rates([taking, keeping], 10 * _HOUR_S)
    assert rates[0] > 1.5 * rates[1] > 0
    parts = lasting_fractions([taking, keeping], 10 * _HOUR_S, _runs(4.0, 2))
    assert parts[0] < parts[1] < 1.0


def test_a_record_fades_against_hours_that_went_well() -> None:
    """What a zone did long ago weighs less with every machine-hour without a revocation."""
    pool = _pool("a")
    pool.lives.began(0.0)
    pool.lives.ended(_HOUR_S, 0.0, taken=True)
    early, late = (revocation_rates([pool], hours * _HOUR_S)[0] for hours in (2, 2000))
    assert late < early / 5


def test_machines_given_back_are_not_held_against_their_zone() -> None:
    """Only what the market took counts as a revocation; the hours count all the same."""
    pool = _pool("a")
    pool.lives.began(0.0)
    pool.lives.ended(_HOUR_S, 0.0, taken=False)
    assert pool.lives.revocations == 0
    assert pool.lives.lived_s(2 * _HOUR_S) == pytest.approx(3 * _HOUR_S)


def test_a_gang_stops_when_any_of_its_machines_goes() -> None:
    """Over more machines more of the time is lost; notice saves part of it."""
    pool, warned = _pool("a"), _pool("a", notice_s=120.0)
    one, four = (lasting_fractions([pool], _HOUR_S, _runs(count))[0] for count in (4.0, 16.0))
    assert four < one < 1.0
    assert lasting_fractions([warned], _HOUR_S, _runs(16.0))[0] > four


def test_machines_that_have_just_come_are_believed_to_stay_about_as_long_as_any_spot_machine() -> None:
    """Four machines of one second: nothing is known, and no plan may change for it."""
    pool = _pool("a")
    for _ in range(3):
        pool.lives.began(0.0)
    new = revocation_rates([pool], 1.0)[0]
    assert new == pytest.approx(1 / 24, rel=0.01)
    assert lasting_fractions([pool], 1.0, _runs(4.0))[0] > 0.95
    pool.lives.ended(2.0, 0.0, taken=True)
    assert new < revocation_rates([pool], 2.0)[0] < 5 * new  # one that is taken at once is no law either
