"""Nothing is made up and nothing is lost: the books are kept a second time, from the events and commands alone."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import AttemptTransitioned, Command, JobTransitioned
from scheduler.core.events import AttemptEnded, AttemptStarted, Event, NodeJoined, NodeLost, PoolDeclared
from scheduler.core.rules import RoundRules
from simulator.attempts import AttemptSimulator, JobProgress, SimAttempt
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.reports.timeline import Timeline
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, SchedulerWiring, Simulation, simulate
from tests.simulation.random_scenarios import jobs_of, scenario_of
from walras.cluster import NodeId, Placement, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import AttemptState, JobState

KIND, SPEED = Kind("cnn"), 3.0
ROUNDS = RoundRules(round_s=1e4, resolve_min_s=0.0)
POOL = Pool(PoolId("a100"), Shape("a100", "a100", 2, 8.0, 2**33), usd_per_h=7.31)


@dataclass
class Books:
    """Machines there, accelerators held and money spent, by what the scheduler and the world told each other."""

    now: float = 0.0
    pools: dict[PoolId, Pool] = field(default_factory=dict)
    machines: dict[NodeId, PoolId] = field(default_factory=dict)
    held: dict[JobId, Placement] = field(default_factory=dict)
    held_s: dict[PoolId, float] = field(default_factory=lambda: defaultdict(float))
    usd: dict[PoolId, float] = field(default_factory=lambda: defaultdict(float))

    def record(self, event: Event, commands: list[Command]) -> None:
        """An event that the core has handled, and what it commanded."""
        self._settle(event.at)
        if isinstance(event, PoolDeclared):
            self.pools[event.pool.pool_id] = event.pool
        elif isinstance(event, NodeJoined):
            self.machines[event.node_id] = event.pool_id
        elif isinstance(event, NodeLost):
            del self.machines[event.node_id]
        for command in commands:
            if isinstance(command, AttemptTransitioned):
                if command.state is AttemptState.LEASED:
                    assert command.placement is not None
                    self.held[command.job_id] = command.placement
                elif command.state.is_final:
                    self.held.pop(command.job_id, None)
        self._nothing_twice()

    def _settle(self, at: float) -> None:
        passed_s, self.now = at - self.now, at
        for pool_id in self.machines.values():
            self.usd[pool_id] += self.pools[pool_id].usd_per_h * passed_s / 3600.0
        for placement in self.held.values():
            for part in placement.parts:
                if part.node_id in self.machines:
                    assert self.machines[part.node_id] == (part.pool_id or placement.pool_id)
                    self.held_s[self.machines[part.node_id]] += passed_s * len(part.devices)

    def _nothing_twice(self) -> None:
        taken: set[tuple[NodeId, int]] = set()
        for placement in self.held.values():
            for part in placement.parts:
                for device in part.devices:
                    assert (part.node_id, device) not in taken, f"{part.node_id}/{device} is held twice"
                    assert device < self.pools[part.pool_id or placement.pool_id].shape.accelerators
                    taken.add((part.node_id, device))


@pytest.mark.parametrize("first", range(1000, 1060, 20))
def test_accelerators_and_money_by_a_second_account(first: int) -> None:
    """At no instant is an accelerator held twice or one that is not there; seconds and USD agree, to the cent."""
    for seed in range(first, first + 20):
        given = scenario_of(seed)
        priced = tuple(
            replace(model, pool=replace(model.pool, usd_per_h=1.37 * row)) for row, model in enumerate(given.pools, 1)
        )
        books, scenario = Books(), replace(given, pools=priced)
        result = simulate(jobs_of(seed, scenario), scenario, recorder=books.record)
        assert result.violations == [], f"seed {seed}"
        books.record(replace_at(result.ended_at), [])
        for meter in result.pools:
            pool_id = meter.pool.pool_id
            assert meter.held_s == pytest.approx(books.held_s[pool_id], rel=1e-9, abs=1e-6), f"seed {seed}"
            assert meter.held_s <= meter.there_s * (1 + 1e-9)
            assert abs(meter.usd - books.usd[pool_id]) < 0.005, f"seed {seed}"
            assert result.bills[pool_id] >= meter.usd - 0.005, f"seed {seed}"


@pytest.mark.parametrize("policy", ["hadar", "walras"])
@pytest.mark.parametrize("first", [0, 20])
def test_forks_and_mixed_gangs_are_held_and_paid_for_by_pool(first: int, policy: str) -> None:
    """The same books where jobs may be forked and gangs may sit in several pools, among faults: to the cent."""
    spread: list[Placement] = []
    for seed in range(first, first + 20):
        given = scenario_of(seed)
        priced = tuple(
            replace(model, pool=replace(model.pool, usd_per_h=1.37 * row)) for row, model in enumerate(given.pools, 1)
        )
        books, scenario = Books(), replace(given, pools=priced, policy=PolicySpec(policy))

        timeline = Timeline()

        def hear(event: Event, commands: list[Command], books: Books = books, timeline: Timeline = timeline) -> None:
            books.record(event, commands)
            timeline.record(event, commands)
            for track in timeline.pools.values():
                assert 0 <= track.running.now <= track.held.now <= track.there.now
            spread.extend(placement for placement in books.held.values() if len(placement.by_pool) > 1)

        result = simulate(spreading_jobs_of(seed, scenario), scenario, recorder=hear)
        assert result.violations == [], f"seed {seed}"
        books.record(replace_at(result.ended_at), [])
        for meter in result.pools:
            pool_id = meter.pool.pool_id
            assert meter.held_s == pytest.approx(books.held_s[pool_id], rel=1e-9, abs=1e-6), f"seed {seed}"
            assert abs(meter.usd - books.usd[pool_id]) < 0.005, f"seed {seed}"
            assert timeline.pools[pool_id].held.now == 0.0, f"seed {seed}"
    assert spread or (policy, first) == ("walras", 0)  # there no gang over several pools pays


def spreading_jobs_of(seed: int, scenario: Scenario) -> list[SimulatedJob]:
    """Four fifths of the rigid jobs may be spread: half of them as forks of up to five parts, half as mixed gangs."""
    random, jobs = Random(f"{seed}/spread"), []
    for job in jobs_of(seed, scenario):
        way, parts = random.random(), random.choice((2, 3, 5))
        if way < 0.8 and not job.request.sizes:
            more = {"fork_max": parts} if way < 0.4 else {"mixed": True}
            job = replace(job, request=replace(job.request, **more))
        jobs.append(job)
    return jobs


def replace_at(at: float) -> Event:
    """Something that changes nothing, at the end of the run."""
    return AttemptStarted(at, JobId(0), 0)


# ------------------------------------------------------------------------------------------------ work


def preempted() -> tuple[list[SimulatedJob], Scenario]:
    """Five jobs take turns on two accelerators; a start takes 5 s, a checkpoint nothing."""
    jobs = []
    for number in range(1, 6):
        steps = 1000.0 * number
        request = JobRequest(JobId(number), KIND, demands=(Demand("a100", 1),), steps=steps)
        jobs.append(SimulatedJob(10.0 * number, request, steps))
    truth = GroundTruth({SpeedKey(KIND, "a100"): SPEED}, default_costs=AttemptCosts(start_s=5.0))
    policy = PolicySpec("las", {"quantum_s": 100.0})
    return jobs, Scenario((PoolModel(POOL, machines=1),), truth, policy, RoundRules(round_s=30.0, min_runtime_s=20.0))


def test_work_credited_is_speed_times_time() -> None:
    """A job's own counter, over all its attempts, is the seconds in which its ranks were up times its speed."""
    jobs, scenario = preempted()
    up_at: dict[JobId, float] = {}
    up_s: dict[JobId, float] = defaultdict(float)
    counter: dict[JobId, float] = {}
    attempts: dict[JobId, int] = {}

    def hear(event: Event, _: list[Command]) -> None:
        if isinstance(event, AttemptStarted):
            up_at[event.job_id] = event.at
        elif isinstance(event, AttemptEnded):
            up_s[event.job_id] += event.at - up_at.pop(event.job_id)
            assert event.steps is not None
            counter[event.job_id], attempts[event.job_id] = event.steps, event.attempt

    result = simulate(jobs, scenario, recorder=hear)
    assert result.violations == []
    assert max(attempts.values()) > 1, "nobody was preempted"
    for job in jobs:
        job_id = job.request.job_id
        assert counter[job_id] == job.steps
        assert up_s[job_id] * SPEED == pytest.approx(job.steps, rel=1e-9)
    assert result.worked_steps - result.lost_steps == pytest.approx(sum(job.steps for job in jobs), rel=1e-9)


