"""Hadar: places jobs one by one in every round, at prices that rise with the allocated part of each pool.

Symbols: L is the length of a round; eta4 is the lowest price as a fraction of the smallest job value. Shapes: n jobs, p
pools. docs/policies.md states which guarantees of the theory it does not keep. In one round

    k[r] = L[r] (U[r] / L[r]) ^ (gamma[r] / c[r])              the price, exponential in what has been given away
    u[j, r] = utility / (gang * rounds left),   U[r] = max_j u[j, r],   L[r] = eta4 min_j u[j, r]

Without the moves to faster pools that stayed free, prices would push jobs to slow pools while fast pools stay idle.
Forks: jobs that were placed take further parts on accelerators that stayed free, each part a whole gang in one pool
with steps of its own, averaged now and then; so a fork's speed is the sum of its parts' speeds, less what averaging
costs. No job waits because of a fork: forks take what is left. What is decided here is a heuristic: the paper's
guarantee needs bookings that are kept, and these are for one round.

The best gang of each job at given prices (FIND_ALLOC) is sought among those that fit what is free. Jobs are rigid gangs
with a speed on each pool; one pool stands for one type. Candidates of a job, its pools from the fastest down: all
workers in that pool; and, where the gang may be mixed, the cheapest accelerators of all pools at least that fast. A
price is in utility per accelerator and round, and is paid for every round until the end: otherwise long and short jobs
would cost the same.
"""

import dataclasses
from typing import Annotated, ClassVar

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.classes.class_problem import relative_gap
from optimizer.decision import BoundReport, Memory, MultiPoolGangs, Plan, Quote
from optimizer.policy import Newcomer
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import pool_columns, usable_columns


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HadarJobs:
    """The facts of all jobs, one row per job of the problem, in its order."""

    round_s: float
    #: Higher classes choose first (n,).
    priority_class: IntArray
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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
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
        priority_class=jobs.priority_class,
        arrived_at=jobs.submitted_at,
        age_s=np.maximum(problem.at - jobs.submitted_at, 0.0),
        best_s=np.divide(left + done, fastest, out=np.zeros(n), where=fastest > 0),
        left_steps=left,
        restart_s=jobs.start_s,
        rate=rate,
        use=use,
        column=column,
        held=held,
        running=running,
        running_rate=np.where(running >= 0, np.append(columns.steps_per_s, 0.0)[running], 0.0),
        pinned=(running >= 0) & jobs.stays,
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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
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


UNIT = "utility per accelerator and round"
NAME = "utility per round of those placed, against weak duality at the quoted prices"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PriceBounds:
    """The parameters of the price curve of each pool, and the highest value of each job."""

    #: L and ln(U/L) of each pool (p,); 0 where no job could use the pool.
    floor: FloatArray
    steepness: FloatArray
    capacity: FloatArray
    #: The most that one accelerator-round is worth to the job on any pool (n,); 0 for a job that can run nowhere.
    density: FloatArray

    def prices(self, given: FloatArray) -> FloatArray:
        """Returns the price of each pool (p,) when so many of its accelerators have been given away (p,)."""
        part = np.divide(given, self.capacity, out=np.zeros(len(given)), where=self.capacity > 0)
        prices: FloatArray = self.floor * np.exp(self.steepness * part)
        return prices


def price_bounds_of(facts: HadarJobs, eta4: float) -> PriceBounds:
    """Returns the bounds of prices that follow from the current jobs, each valued where it would run alone on each
    pool.
    """
    alone = hadar_value(
        facts.best_s[:, None], facts.age_s[:, None], run_time_s(facts.left_steps[:, None], facts.rate), facts.round_s
    )
    per_round = np.zeros(facts.rate.shape)
    np.divide(alone.utility, facts.use * alone.rounds, out=per_round, where=facts.rate > 0)
    # A job at its end is worth nothing: it must not make the floor 0.
    counts = per_round > 0
    most = per_round.max(axis=0, initial=0.0)
    least = eta4 * np.where(counts, per_round, np.inf).min(axis=0, initial=np.inf)
    used = most > 0
    floor = np.where(used, least, 0.0)
    steepness = np.log(np.divide(most, floor, out=np.ones(len(most)), where=used))
    return PriceBounds(floor, steepness, facts.capacity, per_round.max(axis=1, initial=0.0))


