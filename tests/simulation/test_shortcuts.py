"""What makes rounds cheap changes no decision: with the shortcuts switched off, runs are the same."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from optimizer.policy import PlanPolicy, PolicySpec
from optimizer.problem import Problem
from scheduler.core.commands import Command, Revoke, Solve, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import backfill
from scheduler.core.cycle.problem_snapshot import plan_problem
from scheduler.core.events import Event, RoundEnded, Woke
from scheduler.core.ordering.plan_ordering import PlanOrdering
from scheduler.core.placement.reservations import UNBOUNDED_CAPACITY, FreeCapacityBound
from scheduler.core.rules import RoundRules
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import expected_ends_on, remaining_here_of_all_s, remaining_here_s
from scheduler.core.state.working_set import Cycle
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.faults import FaultModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation, simulate
from tests.simulation.random_scenarios import jobs_of, scenario_of
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

SEEDS = range(2000, 2020)


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


# ------------------------------------------------------------------------------------------------ plans that hold


def quiet_scenario(random: Random) -> Scenario:
    """Machines of four accelerators, of two types; restarts that cost nothing to a minute, and machines that fail."""
    pools = tuple(PoolModel(Pool(PoolId(name), Shape(name, name, 4, 64.0, 2**38)), 3) for name in ("fast", "slow"))
    speeds = {"cnn": (4.0, 1.0), "rnn": (2.0, 1.5), "odd": (1.0, 1.3)}
    known = {
        SpeedKey(Kind(kind), name): speed
        for kind, both in speeds.items()
        for name, speed in zip(("fast", "slow"), both, strict=True)
    }
    restart_s = random.choice((0.0, 5.0, 60.0))
    rules = RoundRules(
        round_s=60.0, resolve_min_s=random.choice((0.0, 60.0, 90.0)), protected_s=random.choice((0.0, 600.0))
    )
    faults = FaultModel(death_every_s=random.choice((inf, 1500.0)), repair_s=600.0, uncordon_s=30.0, until_at=20_000.0)
    guard = {"slowdown": random.choice((1.05, 1.5, 2.5)), "margin": random.choice((1.0, 1.5))}
    policy = PolicySpec("walras", {"stay": random.choice((0.0, 0.05)), "moves": random.random() < 0.9, **guard})
    truth = GroundTruth(known, {}, AttemptCosts(start_s=restart_s))
    return Scenario(pools, truth, policy, replace(rules, restart_default_s=restart_s), faults=faults, seed=1)


def quiet_jobs(random: Random) -> Iterable[SimulatedJob]:
    """Forty jobs, some of them gangs or of unknown length, of one or several owners; the cluster is full at times."""
    every_s, projects = random.choice((100.0, 200.0, 400.0)), random.choice((("a",), ("a",), ("a", "b")))
    at, unknown, burst = 0.0, random.choice((0.0, 0.3)), random.choice((1, 12))
    for number in range(1, 41):
        at += random.expovariate(1.0 / every_s / burst) if number % burst == 0 else 0.0
        steps = round(200.0 * 30.0 ** random.random())
        request = JobRequest(
            JobId(number), Kind(random.choice(("cnn", "rnn", "odd"))),
            demands=(Demand("*", random.choice((1, 1, 1, 2))),),
            steps=None if random.random() < unknown else float(steps), project=random.choice(projects),
            priority=random.choice((50, 50, 50, 80)), preemptible=random.random() < 0.9,
        )  # fmt: skip
        yield SimulatedJob(at, request, float(steps))


def planned(jobs: list[SimulatedJob], scenario: Scenario) -> tuple[list[object], int]:
    """Every start and stop with its instant, and every job's end; and the number of solves."""
    seen, solves = list[object](), 0

    def note(event: Event, commands: list[Command]) -> None:
        nonlocal solves
        seen.extend((event.at, repr(command)) for command in commands if isinstance(command, Start | Revoke))
        solves += sum(isinstance(command, Solve) for command in commands)

    result = simulate(jobs, scenario, recorder=note)
    return [*seen, *((job.job_id, job.ended_at, job.attempts) for job in result.jobs)], solves


def quiet_cases() -> Iterator[tuple[list[SimulatedJob], Scenario]]:
    """Those of the first ten in which plans hold for a while."""
    for seed in (0, 1, 7, 9):
        random = Random(f"{seed}/holds")
        scenario = quiet_scenario(random)
        yield list(quiet_jobs(random)), scenario


def test_a_plan_that_holds_is_what_a_solve_would_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time: the same places, prices and memory, and jobs in the same order of importance."""
    renewed = 0
    renew = PlanOrdering.renew

    def compare(ordering: PlanOrdering, asked: Problem) -> None:
        nonlocal renewed
        renew(ordering, asked)
        renewed += 1
        ledger = ordering._ledger
        policy, problem = ledger.policy, plan_problem(ledger, ordering)
        assert policy.solved_at == ledger.now, "its prices are not old"
        proposal = policy.proposal
        assert isinstance(policy.pricing, PlanPolicy)
        assert proposal is not None
        plan, memory = policy.pricing.decide(problem, policy.memory)
        assert memory == policy.memory
        assert not plan.quote.prices.any()
        assert problem.columns.running[plan.column].all()
        assert list(ordering._by_importance()) == problem.jobs.job_id[plan.rows].tolist()

    monkeypatch.setattr(PlanOrdering, "renew", compare)
    for jobs, scenario in quiet_cases():
        simulate(jobs, scenario)
    assert renewed > 200


def test_plans_that_hold_start_and_stop_the_same_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without renewals each round asks for a plan, and every job starts, stops and ends at the same instants."""
    cases = list(quiet_cases())
    renewing = [planned(jobs, scenario) for jobs, scenario in cases]
    monkeypatch.setattr("scheduler.core.cycle.round.plan_still_holds", lambda cycle: False)
    asking = [planned(jobs, scenario) for jobs, scenario in cases]
    assert [log for log, _ in renewing] == [log for log, _ in asking]
    assert all(few < many for (_, few), (_, many) in zip(renewing, asking, strict=True))
