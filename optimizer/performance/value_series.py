"""What a job reported of one value over its whole run, in few points: means over stretches of its steps.

Decides what is kept of an endless row of reports, which nobody vouches for. What may be read out of it is decided in
`target_forecast.py`.
"""

from dataclasses import dataclass, replace
from math import fsum, isfinite

#: Points that are kept; one more, and neighbours become one.
MOST_POINTS = 64
#: What lies beyond is no count of steps, and no loss.
_MOST = 1e15


@dataclass(frozen=True, slots=True)
class Stretch:
    """Mean step and mean value of so many reports in a row, and the step of the last of them."""

    step: float
    value: float
    reports: int
    last_step: float


@dataclass(frozen=True, slots=True)
class ValueSeries:
    """Ascending in steps. Every point but the last is the mean of equally many reports."""

    points: tuple[Stretch, ...] = ()
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
        points = _with(kept.points, Stretch(step, value, 1, step)) if 0.0 < value <= _MOST else kept.points
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


def _with(points: tuple[Stretch, ...], new: Stretch) -> tuple[Stretch, ...]:
    """The last point takes in new reports until it stands for as many as the first; of too many, two become one."""
    if len(points) > 1 and points[-1].reports < points[0].reports:
        return (*points[:-1], _mean((points[-1], new)))
    if len(points) < MOST_POINTS:
        return (*points, new)
    return (*(_mean(points[at : at + 2]) for at in range(0, MOST_POINTS, 2)), new)


def _mean(parts: tuple[Stretch, ...]) -> Stretch:
    reports = sum(part.reports for part in parts)
    # Weights first: no sum of large values overflows.
    step = fsum(part.step * (part.reports / reports) for part in parts)
    value = fsum(part.value * (part.reports / reports) for part in parts)
    return Stretch(step, value, reports, parts[-1].last_step)
