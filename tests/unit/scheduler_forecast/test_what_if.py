"""What would be if: rollouts of futures, and differences between them."""

import pickle
from dataclasses import replace
from math import inf
from statistics import median
from typing import Any

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.events import (
    Booking,
    BookingsDeclared,
    EntityShare,
    JobReprioritised,
    JobSubmitted,
    NodeJoined,
    PolicyChanged,
    PoolDeclared,
    ShareLimit,
    SharesDeclared,
)
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot, known_lengths, snapshot_at_once
from scheduler.forecast.job_forecasts import ForecastQuestion, JobForecast, forecast_jobs
from scheduler.forecast.past_jobs import PastJobs
from scheduler.forecast.rollout import BelievedPhysics, Rollout, RolloutLimits, guess_late_ends
from scheduler.forecast.what_if import (
    AddedMachines,
    AlternativeOutcome,
    StateChanges,
    WhatIfQuestion,
    events_of_changes,
    what_if,
)
from scheduler.world.attempts import JobProgress, SimulatedJob
from scheduler.world.engine import RunLimits
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, prepare_run
from simulator.simulation import Simulation
from tests.support.core_invariants import check_invariants
from tests.support.fake_fleet import FakeFleet, cluster, job, pool
from tests.support.planned_fleet import carried_out
from walras.cluster import Market, NodeId, PoolId
from walras.errors import NotFound
from walras.job_request import JobId, Kind
from walras.states import JobState

#: Who sees everything.
ALL = None


def a_state(*shares: EntityShare) -> CoreSnapshot:
    """One machine of type `a` that job 1 of `red` has; 2 of `red` and 3 and 4 of `blue` wait in that order; an empty
    pool of `b` on spot. Steps take a second where nothing else is known, and 4 are 1,000 steps each.
    """
    fleet = FakeFleet()
    fleet.tell(PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(round_s=60.0)))
    fleet.tell(SharesDeclared(0.0, shares))
    fleet.tell(PoolDeclared(0.0, pool("a")))
    fleet.tell(PoolDeclared(0.0, pool("b", 4, market=Market.SPOT, quota=2)))
    fleet.tell(NodeJoined(0.0, NodeId("n1"), PoolId("a")))
    for number, project in enumerate(("red", "red", "blue", "blue"), 1):
        fleet.tell(JobSubmitted(float(number), job(number, "a", steps=1000.0, project=project, user="u")))
    return snapshot_at_once(fleet.core, 10.0)


def outcome(snapshot: CoreSnapshot, changes: StateChanges, visible: frozenset[str] | None = ALL) -> AlternativeOutcome:
    """Of these changes; futures without newcomers."""
    events, _ = events_of_changes(snapshot, changes)
    (found,) = what_if(WhatIfQuestion(snapshot, PastJobs(), (events,), visible, draws=6, cpu_s=60.0)).outcomes
    return found


def test_with_another_machine_jobs_start_and_end_sooner_and_each_project_is_told() -> None:
    found = outcome(a_state(), StateChanges(added=(AddedMachines("A", 1),)))
    assert found.total.jobs == 4
    assert found.total.completion_s.p90 < 0
    assert found.total.waiting_s.p90 < 0
    assert set(found.projects) == {"red", "blue"}
    assert found.projects["blue"].completion_s.p50 < found.projects["red"].completion_s.p50 < 0
    assert JobId(1) not in found.jobs, "it runs already"
    assert {2, 3, 4} <= set(found.jobs)
    start_s = found.jobs[JobId(2)].start_s
    assert start_s.p50 < 0


def test_what_changes_nothing_differs_by_nothing_in_any_future() -> None:
    """Lengths, arrivals and lives are drawn alike: no difference is left of luck."""
    snapshot = a_state()
    past = PastJobs()
    for number in range(20):
        past.arrived(-600.0 * (20 - number), job(100 + number, "a", project="red", user="u"))
    events, words = events_of_changes(snapshot, StateChanges(added=(AddedMachines("b", 1),)))
    assert words == ("1 x bx4 more in b",)
    (found,) = what_if(WhatIfQuestion(snapshot, past, (events,), draws=6, cpu_s=60.0)).outcomes
    assert found.jobs == {}
    assert found.total.completion_s.p10 == found.total.completion_s.p90 == 0.0


def test_without_its_machine_no_job_ends_and_that_is_said() -> None:
    found = outcome(a_state(), StateChanges(removed=("n1",)))
    assert found.unfinished[0] == 0.0
    assert found.unfinished[1] == 4.0
    assert found.total.completion_s.p10 > 0


