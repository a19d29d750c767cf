"""Speeds of a kind from its own speeds elsewhere, by how fast accelerators are against each other.

    speed on b of n = speed on a of m  x  (of b / of a)  x  (n / m)

Nothing has to be known of the kind but one speed. What accelerators are worth comes from an administrator (nominal
speeds) or from data sheets; gangs are taken to speed up in proportion, and the further apart two sizes are the less
that is believed. Intervals are as wide as the rule's errors on observations that have others of their kind beside them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, log, sqrt
from statistics import fmean

from optimizer.performance.predicting.observation import AcceleratorFacts, Cell, Observation
from optimizer.performance.predicting.predictor import CannotPredict, Prediction, around

#: What such a rule is taken to err by (log) before anything was seen of it.
_SPREAD = log(1.5)
_LEAST_SD = 0.02
#: Standard deviation (log) that comes with a gang of twice the size.
_SD_OF_DOUBLE = 0.15
#: Log sizes that are taken to be equal.
_SAME = 1e-9


def sheet_speed(facts: AcceleratorFacts) -> float:
    """Of a middling model: half of its time is arithmetic, half of it memory, as far as the data sheet is achieved."""
    return facts.achieves * sqrt(facts.flops_per_s * facts.memory_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Ratios:
    """The predictor. `speeds`: of one accelerator of each type, in any unit."""

    name: str
    speeds: Mapping[str, float]

    def fit(self, observations: Sequence[Observation]) -> "RatiosModel":
        """Needs one observation of the kind it is asked about, no more."""
        by_kind: dict[str, list[tuple[float, float]]] = {}
        errors: list[float] = []
        for observation in observations:
            cell = observation.cell
            worth = self._worth(cell)
            if worth is not None:
                by_kind.setdefault(cell.kind.name, []).append((_size(cell), log(observation.steps_per_s) - worth))
        for points in by_kind.values():
            for place, (size, level) in enumerate(points):
                others = [point for other, point in enumerate(points) if other != place]
                if others:
                    told, away = _nearest(others, size)
                    errors.append((told - level) / hypot(1.0, away * _SD_OF_DOUBLE / _SPREAD))
        sd = sqrt((sum(error * error for error in errors) + _SPREAD**2) / (len(errors) + 1))
        return RatiosModel(self, by_kind, max(_LEAST_SD, sd))

    def _worth(self, cell: Cell) -> float | None:
        """Log speed of so many of these accelerators; None for a type that nobody rates."""
        speed = self.speeds.get(cell.accelerator.name, 0.0)
        return log(speed * cell.layout.accelerators) if speed > 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class RatiosModel:
    """Of each kind: log2 of the gang, and log of speed over what its accelerators are worth."""

    rule: Ratios
    by_kind: Mapping[str, Sequence[tuple[float, float]]]
    sd: float

    def predict(self, cell: Cell) -> Prediction:
        points, worth = self.by_kind.get(cell.kind.name), self.rule._worth(cell)
        if not points:
            raise CannotPredict(f"no speed of {cell.kind.name} was measured")
        if worth is None:
            raise CannotPredict(f"{self.rule.name}: nobody rates {cell.accelerator.name}")
        level, away = _nearest(points, _size(cell))
        return around(level + worth, hypot(self.sd, away * _SD_OF_DOUBLE))


def _size(cell: Cell) -> float:
    return log(cell.layout.accelerators, 2.0)


def _nearest(points: Sequence[tuple[float, float]], size: float) -> tuple[float, float]:
    """Mean level of the points whose gangs are nearest in size, and how often a gang is doubled to get there."""
    away = min(abs(point - size) for point, _ in points)
    return fmean(level for point, level in points if abs(point - size) <= away + _SAME), away
