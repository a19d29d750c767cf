"""Gangs over several pools, made at prices instead of listed: which would help, until none would.

A gang of W accelerators over several pools runs at the pace of its slowest part, W x min over its pools of the speed of
one. There are more of them than anybody can list, but at given prices only few matter: for every pace, the cheapest W
accelerators that are at least that fast (design 3). A policy answers with the configurations it knows; those that at
its prices undercut every mixture of known ones join, and it answers again. Where none is left, no gang over any pools
could better the answer: what its prices prove holds for all of them.

Decides which configurations are worth adding, for jobs that take them (`Jobs.mixes`). It looks at speed and prices
alone: for policies that count money besides, the configurations found are good ones, not provably enough.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.decision import Decision, Memory, Plan, Shares
from optimizer.fairness.utility import usable_columns
from optimizer.filling.response import Responses, responses
from optimizer.market.class_market import market_of
from optimizer.policy import SharePolicy
from optimizer.problem import Columns, FloatArray, IntArray, Problem
from optimizer.renting.machines import Rental

#: Answers asked for at most; five or six are used.
MOST_ANSWERS = 40
#: A gang must be cheaper than what is known by this part to be worth trying.
_CHEAPER = 1e-7
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Mixtures:
    """m gangs over several pools."""

    #: Row of the job (m,).
    job: IntArray
    steps_per_s: FloatArray
    #: Accelerators of each pool, whole (m, p).
    use: FloatArray

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, slots=True, eq=False)
class Widened:
    """An answer, and the problem that it answers: the one that was asked, with gangs over several pools."""

    problem: Problem
    decision: Decision
    memory: Memory
    #: No gang over any pools could better the answer, by speed and prices. False: work ran out.
    complete: bool
    #: Machines to rent; None: renting is no question, or none is rented for gangs over several pools.
    rental: Rental | None = None


def answer_with_mixtures(policy: SharePolicy, problem: Problem, memory: Memory) -> Widened:
    """Ask, add the gangs that would help at the prices of the answer, and ask again, until none would.

    Raises:
        ProblemError: the problem is malformed.
    """
    for _ in range(MOST_ANSWERS):
        decision, left = policy.decide(problem, memory)
        assert isinstance(decision, Shares), "a share policy"
        helpful = helpful_mixtures(problem, decision)
        if not len(helpful):
            return Widened(problem, decision, left, complete=True)
        problem = widened(problem, helpful)
    decision, left = policy.decide(problem, memory)
    return Widened(problem, decision, left, complete=False)


def helpful_mixtures(problem: Problem, shares: Shares) -> Mixtures:
    """Gangs that undercut all that their jobs know, at the prices of some stage, or are faster; the same one once."""
    pools = len(problem.pools)
    found = [_none(pools)]
    if len(problem.jobs.mixes) and problem.jobs.mixes.any():
        every = [np.zeros(pools), *(stage.prices for stage in shares.stages)]
        found += [_undercutting(problem, prices) for prices in every if len(prices) == pools]
    job = np.concatenate([one.job for one in found])
    use = np.concatenate([one.use for one in found])
    rate = np.concatenate([one.steps_per_s for one in found])
    _, first = np.unique(np.column_stack([job, use]), axis=0, return_index=True)
    return Mixtures(job[first], rate[first], use[first])


def widened(problem: Problem, mixtures: Mixtures) -> Problem:
    """The problem with these configurations besides, each behind its job's own."""
    columns, uses = problem.columns, mixtures.use > 0
    c, m = len(columns), len(mixtures)
    order = np.argsort(np.concatenate((columns.job, mixtures.job)), kind="stable")
    place = np.empty(c + m, dtype=np.int64)
    place[order] = np.arange(c + m)
    row, pool = np.nonzero(uses)
    use_column = place[np.concatenate((columns.use_column, c + row))]
    by_column = np.argsort(use_column, kind="stable")
    return replace(
        problem,
        columns=Columns(
            job=np.concatenate((columns.job, mixtures.job))[order],
            steps_per_s=np.concatenate((columns.steps_per_s, mixtures.steps_per_s))[order],
            use_column=use_column[by_column],
            use_pool=np.concatenate((columns.use_pool, pool))[by_column],
            use_count=np.concatenate((columns.use_count, mixtures.use[uses]))[by_column],
            running=np.concatenate((columns.running, np.zeros(m, dtype=np.bool_)))[order],
        ),
    )


