"""Draws from the laws of survival of spot machines."""

from math import inf
from random import Random

from optimizer.renting.lifetime_laws import Lifetime

#: Halvings of an interval when an age is drawn: 1e-9 h over a century.
_HALVINGS = 60
_LONGEST_LIFE_H = 1e6


def draw_lifetime_h(law: Lifetime, random: Random, age_h: float = 0.0) -> float:
    """Hours that a machine of an age has still to live; infinite where the law lets some live for ever."""
    wanted = law.survival(age_h) * random.random()
    low, high = age_h, age_h + 1.0
    while law.survival(high) > wanted:
        low, high = high, age_h + 2 * (high - age_h)
        if high > _LONGEST_LIFE_H:
            return inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if law.survival(middle) > wanted else (low, middle)
    return high - age_h
