"""How far utilities can rise together in a market, by an interior point method that knows the shape of a market.

    maximise theta    s.t.  sum_C x + idle = 1                              time of one member          mu[k]
                            worth.x - spare = floor + rise theta            utility of one member       y[k]
                            sum_C size use x + left = capacity              each row                    p[r]

Mehrotra's predictor and corrector (`optimizer.filling.step`). An iteration is a few passes over the columns, and their
number (15 to 30) hardly grows with the market. The solution is interior to the set of optima: a column that some
optimum uses has a share, one that none uses has none, and ties do no harm.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optimizer.filling.rising import RisingProgram
from optimizer.filling.step import Step
from optimizer.problem import FloatArray

#: Iterations of one level; 20 to 40 are used.
MOST_ITERATIONS = 100
#: Duality gap and residuals, in parts of the level, at which the method has converged.
CONVERGED = 1e-11
#: Iterations without a better iterate after which rounding has won.
_PATIENCE = 6


@dataclass(frozen=True, slots=True, eq=False)
class Interior:
    """A nearly optimal pair of shares and prices. Neither is quite feasible: callers repair and prove."""

    theta: float
    #: Shares of one member (C,).
    x: FloatArray
    #: Price of each row, what theta is worth being 1 (r,).
    prices: FloatArray
    iterations: int
    #: Duality gap or residual, whatever is largest.
    error: float


#: Called with prices and theta after each iteration: the floors and rises to go on with, or None to stop.
Watch = Callable[[FloatArray, float], "tuple[FloatArray, FloatArray] | None"]


def solve(
    program: RisingProgram,
    floor: FloatArray,
    rise: FloatArray,
    *,
    most: int = MOST_ITERATIONS,
    watch: Watch | None = None,
    compiled: bool = False,
) -> Interior:
    """Iterate until gap and residuals have vanished, the work is used up, or rounding has won.

    Args:
        program: of the market.
        floor, rise: what one member of each class is to have, of which theta decides (k,), (k,).
        most: iterations at most.
        watch: may change floors and rises between iterations, or stop.
        compiled: whether compiled code is to do it.
    """
    program.aim(floor, rise)
    point, step_of = program.start(), Step
    best, best_error, since, done = point, np.inf, 0, 0
    if compiled:
        from optimizer.filling import step_kernels

        if watch is None:
            best, done, best_error = step_kernels.iterated(program, point, most, CONVERGED, _PATIENCE)
            most = done
        step_of = step_kernels.CompiledStep
    while done < most:
        step = step_of(program, point)
        following = step.taken()
        since = 0 if step.error < best_error else since + 1
        if since == 0:
            best, best_error = point, step.error
        if best_error <= CONVERGED or since >= _PATIENCE or following is None:
            break
        point = following
        done += 1
        if watch is not None:
            best, best_error, since = point, np.inf, 0
            changed = watch(program.prices(point), point.theta)
            if changed is None:
                break
            program.aim(*changed)
    return Interior(best.theta, program.split(best.primal)[0], program.prices(best), done, best_error)
