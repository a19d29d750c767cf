"""Regret: how far mean completion times are above the least that a scheduler with knowledge of the future could reach.

    python -m benchmarks regret [--row 0.8]

Sixty jobs of one accelerator on six fast and six slow ones, Poisson arrivals at .5, .8 and 1.0 of what the fleet bears;
eight seeds, jobs made anew for each. Two kinds, one four times as fast on the fast type, one one and a half times;
lengths lognormal. The default policy starts arrivals at its prices as they come; restarts take 20 s. The bound is that
of `walras money --report`, over the same jobs: it knows all arrivals, and moves and restarts are free in it, so part of
what is called regret here is what nobody could avoid. `hadar` is the same prices for whole schedules, `fifo` no prices.
"""

from random import Random
from statistics import fmean

import numpy as np

from benchmarks.tables import Measured
from optimizer.bounds.hindsight import HindsightBound, PastCapacity, PastJob, hindsight_bound
from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

ROWS = ("0.5", "0.8", "1.0")

_JOBS, _SEEDS, _OF_EACH = 60, 8, 6
_KINDS = {Kind("cnn"): {"fast": 4.0, "slow": 1.0}, Kind("rnn"): {"fast": 1.5, "slow": 1.0}}
_RESTART_S, _HOUR_S = 20.0, 3600.0
#: Percent above the bound for the default policy, mean of the seeds.
_MOST = 3.0
_POLICIES = ("walras", "hadar", "fifo")


def jobs_of(seed: int, load: float, count: int = _JOBS) -> list[SimulatedJob]:
    """Jobs in order of arrival; an hour long on the fast type in the median."""
    random, at, made = Random(f"regret/{seed}/{load:g}"), 0.0, []
    drawn = [(random.choice(tuple(_KINDS)), _HOUR_S * random.lognormvariate(0.0, 1.0)) for _ in range(count)]
    busy_s = _busy_s(drawn)
    for number, (kind, length_s) in enumerate(drawn, 1):
        at += random.expovariate(load * count / busy_s)
        steps = length_s * _KINDS[kind]["fast"]
        made.append(SimulatedJob(at, JobRequest(JobId(number), kind, demands=(Demand("*", 1),), steps=steps), steps))
    return made


def _busy_s(drawn: list[tuple[Kind, float]]) -> float:
    """How long the fluid fleet is busy with these kinds and lengths: those least faster on the fast type go slow."""
    fast_s, slow_s = sum(length_s for _, length_s in drawn), 0.0
    for kind, length_s in sorted(drawn, key=lambda each: _KINDS[each[0]]["fast"]):
        ratio = _KINDS[kind]["fast"] / _KINDS[kind]["slow"]
        part = min(1.0, max(0.0, (fast_s - slow_s) / (length_s * (1.0 + ratio))))
        fast_s, slow_s = fast_s - part * length_s, slow_s + part * length_s * ratio
    return max(fast_s, slow_s) / _OF_EACH


def regret_of(jobs: list[SimulatedJob], policy: str) -> HindsightBound:
    """What a policy reached for the jobs, and the bound over these."""
    pools = tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, 1, 8.0, 2**33)), _OF_EACH) for name in ("fast", "slow")
    )
    speeds = {SpeedKey(kind, name): speed for kind, told in _KINDS.items() for name, speed in told.items()}
    rules = RoundRules(round_s=360.0, resolve_min_s=1.0, restart_default_s=_RESTART_S)
    truth = GroundTruth(speeds, {}, AttemptCosts(start_s=_RESTART_S))
    result = simulate(jobs, Scenario(pools, truth, PolicySpec(policy), rules))
    assert not result.unfinished, result.unfinished
    told = {job.request.job_id: job for job in jobs}
    past = [
        PastJob(
            each.project, each.submitted_at, each.ended_at, 1, told[each.job_id].steps,
            dict(_KINDS[told[each.job_id].request.kind]), dict(each.accelerator_s),
        )
        for each in result.jobs
    ]  # fmt: skip
    return hindsight_bound(past, PastCapacity(("fast", "slow"), np.zeros(1), np.full((1, 2), float(_OF_EACH))))


def measure(scale: float, row: str) -> list[Measured]:
    """One load."""
    seeds = range(max(2, round(_SEEDS * scale)))
    measured = Measured(f"regret at load {row}", f"{_JOBS} jobs, {2 * _OF_EACH} accelerators, {len(seeds)} seeds")
    for policy in _POLICIES:
        found = [regret_of(jobs_of(seed, float(row)), policy) for seed in seeds]
        above = [100.0 * (each.achieved_s / each.bound_s - 1.0) for each in found]
        avoidable = [100.0 * (each.achieved_s - each.bound_s) / each.alone_s for each in found]
        target = _MOST if policy == "walras" else None
        measured.add(f"{policy}: mean completion time above the bound, mean", fmean(above), "%", at_most=target)
        measured.add(f"{policy}: above the bound, worst seed", max(above), "%")
        measured.add(f"{policy}: above the bound, of the time alone, mean", fmean(avoidable), "%")
    return [measured]
