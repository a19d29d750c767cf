"""Collections of jobs: least money within a time, least time within a budget, and plans that nobody has to move for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.planning.job_collection import (
    JobCollection,
    MachineTypeOffer,
    cheapest_stationary_plan,
    least_cost,
    least_time,
    soonest_stationary_plan,
)

#: The fast type is dearer per step: 4 USD for 3 steps an hour, against 1 USD for 1.
SLOW, FAST = MachineTypeOffer("slow", 1.0, 2), MachineTypeOffer("fast", 4.0, 1)
TWO = JobCollection((SLOW, FAST), np.array([12.0, 12.0]), np.array([[1.0, 3.0], [1.0, 3.0]]))


@st.composite
def collections(draw: st.DrawFn) -> JobCollection:
    jobs, kinds = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    offers = tuple(
        MachineTypeOffer(f"type-{kind}", draw(st.floats(0.1, 10.0)), draw(st.integers(1, 3))) for kind in range(kinds)
    )
    rates = st.floats(0.5, 20.0)
    rate = np.array([[draw(rates) for _ in range(kinds)] for _ in range(jobs)])
    rate[:, 1:] *= np.array([[draw(st.booleans()) for _ in range(kinds - 1)] for _ in range(jobs)]).reshape(jobs, -1)
    return JobCollection(offers, np.array([draw(st.floats(1.0, 50.0)) for _ in range(jobs)]), rate)


def test_time_is_bought_only_where_it_is_short() -> None:
    """12 h: both on the cheap type. 6 h: half the work of both has to be fast. 3 h: nothing does."""
    relaxed, short = least_cost(TWO, 12.0), least_cost(TWO, 6.0)
    assert relaxed is not None
    assert relaxed.usd == pytest.approx(24.0)
    assert short is not None
    # a hours slow and b fast a job: a + 3 b = 12, a + b = 6, and the one fast machine is busy for all 6 hours.
    assert short.hours == pytest.approx(np.array([[3.0, 3.0], [3.0, 3.0]]))
    assert short.usd == pytest.approx(2 * (3.0 + 12.0))
    assert least_cost(TWO, 3.0) is None


def test_a_budget_buys_time() -> None:
    """30 USD: 6 h, the same plan; 24 USD: 12 h; less than 24: nothing."""
    assert [found.time_h for usd in (30.0, 24.0) if (found := least_time(TWO, usd))] == pytest.approx([6.0, 12.0])
    assert least_time(TWO, 23.9) is None


def test_a_plan_without_moves_may_cost_more() -> None:
    """Within 8 h each job must be whole on the fast machine, one after the other: 32 USD; with moves it is 28."""
    found, bound = cheapest_stationary_plan(TWO, 8.0), least_cost(TWO, 8.0)
    assert found is not None
    assert bound is not None
    assert (found.usd, found.time_h, found.offer, found.machine) == (32.0, 8.0, (1, 1), (0, 0))
    assert found.over == pytest.approx(1.0)  # the best without moves
    assert bound.usd == pytest.approx(28.0)
    sooner = soonest_stationary_plan(TWO, 32.0)
    assert sooner is not None
    assert (sooner.usd, sooner.time_h) == (32.0, 8.0)


def test_what_cannot_run_or_be_had_is_not_planned() -> None:
    """A type on which a job has no speed, or of which there is no machine, is not used."""
    offers = (MachineTypeOffer("none", 0.1, 0), SLOW, MachineTypeOffer("unfit", 0.1, 5))
    given_ = JobCollection(offers, np.array([4.0]), np.array([[9.0, 1.0, 0.0]]))
    fluid, found = least_cost(given_, 10.0), soonest_stationary_plan(given_, 4.0)
    assert fluid is not None
    assert found is not None
    assert fluid.hours == pytest.approx(np.array([[0.0, 4.0, 0.0]]))
    assert found.offer == (1,)
    assert soonest_stationary_plan(given_, 3.9) is None
    with pytest.raises(ValueError, match="rate for every job"):
        JobCollection(offers, np.array([4.0]), np.array([[1.0]]))


@given(collections(), st.floats(1.0, 4.0))
def test_every_plan_keeps_its_limit_and_is_above_the_bound(given_: JobCollection, room: float) -> None:
    """Within the time or the budget, work done on types that run it, no machine of a type that is not there."""
    alone_h = float((given_.work / given_.rate[:, 0]).sum()) * room
    plans = [
        cheapest_stationary_plan(given_, alone_h),
        soonest_stationary_plan(given_, alone_h * given_.offers[0].usd_per_h),
    ]
    fluid = least_cost(given_, alone_h)
    assert fluid is not None
    assert ((given_.rate * fluid.hours).sum(axis=1) >= given_.work * (1 - 1e-6)).all()
    assert plans[0] is None or plans[0].time_h <= alone_h * (1 + 1e-6)
    assert plans[1] is not None
    assert plans[1].usd <= alone_h * given_.offers[0].usd_per_h * (1 + 2e-9)
    for found in filter(None, plans):
        assert found.over >= 1 - 1e-6
        for job, (kind, machine) in enumerate(zip(found.offer, found.machine, strict=True)):
            assert given_.rate[job, kind] > 0
            assert machine < given_.offers[kind].machines


@given(collections())
def test_time_and_money_are_each_others_inverse(given_: JobCollection) -> None:
    """What the least money within a time costs is a budget for which no more time is needed."""
    within_h = float((given_.work / given_.rate[:, 0]).sum())
    fluid = least_cost(given_, within_h)
    assert fluid is not None
    sooner = least_time(given_, fluid.usd * (1 + 1e-9))
    assert sooner is not None
    assert sooner.time_h <= within_h * (1 + 1e-6)