# ------------------------------------------------------------------------------------------------ the checks bite


class Flatterer(AttemptSimulator):
    """Credits a hundredth more than was done."""

    def _settle(self, at: float, run: SimAttempt) -> None:
        before = run.job.steps
        super()._settle(at, run)
        run.job.steps += 0.01 * (run.job.steps - before)


def test_work_that_was_not_done_is_found() -> None:
    """A world that credits more steps than it made is told of, with the job."""
    jobs, scenario = preempted()
    result = simulate(jobs, replace(scenario, wiring=SchedulerWiring(pace=Flatterer)))
    assert any("is credited" in violation for violation in result.violations)


@pytest.mark.parametrize(("part", "told"), [("held_s", "accelerator-seconds held"), ("usd", "USD counted")])
def test_service_and_money_that_are_made_up_are_found(part: str, told: str) -> None:
    """More accelerator-seconds than were there, or a sum that is not price times time, is told of with the pool."""
    jobs, scenario = preempted()
    simulation = Simulation(scenario)

    def make_up(at: float, job: JobProgress, state: JobState) -> None:
        meter = simulation.metrics.pools[POOL.pool_id]
        setattr(meter, part, getattr(meter, part) + (1e9 if part == "held_s" else 0.02))

    simulation.world.on_end.append(make_up)
    result = simulation.run(jobs)
    assert any(told in violation and POOL.pool_id in violation for violation in result.violations)


