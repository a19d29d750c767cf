"""How many machines to rent, where an hour of waiting costs money.

    maximise   sum_m v[m] rate[m](x) / best[m]  -  sum_p (usd[p] rent[p] + (fetch[p] - usd[p]) (rent[p] - held[p])+)
    s.t.       time rows;   sum use x <= base[p] + rent[p];   0 <= rent[p] <= most[p];   limits of entities

v[m] is what an hour of job m at its best speed is worth in USD (its own value, else the administrator's cost of
delay), base what is owned, most what may be rented, held what is rented now or on its way, fetch the price per useful
hour of a machine that is not there yet:

    fetch = usd * (1 + hysteresis) * max(use, minimum billing) / use      use: seconds of work for it once it is there

Booting is not paid, but work goes on meanwhile: a machine that comes when all is done is of no use at any price, and a
pool of such machines fetches none. A machine that is held, or on its way, costs its market price: what is spent is
spent. The hysteresis stands for the restart of the job that moves to the machine. At the optimum a pool that rents is
worth at least its market price, one that fetches at least `fetch`, and one that could rent more at most what more
costs (complementary slackness).

Machines are whole: each pool's count is settled in turn by solving the linear program at both neighbouring counts,
then every count is moved by one machine as long as that pays (the value is concave in each count, so no single pool
could then do better). The marginal values shown to users are those finite differences. This module decides counts
only; the policy decides which job runs where. The program itself is `rental_program`; `limit_rows` says how limits
of entities bind it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from optimizer.assignment.limit_rows import without_forbidden
from optimizer.classes.segments import max_by
from optimizer.decision import Status
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import usable_columns

if TYPE_CHECKING:
    from optimizer.renting.rental_program import FractionalRental, RentalProgram


#: The part of its price by which a machine must be worth more before it is fetched; else wandering prices would move
#: jobs about.
FETCH_HYSTERESIS = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class FetchCosts:
    """The use and the price of machines that would have to be requested."""

    #: Whether there is work for such a machine when it comes (p,).
    useful: BoolArray
    #: Price of an accelerator per useful hour, USD, at least its market price (p,).
    usd_per_h: FloatArray


def fetch_costs(problem: Problem, value: FloatArray, largest: FloatArray) -> FetchCosts:
    """Returns the use and the price of machines that are not there yet.

    Args:
        problem: n jobs, p pools.
        value: of an hour of each job, USD; a job with 0 rents nothing (n,).
        largest: accelerators of each pool if all were rented (p,).
    """
    pools = problem.pools
    if not (pools.boot_s.any() or pools.minimum_billing_s.any()):
        return FetchCosts(np.ones(len(pools), dtype=bool), pools.usd_per_h)
    boot_s, least_s = (each if len(each) else np.zeros(len(pools)) for each in (pools.boot_s, pools.minimum_billing_s))
    use_s = _use_s(problem, value, largest, boot_s)
    ends = (use_s > 0) & np.isfinite(use_s)
    times = np.divide(np.maximum(use_s, least_s), use_s, out=np.ones(len(pools)), where=ends)
    return FetchCosts(use_s > 0, pools.usd_per_h * times * (1.0 + FETCH_HYSTERESIS))


def _use_s(problem: Problem, value: FloatArray, largest: FloatArray, boot_s: FloatArray) -> FloatArray:
    """Returns the seconds of work for a machine of each pool after its boot (p,); inf with a job of unknown length.

    It is the larger of two: what is left of the longest job, if until then it runs at its best on present machines;
    and what is left of all jobs, one after another on all machines, if present machines work on it until then.
    """
    columns, jobs, pools = problem.columns, problem.jobs, problem.pools
    counts = usable_columns(columns, largest) & (value[columns.job] > 0)
    now = np.where(usable_columns(columns, pools.capacity), columns.steps_per_s, 0.0)
    pace = max_by(columns.job, now, len(jobs))[columns.job][columns.use_column]
    speed = np.where(counts, columns.steps_per_s, np.inf)[columns.use_column]
    left = jobs.remaining_steps[columns.job][columns.use_column]
    pool, taken = columns.use_pool, np.where(np.isfinite(speed), columns.use_count, 0.0)
    longest_s, work = np.zeros(len(pools)), np.zeros(len(pools))
    late = np.where(np.isfinite(left), np.maximum(left - pace * boot_s[pool], 0.0), left)
    np.maximum.at(longest_s, pool, np.where(taken > 0, late, 0.0) / speed)
    all_left = np.multiply(left, taken, out=np.zeros(len(left)), where=taken > 0)  # not inf x 0
    np.add.at(work, pool, all_left / speed)
    queued = np.maximum(work - boot_s * pools.capacity.sum(), 0.0)
    return np.asarray(np.maximum(longest_s, np.divide(queued, largest, out=np.zeros(len(pools)), where=largest > 0)))


#: Gains below this, in USD per hour, count as ties, which go to the machines held now.
_WORTHWHILE = 1e-6
#: The most moves of single machines after rounding; usually none or one is made.
_MAX_MOVES = 64


def _empty_array() -> FloatArray:
    return np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class Rental:
    """The machines to hold rented, with their value and its bound."""

    status: Status
    #: Machines to hold rented in each pool, including those held now (p,).
    machines: IntArray
    #: The accelerators of these machines in each pool (p,).
    accelerators: FloatArray
    #: Value less rent at these counts, and its upper bound if machines could be divided, in USD per hour.
    net_usd_per_h: float
    bound_usd_per_h: float
    #: The optimum with divisible machines: accelerators rented, and the price of each pool in USD per
    #: accelerator-hour (p,).
    fluid_accelerators: FloatArray
    fluid_prices: FloatArray
    #: Price per useful hour of an accelerator that would have to be fetched, minimum billing included (p,); empty where
    #: no program decided the counts.
    fetched_usd_per_h: FloatArray = field(default_factory=_empty_array)
    #: What one more accelerator-hour below each limit of an entity would gain, USD (`limit_rows.entity_limits`)
    #: (m,).
    limit_prices: FloatArray = field(default_factory=_empty_array)
    #: What solved the divisible optimum: "cvxpy/highs" or "highs"; empty where nothing was solved.
    path: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class MarginalValues:
    """The values of single machines, with all other counts as decided; users see them beside the prices."""

    #: Gross value of one machine more, USD/h; 0 where the quota allows none (p,).
    next_usd_per_h: FloatArray
    #: Gross value of the last machine rented, USD/h; 0 where none is (p,).
    last_usd_per_h: FloatArray


def rent_machines(problem: Problem, delay_usd_per_h: float) -> Rental | None:
    """Returns the machines that pay for themselves; None where nothing can be rented.

    Args:
        problem: a valid one.
        delay_usd_per_h: value of a job's hour where the job states none; 0: never rent for such a job.
    """
    sizes = accelerators_per_machine(problem)
    held = np.round(problem.pools.paid / sizes).astype(np.int64)
    if not _most_machines(problem).any():
        return None
    if not np.any(hourly_values(problem, delay_usd_per_h) > 0):
        return _unpriced(Status.EMPTY, np.zeros_like(held), sizes)
    program, most, fetched = _program(problem, delay_usd_per_h)
    fluid, path = program.divisible(most)
    if fluid is None:
        return _unpriced(Status.FAILED, held, sizes)
    counts = _improve(program, _whole_counts(program, fluid, most), most, held)
    if program.at(counts).net == -np.inf:
        return _unpriced(Status.FAILED, held, sizes)
    return Rental(
        status=Status.OPTIMAL,
        machines=counts,
        accelerators=counts.astype(np.float64) * sizes,
        net_usd_per_h=program.at(counts).net,
        bound_usd_per_h=fluid.net,
        fluid_accelerators=fluid.machines * sizes,
        fluid_prices=fluid.prices,
        limit_prices=fluid.limit_prices,
        fetched_usd_per_h=fetched,
        path=path,
    )


def at_accelerators(problem: Problem, rental: Rental, accelerators: FloatArray) -> Rental:
    """Returns the rental with so many accelerators instead (p,), and its value where jobs without one rent nothing."""
    machines = np.ceil(accelerators / accelerators_per_machine(problem) - 1e-9).astype(np.int64)
    net = _program(problem, 0.0)[0].at(machines).net
    return replace(rental, machines=machines, accelerators=accelerators, net_usd_per_h=net)


def marginal_values(problem: Problem, delay_usd_per_h: float, rental: Rental) -> MarginalValues:
    """Returns the values of one machine more and of the last one, from the same program at neighbouring counts."""
    counts = rental.machines
    following, last = np.zeros(len(counts)), np.zeros(len(counts))
    if rental.status is Status.OPTIMAL:
        program, most, _ = _program(problem, delay_usd_per_h)
        here, of_next, of_last = program.at(counts).net, program.usd_of(counts + 1), program.usd_of(counts)
        for pool, step in enumerate(np.eye(len(counts), dtype=np.int64)):
            if counts[pool] < most[pool]:
                following[pool] = max(program.at(counts + step).net - here + of_next[pool], 0.0)
            if counts[pool] > 0:
                last[pool] = max(here - program.at(counts - step).net + of_last[pool], 0.0)
    return MarginalValues(following, last)


def _program(problem: Problem, delay_usd_per_h: float) -> "tuple[RentalProgram, IntArray, FloatArray]":
    """Returns the program, the most machines of each pool (p,), and the price of an accelerator that would have to be
    fetched (p,).
    """
    from optimizer.renting.rental_program import RentalProgram  # imports a solver: only where it is needed

    problem = without_forbidden(problem)
    sizes, most, value = (
        accelerators_per_machine(problem),
        _most_machines(problem),
        hourly_values(problem, delay_usd_per_h),
    )
    held = np.round(problem.pools.paid / sizes).astype(np.int64)
    found = fetch_costs(problem, value, problem.pools.capacity - problem.pools.held + most * sizes)
    most = np.where(found.useful, most, np.minimum(most, held))
    return RentalProgram(problem, value, most, found.usd_per_h), most, found.usd_per_h


def _most_machines(problem: Problem) -> IntArray:
    """Returns the most machines of each pool that may be rented (p,)."""
    return np.floor(problem.pools.rentable / accelerators_per_machine(problem) + 1e-9).astype(np.int64)


def hourly_values(problem: Problem, delay_usd_per_h: float) -> FloatArray:
    """Returns what an hour of each job is worth, in USD (n,)."""
    stated = problem.jobs.value_usd_per_h
    return np.where(np.isnan(stated), delay_usd_per_h, stated)


def with_rental(problem: Problem, rental: Rental) -> Problem:
    """Returns the problem after the rental has been carried out."""
    pools = problem.pools
    capacity = pools.capacity - pools.held + rental.accelerators
    return replace(problem, pools=replace(pools, capacity=capacity, rented=rental.accelerators))


def _whole_counts(program: "RentalProgram", fluid: "FractionalRental", most: IntArray) -> IntArray:
    """Rounds the counts pool by pool, each to the better of its two neighbours, while later pools stay divisible;
    returns them.
    """
    low, high = np.zeros(len(most)), most.astype(np.float64)
    for pool in range(len(most)):
        below = np.floor(fluid.machines[pool] + 1e-9)
        above = min(np.ceil(fluid.machines[pool] - 1e-9), high[pool])
        if above > below:
            low[pool] = high[pool] = below
            less = _net(program.between(low, high))
            low[pool] = high[pool] = above
            more = _net(program.between(low, high))
            below = above if more > less + _WORTHWHILE else below
        low[pool] = high[pool] = below
    return low.astype(np.int64)


def _net(fluid: "FractionalRental | None") -> float:
    return -np.inf if fluid is None else fluid.net


def _improve(program: "RentalProgram", counts: IntArray, most: IntArray, held: IntArray) -> IntArray:
    """Moves single machines as long as that pays, and prefers the machines held now among equals;
    returns the counts.
    """
    if np.all(held <= most) and program.at(held).net >= program.at(counts).net - _WORTHWHILE:
        counts = held
    for _ in range(_MAX_MOVES):
        here = program.at(counts).net + _WORTHWHILE
        better = next((moved for moved in _moves(program, counts, most) if program.at(moved).net > here), None)
        if better is None:
            break
        counts = better
    return counts


def _moves(program: "RentalProgram", counts: IntArray, most: IntArray) -> Iterator[IntArray]:
    """Yields the counts with one machine more or less, the most promising first, except where prices prove that it
    does not pay.

    The value is concave in each count, so one more machine is worth at most its price, and the last one at least that.
    """
    worth = program.at(counts).prices * program.size
    more = np.where(counts < most, worth - program.usd_of(counts + 1), 0.0)
    less = np.where(counts > 0, program.usd_of(counts) - worth, 0.0)
    gain = np.concatenate((more, less))
    for move in np.argsort(-gain, kind="stable"):
        if gain[move] <= _WORTHWHILE:
            return
        moved = counts.copy()
        moved[move % len(counts)] += 1 if move < len(counts) else -1
        yield moved


def _unpriced(status: Status, counts: IntArray, sizes: FloatArray) -> Rental:
    """Returns a rental without prices: of no machines where no hour is worth anything, or of those held where the
    solver failed.
    """
    zeros = np.zeros(len(counts))
    return Rental(status, counts, counts.astype(np.float64) * sizes, 0.0, 0.0, zeros, zeros)


def accelerators_per_machine(problem: Problem) -> FloatArray:
    """Returns the accelerators on one machine of each pool; a machine without any counts as one (p,)."""
    return np.maximum(problem.pools.machine_size, 1.0)
