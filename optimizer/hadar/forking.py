"""Forks: jobs that were placed take further parts on accelerators that stayed free, each part a whole gang in one pool.

Parts take steps of their own and are averaged now and then, so a fork's speed is the sum of its parts' speeds, less
what averaging costs; a mixed gang goes at the pace of its slowest. Nobody is kept out for a fork: it takes the rest.
"""

import numpy as np

from optimizer.hadar.facts import Facts, Worth, needed_s, worth
from optimizer.problem import FloatArray, IntArray


def fork_out(facts: Facts, sync: float, placed: list[int], use: FloatArray, rate: FloatArray) -> None:
    """Give out what is free, one part at a time, to the job that it brings most seconds nearer to its end.

    Seconds count per accelerator and with the restart, so a fork that goes on is worth more than a new one.

    Args:
        sync: part of its speed that a fork loses.
        placed: jobs that may be forked if `Facts.forks` says so; those who run in several pools already are left alone.
        use, rate: what they have; changed in place.
    """
    rows = np.array(placed, dtype=np.int64)
    alone = (use[rows] > 0).sum(axis=1) == 1
    rows = rows[alone & (facts.forks[rows] > 1) & ~facts.pinned[rows]]
    parts, total = np.ones(len(rows)), rate[rows].copy()
    free = facts.capacity - use.sum(axis=0)
    while len(rows):
        gain = _gain(facts, sync, rows, use[rows], rate[rows], total)
        takes = (facts.rate[rows] > 0) & (facts.use[rows] <= free) & (parts < facts.forks[rows])[:, None]
        gain = np.where(takes, gain, 0.0)
        row, pool = np.unravel_index(int(np.argmax(gain)), gain.shape)
        if not gain[row, pool] > 0:
            return
        job = int(rows[row])
        parts[row] += 1
        total[row] += facts.rate[job, pool]
        use[job, pool] += facts.use[job, pool]
        free[pool] -= facts.use[job, pool]
        rate[job] = total[row] * (1.0 - sync)


def _gain(
    facts: Facts, sync: float, rows: IntArray, use: FloatArray, rate: FloatArray, total: FloatArray
) -> FloatArray:
    """Seconds that one part more on each pool saves these jobs, per accelerator (m, p); below 0: it costs some."""
    restart_s, missing = facts.restart_s[rows], facts.held[rows] - use
    before_s = needed_s(facts.left_steps[rows], rate) + np.where((missing == 0).all(axis=1), 0.0, restart_s)
    faster = (total[:, None] + facts.rate[rows]) * (1.0 - sync)
    becomes_held = ((missing != 0).sum(axis=1) == 1)[:, None] & (missing == facts.use[rows]) & (missing > 0)
    after_s = needed_s(facts.left_steps[rows][:, None], faster) + np.where(becomes_held, 0.0, restart_s[:, None])
    return (before_s[:, None] - after_s) / np.maximum(facts.use[rows], 1.0)


def most_by_forking(facts: Facts, prices: FloatArray) -> FloatArray:
    """The most that jobs which may fork could gain per round at the prices: an upper bound, >= 0 (n,).

    k parts are at most k times as fast as the fastest, and cost at least k times the cheapest.
    """
    cost = np.where(facts.rate > 0, facts.use * prices, np.inf).min(axis=1, initial=np.inf)
    fastest = facts.rate.max(axis=1, initial=0.0)
    may = (fastest > 0) & (facts.forks > 1)
    most = np.zeros(len(facts))
    for parts in range(2, int(min(facts.forks.max(initial=1), facts.capacity.sum())) + 1):
        value = _alone(facts, parts * fastest)
        counts = may & (facts.forks >= parts)
        gain = value.utility / value.rounds - parts * np.where(counts, cost, 0.0)
        most = np.maximum(most, np.where(counts, gain, 0.0))
    return most


def _alone(facts: Facts, rate: FloatArray) -> Worth:
    return worth(facts.best_s, facts.age_s, needed_s(facts.left_steps, rate), facts.round_s)
