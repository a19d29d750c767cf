"""Prices that people see and newcomers are judged by, made from the dual values of a solve in stages.

Unit: one unit of fair-share utility of the mean job that competes, per accelerator held all the time. So 1 is about
what an average accelerator of a contended fleet is worth, 2 says "as good as two of those", 0 says that nobody is
waiting for more of it.

    price[p] = l[p] / mean of y[m] > 0 over the active jobs,    of the first stage in which the pool is scarce
    exchange = 1 / mean weight of the entitled jobs

Decides the quote only; the proof keeps the raw dual values.
"""

from collections.abc import Sequence

import numpy as np

from optimizer.decision import Quote, Stage, StageKind
from optimizer.owners import best_by
from optimizer.problem import BoolArray, Columns, FloatArray, Problem
from optimizer.utility import Utility, cost_of

UNIT = "fair-share units per accelerator"
#: A pool whose price makes up less than this part of all that is paid is not scarce.
SCARCE = 1e-9


def quote_of(problem: Problem, stages: Sequence[Stage], placeable: BoolArray) -> Quote:
    """The quote of a solve; zero prices where nothing is scarce."""
    prices = np.zeros(len(problem.pools))
    for stage in stages:
        new = scarce(stage.prices, problem.pools.capacity) & (prices == 0)
        if new.any():
            prices[new] = stage.prices[new] / _worth_of_utility(stage)
    weight = problem.jobs.weight[placeable & (problem.jobs.weight > 0)]
    return Quote(prices, UNIT, float(1.0 / weight.mean()) if len(weight) else 1.0)


def scarce(prices: FloatArray, capacity: FloatArray) -> BoolArray:
    """Pools whose price is more than rounding (p,)."""
    paid = prices * capacity
    binding: BoolArray = paid > SCARCE * max(float(paid.sum()), 1e-300)
    return binding


def surplus_of(columns: Columns, weight: FloatArray, utility: Utility, quote: Quote) -> FloatArray:
    """What each job would gain with its best configuration if it came now and paid the quoted prices, >= 0 (n,)."""
    gain = quote.exchange * weight[columns.job] * utility.worth - cost_of(columns, quote.prices)
    return best_by(columns.job, np.where(utility.usable, gain, 0.0), len(weight))


def _worth_of_utility(stage: Stage) -> float:
    """What the stage pays for one more unit of the mean competing job's utility."""
    if stage.kind is StageKind.SUM:
        return 1.0
    multiplier = stage.multiplier[stage.active]
    return float(multiplier[multiplier > SCARCE * multiplier.max()].mean())
