"""Steps to a target from the losses so far: what is kept of them, the curve that is fitted, and what it forecasts.

    loss(k) = (b_0 k + b_1)^-p + b_2           b_0 > 0, b_1 > 0, b_2 >= 0, 1/3 <= p <= 4

Convex and falling, as stochastic gradient descent does on average. With p = 1 it is the law of Optimus (EuroSys 2018);
real losses fall faster at first and more slowly later, or the other way round, and a law that cannot bend so is wrong
by half the steps where this one is wrong by a tenth. The fit is robust, because single losses are noisy, and of
relative misses, because what is near the target matters.

Reports are endless and nobody vouches for them: a series keeps means over stretches of steps. The forecast decides what
may be said of a target, and how surely; it informs, and no schedule depends on it. SciPy takes its time: the server
asks in a process of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, inf, isfinite, log

import numpy as np
from scipy.optimize import least_squares

from optimizer.prediction.predictor import CannotPredict
from optimizer.problem import FloatArray

#: Points that are kept; one more, and neighbours become one.
MOST_POINTS = 64
#: What lies beyond is no count of steps, and no loss.
_MOST = 1e15


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Mean step and mean value of so many reports in a row, and the step of the last of them."""

    step: float
    value: float
    reports: int
    last_step: float


@dataclass(frozen=True, slots=True)
class ValueSeries:
    """Ascending in steps. Every point but the last is the mean of equally many reports."""

    points: tuple[SeriesPoint, ...] = ()
    #: Of the newest report that told something new.
    newest: float | None = None
    newest_step: float = 0.0
    #: The first step at which the target was reported, or less; None: not yet.
    reached_step: float | None = None

    def with_report(self, step: float, value: float, at_most: float) -> "ValueSeries":
        """The series with one report more: itself, where that tells nothing.

        A value that is not finite, and a step that is none, tell nothing; nor does a value that stays exactly as it is,
        because a script may look at it less often than it reports. A job that goes on from an earlier step has lost
        what it did after that: so has the series. Values of 0, below and beyond make no point: they are on no curve.
        """
        if not (isfinite(value) and 0.0 <= step <= _MOST):
            return self
        kept = self if step >= self.newest_step else self._until(step)
        if kept.newest is not None and (step <= kept.newest_step or value == kept.newest):
            return kept
        reached = step if kept.reached_step is None and value <= at_most else kept.reached_step
        points = _with(kept.points, SeriesPoint(step, value, 1, step)) if 0.0 < value <= _MOST else kept.points
        return ValueSeries(points, value, step, reached)

    def _until(self, step: float) -> "ValueSeries":
        """What was known when the job was at that step."""
        points = tuple(point for point in self.points if point.last_step <= step)
        reached = self.reached_step if self.reached_step is not None and self.reached_step <= step else None
        if not points:
            return ValueSeries()
        return replace(
            self, points=points, newest=points[-1].value, newest_step=points[-1].last_step, reached_step=reached
        )


def _with(points: tuple[SeriesPoint, ...], new: SeriesPoint) -> tuple[SeriesPoint, ...]:
    """The last point takes in new reports until it stands for as many as the first; of too many, two become one."""
    if len(points) > 1 and points[-1].reports < points[0].reports:
        return (*points[:-1], _mean((points[-1], new)))
    if len(points) < MOST_POINTS:
        return (*points, new)
    return (*(_mean(points[at : at + 2]) for at in range(0, MOST_POINTS, 2)), new)


def _mean(parts: tuple[SeriesPoint, ...]) -> SeriesPoint:
    reports = sum(part.reports for part in parts)
    # Weights first: no sum of large values overflows.
    step = fsum(part.step * (part.reports / reports) for part in parts)
    value = fsum(part.value * (part.reports / reports) for part in parts)
    return SeriesPoint(step, value, reports, parts[-1].last_step)


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


def loss_misfit(curve: LossCurve, points: Sequence[tuple[float, float]]) -> float:
    """What a fit makes small: the relative misses squared, large ones in proportion."""
    steps, losses = np.array([step for step, _ in points]), np.array([loss for _, loss in points])
    large = _relative_misses(curve, steps, losses) / _LARGE_MISS
    return float(2.0 * _LARGE_MISS**2 * np.sum(np.sqrt(1.0 + large**2) - 1.0))


def _relative_misses(curve: LossCurve, steps: FloatArray, losses: FloatArray) -> FloatArray:
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
        return _relative_misses(curve(coefficients), steps, losses)

    answers = (least_squares(misses, guess, bounds=bounds, loss="soft_l1", f_scale=_LARGE_MISS) for guess in guesses)
    return curve(np.asarray(min(answers, key=lambda answer: float(answer.cost)).x))


#: A target that no curve reaches in so many times the steps of the run so far is out of reach.
FAR = 100.0
#: By so much worse, in twice the logarithm of the likelihood, a curve fits that nobody needs to believe.
_CLEARLY_WORSE = 10.0
#: Nobody is accused of being late before this part of the steps that would have to suffice, nor of a floor before all
#: but this part of the fall to it.
_EARLY = 0.25
#: Smaller relative misses are not noise, but that the law is not quite theirs.
_LAW_MISS = 5e-3


@dataclass(frozen=True, slots=True)
class TargetForecast:
    """What the curve says. All steps are counted from the beginning of the job."""

    #: Of the newest report that it knows of.
    at_step: float
    #: Where the value will be at the target; None: out of reach by the best curve, or there is no curve.
    steps: float | None = None
    #: What the value cannot fall below; None: there is no curve.
    floor: float | None = None
    #: Why there is no curve; empty where there is one.
    why_not: str = ""
    #: Every curve that ever reaches the target fits clearly worse than the best.
    is_out_of_reach: bool = False
    #: Every curve that reaches it within the declared steps does.
    is_late: bool = False


def forecast_target(
    points: Sequence[tuple[float, float]], at_step: float, target: float, declared: float | None
) -> TargetForecast:
    """From (step, value), ascending. `declared`: the steps that the job is to do, if that is known."""
    try:
        curve = fit_loss_curve(points)
    except CannotPredict as error:
        return TargetForecast(at_step, why_not=str(error))
    ever, steps = max(FAR * at_step, declared or 0.0), curve.steps_to(target)
    has_levelled = points[-1][1] - curve.floor <= _EARLY * (points[0][1] - curve.floor)
    is_out_of_reach = steps > ever and has_levelled and _misses_clearly(points, curve, target, ever)
    is_late = declared is not None and steps > declared
    if is_late and declared is not None and declared > at_step:
        could_tell = at_step >= _EARLY * declared
        is_late = is_out_of_reach or (could_tell and _misses_clearly(points, curve, target, declared))
    return TargetForecast(
        at_step, steps if steps <= ever else None, curve.floor, is_out_of_reach=is_out_of_reach, is_late=is_late
    )


def _misses_clearly(points: Sequence[tuple[float, float]], curve: LossCurve, target: float, within: float) -> bool:
    """Whether a curve that is at the target by that step fits the points clearly worse than the best one."""
    other = fit_curve_that_reaches(points, target, within)
    law = len(points) * _LAW_MISS**2
    worse = (loss_misfit(other, points) + law) / (loss_misfit(curve, points) + law)
    return not isfinite(worse) or len(points) * log(worse) > _CLEARLY_WORSE