@pytest.mark.parametrize(
    ("more", "gang", "rate"),
    [
        ({"fork_max": 3}, 1, 0.9 * (2 * SPEED + 1.0)),
        ({"fork_max": 9}, 1, 0.9 * (2 * SPEED + 2 * 1.0)),
        ({"mixed": True}, 3, 0.8 * 2.0),
    ],
)
def test_a_fork_has_the_speed_of_its_parts_and_a_mixed_gang_that_of_its_slowest(
    more: dict[str, Any], gang: int, rate: float
) -> None:
    """Work credited is work done: beside a job that cannot be stopped, it ends after its steps over its true speed."""
    slow = Pool(PoolId("k80"), Shape("k80", "k80", 2, 8.0, 2**33))
    speeds = {SpeedKey(KIND, "a100"): SPEED, SpeedKey(KIND, "k80"): 1.0, SpeedKey(KIND, "k80", 3): 2.0}
    truth = GroundTruth(speeds, mixing_loss=0.2, averaging_loss=0.1)
    there = JobRequest(JobId(1), KIND, demands=(Demand("k80", 2),), steps=5000.0, preemptible=False)
    spread = JobRequest(JobId(2), KIND, demands=(Demand("a100", gang), Demand("k80", gang)), steps=900.0, **more)
    jobs = [SimulatedJob(0.0, there, 5000.0), SimulatedJob(1.0, spread, 900.0)]
    pools = (PoolModel(POOL, machines=2 if gang > 2 else 1), PoolModel(slow, machines=2))
    ended_at: dict[JobId, float] = {}

    def hear(event: Event, commands: list[Command]) -> None:
        ended_at.update((each.job_id, event.at) for each in commands if isinstance(each, JobTransitioned))

    busy = JobRequest(JobId(3), KIND, demands=(Demand("a100", 2),), steps=1e5, preemptible=False)
    jobs += [SimulatedJob(0.0, busy, 1e5)] if gang > 2 else []
    simulate(sorted(jobs, key=lambda job: job.at), Scenario(pools, truth, PolicySpec("hadar"), ROUNDS), recorder=hear)
    assert ended_at[JobId(2)] == pytest.approx(1.0 + 900.0 / rate)
