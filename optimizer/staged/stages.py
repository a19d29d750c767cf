"""A decision in stages: the objective first, then, where the first leaves room, the largest sum of utilities.

    1.  the policy's own objective, over classes of equal jobs
    2.  maximise sum u   s.t.  every job keeps what the first stage promised it

What the first stage's prices bind is the same in all its optima (complementary slackness: a pool with a price is used
up, by jobs that reach their target and no more). So there is room only where a job that is not full could run on pools
that cost nothing, and mostly there is none. Decides how stages follow each other.
"""

from dataclasses import replace

import numpy as np

from optimizer.arrays.owners import best_by, sum_by
from optimizer.decision import Certificate, Quote, Shares, StageKind, Status
from optimizer.fairness.equal_shares import equal_shares
from optimizer.market.feasible import relative_gap
from optimizer.market.market import Market
from optimizer.market.objective import Level, Nash, Objective, Solution, Total
from optimizer.market.reached import FULL, reached
from optimizer.packing.shares import over_columns, violation_of_packed
from optimizer.prices.bound import bound_at
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.programs.route import solve
from optimizer.staged.quoting import FAIR_UNIT, fair_prices, mean_exchange, scarce, surplus_of
from optimizer.staged.told import Asked, Staged, rising, told

#: A gap up to this is called optimal. It is 1e-8 or less where the exact program was solved, except where a job is full
#: and another pool is almost as good for it: the solver's rounding is then magnified by how close the two are.
OPTIMAL_GAP = 1e-4
#: Floors are held with this slack, so that rounding cannot make the next program infeasible.
_SLACK = 1e-10
#: A stage that takes more than this part of what it was to keep is not used.
_KEPT = 1e-7
NOBODY: IntArray = np.zeros(0, dtype=np.int64)


# ------------------------------------------------------------------------------------------------ solving


def in_stages(asked: Asked, objective: Objective, *, leftover: bool = True) -> Staged:
    """The objective's optimum, then (if `leftover`) the largest sum of utilities that takes nothing of it from anybody.

    Args:
        asked: the problem and its classes.
        objective: of the first stage; its worth is the fair-share utility if something is to follow.
        leftover: False: the first stage's shares as they are.
    """
    if asked.packed and not isinstance(objective, Nash):
        from optimizer.staged.packed import packed_in_stages  # imports highspy: only where something is to be solved

        packed = packed_in_stages(asked, objective, leftover=leftover)
        if packed is not None:
            return packed
        asked = replace(asked, packed=False)
    market = asked.classes.market
    stages, x, kept = [], np.zeros(market.columns), np.zeros(market.classes)
    status, path = Status.OPTIMAL, "nobody is entitled"
    if rising(market, objective).any():
        found = _or_split(asked, objective, solve(market, objective))
        x, status, path = found.x, found.status, found.path
        kept = _promised(market, objective, found)
        stages.append(told(asked.classes, found, objective))
    if leftover and status is not Status.FAILED and (not stages or _room(market, objective, kept, stages[0].prices)):
        total = Total(objective.worth, objective.worth, kept * (1 - _SLACK))
        more = _or_split(asked, total, solve(market, total))
        if not stages:
            status, path = more.status, more.path
        if np.all(_utility(market, objective.worth, more.x) >= kept * (1 - _KEPT)):
            x = more.x
            stages.append(told(asked.classes, more, total))
    return Staged(asked, status, path, asked.classes.to_columns(x), tuple(stages))


def one_stage(asked: Asked, objective: Objective, found: Solution) -> Staged:
    """A solution as it is; equal shares if there is none."""
    found = _or_split(asked, objective, found)
    stage = told(asked.classes, found, objective)
    return Staged(asked, found.status, found.path, asked.classes.to_columns(found.x), (stage,))


def _or_split(asked: Asked, objective: Objective, found: Solution) -> Solution:
    """Where no solver answers, equal shares (fair to everybody, and the status says so) with a weak bound."""
    market, nothing = asked.classes.market, np.zeros(asked.classes.market.rows)
    if found.status in (Status.OPTIMAL, Status.WORK_LIMIT) and np.isfinite([found.objective, found.bound]).all():
        return found
    x = asked.classes.per_column(equal_shares(asked.problem, asked.classes.classes.class_column >= 0))
    value, bound = reached(market, objective, x), bound_at(market, objective, nothing)
    return Solution(Status.FAILED, x, nothing, value, bound, "equal shares; no solver answered", found.work)


