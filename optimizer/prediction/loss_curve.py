"""Forecast of the steps to a target loss: the stored series, the fitted curve, and the forecast from it.

    loss(k) = (b_0 k + b_1)^-p + b_2           b_0 > 0, b_1 > 0, b_2 >= 0, 1/3 <= p <= 4

The curve is convex and falling, as the loss of stochastic gradient descent is on average. With p = 1 it is the law of
Optimus (EuroSys 2018). Real losses fall faster at first and more slowly later, or the other way round; where a law with
fixed p errs by half the steps, this one errs by a tenth. The fit is robust, because single losses are noisy, and
minimises relative residuals, because accuracy matters near the target.

The number of reports is unbounded and their values are untrusted, so a series stores means over stretches of steps. The
forecast informs users, and no schedule depends on it. Fitting by SciPy is slow, so the server runs it in a process of
its own.

The gradient noise scale says how much larger batches shorten the way (`statistical_efficiency`):

    E|g_B|^2 = |G|^2 + S/B            g_B: gradient of B samples; S: trace of its covariance for one sample
    phi = S / |G|^2                   the noise scale, in samples (McCandlish et al. 2018)
    gain(B) = (V + |G|^2) / (V B_0/B + |G|^2)        of an update in those of the initial batch B_0, V = S/B_0 (Pollux,
                                                     OSDI 2021)
    efficiency(B) = gain(B) B_0/B = (phi + B_0) / (phi + B)      of a sample against one of the initial batch

Forecasts and the ground truth of the simulator use this law; running jobs measure phi (`walras.training.measurements`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, inf, isfinite, log

import numpy as np

from optimizer.prediction.predictor import CannotPredict
from optimizer.problem import FloatArray

#: Most points of a series; at one more, neighbours are merged.
MOST_POINTS = 64
#: Largest valid number of steps, and largest valid loss.
_MOST = 1e15


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Mean step and mean value of consecutive reports, their number, and the step of the last one."""

    step: float
    value: float
    reports: int
    last_step: float


@dataclass(frozen=True, slots=True)
class ValueSeries:
    """Points in ascending order of steps. Each point but the last is the mean of the same number of reports."""

    points: tuple[SeriesPoint, ...] = ()
    #: Step of the newest report that added information.
    newest: float | None = None
    newest_step: float = 0.0
    #: The first step with a reported value at or below the target; None before that.
    reached_step: float | None = None

    def with_report(self, step: float, value: float, at_most: float) -> "ValueSeries":
        """The series with one more report; the same series where the report adds no information.

        Values that are not finite and invalid steps are ignored, and so is a value equal to the last one, because a
        script may evaluate the loss less often than it reports. Where a job resumes from an earlier step, later points
        are dropped. Values that are not positive or too large make no point, as no curve passes through them.
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
        points = tuple(point for point in self.points if point.last_step <= step)
        reached = self.reached_step if self.reached_step is not None and self.reached_step <= step else None
        if not points:
            return ValueSeries()
        return replace(
            self, points=points, newest=points[-1].value, newest_step=points[-1].last_step, reached_step=reached
        )


def _with(points: tuple[SeriesPoint, ...], new: SeriesPoint) -> tuple[SeriesPoint, ...]:
    """Add a report to the last point until it has as many as the first; merge neighbours at the most points."""
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
#: Relative residuals above this count linearly (Huber loss).
_LARGE_MISS = 0.05
#: Losses and targets that differ by a larger factor are not compared.
_FURTHEST_APART = 1e9
#: Largest logarithm that is exponentiated; above it the number of steps is infinite.
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
        """Expected loss at that step."""
        return exp(-self.power * log(self.fall * step + self.start)) + self.floor

    def steps_to(self, target: float) -> float:
        """Steps from the beginning to the target; infinite where the floor is above it or too close below."""
        if target <= self.floor:
            return inf
        digits = -log(target - self.floor) / self.power
        return max(0.0, (exp(digits) - self.start) / self.fall) if digits < _LARGEST_LOG else inf


def fit_loss_curve(points: Sequence[tuple[float, float]]) -> LossCurve:
    """Fit the curve to pairs of step and loss.

    Raises:
        CannotPredict: there are fewer than eight pairs, losses are not positive, differ by a factor of a billion, or
            do not fall.
    """
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
    """The best fit among the curves that reach the target by the step `within`, which lies beyond all points.

    The points are valid for `fit_loss_curve`; the curve passes through the target at `within`. With the floor f and a
    parameter q in (0, 1): (b_0 within + b_1)^-p = target - f, b_1 = (1 - q) (target - f)^(-1/p).
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
    """The Huber loss of the relative residuals, which a fit minimises."""
    steps, losses = np.array([step for step, _ in points]), np.array([loss for _, loss in points])
    large = _relative_misses(curve, steps, losses) / _LARGE_MISS
    return float(2.0 * _LARGE_MISS**2 * np.sum(np.sqrt(1.0 + large**2) - 1.0))


