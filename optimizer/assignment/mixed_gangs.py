"""Gangs over several pools, made at prices instead of listed (column generation): which would help, until none would.

A gang of W accelerators over several pools runs at the pace of its slowest part, W x min over its pools of the speed of
one. There are more of them than anybody can list, but at given prices only few matter: for every pace, the cheapest W
accelerators that are at least that fast (design 3). A policy answers with the configurations it knows; those that at
its prices undercut every mixture of known ones join, and it answers again. Where none is left, no gang over any pools
could better the answer: what its prices prove holds for all of them.

Decides which configurations are worth adding, for jobs that take them (`Jobs.mixes`). It looks at speed and prices
alone: for policies that count money besides, the configurations found are good ones, not provably enough.
"""

from dataclasses import replace

import numpy as np

from optimizer.classes.aggregation import aggregate_problem
from optimizer.decision import Memory, MultiPoolGangs, Shares, append_columns
from optimizer.lp.interior_point.level_proofs import CostHulls, cost_hulls
from optimizer.policy import SharePolicy
from optimizer.problem import FloatArray, Problem
from optimizer.utility.fair_share import usable_columns

#: Answers asked for at most; five or six are used.
MAX_ANSWERS = 40
#: A gang must be cheaper than what is known by this part to be worth trying.
_CHEAPER = 1e-7
_WHOLE = 1e-9


def answer_with_mixed_gangs(policy: SharePolicy, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
    """Ask, add the gangs that would help at the prices of the answer, and ask again, until none would.

    The last answer, with the gangs that were added. Where work ran out (`MAX_ANSWERS`), some might help still.

    Raises:
        ProblemError: the problem is malformed.
    """
    made, current, place = no_gangs(len(problem.pools)), problem, np.arange(len(problem.columns))
    decision, left = policy.decide(current, memory)
    for _ in range(MAX_ANSWERS):
        assert isinstance(decision, Shares), "a share policy"
        helpful = improving_mixed_gangs(current, decision)
        if not len(helpful):
            break
        made = joined_gangs([made, helpful])
        current, place = append_columns(problem, made.columns)
        decision, left = policy.decide(current, memory)
    assert isinstance(decision, Shares), "a share policy"
    return replace(decision, x=decision.x[place], added=made.columns if len(made) else None), left


def improving_mixed_gangs(problem: Problem, shares: Shares) -> MultiPoolGangs:
    """Gangs that undercut all that their jobs know, at the prices of some stage, or are faster; the same one once."""
    pools = len(problem.pools)
    found = [no_gangs(pools)]
    if len(problem.jobs.mixes) and problem.jobs.mixes.any():
        quoted = [np.zeros(pools), *(stage.prices for stage in shares.stages)]
        found += [_undercutting(problem, prices) for prices in quoted if len(prices) == pools]
    return distinct_gangs(joined_gangs(found))


def _undercutting(problem: Problem, prices: FloatArray) -> MultiPoolGangs:
    """Gangs at these prices that cost less than the cheapest way their jobs know to be as fast, or are faster."""
    known, speed = _known_ways(problem, prices), whole_gang_speeds(problem)
    speed[~problem.jobs.mixes] = 0.0
    found = [no_gangs(len(prices))]
    for slowest in range(len(prices)):
        use, rate = cheapest_gangs(speed, problem.jobs.gang, slowest, prices, problem.pools.capacity)
        cheaper = (use @ prices < known.spent(rate) * (1 - _CHEAPER)) | (rate > known.worth[:, -1] * (1 + _WHOLE))
        job = np.flatnonzero((rate > 0) & cheaper)
        found.append(MultiPoolGangs(job, rate[job], use[job]))
    return joined_gangs(found)


def _known_ways(problem: Problem, prices: FloatArray) -> CostHulls:
    """What each job pays for its speed with the configurations it has; nothing is to be had by one that has none."""
    usable = usable_columns(problem.columns, problem.pools.capacity)
    classes = aggregate_problem(problem, usable, [problem.columns.steps_per_s], [problem.jobs.gang])
    n, member = len(problem.jobs), classes.classes.member
    if not classes.problem.classes:
        return CostHulls(np.zeros((n, 2)), np.zeros((n, 2)))
    hulls = cost_hulls(classes.problem, classes.per_column(problem.columns.steps_per_s), prices)
    placed = (member >= 0)[:, None]
    return CostHulls(np.where(placed, hulls.worth[member], 0.0), np.where(placed, hulls.cost[member], 0.0))


def whole_gang_speeds(problem: Problem) -> FloatArray:
    """Steps/s of each job's whole gang in each pool alone, 0 where it has no such configuration (n, p)."""
    columns = problem.columns
    uses = np.bincount(columns.use_column, minlength=len(columns))
    alone = (uses[columns.use_column] == 1) & (columns.use_count == problem.jobs.gang[columns.job[columns.use_column]])
    column, pool = columns.use_column[alone], columns.use_pool[alone]
    speed = np.zeros((len(problem.jobs), len(problem.pools)))
    np.maximum.at(speed, (columns.job[column], pool), columns.steps_per_s[column])
    return speed


def cheapest_gangs(
    speed: FloatArray, gang: FloatArray, slowest: int, prices: FloatArray, capacity: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Each job's cheapest gang on pools at least as fast for it as this one (n, p); its speed, 0: none, or one pool.

    Args:
        speed: of each job's whole gang in each pool, 0 where it cannot run (n, p).
        gang: accelerators of each (n,).
        slowest: row of the pool that may be the slowest.
        prices: of an accelerator of each pool (p,); of equals the first in order.
        capacity: accelerators that each gang may take of each pool (n, p), or all alike (p,).
    """
    allowed = (speed >= speed[:, slowest : slowest + 1]) & (speed[:, slowest : slowest + 1] > 0)
    use, left, there = np.zeros(speed.shape), gang.copy(), np.floor(np.broadcast_to(capacity, speed.shape) + _WHOLE)
    for pool in np.argsort(prices, kind="stable"):
        use[:, pool] = np.where(allowed[:, pool], np.minimum(there[:, pool], left), 0.0)
        left -= use[:, pool]
    is_mixture = (left <= 0) & ((use > 0).sum(axis=1) > 1)
    rate = np.where(use > 0, speed, np.inf).min(axis=1)
    return use, np.where(is_mixture, rate, 0.0)


def no_gangs(pools: int) -> MultiPoolGangs:
    """No gang at all, over so many pools."""
    return MultiPoolGangs(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, pools)))


def joined_gangs(several: list[MultiPoolGangs]) -> MultiPoolGangs:
    """The gangs of several answers, one after the other."""
    return MultiPoolGangs(
        np.concatenate([one.job for one in several]),
        np.concatenate([one.steps_per_s for one in several]),
        np.concatenate([one.use for one in several]),
    )


def distinct_gangs(gangs: MultiPoolGangs) -> MultiPoolGangs:
    """The same gang of the same job once."""
    _, first = np.unique(np.column_stack([gangs.job, gangs.use]), axis=0, return_index=True)
    return MultiPoolGangs(gangs.job[first], gangs.steps_per_s[first], gangs.use[first])
