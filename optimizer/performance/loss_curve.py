"""Steps to a target from the losses so far.

    loss(k) = 1 / (b_0 k + b_1) + b_2           b_0 > 0, b_1 > 0, b_2 >= 0

Convex and falling, as stochastic gradient descent does on average (Optimus, EuroSys 2018). The fit is robust, because
single losses are noisy. It serves jobs with a target, and nobody's schedule should hang on it alone. How surely a curve
misses its target is for `target_forecast.py` to say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from scipy.optimize import least_squares

from optimizer.performance.predicting.predictor import CannotPredict
from optimizer.problem import FloatArray

#: Points that a fit needs.
LEAST_POINTS = 5
#: Misses that are larger, as a part of the largest loss, count in proportion, not squared.
_LARGE_MISS = 0.05
#: Losses and targets that differ by a larger factor are not compared.
_FURTHEST_APART = 1e9


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
    """From (step, loss). Raises CannotPredict for fewer than five, for losses that are not positive numbers or that are
    a billion times each other, and for losses that do not fall."""
    if len(points) < LEAST_POINTS:
        raise CannotPredict(f"{len(points)} losses are too few to fit a curve to")
    if not all(isfinite(loss) and loss > 0.0 and step >= 0.0 for step, loss in points):
        raise CannotPredict("a loss is not a number above 0")
    steps, losses, length, height = _scaled(points)
    if losses.min() < 1.0 / _FURTHEST_APART:
        raise CannotPredict("the losses lie too far apart for one curve")
    half = len(points) // 2
    if np.median(losses[np.argsort(steps)][half:]) >= np.median(losses[np.argsort(steps)][:half]):
        raise CannotPredict("the loss does not fall")

    def misses(logs_and_floor: FloatArray) -> FloatArray:
        fall, start = np.exp(logs_and_floor[:2])
        return np.asarray(1.0 / (fall * steps + start) + logs_and_floor[2] - losses)

    least = float(losses.min())
    bounds = ([-15.0, -10.0, 0.0], [15.0, 10.0, max(least, 1e-9)])
    found = _best(misses, [[guess, 0.0, 0.5 * least] for guess in (-1.0, 2.0)], bounds)
    fall, start = np.exp(found[:2])
    return LossCurve(float(fall) / (length * height), float(start) / height, float(found[2]) * height)


def fit_curve_that_reaches(points: Sequence[tuple[float, float]], target: float, within: float) -> LossCurve:
    """Of all curves that are at the target by the step `within`, beyond all points, the one nearest to them.

    For points that `fit_loss_curve` takes; it passes through the target just then. With the floor f, and a part p of
    its fall there: b_0 = p / ((target - f) within), b_1 = (1 - p) / (target - f).
    """
    steps, losses, length, height = _scaled(points)
    aim, end = max(target / height, 1.0 / _FURTHEST_APART), within / length

    def coefficients(logs: FloatArray) -> tuple[float, float, float]:
        rest, above = np.exp(logs)  # 1 - p, and how much of the target the floor leaves
        return float(-np.expm1(logs[0]) / (above * aim * end)), float(rest / (above * aim)), float(aim * (1.0 - above))

    def misses(logs: FloatArray) -> FloatArray:
        fall, start, floor = coefficients(logs)
        return np.asarray(1.0 / (fall * steps + start) + floor - losses)

    found = _best(misses, [[-1.0, -0.5], [-5.0, -0.5], [-5.0, -3.0]], ([-15.0, -15.0], [-1e-9, 0.0]))
    fall, start, floor = coefficients(found)
    return LossCurve(fall / (length * height), start / height, floor * height)


def misfit(curve: LossCurve, points: Sequence[tuple[float, float]]) -> float:
    """What a fit makes small: the misses squared, large ones in proportion, as parts of the largest loss."""
    steps, losses, length, height = _scaled(points)
    misses = (1.0 / (curve.fall * steps * length + curve.start) + curve.floor) / height - losses
    return float(2.0 * _LARGE_MISS**2 * np.sum(np.sqrt(1.0 + (misses / _LARGE_MISS) ** 2) - 1.0))


def _scaled(points: Sequence[tuple[float, float]]) -> tuple[FloatArray, FloatArray, float, float]:
    """Steps and losses as parts of the largest ones, and those."""
    steps, losses = np.array([step for step, _ in points]), np.array([loss for _, loss in points])
    length, height = float(steps.max()) or 1.0, float(losses.max())
    return steps / length, losses / height, length, height


def _best(
    misses: Callable[[FloatArray], FloatArray],
    guesses: Sequence[Sequence[float]],
    bounds: tuple[Sequence[float], Sequence[float]],
) -> FloatArray:
    """The best of the robust fits that begin at the guesses."""
    answers = (least_squares(misses, guess, bounds=bounds, loss="soft_l1", f_scale=_LARGE_MISS) for guess in guesses)
    return np.asarray(min(answers, key=lambda answer: float(answer.cost)).x)