@pytest.mark.parametrize("name", ["a", "A", "n1"])
def test_a_type_a_pool_or_a_machine_is_taken_away_by_its_name(name: str) -> None:
    snapshot = a_state()
    copy = CoreCopy(snapshot)
    for event in events_of_changes(snapshot, StateChanges(removed=(name,)))[0]:
        copy.tell(event)
    assert copy.core.ledger.fleet.pools[0].capacity == 0


def test_a_limit_holds_in_the_futures_until_it_is_lifted() -> None:
    """With one accelerator for `red` at most a second machine does nothing for it, unless nobody limits it."""
    snapshot = a_state(EntityShare("red", limits=(ShareLimit("fleet", 1),)))
    more = StateChanges(added=(AddedMachines("a", 1),))
    limited, free = outcome(snapshot, more), outcome(snapshot, StateChanges(added=more.added, unlimited=("red",)))
    assert limited.projects["red"].completion_s.p50 == 0.0
    assert free.projects["red"].completion_s.p90 < 0


def rolled(limits: RolloutLimits) -> tuple[Rollout, CoreCopy]:
    """The same future of `a_state`, until these limits."""
    snapshot = a_state()
    copy = CoreCopy(snapshot)
    rollout = Rollout(copy, PastJobs(), known_lengths(snapshot, ()), "0/0")
    rollout.run(limits)
    return rollout, copy


def test_a_future_that_is_given_up_tells_late_ends_of_jobs() -> None:
    """A job that runs then is taken to run on. Nothing is told of one that waits or was stopped, nor of far ends."""
    whole, _ = rolled(RolloutLimits())
    assert all(each.late_end_at == each.ends_at < inf for each in whole.jobs.values())
    cut, copy = rolled(RolloutLimits(events=3))
    second = cut.jobs[JobId(2)]
    assert second.ends_at == inf
    assert second.late_end_at == pytest.approx(whole.jobs[JobId(2)].ends_at)
    assert cut.jobs[JobId(4)].late_end_at == inf
    guess_late_ends(cut.jobs, cut.world.jobs, copy.core.ledger, latest_at=second.late_end_at - 1.0)
    assert second.late_end_at == inf
    record = copy.core.ledger.jobs[JobId(2)]
    limit_at = copy.core.ledger.now + 5.0
    record.request = replace(record.request, max_runtime_s=limit_at - record.running_at + record.held_s)
    guess_late_ends(cut.jobs, cut.world.jobs, copy.core.ledger, latest_at=inf)
    assert second.late_end_at == pytest.approx(limit_at), "it is stopped at its limit of run time"
    cut.jobs[JobId(2)].stopped = True
    guess_late_ends(cut.jobs, cut.world.jobs, copy.core.ledger, latest_at=inf)
    assert second.late_end_at == inf


def test_a_future_that_has_no_time_left_ends_at_once() -> None:
    """Under a slow policy a few dozen events take seconds, for which somebody waits."""
    for over in (RolloutLimits(until_s=0.0), RolloutLimits(cpu_until_s=0.0)):
        assert rolled(over)[0].events == 1


def test_newcomers_make_the_queue_of_the_present_longer_by_no_more_than_four_times_the_accelerators() -> None:
    """One came each second: without a bound a future of an hour has 3,600 of them that only wait."""
    snapshot, past = a_state(), PastJobs()
    for number in range(10):
        past.arrived(float(number), job(100 + number, "a", steps=1000.0, user="u"))
    copy = CoreCopy(snapshot)
    capacity = sum(state.capacity for state in copy.core.ledger.fleet.pools)
    rollout = Rollout(copy, past, known_lengths(snapshot, ()), "0/0")
    rollout.run(RolloutLimits(horizon_s=3600.0))
    assert 4 + capacity < len(rollout.world.jobs) <= 4 + 4 * capacity


def test_whom_newcomers_overtake_does_not_start_because_they_stay_away() -> None:
    """A job of five hours came every forty minutes, and each goes first for its first hour."""
    fleet, past = cluster("las", machines="c"), PastJobs()
    fleet.submit(job(1, "c", steps=90_000.0))
    fleet.until(6000.0)
    fleet.submit(job(2, "c", steps=18_000.0), at=6000.0)
    for number in range(12):
        past.arrived(-22_800.0 + 2400.0 * number, job(100 + number, "c", steps=18_000.0))
    snapshot = snapshot_at_once(fleet.core, 6100.0)
    for draw in range(5):
        rollout = Rollout(CoreCopy(snapshot), past, known_lengths(snapshot, ()), f"0/{draw}")
        rollout.run(RolloutLimits(horizon_s=4 * 3600.0))
        assert rollout.jobs[JobId(2)].starts_at < inf
        assert rollout.jobs[JobId(1)].starts_at == inf


