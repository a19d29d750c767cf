"""Online admission: best schedules, the price curve, and what a run proves about itself."""

import numpy as np
import pytest

from benchmarks.admissions import Size, instance_of
from benchmarks.bench_admission import ROWS, outcome
from optimizer.assignment.admission_schedules import (
    AdmissionInstance,
    Applicant,
    best_schedule,
    every_schedule,
    options_of,
    slot_values_of,
)
from optimizer.assignment.online_admission import (
    PriceCurve,
    PriceSaturation,
    admit_online,
    offline_optimum,
    price_curve_of,
)

ROUND_S = 100.0


def applicant(job_id: int = 1, *, gang: int = 1, rounds: float = 1.0, arrived_at: float = 0.0) -> Applicant:
    """A job of that many rounds on the first pool; the second is half as fast."""
    return Applicant(job_id, arrived_at, gang, rounds * ROUND_S * gang, (1.0, 0.5))


def instance(
    *jobs: Applicant, restart_s: float = 0.0, rounds: int = 4, capacity: int = 2, mixed: bool = True
) -> AdmissionInstance:
    return AdmissionInstance(rounds, ROUND_S, restart_s, (capacity, capacity), jobs, mixed)


def test_a_free_fleet_is_used_at_its_fastest() -> None:
    """Without prices the best schedule is the one that ends first."""
    job = applicant(rounds=2.0)
    choice = best_schedule(instance(job), job, np.zeros((4, 2)))
    assert choice.schedule is not None
    assert choice.schedule.use.tolist() == [[1, 0], [1, 0], [0, 0], [0, 0]]
    assert choice.payoff == choice.schedule.utility == 1.0


def test_a_dear_pool_is_left_for_a_cheap_one() -> None:
    """Prices of the fast pool above what its speed is worth send the job to the slow pool for longer."""
    job = applicant(rounds=1.0)
    choice = best_schedule(instance(job), job, np.tile([0.9, 0.0], (4, 1)))
    assert choice.schedule is not None
    assert choice.schedule.use.tolist() == [[0, 1], [0, 1], [0, 0], [0, 0]]
    assert choice.payoff == pytest.approx(0.5)


def test_a_mixed_gang_goes_at_the_pace_of_its_slowest_worker() -> None:
    """Two workers over two pools run as fast as two on the slow one; without mixing there is no such option."""
    job = applicant(gang=2)
    options = options_of(instance(job), job)
    assert options.use.tolist() == [[0, 2], [1, 1], [2, 0]]
    assert options.steps_per_s.tolist() == [1.0, 1.0, 2.0]
    assert options_of(instance(job, mixed=False), job).use.tolist() == [[0, 2], [2, 0]]


def test_a_change_of_accelerators_costs_a_restart() -> None:
    """A job that leaves and returns loses `restart_s` of the round's work each time, on its first round too."""
    job = applicant(rounds=1.8)
    choice = best_schedule(instance(job, restart_s=10.0), job, np.zeros((4, 2)))
    assert choice.schedule is not None
    assert choice.schedule.finish == 2  # 90 + 100 >= 180
    broken = np.full((4, 2), 2)
    broken[1] = 0
    choice = best_schedule(instance(job, restart_s=10.0), job, np.zeros((4, 2)), broken)
    assert choice.schedule is not None
    assert choice.schedule.finish == 3  # 90 + 0 + 90


def test_a_job_that_cannot_end_in_time_has_no_schedule() -> None:
    """Work for more rounds than there are is turned away, not booked in part."""
    job = applicant(rounds=9.0)
    assert best_schedule(instance(job), job, np.zeros((4, 2))).schedule is None
    assert admit_online(instance(job)).admitted == ()


@pytest.mark.parametrize("seed", range(4))
def test_best_schedule_is_the_best_of_all(seed: int) -> None:
    """Labels find what listing every schedule finds, at random prices, with and without room."""
    rng = np.random.default_rng(seed)
    given = instance_of(Size(5, 4, 4, 4), seed)
    prices = rng.uniform(0, 0.2, (5, 2))
    free = rng.integers(0, 5, (5, 2))
    for job in given.applicants:
        schedules = list(every_schedule(given, job))
        everything = max(s.utility - (prices * s.use).sum() for s in schedules)
        assert best_schedule(given, job, prices).payoff == pytest.approx(everything)
        fitting = [s.utility - (prices * s.use).sum() for s in schedules if (s.use <= free).all()]
        assert best_schedule(given, job, prices, free).payoff == pytest.approx(max(fitting, default=-np.inf))


