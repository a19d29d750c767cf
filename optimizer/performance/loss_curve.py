"""Steps to a target from the losses so far.

    loss(k) = 1 / (b_0 k + b_1) + b_2           b_0 > 0, b_1 > 0, b_2 >= 0

Convex and falling, as stochastic gradient descent does on average (Optimus, EuroSys 2018). The fit is robust, because
single losses are noisy. It serves jobs with a target, and nobody's schedule should hang on it alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from optimizer.performance.predicting.predictor import CannotPredict

#: Points that a fit needs.
_LEAST_POINTS = 5


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Coefficients b_0, b_1, b_2 of the formula."""

    fall: float
    start: float
    floor: float

    def loss(self, step: float) -> float:
        """Expected at that step."""
        return 1.0 / (self.fall * step + self.start) + self.floor

    def steps_to(self, target: float) -> float:
        """Steps from the beginning until the target; infinite where the floor lies above it."""
        if target <= self.floor:
            return inf
        return max(0.0, (1.0 / (target - self.floor) - self.start) / self.fall)


def fit_loss_curve(points: Sequence[tuple[float, float]]) -> LossCurve:
    """From (step, loss). Raises CannotPredict for fewer than five, for losses that are not positive numbers, and for
    losses that do not fall."""
    if len(points) < _LEAST_POINTS:
        raise CannotPredict(f"{len(points)} losses are too few to fit a curve to")
    if not all(isfinite(loss) and loss > 0.0 and step >= 0.0 for step, loss in points):
        raise CannotPredict("a loss is not a number above 0")
    steps = np.array([step for step, _ in points])
    losses = np.array([loss for _, loss in points])
    length, height = float(steps.max()) or 1.0, float(losses.max())
    half = len(points) // 2
    if np.median(losses[np.argsort(steps)][half:]) >= np.median(losses[np.argsort(steps)][:half]):
        raise CannotPredict("the loss does not fall")

    def misses(logs_and_floor: NDArray[np.float64]) -> NDArray[np.float64]:
        fall, start = np.exp(logs_and_floor[:2])
        return np.asarray(1.0 / (fall * steps / length + start) + logs_and_floor[2] - losses / height)

    least = float(losses.min()) / height
    found = min(
        (
            least_squares(
                misses,
                [guess, 0.0, 0.5 * least],
                bounds=([-15.0, -10.0, 0.0], [15.0, 10.0, max(least, 1e-9)]),
                loss="soft_l1",
                f_scale=0.05,
            )
            for guess in (-1.0, 2.0)
        ),
        key=lambda answer: float(answer.cost),
    )
    fall, start = np.exp(found.x[:2])
    return LossCurve(float(fall) / (length * height), float(start) / height, float(found.x[2]) * height)
