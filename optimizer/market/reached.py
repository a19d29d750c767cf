"""What shares reach of an objective. Decides nothing."""

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.market.market import Market
from optimizer.market.objective import Level, Objective, Targets, Total
from optimizer.market.targets import Capped
from optimizer.problem import FloatArray

#: A utility within this part of its target has reached it, so that rounding cannot make a full job look starved.
FULL = 1e-8
#: Halvings of the level: enough for the last bit of a float.
_HALVINGS = 100
#: Stands for a logarithm of nothing.
_TINY = 1e-300


def reached(market: Market, objective: Objective, x: FloatArray) -> float:
    """The objective's value at shares of the classes' members (C,). Floors of a `Total` are not looked at."""
    owner = market.owner()
    if isinstance(objective, Total):
        return float((market.size[owner] * objective.value) @ x)
    utility = sum_by(owner, objective.worth * x, market.classes)
    if isinstance(objective, Level):
        return level_reached(objective.targets, utility)
    rising = objective.weight > 0
    return float((market.size * objective.weight)[rising] @ np.log(np.maximum(utility[rising], _TINY)))


def level_reached(targets: Targets, utility: FloatArray, near: float = 0.0) -> float:
    """The largest level whose targets the utilities reach (k,). It is found sooner the closer `near` is to it."""
    utility = utility * (1 + FULL)
    if isinstance(targets, Capped):  # known without a search
        return _capped_reached(targets, utility)
    low, high = 0.0, targets.highest
    if np.all(utility >= targets.at(high)[0]):
        return high
    for guess in (near * (1 - 2 * FULL), near * (1 + 2 * FULL)):
        if low < guess < high:
            low, high = (guess, high) if np.all(utility >= targets.at(guess)[0]) else (low, guess)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if np.all(utility >= targets.at(middle)[0]):
            low = middle
        else:
            high = middle
    return low


def _capped_reached(targets: Capped, utility: FloatArray) -> float:
    """Everybody that is not full has its slope times the level; 0 where a floor is not held."""
    rising = targets.slope > 0
    if np.any(utility[~rising] < targets.floor[~rising]):
        return 0.0
    short = rising & (utility < targets.cap)
    highest = targets.highest
    return min(float((utility[short] / targets.slope[short]).min(initial=np.inf)), highest)
