"""Prediction of unmeasured speeds from measured ones alone: by ratios of accelerators, and by matrix completion.

Ratios:        speed on b of n = speed on a of m  x  (of b / of a)  x  (n / m)

One measured speed of the kind suffices. Ratios of accelerators come from an administrator (nominal speeds) or from data
sheets. Gangs are assumed to scale linearly, and intervals widen with the ratio of the two sizes. The width of intervals
is that of the rule's errors on observations of kinds with several observations.

Completion:    log speed = row + column + p_row . q_column        rank few, least squares with a ridge

Rows are kinds in one layout, columns are accelerators. A row measured on some accelerators is completed from rows
measured on more. Cells of empty rows and columns are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, log, sqrt
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from optimizer.prediction.predictor import (
    AcceleratorSpecs,
    CannotPredict,
    Observation,
    Prediction,
    SpeedCell,
    log_normal_prediction,
)

#: Prior standard deviation of the rule's error (log).
_SPREAD = log(1.5)
_LEAST_SD = 0.02
#: Standard deviation (log) added for each doubling of the gang.
_SD_OF_DOUBLE = 0.15
#: Log sizes that differ by less are equal.
_SAME = 1e-9


def sheet_speed(facts: AcceleratorSpecs) -> float:
    """Relative speed for a typical model: half arithmetic, half memory traffic, times the part of peaks achieved."""
    return facts.achieves * sqrt(facts.flops_per_s * facts.memory_bytes_per_s)


@dataclass(frozen=True, slots=True)
class RatioPredictor:
    """Prediction by ratios. `speeds`: of one accelerator of each type, in any unit."""

    name: str
    speeds: Mapping[str, float]

    def fit(self, observations: Sequence[Observation]) -> "RatioModel":
        """A fit by ratios, which needs one observation of the kind that it predicts."""
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
                    predicted, away = _nearest(others, size)
                    errors.append((predicted - level) / hypot(1.0, away * _SD_OF_DOUBLE / _SPREAD))
        sd = sqrt((sum(error * error for error in errors) + _SPREAD**2) / (len(errors) + 1))
        return RatioModel(self, by_kind, max(_LEAST_SD, sd))

    def _worth(self, cell: SpeedCell) -> float | None:
        """Log speed of this number of these accelerators; None for a type without a rating."""
        speed = self.speeds.get(cell.accelerator.name, 0.0)
        return log(speed * cell.layout.accelerators) if speed > 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class RatioModel:
    """Points of each kind: log2 of the gang, and log of speed over the rating of its accelerators."""

    rule: RatioPredictor
    by_kind: Mapping[str, Sequence[tuple[float, float]]]
    sd: float

    def predict(self, cell: SpeedCell) -> Prediction:
        points, worth = self.by_kind.get(cell.kind.name), self.rule._worth(cell)
        if not points:
            raise CannotPredict(f"no speed of {cell.kind.name} was measured")
        if worth is None:
            raise CannotPredict(f"{self.rule.name}: no rating of {cell.accelerator.name} is known")
        level, away = _nearest(points, _size(cell))
        return log_normal_prediction(level + worth, hypot(self.sd, away * _SD_OF_DOUBLE))


def _size(cell: SpeedCell) -> float:
    return log(cell.layout.accelerators, 2.0)


def _nearest(points: Sequence[tuple[float, float]], size: float) -> tuple[float, float]:
    """Mean level of the points with the nearest gang size, and the doublings between the two sizes."""
    away = min(abs(point - size) for point, _ in points)
    return fmean(level for point, level in points if abs(point - size) <= away + _SAME), away


Array = NDArray[np.float64]
_Row = tuple[str, float, int, int, int]
#: Folds of the cross-validation that sets the width of intervals.
_PARTS = 5
#: Standard deviation (log) where there are too few observations for cross-validation.
_BLIND_SD = 0.5


def _row(cell: SpeedCell) -> _Row:
    layout = cell.layout
    return (cell.kind.name, layout.batch, layout.accelerators, layout.machines, layout.accumulated)


@dataclass(frozen=True, slots=True)
class MatrixCompletion:
    """Prediction by matrix completion, with alternating least squares."""

    rank: int = 1
    ridge: float = 0.3
    rounds: int = 30

    @property
    def name(self) -> str:
        return "completion"

    def fit(self, observations: Sequence[Observation]) -> "MatrixCompletionModel":
        """Raises CannotPredict for no observations."""
        if not observations:
            raise CannotPredict("an empty table cannot be completed")
        rows = {row: n for n, row in enumerate(sorted({_row(o.cell) for o in observations}))}
        columns = {name: n for n, name in enumerate(sorted({o.cell.accelerator.name for o in observations}))}
        at = np.array([(rows[_row(o.cell)], columns[o.cell.accelerator.name]) for o in observations])
        logs = np.log([o.steps_per_s for o in observations])
        shape = (len(rows), len(columns))
        errors = [error for part in range(_PARTS) for error in self._errors(at, logs, shape, part)]
        sd = sqrt(float(np.mean(np.square(errors)))) if len(errors) >= _PARTS else _BLIND_SD
        return MatrixCompletionModel(rows, columns, self._complete(at, logs, shape), max(_LEAST_SD, sd))

    def _errors(self, at: NDArray[np.int64], logs: Array, shape: tuple[int, int], part: int) -> list[float]:
        """Errors on one fold, predicted from the others, where its rows and columns are not empty without it."""
        held = np.arange(len(logs)) % _PARTS == part
        if held.all() or not held.any():
            return []
        table = self._complete(at[~held], logs[~held], shape)
        predicted = table[at[held, 0], at[held, 1]]
        return [float(error) for error in predicted - logs[held] if np.isfinite(error)]

    def _complete(self, at: NDArray[np.int64], logs: Array, shape: tuple[int, int]) -> Array:
        """The completed table, nan where a row or a column is empty."""
        known, table = np.zeros(shape), np.zeros(shape)
        np.add.at(known, (at[:, 0], at[:, 1]), 1.0)
        np.add.at(table, (at[:, 0], at[:, 1]), logs)
        seen = known > 0
        table[seen] /= known[seen]
        mask = seen.astype(float)
        # A constant beside the factors makes row and column terms part of the same least squares.
        right = np.hstack([np.zeros((shape[1], 1)), np.linspace(-1.0, 1.0, shape[1])[:, None] ** _powers(self.rank)])
        for _ in range(self.rounds):
            left = _solved(table - right[:, :1].T, mask, _with_one(right[:, 1:]), self.ridge)
            right = _solved((table - left[:, :1]).T, mask.T, _with_one(left[:, 1:]), self.ridge)
        whole = left[:, :1] + right[:, :1].T + left[:, 1:] @ right[:, 1:].T
        whole[~seen.any(axis=1), :] = np.nan
        whole[:, ~seen.any(axis=0)] = np.nan
        return np.asarray(whole)


def _powers(rank: int) -> Array:
    return np.arange(1, rank + 1, dtype=float)[None, :]


def _with_one(factors: Array) -> Array:
    return np.hstack([np.ones((len(factors), 1)), factors])


def _solved(table: Array, mask: Array, others: Array, ridge: float) -> Array:
    """Each row's term and factors by least squares on its known cells (rows, 1 + rank); the ridge spares the terms."""
    penalty = ridge * np.eye(others.shape[1])
    penalty[0, 0] = 1e-6
    squares = np.einsum("ij,jk,jl->ikl", mask, others, others) + penalty
    return np.asarray(np.linalg.solve(squares, np.einsum("ij,jk->ik", mask * table, others)[:, :, None])[:, :, 0])


@dataclass(frozen=True, slots=True, eq=False)
class MatrixCompletionModel:
    """A completed table of log speeds."""

    rows: Mapping[_Row, int]
    columns: Mapping[str, int]
    table: Array
    sd: float

    def predict(self, cell: SpeedCell) -> Prediction:
        row, column = self.rows.get(_row(cell)), self.columns.get(cell.accelerator.name)
        if row is None or column is None:
            raise CannotPredict(f"nothing was measured of {cell.kind.name} in this layout, or on this accelerator")
        return log_normal_prediction(float(self.table[row, column]), self.sd)
