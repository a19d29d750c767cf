"""Gradient boosting over the same columns as the Gaussian process: steps where it is smooth, and no facts needed.

Trees learn what is left of log step time beside a line of theory and what is usual for the kind. They do not reach
beyond what was measured: a kind or an accelerator that nobody ran is refused. Intervals are as wide as errors on parts
told from the others. scikit-learn is loaded when something is fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.performance.predicting.kernels import Array, points_of
from optimizer.performance.predicting.observation import Cell, Observation
from optimizer.performance.predicting.predictor import INTERVAL, Z80, CannotPredict, Prediction, around

_PARTS = 4
_LEAST_SD = 0.01
#: Fewer observations grow no tree worth asking.
_FEWEST = 20


@dataclass(frozen=True, slots=True)
class Boosted:
    """The predictor. Rows are not sampled and the seed is fixed: the same observations give the same trees."""

    trees: int = 200
    depth: int = 4
    rate: float = 0.1
    #: Trees grow on at most so many observations, evenly taken: time grows with each.
    fit_to: int = 1000

    @property
    def name(self) -> str:
        return "boosted"

    def fit(self, observations: Sequence[Observation]) -> "BoostedModel":
        """Raises CannotPredict for fewer than 20 observations."""
        if len(observations) < _FEWEST:
            raise CannotPredict(f"{len(observations)} observations are too few to grow trees from")
        errors: list[float] = []
        few = self._few(observations)
        for part in range(_PARTS):
            model = self._grown([o for n, o in enumerate(few) if n % _PARTS != part], 1.0)
            held = [o for n, o in enumerate(few) if n % _PARTS == part and model.knows(o.cell)]
            if held:
                told = model.log_times([o.cell for o in held])
                errors += np.abs(told + np.log([o.steps_per_s for o in held])).tolist()
        sd = float(np.quantile(errors, INTERVAL)) / Z80 if errors else 1.0
        return self._grown(observations, max(_LEAST_SD, sd))

    def _few(self, observations: Sequence[Observation]) -> list[Observation]:
        every = np.unique(np.linspace(0, len(observations) - 1, min(self.fit_to, len(observations))).astype(int))
        return [observations[place] for place in every]

    def _grown(self, observations: Sequence[Observation], sd: float) -> "BoostedModel":
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
        return BoostedModel(trees, usual, accelerators, sd)


def _usual(observations: Sequence[Observation]) -> dict[str, float]:
    """By kind, the median of log step time beside the line of theory."""
    times = -np.log([observation.steps_per_s for observation in observations])
    times = times - _line([observation.cell for observation in observations])
    values: dict[str, list[float]] = {}
    for observation, value in zip(observations, times.tolist(), strict=True):
        values.setdefault(observation.cell.kind.name, []).append(value)
    return {name: float(np.median(found)) for name, found in values.items()}


def _line(cells: Sequence[Cell]) -> Array:
    """Log step time of theory: it grows with the samples of a pass, and with passes."""
    layouts = points_of(cells).layouts
    return np.asarray(0.8 * (layouts[:, 0] + layouts[:, 3]))


def _columns(cells: Sequence[Cell], usual: Mapping[str, float], accelerators: Mapping[str, float]) -> NDArray[Any]:
    """What the trees see: layout, facts, the accelerator as a number, and what is usual for the kind."""
    points = points_of(cells)
    own = [[usual[cell.kind.name], accelerators[cell.accelerator.name]] for cell in cells]
    return np.hstack([points.layouts, points.facts, np.array(own)])


@dataclass(frozen=True, slots=True, eq=False)
class BoostedModel:
    """Trees, and what they were grown on."""

    trees: Any
    usual: Mapping[str, float]
    accelerators: Mapping[str, float]
    sd: float

    def knows(self, cell: Cell) -> bool:
        """Whether kind and accelerator were both measured, if not together."""
        return cell.kind.name in self.usual and cell.accelerator.name in self.accelerators

    def log_times(self, cells: Sequence[Cell]) -> Array:
        """Of one step, for cells that it knows."""
        told = self.trees.predict(_columns(cells, self.usual, self.accelerators))
        return np.asarray(told + _line(cells) + np.array([self.usual[cell.kind.name] for cell in cells]))

    def predict(self, cell: Cell) -> Prediction:
        if not self.knows(cell):
            raise CannotPredict(f"{cell.kind.name} or {cell.accelerator.name} was never measured")
        return around(-float(self.log_times([cell])[0]), self.sd)

    def predict_many(self, cells: Sequence[Cell]) -> list[Prediction | None]:
        """In order; None for a cell of which kind or accelerator was never measured."""
        known = [cell for cell in cells if self.knows(cell)]
        times = iter(self.log_times(known).tolist() if known else [])
        return [around(-next(times), self.sd) if self.knows(cell) else None for cell in cells]
