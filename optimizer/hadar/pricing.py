"""Hadar's prices within one round: one per pool, exponential in what has been given away.

    k[r] = L[r] (U[r] / L[r]) ^ (gamma[r] / c[r])
    u[j, r] = utility / (gang * rounds left),   U[r] = max_j u[j, r],   L[r] = eta4 min_j u[j, r]

A price is in utility per accelerator and round. It is paid for all rounds that a job still needs, not for this one
alone: otherwise long and short jobs would cost the same.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.hadar.facts import Facts, needed_s, worth
from optimizer.problem import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """What bounds the prices, and who is worth what."""

    #: L and ln(U/L) of each pool (p,); 0 where no job could use it.
    floor: FloatArray
    steepness: FloatArray
    capacity: FloatArray
    #: The most that an accelerator-round of the job is worth on any pool (n,); 0: it can run nowhere.
    density: FloatArray

    def prices(self, given: FloatArray) -> FloatArray:
        """Prices when that many accelerators are given away (p,)."""
        part = np.divide(given, self.capacity, out=np.zeros(len(given)), where=self.capacity > 0)
        prices: FloatArray = self.floor * np.exp(self.steepness * part)
        return prices


def bounds_of(facts: Facts, eta4: float) -> Bounds:
    """Floors and ceilings from the jobs there are; a job where it would run alone on each pool."""
    alone = worth(
        facts.best_s[:, None], facts.age_s[:, None], needed_s(facts.left_steps[:, None], facts.rate), facts.round_s
    )
    per_round = np.zeros(facts.rate.shape)
    np.divide(alone.utility, facts.use * alone.rounds, out=per_round, where=facts.rate > 0)
    # A job at its very end is worth nothing: it must not make the floor zero.
    counts = per_round > 0
    most = per_round.max(axis=0, initial=0.0)
    least = eta4 * np.where(counts, per_round, np.inf).min(axis=0, initial=np.inf)
    used = most > 0
    floor = np.where(used, least, 0.0)
    steepness = np.log(np.divide(most, floor, out=np.ones(len(most)), where=used))
    return Bounds(floor, steepness, facts.capacity, per_round.max(axis=1, initial=0.0))
