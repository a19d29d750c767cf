"""The arrival rule: value minus price."""

import numpy as np

from optimizer.decision import Quote
from optimizer.policy import Newcomer, SharePolicy
from optimizer.problem import FloatArray


def choose(policy: SharePolicy, newcomer: Newcomer, quote: Quote) -> tuple[int | None, FloatArray]:
    """The configuration worth most above its price, if any is, and the surplus of each."""
    surplus = policy.value(newcomer, quote) - newcomer.count * quote.prices[newcomer.pool]
    best = int(np.argmax(surplus))
    return (best if surplus[best] > 0 else None), surplus
