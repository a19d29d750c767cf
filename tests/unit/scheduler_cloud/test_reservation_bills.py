"""Bills of a shared reservation: a case by hand, and what holds for all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.planning.reserved_capacity import (
    CapacityJob,
    PricingModel,
    ReservationTerms,
    bill_reservation,
    simulate_reservation,
)

ONE, PLACE = PricingModel.ONE_PRICE, PricingModel.BY_PLACE
#: Ada uses one accelerator all the time, Bob a second for a tenth of it.
STEADY = [CapacityJob(0.0, 100.0, 1, "ada"), CapacityJob(50.0, 10.0, 1, "bob")]


def test_the_bills_of_two_users_by_hand() -> None:
    """One reserved for 100 h at .4 and 10 h on demand make 50. Alike, ada pays 100/110 of it and would pay 40 alone;
    by place she pays those 40, and bob his 10 on demand, which he would alone.
    """
    found = bill_reservation(STEADY, ReservationTerms(0.4))
    assert (found.accelerators, found.span_h, found.total) == (1, 100.0, pytest.approx(50.0))
    ada, bob = found.bills
    assert (ada.user, ada.work, ada.on_demand_work) == ("ada", 100.0, 0.0)
    assert (ada.one_price, ada.by_place, ada.alone) == pytest.approx((50 * 100 / 110, 40.0, 40.0))
    assert (bob.one_price, bob.by_place, bob.alone) == pytest.approx((50 * 10 / 110, 10.0, 10.0))


def test_who_leaves_pays_for_the_whole_time_too() -> None:
    """Bob's ten hours alone would cost 4, were his reservation over with them; it is paid for 100."""
    assert bill_reservation(STEADY, ReservationTerms(0.4)).bills[1].alone == pytest.approx(10.0)
    month = bill_reservation(STEADY, ReservationTerms(0.4, least_span_h=720.0))
    # A whole month of one would be 288: nothing is reserved.
    assert (month.accelerators, month.total) == (0, pytest.approx(110.0))


def test_what_is_reserved_and_never_used_is_shared_by_work() -> None:
    """A gang of four does not fit two reserved accelerators: everything runs on demand."""
    found = bill_reservation([CapacityJob(0.0, 10.0, 4, "ada")], ReservationTerms(0.5), accelerators=2)
    assert (found.total, found.bills[0].by_place) == pytest.approx((50.0, 50.0))


JOBS = st.lists(
    st.builds(CapacityJob, st.floats(0, 200), st.floats(0.1, 60), st.integers(1, 6), st.sampled_from("abc")),
    min_size=1,
    max_size=14,
).map(lambda jobs: sorted(jobs, key=lambda job: job.at_h))
TERMS = st.builds(
    ReservationTerms,
    st.floats(0.05, 1),
    longest_wait_h=st.sampled_from([0.0, 5.0, 100.0]),
    short_h=st.sampled_from([0.0, 1.0]),
    lot=st.sampled_from([1, 4]),
    least_span_h=st.sampled_from([0.0, 300.0]),
)


@settings(max_examples=150, deadline=None)
@given(JOBS, TERMS, st.one_of(st.none(), st.integers(0, 9)))
def test_both_models_bill_what_the_reservation_costs(
    jobs: list[CapacityJob], terms: ReservationTerms, accelerators: int | None
) -> None:
    """To the cent, nobody's bill negative; and nobody alone pays more than all on demand."""
    found = bill_reservation(jobs, terms, accelerators)
    simulated = simulate_reservation(jobs, found.accelerators, terms)
    assert found.total == pytest.approx(simulated.price * sum(job.work for job in jobs))
    for model in PricingModel:
        assert sum(bill.billed(model) for bill in found.bills) == pytest.approx(found.total)
        assert all(bill.billed(model) >= 0 for bill in found.bills)
    assert all(bill.alone <= bill.work * (1 + 1e-9) for bill in found.bills)
    assert sum(bill.work for bill in found.bills) == pytest.approx(sum(job.work for job in jobs))
