"""`protected_s` in random clusters that fail: who is stopped for others has run for so long, and every job ends."""

from dataclasses import replace

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, JobTransitioned, Revoke
from scheduler.core.core import SchedulerCore
from scheduler.core.events import AttemptStarted, Event
from scheduler.world.engine import RunOutcome
from simulator.simulation import Simulation
from tests.simulation.random_scenarios import jobs_of, scenario_of
from walras.job_request import JobId
from walras.states import Reason

PROTECTED_S = 120.0


class WatchedCore(SchedulerCore):
    """The core, with a note of how long each job had run that was stopped for another."""

    def __init__(self) -> None:
        super().__init__()
        self._began: dict[JobId, float] = {}
        #: Seconds, why, and whether the job had a share of its place.
        self.stopped: list[tuple[float, str, bool]] = []

    def handle(self, event: Event) -> list[Command]:
        guests = {job_id for job_id, job in self.ledger.jobs.items() if job.scavenger}
        commands = super().handle(event)
        if isinstance(event, AttemptStarted):
            self._began[event.job_id] = event.at
        for command in commands:
            if (
                isinstance(command, Revoke)
                and command.reason is Reason.POLICY_PREEMPTED
                and command.job_id in self._began
            ):
                why = (each.detail for each in commands if isinstance(each, JobTransitioned))
                own = command.job_id not in guests
                self.stopped.append((event.at - self._began[command.job_id], " ".join(why), own))
        return commands


@pytest.mark.parametrize("policy", ["", "max_min_fairness", "walras", "sia", "hadar"])
def test_who_is_stopped_for_another_has_run_for_the_time(policy: str) -> None:
    """But for who borrowed a place that was reserved, and who had no share of its place; of 10 seeds, under an order
    (or another policy that is drawn), shares and plans.
    """
    stopped: list[tuple[float, str, bool]] = []
    for seed in range(9000, 9010):
        scenario = scenario_of(seed)
        scenario = replace(
            scenario,
            policy=PolicySpec(policy) if policy else scenario.policy,
            rules=replace(scenario.rules, protected_s=PROTECTED_S),
        )
        core = WatchedCore()
        result = Simulation(scenario, core=core).run(jobs_of(seed, scenario))
        assert (result.outcome, result.violations) == (RunOutcome.COMPLETE, []), seed
        stopped += core.stopped
    held = [ran_s for ran_s, why, own in stopped if own and "has reserved this place" not in why]
    assert len(held) > 1
    assert min(held) >= PROTECTED_S - 1e-6
