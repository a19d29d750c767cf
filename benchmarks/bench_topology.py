"""What mean completion times are where machines are in racks, once the scheduler knows the racks and once it does not.

    python -m benchmarks topology [--row racks light alike orders]

A policy runs twice in the same world: four racks of four machines with four accelerators; machines have 100 Gbit/s,
racks 10. Gangs of 2 to 16 at Poisson arrivals exchange gradients for 5 to 36 % of a step in one rack. *light*: kinds
that do for 5 %; *alike*: racks have 100 Gbit/s too; *orders*: under policies that do not plan.
"""

from dataclasses import dataclass, field, replace
from random import Random

from benchmarks.tables import Measured
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.reports.repeated_runs import estimate_mean
from simulator.shipped_configs import load_named_policy
from simulator.simulation import Scenario, Simulation
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.machines.topology import Topology

_SEEDS, _JOBS, _START_S, _MEAN_S = range(8), 120, 60.0, 3600.0
#: Seconds of a step in one rack, and GB that it exchanges, by kind.
_KINDS = {"image": (0.25, 0.1), "detection": (0.2, 0.55), "bert": (0.5, 1.3), "gpt": (2.0, 6.0)}
_GANGS, _GBIT, _POOL = (2, 2, 4, 8, 8, 16), 1e9 / 8.0, PoolId("gpu")


@dataclass(frozen=True, slots=True)
class Ground:
    """Where the policies run, and the most that they may take of the time of those that do not know the racks."""

    at_most: float
    rack_gbit: float = 10.0
    policies: tuple[str, ...] = ("walras",)
    #: Accelerator-hours that arrive in an hour, of those there are.
    loads: tuple[float, ...] = (0.5, 0.8)
    kinds: tuple[str, ...] = field(default=tuple(_KINDS))


_GROUNDS = {
    "racks": Ground(0.92),
    "light": Ground(1.01, kinds=("image",)),
    "alike": Ground(1.01, rack_gbit=100.0),
    "orders": Ground(0.92, policies=("fifo", "las", "max_min_fairness", "srtf"), loads=(0.8,)),
}
ROWS = tuple(_GROUNDS)


def measure(scale: float, row: str) -> list[Measured]:
    """A table for each policy and load."""
    ground, seeds = _GROUNDS[row], _SEEDS if scale >= 1 else range(2)
    jobs = max(20, round(_JOBS * scale))
    found = []
    for policy, load in ((policy, load) for policy in ground.policies for load in ground.loads):
        ratios = [
            mean_jct_s(ground, policy, load, jobs, seed) / mean_jct_s(ground, policy, load, jobs, seed, told=False)
            for seed in seeds
        ]
        measured = Measured(f"{row}, {policy}, load {load:g}", f"{jobs} jobs, {len(seeds)} seeds, 95 % interval")
        mean = estimate_mean(ratios)
        measured.add("JCT against not knowing the racks: mean", mean.mean, "x", at_most=ground.at_most)
        measured.add("JCT against not knowing the racks: 95 %, +-", mean.high - mean.mean, "x")
        measured.add("JCT against not knowing the racks: worst seed", max(ratios), "x", at_most=1.01)
        found.append(measured)
    return found


def mean_jct_s(ground: Ground, policy_name: str, load: float, jobs: int, seed: int, *, told: bool = True) -> float:
    """Returns the mean completion time of one run; `told`: the scheduler knows the racks."""
    racks = tuple((f"rack-{first}", f"gpu-[{first}-{first + 3}]") for first in (1, 5, 9, 13))
    topology = Topology((("machine", 100 * _GBIT), ("rack", ground.rack_gbit * _GBIT)), racks)
    pool = Pool(_POOL, Shape("gpu", "a100", 4, 64.0, 512 << 30), topology=topology)
    truth = GroundTruth(
        {SpeedKey(Kind(kind), "a100"): 1.0 / step_s for kind, (step_s, _) in _KINDS.items()},
        default_costs=AttemptCosts(start_s=_START_S),
        gradient_bytes={Kind(kind): 1e9 * exchanged for kind, (_, exchanged) in _KINDS.items()},
    )
    policy, rules = load_named_policy(policy_name)
    simulation = Simulation(Scenario((PoolModel(pool, machines=16),), truth, policy, rules, seed=seed))
    if not told:  # the world is made, the scheduler is not yet told of it
        simulation.machines.pools = {_POOL: PoolModel(replace(pool, topology=None), machines=16)}
    result = simulation.run(_jobs(ground, load, jobs, Random(f"{seed}/racks")))
    assert not result.violations, result.violations
    assert not result.unfinished, f"{len(result.unfinished)} jobs did not end"
    return sum(job.jct_s for job in result.jobs) / len(result.jobs)


def _jobs(ground: Ground, load: float, many: int, random: Random) -> list[SimulatedJob]:
    found, at = list[SimulatedJob](), 0.0
    for number in range(1, many + 1):
        at += random.expovariate(load * 64 * len(_GANGS) / sum(_GANGS) / _MEAN_S)
        kind, gang = random.choice(ground.kinds), random.choice(_GANGS)
        steps = 100.0 + min(8.0, random.expovariate(1.0)) * _MEAN_S / _KINDS[kind][0]
        request = JobRequest(JobId(number), kind=Kind(kind), demands=(Demand("a100", gang),), steps=steps)
        found.append(SimulatedJob(at, request, steps))
    return found
