"""A core's copy and its futures: the copy stands where the core stood, and what it foresees comes."""

import pickle
from dataclasses import replace
from math import inf
from statistics import median
from typing import Any

import pytest

from scheduler.core.booking_events import Booking, BookingsDeclared
from scheduler.core.core import SchedulerCore
from scheduler.core.events import JobSubmitted
from scheduler.core.job_change_events import JobReprioritised
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot, snapshot_at_once
from scheduler.forecast.job_forecasts import ForecastQuestion, JobForecast, forecast_jobs
from scheduler.forecast.past_jobs import PastJobs
from simulator.engine import RunLimits
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, prepare_run
from simulator.simulation import Simulation
from tests.support.core_invariants import check_invariants
from tests.support.fake_fleet import cluster, job
from walras.cluster import NodeId
from walras.job_request import JobId, Kind
from walras.states import JobState

_LOOK_AT = 6 * 3600.0


class Run:
    """A simulated run, stopped in the middle for a look, and what became of its jobs."""

    def __init__(
        self, policy: str, jobs: int = 30, rate: float = 6.0, ask: Any = None, until_at: float = inf, looks: bool = True
    ) -> None:
        source = WorkloadSource("generate:poisson", made=GeneratorOptions(jobs=jobs, rate_per_h=rate, gangs=False))
        ready = prepare_run(RunSpec(source, "gavel-8-16-24", policy, 1, BoundsChoice.NONE))
        pools = tuple(replace(pool, machines=3) for pool in ready.scenario.pools)
        self.simulation = Simulation(replace(ready.scenario, pools=pools, limits=RunLimits(until_at=until_at)))
        self.snapshot: CoreSnapshot | None = None
        self.answer: Any = None
        self._ask = ask
        if looks:
            self.simulation.engine.schedule(_LOOK_AT, self._look)
        self.result = self.simulation.run(ready.jobs)
        self.ended_at = {job.job_id: job.ended_at for job in self.result.jobs}

    def _look(self, at: float, _: object) -> tuple[()]:
        core = self.simulation.core
        assert isinstance(core, SchedulerCore)
        self.snapshot = pickle.loads(pickle.dumps(snapshot_at_once(core, at)))
        self.standing = _standing(core)
        if self._ask is not None:
            self.answer = self._ask(self.snapshot)
        return ()


def _standing(core: SchedulerCore) -> Any:
    """What of a core must be so in its copy."""
    ledger, now = core.ledger, core.ledger.now
    jobs = {job.job_id: (job.state, job.attempt, job.placement if job.holds else None) for job in ledger}
    free = {state.pool.pool_id: (state.free, state.capacity) for state in ledger.fleet.pools}
    speeds = sorted((each.kind, each.accelerator, each.steps_per_s) for each in ledger.table.known())
    slots, owed = ledger.columns.owed_at(now)
    by_job = {ledger.columns.job_id.item(slot): row.round(3).tolist() for slot, row in zip(slots, owed, strict=True)}
    return jobs, free, speeds, by_job


@pytest.mark.parametrize("policy", ["fifo", pytest.param("max_min_fairness", marks=pytest.mark.slow), "walras"])
def test_a_copy_stands_where_the_core_stood_and_the_core_is_as_if_nobody_had_looked(policy: str) -> None:
    looked = Run(policy, until_at=_LOOK_AT + 5000.0)
    ignored = Run(policy, until_at=_LOOK_AT + 5000.0, looks=False)
    assert looked.snapshot is not None
    copy = CoreCopy(looked.snapshot)
    jobs, free, speeds, owed = _standing(copy.core)
    assert (jobs, free, speeds) == looked.standing[:3]
    assert any(state is JobState.PENDING for state, *_ in jobs.values())
    for job_id, row in looked.standing[3].items():
        # Below half an accelerator-second is nothing, to a successor too.
        assert owed[job_id] == pytest.approx(row, abs=0.51), job_id
    check_invariants(copy.core)
    assert looked.ended_at == ignored.ended_at


def test_in_order_of_arrival_with_known_lengths_what_is_foreseen_comes() -> None:
    """Nothing is unknown but a few per cent of speed: every median is near what came, for each job that was there."""
    run = Run("fifo", ask=lambda snapshot: forecast_jobs(ForecastQuestion(snapshot, PastJobs(), draws=9, cpu_s=60.0)))
    waiting = [job_id for job_id, told in run.answer.jobs.items() if told.start is not None]
    assert len(waiting) >= 5
    errors = []
    for job_id, told in run.answer.jobs.items():
        left_s = run.ended_at[job_id] - _LOOK_AT
        errors.append(abs(told.end.p50 - run.ended_at[job_id]) / left_s)
        assert told.end.p10 <= told.end.p50 <= told.end.p90
    assert median(errors) < 0.05
    # A few land on another type of accelerator than in life: a second decides which is free first.
    assert sum(error < 0.15 for error in errors) >= 0.75 * len(errors)


