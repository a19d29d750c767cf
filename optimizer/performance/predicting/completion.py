"""Speeds nobody measured, from a table of what runs where: rows are kinds in one layout, columns are accelerators.

    log speed = row + column + p_row . q_column        rank few, least squares with a ridge

This needs no facts at all: a row that was measured on some accelerators is like others that were measured on more. It
knows nothing of rows and columns that are empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from optimizer.performance.predicting.observation import Cell, Observation
from optimizer.performance.predicting.predictor import CannotPredict, Prediction, around

Array = NDArray[np.float64]
_Row = tuple[str, float, int, int, int]
#: Interleaved parts, each told from the others, that the width of intervals is found by.
_PARTS = 5
_LEAST_SD = 0.02
#: Where there is too little to tell parts of it from the rest.
_BLIND_SD = 0.5


def _row(cell: Cell) -> _Row:
    layout = cell.layout
    return (cell.kind.name, layout.batch, layout.accelerators, layout.machines, layout.accumulated)


@dataclass(frozen=True, slots=True)
class Completion:
    """The predictor."""

    rank: int = 1
    ridge: float = 0.3
    rounds: int = 30

    @property
    def name(self) -> str:
        return "completion"

    def fit(self, observations: Sequence[Observation]) -> "CompletionModel":
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
        return CompletionModel(rows, columns, self._complete(at, logs, shape), max(_LEAST_SD, sd))

    def _errors(self, at: NDArray[np.int64], logs: Array, shape: tuple[int, int], part: int) -> list[float]:
        """Of one part told from the others, where its rows and columns are not empty without it."""
        held = np.arange(len(logs)) % _PARTS == part
        if held.all() or not held.any():
            return []
        table = self._complete(at[~held], logs[~held], shape)
        told = table[at[held, 0], at[held, 1]]
        return [float(error) for error in told - logs[held] if np.isfinite(error)]

    def _complete(self, at: NDArray[np.int64], logs: Array, shape: tuple[int, int]) -> Array:
        """The whole table; not a number where a row or a column is empty."""
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
    """(rows, 1 + rank): each row's term and factors, by least squares on what is known of it; terms are free."""
    penalty = ridge * np.eye(others.shape[1])
    penalty[0, 0] = 1e-6
    squares = np.einsum("ij,jk,jl->ikl", mask, others, others) + penalty
    return np.asarray(np.linalg.solve(squares, np.einsum("ij,jk->ik", mask * table, others)[:, :, None])[:, :, 0])


@dataclass(frozen=True, slots=True, eq=False)
class CompletionModel:
    """A full table of log speeds."""

    rows: Mapping[_Row, int]
    columns: Mapping[str, int]
    table: Array
    sd: float

    def predict(self, cell: Cell) -> Prediction:
        row, column = self.rows.get(_row(cell)), self.columns.get(cell.accelerator.name)
        if row is None or column is None:
            raise CannotPredict(f"nothing was measured of {cell.kind.name} in this layout, or on this accelerator")
        return around(float(self.table[row, column]), self.sd)
