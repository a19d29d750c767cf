"""Column generation for gangs over several pools: adds those that would improve an answer at its prices, until none
would.

A gang of W accelerators over several pools runs at the pace of its slowest part, W x min over its pools of the speed
of one. There are more of them than anybody can list, but at given prices only few matter: for every pace, the cheapest
W accelerators that are at least that fast. A policy answers with the configurations it knows; those that at its
prices undercut every mixture of known ones join, and it answers again. Where none is left, no gang over any pools
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

#: The most answers that are asked for; five or six usually suffice.
MAX_ANSWERS = 40
#: A gang is worth adding only if it is cheaper by this part than what is known.
_CHEAPER = 1e-7
_WHOLE = 1e-9


def answer_with_mixed_gangs(policy: SharePolicy, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
    """Asks a policy, adds the gangs that would improve its answer at its prices, and asks again, until none would.

    Returns the last answer, with the gangs that were added, and the policy's memory. After `MAX_ANSWERS` answers it
    stops, though further gangs might help.

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
    """Returns the gangs that, at the prices of some stage, are cheaper than all mixtures of configurations that their
    jobs know, or faster; each gang once.
    """
    pools = len(problem.pools)
    found = [no_gangs(pools)]
    if len(problem.jobs.mixes) and problem.jobs.mixes.any():
        quoted = [np.zeros(pools), *(stage.prices for stage in shares.stages)]
        found += [_undercutting(problem, prices) for prices in quoted if len(prices) == pools]
    return distinct_gangs(joined_gangs(found))


def _undercutting(problem: Problem, prices: FloatArray) -> MultiPoolGangs:
    """Returns the gangs that cost less at these prices than the cheapest known way for their jobs to be as fast, or
    are faster.
    """
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
    """Returns for each job the least price of each speed with the configurations that it has; a job without any gets
    nothing at any price.
    """
    usable = usable_columns(problem.columns, problem.pools.capacity)
    classes = aggregate_problem(problem, usable, [problem.columns.steps_per_s], [problem.jobs.gang])
    n, member = len(problem.jobs), classes.classes.member
    if not classes.problem.classes:
        return CostHulls(np.zeros((n, 2)), np.zeros((n, 2)), np.ones(n), 0.0)
    hulls = cost_hulls(classes.problem, classes.per_column(problem.columns.steps_per_s), prices)
    worth, cost = (np.where((member >= 0)[:, None], vertices[member], 0.0) for vertices in (hulls.worth, hulls.cost))
    return CostHulls(worth, cost, np.ones(n), hulls.income)


def whole_gang_speeds(problem: Problem) -> FloatArray:
    """Returns the steps per second of each job's whole gang in each pool alone (n, p); 0 where it has no such
    configuration.
    """
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
    """Returns the cheapest gang of each job on pools that are at least as fast for it as this one (n, p), and its
    steps per second (n,): 0 where there is none, or where it stands in one pool.

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
    """Returns an empty set of gangs over this number of pools."""
    return MultiPoolGangs(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, pools)))


def joined_gangs(several: list[MultiPoolGangs]) -> MultiPoolGangs:
    """Returns the gangs of several answers in one set, one answer after the other."""
    return MultiPoolGangs(
        np.concatenate([one.job for one in several]),
        np.concatenate([one.steps_per_s for one in several]),
        np.concatenate([one.use for one in several]),
    )


def distinct_gangs(gangs: MultiPoolGangs) -> MultiPoolGangs:
    """Returns the gangs without repetitions of the same gang of the same job."""
    _, first = np.unique(np.column_stack([gangs.job, gangs.use]), axis=0, return_index=True)
    return MultiPoolGangs(gangs.job[first], gangs.steps_per_s[first], gangs.use[first])
