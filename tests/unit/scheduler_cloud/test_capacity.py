"""Reserving for known jobs: small cases that can be computed by hand, and bounds that hold for all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.planning.reserved_capacity import (
    CapacityJob,
    ReservationTerms,
    bound_without_waiting,
    cheapest_reservation,
    fewest_without_on_demand,
    let_users_leave,
    peak_accelerators,
    simulate_reservation,
)

#: One accelerator all the time, a second for a tenth of it.
STEADY = [CapacityJob(0.0, 100.0, 1, "ada"), CapacityJob(50.0, 10.0, 1, "bob")]


def test_who_finds_none_free_goes_on_demand() -> None:
    """One reserved at .4: 40 for it and 10 on demand, over 110 hours of work."""
    found = simulate_reservation(STEADY, 1, ReservationTerms(0.4))
    assert (found.price, found.on_demand) == (pytest.approx(50 / 110), pytest.approx(10 / 110))
    assert found.reserved_work_price == pytest.approx(0.4)
    assert found.mean_wait_h == 0.0


def test_who_may_wait_does_and_everything_is_paid_to_its_end() -> None:
    """The second job waits 50 h, and the reservation lasts 10 h longer."""
    found = simulate_reservation(STEADY, 1, ReservationTerms(0.4, longest_wait_h=50.0))
    assert (found.price, found.on_demand, found.longest_wait_h) == (pytest.approx(0.4), 0.0, 50.0)
    assert found.slowdowns == {"ada": 0.0, "bob": 5.0}


def test_short_jobs_need_not_wait() -> None:
    """They go on demand at once; longer ones wait."""
    found = simulate_reservation(STEADY, 1, ReservationTerms(0.4, longest_wait_h=50.0, short_h=11.0))
    assert (found.mean_wait_h, found.on_demand) == (0.0, pytest.approx(10 / 110))


def test_the_cheapest_number_is_found() -> None:
    """The second accelerator would be used a tenth of the time: not at .4, but at .05."""
    assert cheapest_reservation(STEADY, ReservationTerms(0.4)).accelerators == 1
    assert cheapest_reservation(STEADY, ReservationTerms(0.05)).accelerators == 2
    assert cheapest_reservation(STEADY, ReservationTerms(1.0)).price == pytest.approx(1.0)
    assert cheapest_reservation(STEADY, ReservationTerms(0.05, lot=4)).accelerators in (0, 4)


def test_the_bound_is_reached_where_no_gang_is_in_the_way() -> None:
    """Newsvendor: 40 for the one that is always used, 10 on demand."""
    assert bound_without_waiting(STEADY, 0.4) == pytest.approx(50 / 110)
    assert bound_without_waiting(STEADY, 0.05) == pytest.approx(10 / 110)


def test_reserved_alone_serves_everybody_in_time() -> None:
    """The fewest for which nobody waits longer than allowed; gangs need as many as they have ranks."""
    alone = fewest_without_on_demand(STEADY, ReservationTerms(0.4, longest_wait_h=60.0))
    assert alone is not None
    assert alone.accelerators == 1
    two = fewest_without_on_demand(STEADY, ReservationTerms(0.4, longest_wait_h=5.0))
    assert two is not None
    assert (two.accelerators, two.on_demand) == (2, 0.0)


def test_users_leave_who_wait_too_long_for_what_they_run() -> None:
    """Short jobs behind a long one: their user goes; the price of those who stay is the reservation's own."""
    jobs = [CapacityJob(0.0, 100.0, 1, "ada"), *(CapacityJob(float(at), 0.1, 1, "bob") for at in range(1, 5))]
    left = let_users_leave(jobs, ReservationTerms(0.4, longest_wait_h=100.0), most=15.0)
    assert (left.rounds, left.users, left.stayed) == (1, 2, 1)
    assert left.work == pytest.approx(100 / 100.4)
    assert left.after is not None
    assert left.after.price == pytest.approx(0.4)
    assert let_users_leave(jobs, ReservationTerms(0.4, longest_wait_h=100.0), most=1e9).stayed == 2


demands = st.lists(
    st.builds(
        CapacityJob, st.floats(0, 50), st.floats(0.1, 20), st.integers(1, 4), st.sampled_from(["ada", "bob"])
    ),
    min_size=1, max_size=25,
).map(lambda jobs: sorted(jobs, key=lambda job: job.at_h))  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(demands, st.floats(0.05, 1.0), st.floats(0.0, 30.0))
def test_nothing_beats_the_bounds(jobs: list[CapacityJob], price: float, wait_h: float) -> None:
    """Whatever is reserved: no price below that of a reserved hour, nor, where none waits, below the bound; and the
    cheapest is not dearer than all on demand.
    """
    bound = bound_without_waiting(jobs, price)
    for accelerators in range(peak_accelerators(jobs) + 1):
        assert simulate_reservation(jobs, accelerators, ReservationTerms(price)).price >= bound - 1e-9
        waiting = simulate_reservation(jobs, accelerators, ReservationTerms(price, wait_h))
        assert waiting.price >= price - 1e-9
        assert waiting.longest_wait_h <= wait_h
    assert cheapest_reservation(jobs, ReservationTerms(price, wait_h)).price <= 1.0 + 1e-9
    assert price - 1e-9 <= bound <= 1.0 + 1e-9