def fork_jobs(facts: HadarJobs, sync: float, placed: list[int], use: FloatArray, rate: FloatArray) -> None:
    """Gives free accelerators, one part at a time, to the job that a part brings nearest to its end, in seconds saved.

    Seconds count per accelerator and with the restart, so a fork that goes on is worth more than a new one.

    Args:
        sync: part of its speed that a fork loses. placed: jobs that may be forked if `HadarJobs.forks` says so; those
        that run in several pools already are left alone. use, rate: accelerators and speed; changed in place.
    """
    rows = np.array(placed, dtype=np.int64)
    alone = (use[rows] > 0).sum(axis=1) == 1
    rows = rows[alone & (facts.forks[rows] > 1) & ~facts.pinned[rows]]
    parts, total = np.ones(len(rows)), rate[rows].copy()
    free = facts.capacity - use.sum(axis=0)
    while len(rows):
        faster = (total[:, None] + facts.rate[rows]) * (1.0 - sync)
        gain = _seconds_saved(facts, rows, use[rows], rate[rows], faster)
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


def _seconds_saved(
    facts: HadarJobs, rows: IntArray, use: FloatArray, rate: FloatArray, faster: FloatArray
) -> FloatArray:
    """Returns the seconds per accelerator that one more part on each pool saves these jobs, which makes them so much
    `faster` (m, p); negative where a part costs time.
    """
    restart_s, missing = facts.restart_s[rows], facts.held[rows] - use
    before_s = run_time_s(facts.left_steps[rows], rate) + np.where((missing == 0).all(axis=1), 0.0, restart_s)
    becomes_held = ((missing != 0).sum(axis=1) == 1)[:, None] & (missing == facts.use[rows]) & (missing > 0)
    after_s = run_time_s(facts.left_steps[rows][:, None], faster) + np.where(becomes_held, 0.0, restart_s[:, None])
    return (before_s[:, None] - after_s) / np.maximum(facts.use[rows], 1.0)


#: The jobs that are offered gangs in one round: the most valuable ones, at least so many in all, or this many for each
#: accelerator.
_LEAST_OFFERED = 256
_OFFERED_PER_ACCELERATOR = 4
#: The factor of speed from which on a pool counts as faster.
_FASTER = 1.02


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HadarRound:
    """The accelerators that each job gets in one round."""

    #: Accelerators of each pool (n, p), and steps per second (n,); 0 for those who wait.
    use: FloatArray
    rate: FloatArray
    #: The rows of placed jobs in the order of placement, higher classes first; then of waiting jobs, by class and
    #: density (n,).
    order: IntArray
    #: Prices after all jobs were placed (p,).
    prices: FloatArray
    market: OfferMarket


def plan_hadar_round(facts: HadarJobs, ways: "Hadar") -> HadarRound:
    """Returns the placements, moves and forks of one round, with the prices at their end."""
    bounds, market = price_bounds_of(facts, ways.eta4), OfferMarket(facts, ways.comm)
    use, rate = np.zeros(facts.rate.shape), np.zeros(len(facts))
    placed = np.flatnonzero(facts.pinned).tolist()
    use[placed] = facts.held[placed]
    rate[placed] = facts.running_rate[placed]
    least = 0.0 if ways.strict else -np.inf
    given = use.sum(axis=0)
    offered = _offered(facts, bounds)
    for priority_class in np.unique(facts.priority_class[offered])[::-1]:
        waiting = offered[facts.priority_class[offered] == priority_class]
        while len(waiting):
            offers = market.offers(waiting, bounds.prices(given), facts.capacity - given)
            density = np.where(offers.payoff[waiting] > least, offers.density[waiting], -np.inf)
            best = int(np.argmax(density))
            if density[best] == -np.inf:
                break
            row = int(waiting[best])
            use[row], rate[row] = _taken(facts, offers, row)
            given += use[row]
            placed.append(row)
            # Free accelerators only become fewer: a job that fits nowhere now fits nowhere later.
            fits = offers.payoff[waiting] > -np.inf
            fits[best] = False
            waiting = waiting[fits]
    _upgrade(facts, placed, use, rate)
    fork_jobs(facts, ways.sync, placed, use, rate)
    rest = np.setdiff1d(np.arange(len(facts)), placed)
    rest = rest[np.lexsort((rest, facts.arrived_at[rest], -bounds.density[rest], -facts.priority_class[rest]))]
    order = np.concatenate([np.array(placed, dtype=np.int64), rest])
    return HadarRound(use, rate, order, bounds.prices(use.sum(axis=0)), market)


