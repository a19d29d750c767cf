"""The arrival rule: where a job that came after the last solve goes, at the prices of that solve."""

import numpy as np

from optimizer.decision import Quote
from optimizer.policy import Newcomer, PricingPolicy
from optimizer.problem import FloatArray

#: A value within this part of the price equals it.
_ROUNDING = 1e-9


def choose(policy: PricingPolicy, newcomer: Newcomer, quote: Quote) -> tuple[int | None, FloatArray]:
    """The configuration with the largest value minus price, and that surplus for each of them (c,).

    None where no configuration has any value, or each costs more than its value. A surplus of exactly zero admits: that
    is what a job worth as much as the mean of those already there gets, and turning it away would be rounding's choice.
    Ties go to the first. Whether the place is free is the caller's to see.
    """
    value = policy.value(newcomer, quote)
    surplus: FloatArray = value - newcomer.count * quote.prices[newcomer.pool]
    candidates = np.where((value > 0) & (surplus >= -_ROUNDING * value), surplus, -np.inf)
    best = int(np.argmax(candidates)) if len(candidates) else 0
    if not len(candidates) or candidates[best] == -np.inf:
        return None, surplus
    return best, surplus
