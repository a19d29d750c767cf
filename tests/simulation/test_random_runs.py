"""Seeded simulations with faults: the core's invariants hold, nothing is lost or made up, and every job ends."""

from dataclasses import replace

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event
from scheduler.world.engine import RunOutcome
from simulator.simulation import Scenario, Simulation, SimulationResult, simulate
from tests.simulation.random_scenarios import in_racks, jobs_of, scenario_of
from tests.support.core_invariants import check_invariants
from walras.states import JobState

#: Seeds in one test.
_BATCH = 25
_CHECK_EVERY = 5
#: Policies that choose among the sizes of elastic jobs.
ELASTIC = ("elasticflow", "makespan", "max_min_fairness", "optimus", "pollux", "shockwave", "sia", "walras")


class CheckedCore(SchedulerCore):
    """The core, with all its invariants checked every few events."""

    def __init__(self) -> None:
        super().__init__()
        self._handled = 0

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        self._handled += 1
        if self._handled % _CHECK_EVERY == 0:
            check_invariants(self)
        return commands


def scenario_under(policy: str, seed: int) -> Scenario:
    """A random scenario; `drawn`: with the policy that it draws, `racks`: with machines in racks as well."""
    scenario = scenario_of(seed)
    if policy == "racks":
        return in_racks(scenario)
    return scenario if policy == "drawn" else replace(scenario, policy=PolicySpec(policy))


def run_seed(seed: int, policy: str = "drawn") -> SimulationResult:
    """One random simulation, checked."""
    scenario = scenario_under(policy, seed)
    jobs = jobs_of(seed, scenario)
    core = CheckedCore()
    result = Simulation(scenario, core=core).run(jobs)
    check_invariants(core)
    assert result.violations == []
    assert result.outcome is RunOutcome.COMPLETE, f"{result.outcome}: {result.unfinished}"
    assert {measure.job_id for measure in result.jobs} == {job.request.job_id for job in jobs}
    plans = {job.request.job_id: job for job in jobs}
    for measure in result.jobs:
        plan = plans[measure.job_id]
        fair = {JobState.SUCCEEDED}
        if any(failure.times is None for failure in plan.failures):
            fair = {JobState.FAILED}
        elif plan.failures and not plan.request.retry.max_restarts:
            fair |= {JobState.FAILED}  # unless its machine was lost before it could tell of its only failure
        if plan.cancel_at < float("inf") or plan.request.depends_on:
            fair |= {JobState.CANCELLED}
        assert measure.state in fair, f"job {measure.job_id} ended {measure.state} ({measure.reason}), not {fair}"
    return result


@pytest.mark.parametrize(
    ("policy", "seeds"),
    [("drawn", range(first, first + _BATCH)) for first in range(0, 100, _BATCH)]
    + [("racks", range(700, 700 + _BATCH)), *((policy, range(500, 510)) for policy in ELASTIC)],
)
def test_every_job_of_a_randomly_failing_cluster_ends_as_it_should(policy: str, seeds: range) -> None:
    """Whatever fails, once faults stop every job ends; a failure here names the seed that reproduces it."""
    for seed in seeds:
        try:
            run_seed(seed, policy)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


def _log(seed: int, scenario: Scenario) -> list[tuple[Event, list[Command]]]:
    log: list[tuple[Event, list[Command]]] = []
    simulate(jobs_of(seed, scenario), scenario, recorder=lambda event, said: log.append((event, list(said))))
    return log


@pytest.mark.parametrize("policy", ["drawn", "racks", *ELASTIC])
def test_the_same_inputs_give_the_same_run_and_its_events_replay_without_a_solver(policy: str) -> None:
    """Every event, command, number and order; a fresh core that is told the same events gives the same commands."""
    differs = False
    for seed in range(6 if policy == "drawn" else 2):
        scenario = scenario_under(policy, seed)
        log = _log(seed, scenario)
        assert repr(log) == repr(_log(seed, scenario)), f"seed {seed}"
        differs |= repr(log) != repr(_log(seed, replace(scenario, seed=999)))
        core = SchedulerCore()
        for event, commands in log:
            assert repr(core.handle(event)) == repr(commands), f"seed {seed}"
    assert differs, "faults and noise depend on the seed of the world"
