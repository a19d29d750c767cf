"""The largest level at which every class of a market has its target. Decides how the level is found, not what follows.

From above: prices prove levels out of reach, and the level aimed at falls to what is proved until shares reach it.

1. Roughly: all targets scaled together, on a sample where classes are many. Its prices prove a level within a few
   percent of the answer.
2. Exactly: at that level each target is taken for the straight line that it follows just below, those that are full
   there run their best column, and one program tells how far the others rise. Its prices prove the next level; where
   that is the level found, it is the answer. Where no target has a kink in between, that is so at once.

What that does not find is left to linear programs of a solver.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.decision import Status
from optimizer.filling.interior import solve
from optimizer.filling.proof import Proof
from optimizer.filling.residual import Restricted, part_of
from optimizer.filling.rising import RisingProgram
from optimizer.market.market import Market
from optimizer.market.objective import Level, Targets
from optimizer.problem import FloatArray

#: A level within this part of the proved one is reached; within the second, good enough where no program comes closer.
REACHED = 1e-9
_CLOSE = 1e-6
#: What a program may miss of its own rows.
_FEASIBLE = 1e-8
#: A level below this part of the highest is none at all: what others keep leaves nothing.
_NOTHING = 1e-8
#: Programs of the exact phase; one to four are used.
_PROGRAMS = 12
#: Classes that tell the rough prices, and the iterations that are enough for that.
_SAMPLE = 512
_ROUGH_ITERATIONS = 25
_ROUGH = 0.97
#: How exactly the rough phase knows a level: it only has to lie above the answer.
_COARSE = 1e-4
#: A target within this part of the best column is full.
_FULL = 1e-9
#: By what part a level's shares may miss what is said of them.
_HONEST = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Summit:
    """The level found, shares of one member that reach it (C,), prices of the rows (r,)."""

    status: Status
    z: float
    x: FloatArray
    prices: FloatArray
    #: "interior", or the solver that had to help.
    path: str
    work: int


def climb(
    market: Market, worth: FloatArray, targets: Targets, near: FloatArray | None = None, *, compiled: bool = False
) -> Summit:
    """Find the largest level. Every class has a column, every column a positive worth, every row some capacity.

    Args:
        near: prices that may prove a level close to the answer, instead of the rough phase (r,).
        compiled: whether compiled code is to do it.
    """
    work = 0
    for prices in [None] if near is None else [near, None]:
        if prices is None:
            prices, iterations = _rough_prices(market, worth, targets, compiled=compiled)
            work += iterations
        z = Proof.of(market, worth, prices, compiled=compiled).bound(targets, 0.0, _COARSE)
        best, iterations = _exactly(market, worth, targets, z, compiled=compiled)
        work += iterations
        if best is not None:
            return Summit(Status.OPTIMAL, *best, "interior", work)
    return _by_solver(market, worth, targets, work)


def _exactly(
    market: Market, worth: FloatArray, targets: Targets, z: float, *, compiled: bool
) -> tuple[tuple[float, FloatArray, FloatArray] | None, int]:
    """From a level proved out of reach down to the answer: level, shares and prices, if they are found; iterations."""
    work, best = 0, None
    for _ in range(_PROGRAMS):
        found = _tangent(market, worth, targets, z, compiled=compiled)
        if found is None:
            break
        level, x, prices, iterations, error = found
        work += iterations
        if not gives(market, worth, x, targets.at(min(level, targets.highest))[0]):
            error = np.inf  # a kink lies between: the straight lines from z do not meet the targets at the level
        if error <= _FEASIBLE and level >= targets.highest * (1 - REACHED):  # nothing that anybody wants is scarce
            best = (targets.highest, x, np.zeros(market.rows))
            break
        bound = Proof.of(market, worth, prices, compiled=compiled).bound(targets, level)
        if error <= _FEASIBLE and (bound <= level * (1 + REACHED) or max(bound, level) <= _NOTHING * targets.highest):
            best = (max(level, 0.0), x, prices)
            break
        if error <= _FEASIBLE and bound <= level * (1 + _CLOSE):
            best = (level, x, prices)
        if bound >= z * (1 - 1e-9):
            break
        z = bound
    return best, work


def gives(market: Market, worth: FloatArray, x: FloatArray, target: FloatArray) -> bool:
    """Whether shares are what a solver says they are: within the rows, and everybody has its target."""
    utility = sum_by(market.owner(), worth * x, market.classes)
    fits = np.all(market.used(x) <= market.capacity * (1 + _HONEST) + _HONEST)
    return bool(fits and np.all(utility >= target * (1 - _HONEST) - _HONEST))


def _rough_prices(market: Market, worth: FloatArray, targets: Targets, *, compiled: bool) -> tuple[FloatArray, int]:
    """Prices at which a sample of the classes meets; equal ones for rows that it does not use."""
    step = -(-market.classes // _SAMPLE)
    part = part_of(market, worth, np.arange(0, market.classes, step), market.capacity / step)
    sampled = Restricted(targets, part.classes, targets.highest)
    program = RisingProgram(part.market, part.worth)
    equal = np.ones(part.market.rows)
    z = Proof.of(part.market, part.worth, equal, compiled=compiled).bound(sampled, 0.0, _COARSE)
    nothing = np.zeros(part.market.classes)

    def watch(prices: FloatArray, theta: float) -> tuple[FloatArray, FloatArray] | None:
        nonlocal z
        proof = Proof.of(part.market, part.worth, prices, compiled=compiled)
        if proof.excess(sampled.at(z)[0]) > 0:
            z = min(z, proof.bound(sampled, 0.0, _COARSE))
        return (nothing, sampled.at(z)[0]) if theta < _ROUGH else None

    found = solve(program, nothing, sampled.at(z)[0], most=_ROUGH_ITERATIONS, watch=watch, compiled=compiled)
    return part.all_rows(found.prices, market.rows), found.iterations


def _tangent(
    market: Market, worth: FloatArray, targets: Targets, z: float, *, compiled: bool
) -> tuple[float, FloatArray, FloatArray, int, float] | None:
    """How far one gets if every target goes on as it does just below z: level, shares, prices, iterations, error."""
    target, slope = targets.at(z)
    owner = market.owner()
    best = np.maximum.reduceat(worth, market.first[:-1])
    full = target >= best * (1 - _FULL)
    top = worth >= (best * (1 - _FULL))[owner]
    alone = full & (np.add.reduceat(top.astype(np.int64), market.first[:-1]) == 1)
    x = np.where(top & alone[owner], 1.0, 0.0)
    left = market.capacity - market.used(x)
    least = -_FEASIBLE if alone.all() else 1e-9
    if np.any(left < least * market.capacity):
        return None
    prices, level, iterations, error = np.zeros(market.rows), z, 0, 0.0
    if not alone.all():
        part = part_of(market, worth, np.flatnonzero(~alone), left)
        own, rise = target[part.classes], slope[part.classes] * z
        rise = rise if rise.any() else own  # nobody rises just below z: can they have what they should?
        found = solve(RisingProgram(part.market, part.worth), own - rise, rise, compiled=compiled)
        prices, level, iterations = (
            part.all_rows(found.prices, market.rows) / max(z, 1e-9),
            z * found.theta,
            found.iterations,
        )
        x[part.columns], error = found.x, found.error
    return level, x, prices, iterations, error


def _by_solver(market: Market, worth: FloatArray, targets: Targets, work: int) -> Summit:
    from optimizer.programs.definition import solve_definition  # imports cvxpy: hardly ever needed

    found = solve_definition(market, Level(worth, targets))
    return Summit(found.status, found.objective, found.x, found.prices, found.path, work + found.work)
