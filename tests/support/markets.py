"""Small markets with an objective, drawn by Hypothesis, and what a plain linear program says about them."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from scipy import optimize, sparse

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective


@dataclass(frozen=True)
class LinearTargets:
    """rate z."""

    rate: np.ndarray
    highest: float

    def at(self, z: float) -> tuple[np.ndarray, np.ndarray]:
        return self.rate * z, self.rate


@dataclass(frozen=True)
class ConvexTargets:
    """rate z / (1 - bend z): finish-time fairness, with work done before."""

    rate: np.ndarray
    bend: np.ndarray
    highest: float

    def at(self, z: float) -> tuple[np.ndarray, np.ndarray]:
        rest = 1 - self.bend * z
        return self.rate * z / rest, self.rate / rest**2


@dataclass(frozen=True)
class CappedTargets:
    """min(rate z, cap), not below a floor."""

    rate: np.ndarray
    cap: np.ndarray
    floor: np.ndarray
    highest: float

    def at(self, z: float) -> tuple[np.ndarray, np.ndarray]:
        wanted = np.minimum(self.rate * z, self.cap)
        rising = (self.rate * z <= self.cap) & (self.rate * z > self.floor)
        return np.maximum(wanted, self.floor), np.where(rising, self.rate, 0.0)


def market_of(
    size: list[float], columns: list[list[list[tuple[int, float]]]], capacity: list[float]
) -> tuple[ClassProblem, np.ndarray]:
    """A market from uses (row, count) per class and column; and the class of each column."""
    flat = [column for of_class in columns for column in of_class]
    market = ClassProblem(
        size=np.array(size, dtype=float),
        first=np.concatenate(([0], np.cumsum([len(c) for c in columns]))).astype(np.int64),
        use_first=np.concatenate(([0], np.cumsum([len(c) for c in flat]))).astype(np.int64),
        use_row=np.array([row for column in flat for row, _ in column], dtype=np.int32),
        use_count=np.array([count for column in flat for _, count in column], dtype=float),
        capacity=np.array(capacity, dtype=float),
    )
    return market, market.owner


@dataclass(frozen=True)
class Rows:
    """The market's constraints as matrices over its columns."""

    time: sparse.csr_array
    load: sparse.csr_array
    worth: sparse.csr_array


def rows_of(market: ClassProblem, worth: np.ndarray) -> Rows:
    """sum x <= 1 (k, C); what all members take (r, C); worth of one member (k, C)."""
    c, owner = market.columns, market.owner
    of_use = np.repeat(np.arange(c), np.diff(market.use_first))
    taken = market.use_count * market.size[owner][of_use]
    return Rows(
        time=sparse.csr_array((np.ones(c), (owner, np.arange(c))), shape=(market.classes, c)),
        load=sparse.csr_array((taken, (market.use_row, of_use)), shape=(market.rows, c)),
        worth=sparse.csr_array((worth, (owner, np.arange(c))), shape=(market.classes, c)),
    )


@dataclass(frozen=True)
class Exact:
    """What a linear program found: None where nothing is feasible."""

    objective: float | None
    prices: np.ndarray


def exact(market: ClassProblem, objective: Objective) -> Exact:
    """The optimum by a general solver."""
    match objective:
        case MaxSum():
            return _exact_total(market, objective)
        case MaxMin():
            return _exact_level(market, objective)
        case NashWelfare():
            return _exact_nash(market, objective)


def _exact_total(market: ClassProblem, objective: MaxSum) -> Exact:
    if not market.columns:
        return Exact(0.0, np.zeros(market.rows))
    rows = rows_of(market, objective.worth)
    gain = objective.value * market.size[market.owner]
    found = optimize.linprog(
        -gain,
        A_ub=sparse.vstack([rows.time, rows.load, -rows.worth]),
        b_ub=np.concatenate([np.ones(market.classes), market.capacity, -objective.floor]),
        method="highs",
    )
    if found.status != 0:
        return Exact(None, np.zeros(market.rows))
    marginals = found.ineqlin.marginals
    return Exact(-float(found.fun), -marginals[market.classes : market.classes + market.rows])


