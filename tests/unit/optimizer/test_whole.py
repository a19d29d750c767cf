"""What whole gangs can reach at most."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from optimizer.decision import Status
from optimizer.market import Market
from optimizer.objective import Level, Nash, Solution, Total
from optimizer.problem import FloatArray
from optimizer.whole import best_packing, whole_bound


@dataclass(frozen=True)
class Linear:
    """Target z for everybody."""

    classes: int
    highest: float = 1e9

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        return np.full(self.classes, z), np.ones(self.classes)


def market(gangs: list[float], capacity: float, size: list[float] | None = None) -> Market:
    """One column on one pool for each class."""
    n = len(gangs)
    return Market(
        size=np.array(size or [1.0] * n),
        first=np.arange(n + 1),
        use_first=np.arange(n + 1),
        use_row=np.zeros(n, dtype=np.int32),
        use_count=np.array(gangs),
        capacity=np.array([capacity]),
    )


def fluid(x: list[float], objective: float) -> Solution:
    return Solution(Status.OPTIMAL, np.array(x), np.zeros(1), objective, objective, "test")


def test_two_gangs_of_three_on_four_accelerators_reach_three_quarters_of_the_fluid_level():
    """Fluid: two thirds of the time each, utility 2; whole: by turns, utility 1.5."""
    worth = np.array([3.0, 3.0])
    bound = whole_bound(market([3, 3], 4), Level(worth, Linear(2)), fluid([2 / 3, 2 / 3], 2.0), np.array([0.5, 0.5]))
    assert bound == pytest.approx(1.5)


def test_a_total_counts_the_best_packing():
    """Gangs of three and two on four accelerators: one of them runs, not a third of another besides."""
    both = market([3, 2], 4)
    value = np.array([3.0, 2.5])
    objective = Total(value, value, np.zeros(2))
    assert whole_bound(both, objective, fluid([2 / 3, 1.0], 4.5), np.zeros(2)) == pytest.approx(3.0)


def test_proportional_fairness_is_bounded_by_its_tangent():
    """Two equal gangs by turns: log 1/2 each."""
    worth = np.array([3.0, 3.0])
    objective = Nash(worth, np.ones(2))
    bound = whole_bound(market([3, 3], 4), objective, fluid([2 / 3, 2 / 3], 2 * np.log(2.0)), np.zeros(2))
    by_turns = 2 * np.log(1.5)
    assert by_turns <= bound < 2 * np.log(2.0)


def test_whole_numbers_of_members_share_a_pool():
    """Five gangs of two on seven accelerators: three run."""
    assert best_packing(market([2], 7, [5.0]), np.array([1.0])) == pytest.approx(3.0)


@settings(max_examples=60, deadline=None)
@given(
    gangs=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    capacity=st.integers(4, 6),
    weights=st.lists(st.floats(0, 2), min_size=4, max_size=4),
)
def test_no_mixture_of_packings_beats_the_bound(gangs: list[int], capacity: int, weights: list[float]):
    """Every packing is listed and the best max-min mixture never exceeds the bound, whatever the weights."""
    n = len(gangs)
    packings = [p for p in product((0, 1), repeat=n) if np.dot(p, gangs) <= capacity]
    # max z: sum_q share_q packing_qj gang_j >= z for all j, sum share = 1
    gained = np.array(packings, dtype=float).T * np.array(gangs)[:, None]
    rows = np.hstack([-gained, np.ones((n, 1))])
    best = linprog(
        np.r_[np.zeros(len(packings)), -1.0],
        A_ub=rows,
        b_ub=np.zeros(n),
        A_eq=np.r_[np.ones(len(packings)), 0.0][None],
        b_eq=[1.0],
    )
    worth = np.array(gangs, dtype=float)
    answer = fluid([1.0] * n, 100.0)
    bound = whole_bound(
        market([float(g) for g in gangs], capacity), Level(worth, Linear(n)), answer, np.array(weights[:n])
    )
    assert bound >= -best.fun - 1e-6
