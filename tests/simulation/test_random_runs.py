"""Seeded simulations with faults: the core's invariants hold, nothing is lost or made up, and every job ends."""

import pytest

from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event
from simulator.engine import RunOutcome
from simulator.simulation import Simulation, SimulationResult
from tests.simulation.random_scenarios import jobs_of, scenario_of
from tests.support.core_invariants import check_invariants
from walras.states import JobState

#: Seeds in one test; eight tests make the 200 of `make test`.
_BATCH = 25
_CHECK_EVERY = 5


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


def run_seed(seed: int) -> SimulationResult:
    """One random simulation, checked."""
    scenario = scenario_of(seed)
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


@pytest.mark.parametrize("first", range(0, 200, _BATCH))
def test_every_job_of_a_randomly_failing_cluster_ends_as_it_should(first: int) -> None:
    """Whatever fails, once faults stop every job ends; a failure here names the seed that reproduces it."""
    for seed in range(first, first + _BATCH):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
