"""What makes rounds cheap changes no decision: with the shortcuts switched off, runs are the same."""

from math import inf

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import backfill
from scheduler.core.events import Event, RoundEnded, Woke
from scheduler.core.placement.reservations import UNBOUNDED_CAPACITY, FreeCapacityBound
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import expected_ends_on, remaining_here_of_all_s, remaining_here_s
from scheduler.core.state.working_set import Cycle
from simulator.simulation import Simulation
from tests.simulation.random_scenarios import jobs_of, scenario_of

SEEDS = range(2000, 2040)


def run(seed: int, core: SchedulerCore | None = None) -> list[tuple[int, float, int]]:
    """Every job's number, end and attempts."""
    scenario = scenario_of(seed)
    result = Simulation(scenario, core=core).run(jobs_of(seed, scenario))
    return [(job.job_id, job.ended_at, job.attempts) for job in result.jobs]


def test_looking_only_at_gangs_that_find_room_starts_the_same_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that `free_capacity_bound` rules out finds no place when it is looked at all the same."""
    usual = [run(seed) for seed in SEEDS]

    def anything(cycle: Cycle, pool: int) -> FreeCapacityBound:
        idle = not cycle.ledger.fleet.pools[pool].free and rounds_room(cycle, pool).lent == 0
        return FreeCapacityBound(0, 0, 0) if idle else UNBOUNDED_CAPACITY

    rounds_room = backfill.free_capacity_bound
    monkeypatch.setattr(backfill, "free_capacity_bound", anything)
    assert [run(seed) for seed in SEEDS] == usual


class Comparing(SchedulerCore):
    """A core that works out what is kept, or done in columns, anew and one by one, and compares."""

    compared = 0

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        ledger = self.ledger
        if isinstance(event, Woke | RoundEnded):
            running = [job for job in ledger if int(ledger.columns.pool[job.slot]) >= 0]
            slots = np.array([job.slot for job in running], np.int64)
            assert remaining_here_of_all_s(ledger, slots).tolist() == [remaining_here_s(ledger, job) for job in running]
            self.compared += len(slots)
            self._compare_costs(running, slots)
        self._compare_ends()
        return commands

    def _compare_costs(self, running: list[JobRecord], slots: NDArray[np.int64]) -> None:
        ledger, rules, columns = self.ledger, self.cycle.policy.rules, self.ledger.columns
        assert ledger.stop_costs_s(slots, rules).tolist() == [ledger.stop_cost_s(job, rules) for job in running]
        assert columns.running_at[slots].tolist() == [job.running_at for job in running]
        assert columns.profiling_until[slots].tolist() == [job.profiling_until for job in running]

    def _compare_ends(self) -> None:
        """By length, speed and restart cost as they are known now, whoever holds the machine and since whenever."""
        ledger = self.ledger
        for machine in ledger.fleet.machines:
            if machine is not None:
                holders = [ledger.jobs[job_id] for job_id, held in machine.holders.items() for _ in held]
                anew = sorted(map(self._end, holders))
                assert expected_ends_on(ledger, machine, ledger.policy.rules) == anew

    def _end(self, job: JobRecord) -> float:
        rate, rules = self.ledger.rate_of(job), self.cycle.policy.rules
        if job.request.steps is None or rate <= 0:
            return inf
        began = job.leased_at + self.ledger.restart_s(job, rules)
        return began + max(0.0, job.request.steps - job.start_steps) / rate


def test_what_is_kept_or_done_in_columns_is_the_same() -> None:
    """What jobs have left, what stopping them costs and when machines will be free: to the last bit."""
    compared = 0
    for seed in SEEDS:
        core = Comparing()
        run(seed, core)
        compared += core.compared
    assert compared > 100
