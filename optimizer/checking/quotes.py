"""Do the prices that people see follow from the stages' prices, and each job's surplus from those?

Fair policies quote what a unit of fair-share utility costs on the mean of those who pay: a stage's price times the
utility of the columns that cost something at its prices, over what they cost. Policies that maximise a sum quote its
own prices, which are in the unit of that sum.
"""

from collections.abc import Iterator

import numpy as np

from optimizer.checking.facts import Facts
from optimizer.checking.forms import SumForm
from optimizer.checking.measures import Measure
from optimizer.checking.stages import SAME, Told, close
from optimizer.decision import Shares
from optimizer.problem import FloatArray


def check_quote(facts: Facts, measure: Measure, shares: Shares, told: list[Told]) -> Iterator[str]:
    """Everything that is wrong with prices, exchange and surpluses."""
    if shares.quote.unit != measure.unit:
        yield f"prices are stated in {shares.quote.unit!r}; the policy quotes {measure.unit!r}"
    prices = _prices(facts, measure, shares, told)
    for name, stated, price in zip(facts.problem.pools.pool_id, shares.quote.prices, prices, strict=True):
        if not close(float(stated), float(price), max(abs(price), 1e-9)):
            yield f"price of {name}: stated {stated:.9g}, found {price:.9g}"
    exchange = _exchange(facts, measure)
    if not close(shares.quote.exchange, exchange, exchange):
        yield f"exchange: stated {shares.quote.exchange:.9g}, found {exchange:.9g}"
    yield from _surpluses(facts, measure, shares, exchange, prices)


def _prices(facts: Facts, measure: Measure, shares: Shares, told: list[Told]) -> FloatArray:
    prices = np.zeros(len(facts.capacity))
    if measure.priced_as_is:
        return np.array(shares.stages[0].prices) if shares.stages else prices
    for stage, found in zip(shares.stages, told, strict=False):
        new = found.scarce[: len(prices)] & (prices == 0)
        per_price = 1.0 if isinstance(found.form, SumForm) else _utility_per_price(facts, shares, stage.prices, found)
        prices[new] = stage.prices[: len(prices)][new] * per_price
    return prices


def _utility_per_price(facts: Facts, shares: Shares, stage_prices: FloatArray, found: Told) -> float:
    pools, (gives, holds) = len(facts.capacity), facts.over_columns(shares)
    cost = facts.cost(np.where(found.scarce, stage_prices, 0.0)[:pools]) * holds
    utility = facts.utility * gives
    paying = [c for c in np.flatnonzero(cost > 0) if found.raised[facts.problem.columns.job[c]]]
    paid = sum(float(cost[c]) for c in paying)
    return sum(float(utility[c]) for c in paying) / paid if paid > 0 else 1.0


def _exchange(facts: Facts, measure: Measure) -> float:
    if measure.priced_as_is or measure.weight is None:
        return 1.0
    weights = [float(w) for w, able in zip(measure.weight, facts.placeable, strict=True) if able and w > 0]
    return len(weights) / sum(weights) if weights else 1.0


def _surpluses(facts: Facts, measure: Measure, shares: Shares, exchange: float, prices: FloatArray) -> Iterator[str]:
    gain, cost = exchange * measure.gain, facts.cost(prices)
    for job, mine in enumerate(facts.columns_of):
        net = max((float(gain[c] - cost[c]) for c in mine if facts.usable[c] and gain[c] > 0), default=0.0)
        size = max(abs(net), max((float(gain[c]) for c in mine), default=0.0), 1e-9)
        if not abs(max(net, 0.0) - shares.surplus[job]) <= SAME * size:
            job_id = facts.problem.jobs.job_id[job]
            yield f"surplus of job {job_id}: stated {shares.surplus[job]:.9g}, found {max(net, 0.0):.9g}"
