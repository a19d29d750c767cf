"""Hadar: places jobs one by one in every round, at prices that rise with the allocated part of each pool.

Symbols: L is the length of a round; eta4 is the lowest price as a fraction of the smallest job value.
docs/hadar.md derives it, and states which guarantees of the theory it does not keep. In one round

    k[r] = L[r] (U[r] / L[r]) ^ (gamma[r] / c[r])              the price, exponential in what has been given away
    u[j, r] = utility / (gang * rounds left),   U[r] = max_j u[j, r],   L[r] = eta4 min_j u[j, r]

Without the moves to faster pools that stayed free, prices would push jobs to slow pools while fast pools stay idle.
Forks: jobs that were placed take further parts on accelerators that stayed free, each part a whole gang in one pool
with steps of its own, averaged now and then; so a fork's speed is the sum of its parts' speeds, less what averaging
costs. No job waits because of a fork: forks take what is left. What is decided here is a heuristic: the paper's
guarantee needs bookings that are kept, and these are for one round.
"""

import dataclasses
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.assignment.hadar_offers import GangOffers, HadarJobs, OfferMarket, hadar_jobs_of, hadar_value, run_time_s
from optimizer.classes.class_problem import relative_gap
from optimizer.decision import BoundReport, Memory, MultiPoolGangs, Plan, Quote
from optimizer.policy import Newcomer
from optimizer.problem import Columns, FloatArray, IntArray, Problem

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
        gain = _seconds_saved(facts, sync, rows, use[rows], rate[rows], total)
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
    facts: HadarJobs, sync: float, rows: IntArray, use: FloatArray, rate: FloatArray, total: FloatArray
) -> FloatArray:
    """Returns the seconds per accelerator that one more part on each pool saves these jobs (m, p); negative where a
    part costs time.
    """
    restart_s, missing = facts.restart_s[rows], facts.held[rows] - use
    before_s = run_time_s(facts.left_steps[rows], rate) + np.where((missing == 0).all(axis=1), 0.0, restart_s)
    faster = (total[:, None] + facts.rate[rows]) * (1.0 - sync)
    becomes_held = ((missing != 0).sum(axis=1) == 1)[:, None] & (missing == facts.use[rows]) & (missing > 0)
    after_s = run_time_s(facts.left_steps[rows][:, None], faster) + np.where(becomes_held, 0.0, restart_s[:, None])
    return (before_s[:, None] - after_s) / np.maximum(facts.use[rows], 1.0)


#: The jobs that are offered gangs in one round: the most valuable ones, at least so many in all, or this many for each
#: accelerator.
_LEAST_OFFERED = 256
_OFFERED_PER_ACCELERATOR = 4
#: The factor of speed from which on a pool counts as faster.
_FASTER = 1.02


@dataclasses.dataclass(frozen=True, slots=True)
class HadarParameters:
    """Parameters of a round."""

    eta4: float
    comm: float
    #: Part of its speed that a forked job loses.
    sync: float
    #: If True, no job is placed whose net utility is not positive.
    strict: bool


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HadarRound:
    """The accelerators that each job gets in one round."""

    #: Accelerators of each pool (n, p), and steps per second (n,); 0 for those who wait.
    use: FloatArray
    rate: FloatArray
    #: The rows of placed jobs in the order of placement, then of waiting jobs, the highest density first (n,).
    order: IntArray
    #: Prices after all jobs were placed (p,).
    prices: FloatArray
    market: OfferMarket


def plan_hadar_round(facts: HadarJobs, ways: HadarParameters) -> HadarRound:
    """Returns the placements, moves and forks of one round, with the prices at their end."""
    bounds, market = price_bounds_of(facts, ways.eta4), OfferMarket(facts, ways.comm)
    use, rate = np.zeros(facts.rate.shape), np.zeros(len(facts))
    placed = np.flatnonzero(facts.pinned).tolist()
    use[placed] = facts.held[placed]
    rate[placed] = facts.running_rate[placed]
    waiting = _offered(facts, bounds)
    least = 0.0 if ways.strict else -np.inf
    given = use.sum(axis=0)
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
    rest = rest[np.lexsort((rest, facts.arrived_at[rest], -bounds.density[rest]))]
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
    """Returns the rows of the jobs that are offered gangs, by arrival, then by row: ties go to the first."""
    rows = np.flatnonzero((bounds.density > 0) & ~facts.pinned)
    most = max(_LEAST_OFFERED, int(_OFFERED_PER_ACCELERATOR * facts.capacity.sum()))
    if len(rows) > most:
        rows = rows[np.lexsort((rows, facts.arrived_at[rows], -bounds.density[rows]))[:most]]
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

    @property
    def moves(self) -> bool:
        """Returns True: every round is decided from scratch."""
        return True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan of one round. The memory is empty: prices start again each round."""
        facts = hadar_jobs_of(problem, self.round_s, self.mixed)
        found = plan_hadar_round(facts, HadarParameters(self.eta4, self.comm, self.sync, self.strict))
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