@pytest.mark.parametrize("seed", range(3))
def test_worth_of_a_slot_covers_every_schedule_through_it(seed: int) -> None:
    """No schedule is worth more per accelerator of any slot it holds than the ceiling says."""
    given = instance_of(Size(5, 4, 4, 2), seed)
    for job in given.applicants:
        worth = slot_values_of(given, job)
        for schedule in every_schedule(given, job):
            held = schedule.use > 0
            assert (schedule.utility / schedule.use[held] <= worth[held] + 1e-12).all()


def test_prices_run_from_floor_to_ceiling() -> None:
    """An empty slot costs L; U is reached at sigma times its capacity, and passed beyond."""
    for saturation, sigma in ((PriceSaturation.FULL, 1.0), (PriceSaturation.PROVABLE, 0.5)):
        curve = price_curve_of(instance(applicant()), saturation)
        assert curve is not None
        assert (curve.delta, curve.sigma) == (0.5, sigma)
        assert curve.prices(np.zeros((4, 2), dtype=np.int64)) == pytest.approx(np.full((4, 2), curve.floor))
        assert curve.prices(np.full((4, 2), int(2 * sigma))) == pytest.approx(curve.ceiling)


@pytest.mark.parametrize(("delta", "expected"), [(0.01, 9.8), (0.05, 12.5), (0.2, 45.0), (0.4, 1158.0), (0.5, 2.0e4)])
def test_alpha_explodes_with_the_largest_part(delta: float, expected: float) -> None:
    """For U/L = 1e4 on the provable curve: near ln(U/L) = 9.2 for dust, of no use for gangs of half a pool."""
    curve = PriceCurve(np.array([20.0]), 1e-4, np.ones((1, 1)), 1 - delta, delta)
    assert curve.alpha == pytest.approx(expected, rel=0.02)
    assert curve.alpha_of_dust == pytest.approx(9.21, rel=0.01)


def test_the_provable_curve_needs_gangs_smaller_than_a_pool() -> None:
    """A gang that fills a pool leaves no room between the ceiling and the first sale."""
    with pytest.raises(ValueError, match="may fill a whole pool"):
        admit_online(instance(applicant(gang=2)), PriceSaturation.PROVABLE)


@pytest.mark.parametrize(
    ("row", "instances"),
    [(0, 3), *(pytest.param(row, 10, marks=pytest.mark.slow) for row in (1, 2, 3, 4))],
)
def test_what_is_proved_holds_against_the_offline_optimum(row: int, instances: int) -> None:
    """Value <= optimum <= bound; growth of the dual within alpha(delta); optimum within 2 alpha where promised."""
    size, saturation = ROWS[row]
    for seed in range(instances):
        found = outcome(size, saturation, seed)
        proof = found.proof
        assert proof.value <= found.optimum * (1 + 1e-9) <= proof.bound * (1 + 0.02)
        assert found.growth <= proof.alpha
        assert proof.initial_dual <= found.optimum / 2
        if saturation is PriceSaturation.PROVABLE:
            assert proof.dual_feasible
        if proof.ratio is not None:
            assert found.optimum <= proof.ratio * proof.value


def test_gangs_that_may_fill_a_pool_have_bounds_but_no_promise() -> None:
    """With gangs up to the pool, growth exceeds ln(U/L) and some duals are infeasible; alpha and the bound hold."""
    size, saturation = ROWS[5]
    admissions = [admit_online(instance_of(size, seed), saturation).proof for seed in range(40)]
    assert any(not proof.dual_feasible and proof.ratio is None for proof in admissions)
    assert any((p.final_dual - p.initial_dual) / p.value > p.alpha_of_dust for p in admissions)
    assert all((p.final_dual - p.initial_dual) / p.value <= p.alpha for p in admissions)


def test_nobody_overbooks_and_everybody_keeps_the_booking() -> None:
    """Bookings add up to what is booked, within capacity, and each does the job's work."""
    given = instance_of(Size(5, 4, 12, 4), 3)
    found = admit_online(given)
    assert (found.booked <= 4).all()
    assert (sum(entry.schedule.use for entry in found.admitted) == found.booked).all()
    assert all(entry.payoff > 0 for entry in found.admitted)


def test_offline_optimum_of_two_jobs_for_one_place() -> None:
    """One accelerator, two jobs of one round each: the second waits a round and is worth half."""
    jobs = (Applicant(1, 0.0, 1, ROUND_S, (1.0, 0.0)), Applicant(2, 0.0, 1, ROUND_S, (1.0, 0.0)))
    optimum = offline_optimum(AdmissionInstance(2, ROUND_S, 0.0, (1, 1), jobs))
    assert optimum.value == pytest.approx(1.5)
    assert optimum.relaxed == pytest.approx(1.5)
