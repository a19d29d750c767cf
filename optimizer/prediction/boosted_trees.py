"""Gradient-boosted trees over cells as feature columns, the same that the Gaussian process uses.

The trees fit the residual of log step time after a linear trend and the kind's median. Trees do not extrapolate, so
cells of a kind or an accelerator that was never measured are refused. The width of intervals is that of
cross-validation errors. scikit-learn is imported only for a fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.prediction.predictor import (
    INTERVAL,
    Z80,
    AcceleratorSpecs,
    CannotPredict,
    Observation,
    Prediction,
    SpeedCell,
    log_normal_prediction,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CellFeatures:
    """Feature columns of n cells."""

    kinds: NDArray[Any]
    accelerators: NDArray[Any]
    #: (n, 2) logs of achieved arithmetic and memory bandwidth, relative to a typical accelerator.
    facts: Array
    #: (n, 4) logs of samples per pass, accelerators, machines, passes.
    layouts: Array


def cell_features(cells: Sequence[SpeedCell]) -> CellFeatures:
    """Returns the feature columns of the cells."""
    return CellFeatures(
        kinds=np.array([cell.kind.name for cell in cells], dtype=object),
        accelerators=np.array([cell.accelerator.name for cell in cells], dtype=object),
        facts=np.log([_achieved(cell.accelerator) for cell in cells]) - np.log([1e13, 5e11]),
        layouts=np.log(
            [
                [layout.local, layout.accelerators, layout.machines, layout.accumulated + 1.0]
                for layout in (cell.layout for cell in cells)
            ]
        ),
    )


def _achieved(facts: AcceleratorSpecs) -> tuple[float, float]:
    return facts.achieves * facts.flops_per_s, facts.achieves * facts.memory_bytes_per_s


_PARTS = 4
_LEAST_SD = 0.01
#: Fewest observations for a fit.
_FEWEST = 20


@dataclass(frozen=True, slots=True)
class BoostedTrees:
    """The predictor. Rows are not sampled and the seed is fixed, so the same observations give the same trees."""

    trees: int = 200
    depth: int = 4
    rate: float = 0.1
    #: Largest number of observations for a fit, evenly taken, because its time is linear in them.
    fit_to: int = 1000

    @property
    def name(self) -> str:
        return "boosted"

    def fit(self, observations: Sequence[Observation]) -> "BoostedTreesModel":
        """Fits the trees. Raises CannotPredict for fewer than 20 observations."""
        if len(observations) < _FEWEST:
            raise CannotPredict(f"{len(observations)} observations are too few to grow trees from")
        errors: list[float] = []
        few = self._few(observations)
        for part in range(_PARTS):
            model = self._grown([o for n, o in enumerate(few) if n % _PARTS != part], 1.0)
            held = [o for n, o in enumerate(few) if n % _PARTS == part and model.knows(o.cell)]
            if held:
                predicted = model.log_times([o.cell for o in held])
                errors += np.abs(predicted + np.log([o.steps_per_s for o in held])).tolist()
        sd = float(np.quantile(errors, INTERVAL)) / Z80 if errors else 1.0
        return self._grown(observations, max(_LEAST_SD, sd))

    def _few(self, observations: Sequence[Observation]) -> list[Observation]:
        every = np.unique(np.linspace(0, len(observations) - 1, min(self.fit_to, len(observations))).astype(int))
        return [observations[place] for place in every]

    def _grown(self, observations: Sequence[Observation], sd: float) -> "BoostedTreesModel":
        from sklearn.ensemble import GradientBoostingRegressor

        usual = _usual(observations)
        names = sorted({observation.cell.accelerator.name for observation in observations})
        accelerators = {name: float(n) for n, name in enumerate(names)}
        few = self._few(observations)
        cells = [observation.cell for observation in few]
        times = -np.log([observation.steps_per_s for observation in few]) - _line(cells)
        trees = GradientBoostingRegressor(
            n_estimators=self.trees, max_depth=self.depth, learning_rate=self.rate, random_state=0
        )
        trees.fit(_columns(cells, usual, accelerators), times - np.array([usual[cell.kind.name] for cell in cells]))
        return BoostedTreesModel(trees, usual, accelerators, sd)


def _usual(observations: Sequence[Observation]) -> dict[str, float]:
    """Returns the median over each kind of log step time minus the linear trend."""
    times = -np.log([observation.steps_per_s for observation in observations])
    times = times - _line([observation.cell for observation in observations])
    values: dict[str, list[float]] = {}
    for observation, value in zip(observations, times.tolist(), strict=True):
        values.setdefault(observation.cell.kind.name, []).append(value)
    return {name: float(np.median(found)) for name, found in values.items()}


def _line(cells: Sequence[SpeedCell]) -> Array:
    """Returns the linear trend of log step time: it grows with the samples of a pass and with the passes."""
    layouts = cell_features(cells).layouts
    return np.asarray(0.8 * (layouts[:, 0] + layouts[:, 3]))


def _columns(cells: Sequence[SpeedCell], usual: Mapping[str, float], accelerators: Mapping[str, float]) -> NDArray[Any]:
    """Returns the features: layout, data sheet, the accelerator as a number, and the kind's median."""
    points = cell_features(cells)
    own = [[usual[cell.kind.name], accelerators[cell.accelerator.name]] for cell in cells]
    return np.hstack([points.layouts, points.facts, np.array(own)])


@dataclass(frozen=True, slots=True, eq=False)
class BoostedTreesModel:
    """The fitted trees, the medians of kinds, and the numbers of accelerators."""

    trees: Any
    usual: Mapping[str, float]
    accelerators: Mapping[str, float]
    sd: float

    def knows(self, cell: SpeedCell) -> bool:
        """Returns whether the kind and the accelerator were both measured, though perhaps not together."""
        return cell.kind.name in self.usual and cell.accelerator.name in self.accelerators

    def log_times(self, cells: Sequence[SpeedCell]) -> Array:
        """Returns the log seconds of one step for cells that `knows` accepts."""
        predicted = self.trees.predict(_columns(cells, self.usual, self.accelerators))
        return np.asarray(predicted + _line(cells) + np.array([self.usual[cell.kind.name] for cell in cells]))

    def predict(self, cell: SpeedCell) -> Prediction:
        if not self.knows(cell):
            raise CannotPredict(f"{cell.kind.name} or {cell.accelerator.name} was never measured")
        return log_normal_prediction(-float(self.log_times([cell])[0]), self.sd)

    def predict_many(self, cells: Sequence[SpeedCell]) -> list[Prediction | None]:
        """Returns predictions in the cells' order; None for a cell whose kind or accelerator was never measured."""
        known = [cell for cell in cells if self.knows(cell)]
        times = iter(self.log_times(known).tolist() if known else [])
        return [log_normal_prediction(-next(times), self.sd) if self.knows(cell) else None for cell in cells]
