"""A Gaussian process over kinds, accelerators and layouts: learns from neighbours of a cell what nobody measured.

It models the logarithm of step time as a line that theory gives (time grows with the samples of a pass and falls with
the speed of the accelerator) plus deviations with the covariances of `kernels.py`. Weights are found by likelihood on
at most `fit_to` observations, evenly taken; all observations are conditioned on. Its intervals are widened or narrowed
by how its own leave-one-out errors compare with what it expected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from optimizer.performance.kernels import LENGTH, NOISE, START, Alike, Array, Points, alike, points_of
from optimizer.performance.observation import Cell, Observation
from optimizer.performance.predictor import Z80, CannotPredict, Prediction, around

#: A weight may move so far from where it starts (log): few observations then do not run away.
_PULL = 1.0


def _line(points: Points) -> Array:
    """Log step time by theory, up to a constant of each kind."""
    passes = points.layouts[:, 0] + points.layouts[:, 3]
    return np.asarray(0.8 * passes - points.facts.mean(axis=1))


@dataclass(frozen=True, slots=True)
class Learned:
    """The predictor."""

    fit_to: int = 250
    rounds: int = 40

    @property
    def name(self) -> str:
        return "learned"

    def fit(self, observations: Sequence[Observation]) -> "LearnedModel":
        """Raises CannotPredict for fewer than three observations."""
        if len(observations) < 3:
            raise CannotPredict(f"{len(observations)} observations are too few to learn from")
        points = points_of([observation.cell for observation in observations])
        times = -np.log([observation.steps_per_s for observation in observations]) - _line(points)
        middle = float(np.median(times))
        spreads = np.array([observation.spread / sqrt(observation.samples) for observation in observations])
        every = np.unique(np.linspace(0, len(times) - 1, min(self.fit_to, len(times))).astype(int))
        parameters = self._weights(_taken(points, every), times[every] - middle, spreads[every])
        return _condition(points, times - middle, spreads, parameters, middle)

    def _weights(self, points: Points, times: Array, spreads: Array) -> Array:
        shared = alike(points, points)

        def unlikely(parameters: Array) -> float:
            try:
                factor = _factor(shared, parameters, spreads)
            except np.linalg.LinAlgError:
                return 1e9
            fit = float(times @ cho_solve(factor, times)) + 2.0 * float(np.log(np.diag(factor[0])).sum())
            return 0.5 * fit + 0.5 * float((((parameters - START) / _PULL) ** 2).sum())

        return np.asarray(minimize(unlikely, START, method="L-BFGS-B", options={"maxiter": self.rounds}).x)


def _taken(points: Points, rows: Array) -> Points:
    return Points(points.kinds[rows], points.accelerators[rows], points.facts[rows], points.layouts[rows])


def _factor(shared: Alike, parameters: Array, spreads: Array) -> tuple[Array, bool]:
    own = np.exp(2.0 * parameters[NOISE]) + spreads**2
    factor, lower = cho_factor(shared.covariance(parameters) + np.diag(own), lower=True)
    return factor, lower


def _condition(points: Points, times: Array, spreads: Array, parameters: Array, middle: float) -> "LearnedModel":
    factor = _factor(alike(points, points), parameters, spreads)
    weights = cho_solve(factor, times)
    precision = np.diag(cho_solve(factor, np.eye(len(times))))
    # Leave-one-out errors of a Gaussian process, in standard deviations; 80 % of them should lie within Z80.
    surprise = np.abs(weights) / np.sqrt(precision)
    scale = float(np.quantile(surprise, 0.8)) / Z80
    return LearnedModel(points, parameters, factor, weights, middle, min(3.0, max(0.3, scale)))


@dataclass(frozen=True, slots=True, eq=False)
class LearnedModel:
    """Conditioned on observations."""

    points: Points
    parameters: Array
    factor: tuple[Array, bool]
    weights: Array
    middle: float
    #: Factor of all standard deviations.
    scale: float

    def predict(self, cell: Cell) -> Prediction:
        return self.predict_all([cell])[0]

    def predict_all(self, cells: Sequence[Cell]) -> list[Prediction]:
        """Of many cells at once, which is faster than one by one."""
        asked = points_of(cells)
        shared = alike(asked, self.points).covariance(self.parameters)
        means = _line(asked) + self.middle + shared @ self.weights
        own = np.diag(alike(asked, asked).covariance(self.parameters)) + np.exp(2.0 * self.parameters[NOISE])
        variances = np.maximum(own - np.einsum("ij,ji->i", shared, cho_solve(self.factor, shared.T)), 1e-6)
        deviations = self.scale * np.sqrt(variances)
        return [around(-float(mean), float(sd)) for mean, sd in zip(means, deviations, strict=True)]
