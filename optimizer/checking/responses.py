"""What each job would do alone at given prices, by trying every mixture of two of its configurations.

A job's shares obey two constraints, its time and (if it has one) its target. So the best response is found among single
configurations, idling, and mixtures of two of these; all of them are tried. That is all a proof needs: shares of all
jobs together cannot do better than each job's best response, plus what the scarce rows earn at the prices.

A menu is a table: n jobs, m + 1 entries each, entry 0 being idleness and unused entries repeating it (n, m + 1).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.problem import BoolArray, FloatArray

#: A target this little above the most that a job can reach counts as that.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """Utility of each entry, and what it costs at the prices in question; a cost below 0 is a gain."""

    worth: FloatArray
    cost: FloatArray

    @property
    def most(self) -> FloatArray:
        """The utility that no job exceeds (n,)."""
        return np.asarray(self.worth.max(axis=1))


def cheapest(menu: Menu, target: FloatArray) -> FloatArray:
    """Least cost of a utility of exactly the target; inf where it is out of reach (n,)."""
    most = menu.most
    target = np.where(target <= most * (1 + _ROUNDING), np.minimum(target, most), target)
    least = np.full(len(target), np.inf)
    for worth, cost, other_worth, other_cost in _mixtures(menu):
        between = (np.minimum(worth, other_worth) <= target) & (target <= np.maximum(worth, other_worth))
        width = other_worth - worth
        part = np.divide(target - worth, width, out=np.zeros(len(target)), where=width != 0)
        mixed = np.where(width != 0, cost + part * (other_cost - cost), np.minimum(cost, other_cost))
        least = np.where(between, np.minimum(least, mixed), least)
    return least


def cheapest_at_least(menu: Menu, floor: FloatArray) -> FloatArray:
    """Least cost, possibly negative, of a utility of no less than the floor; inf where it is out of reach (n,)."""
    enough = menu.worth >= floor[:, None]
    alone = np.where(enough, menu.cost, np.inf).min(axis=1)
    return np.asarray(np.minimum(alone, cheapest(menu, np.maximum(floor, 0.0))))


def most_of_logarithm(menu: Menu, weight: FloatArray) -> FloatArray:
    """Largest weight log(utility) - cost of each job; 0 for weight 0, which buys nothing (n,)."""
    most = np.where(weight > 0, -np.inf, 0.0)
    for worth, cost, other_worth, other_cost in _mixtures(menu):
        width, rise = other_worth - worth, other_cost - cost
        # Along the mixture, weight width / utility equals the rise in cost where neither end is best.
        utility = np.divide(weight * width, rise, out=np.maximum(worth, other_worth), where=rise != 0)
        utility = np.where((rise != 0) & (width / np.where(rise != 0, rise, 1.0) <= 0), np.inf, utility)
        for candidate in (utility, worth, other_worth):
            inside = np.clip(candidate, np.minimum(worth, other_worth), np.maximum(worth, other_worth))
            part = np.divide(inside - worth, width, out=np.zeros(len(weight)), where=width != 0)
            usable = (inside > 0) & (weight > 0)
            value = weight * np.log(np.where(usable, inside, 1.0)) - (cost + part * rise)
            most = np.where(usable, np.maximum(most, value), most)
    return most


def _mixtures(menu: Menu) -> Iterator[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]:
    """Worths and costs of the two ends of every pair of entries, idleness among them."""
    for one in range(menu.worth.shape[1]):
        for other in range(one, menu.worth.shape[1]):
            yield menu.worth[:, one], menu.cost[:, one], menu.worth[:, other], menu.cost[:, other]


def out_of_reach(menu: Menu, floor: FloatArray) -> BoolArray:
    """Jobs whose floor is above everything that they could reach (n,)."""
    return np.asarray(floor > menu.most * (1 + _ROUNDING))