def _taken(facts: HadarJobs, offers: GangOffers, row: int) -> tuple[FloatArray, float]:
    """Returns the accelerators of each pool, and the rate, of a job's best candidate (p,)."""
    pool = int(offers.pool[row])
    if pool < 0:
        return offers.use[row], float(offers.rate[row])
    use = np.zeros(len(facts.capacity))
    use[pool] = facts.use[row, pool]
    return use, float(facts.rate[row, pool])


def _offered(facts: HadarJobs, bounds: PriceBounds) -> IntArray:
    """Returns the rows of the jobs that are offered gangs, by arrival, then by row: ties go to the first. Where there
    are too many, higher classes come first.
    """
    rows = np.flatnonzero((bounds.density > 0) & ~facts.pinned)
    most = max(_LEAST_OFFERED, int(_OFFERED_PER_ACCELERATOR * facts.capacity.sum()))
    if len(rows) > most:
        keys = (rows, facts.arrived_at[rows], -bounds.density[rows], -facts.priority_class[rows])
        rows = rows[np.lexsort(keys)[:most]]
    return rows[np.lexsort((rows, facts.arrived_at[rows]))]


def _upgrade(facts: HadarJobs, placed: list[int], use: FloatArray, rate: FloatArray) -> None:
    """Moves placed jobs to the fastest pool with room, counting their own accelerators as free, while any job gains.

    A move must save more than its restart costs: close to its end a job gains nothing. Every move makes a rate at
    least 2 % larger, so the loop ends.
    """
    free = facts.capacity - use.sum(axis=0)
    moved = True
    while moved:
        moved = False
        for row in placed:
            pool = -1 if facts.pinned[row] else _faster(facts, row, free + use[row], use[row], float(rate[row]))
            if pool >= 0:
                free += use[row]
                use[row], rate[row] = 0.0, facts.rate[row, pool]
                use[row, pool] = facts.use[row, pool]
                free -= use[row]
                moved = True


def _faster(facts: HadarJobs, row: int, free: FloatArray, use: FloatArray, rate: float) -> int:
    """Returns the fastest pool with room in which the job is faster and ends sooner than now; -1 where
    there is none.
    """
    rates = np.where(facts.use[row] <= free, facts.rate[row], 0.0)
    pool = int(np.argmax(rates))
    if not rates[pool] >= _FASTER * rate > 0:
        return -1
    there = np.zeros(len(free))
    there[pool] = facts.use[row, pool]
    before, after = _left_s(facts, row, use, rate), _left_s(facts, row, there, float(rates[pool]))
    return pool if after < before else -1