# ------------------------------------------------------------------------------------------------ answering


def certificate_of(staged: Staged, objective: float, bound: float, *, maximise: bool = True) -> Certificate:
    """Proof of quality in the policy's own objective. Optimal only where the gap of a first level says so, too."""
    gap = relative_gap(objective, bound)
    level = bool(staged.stages) and staged.stages[0].kind is StageKind.LEVEL
    widest = max(gap, relative_gap(*staged.first())) if level else gap
    status = Status.WORK_LIMIT if staged.status is Status.OPTIMAL and widest > OPTIMAL_GAP else staged.status
    violation = violation_of_packed(staged.asked.problem, staged.asked.utility.usable, staged.x, staged.packed)
    return Certificate(status, objective, bound, gap, violation, f"classes+{staged.path}", maximise)


def fair_shares(staged: Staged, certificate: Certificate, *, weighted: bool = True) -> Shares:
    """The decision of a policy that quotes in fair-share units; `weighted`: newcomers count by weight over the mean."""
    problem, utility = staged.asked.problem, staged.asked.utility
    weight = problem.jobs.weight if weighted else np.ones(len(problem.jobs))
    placeable = utility.best > 0
    gives, holds = over_columns(problem, utility.usable, staged.x, staged.packed)
    prices = fair_prices(problem, staged.stages, utility.worth * gives, holds)
    quote = Quote(prices, FAIR_UNIT, mean_exchange(weight[placeable], problem.jobs.counts[placeable]))
    return shares_of(staged, certificate, quote, quote.exchange * weight[problem.columns.job] * utility.worth)


def shares_of(
    staged: Staged, certificate: Certificate, quote: Quote, gain: FloatArray, relaxed: IntArray = NOBODY
) -> Shares:
    """The decision.

    Args:
        staged: shares and stages.
        certificate: proof of quality.
        quote: the prices that people see.
        gain: worth of each column to its job in the quote's unit, 0 where it cannot run (c,).
        relaxed: rows of the jobs whose deadline was not held.
    """
    problem = staged.asked.problem
    return Shares(
        x=staged.x,
        rent=problem.pools.held,
        quote=quote,
        surplus=surplus_of(problem, gain, quote),
        certificate=certificate,
        stages=staged.stages,
        unplaceable=np.flatnonzero(staged.asked.utility.best == 0),
        packed=staged.packed,
        relaxed=relaxed,
    )


def nothing_to_decide(problem: Problem, unit: str = FAIR_UNIT, *, maximise: bool = True) -> Shares:
    """The answer where no job has a configuration that fits the fleet."""
    return Shares(
        x=np.zeros(len(problem.columns)),
        rent=problem.pools.held,
        quote=Quote(np.zeros(len(problem.pools)), unit, 1.0),
        surplus=np.zeros(len(problem.jobs)),
        certificate=Certificate(Status.EMPTY, 0.0, 0.0, 0.0, 0.0, "nothing to solve", maximise),
        unplaceable=np.arange(len(problem.jobs)),
    )


# ------------------------------------------------------------------------------------------------ what is left


def _utility(market: Market, worth: FloatArray, x: FloatArray) -> FloatArray:
    return sum_by(market.owner(), worth * x, market.classes)


def _promised(market: Market, objective: Objective, found: Solution) -> FloatArray:
    """Utility of one member that every optimum of the stage gives, at least (k,)."""
    utility = _utility(market, objective.worth, found.x)
    if isinstance(objective, Level):
        return np.minimum(objective.targets.at(found.objective)[0], utility)
    if isinstance(objective, Nash):
        return np.where(objective.weight > 0, utility, 0.0)  # what the weightless got there is chance
    return utility


def _room(market: Market, objective: Objective, kept: FloatArray, prices: FloatArray) -> bool:
    """A class that is not full has a column that uses nothing scarce."""
    taken = scarce(prices, market.capacity).astype(np.float64)
    best = best_by(market.owner(), objective.worth, market.classes)
    hungry = kept < best * (1 - FULL)
    if isinstance(objective, Nash):
        hungry &= objective.weight == 0  # the others have taken what is free already
    return bool(np.any(hungry[market.owner()] & (market.cost(taken) == 0) & (objective.worth > 0)))
