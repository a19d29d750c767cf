"""What a job with a target has reported of it, and what was foreseen: kept with the job's row, as JSON.

Decides which reports are taken in and when there is something new to foresee. The curve is fitted in `forecasts.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from optimizer.performance.loss_curve import LEAST_POINTS
from optimizer.performance.target_forecast import TargetForecast
from optimizer.performance.value_series import ValueSeries

#: A forecast is made anew once the job has done so many times the steps that it knew of; one that was wrong, sooner.
_GROWTH, _GROWTH_IF_WRONG = 1.1, 1.02


@dataclass(frozen=True, slots=True)
class JobTarget:
    """Of one job: what it is to reach, what it reported, what was foreseen last."""

    #: Name of the value.
    value: str
    at_most: float
    series: ValueSeries = field(default_factory=ValueSeries)
    forecast: TargetForecast | None = None

    def with_report(self, step: float, values: Mapping[str, float]) -> "JobTarget":
        """After a report of progress; itself, where that tells nothing of the value."""
        value = values.get(self.value)
        series = self.series if value is None else self.series.with_report(step, value, self.at_most)
        return self if series is self.series else replace(self, series=series)

    @property
    def is_worth_a_forecast(self) -> bool:
        """The series is long enough, and another one than the last forecast was made from: much longer, or cut."""
        if len(self.series.points) < LEAST_POINTS or self.series.reached_step is not None:
            return False
        known = self.forecast
        growth = _GROWTH_IF_WRONG if self.is_overdue else _GROWTH
        return known is None or not known.at_step <= self.series.newest_step < growth * known.at_step

    @property
    def is_overdue(self) -> bool:
        """The job has come to the step at which the target was expected, and is not there."""
        steps = None if self.forecast is None else self.forecast.steps
        return steps is not None and self.series.reached_step is None and self.series.newest_step >= steps


_TARGET: TypeAdapter[JobTarget] = TypeAdapter(JobTarget)


def dump_target(target: JobTarget) -> str:
    return _TARGET.dump_json(target).decode()


def parse_target(body: str) -> JobTarget | None:
    """None where the job has no target."""
    return _TARGET.validate_json(body) if body else None
