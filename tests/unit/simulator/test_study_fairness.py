"""Finish-time fairness, Jain's index, slowdowns, deadlines and bounds, on numbers that can be worked out by hand."""

from math import inf, isnan

import pytest

from scheduler.world.attempts import SimulatedJob
from scheduler.world.engine import RunOutcome, SolveStats
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.metrics import JobMetrics, PoolMeter
from simulator.reports.baselines import BoundsChoice, JobBaselines, jain_index, mean_contention, themis_rho
from simulator.reports.run_summary import SummaryContext, missed_deadline, summarise_run
from simulator.simulation import SimulationResult
from walras.cluster import Market, Pool, PoolId, Shape
from walras.job_request import ANY_ACCELERATOR, Demand, JobId, JobRequest, Kind
from walras.states import JobState

KIND = Kind("k")
OWN = PoolModel(Pool(PoolId("own"), Shape("own", "a100", 2, 8.0, 2**30)), machines=2)
SPOT = PoolModel(Pool(PoolId("spot"), Shape("spot", "v100", 1, 8.0, 2**30), Market.SPOT, usd_per_h=1.0, quota=3))
TRUTH = GroundTruth({SpeedKey(KIND, "a100"): 2.0, SpeedKey(KIND, "v100"): 1.0})


def a_job(number: int, at: float, steps: float, *demands: Demand, deadline_at: float = inf) -> SimulatedJob:
    wanted = demands or (Demand("a100", 1),)
    return SimulatedJob(
        at, JobRequest(JobId(number), KIND, demands=wanted, steps=steps, deadline_at=deadline_at), steps
    )


def roster(*jobs: SimulatedJob) -> JobBaselines:
    made = JobBaselines((OWN, SPOT), TRUTH)
    assert list(made.recorded(jobs)) == list(jobs)
    return made


def measure(number: int, at: float, ended_at: float, state: JobState = JobState.SUCCEEDED) -> JobMetrics:
    return JobMetrics(JobId(number), KIND, f"project-{number % 2}", "u", at, at, ended_at, state)


def test_alone_is_on_the_fastest_pool_that_holds_the_gang() -> None:
    """A gang of four fits the two owned machines; one of three of any type runs where it is faster."""
    made = roster(
        a_job(1, 0, 100), a_job(2, 0, 100, Demand("v100", 3)), a_job(3, 0, 100, Demand(ANY_ACCELERATOR, 3)),
        a_job(4, 0, 100, Demand("v100", 4)),
    )  # fmt: skip
    assert [made.alone_s(JobId(number)) for number in (1, 2, 3)] == [50.0, 100.0, 50.0]
    assert isnan(made.alone_s(JobId(4)))
    assert [made.gang(JobId(number)) for number in (1, 2, 3)] == [1, 3, 3]


def test_the_instance_of_the_bounds() -> None:
    """Capacity is what was owned and what might be rented; a gang of several sizes counts as its smallest."""
    made = roster(a_job(1, 5, 100), a_job(2, 9, 40, Demand("a100", 4), Demand("v100", 2)))
    instance = made.instance([JobId(1), JobId(2)])
    assert instance.capacity.tolist() == [4.0, 3.0]
    assert instance.steps_per_s.tolist() == [[2.0, 0.0], [2.0, 1.0]]
    assert instance.gang.tolist() == [1.0, 2.0]
    assert instance.arrival_at.tolist() == [5.0, 9.0]


def test_jains_index() -> None:
    """1 where all are alike, 1/n where one has everything."""
    assert jain_index([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert isnan(jain_index([]))


def test_contention_is_a_mean_over_the_jobs_own_time() -> None:
    """Two jobs, the second there for the last half of the first one's time."""
    assert mean_contention([measure(1, 0, 100), measure(2, 50, 100)], 100.0).tolist() == [1.5, 2.0]
    unfinished = measure(2, 50, float("nan"), JobState.RUNNING)
    assert mean_contention([measure(1, 0, 100), unfinished], 100.0).tolist() == [1.5, 2.0]


def test_rho_counts_what_an_equal_share_would_have_given() -> None:
    """Alone, or with accelerators for everybody, 1 is full pace; with twice as many rivals as places, half of it."""
    made = roster(a_job(1, 0, 200), a_job(2, 0, 200))
    jobs = [measure(1, 0, 100), measure(2, 0, 200)]
    # 2 jobs at first, then 1: contention 2 and 1.5.
    assert themis_rho(jobs, made, 4.0, 200.0) == {1: pytest.approx(1.0), 2: pytest.approx(2.0)}
    assert themis_rho(jobs, made, 1.0, 200.0) == {1: pytest.approx(0.5), 2: pytest.approx(200 / 150)}


def result(*jobs: JobMetrics) -> SimulationResult:
    meter = PoolMeter(OWN.pool)
    meter.there_s = 4 * 200.0
    bills = {PoolId("own"): 7.0}
    return SimulationResult(
        RunOutcome.COMPLETE, 200.0, 0.0, 200.0, list(jobs), [], [meter], bills, 100.0, 5.0, 42, SolveStats(2, 0.5, 0.4),
        0.1,
    )  # fmt: skip


@pytest.mark.slow
def test_the_figures_that_need_to_know_the_jobs() -> None:
    """Slowdowns, deadlines, fairness of both kinds, and bounds that the run keeps to."""
    made = roster(a_job(1, 0, 200, deadline_at=90), a_job(2, 0, 200, deadline_at=500), a_job(3, 0, 10))
    jobs = (measure(1, 0, 100), measure(2, 0, 200), measure(3, 0, 1, JobState.FAILED))
    beside = SummaryContext(made, BoundsChoice.ALL, {JobId(1): 50.0, JobId(2): 400.0})
    summary = summarise_run(result(*jobs), beside)
    assert (summary.slowdown_mean, summary.slowdown_max) == (1.5, 2.0)
    assert (summary.deadlines, summary.deadline_misses) == (2, 1)
    assert (summary.fairness.isolated_mean, summary.fairness.isolated_max) == (1.25, 2.0)
    assert summary.fairness.jain == pytest.approx(1.5**2 / (2 * 1.25))
    assert summary.bounds.no_contention_s == 100.0
    assert summary.bounds.no_contention_gap == pytest.approx(0.5)
    assert summary.bounds.makespan_s == pytest.approx(100.0)
    assert summary.bounds.jct_s <= 150.0
    assert summary.geometric_jct_s == pytest.approx((100 * 200) ** 0.5)
    assert [(each.project, each.jobs, each.succeeded) for each in summary.projects] == [
        ("project-0", 1, 1),
        ("project-1", 2, 1),
    ]
    assert summary.usd_by_market == {"owned": 7.0}
    assert (summary.solve_total_s, summary.solve_max_s) == (0.5, 0.4)


def test_without_a_roster_those_figures_do_not_exist() -> None:
    """nan, never a zero that looks like a measurement."""
    summary = summarise_run(result(measure(1, 0, 100)))
    assert isnan(summary.slowdown_mean)
    assert isnan(summary.fairness.rho_mean)
    assert isnan(summary.bounds.jct_s)


def test_a_cancelled_job_misses_nothing() -> None:
    """Its user did not want it any more; one that failed, or never ended, did miss."""
    made = roster(*(a_job(number, 0, 10, deadline_at=50) for number in (1, 2, 3)))
    states = (JobState.CANCELLED, JobState.FAILED, JobState.RUNNING)
    found = [missed_deadline(measure(number, 0, 20, state), made) for number, state in enumerate(states, 1)]
    assert found == [False, True, True]
