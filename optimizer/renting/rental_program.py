"""The value of a fleet as a function of the machines rented: the linear program of `machine_rental`.

HiGHS receives the program once per problem. Calls differ only in the bounds of the counts, so each but the first
starts from the basis of the one before, and takes a few pivots. Importing this module imports highspy.
"""

from dataclasses import dataclass, field

import highspy
import numpy as np
from scipy import sparse

from optimizer.assignment.limit_rows import RentalLimits, RentedTiers, money_cells
from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.class_problem import ClassProblem
from optimizer.classes.segments import max_by
from optimizer.lp.engine_choice import CVXPY_MONEY_CELLS
from optimizer.lp.highs import highs_model, simplex_solver
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.utility.fair_share import usable_columns

_TOLERANCE = 1e-9
_SIMPLEX_ITERATIONS = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class FractionalRental:
    """An optimum in which machines may be divided: their numbers (p,), prices in USD per accelerator-hour (p,), and
    value less rent in USD per hour.

    It also has what one more accelerator-hour below each limit of an entity would gain, in USD (m,).
    """

    machines: FloatArray
    prices: FloatArray
    net: float
    limit_prices: FloatArray = field(default_factory=lambda: np.zeros(0))


class RentalProgram:
    """The best value less rent for any range of machine counts. Its columns are the shares, then the machines rented,
    those of them that would have to be fetched, and those that are paid for already.
    """

    def __init__(self, problem: Problem, value: FloatArray, most: IntArray, fetched_usd_per_h: FloatArray) -> None:
        """The arguments are the jobs' values in USD per hour at best speed (n,), the most machines of each pool (p,),
        and the price of an accelerator that would have to be fetched (p,).
        """
        pools = problem.pools
        self.size = np.maximum(pools.machine_size, 1.0)
        base = pools.capacity - pools.held
        largest = base + most * self.size
        self._paid = pools.paid / self.size
        self._usd_kept = pools.usd_per_h * self.size
        #: Machines that are paid for already, and so cost nothing now.
        self._free = pools.prepaid / self.size if len(pools.prepaid) else np.zeros(len(pools))
        self._usd_fetched = fetched_usd_per_h * self.size
        worth = _usd_earned(problem, value, largest)
        limits = RentalLimits.of(problem, value > 0)
        by_limits = [] if limits is None else [limits.signature]
        classes = aggregate_problem(problem, worth > 0, [worth], [value, *by_limits])
        class_problem = classes.problem
        most_below = np.zeros(0) if limits is None else limits.most
        if limits is not None:
            class_problem = limits.rows_beside(class_problem, classes.classes)
        #: The scale of each row: of the pools, then of the limits.
        self._scale = np.maximum(np.concatenate((largest, most_below)), 1.0)
        self._classes, self._shares = class_problem.classes, class_problem.columns
        self._known: dict[tuple[int, ...], FractionalRental] = {}
        gross = classes.per_column(worth) * class_problem.size[class_problem.owner]
        self.class_problem, self.gross = class_problem, gross
        self.owned = np.concatenate((base, most_below))
        self._highs = simplex_solver(_SIMPLEX_ITERATIONS, _TOLERANCE)
        self._highs.passModel(self._model(class_problem, gross))
        self._machines = np.arange(self._shares, self._shares + len(pools), dtype=np.int32)

    def usd_of(self, counts: IntArray) -> FloatArray:
        """Returns the price in USD per hour of the last machine of each pool's count: present, on its way, or to be
        fetched (p,).
        """
        known = np.where(counts > self._free + 1e-9, self._usd_kept, 0.0)
        return np.where(counts > self._paid + 1e-9, self._usd_fetched, known)

    def divisible(self, most: IntArray) -> tuple[FractionalRental | None, str]:
        """Returns the optimum with at most `most` machines, and what solved it: cvxpy's statement, or HiGHS by
        matrices.
        """
        if money_cells(self.class_problem) > CVXPY_MONEY_CELLS:
            return self.between(np.zeros(len(most)), most.astype(np.float64)), "highs"
        from optimizer.renting.money_program import solve_money_program  # imports cvxpy: seconds, once a process

        found = solve_money_program(self.class_problem, self.gross, self.owned, self.tiers(most))
        if found is None:
            return self.between(np.zeros(len(most)), most.astype(np.float64)), "highs"
        p = len(most)
        machines = np.minimum(found.rented[:p] / self.size, most)
        prices, limit_prices = found.prices[:p], found.prices[p:]
        return FractionalRental(machines, prices, found.net_usd_per_h, limit_prices), "cvxpy/highs"

    def tiers(self, most: IntArray) -> RentedTiers:
        """Returns what can be rented, by its cost, without regard to limits."""
        largest = most * self.size
        paid = np.minimum(self._paid * self.size, largest)
        free = np.minimum(self._free * self.size, paid)
        fetched = np.maximum(self._usd_fetched, self._usd_kept) / self.size
        of_pools = free, paid - free, largest - paid, self._usd_kept / self.size, fetched
        of_limits = np.zeros(len(self.owned) - len(most))
        return RentedTiers(*(np.concatenate((each, of_limits)) for each in of_pools))

    def between(self, low: FloatArray, high: FloatArray) -> FractionalRental | None:
        """Returns the optimum with counts between `low` and `high`; None if HiGHS finds none."""
        self._highs.changeColsBounds(len(low), self._machines, low.astype(np.float64), high.astype(np.float64))
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._highs.getSolution()
        rows = slice(self._classes, self._classes + len(self.owned))
        prices = np.maximum(-np.array(solution.row_dual)[rows], 0.0) / self._scale
        machines = np.clip(np.array(solution.col_value)[self._machines], low, high)
        net = -float(self._highs.getInfo().objective_function_value)
        return FractionalRental(machines, prices[: len(low)], net, prices[len(low) :])

    def at(self, counts: IntArray) -> FractionalRental:
        """Returns the optimum at whole counts, and remembers it; of value -inf where HiGHS finds none."""
        key = tuple(counts.tolist())
        if key not in self._known:
            exact = counts.astype(np.float64)
            self._known[key] = self.between(exact, exact) or FractionalRental(exact, np.zeros(len(exact)), -np.inf)
        return self._known[key]

    def _model(self, class_problem: ClassProblem, gross: FloatArray) -> highspy.HighsLp:
        """Returns the model for HiGHS, with rows for the time of each class, the scaled accelerators of each pool and
        then of each limit, and the machines beyond those paid for.
        """
        p, k, c = len(self.size), class_problem.classes, class_problem.columns
        beyond = k + len(self.owned)
        uses = np.diff(class_problem.use_first)
        column, owner, pool = np.arange(c), class_problem.owner, np.arange(p)
        load = class_problem.use_count * np.repeat(class_problem.size[owner], uses) / self._scale[class_problem.use_row]
        ones = np.ones(p)
        values = np.concatenate((np.ones(c), load, -self.size / self._scale[:p], ones, -ones))
        rows = np.concatenate((owner, k + class_problem.use_row, k + pool, beyond + pool, beyond + pool))
        columns = np.concatenate((column, np.repeat(column, uses), c + pool, c + pool, c + p + pool))
        cost = np.concatenate((-gross, self._usd_kept, np.maximum(self._usd_fetched - self._usd_kept, 0.0)))
        bounds = np.concatenate((np.ones(k), self.owned / self._scale, self._paid))
        if self._free.any():  # How many of the machines held are paid for already: d <= held machines, d <= free ones.
            values = np.concatenate((values, ones, -ones, ones))
            rows = np.concatenate((rows, beyond + p + pool, beyond + p + pool, beyond + 2 * p + pool))
            columns = np.concatenate((columns, c + 2 * p + pool, c + pool, c + 2 * p + pool))
            cost = np.concatenate((cost, -self._usd_kept))
            bounds = np.concatenate((bounds, np.zeros(p), self._free))
        matrix = sparse.csc_array((values, (rows, columns)), shape=(len(bounds), len(cost)))
        return highs_model(cost, matrix, bounds)


def _usd_earned(problem: Problem, value: FloatArray, capacity: FloatArray) -> FloatArray:
    """Returns the USD per hour that each column earns when it runs all the time (c,)."""
    columns = problem.columns
    rate = np.where(usable_columns(columns, capacity), columns.steps_per_s, 0.0)
    best = max_by(columns.job, rate, len(problem.jobs))[columns.job]
    return np.divide(rate * value[columns.job], best, out=np.zeros(len(columns)), where=best > 0)
