"""How good predictions of speed were, by source, accelerator and kind, and how much each source is to be believed.

A source that states intervals is believed as fusion does it: by its claims, stretched by its record. One that states
none is believed by the size of its errors. Weights are inverse variances and sum to 1 over the sources.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean, median

from optimizer.performance.predicting.fusion import Outcome, records
from optimizer.performance.predicting.predictor import Prediction

#: A source is taken to have erred by this much (log) once besides what it did, so that one lucky guess is not all.
_DOUBT = log(1.5)


@dataclass(frozen=True, slots=True)
class Judged:
    """A prediction that was used, and what was measured (steps per second). No interval: `low` and `high` None."""

    source: str
    kind: str
    accelerator: str
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.predicted < float("inf") and 0 < self.measured < float("inf")):
            raise ValueError(f"speeds are finite and above 0: {self}")
        if self.low is not None and self.high is not None and not 0 < self.low <= self.predicted <= self.high:
            raise ValueError(f"a prediction lies inside its interval: {self}")

    @property
    def error(self) -> float:
        """Relative, of step time."""
        return abs(self.measured / self.predicted - 1.0)

    @property
    def outcome(self) -> Outcome | None:
        """As fusion keeps it; None without an interval."""
        if self.low is None or self.high is None:
            return None
        prediction = Prediction(self.predicted, self.low, self.high)
        return Outcome(self.source, self.kind, self.accelerator, prediction, self.measured)


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a report."""

    name: str
    predictions: int
    median_error: float
    mean_error: float
    #: Share of measured speeds inside the stated intervals; None where none are stated.
    coverage: float | None


def lines(judged: Sequence[Judged], key: Callable[[Judged], str]) -> list[Line]:
    """One for each value of the key, largest median error first."""
    groups: dict[str, list[Judged]] = {}
    for each in judged:
        groups.setdefault(key(each), []).append(each)
    return sorted((_line(name, group) for name, group in groups.items()), key=lambda line: -line.median_error)


def _line(name: str, group: Sequence[Judged]) -> Line:
    errors = [each.error for each in group]
    held = [o.prediction.holds(o.steps_per_s) for each in group if (o := each.outcome) is not None]
    return Line(name, len(group), median(errors), fmean(errors), fmean(held) if held else None)


def weights(judged: Sequence[Judged]) -> dict[str, float]:
    """By source."""
    stretched = records(outcome for each in judged if (outcome := each.outcome) is not None)
    variances: dict[str, list[float]] = {}
    for each in judged:
        outcome = each.outcome
        if outcome is None:
            squared = log(each.predicted / each.measured) ** 2
        else:
            squared = (outcome.prediction.log_sd * stretched[each.source].stretch(each.accelerator)) ** 2
        variances.setdefault(each.source, []).append(squared)
    typical = {source: sqrt(fmean([*squares, _DOUBT**2])) for source, squares in variances.items()}
    total = sum(sd**-2 for sd in typical.values())
    return {source: sd**-2 / total for source, sd in typical.items()}
