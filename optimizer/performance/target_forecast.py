"""When a job's value will be at its target, by the curve of what it reported so far.

Decides what may be said of it, and how surely. Nobody's schedule hangs on it: it informs. SciPy takes its time: the
server asks in a process of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log

from optimizer.performance.loss_curve import LossCurve, fit_curve_that_reaches, fit_loss_curve, misfit
from optimizer.performance.predicting.predictor import CannotPredict

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


def forecast(
    points: Sequence[tuple[float, float]], at_step: float, target: float, declared: float | None
) -> TargetForecast:
    """From (step, value), ascending. `declared`: the steps that the job is to do, if that is known."""
    try:
        curve = fit_loss_curve(points)
    except CannotPredict as error:
        return TargetForecast(at_step, why_not=str(error))
    ever, steps = max(FAR * at_step, declared or 0.0), curve.steps_to(target)
    has_levelled = points[-1][1] - curve.floor <= _EARLY * (points[0][1] - curve.floor)
    is_out_of_reach = steps > ever and has_levelled and _misses(points, curve, target, ever)
    is_late = declared is not None and steps > declared
    if is_late and declared is not None and declared > at_step:
        could_tell = at_step >= _EARLY * declared
        is_late = is_out_of_reach or (could_tell and _misses(points, curve, target, declared))
    return TargetForecast(
        at_step, steps if steps <= ever else None, curve.floor, is_out_of_reach=is_out_of_reach, is_late=is_late
    )


def _misses(points: Sequence[tuple[float, float]], curve: LossCurve, target: float, within: float) -> bool:
    """Whether a curve that is at the target by that step fits the points clearly worse than the best one."""
    other = fit_curve_that_reaches(points, target, within)
    law = len(points) * _LAW_MISS**2
    worse = (misfit(other, points) + law) / (misfit(curve, points) + law)
    return not isfinite(worse) or len(points) * log(worse) > _CLEARLY_WORSE