def test_projects_that_are_not_seen_are_told_of_together() -> None:
    found = outcome(a_state(), StateChanges(added=(AddedMachines("a", 1),)), frozenset({"blue"}))
    assert {name: group.jobs for name, group in found.projects.items()} == {"": 2, "blue": 2}


def test_a_job_that_is_tried_is_told_of_and_whom_it_delays() -> None:
    """First of all by its priority: the others start later by as long as it takes."""
    urgent = job(9, "a", steps=1000.0, project="blue", user="u", priority=100)
    found = outcome(a_state(), StateChanges(submitted=(urgent,)))
    added = found.added[JobId(9)].forecast
    assert 10.0 < added.start.p50 < added.end.p50
    assert {job_id for job_id, each in found.jobs.items() if each.end_s.p50 > 0} == {2, 3, 4}


def test_of_a_job_whose_end_is_not_reached_the_cost_is_not_known() -> None:
    """What it cost until the futures were given up is not told as its cost."""
    endless = job(9, "a", steps=1e12, project="blue", user="u", priority=100)
    found = outcome(a_state(), StateChanges(submitted=(endless,))).added[JobId(9)]
    assert (found.forecast.end.p50, found.usd) == (inf, None)
    known = outcome(a_state(), StateChanges(submitted=(replace(endless, steps=1000.0),))).added[JobId(9)]
    assert known.forecast.end.p50 < inf
    assert known.usd is not None


def test_with_another_policy_the_order_is_its_own() -> None:
    snapshot = a_state()
    changes = StateChanges(policy=(PolicySpec("lifo"), RoundRules(round_s=60.0)))
    with pytest.raises(Exception, match="lifo"):
        outcome(snapshot, changes)
    same = StateChanges(policy=(PolicySpec("fifo"), RoundRules(round_s=60.0)))
    assert outcome(snapshot, same).jobs == {}


