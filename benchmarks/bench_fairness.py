"""A flood of one user against a few jobs of another: how long the few wait, and what their fairness costs all.

    python -m benchmarks fairness

Ada submits 300 short jobs at once, Bob six of the same kind soon after, on a mixed fleet of eight accelerators; cases
are drawn from seeds. Each runs under `walras`, under `walras` that knows no users (`fairness` 0), under max-min
fairness, and in order of submission. Targets: the few wait at most 1.5 times what they wait under max-min, and all jobs
together take at most 3 % longer than without fairness, in the mean over the cases.
"""

from random import Random
from statistics import fmean

from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

FLOOD, FEW = 300, 6
_RESTART_S = 20.0
_MOST_WAIT, _MOST_JCT = 1.5, 3.0
_SEEDS = range(8)
_KINDS = {Kind("cnn"): (4.0, 1.0), Kind("rnn"): (2.0, 1.5)}
POLICIES = {
    "walras": PolicySpec("walras"),
    "walras, no users": PolicySpec("walras", {"fairness": 0.0}),
    "max-min": PolicySpec("max_min_fairness"),
    "fifo": PolicySpec("fifo"),
}


def flood_of(seed: int, flood: int = FLOOD, few: int = FEW) -> list[SimulatedJob]:
    """Ada's jobs at once, Bob's some minutes later; each takes 3 to 20 minutes on its best accelerator."""
    random = Random(f"flood/{seed}")
    came_at = random.uniform(200.0, 2000.0)
    made = []
    for number in range(1, flood + few + 1):
        late = number > flood
        kind = random.choice(tuple(_KINDS))
        steps = float(round(random.uniform(180.0, 1200.0) * _KINDS[kind][0]))
        request = JobRequest(
            JobId(number), kind, demands=(Demand("*", 1),), steps=steps, user="bob" if late else "ada", project="lab"
        )
        made.append(SimulatedJob(came_at if late else 0.0, request, steps))
    return made


def flooded_fleet(policy: PolicySpec) -> Scenario:
    """Four fast accelerators and four slow ones, each a machine of its own."""
    pools = tuple(PoolModel(Pool(PoolId(name), Shape(name, name, 1, 8.0, 2**33)), 4) for name in ("fast", "slow"))
    speeds = {
        SpeedKey(kind, name): told[at] for kind, told in _KINDS.items() for at, name in enumerate(("fast", "slow"))
    }
    rules = RoundRules(round_s=360.0, resolve_min_s=1.0, restart_default_s=_RESTART_S)
    return Scenario(pools, GroundTruth(speeds, {}, AttemptCosts(start_s=_RESTART_S)), policy, rules)


def waits_and_times(seed: int, policy: PolicySpec, flood: int = FLOOD) -> tuple[float, float]:
    """The mean seconds until one of Bob's jobs starts, and the mean seconds to completion of all jobs."""
    jobs = flood_of(seed, flood)
    result = simulate(jobs, flooded_fleet(policy))
    assert not result.unfinished, result.unfinished
    bobs = {job.request.job_id for job in jobs if job.request.user == "bob"}
    waits = [each.queueing_s for each in result.jobs if each.job_id in bobs]
    times = [each.jct_s for each in result.jobs]
    return fmean(waits), fmean(times)


def measure(scale: float) -> list[Measured]:
    """One table over all seeds."""
    flood = max(30, round(FLOOD * scale))
    told = {name: [waits_and_times(seed, policy, flood) for seed in _SEEDS] for name, policy in POLICIES.items()}
    measured = Measured("a flood against a few", f"{flood} jobs of ada, {FEW} of bob, {len(_SEEDS)} seeds")
    for name, runs in told.items():
        measured.add(f"{name}: bob waits", fmean(wait for wait, _ in runs), "s")
        measured.add(f"{name}: bob waits, worst seed", max(wait for wait, _ in runs), "s")
        measured.add(f"{name}: JCT of all", fmean(time for _, time in runs), "s")
    fair, plain, even = told["walras"], told["walras, no users"], told["max-min"]
    waited = fmean(wait for wait, _ in fair) / fmean(wait for wait, _ in even)
    measured.add("bob's wait against max-min", waited, "x", at_most=_MOST_WAIT if scale == 1 else None)
    costs = [100.0 * (with_it[1] / without[1] - 1.0) for with_it, without in zip(fair, plain, strict=True)]
    measured.add("JCT against no fairness", fmean(costs), "%", at_most=_MOST_JCT)
    measured.add("JCT against no fairness, worst seed", max(costs), "%")
    return [measured]
