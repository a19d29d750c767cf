"""Gangs over several pools: may they be as they are told, and is there none that would have been better?

At given prices the cheapest gang of a pace takes the cheapest accelerators that are fast enough; no other of that pace
needs to be looked at. A job whose known ways are as cheap, for every pace, gains nothing by any gang over any pools.
"""

from collections.abc import Iterator

import numpy as np

from optimizer.added import Mixtures
from optimizer.certificate import facts_of
from optimizer.checking.facts import Facts
from optimizer.checking.responses import cheapest
from optimizer.decision import Decision, Shares, Status
from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, Problem

#: Two honest computations agree to this part.
_SAME = 1e-6
#: Money counts besides: what they make of mixtures is taken as it is.
BY_MONEY = frozenset({"throughput_per_dollar", "cost_with_slos"})


def wrong_mixtures(problem: Problem, mixtures: Mixtures) -> Iterator[tuple[int, str]]:
    """(number, what is wrong) of gangs that the problem does not let anybody make."""
    mixes, speeds = problem.jobs.mixes, _speeds(problem)
    for number, (job, rate, use) in enumerate(zip(mixtures.job, mixtures.steps_per_s, mixtures.use, strict=True)):
        gang, used = float(problem.jobs.gang[job]), np.flatnonzero(use > 0)
        job_id = int(problem.jobs.job_id[job])
        slowest = min((speeds[job].get(int(pool), 0.0) for pool in used), default=0.0)
        if len(problem.jobs.fork_max) and problem.jobs.fork_max[job] > 1 and _is_fork(problem, job, use, speeds[job]):
            most = sum(use[pool] / gang * speeds[job][int(pool)] for pool in used)
            if not 0 < rate <= most * (1 + _SAME):
                yield number, f"its parts add up to {most:g} steps/s at most"
        elif not len(mixes) or not mixes[job]:
            yield number, f"job {job_id} does not mix"
        elif use.sum() != gang or np.any(use != np.floor(use)) or len(used) < 2:
            yield number, f"it is no gang of {gang:g} accelerators in several pools"
        elif slowest <= 0 or abs(rate - slowest) > _SAME * slowest:
            yield number, f"it runs at {slowest:g} steps/s, the speed of its slowest pool"


def _is_fork(problem: Problem, job: int, use: FloatArray, speed: dict[int, float]) -> bool:
    """Whole gangs, as many as the job may have parts, all in pools where it runs."""
    parts = use / problem.jobs.gang[job]
    runs = all(speed.get(int(pool), 0.0) > 0 for pool in np.flatnonzero(use > 0))
    return runs and not np.any(parts != np.floor(parts)) and 2 <= parts.sum() <= problem.jobs.fork_max[job]


def about_mixtures(problem: Problem, policy: PolicySpec, decision: Decision) -> Iterator[str]:
    """Gangs that would have been better at the prices of a stage."""
    if not len(problem.jobs.mixes) or not isinstance(decision, Shares) or policy.name in BY_MONEY:
        return
    if decision.certificate.status is not Status.OPTIMAL:
        return
    facts, speeds = facts_of(problem, policy, decision.rent), _speeds(problem)
    for number, stage in enumerate(decision.stages, start=1):
        prices = stage.prices
        if len(prices) != len(problem.pools):
            return
        for job in np.flatnonzero(problem.jobs.mixes).tolist():
            if any(_undercuts(facts, job, pace, speeds[job], prices) for pace in set(speeds[job].values())):
                yield f"stage {number}: job {int(problem.jobs.job_id[job])} has a better gang over several pools"


def _undercuts(facts: Facts, job: int, pace: float, speed: dict[int, float], prices: FloatArray) -> bool:
    """Is the cheapest gang of at least this pace over several pools cheaper than all known ways to its speed?"""
    left, cost, slowest, parts = float(facts.problem.jobs.gang[job]), 0.0, np.inf, 0
    for pool in sorted((pool for pool in speed if speed[pool] >= pace), key=lambda pool: (prices[pool], pool)):
        taken = min(left, float(np.floor(facts.capacity[pool] + 1e-9)))
        if taken > 0:
            left, cost, slowest, parts = left - taken, cost + taken * prices[pool], min(slowest, speed[pool]), parts + 1
    if left > 0 or parts < 2:
        return False
    menu = facts.menu(facts.problem.columns.steps_per_s, facts.cost(prices))
    known = float(cheapest(menu, np.full(facts.jobs, slowest))[job])
    return cost < known * (1 - _SAME) - 1e-12


def _speeds(problem: Problem) -> list[dict[int, float]]:
    """Of each job, the speed of its whole gang by pool, where it may run in that pool alone."""
    columns, speeds = problem.columns, [dict[int, float]() for _ in range(len(problem.jobs))]
    uses = np.bincount(columns.use_column, minlength=len(columns))
    for column, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
        job, rate = int(columns.job[column]), float(columns.steps_per_s[column])
        if uses[column] == 1 and count == problem.jobs.gang[job] and rate > 0:
            speeds[job][int(pool)] = max(speeds[job].get(int(pool), 0.0), rate)
    return speeds