@pytest.mark.parametrize(
    ("changes", "field", "names"),
    [
        (StateChanges(added=(AddedMachines("h100", 4),)), "add", "a (owned), b (spot)"),
        (StateChanges(added=(AddedMachines("a", 4, Market.SPOT),)), "add", "b (spot)"),
        (StateChanges(removed=("n9",)), "remove", "a, b"),
        (StateChanges(unlimited=("blue",)), "no_limit", "walras money --shares"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_with_what_it_has(
    changes: StateChanges, field: str, names: str
) -> None:
    with pytest.raises(NotFound) as refused:
        events_of_changes(a_state(EntityShare("red", limits=(ShareLimit("fleet", 1),))), changes)
    assert refused.value.field == field
    assert names in str(refused.value.fix)


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
    columns, solves = ledger.columns, core.cycle.solves
    names = ("since_at", "worked_s", "renewed_at_s", "entitled")
    decided = {job.job_id: [getattr(columns, name)[job.slot].tolist() for name in names] for job in ledger}
    return jobs, free, speeds, (decided, solves.requested_at, solves.problem_changed), by_job


@pytest.mark.parametrize("policy", ["fifo", "las", pytest.param("max_min_fairness", marks=pytest.mark.slow), "walras"])
def test_a_copy_stands_where_the_core_stood_and_the_core_is_as_if_nobody_had_looked(policy: str) -> None:
    looked = Run(policy, until_at=_LOOK_AT + 5000.0)
    ignored = Run(policy, until_at=_LOOK_AT + 5000.0, looks=False)
    assert looked.snapshot is not None
    copy = CoreCopy(looked.snapshot)
    jobs, *others, owed = _standing(copy.core)
    assert (jobs, *others) == looked.standing[:4]
    assert any(state is JobState.PENDING for state, *_ in jobs.values())
    for job_id, row in looked.standing[4].items():
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
    return told.start.p50


def test_what_is_told_before_the_future_begins_changes_it() -> None:
    """A job that is tried has a forecast of its own; one that is made urgent starts sooner than it would."""
    run = Run("priority")
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
    """A job that may not be stopped starts after the reservation that it would run into; so under a plan."""
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


def test_who_is_being_measured_is_left_in_peace_in_the_futures_too() -> None:
    """Then nothing shows that it saves its work, and a gang that waits starts when it has ended, not at any moment."""
    fleet = cluster("walras", rules=RoundRules(round_s=60.0, restart_default_s=30.0), machines="aa")
    for number, count, at in ((1, 1, 0.0), (2, 8, 20.0)):
        request = job(number, "a", count, kind=Kind(f"k{number}"), unproven=True, duration_s=3000.0)
        fleet.tell(JobSubmitted(at, request))
        carried_out(fleet)
        if number == 1:
            fleet.run(number)
    assert list(fleet.attempts) == [1]
    answer = forecast_jobs(ForecastQuestion(snapshot_at_once(fleet.core, 25.0), PastJobs(), draws=4, cpu_s=60.0))
    assert _first_start(answer, JobId(2)) > 300.0


def test_who_has_reserved_a_place_starts_there_first_in_the_futures_too() -> None:
    """A shorter gang that comes later would reserve the place if nobody had: the core keeps it for the first."""
    fleet = cluster("srtf", rules=RoundRules(round_s=60.0), machines="a")
    fleet.tell(JobSubmitted(0.0, job(1, "a", 1, steps=1000.0, preemptible=False)))
    fleet.run(1)
    for number, steps in ((2, 2000.0), (3, 1000.0)):
        fleet.tell(JobSubmitted(float(number), job(number, "a", 4, steps=steps)))
    assert list(fleet.core.cycle.reservations) == [2]
    snapshot = pickle.loads(pickle.dumps(snapshot_at_once(fleet.core, 10.0)))
    answer = forecast_jobs(ForecastQuestion(snapshot, PastJobs(), draws=3, cpu_s=60.0))
    assert _first_start(answer, JobId(2)) < _first_start(answer, JobId(3))
    fleet.end(1)
    assert JobId(2) in fleet.attempts


@pytest.mark.parametrize("write_s", [None, 8.0])
def test_a_restart_takes_as_long_in_the_futures_as_the_core_believes(write_s: float | None) -> None:
    core = cluster(machines="a").core
    core.handle(JobSubmitted(1.0, request := job(1, "a", steps=100.0)))
    core.ledger.costs.saw_start(request.kind, 20.0)
    if write_s is not None:
        core.ledger.costs.saw_checkpoint(request.kind, write_s)
    costs = BelievedPhysics(core).costs(JobProgress(SimulatedJob(1.0, request, 100.0)), [], 1)
    assert costs.restart_s == core.ledger.restart_s(core.ledger.jobs[JobId(1)], RoundRules())
    assert costs.checkpoint_s == (10.0 if write_s is None else write_s)


def test_under_a_plan_a_place_is_taken_at_once_where_a_solve_costs_little() -> None:
    fleet = cluster("walras", rules=RoundRules(resolve_min_s=1.0, restart_default_s=2.0), machines="cc")
    for number, steps in enumerate((3000.0, 20_000.0, 3000.0), 1):
        kind = Kind(f"k{number}")
        fleet.tell(ThroughputMeasured(float(number), kind, "c", 1, 1.0))
        fleet.tell(JobSubmitted(float(number), job(number, "c", 1, steps=steps, kind=kind, preemptible=False)))
        carried_out(fleet)
    answer = forecast_jobs(ForecastQuestion(snapshot_at_once(fleet.core, 9.0), PastJobs(), draws=3, cpu_s=60.0))
    third = answer.jobs[JobId(3)].start
    assert third is not None
    assert third == answer.jobs[JobId(1)].end


def test_under_a_plan_a_place_is_taken_soon_in_far_futures_too() -> None:
    """Forty jobs of ten minutes on one machine take seven hours, not three days."""
    fleet = cluster("walras", rules=RoundRules(resolve_min_s=1.0, restart_default_s=2.0), machines="c")
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "c", 1, 1.0))
    for number in range(1, 41):
        fleet.tell(JobSubmitted(1.0, job(number, "c", 1, steps=600.0)))
    answer = forecast_jobs(ForecastQuestion(snapshot_at_once(fleet.core, 2.0), PastJobs(), draws=3, cpu_s=60.0))
    ends = sorted(told.end.p50 for told in answer.jobs.values())
    assert len(ends) == 40
    assert 40 * 600.0 * 0.95 <= ends[-1] <= 40 * 600.0 * 1.05
