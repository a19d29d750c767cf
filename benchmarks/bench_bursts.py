"""Two uses of what others leave: bursts of short jobs on rented spot machines, and elastic jobs on idle accelerators.

    python -m benchmarks bursts

Nothing here is a policy of its own: both are the default policy, on a made-up cluster of 32 accelerators, of jobs drawn
anew from each seed. CloudCoaster and BFTrainer do one thing each.

`bursts`: long jobs fill the cluster for a day, worth nothing by the hour, and are not to be interrupted; short ones
come all the time and 24 at once every three hours in the mean, each worth 10 USD an hour. The cluster alone, first come
first served, and as it is scheduled by default; eight machines more that only short jobs may have, paid on demand all
day; and spot machines that are rented for as long as they pay, and that the market takes back after four hours in the
mean. `savable`: the same jobs where long ones save their work when they are asked to leave.

`harvest`: jobs that leave a third of the cluster idle, alone, and beside four elastic jobs of low priority that never
end and are as fast as they have accelerators.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import isnan
from random import Random
from statistics import fmean

import numpy as np

from benchmarks.tables import Measured
from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.metrics import JobMetrics
from simulator.simulation import Scenario, SimulationResult, simulate
from walras.cluster import Market, Pool, PoolId, Shape
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import Demand, JobId, JobRequest, Kind

ROWS = ("bursts", "savable", "harvest")
_SEEDS, _FIRST_SEED = 4, 7100
_GANGS, _MOST = (1, 1, 1, 2, 2, 4), 16
_COSTS = AttemptCosts(start_s=20.0, checkpoint_s=5.0, checkpoint_every_s=600.0, warm_up_s=10.0, exit_s=1.0)
_OWNED = Pool(PoolId("owned"), Shape("four", "v100", 4, 32.0, 2**37))
_MACHINES = 8
_SINGLE = Shape("one", "v100", 1, 8.0, 2**35)
#: Of the type that only short jobs may be on; as fast as the others.
_KEPT = Pool(PoolId("kept"), Shape("kept", "v100-kept", 1, 8.0, 2**35), usd_per_h=3.0)
_KEPT_MACHINES = 8
_SPOT = Pool(PoolId("spot"), _SINGLE, Market.SPOT, "z", 0.9, 16, notice_s=60.0, boot_s=60.0)
_SPOT_LIFE_S = 4 * SECONDS_PER_HOUR
_SHORT, _LONG, _ELASTIC = Kind("short"), Kind("long"), Kind("elastic")
_SHORT_WORTH = 10.0
_LONG_H, _LONG_PER_H, _LONG_WAITING = (2.0, 10.0), 3.0, 12
_SHORT_S, _SHORT_PER_H, _BURST, _BURST_EVERY_H = (180.0, 720.0), 10.0, 24, 3.0
_BURSTS_DAY_H = 24.0
_HARVEST_H, _RIGID_H, _RIGID_PER_H = 48.0, (0.25, 4.0), 5.5
_HARVESTERS, _SIZES, _LOW, _ENDLESS = 4, (1, 2, 4, 8, 16), 10, 1e9


def _speeds() -> dict[SpeedKey, float]:
    """A step is a second on one accelerator, on every type."""
    return {
        SpeedKey(kind, accelerator, count): float(count)
        for kind in (_SHORT, _LONG, _ELASTIC)
        for accelerator in ("v100", "v100-kept")
        for count in range(1, _MOST + 1)
    }


def _simulated(
    jobs: Sequence[SimulatedJob], pools: tuple[PoolModel, ...], seed: int, policy: str, until_at: float
) -> SimulationResult:
    truth = GroundTruth(_speeds(), default_costs=_COSTS)
    limits = RunLimits(until_at=until_at)
    rules = RoundRules(resolve_min_s=1.0, restart_default_s=30.0, rent_keep_s=60.0)
    found = simulate(jobs, Scenario(pools, truth, PolicySpec(policy), rules, limits=limits, seed=seed))
    assert not found.violations, found.violations
    return found


def _owned() -> PoolModel:
    return PoolModel(_OWNED, _MACHINES)


def _arrivals(random: Random, per_h: float, until_h: float) -> list[float]:
    """Instants, Poisson."""
    found, at = [], random.expovariate(per_h)
    while at < until_h:
        found.append(at * SECONDS_PER_HOUR)
        at += random.expovariate(per_h)
    return found


def _burst_jobs(seed: int, *, savable: bool) -> list[SimulatedJob]:
    """A day of long and short jobs, by arrival."""
    random = Random(f"bursts {seed}")
    long = [0.0] * _LONG_WAITING + _arrivals(random, _LONG_PER_H, _BURSTS_DAY_H)
    bursts = [at for at in _arrivals(random, 1 / _BURST_EVERY_H, _BURSTS_DAY_H) for _ in range(_BURST)]
    short = sorted(_arrivals(random, _SHORT_PER_H, _BURSTS_DAY_H) + bursts)
    drawn = [(at, random.choice(_GANGS), random.uniform(*_LONG_H) * SECONDS_PER_HOUR, False) for at in long]
    drawn += [(at, 1, random.uniform(*_SHORT_S), True) for at in short]
    jobs = []
    for number, (at, gang, length_s, is_short) in enumerate(sorted(drawn), 1):
        demands = (Demand("v100", gang), Demand("v100-kept", gang)) if is_short else (Demand("v100", gang),)
        request = JobRequest(
            JobId(number), _SHORT if is_short else _LONG, demands=demands, steps=length_s * gang,
            value_usd_per_h=_SHORT_WORTH if is_short else None, preemptible=is_short or savable,
        )  # fmt: skip
        jobs.append(SimulatedJob(at, request, length_s * gang))
    return jobs


@dataclass(frozen=True, slots=True)
class _Bursts:
    """Delays beyond what a job takes alone, seconds."""

    short_mean_s: float
    short_p99_s: float
    long_jct_h: float
    usd: float
    unfinished: int


def _bursts(seed: int, way: str, savable: bool) -> _Bursts:
    """One way of a seed."""
    jobs = _burst_jobs(seed, savable=savable)
    pools: dict[str, tuple[PoolModel, ...]] = {
        "machines kept for short jobs": (_owned(), PoolModel(_KEPT, _KEPT_MACHINES)),
        "spot": (_owned(), PoolModel(_SPOT, terms=RentalTerms(60.0, 60.0), mean_life_s=_SPOT_LIFE_S)),
    }
    policy = "fifo" if way == "first come first served" else "walras"
    found = _simulated(jobs, pools.get(way, (_owned(),)), seed, policy, 10 * _BURSTS_DAY_H * SECONDS_PER_HOUR)
    alone_s = {job.request.job_id: job.steps / job.request.demands[0].count + _COSTS.restart_s for job in jobs}
    delays = np.array([job.jct_s - alone_s[job.job_id] for job in found.jobs if job.kind == _SHORT])
    kept = _KEPT_MACHINES * _KEPT.usd_per_h * _BURSTS_DAY_H if way.startswith("machines kept") else 0.0
    return _Bursts(
        float(delays.mean()),
        float(np.percentile(delays, 99)),
        fmean(job.jct_s for job in found.jobs if job.kind == _LONG) / SECONDS_PER_HOUR,
        kept + found.bills.get(_SPOT.pool_id, 0.0),
        len(found.unfinished),
    )


_WAYS = ("first come first served", "the cluster alone", "machines kept for short jobs", "spot")


def _measure_bursts(seeds: Sequence[int], *, savable: bool) -> Measured:
    cases = [(seed, way) for way in _WAYS for seed in seeds]
    with ProcessPoolExecutor() as pool:
        found_all = pool.map(_bursts, *zip(*cases, strict=True), [savable] * len(cases))
        ran = dict(zip(cases, found_all, strict=True))
    long = "long ones that may be interrupted" if savable else "long ones that keep their places"
    measured = Measured(f"bursts of short jobs among {long}", f"{len(seeds)} seeds")
    for way in _WAYS:
        found = [ran[seed, way] for seed in seeds]
        measured.add(f"{way}: delay of short jobs, mean", fmean(run.short_mean_s for run in found), "s")
        measured.add("   worst seed", max(run.short_mean_s for run in found), "s")
        measured.add("   99th percentile, mean of seeds", fmean(run.short_p99_s for run in found), "s")
        measured.add("   worst seed", max(run.short_p99_s for run in found), "s")
        measured.add("   long jobs, mean completion", fmean(run.long_jct_h for run in found), "h")
        measured.add("   beyond the cluster", fmean(run.usd for run in found), "USD")
        measured.add("   worst seed", max(run.usd for run in found), "USD")
        measured.add("   unfinished", sum(run.unfinished for run in found), "jobs", at_most=0)
    for other, is_goal in (("the cluster alone", True), ("machines kept for short jobs", False)):
        parts = [ran[seed, "spot"].short_mean_s / ran[seed, other].short_mean_s for seed in seeds]
        measured.add(f"delay with spot, of that with {other}", fmean(parts), "x", at_most=1.0 if is_goal else None)
        measured.add("   worst seed", max(parts), "x", at_most=1.0 if is_goal else None)
    return measured


def _rigid_jobs(seed: int) -> list[SimulatedJob]:
    """Those that have the cluster."""
    random, jobs = Random(f"harvest {seed}"), []
    for number, at in enumerate(_arrivals(random, _RIGID_PER_H, _HARVEST_H), _HARVESTERS + 1):
        gang, length_s = random.choice(_GANGS), random.uniform(*_RIGID_H) * SECONDS_PER_HOUR
        request = JobRequest(JobId(number), _LONG, demands=(Demand("v100", gang),), steps=length_s * gang)
        jobs.append(SimulatedJob(at, request, length_s * gang))
    return jobs


def _elastic_jobs() -> list[SimulatedJob]:
    return [
        SimulatedJob(
            0.0,
            JobRequest(
                JobId(number), _ELASTIC, demands=(Demand("v100", _SIZES[0]),), sizes=_SIZES, steps=_ENDLESS,
                priority=_LOW,
            ),
            _ENDLESS,
            cancel_at=_HARVEST_H * SECONDS_PER_HOUR,
        )
        for number in range(1, _HARVESTERS + 1)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Harvest:
    """Accelerator-hours; and completion times with the elastic jobs against those without."""

    idle_h: float
    held_h: float
    useful_h: float
    slowdown: float
    slowest: float
    attempts: int
    unfinished: int


def _harvest(seed: int) -> _Harvest:
    rigid, until_at = _rigid_jobs(seed), _HARVEST_H * SECONDS_PER_HOUR
    first = _simulated(rigid, (_owned(),), seed, "walras", until_at)
    alone = _simulated(rigid, (_owned(),), seed, "walras", 2 * until_at)
    both = _simulated([*_elastic_jobs(), *rigid], (_owned(),), seed, "walras", 2 * until_at)
    elastic = [job for job in both.jobs if job.kind == _ELASTIC]
    before = {job.job_id: job.jct_s for job in _done(alone)}
    ratios = [job.jct_s / before[job.job_id] for job in _done(both) if job.job_id in before]
    rigid_steps = sum(job.steps for job in rigid)
    idle_s = sum(meter.there_s - meter.held_s for meter in first.pools)
    return _Harvest(
        idle_s / SECONDS_PER_HOUR,
        sum(sum(job.accelerator_s.values()) for job in elastic) / SECONDS_PER_HOUR,
        (both.worked_steps - both.lost_steps - rigid_steps) / SECONDS_PER_HOUR,
        fmean(job.jct_s for job in _done(both)) / fmean(before.values()),
        max(ratios),
        sum(job.attempts for job in elastic),
        len(rigid) - len(_done(both)),
    )


def _done(found: SimulationResult) -> list[JobMetrics]:
    """Jobs of the cluster that have ended."""
    return [job for job in found.jobs if job.kind == _LONG and not isnan(job.ended_at)]


def _measure_harvest(seeds: Sequence[int]) -> Measured:
    with ProcessPoolExecutor() as pool:
        ran = list(pool.map(_harvest, seeds))
    capacity_h = _MACHINES * _OWNED.shape.accelerators * _HARVEST_H
    measured = Measured("idle accelerators to elastic jobs of low priority", f"{len(seeds)} seeds")
    measured.add(
        "idle without them, of all accelerator-hours", 100 * fmean(run.idle_h / capacity_h for run in ran), "%"
    )
    for what, parts in (
        ("of the idle hours held by elastic jobs", [run.held_h / run.idle_h for run in ran]),
        ("of the idle hours turned into saved steps", [run.useful_h / run.idle_h for run in ran]),
    ):
        measured.add(f"{what}, mean", 100 * fmean(parts), "%")
        measured.add("   worst seed", 100 * min(parts), "%")
    measured.add("completion time of the others, against without", fmean(run.slowdown for run in ran), "x")
    measured.add("   worst seed", max(run.slowdown for run in ran), "x")
    measured.add("   the job that was slowed most", max(run.slowest for run in ran), "x")
    measured.add("attempts of an elastic job", fmean(run.attempts for run in ran) / _HARVESTERS, "")
    measured.add("others that have not ended", sum(run.unfinished for run in ran), "jobs", at_most=0)
    return measured


def measure(scale: float, row: str) -> list[Measured]:
    """One table; a scale below 1 takes fewer seeds, two at least."""
    seeds = [_FIRST_SEED + number for number in range(max(2, round(_SEEDS * scale)))]
    return [_measure_harvest(seeds) if row == "harvest" else _measure_bursts(seeds, savable=row == "savable")]
