"""What spot machines are worth here: how long they lived, how often the market took one, and what of a speed is left.

Every pool (a zone of a shape) is believed by what was seen of it, beside a prior from all spot pools: a zone
that takes machines back is left for the others, and found again as its record grows old against theirs.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.problem import FloatArray, IntArray
from optimizer.renting.risk import RateBelief, pooled_prior, useful_parts
from scheduler.core.ledger.fleet import PoolState
from walras.cluster import Market

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Ways to run jobs, as far as risk goes: pool and accelerators of each, and what a restart costs its job (w,)."""

    pool: IntArray
    count: FloatArray
    restart_s: FloatArray


def risks(pools: list[PoolState], now: float) -> FloatArray:
    """Revocations per machine-hour; 0 where machines stay (p,)."""
    seen = [(state.lives.revocations, state.lives.lived_s(now) / _HOUR_S) for state in pools]
    spot = [row for row, state in enumerate(pools) if state.pool.market is Market.SPOT]
    rates = np.zeros(len(pools))
    prior = pooled_prior([seen[row] for row in spot])
    for row in spot:
        rates[row] = RateBelief(prior.prior_revocations, prior.prior_h).seen(*seen[row]).rate_per_h
    return rates


def lasting(pools: list[PoolState], now: float, runs: Runs) -> FloatArray:
    """Part of each way's time that becomes work that lasts (w,). A gang stops when any of its machines goes."""
    parts = np.ones(len(runs.pool))
    rates = risks(pools, now)
    risky = np.flatnonzero(rates[runs.pool] > 0)
    if not len(risky):
        return parts
    pool = runs.pool[risky]
    size = np.array([float(max(state.pool.shape.accelerators, 1)) for state in pools])
    notice_h = np.array([state.pool.notice_s for state in pools])[pool] / _HOUR_S
    boot_h = np.array([state.pool.boot_s for state in pools])[pool] / _HOUR_S
    restart_h = runs.restart_s[risky] / _HOUR_S
    machines = np.ceil(runs.count[risky] / size[pool])
    # What a checkpoint alone takes nobody tells: a restart holds one, so it takes no longer.
    parts[risky] = useful_parts((restart_h, restart_h + boot_h, notice_h), rates[pool] * machines)
    return parts
