"""Small random clusters, workloads and faults, each a function of its seed."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random

from optimizer.policy import PolicySpec
from scheduler.core.rules import Backfill, RoundRules
from scheduler.world.attempts import AttemptCosts, PlannedFailure, SimulatedJob, WorldParameters
from scheduler.world.engine import RunLimits, SolveClock, SolveTime
from scheduler.world.machines import PoolModel
from simulator.faults import FaultModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import ANY_ACCELERATOR, Demand, JobId, JobRequest, Kind, RetryRule
from walras.machines.topology import Topology
from walras.spec.roles import RoleSpec

KINDS = (Kind("cnn"), Kind("rnn"), Kind("script"))
POLICIES = (
    PolicySpec("fifo"),
    PolicySpec("las", {"quantum_s": 60.0}),
    PolicySpec("srtf"),
    PolicySpec("srsf", {"strict": True}),
    PolicySpec("edf"),
    PolicySpec("priority"),
    PolicySpec("tiresias", {"thresholds_s": (120.0,), "promote": 2.0}),
    PolicySpec("isolated"),
    PolicySpec("max_min_fairness"),
)
#: Faults stop here; whatever is unfinished then must finish.
FAULTS_UNTIL_AT = 1200.0


def scenario_of(seed: int) -> Scenario:
    """A cluster of one to three pools, its faults and a policy."""
    random = Random(f"{seed}/scenario")
    accelerators = ["a100", "v100", "k80"][: random.randint(1, 3)]
    pools = tuple(
        PoolModel(
            Pool(PoolId(f"{name}/owned/default"), Shape(name, name, random.choice((1, 2, 4)), 8.0, 2**33)),
            machines=random.randint(1, 3),
        )
        for name in accelerators
    )
    speeds = {SpeedKey(kind, name): random.choice((0.5, 1.0, 2.0, 4.0)) for kind in KINDS for name in accelerators}
    costs = {
        KINDS[0]: AttemptCosts(random.choice((0.0, 2.0)), random.choice((0.0, 1.0)), random.choice((0.0, 30.0))),
        KINDS[1]: AttemptCosts(random.choice((1.0, 10.0)), 3.0, 20.0),
        KINDS[2]: AttemptCosts(1.0, None),
    }
    policy = random.choice(POLICIES)
    return Scenario(
        pools,
        GroundTruth(speeds, costs),
        policy,
        RoundRules(
            round_s=random.choice((20.0, 60.0)),
            resolve_min_s=random.choice((60.0, 300.0)),
            backfill=random.choice((Backfill.EASY, Backfill.EASY, Backfill.FREE, Backfill.NONE)),
            restart_default_s=5.0,
            min_runtime_s=20.0,
            profiling_s=15.0,
            prepare_timeout_s=20.0,
            backoff_s=1.0,
        ),
        WorldParameters(
            report_s=random.choice((inf, 10.0)), speed_noise=random.choice((0.0, 0.05)), report_noise=0.02,
            prepare_s=random.choice((0.0, 0.5)), refused=random.choice((0.0, 0.05)),
        ),
        FaultModel(
            death_every_s=random.choice((inf, 400.0, 1500.0)), cut_off_every_s=random.choice((inf, 300.0)),
            cut_off_s=20.0, notice_silence_s=5.0, lease_s=40.0, repair_s=60.0, uncordon_s=30.0,
            until_at=FAULTS_UNTIL_AT,
        ),
        solve_time=random.choice((SolveTime(), SolveTime(SolveClock.FIXED, 3.0))),
        limits=RunLimits(until_at=1e6, max_events=100_000),
        seed=seed,
        oracle=random.random() < 0.7,
    )  # fmt: skip


def in_racks(scenario: Scenario) -> Scenario:
    """Two more machines in every pool, in racks of two whose links are slower than their own; some are in none."""
    pools = racked([replace(model, machines=model.machines + 2) for model in scenario.pools], scenario.seed)
    truth = replace(scenario.truth, gradient_bytes={KINDS[0]: 1e9, KINDS[1]: 2e8})
    # Of a gang on many machines some start would be refused each time, until it is held.
    return replace(scenario, pools=pools, truth=truth, world=replace(scenario.world, refused=0.0))


def racked(models: Sequence[PoolModel], seed: int) -> tuple[PoolModel, ...]:
    """These pools, their machines in racks of two whose links are slower than their own; some are in none."""
    random = Random(f"{seed}/racks")
    shapes = [model.pool.shape.name for model in models for _ in range(model.machines)]
    names = [f"{shape}-{number}" for number, shape in enumerate(shapes, 1) if number % 3 or random.random() < 0.5]
    racks = tuple((f"r{first}", ",".join(names[first : first + 2])) for first in range(0, len(names), 2))
    topology = Topology((("machine", 8e9), ("rack", random.choice((4e9, 1e9)))), racks)
    return tuple(replace(model, pool=replace(model.pool, topology=topology)) for model in models)


def drawn_roles(chance: Random, pools: Sequence[PoolModel], most: int = 64) -> dict[str, RoleSpec]:
    """Two roles, or one, that owned pools hold with `most` accelerators; each process whole on a machine of its own,
    the second role elastic or not.
    """
    roles = dict[str, RoleSpec]()
    left = {model.pool.shape.accelerator: model.machines for model in pools}
    for name in ("trainer", "rollout"):
        model = chance.choice([each for each in pools if left[each.pool.shape.accelerator]])
        shape = model.pool.shape
        room = most - (name == "trainer")  # one is the other role's
        count = chance.randint(1, min(left[shape.accelerator], room))
        each = chance.randint(1, min(shape.accelerators, room // count))
        left[shape.accelerator] -= count
        most -= count * each
        elastic = count if name == "rollout" and chance.random() < 0.5 else None
        roles[name] = RoleSpec(
            run="x", accelerators=f"{shape.accelerator}:{each}", count=1 if elastic else count, max_count=elastic
        )
        if not any(left.values()) or not most:
            break
    return roles


def jobs_of(seed: int, scenario: Scenario) -> list[SimulatedJob]:
    """Three to ten jobs that fit the cluster, some of which fail, are cancelled, or wait for another."""
    random = Random(f"{seed}/jobs")
    at = 0.0
    jobs: list[SimulatedJob] = []
    for number in range(1, random.randint(3, 10) + 1):
        at += random.choice((0.0, random.expovariate(1 / 20.0)))
        jobs.append(_job(random, number, at, scenario))
    return jobs


def _sizes(seed: str, demand: Demand, most: int) -> tuple[int, ...]:
    """A third of the jobs are elastic: from one accelerator, or two, to what they asked for or more."""
    chance = Random(seed)  # a stream of its own: what else is drawn stays as it was
    if chance.random() > 1 / 3:
        return ()
    sizes = {size for size in (1, 2, 3, 4, 6, 8) if size <= max(most, demand.count)} | {demand.count}
    return tuple(size for size in sorted(sizes) if size >= chance.choice((1, 1, 2)) or size == demand.count)


def _job(random: Random, number: int, at: float, scenario: Scenario) -> SimulatedJob:
    kind = random.choice(KINDS)
    model = random.choice(scenario.pools)
    room = model.machines * model.pool.shape.accelerators
    most = max(other.machines * other.pool.shape.accelerators for other in scenario.pools)
    if random.random() < 0.5:
        demand = Demand(ANY_ACCELERATOR, min(most, random.choice((1, 1, 2, 4))))
    else:
        demand = Demand(model.pool.shape.accelerator, min(room, random.choice((1, 1, 2, room))))
    steps = random.uniform(10.0, 400.0)
    request = JobRequest(
        JobId(number),
        kind,
        demands=(demand,),
        project=random.choice(("one", "two")),
        priority=random.choice((20, 50, 50, 50, 80)),
        weight=random.choice((1.0, 1.0, 3.0)),
        steps=random.choice((steps, None)),
        # A job that cannot checkpoint would start afresh with every preemption.
        preemptible=kind != KINDS[2] and random.random() < 0.8,
        retry=RetryRule(random.choice((0, 2))),
        depends_on=(JobId(random.randrange(1, number)),) if number > 1 and random.random() < 0.15 else (),
        grace_s=random.choice((1.0, 30.0)),
        held=False,
    )
    job = SimulatedJob(at, replace(request, sizes=_sizes(f"{scenario.seed}/{number}/sizes", demand, most)), steps)
    if random.random() < 0.15:
        job = replace(job, failures=(PlannedFailure(steps / 2, 3, random.choice((1, None))),))
    if random.random() < 0.1:
        job = replace(job, cancel_at=at + random.uniform(0.0, 200.0))
    return job