def _first_start(answer: Any, job_id: JobId) -> float:
    told: JobForecast = answer.jobs[job_id]
    assert told.start is not None
    return told.start.p50


def test_what_is_told_before_the_future_begins_changes_it() -> None:
    """A job that is tried has a forecast of its own; one that is made urgent starts sooner than it would."""
    run = Run("priority")
    assert run.snapshot is not None
    requests = run.snapshot.requests()
    now = run.snapshot.at
    plain = forecast_jobs(ForecastQuestion(run.snapshot, PastJobs(), draws=3))
    last = max(plain.jobs, key=lambda job_id: plain.jobs[job_id].start.p50 if plain.jobs[job_id].start else 0.0)  # type: ignore[union-attr]
    urgent = forecast_jobs(
        ForecastQuestion(run.snapshot, PastJobs(), draws=3, told=(JobReprioritised(0.0, last, 100),))
    )
    assert _first_start(urgent, last) - now < 0.5 * (_first_start(plain, last) - now)
    tried = JobId(max(requests) + 1)
    request = replace(requests[last], job_id=tried)
    more = forecast_jobs(ForecastQuestion(run.snapshot, PastJobs(), draws=3, told=(JobSubmitted(0.0, request),)))
    assert _first_start(more, tried) > now
    assert set(more.jobs) == {*plain.jobs, tried}


def test_equal_questions_have_equal_answers_and_other_seeds_others() -> None:
    run = Run("fifo")
    assert run.snapshot is not None
    asked = ForecastQuestion(run.snapshot, PastJobs(), draws=3, cpu_s=60.0)
    assert forecast_jobs(asked).jobs == forecast_jobs(asked).jobs
    assert forecast_jobs(asked).jobs != forecast_jobs(replace(asked, seed=1)).jobs


@pytest.mark.parametrize(("policy", "latest"), [("fifo", 5200.0), ("walras", 6100.0)])
def test_what_is_foreseen_respects_reservations_of_machines(policy: str, latest: float) -> None:
    """A job that may not be stopped starts after the reservation that it would run into; under a plan with the next,
    which a future answers the later the further ahead it is.
    """
    fleet = cluster(policy, rules=RoundRules(round_s=60.0, restart_default_s=2.0), machines="a")
    for count in (1, 2, 4):
        fleet.tell(ThroughputMeasured(0.0, Kind("k"), "a", count, float(count)))
    fleet.tell(BookingsDeclared(0.0, (Booking(1, "vision", (NodeId("a1"),), 1000.0, 5000.0, "a", 4),)))
    fleet.tell(JobSubmitted(1.0, job(1, "a", 4, project="other", steps=4 * 3000.0, preemptible=False)))
    snapshot = pickle.loads(pickle.dumps(snapshot_at_once(fleet.core, 10.0)))
    copy = CoreCopy(snapshot)
    assert not copy.core.cycle.bookings.declared
    copy.open(10.0)
    assert copy.core.cycle.bookings.declared == fleet.core.cycle.bookings.declared
    answer = forecast_jobs(ForecastQuestion(snapshot, PastJobs(), draws=4, cpu_s=60.0))
    assert 5000.0 <= _first_start(answer, JobId(1)) <= latest


def test_under_a_plan_a_place_is_taken_soon_in_far_futures_too() -> None:
    """Forty jobs of ten minutes on one machine take seven hours. Answers that came a tenth of the way ahead later made
    three days of them.
    """
    fleet = cluster("walras", rules=RoundRules(resolve_min_s=1.0, restart_default_s=2.0), machines="c")
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "c", 1, 1.0))
    for number in range(1, 41):
        fleet.tell(JobSubmitted(1.0, job(number, "c", 1, steps=600.0)))
    answer = forecast_jobs(ForecastQuestion(snapshot_at_once(fleet.core, 2.0), PastJobs(), draws=3, cpu_s=60.0))
    ends = sorted(told.end.p50 for told in answer.jobs.values())
    assert len(ends) == 40
    assert 40 * 600.0 * 0.95 <= ends[-1] <= 40 * 600.0 * 1.05
