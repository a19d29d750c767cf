"""Whatever the jobs, the policy and the world are like: nothing is made up, nothing is lost, and everything ends.

The books are kept a second time, from what scheduler and world tell each other alone.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from optimizer.policy import PolicySpec
from scheduler.core.commands import AttemptTransitioned, Command, Start
from scheduler.core.events import AttemptEnded, Event, NodeJoined, NodeLost, PoolDeclared
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptSimulator, JobProgress, SimAttempt, SimulatedJob
from scheduler.world.engine import RunOutcome
from scheduler.world.machines import PoolModel
from simulator.faults import SlowPeriods
from simulator.goodput import GoodputLaw, stated_application
from simulator.ground_truth import GroundTruth, RandomFailures, SpeedKey
from simulator.reports.timeline import Timeline
from simulator.simulation import Scenario, SchedulerWiring, Simulation, SimulationResult, simulate
from simulator.worlds.gavel.gavel_scenario import gavel_scenario
from tests.simulation.random_scenarios import KINDS, jobs_of, scenario_of
from walras.cluster import Market, NodeId, Placement, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.spec.file_model import check_model
from walras.spec.workload_file import GoodputLawEntry
from walras.states import AttemptState, JobState

POLICIES = ("fifo", "las", "max_min_fairness", "pollux", "sia", "walras")
SEEDS = st.integers(0, 10**6)


@dataclass
class Books:
    """Machines there, accelerators in use and money spent; steps of every job by its own counter."""

    truth: GroundTruth
    now: float = 0.0
    pools: dict[PoolId, Pool] = field(default_factory=dict)
    machines: dict[NodeId, PoolId] = field(default_factory=dict)
    held: dict[JobId, Placement] = field(default_factory=dict)
    in_use_s: dict[PoolId, float] = field(default_factory=lambda: defaultdict(float))
    there_s: dict[PoolId, float] = field(default_factory=lambda: defaultdict(float))
    usd: dict[PoolId, float] = field(default_factory=lambda: defaultdict(float))
    begun: dict[JobId, tuple[float, float]] = field(default_factory=dict)
    counter: dict[JobId, float] = field(default_factory=dict)
    #: Of jobs that are in one pool: the speed of the others is no pool's.
    kinds: dict[JobId, Kind] = field(default_factory=dict)
    too_fast: list[str] = field(default_factory=list)

    def record(self, event: Event, commands: list[Command]) -> None:
        """An event that the core has handled, and what it commanded."""
        self.settle(event.at)
        match event:
            case PoolDeclared():
                self.pools[event.pool.pool_id] = event.pool
            case NodeJoined():
                self.machines[event.node_id] = event.pool_id
            case NodeLost():
                del self.machines[event.node_id]
            case AttemptEnded():
                self._ended(event)
        for command in commands:
            if isinstance(command, Start):
                # Not from its ranks' first word: that may come late, from a machine that was out of reach.
                self.begun[command.job_id] = (event.at, command.resume_steps)
            elif isinstance(command, AttemptTransitioned) and command.state is AttemptState.LEASED:
                assert command.placement is not None
                self.held[command.job_id] = command.placement
            elif isinstance(command, AttemptTransitioned) and command.state.is_final:
                self.held.pop(command.job_id, None)

    def _ended(self, event: AttemptEnded) -> None:
        begun_at, before = self.begun.pop(event.job_id, (event.at, event.steps or 0.0))
        placement = self.held.get(event.job_id)
        if event.steps is None or placement is None:
            return
        if kind := self.kinds.get(event.job_id):
            accelerator = self.pools[placement.pool_id].shape.accelerator
            parts = tuple(len(part.devices) for part in placement.parts)
            most = self.truth.highest_speed(kind, accelerator, parts) * (event.at - begun_at)
            if event.steps - before > most * (1 + 1e-9) + 1e-6:
                made = event.steps - before
                self.too_fast.append(f"job {event.job_id} made {made} steps where {most} are possible")
        self.counter[event.job_id] = event.steps

    def settle(self, at: float) -> None:
        passed_s, self.now = at - self.now, at
        for pool_id in self.machines.values():
            self.there_s[pool_id] += passed_s * self.pools[pool_id].shape.accelerators
            self.usd[pool_id] += self.pools[pool_id].usd_per_h * passed_s / 3600.0
        devices = {
            (part.pool_id or placement.pool_id, part.node_id, device)
            for placement in self.held.values()
            for part in placement.parts
            if part.node_id in self.machines
            for device in part.devices
        }
        for pool_id, _, _ in devices:
            self.in_use_s[pool_id] += passed_s


def checked(jobs: list[SimulatedJob], scenario: Scenario, *, packs: bool = False) -> SimulationResult:
    """The run, its books balanced; a timeline counts each job by itself, also where it packs two on an accelerator."""
    alone = (job.request for job in jobs if job.request.fork_max <= 1 and not job.request.mixed)
    books, timeline = Books(scenario.truth, kinds={each.job_id: each.kind for each in alone}), Timeline()

    def hear(event: Event, commands: list[Command]) -> None:
        books.record(event, commands)
        timeline.record(event, commands)
        for track in timeline.pools.values():
            assert 0 <= track.running.now <= track.held.now
            assert packs or track.held.now <= track.there.now

    result = simulate(jobs, scenario, recorder=hear)
    books.settle(result.ended_at)
    assert result.violations == []
    assert result.outcome is RunOutcome.COMPLETE
    assert {job.job_id for job in result.jobs} == {job.request.job_id for job in jobs}
    assert books.too_fast == []
    plans = {job.request.job_id: job for job in jobs}
    for job in result.jobs:
        if job.state is JobState.SUCCEEDED:
            assert books.counter[job.job_id] == pytest.approx(plans[job.job_id].steps, rel=1e-9)
    for meter in result.pools:
        pool_id = meter.pool.pool_id
        assert meter.held_s == pytest.approx(books.in_use_s[pool_id], rel=1e-9, abs=1e-6)
        assert books.in_use_s[pool_id] <= books.there_s[pool_id] * (1 + 1e-9)
        assert abs(meter.usd - books.usd[pool_id]) < 0.005
        assert result.bills[pool_id] >= meter.usd - 0.005
        assert timeline.pools[pool_id].held.now == 0.0
    assert sum(job.usd for job in result.jobs) <= sum(meter.usd for meter in result.pools) + 0.005
    return result


def priced(scenario: Scenario) -> tuple[PoolModel, ...]:
    """Its pools, each with a price of its own."""
    return tuple(
        replace(model, pool=replace(model.pool, usd_per_h=1.37 * row)) for row, model in enumerate(scenario.pools, 1)
    )


def law(random: Random, types: list[str]) -> GoodputLaw:
    """Of a job that may choose its batch; its noise changes on the way."""
    speed = random.choice((0.5, 1.0, 2.0))
    step_s = {n: {8: 0.2 * speed + 0.05 * (n > 1), 64: 0.5 * speed + 0.05 * (n > 1)} for n in range(1, 17)}
    given = {
        "batch": {"initial": 16, "max": 256},
        "noise_scale": {0: 20.0, 100: random.choice((10.0, 400.0))},
        "on": {name: {"step_s": step_s, "spread": 0.7} for name in types},
    }
    return GoodputLaw(stated_application("net", check_model(GoodputLawEntry, given, source="test")))


def any_scenario(seed: int) -> Scenario:
    """A failing cluster with a market beside it, an application under a law, slow attempts, crashes, cancellations."""
    random = Random(f"{seed}/books")
    scenario = scenario_of(seed)
    shape = Shape("rented", random.choice(("a100", "t4")), 2, 8.0, 2**33)
    pool = Pool(PoolId("rented/spot/a"), shape, Market.SPOT, usd_per_h=2.17, quota=random.choice((1, 3)), notice_s=20.0)
    rented = PoolModel(
        pool, terms=RentalTerms(boot_s=3.0, minimum_billing_s=random.choice((0.0, 600.0))),
        mean_life_s=random.choice((inf, 300.0)), boot_noise=0.3, reprice_every_s=120.0, price_noise=0.4,
    )  # fmt: skip
    owned = priced(scenario)
    types = [model.pool.shape.accelerator for model in (*owned, rented)]
    truth = scenario.truth
    speeds = {**truth.speeds, **{SpeedKey(kind, "t4"): 0.8 for kind in KINDS}}
    return replace(
        scenario,
        pools=(*owned, rented),
        truth=replace(truth, speeds=speeds, laws={KINDS[1]: law(random, types)}),
        policy=PolicySpec(random.choice(POLICIES)),
        rules=replace(scenario.rules, delay_usd_per_h=random.choice((0.0, 500.0, 500.0)), rent_keep_s=30.0),
        world=replace(scenario.world, speed_noise=0.0, report_s=10.0),
        faults=replace(scenario.faults, attempt_slow=SlowPeriods(200.0, 30.0, 0.3)),
        random_failures=RandomFailures(0.1, 100.0, 0.1, 3, 1),
    )  # fmt: skip


@given(seed=SEEDS)
@example(seed=4)  # rents, and some of it is taken back
@example(seed=58)
@settings(max_examples=25, deadline=None)
def test_the_books_of_any_run_balance(seed: int) -> None:
    """Rigid and elastic jobs, tables and laws, owned and rented machines at moving prices, all that fails."""
    checked(jobs_of(seed, scenario_of(seed)), any_scenario(seed))


@given(seed=SEEDS, policy=st.sampled_from(["fifo_packed", "gandiva", "max_min_fairness_packed"]))
@settings(max_examples=15, deadline=None)
def test_two_jobs_on_one_accelerator_are_not_two_accelerators(seed: int, policy: str) -> None:
    """Packed runs too: accelerator-seconds within what is there, and the jobs pay no more than the machines cost."""
    random = Random(seed)
    names, kinds = ("v100", "k80"), (Kind("one"), Kind("two"))
    speeds = {SpeedKey(kind, name, 1): random.uniform(0.5, 3.0) for kind in kinds for name in names}
    pairs = {(key, other): speed * random.uniform(0.3, 0.9) for key, speed in speeds.items() for other in kinds}
    pools = tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, 1, 1.0, 1), usd_per_h=3.3), machines=random.randint(1, 2))
        for name in names
    )
    demands = tuple(Demand(name, 1) for name in names)
    jobs = [
        SimulatedJob(at, JobRequest(JobId(number), random.choice(kinds), demands=demands, steps=steps), steps)
        for number in range(1, random.randint(2, 8))
        for at, steps in [(200.0 * number, float(random.randint(50, 2000)))]
    ]
    checked(jobs, gavel_scenario(pools, GroundTruth(speeds, pairs=pairs), policy), packs=True)


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


@pytest.mark.parametrize("policy", ["hadar", "walras"])
def test_forks_and_mixed_gangs_are_held_and_paid_for_by_pool(policy: str) -> None:
    """Jobs may be forked and gangs may sit in several pools, among faults; some do."""
    spread = 0
    for seed in range(40):
        drawn = scenario_of(seed)
        world = replace(drawn.world, speed_noise=0.0)
        scenario = replace(drawn, pools=priced(drawn), policy=PolicySpec(policy), world=world)
        result = checked(spreading_jobs_of(seed, scenario), scenario)
        spread += sum(len(job.accelerator_s) > 1 and job.attempts == 1 for job in result.jobs)
    assert spread


class Flatterer(AttemptSimulator):
    """Credits a hundredth more than was done."""

    def _settle(self, at: float, run: SimAttempt) -> None:
        before = run.job.steps
        super()._settle(at, run)
        run.job.steps += 0.01 * (run.job.steps - before)


@pytest.mark.parametrize(
    ("part", "told"), [("steps", "is credited"), ("held_s", "accelerator-seconds held"), ("usd", "USD counted")]
)
def test_what_is_made_up_is_found(part: str, told: str) -> None:
    """More steps than were made, more accelerator-seconds than were there, a sum that is not price times time."""
    scenario = scenario_of(0)
    wiring = SchedulerWiring(pace=Flatterer) if part == "steps" else scenario.wiring
    simulation = Simulation(replace(scenario, pools=priced(scenario), wiring=wiring))
    pool_id = scenario.pools[0].pool.pool_id

    def make_up(at: float, job: JobProgress, state: JobState) -> None:
        meter = simulation.metrics.pools[pool_id]
        setattr(meter, part, getattr(meter, part) + (1e9 if part == "held_s" else 0.02))

    if part != "steps":
        simulation.world.on_end.append(make_up)
    assert any(told in violation for violation in simulation.run(jobs_of(0, scenario)).violations)
