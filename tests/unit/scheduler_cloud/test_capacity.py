"""Recommendations: machines to buy, rent or reserve, and what they cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.planning.machine_choice import RunGoal
from optimizer.planning.machine_recommendation import RecommendationTerms, recommend_machines, specs_by_accelerator
from optimizer.planning.reserved_capacity import (
    CapacityJob,
    PricingModel,
    ReservationTerms,
    bill_reservation,
    bound_without_waiting,
    cheapest_reservation,
    fewest_without_on_demand,
    let_users_leave,
    peak_accelerators,
    simulate_reservation,
)
from walras.model_facts import Precision
from walras.profiling.profiles import ProfileFile
from walras.spec.catalog import load_catalog
from walras.spec.job_spec import parse_spec

#: One accelerator all the time, a second for a tenth of it.
STEADY = [CapacityJob(0.0, 100.0, 1, "ada"), CapacityJob(50.0, 10.0, 1, "bob")]


def test_who_finds_none_free_goes_on_demand_unless_it_may_wait() -> None:
    """40 for the one reserved and 10 on demand, over 110 h of work; who may wait 50 h does; short jobs need not."""
    found = simulate_reservation(STEADY, 1, ReservationTerms(0.4))
    assert (found.price, found.on_demand) == (pytest.approx(50 / 110), pytest.approx(10 / 110))
    assert (found.reserved_work_price, found.mean_wait_h) == (pytest.approx(0.4), 0.0)
    found = simulate_reservation(STEADY, 1, ReservationTerms(0.4, longest_wait_h=50.0))
    assert (found.price, found.on_demand, found.longest_wait_h) == (pytest.approx(0.4), 0.0, 50.0)
    assert found.slowdowns == {"ada": 0.0, "bob": 5.0}
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
    assert alone.accelerators == 1
    two = fewest_without_on_demand(STEADY, ReservationTerms(0.4, longest_wait_h=5.0))
    assert (two.accelerators, two.on_demand) == (2, 0.0)


def test_users_leave_who_wait_too_long_for_what_they_run() -> None:
    """Short jobs behind a long one: their user goes; the price of those who stay is the reservation's own."""
    jobs = [CapacityJob(0.0, 100.0, 1, "ada"), *(CapacityJob(float(at), 0.1, 1, "bob") for at in range(1, 5))]
    left = let_users_leave(jobs, ReservationTerms(0.4, longest_wait_h=100.0), most=15.0)
    assert (left.rounds, left.users, left.stayed) == (1, 2, 1)
    assert left.work == pytest.approx(100 / 100.4)
    assert left.after.price == pytest.approx(0.4)
    assert let_users_leave(jobs, ReservationTerms(0.4, longest_wait_h=100.0), most=1e9).stayed == 2


JOBS = st.lists(
    st.builds(CapacityJob, st.floats(0, 200), st.floats(0.1, 60), st.integers(1, 6), st.sampled_from("abc")),
    min_size=1,
    max_size=14,
).map(lambda jobs: sorted(jobs, key=lambda job: job.at_h))


@settings(max_examples=60, deadline=None)
@given(JOBS, st.floats(0.05, 1.0), st.floats(0.0, 30.0))
def test_nothing_beats_the_bounds(jobs: list[CapacityJob], price: float, wait_h: float) -> None:
    """No price is below a reserved hour's, nor, where none waits, the bound; the cheapest is at most on demand."""
    bound = bound_without_waiting(jobs, price)
    for accelerators in range(peak_accelerators(jobs) + 1):
        assert simulate_reservation(jobs, accelerators, ReservationTerms(price)).price >= bound - 1e-9
        waiting = simulate_reservation(jobs, accelerators, ReservationTerms(price, wait_h))
        assert waiting.price >= price - 1e-9
        assert waiting.longest_wait_h <= wait_h
    assert cheapest_reservation(jobs, ReservationTerms(price, wait_h)).price <= 1.0 + 1e-9
    assert price - 1e-9 <= bound <= 1.0 + 1e-9


ONE, PLACE = PricingModel.ONE_PRICE, PricingModel.BY_PLACE
#: Ada uses one accelerator all the time, Bob a second for a tenth of it.


def test_the_bills_of_two_users_by_hand() -> None:
    """50 for one reserved at .4 and 10 h on demand: shared by work, or by place as each would pay alone."""
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


TERMS = st.builds(
    ReservationTerms, st.floats(0.05, 1), longest_wait_h=st.sampled_from([0.0, 5.0, 100.0]),
    short_h=st.sampled_from([0.0, 1.0]), lot=st.sampled_from([1, 4]), least_span_h=st.sampled_from([0.0, 300.0]),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(JOBS, TERMS)
def test_both_models_bill_what_the_reservation_costs(jobs: list[CapacityJob], terms: ReservationTerms) -> None:
    """To the cent, nobody's bill negative; and nobody alone pays more than all on demand."""
    found = bill_reservation(jobs, terms)
    simulated = simulate_reservation(jobs, found.accelerators, terms)
    assert found.total == pytest.approx(simulated.price * sum(job.work for job in jobs))
    for model in PricingModel:
        assert sum(bill.billed(model) for bill in found.bills) == pytest.approx(found.total)
        assert all(bill.billed(model) >= 0 for bill in found.bills)
    assert all(bill.alone <= bill.work * (1 + 1e-9) for bill in found.bills)
    assert sum(bill.work for bill in found.bills) == pytest.approx(sum(job.work for job in jobs))


def test_a_type_that_is_named_without_its_memory_has_the_sheet_of_its_smallest() -> None:
    """`a100` is what people write; a type that exists under its short name is that one."""
    sheets = specs_by_accelerator(load_catalog())
    assert (sheets["a100"].name, sheets["a100"].memory_bytes) == ("a100", sheets["a100-40gb"].memory_bytes)
    assert sheets["h100"].memory_bytes == 80e9
    assert "a10g" not in sheets  # nobody knows its peak


@pytest.mark.parametrize(
    ("asked", "stated", "peak"), [(None, None, 19.5e12), (None, "bf16", 312e12), ("tf32", "bf16", 156e12)]
)
def test_machines_are_judged_by_the_arithmetic_that_was_asked_for_or_profiled(
    asked: str | None, stated: Precision | None, peak: float
) -> None:
    """The command's word goes before the profile's; fp32 where nobody says any."""
    job = parse_spec({"run": "true", "profile": "net", "steps": 1000, "batch": {"global": 64}})
    profile = ProfileFile(kind="net", flops_per_sample=1e9, gradient_bytes=1e6, precision=stated)
    found = recommend_machines(
        job, [profile], load_catalog(), RecommendationTerms(precision=asked), RunGoal(None, None), ()
    )
    peaks = {each.accelerator.flops_per_s for each in found.machines if each.accelerator.name == "a100-40gb"}
    assert peaks == {peak}
