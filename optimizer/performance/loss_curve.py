"""Steps to a target from the losses so far.

    loss(k) = (b_0 k + b_1)^-p + b_2           b_0 > 0, b_1 > 0, b_2 >= 0, 1/3 <= p <= 4

Convex and falling, as stochastic gradient descent does on average. With p = 1 it is the law of Optimus (EuroSys 2018);
real losses fall faster at first and more slowly later, or the other way round, and a law that cannot bend so is wrong
by half the steps where this one is wrong by a tenth. The fit is robust, because single losses are noisy, and of
relative misses, because what is near the target matters. It serves jobs with a target, and nobody's schedule should
hang on it alone. How surely a curve misses its target is for `target_forecast.py` to say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log

import numpy as np
from scipy.optimize import least_squares

from optimizer.performance.predicting.predictor import CannotPredict
from optimizer.problem import FloatArray

#: Points that a fit needs: twice its coefficients.
LEAST_POINTS = 8
#: Relative misses that are larger count in proportion, not squared.
_LARGE_MISS = 0.05
#: Losses and targets that differ by a larger factor are not compared.
_FURTHEST_APART = 1e9
#: Of numbers that leave room to be divided.
_LARGEST_LOG = 600.0
#: Logarithms between which p lies.
_BENDS = (-1.1, 1.4)


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Coefficients b_0, b_1, b_2 and p of the formula."""

    fall: float
    start: float
    floor: float
    power: float = 1.0

    def loss(self, step: float) -> float:
        """Expected at that step."""
        return exp(-self.power * log(self.fall * step + self.start)) + self.floor

    def steps_to(self, target: float) -> float:
        """Steps from the beginning until the target; infinite where the floor lies above it, or so near that no number
        is large enough."""
        if target <= self.floor:
            return inf
        digits = -log(target - self.floor) / self.power
        return max(0.0, (exp(digits) - self.start) / self.fall) if digits < _LARGEST_LOG else inf


def fit_loss_curve(points: Sequence[tuple[float, float]]) -> LossCurve:
    """From (step, loss). Raises CannotPredict for fewer than eight, for losses that are not positive numbers or that
    are a billion times each other, and for losses that do not fall."""
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

    def curve(logs_and_floor: FloatArray) -> LossCurve:
        fall, start, power = np.exp(logs_and_floor[[0, 1, 3]])
        return LossCurve(float(fall), float(start), float(logs_and_floor[2]), float(power))

    least = float(losses.min())
    bounds = ([-15.0, -10.0, 0.0, _BENDS[0]], [15.0, 10.0, least, _BENDS[1]])
    guesses = [[guess, 0.0, 0.5 * least, 0.0] for guess in (-1.0, 2.0)]
    return _unscaled(_best(curve, guesses, bounds, steps, losses), length, height)


def fit_curve_that_reaches(points: Sequence[tuple[float, float]], target: float, within: float) -> LossCurve:
    """Of all curves that are at the target by the step `within`, beyond all points, the one nearest to them.

    For points that `fit_loss_curve` takes; it passes through the target just then. With the floor f, and a part q of
    the way there done in the fall: (b_0 within + b_1)^-p = target - f, b_1 = (1 - q) (target - f)^(-1/p).
    """
    steps, losses, length, height = _scaled(points)
    aim, end = max(target / height, 1.0 / _FURTHEST_APART), within / length

    def curve(logs: FloatArray) -> LossCurve:
        rest, above, power = np.exp(logs)  # 1 - q, and how much of the target the floor leaves
        whole = (above * aim) ** (-1.0 / power)
        return LossCurve(
            float(-np.expm1(logs[0]) * whole / end), float(rest * whole), float(aim * (1.0 - above)), float(power)
        )

    guesses = [[-1.0, -0.5, 0.0], [-5.0, -0.5, 0.0], [-5.0, -3.0, 0.0]]
    bounds = ([-15.0, -15.0, _BENDS[0]], [-1e-9, 0.0, _BENDS[1]])
    return _unscaled(_best(curve, guesses, bounds, steps, losses), length, height)


def misfit(curve: LossCurve, points: Sequence[tuple[float, float]]) -> float:
    """What a fit makes small: the relative misses squared, large ones in proportion."""
    steps, losses = np.array([step for step, _ in points]), np.array([loss for _, loss in points])
    large = _misses(curve, steps, losses) / _LARGE_MISS
    return float(2.0 * _LARGE_MISS**2 * np.sum(np.sqrt(1.0 + large**2) - 1.0))


def _misses(curve: LossCurve, steps: FloatArray, losses: FloatArray) -> FloatArray:
    return np.asarray(np.log(((curve.fall * steps + curve.start) ** -curve.power + curve.floor) / losses))


def _scaled(points: Sequence[tuple[float, float]]) -> tuple[FloatArray, FloatArray, float, float]:
    """Steps and losses as parts of the largest ones, and those."""
    steps, losses = np.array([step for step, _ in points]), np.array([loss for _, loss in points])
    length, height = float(steps.max()) or 1.0, float(losses.max())
    return steps / length, losses / height, length, height


def _unscaled(curve: LossCurve, length: float, height: float) -> LossCurve:
    unit = height ** (-1.0 / curve.power)
    return LossCurve(curve.fall * unit / length, curve.start * unit, curve.floor * height, curve.power)


def _best(
    curve: Callable[[FloatArray], LossCurve],
    guesses: Sequence[Sequence[float]],
    bounds: tuple[Sequence[float], Sequence[float]],
    steps: FloatArray,
    losses: FloatArray,
) -> LossCurve:
    """The best of the robust fits that begin at the guesses."""

    def misses(coefficients: FloatArray) -> FloatArray:
        return _misses(curve(coefficients), steps, losses)

    answers = (least_squares(misses, guess, bounds=bounds, loss="soft_l1", f_scale=_LARGE_MISS) for guess in guesses)
    return curve(np.asarray(min(answers, key=lambda answer: float(answer.cost)).x))
