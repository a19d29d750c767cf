"""How long a job has left, where that is guessed or only roughly matters. Decides nothing."""

import numpy as np

from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


def left_s(jobs: OrderFacts, unknown_s: float) -> FloatArray:
    """Seconds left on the best configuration (n,). Unknown: as long again as the job has run, and at least `unknown_s`.

    With heavy-tailed lengths that is what having run so long makes one expect; it also lets nobody of unknown length
    rank first for ever.
    """
    guess = np.maximum(unknown_s, jobs.attained_s / np.maximum(jobs.gang, 1.0))
    return np.where(np.isfinite(jobs.remaining_s), jobs.remaining_s, guess)


def level(amount: FloatArray, margin: float) -> FloatArray:
    """Amounts in steps of `margin`: two in the same step differ by less than that part. 0: the amounts themselves."""
    if margin <= 0:
        return amount
    steps: FloatArray = np.floor(np.log1p(amount) / np.log1p(margin))
    return steps