def feasible(market: ClassProblem, worth: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    """By how much all targets can be multiplied (at most 2), and the row prices of that program."""
    rows = rows_of(market, worth)
    c = market.columns
    found = optimize.linprog(
        np.concatenate([np.zeros(c), [-1.0]]),
        A_ub=sparse.vstack(
            [
                sparse.hstack([rows.time, sparse.csr_array((market.classes, 1))]),
                sparse.hstack([rows.load, sparse.csr_array((market.rows, 1))]),
                sparse.hstack([-rows.worth, sparse.csr_array(target[:, None])]),
            ]
        ),
        b_ub=np.concatenate([np.ones(market.classes), market.capacity, np.zeros(market.classes)]),
        bounds=[(0, None)] * c + [(0, 2.0)],
        method="highs",
    )
    assert found.status == 0, found.message
    marginals = found.ineqlin.marginals
    return -float(found.fun), -marginals[market.classes : market.classes + market.rows]


def _exact_level(market: ClassProblem, objective: MaxMin) -> Exact:
    """Bisection on the level: targets of any shape."""
    low, high = 0.0, objective.targets.highest
    factor, prices = feasible(market, objective.worth, objective.targets.at(high)[0])
    if factor >= 1 - 1e-9:
        return Exact(high, prices)
    if feasible(market, objective.worth, objective.targets.at(0.0)[0])[0] < 1 - 1e-9:
        return Exact(None, prices)
    for _ in range(60):
        z = 0.5 * (low + high)
        factor, found = feasible(market, objective.worth, objective.targets.at(z)[0])
        if factor >= 1:
            low = z
        else:
            high, prices = z, found
    return Exact(low, prices)


def _exact_nash(market: ClassProblem, objective: NashWelfare) -> Exact:
    import cvxpy as cp

    rows = rows_of(market, objective.worth)
    heavy = objective.weight > 0
    x = cp.Variable(market.columns, nonneg=True)
    scarce = rows.load @ x <= market.capacity
    if not heavy.any():
        return Exact(0.0, np.zeros(market.rows))
    total = (market.size * objective.weight)[heavy] @ cp.log((rows.worth @ x)[heavy])
    program = cp.Problem(cp.Maximize(total), [rows.time @ x <= 1, scarce])
    program.solve(solver=cp.CLARABEL)
    return Exact(float(program.value), np.maximum(np.asarray(scarce.dual_value), 0.0))


_WORTH = st.integers(0, 40).map(lambda quarters: quarters / 4)


@st.composite
def markets(draw: st.DrawFn, *, single: bool | None = None, filled: bool = False) -> tuple[ClassProblem, np.ndarray]:
    """Up to eight classes on up to four rows, and the worth of their columns.

    `single`: every column uses one row. `filled`: every class has a column worth something.
    """
    rows = draw(st.integers(1, 4))
    if single is None:
        single = draw(st.booleans())
    use = st.tuples(st.integers(0, rows - 1), st.sampled_from([1.0, 2.0, 4.0]))
    column = st.lists(use, min_size=1, max_size=1 if single else 3, unique_by=lambda one: one[0])
    columns = draw(st.lists(st.lists(column, min_size=1 if filled else 0, max_size=5), min_size=1, max_size=8))
    size = [float(draw(st.integers(1, 5))) for _ in columns]
    capacity = [float(draw(st.integers(1, 12))) for _ in range(rows)]
    market, owner = market_of(size, columns, capacity)
    worth = np.array([draw(_WORTH) for _ in owner], dtype=float)
    if filled:
        worth[market.first[:-1]] = np.maximum(worth[market.first[:-1]], 0.25)
    return market, worth


@st.composite
def prices_of(draw: st.DrawFn, market: ClassProblem) -> np.ndarray:
    """Any prices, zeros among them."""
    return np.array([draw(st.one_of(st.just(0.0), st.floats(0, 20))) for _ in range(market.rows)])


@st.composite
def totals(draw: st.DrawFn, market: ClassProblem, worth: np.ndarray, *, floors: bool) -> MaxSum:
    """Any values; floors that each class alone can reach (all of them together perhaps not)."""
    value = np.array([draw(st.integers(-4, 40)) / 4 for _ in worth], dtype=float)
    best = np.maximum(np.array([worth[a:b].max(initial=0) for a, b in _spans(market)]), 0)
    part = np.array([draw(st.sampled_from([0.0, 0.0, 0.1, 0.3])) for _ in best]) if floors else np.zeros(len(best))
    return MaxSum(value, worth, part * best)


@st.composite
def levels(draw: st.DrawFn, market: ClassProblem, worth: np.ndarray) -> MaxMin:
    """Linear, convex, and capped targets."""
    rate = np.array([draw(st.sampled_from([0.0, 1.0, 1.0, 2.0, 0.5])) for _ in market.size])
    best = np.array([worth[a:b].max(initial=0) for a, b in _spans(market)])
    rate = np.where(best > 0, rate, 0.0)
    kind = draw(st.sampled_from(["linear", "convex", "capped"]))
    rising = rate > 0
    if kind == "capped":
        floor = np.array([draw(st.sampled_from([0.0, 0.0, 0.0, 0.05])) for _ in rate]) * best
        highest = float((best[rising] / rate[rising]).max()) if rising.any() else 1.0
        return MaxMin(worth, CappedTargets(rate, best, floor, highest))
    highest = float((best[rising] / rate[rising]).min()) if rising.any() else 1.0
    if kind == "linear":
        return MaxMin(worth, LinearTargets(rate, highest))
    bend = np.where(rising, np.array([draw(st.sampled_from([0.0, 0.2, 0.5])) for _ in rate]), 0.0)
    reached = np.where(rising, best / np.where(rising, rate + bend * best, 1.0), np.inf)
    return MaxMin(worth, ConvexTargets(rate, bend, float(reached.min()) if rising.any() else 1.0))


@st.composite
def nashes(draw: st.DrawFn, market: ClassProblem, worth: np.ndarray) -> NashWelfare:
    """Weights, one class perhaps without."""
    weight = np.array([draw(st.sampled_from([1.0, 1.0, 2.0, 0.5, 0.0])) for _ in market.size])
    return NashWelfare(worth, weight)


def _spans(market: ClassProblem) -> list[tuple[int, int]]:
    return list(zip(market.first[:-1].tolist(), market.first[1:].tolist(), strict=True))