def _left_s(facts: HadarJobs, row: int, use: FloatArray, rate: float) -> float:
    restart_s = 0.0 if (use == facts.held[row]).all() else float(facts.restart_s[row])
    return float(facts.left_steps[row]) / rate + restart_s


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Hadar:
    """Primal-dual scheduling in rounds; a job's utility is its time alone over its time in the system.

    Prices rise exponentially with the allocated part of a pool. The job with the largest surplus per accelerator and
    round is placed next, in its best gang at those prices; afterwards jobs move to faster pools with free
    accelerators. Source: our reading of Sultana et al., IPDPS 2024, made work-conserving. The policy uses job lengths,
    and estimates unknown ones from the work done. It does not bound waiting times (jobs can starve), so it is not a
    default.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:HADAR"
    #: Every round is decided from scratch.
    moves: ClassVar[bool] = True
    #: It makes gangs over several pools of whole gangs' speeds in each, and reads none that are listed.
    makes_own_mixes: ClassVar[bool] = True
    round_s: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False, description="Length of a round in seconds: the unit of time of the prices."),
    ] = 360.0
    mixed: Annotated[
        bool,
        Field(
            description="True: a gang may span several accelerator types, paced by its slowest rank, where "
            "jobs and scheduler allow it. False: one pool per gang."
        ),
    ] = True
    comm: Annotated[
        float, Field(ge=0, lt=1, description="Fraction of its speed that a mixed gang loses to communication.")
    ] = 0.0
    sync: Annotated[
        float,
        Field(
            ge=0, lt=1, description="Fraction of the summed speed of its parts that a forked job loses to averaging."
        ),
    ] = 0.05
    eta4: Annotated[
        float, Field(gt=0, le=1, description="Price of an empty pool, as a fraction of the smallest job value on it.")
    ] = 0.25
    strict: Annotated[
        bool,
        Field(
            description="True: run only jobs with positive surplus at the prices, as the published admission "
            "algorithm does, even if accelerators stay idle. False: run jobs while capacity "
            "lasts."
        ),
    ] = False

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan of one round. The memory is empty: prices start again each round."""
        facts = hadar_jobs_of(problem, self.round_s, self.mixed)
        found = plan_hadar_round(facts, self)
        column, added = _columns_of(problem, facts, found)
        surplus = found.market.surplus(found.prices)
        plan = Plan(
            column=column,
            rows=found.order,
            quote=Quote(found.prices, UNIT, 1.0),
            surplus=surplus,
            yardstick=_yardstick(facts, found, surplus),
            added=added,
        )
        return plan, None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the utility per round of the time that each configuration would take, its start included (c,)."""
        speed = newcomer.steps_per_s
        fastest = float(speed.max(initial=0.0))
        if fastest <= 0:
            return np.zeros(len(speed))
        left = newcomer.remaining_steps
        if not np.isfinite(left):
            guessed = newcomer.length_s * fastest - newcomer.done_steps
            left = max(guessed if np.isfinite(guessed) else newcomer.done_steps, fastest * self.round_s)
        best_s = np.full(len(speed), (left + newcomer.done_steps) / fastest)
        lengths_s = run_time_s(np.full(len(speed), left), speed) + newcomer.restart_s
        found = hadar_value(best_s, np.full(len(speed), newcomer.waited_s), lengths_s, self.round_s)
        return found.utility / found.rounds


def _columns_of(problem: Problem, facts: HadarJobs, found: HadarRound) -> tuple[IntArray, Columns | None]:
    """Returns the column of each job, -1 for a waiting job, and the columns of mixed gangs and forks that were made,
    None without any.
    """
    placed = (found.use > 0).any(axis=1)
    column = np.full(len(facts), -1, dtype=np.int64)
    gangs = (found.use > 0) & (found.use == facts.use)
    alone = (gangs.sum(axis=1) == 1) & ((found.use > 0).sum(axis=1) == 1)
    column[alone] = facts.column[alone, np.nonzero(found.use[alone])[1]]
    stays = placed & (found.use == facts.held).all(axis=1) & (facts.running >= 0)
    column[stays] = facts.running[stays]
    mixed = np.flatnonzero(placed & ~alone & ~stays)
    if not len(mixed):
        return column, None
    column[mixed] = len(problem.columns) + np.arange(len(mixed))
    return column, MultiPoolGangs(mixed, found.rate[mixed], found.use[mixed]).columns


def _yardstick(facts: HadarJobs, found: HadarRound, surplus: FloatArray) -> BoundReport:
    """Returns a bound report: the utility per round of placed jobs, against a bound on any packing of the round
    (surpluses plus the value of pools).
    """
    lengths_s = run_time_s(facts.left_steps, found.rate)
    lengths_s = lengths_s + np.where((found.use == facts.held).all(axis=1), 0.0, facts.restart_s)
    reached = hadar_value(facts.best_s, facts.age_s, lengths_s, facts.round_s)
    objective = float((reached.utility / reached.rounds).sum())
    bound = float(surplus.sum() + found.prices @ facts.capacity)
    return BoundReport(NAME, UNIT, objective, bound, relative_gap(objective, bound), maximise=True)