def with_planned(problem: Problem, plan: Plan) -> tuple[Problem, Plan]:
    """The problem with the configurations that a plan made, each behind its job's own, and the plan in its terms."""
    assert plan.columns is not None
    made, c = plan.columns, len(problem.columns)
    use, ours = np.zeros((len(made) - c, len(problem.pools))), made.use_column >= c
    use[made.use_column[ours] - c, made.use_pool[ours]] = made.use_count[ours]
    place = np.empty(len(made), dtype=np.int64)
    place[np.argsort(made.job, kind="stable")] = np.arange(len(made))
    column = np.where(plan.column >= 0, place[plan.column], -1)
    return widened(problem, Mixtures(made.job[c:], made.steps_per_s[c:], use)), replace(
        plan, column=column, columns=None
    )


def _undercutting(problem: Problem, prices: FloatArray) -> Mixtures:
    """Gangs at these prices that cost less than the cheapest way their jobs know to be as fast, or are faster."""
    known, speed = _known_ways(problem, prices), _speeds(problem)
    speed[~problem.jobs.mixes] = 0.0
    found = [_none(len(prices))]
    for slowest in range(len(prices)):
        use, rate = _cheapest(speed, problem.jobs.gang, slowest, prices, problem.pools.capacity)
        cheaper = (use @ prices < known.spent(rate) * (1 - _CHEAPER)) | (rate > known.worth[:, -1] * (1 + _WHOLE))
        job = np.flatnonzero((rate > 0) & cheaper)
        found.append(Mixtures(job, rate[job], use[job]))
    return Mixtures(
        np.concatenate([one.job for one in found]),
        np.concatenate([one.steps_per_s for one in found]),
        np.concatenate([one.use for one in found]),
    )


def _known_ways(problem: Problem, prices: FloatArray) -> Responses:
    """What each job pays for its speed with the configurations it has; nothing is to be had by one that has none."""
    usable = usable_columns(problem.columns, problem.pools.capacity)
    classes = market_of(problem, usable, [problem.columns.steps_per_s], [problem.jobs.gang])
    n, member = len(problem.jobs), classes.classes.member
    if not classes.market.classes:
        return Responses(np.zeros((n, 2)), np.zeros((n, 2)))
    hulls = responses(classes.market, classes.per_column(problem.columns.steps_per_s), prices)
    placed = (member >= 0)[:, None]
    return Responses(np.where(placed, hulls.worth[member], 0.0), np.where(placed, hulls.cost[member], 0.0))


def _speeds(problem: Problem) -> FloatArray:
    """Steps/s of each job's whole gang in each pool alone, 0 where it has no such configuration (n, p)."""
    columns = problem.columns
    uses = np.bincount(columns.use_column, minlength=len(columns))
    alone = (uses[columns.use_column] == 1) & (columns.use_count == problem.jobs.gang[columns.job[columns.use_column]])
    column, pool = columns.use_column[alone], columns.use_pool[alone]
    speed = np.zeros((len(problem.jobs), len(problem.pools)))
    np.maximum.at(speed, (columns.job[column], pool), columns.steps_per_s[column])
    return speed


def _cheapest(
    speed: FloatArray, gang: FloatArray, slowest: int, prices: FloatArray, capacity: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The cheapest gang of each class on pools at least as fast as this one (k, p); its speed, 0: none, or one pool."""
    allowed = (speed >= speed[:, slowest : slowest + 1]) & (speed[:, slowest : slowest + 1] > 0)
    use, left = np.zeros(speed.shape), gang.copy()
    for pool in np.argsort(prices, kind="stable"):
        use[:, pool] = np.where(allowed[:, pool], np.minimum(np.floor(capacity[pool] + _WHOLE), left), 0.0)
        left -= use[:, pool]
    is_mixture = (left <= 0) & ((use > 0).sum(axis=1) > 1)
    rate = np.where(use > 0, speed, np.inf).min(axis=1)
    return use, np.where(is_mixture, rate, 0.0)


def _none(pools: int) -> Mixtures:
    return Mixtures(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, pools)))
