"""What makes rounds cheap changes no decision: with the shortcuts switched off, runs are the same."""

import numpy as np
import pytest

from scheduler.core import rounds
from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import Cycle
from scheduler.core.events import Event, RoundEnded, Woke
from scheduler.core.room import ANY_ROOM, Room
from simulator.simulate import Simulation
from tests.simulation.random_scenarios import jobs_of, scenario_of

SEEDS = range(2000, 2040)


def run(seed: int, core: SchedulerCore | None = None) -> list[tuple[int, float, int]]:
    """Every job's number, end and attempts."""
    scenario = scenario_of(seed)
    result = Simulation(scenario, core=core).run(jobs_of(seed, scenario))
    return [(job.job_id, job.ended_at, job.attempts) for job in result.jobs]


def test_looking_only_at_gangs_that_find_room_starts_the_same_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that `room_on` rules out finds no place when it is looked at all the same."""
    usual = [run(seed) for seed in SEEDS]

    def anything(cycle: Cycle, pool: int) -> Room:
        idle = not cycle.ledger.fleet.pools[pool].free and rounds_room(cycle, pool).lent == 0
        return Room(0, 0, 0) if idle else ANY_ROOM

    rounds_room = rounds.room_on
    monkeypatch.setattr(rounds, "room_on", anything)
    assert [run(seed) for seed in SEEDS] == usual


class Comparing(SchedulerCore):
    """A core that works out what running jobs have left in columns and one by one, and compares."""

    compared = 0

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        ledger = self.ledger
        if isinstance(event, Woke | RoundEnded):
            running = [job for job in ledger if int(ledger.columns.pool[job.slot]) >= 0]
            slots = np.array([job.slot for job in running], np.int64)
            assert ledger.left_s(slots).tolist() == [ledger.remaining_s(job) for job in running]
            self.compared += len(slots)
        return commands


def test_what_is_left_is_the_same_in_columns() -> None:
    """`left_s` of many jobs is `remaining_s` of each, to the last bit."""
    compared = 0
    for seed in SEEDS:
        core = Comparing()
        run(seed, core)
        compared += core.compared
    assert compared > 100
