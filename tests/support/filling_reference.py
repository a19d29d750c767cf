"""Lexicographic filling by brute force: each level by bisection, each class asked by a program of its own to rise."""

import numpy as np
from scipy.optimize import linprog

from optimizer.classes.class_problem import ClassProblem, TierRule
from optimizer.classes.segments import max_by

_HALVINGS = 45
#: What a level gives is kept but for this part, so that a solver's rounding does not deny it to the next.
_SLACK = 1e-6
#: A class that cannot rise by more than this part has settled.
_RISE = 2e-5
_STILL = 1e-3


class _Programs:
    def __init__(self, market: ClassProblem, worth: np.ndarray) -> None:
        owner = market.owner
        self.classes = market.classes
        self.gain = np.zeros((market.classes, market.columns))
        self.gain[owner, np.arange(market.columns)] = worth
        time = (self.gain > 0).astype(float)
        load = np.zeros((market.rows, market.columns))
        column = np.repeat(np.arange(market.columns), np.diff(market.use_first))
        np.add.at(load, (market.use_row, column), market.use_count * market.size[owner][column])
        self.rows, self.limits = np.vstack([time, load]), np.concatenate([np.ones(market.classes), market.capacity])

    def most(self, of: int | None, floor: np.ndarray) -> float | None:
        """The largest utility of a class (None: of nobody) while all keep their floors; None: they cannot."""
        goal = np.zeros(self.gain.shape[1]) if of is None else -self.gain[of]
        found = linprog(
            goal,
            A_ub=np.vstack([self.rows, -self.gain]),
            b_ub=np.concatenate([self.limits, -floor]),
            method="highs",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        return float(-found.fun) if found.status == 0 else None


def reference(market: ClassProblem, worth: np.ndarray, rule: TierRule) -> np.ndarray:
    """What each class has in the end (k,)."""
    programs, k = _Programs(market, worth), market.classes
    kept, cap, settled = np.zeros(k), max_by(market.owner, worth, k), np.zeros(k, dtype=bool)
    for tier in range(rule.tiers):
        for _ in range(2 * k + 2):
            targets = rule.targets(tier, kept, cap, settled)
            rising = ~settled & (targets.at(targets.highest)[0] > kept * (1 + _RISE) + 1e-7)
            if not rising.any():
                break
            low, high = 0.0, targets.highest
            if programs.most(None, targets.at(high)[0]) is not None:
                low = high
            for _ in range(_HALVINGS if low < high else 0):
                middle = (low + high) / 2
                possible = programs.most(None, targets.at(middle)[0]) is not None
                low, high = (middle, high) if possible else (low, middle)
            kept = np.where(settled, kept, np.maximum(targets.at(low)[0] * (1 - _SLACK), kept))
            for one in np.flatnonzero(rising):
                most = programs.most(int(one), kept) or programs.most(int(one), kept * (1 - _RISE / 2))
                assert most is not None, "what everybody has is out of reach"
                if most <= kept[one] * (1 + _RISE) + _STILL:
                    settled[one], cap[one] = True, kept[one]
    return kept