def _relative_misses(curve: LossCurve, steps: FloatArray, losses: FloatArray) -> FloatArray:
    return np.asarray(np.log(((curve.fall * steps + curve.start) ** -curve.power + curve.floor) / losses))


def _scaled(points: Sequence[tuple[float, float]]) -> tuple[FloatArray, FloatArray, float, float]:
    """Steps and losses divided by the largest ones, and these."""
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
    """The best of the robust fits that start from the guesses."""
    from scipy.optimize import least_squares  # Imported late: a server keeps curves, and another process fits them.

    def misses(coefficients: FloatArray) -> FloatArray:
        return _relative_misses(curve(coefficients), steps, losses)

    answers = (least_squares(misses, guess, bounds=bounds, loss="soft_l1", f_scale=_LARGE_MISS) for guess in guesses)
    return curve(np.asarray(min(answers, key=lambda answer: float(answer.cost)).x))


#: A target that no curve reaches within this multiple of the steps so far is out of reach.
FAR = 100.0
#: Difference of twice the log likelihood from which on the worse curve is rejected.
_CLEARLY_WORSE = 10.0
#: A job is called late only after this part of the steps within which it should reach the target, and a floor is
#: reported only after all but this part of the fall to it.
_EARLY = 0.25
#: Relative residuals below this are attributed to the form of the law, not to noise.
_LAW_MISS = 5e-3


@dataclass(frozen=True, slots=True)
class TargetForecast:
    """The forecast of a curve. Steps are counted from the beginning of the job."""

    #: Step of the newest report that it uses.
    at_step: float
    #: Step at which the best curve reaches the target; None where it does not, or there is no curve.
    steps: float | None = None
    #: Lower limit of the value by the best curve; None without a curve.
    floor: float | None = None
    #: Reason why there is no curve; empty where there is one.
    why_not: str = ""
    #: True: every curve that reaches the target at all fits clearly worse than the best one.
    is_out_of_reach: bool = False
    #: True: every curve that reaches it within the declared steps fits clearly worse than the best one.
    is_late: bool = False


def forecast_target(
    points: Sequence[tuple[float, float]], at_step: float, target: float, declared: float | None
) -> TargetForecast:
    """Forecast from pairs of step and value, ascending. `declared`: the steps of the whole job, if known."""
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


def update_gain(signal: float, spread: float, times: float) -> float:
    """Steps at the initial batch that one update with a batch larger by this factor is worth.

    `signal`: |G|^2; `spread`: V, variance of the initial batch's gradient, in the same unit.
    """
    return (spread + signal) / (spread / times + signal)


def statistical_efficiency(scale: float, batch: float, initial: float) -> float:
    """Efficiency of a sample relative to one of the initial batch: 1 there, less for larger batches. By phi."""
    return 1.0 if scale == inf else (scale + initial) / (scale + batch)
