"""FIND_ALLOC of Hadar: the best gang of each job at given prices, among those that fit what is free.

Jobs are rigid gangs with a speed on each pool; one pool stands for one type. Candidates of a job, its pools from the
fastest down: all workers in that pool; and, where the gang may be mixed, the cheapest accelerators of all pools at
least that fast. A price is in utility per accelerator and round, and is paid for every round until the end: otherwise
long and short jobs would cost the same.

Shapes: n jobs, p pools.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import pool_columns, usable_columns


@dataclass(frozen=True, slots=True, eq=False)
class HadarJobs:
    """The facts of all jobs, one row per job of the problem, in its order."""

    round_s: float
    arrived_at: FloatArray
    #: Seconds in the system so far (n,).
    age_s: FloatArray
    #: Seconds that the whole job would take alone on its fastest pool (n,).
    best_s: FloatArray
    left_steps: FloatArray
    #: Cost of a start or a move, seconds (n,).
    restart_s: FloatArray
    #: Steps per second of the whole gang in one pool, 0 where it cannot run; accelerators it takes there (n, p).
    rate: FloatArray
    use: FloatArray
    #: Row of `Columns` of that configuration, -1 without one (n, p).
    column: IntArray
    #: Accelerators held now (n, p).
    held: FloatArray
    #: Row of `Columns` in which the job runs, -1 if it does not (n,).
    running: IntArray
    #: Steps per second there, 0 if it does not (n,).
    running_rate: FloatArray
    #: Jobs that run and cannot be stopped (n,).
    pinned: BoolArray
    #: Whether the gang may sit in several pools (n,).
    mixes: BoolArray
    #: The number of parts into which the job may be forked (n,).
    forks: FloatArray
    capacity: FloatArray

    def __len__(self) -> int:
        return len(self.age_s)


@dataclass(frozen=True, slots=True, eq=False)
class HadarValue:
    """What configurations are worth, in arrays of any shape: their utility (0: the job never ends there), and the
    rounds until the end.
    """

    utility: FloatArray
    rounds: FloatArray


def hadar_value(best_s: FloatArray, age_s: FloatArray, needed_s: FloatArray, round_s: float) -> HadarValue:
    """Returns the utility, best_s / (time in the system at the end), and the rounds until the end, max(1, needed_s /
    round_s).
    """
    ends = np.isfinite(needed_s)
    utility = np.where(ends, best_s / np.maximum(age_s + needed_s, 1e-9), 0.0)
    return HadarValue(utility, np.where(ends, np.maximum(1.0, needed_s / round_s), 1.0))


def run_time_s(steps: FloatArray, rate: FloatArray) -> FloatArray:
    """Returns the seconds that these steps take at a rate in steps per second; inf where the rate is 0."""
    lengths = np.full(rate.shape, np.inf)
    np.divide(np.broadcast_to(steps, rate.shape), rate, out=lengths, where=rate > 0)
    return lengths


def hadar_jobs_of(problem: Problem, round_s: float, mixed: bool) -> HadarJobs:
    """Returns the facts of the problem's jobs as rigid gangs: of several counts on one pool the smallest
    is the gang.
    """
    jobs, columns, pools = problem.jobs, problem.columns, problem.pools
    n, p = len(jobs), len(pools)
    chosen = pool_columns(columns, usable_columns(columns, pools.capacity))
    job = columns.job[chosen.column]
    rate, use, column = np.zeros((n, p)), np.zeros((n, p)), np.full((n, p), -1)
    rate[job, chosen.pool] = columns.steps_per_s[chosen.column]
    use[job, chosen.pool], column[job, chosen.pool] = chosen.count, chosen.column
    held, running = np.zeros((n, p)), np.full(n, -1)
    runs = np.flatnonzero(columns.running)
    running[columns.job[runs]] = runs
    ours = columns.running[columns.use_column]
    held[columns.job[columns.use_column[ours]], columns.use_pool[ours]] = columns.use_count[ours]
    fastest = rate.max(axis=1, initial=0.0)
    done = jobs.done_steps if len(jobs.done_steps) else np.zeros(n)
    left = _left_steps(problem, fastest, done, round_s)
    return HadarJobs(
        round_s=round_s,
        arrived_at=jobs.submitted_at,
        age_s=np.maximum(problem.at - jobs.submitted_at, 0.0),
        best_s=np.divide(left + done, fastest, out=np.zeros(n), where=fastest > 0),
        left_steps=left,
        restart_s=jobs.restart_s if len(jobs.restart_s) else np.zeros(n),
        rate=rate,
        use=use,
        column=column,
        held=held,
        running=running,
        running_rate=np.where(running >= 0, np.append(columns.steps_per_s, 0.0)[running], 0.0),
        pinned=(running >= 0) & jobs.pinned if len(jobs.pinned) else np.zeros(n, dtype=np.bool_),
        mixes=jobs.mixes & (use.max(axis=1, initial=0.0) > 1)
        if mixed and len(jobs.mixes)
        else np.zeros(n, dtype=np.bool_),
        forks=jobs.fork_max if len(jobs.fork_max) else np.ones(n),
        capacity=pools.capacity,
    )


def _left_steps(problem: Problem, fastest: FloatArray, done: FloatArray, round_s: float) -> FloatArray:
    """Returns the steps left (n,): as known, else by the submitter's guess, else as many as the job has made.

    A guess is never less than the steps of one round.
    """
    jobs = problem.jobs
    guessed = jobs.length_s if len(jobs.length_s) else np.full(len(jobs), np.inf)
    rest = np.where(np.isfinite(guessed), np.where(np.isfinite(guessed), guessed, 0.0) * fastest - done, done)
    return np.where(np.isfinite(jobs.remaining_steps), jobs.remaining_steps, np.maximum(rest, fastest * round_s))


def fork_surplus_bound(facts: HadarJobs, prices: FloatArray) -> FloatArray:
    """Returns an upper bound, >= 0, on what each job that may be forked could gain per round at the prices (n,).

    k parts are at most k times as fast as the fastest, and cost at least k times the cheapest.
    """
    cost = np.where(facts.rate > 0, facts.use * prices, np.inf).min(axis=1, initial=np.inf)
    fastest = facts.rate.max(axis=1, initial=0.0)
    may = (fastest > 0) & (facts.forks > 1)
    most = np.zeros(len(facts))
    for parts in range(2, int(min(facts.forks.max(initial=1), facts.capacity.sum())) + 1):
        value = _value_of_rate(facts, parts * fastest)
        counts = may & (facts.forks >= parts)
        gain = value.utility / value.rounds - parts * np.where(counts, cost, 0.0)
        most = np.maximum(most, np.where(counts, gain, 0.0))
    return most


def _value_of_rate(facts: HadarJobs, rate: FloatArray) -> HadarValue:
    return hadar_value(facts.best_s, facts.age_s, run_time_s(facts.left_steps, rate), facts.round_s)


@dataclass(frozen=True, slots=True, eq=False)
class GangOffers:
    """The best candidate of each job (n,)."""

    #: Utility minus the price of all rounds until the end; -inf where nothing fits.
    payoff: FloatArray
    #: Accelerators times rounds until the end.
    size: FloatArray
    #: The pool of a gang that stands in one pool; -1 for a mixed gang.
    pool: IntArray
    #: Accelerators of each pool, and steps per second, of mixed gangs; 0 for the others (n, p), (n,).
    use: FloatArray
    rate: FloatArray

    @property
    def density(self) -> FloatArray:
        """Net utility per accelerator and round (n,)."""
        return self.payoff / self.size


class OfferMarket:
    """The jobs of a round and their configurations. It keeps what depends on prices per pool, until the pool's price
    changes.
    """

    def __init__(self, facts: HadarJobs, comm: float) -> None:
        """`comm`: the part of its speed that a mixed gang loses to communication."""
        self._facts, self._comm = facts, comm
        #: Place of each pool when a job's pools are sorted from the fastest down (n, p).
        self._place = np.argsort(np.argsort(-facts.rate, axis=1, kind="stable"), axis=1, kind="stable")
        stays = (facts.held == facts.use) & (facts.held.sum(axis=1, keepdims=True) == facts.use)
        lengths_s = run_time_s(facts.left_steps[:, None], facts.rate) + np.where(stays, 0.0, facts.restart_s[:, None])
        alone = hadar_value(facts.best_s[:, None], facts.age_s[:, None], lengths_s, facts.round_s)
        # For gangs in one pool, by pool (p, n): when a price changes, only its row is computed again.
        self._runs = np.ascontiguousarray(facts.rate.T > 0)
        self._use = np.ascontiguousarray(facts.use.T)
        self._utility = np.ascontiguousarray(alone.utility.T)
        self._rounds = np.ascontiguousarray(alone.rounds.T)
        self._size = np.maximum(self._use * self._rounds, 1.0)
        self._payoff = np.full(self._use.shape, -np.inf)
        self._priced = np.full((2, len(facts.capacity)), np.nan)

    def offers(self, rows: IntArray, prices: FloatArray, free: FloatArray) -> GangOffers:
        """Returns the best candidate of each job, of equals the one in the first pool; mixed gangs only for the jobs
        in `rows`.

        Args:
            rows: jobs that are still to be placed.
            prices: per accelerator and round (p,).
            free: accelerators that candidates may take (p,).
        """
        self._reprice(prices, free)
        pool, every = np.argmax(self._payoff, axis=0), np.arange(len(self._facts))
        payoff, size = self._payoff[pool, every], self._size[pool, every]
        offers = GangOffers(payoff, size, pool, np.zeros(self._facts.rate.shape), np.zeros(len(every)))
        mixing = rows[self._facts.mixes[rows]]
        for place in range(1, len(prices)) if len(mixing) else ():
            mixed = self._mixed(mixing, place, prices, free)
            wins = mixed.payoff > offers.payoff[mixing]
            for name in ("payoff", "size", "pool", "use", "rate"):
                getattr(offers, name)[mixing[wins]] = getattr(mixed, name)[wins]
        return offers

    def _reprice(self, prices: FloatArray, free: FloatArray) -> None:
        for pool in np.flatnonzero((self._priced != (prices, free)).any(axis=0)).tolist():
            fits = self._runs[pool] & (self._use[pool] <= free[pool])
            gain = self._utility[pool] - self._size[pool] * prices[pool]
            self._payoff[pool] = np.where(fits, gain, -np.inf)
            self._priced[:, pool] = prices[pool], free[pool]

    def surplus(self, prices: FloatArray) -> FloatArray:
        """Returns the most that each job could gain per round at the prices if the whole fleet were free (n,), >= 0.

        An upper bound for mixed gangs and forks: their restart is left out, since what is held now is not among the
        candidates.
        """
        facts = self._facts
        fits = self._runs & (self._use <= facts.capacity[:, None])
        gain = self._utility / self._rounds - self._use * prices[:, None]
        most: FloatArray = np.where(fits, gain, 0.0).max(axis=0, initial=0.0)
        most = np.maximum(most, fork_surplus_bound(facts, prices))
        mixing = np.flatnonzero(facts.mixes)
        for place in range(1, len(prices)) if len(mixing) else ():
            offers = self._mixed(mixing, place, prices, facts.capacity)
            lengths_s = run_time_s(facts.left_steps[mixing], offers.rate)
            value = hadar_value(facts.best_s[mixing], facts.age_s[mixing], lengths_s, facts.round_s)
            per_round = np.where(offers.rate > 0, value.utility / value.rounds - offers.use @ prices, 0.0)
            most[mixing] = np.maximum(most[mixing], per_round)
        return most

    def _mixed(self, rows: IntArray, place: int, prices: FloatArray, free: FloatArray) -> GangOffers:
        """Returns, for each job, the cheapest gang from its fastest pools up to that place; at equal prices slower
        pools first.

        Workers are the same everywhere: a gang that takes more accelerators on one pool than on another has no
        mixture.
        """
        facts = self._facts
        rate, use = facts.rate[rows], facts.use[rows]
        among = (self._place[rows] <= place) & (rate > 0)
        gang = use.max(axis=1, initial=0.0)
        order = np.lexsort((rate, np.broadcast_to(prices, rate.shape)), axis=1)
        available = np.take_along_axis(np.where(among, np.floor(free), 0.0), order, axis=1)
        before = np.cumsum(available, axis=1) - available
        taken = np.zeros(rate.shape)
        np.put_along_axis(taken, order, np.clip(gang[:, None] - before, 0.0, available), axis=1)
        exists = self._is_mixture(taken, use, among, gang)
        slowest = np.where(taken > 0, rate, np.inf).min(axis=1, initial=np.inf)
        pace = np.where(exists, slowest * (1.0 - self._comm), 0.0)
        value = self._worth_of(rows, taken, pace)
        payoff = np.where(exists, value.utility - value.rounds * (taken @ prices), -np.inf)
        return GangOffers(payoff, np.maximum(gang * value.rounds, 1.0), np.full(len(rows), -1), taken, pace)

    def _is_mixture(self, taken: FloatArray, use: FloatArray, among: BoolArray, gang: FloatArray) -> BoolArray:
        several = (taken > 0).sum(axis=1) > 1
        whole = taken.sum(axis=1) == gang
        equal = (np.where(among, use, gang[:, None]) == gang[:, None]).all(axis=1)
        found: BoolArray = several & whole & equal
        return found

    def _worth_of(self, rows: IntArray, use: FloatArray, rate: FloatArray) -> HadarValue:
        facts = self._facts
        moves = (use != facts.held[rows]).any(axis=1)
        lengths_s = run_time_s(facts.left_steps[rows], rate) + np.where(moves, facts.restart_s[rows], 0.0)
        return hadar_value(facts.best_s[rows], facts.age_s[rows], lengths_s, facts.round_s)
