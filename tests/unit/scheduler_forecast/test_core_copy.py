"""A copy of a core goes on from what the core has decided."""

from dataclasses import replace

from scheduler.core.commands import Prepare, Revoke, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.events import EntityShare, JobSubmitted, PoolDeclared, PoolRemoved, ShareLimit, SharesDeclared
from scheduler.core.rules import RoundRules
from scheduler.forecast.core_copy import CoreCopy, snapshot_at_once
from scheduler.forecast.past_jobs import PastJobs
from scheduler.forecast.what_if import StateChanges, WhatIfQuestion, events_of_changes, what_if
from scheduler.world.engine import RunLimits
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, prepare_run
from simulator.simulation import Simulation
from tests.support.fake_fleet import cluster, job, pool
from tests.support.planned_fleet import measured, settle, sits, submit, think
from walras.cluster import PoolId
from walras.job_request import JobId
from walras.states import JobState

SLOW_TO_PLAN = RoundRules(round_s=100, resolve_min_s=60, restart_default_s=2, profiling_share=0)


def opened(core: SchedulerCore, at: float) -> tuple[SchedulerCore, list[object]]:
    """An undisturbed copy that decides, and what it does to attempts at once."""
    copy = CoreCopy(snapshot_at_once(core, at))
    return copy.core, [each for each in copy.open(at) if isinstance(each, Start | Revoke | Prepare)]


def test_a_plan_that_is_carried_out_is_not_carried_out_again() -> None:
    """Moves that did not pay when it came would be weighed anew, before anything has happened."""
    source = WorkloadSource("generate:poisson", made=GeneratorOptions(jobs=40, rate_per_h=8.0, gangs=True))
    ready = prepare_run(RunSpec(source, "gavel-8-16-24", "walras", 1, BoundsChoice.NONE))
    pools = tuple(replace(each, machines=4) for each in ready.scenario.pools)
    simulation = Simulation(replace(ready.scenario, pools=pools, limits=RunLimits(until_at=9 * 3600.0)))
    moves, looks = list[object](), 0

    def look(at: float, _: object) -> tuple[()]:
        nonlocal looks
        assert isinstance(simulation.core, SchedulerCore)
        moves.extend(opened(simulation.core, at)[1])
        looks += 1
        return ()

    for number in range(60):
        simulation.engine.schedule(600.0 + number * 497.0, look)
    simulation.run(ready.jobs)
    assert (moves, looks) == ([], 60)


def test_an_elastic_job_keeps_the_size_that_was_chosen() -> None:
    fleet = measured(cluster("walras", rules=SLOW_TO_PLAN, machines="a"))
    for number in (1, 2):
        submit(fleet, fleet.at + 1.0, job(number, "a", 4, steps=1e7, sizes=(1, 2, 4)))
        think(fleet, 300.0)
        settle(fleet)
    for _ in range(8):
        think(fleet, 100.0)
        for attempt in list(fleet.attempts.values()):
            if attempt.stopping:
                fleet.end(attempt.job_id, 85)
        settle(fleet)
    chosen = {each.job_id: fleet.core.ledger.class_of(each).request.demands for each in fleet.core.ledger}
    assert {demand.count for demands in chosen.values() for demand in demands} == {2}
    core, moves = opened(fleet.core, fleet.at + 1.0)
    assert {each.job_id: core.ledger.class_of(each).request.demands for each in core.ledger} == chosen
    assert moves == []


def test_a_plan_outlives_a_pool_that_was_removed() -> None:
    """Pools have other rows in a copy from then on."""
    fleet = cluster("walras", rules=SLOW_TO_PLAN, machines="a")
    fleet.tell(PoolDeclared(fleet.at, pool("z")))
    fleet.tell(PoolRemoved(fleet.at, PoolId("z")))
    fleet.tell(PoolDeclared(fleet.at, pool("y")))
    measured(fleet)
    sits(fleet, 1, "a", 4)
    submit(fleet, fleet.at + 1.0, job(2, "a", 4, steps=1e5))
    think(fleet, 70.0)
    settle(fleet)
    names = [state.name for state in fleet.core.ledger.fleet.pools]
    core = CoreCopy(snapshot_at_once(fleet.core, fleet.at + 1.0)).core
    copied, policy = [state.name for state in core.ledger.fleet.pools], core.cycle.policy
    assert (names, copied) == (["a", "b", "c", "z", "y"], ["a", "b", "c", "y"])
    assert policy.proposal is not None
    for each in fleet.core.ledger:
        told = dict(zip(names, fleet.core.ledger.columns.entitled[each.slot].tolist(), strict=True))
        now = dict(zip(copied, core.ledger.columns.entitled[core.ledger.jobs[each.job_id].slot].tolist(), strict=True))
        assert {name: told[name] for name in copied} == now


def test_a_job_whose_place_waits_for_a_limit_starts_in_the_copy_without_it() -> None:
    """Its start is the first that the copy decides, and it must reach the future's world."""
    fleet = cluster("srtf", rules=RoundRules(round_s=60.0), machines="aa")
    for at, number, size, steps, project in ((0, 1, 4, 1e6, "red"), (1, 3, 2, 1e3, "blue"), (2, 2, 4, 1e3, "red")):
        request = job(number, "a", size, steps=steps, project=project, preemptible=project == "red" and number == 2)
        fleet.tell(JobSubmitted(float(at), request))
        if number != 2:
            fleet.run(number)
    fleet.tell(SharesDeclared(3.0, (EntityShare("red", limits=(ShareLimit("fleet", 4),)),)))
    fleet.at = 4.0
    fleet.end(3)
    snapshot = snapshot_at_once(fleet.core, 10.0)
    assert fleet.core.ledger.jobs[JobId(2)].state is JobState.PENDING
    events, _ = events_of_changes(snapshot, StateChanges(unlimited=("red",)))
    (found,) = what_if(WhatIfQuestion(snapshot, PastJobs(), (events,), None, draws=3, cpu_s=20.0)).outcomes
    assert found.unfinished == (0.0, 0.0)
    assert found.total.completion_s.p50 < 0.0
