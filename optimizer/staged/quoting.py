"""Prices that people see and newcomers are judged by, made from the prices of a solve in stages.

Fair policies quote in *fair-share units per accelerator*: at the quoted prices one unit of fair-share utility (one
accelerator of the fleet's average speed for the job) costs 1 on the mean of those who pay. So 1 is about what an
average accelerator of a contended fleet is worth, 2 says "as good as two of those", 0 that nobody waits for more of it.

    price[p] = l[p] sum worth x / sum cost x    of the first stage in which the pool is scarce; the sums are over the
                                                columns that cost something at the stage's prices l, of its active jobs
    price[p] = l[p]                             where that stage maximises a sum of utilities: it is in that unit
    exchange = 1 / mean weight of the entitled jobs

Policies that maximise a sum quote its own prices, and exchange 1. Decides the quote only; proofs keep the raw prices.
"""

from collections.abc import Sequence

import numpy as np

from optimizer.arrays.owners import best_by
from optimizer.decision import Quote, Stage, StageKind
from optimizer.fairness.utility import cost_of
from optimizer.problem import BoolArray, FloatArray, Problem

FAIR_UNIT = "fair-share units per accelerator"
#: A pool whose price makes up less than this part of all that is paid is not scarce.
SCARCE = 1e-9


def fair_prices(problem: Problem, stages: Sequence[Stage], gained: FloatArray, held: FloatArray) -> FloatArray:
    """The prices that a fair policy quotes; 0 where nothing is scarce (p,).

    Args:
        gained: utility that the shares of each column give (c,).
        held: share of time in which each column holds its accelerators, half of it where it is packed (c,).
    """
    prices = np.zeros(len(problem.pools))
    for stage in stages:
        new = scarce(stage.prices, problem.pools.capacity) & (prices == 0)
        if new.any():
            prices[new] = stage.prices[new] * _utility_per_price(problem, stage, gained, held)
    return prices


def mean_exchange(weight: FloatArray, count: FloatArray) -> float:
    """One over the mean weight of those who have any: what one unit of utility of a job of weight 1 is worth."""
    entitled = weight > 0
    total = float(weight[entitled] @ count[entitled])
    return float(count[entitled].sum()) / total if total > 0 else 1.0


def scarce(prices: FloatArray, capacity: FloatArray) -> BoolArray:
    """Pools whose price is more than rounding (p,)."""
    paid = prices * capacity
    binding: BoolArray = paid > SCARCE * max(float(paid.sum()), 1e-300)
    return binding


def surplus_of(problem: Problem, gain: FloatArray, quote: Quote) -> FloatArray:
    """What each job would gain with its best configuration if it came now and paid the quoted prices, >= 0 (n,).

    Args:
        gain: worth of running each column all the time, in the quote's unit; 0 for what cannot run (c,).
    """
    columns = problem.columns
    net = np.where(gain > 0, gain - cost_of(columns, quote.prices), 0.0)
    return best_by(columns.job, net, len(problem.jobs))


def _utility_per_price(problem: Problem, stage: Stage, gained: FloatArray, held: FloatArray) -> float:
    """Utility that one unit of the stage's prices buys, on the mean of its active jobs' columns that cost something."""
    if stage.kind is StageKind.SUM:
        return 1.0
    prices = np.where(scarce(stage.prices, problem.pools.capacity), stage.prices, 0.0)
    cost = cost_of(problem.columns, prices) * held
    paying = np.where(stage.active, problem.jobs.counts, 0.0)[problem.columns.job] * (cost > 0)
    paid = float((cost * paying).sum())
    return float((gained * paying).sum()) / paid if paid > 0 else 1.0
