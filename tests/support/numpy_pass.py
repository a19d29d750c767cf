"""One pass over all classes in numpy: the definition of what `optimizer.lp.dual_newton.pass_kernels` computes fast.

The formulas stand in `optimizer.lp.dual_newton.dual_task`. Tests hold the compiled pass to this one.
"""

import numpy as np

from optimizer.classes.class_problem import ClassProblem
from optimizer.lp.dual_newton.best_responses import (
    ClassChoice,
    ClassTable,
    cheapest_in_table,
    class_tables,
    logarithmic_in_table,
)
from optimizer.lp.dual_newton.dual_bound import PassEngine
from optimizer.lp.dual_newton.dual_task import (
    LOG,
    PLAIN,
    TARGET,
    PassGoals,
    pass_width,
)
from optimizer.problem import BoolArray, FloatArray, IntArray

#: A goal may be missed by this part of itself, and by so much of what rounding costs in its computation.
_CLOSE = 1e-14
_DIGIT = 5e-16
_ROOT_STEPS = 100
_NEAR = 1e-9


class SoftenedShares:
    """Softened shares of the classes of one block, and the sums that their derivatives need."""

    def __init__(self, a: FloatArray, n: FloatArray, m: FloatArray) -> None:
        self.a, self.n, self.m = a, n, m
        self.lam = np.zeros(len(a))
        self.y = np.zeros(a.shape)
        self.full = np.zeros(len(a), dtype=bool)

    def project(self, rows: BoolArray | slice, lam: FloatArray) -> None:
        """Shares at these multipliers for some rows."""
        a, n, m = self.a[rows], self.n[rows], self.m[rows]
        y = lam[:, None] * a - n
        full = np.where(y > 0, y, 0.0).sum(axis=1) > m
        # Measured from the largest, so that no digits are lost; what is more than m below it gets nothing.
        y = y - np.where(full, y.max(axis=1), 0.0)[:, None]
        nu, count = np.where(full, -m, 0.0), np.where(full, a.shape[1] + 1, 0)
        while True:
            left = y > nu[:, None]
            number = left.sum(axis=1)
            fewer = full & (number < count)  # columns only ever leave: rounding must not bring one back
            if not fewer.any():
                break
            count = np.where(fewer, number, count)
            total = np.where(left, y, 0.0).sum(axis=1)
            nu = np.where(fewer, (total - m) / np.maximum(number, 1), nu)
        self.y[rows] = np.where(left, y - nu[:, None], 0.0) / m[:, None]
        self.lam[rows], self.full[rows] = lam, full

    @property
    def worth(self) -> FloatArray:
        return np.asarray((self.a * self.y).sum(axis=1))

    @property
    def along(self) -> FloatArray:
        """Worths on the set in use, less their mean where all time is used: the direction of more worth (b, W)."""
        used = self.y > 0
        count = used.sum(axis=1)
        mean = np.where(self.full & (count > 0), np.where(used, self.a, 0.0).sum(axis=1) / np.maximum(count, 1), 0.0)
        return np.where(used, self.a - mean[:, None], 0.0)

    def spread(self, along: FloatArray) -> FloatArray:
        """How fast worth follows the multiplier, times the softness (b,)."""
        spread = (along * self.a).sum(axis=1)
        squares = np.where(self.y > 0, self.a**2, 0.0).sum(axis=1)
        return np.where(spread < 1e-12 * squares, 0.0, spread)

    def meet(self, goal: FloatArray, start: FloatArray, *, logarithm: bool) -> None:
        """Multipliers at which the goals are met: Newton steps in a bracket."""
        low, high = np.zeros(len(goal)), np.maximum(self._ceiling(), 2.0 * start)
        if logarithm:
            with np.errstate(divide="ignore"):
                high = np.maximum(high, np.where(goal > 0, goal / self.a.max(axis=1), 0.0))
        settled, top = goal <= 0, self.a.max(axis=1)
        if not logarithm:
            self.project(slice(None), low)
            earned = self.worth >= goal
            # Goals so close to the most that a class can have are met by the most.
            most = goal >= top * (1 - _NEAR)
            start = np.where(earned, 0.0, np.where(most, high, start))
            settled = settled | earned | most
        self.project(slice(None), start)
        for _ in range(_ROOT_STEPS):
            u = self.worth
            off = (self.lam * u if logarithm else u) - goal
            noise = _DIGIT * self.lam * top**2 / self.m * (self.lam if logarithm else 1.0)
            missed = ~settled & (np.abs(off) > _CLOSE * goal + noise) & (high - low > 1e-15 * high)
            if not missed.any():
                break
            high = np.where(off > 0, self.lam, high)
            low = np.where(off > 0, low, self.lam)
            spread = self.spread(self.along) / self.m
            with np.errstate(divide="ignore", invalid="ignore"):
                step = self.lam - off / (u + self.lam * spread if logarithm else spread)
            step = np.where((step > low) & (step < high), step, 0.5 * (low + high))
            self.project(missed, step[missed])

    def _ceiling(self) -> FloatArray:
        """Multipliers at which only the columns of most worth are used (b,)."""
        a, n, m = self.a, self.n, self.m
        top = a.max(axis=1)
        n_top = np.where(a == top[:, None], n, np.inf).min(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            alone = np.where(top > 0, (n_top + m) / top, 0.0)
            against = np.where(a < top[:, None], (n_top[:, None] - n + m[:, None]) / (top[:, None] - a), 0.0)
        return np.asarray(np.maximum(np.maximum(alone, against.max(axis=1)), 0.0) * (1 + 1e-9))


def run_numpy_pass(
    market: ClassProblem, goals: PassGoals, prices: FloatArray, softness: FloatArray, x: FloatArray
) -> FloatArray:
    """Sums over all classes (see `softened.sums_of`); `x`, if not empty, receives the shares (C,)."""
    cost, stiff = market.cost(prices), market.cost(softness)
    if len(goals.value):
        cost = cost - goals.value
    total = np.zeros(pass_width(market.rows))
    for block in class_tables(market, goals.worth, cost):
        _add_block(market, goals, block, stiff, total, x)
    return total


def _add_block(
    market: ClassProblem, goals: PassGoals, block: ClassTable, stiff: FloatArray, total: FloatArray, x: FloatArray
) -> None:
    rows, part = market.rows, slice(block.start, block.stop)
    places = slice(max(block.column.shape[1] - 1, 1))  # without that of staying idle
    there, cost = block.column[:, places] >= 0, block.cost[:, places]
    column = block.column[:, places][there]
    table = np.zeros(there.shape)
    table[there] = stiff[column]
    m = np.maximum(table.sum(axis=1) / np.maximum(there.sum(axis=1), 1), 1e-300)
    a = np.zeros(table.shape) if goals.kind == PLAIN else block.worth[:, places]
    soft = SoftenedShares(a, cost, m)
    size, goal, rise = market.size[part], goals.goal[part], goals.rise[part]
    scalars = total[3 * rows + rows * rows :]
    _respond(goals, block, soft, (size, goal, rise), scalars)

    taken = soft.y[there]
    if len(x):
        x[column] = taken
    net = np.where(there, cost, 0.0)
    scalars[3] += size @ (soft.y * (net + 0.5 * m[:, None] * soft.y)).sum(axis=1)
    if len(goals.value):
        scalars[2] += (np.repeat(size, there.sum(axis=1)) * goals.value[column]) @ taken
    _add_rows(market, soft, there, column, (size, rise, net), goals.kind, total)


def _respond(
    goals: PassGoals,
    block: ClassTable,
    soft: SoftenedShares,
    members: tuple[FloatArray, FloatArray, FloatArray],
    scalars: FloatArray,
) -> None:
    """Exact and softened responses of the block."""
    size, goal, rise = members
    if goals.kind == PLAIN:
        soft.project(slice(None), np.zeros(len(goal)))
        scalars[0] += size @ np.minimum(block.cost.min(axis=1), 0.0)
        scalars[4] += np.count_nonzero((goal > 0) & (block.column < 0).all(axis=1))
        return
    exact: ClassChoice = cheapest_in_table(block, goal) if goals.kind == TARGET else logarithmic_in_table(block, goal)
    scalars[4] += np.count_nonzero(~exact.reached)
    if goals.kind == TARGET:
        scalars[0] += size @ exact.cost
        scalars[1] += size @ (exact.slope * rise)
        soft.meet(np.minimum(goal, soft.a.max(axis=1)), exact.slope, logarithm=False)
        return
    wanted = (goal > 0) & exact.reached
    weight = np.where(wanted, goal, 0.0)
    soft.meet(weight, np.where(wanted, exact.slope, 0.0), logarithm=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_exact = np.where(wanted, np.log(weight / exact.slope), 0.0)
        log_soft = np.where(wanted, np.log(soft.worth), 0.0)
    scalars[0] += size @ np.where(wanted, exact.cost - weight * log_exact, 0.0)
    scalars[2] += size @ (weight * log_soft)
    scalars[3] -= size @ (weight * log_soft)


def _add_rows(
    market: ClassProblem,
    soft: SoftenedShares,
    there: BoolArray,
    column: IntArray,
    members: tuple[FloatArray, FloatArray, FloatArray],
    kind: int,
    total: FloatArray,
) -> None:
    """Demand and its derivatives, per row."""
    size, rise, net = members
    rows, width = market.rows, there.shape[1]
    use = np.zeros((len(size), width, rows))
    at = np.flatnonzero(there.ravel())
    uses = np.diff(market.use_first)[column]
    start = np.repeat(market.use_first[column] - np.cumsum(uses) + uses, uses) + np.arange(uses.sum())
    use.reshape(-1, rows)[np.repeat(at, uses), market.use_row[start]] = market.use_count[start]

    used, along = soft.y > 0, soft.along
    spread = soft.spread(along)
    bound = (soft.lam > 0) & (spread > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == TARGET:
            kappa = np.where(bound, 1.0 / spread, 0.0)
        else:
            kappa = (
                np.where(bound, soft.lam / (soft.m * soft.worth + soft.lam * spread), 0.0) if kind == LOG else 0 * rise
            )
    toward = np.einsum("bw,bwr->br", along, use)
    total[:rows] += np.einsum("b,bw,bwr->r", size, soft.y, use)
    if kind == TARGET:
        total[rows : 2 * rows] += (size * rise * kappa) @ toward
    free = used.sum(axis=1) - soft.full - ((kappa > 0) if kind == TARGET else 0) > 0
    scale = np.where(free, size / soft.m, 0.0)
    inverse = np.where(soft.full, 1.0 / np.maximum(used.sum(axis=1), 1), 0.0)
    in_use = np.where(used[:, :, None], use, 0.0)
    both = in_use.sum(axis=1)
    slope = (both * (scale * inverse)[:, None]).T @ both + (toward * (scale * kappa)[:, None]).T @ toward
    slope -= np.tensordot(in_use * scale[:, None, None], in_use, axes=([0, 1], [0, 1]))
    total[3 * rows : 3 * rows + rows * rows] += slope.ravel()
    lost = np.where(used, net - soft.lam[:, None] * soft.a, 0.0)
    softer = (scale * inverse * lost.sum(axis=1)) @ both + (scale * kappa * (along * lost).sum(axis=1)) @ toward
    softer -= np.einsum("b,bw,bwr->r", scale, lost, in_use)
    total[2 * rows : 3 * rows] -= softer


def numpy_engine() -> PassEngine:
    """The definition, as an engine."""
    return PassEngine("numpy", run_numpy_pass)
