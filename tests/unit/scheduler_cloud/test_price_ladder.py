"""Following prices: when a job moves, what it pays, and the ladder on recorded prices."""

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.price_runs import ladder, places
from optimizer.planning.price_moves import (
    MoveCost,
    PricedPlace,
    StepFunction,
    bill_of_following,
    bill_of_staying,
    cheapest_place,
)

HOUR = 3600.0
FREE = MoveCost(0.0, 0.0)
#: 1 USD/h, and 3 USD/h from the fourth hour on; one step per second.
RISES = PricedPlace("rises", StepFunction((0.0, 3 * HOUR), (1.0, 3.0)), 1.0)
FLAT = PricedPlace("flat", StepFunction((0.0,), (2.0,)), 1.0)


def test_sticking_pays_the_prices_that_come() -> None:
    """The cheapest at the start: three hours at 1 USD, five at 3."""
    bill = bill_of_staying([FLAT, RISES], 8 * HOUR, 0.0)
    assert (bill.usd, bill.took_s, bill.places) == (18.0, 8 * HOUR, ("rises",))
    assert cheapest_place([FLAT, RISES], 4 * HOUR) is FLAT


def test_following_moves_when_that_pays() -> None:
    """Three hours at 1 USD, then the flat place: with a pause and a fee, both are paid."""
    assert bill_of_following([FLAT, RISES], 8 * HOUR, 0.0, FREE).usd == pytest.approx(13.0)
    bill = bill_of_following([FLAT, RISES], 8 * HOUR, 0.0, MoveCost(1.0, HOUR / 2))
    assert bill.usd == pytest.approx(3.0 + 1.0 + 1.0 + 10.0)
    assert bill.took_s == pytest.approx(8.5 * HOUR)
    assert bill.places == ("rises", "flat")


def test_a_move_that_costs_more_than_it_saves_is_not_made() -> None:
    """Five hours are left, each a dollar cheaper elsewhere: a fee of 5 USD is not worth it; near the end none is."""
    assert bill_of_following([FLAT, RISES], 8 * HOUR, 0.0, MoveCost(5.0, 0.0)).places == ("rises",)
    assert bill_of_following([FLAT, RISES], 3.01 * HOUR, 0.0, MoveCost(0.1, 0.0)).places == ("rises",)


def test_faster_machines_count_by_money_per_step() -> None:
    """Twice the price at three times the speed is cheaper."""
    fast = PricedPlace("fast", StepFunction((0.0,), (4.0,)), 3.0)
    assert cheapest_place([FLAT, fast], 0.0) is fast
    assert bill_of_staying([FLAT, fast], 3 * HOUR, 0.0).usd == pytest.approx(4.0)


@pytest.mark.parametrize("days", [4, 32, 64])
def test_no_rung_of_the_ladder_is_dearer_than_the_one_before(reference_data: Path, days: int) -> None:
    """On recorded prices, from every region, in the mean over starts; following is never dearer than sticking."""
    rungs = ladder(places(reference_data), days)
    assert all(later.usd <= earlier.usd + 1e-9 for earlier, later in pairwise(rungs))
    assert rungs[3].cheaper > 1.15
