"""A Gaussian process over kinds, accelerators and layouts: learns from neighbours of a cell what nobody measured.

It models the logarithm of step time as a line that theory gives (time grows with the samples of a pass and falls with
the speed of the accelerator) plus deviations. Their covariance is a sum of terms: the kind, the accelerator (its name,
and its facts, so that a new one can be told from them), the layout, and how these go together; each term has a weight.
Weights are found by likelihood on at most `fit_to` observations, evenly taken. Up to `condition_on` observations, all
are conditioned on; of more, so many, evenly taken, and all of the kind that is asked about, so that time grows in
proportion to them. Intervals are widened or narrowed by how its own errors compare with what it expected: leaving out
one observation, and, for accelerators that nobody measured, leaving out all of one accelerator.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from optimizer.prediction.boosted_trees import Array, CellFeatures, cell_features
from optimizer.prediction.predictor import (
    INTERVAL,
    Z80,
    CannotPredict,
    Observation,
    Prediction,
    SpeedCell,
    log_normal_prediction,
)

#: Weights (standard deviations of log time) that a fit starts from, in the order of `terms`.
_TERMS: tuple[tuple[str, float], ...] = (
    ("kind", 3.0),
    ("accelerator", 0.5),
    ("facts", 0.3),
    ("kind, facts", 0.1),
    ("layout", 0.5),
    ("kind, layout", 0.4),
    ("accelerator, layout", 0.15),
    ("kind, accelerator", 0.15),
    ("kind, accelerator, layout", 0.1),
)
START_WEIGHTS = np.log([*(weight for _, weight in _TERMS), 1.0, 0.05])
#: Positions in a parameter vector of the length scale (in log layout) and of the noise.
LENGTH_AT, NOISE_AT = len(_TERMS), len(_TERMS) + 1
#: Terms that hold the layout: alone, with the kind, with the accelerator, with both.
_OF_LAYOUT = (4, 5, 6, 8)


def prior_variances(points: CellFeatures, parameters: Array) -> Array:
    """Of each point by itself: the diagonal of its covariance with all of them."""
    facts = np.einsum("ij,ij->i", points.facts, points.facts)
    ones = np.ones_like(facts)
    shared = SharedFeatures(ones, ones, facts, np.zeros_like(facts))
    return shared.covariance(parameters)


@dataclass(frozen=True, slots=True, eq=False)
class SharedFeatures:
    """What two sets of points share, before any weight: computed once, weighted often."""

    kind: Array
    accelerator: Array
    facts: Array
    distance: Array

    def layout(self, parameters: Array) -> Array:
        """1 for equal layouts, less the further they are apart."""
        return np.asarray(np.exp(-0.5 * self.distance * np.exp(-2.0 * parameters[LENGTH_AT])))

    def terms(self, layout: Array) -> tuple[Array, ...]:
        """In the order of `_TERMS`, each with weight 1."""
        both = self.kind * self.accelerator
        return (
            self.kind,
            self.accelerator,
            self.facts,
            self.kind * self.facts,
            layout,
            self.kind * layout,
            self.accelerator * layout,
            both,
            both * layout,
        )

    def covariance(self, parameters: Array) -> Array:
        """Sum of all terms; noise is not in it."""
        weights = np.exp(2.0 * parameters[:LENGTH_AT])
        total = np.zeros_like(self.kind)
        for weight, term in zip(weights, self.terms(self.layout(parameters)), strict=True):
            total += weight * term
        return total

    def slopes(self, parameters: Array, by: Array) -> Array:
        """Sum over all entries of `by` times the covariance's derivative by each parameter; for noise, its diagonal."""
        weights = np.exp(2.0 * parameters[:LENGTH_AT])
        layout = self.layout(parameters)
        sums = [float((by * term).sum()) for term in self.terms(layout)]
        bent = by * layout * self.distance * np.exp(-2.0 * parameters[LENGTH_AT])
        shares = (np.ones_like(bent), self.kind, self.accelerator, self.kind * self.accelerator)
        by_length = sum(
            weights[row] * float((bent * share).sum()) for row, share in zip(_OF_LAYOUT, shares, strict=True)
        )
        noise = 2.0 * np.exp(2.0 * parameters[NOISE_AT]) * float(np.trace(by))
        return np.array([*(2.0 * weights * sums), by_length, noise])


def shared_features(left: CellFeatures, right: CellFeatures) -> SharedFeatures:
    """(n left, n right) of each."""
    gaps = left.layouts[:, None, :] - right.layouts[None, :, :]
    return SharedFeatures(
        kind=(left.kinds[:, None] == right.kinds[None, :]).astype(float),
        accelerator=(left.accelerators[:, None] == right.accelerators[None, :]).astype(float),
        facts=left.facts @ right.facts.T,
        distance=np.einsum("ijk,ijk->ij", gaps, gaps),
    )


#: A weight may move so far from where it starts (log): few observations then do not run away.
_PULL = 1.0
_REACH = 3.0
#: No fit is so sure, or so unsure, of itself.
_LEAST_SCALE, _MOST_SCALE = 0.3, 4.0
#: So many accelerators must be known before their data sheets can be trusted to tell of another.
_FEW = 4
#: Cells told at once: memory is this times what is conditioned on.
_BATCH = 500


def _line(points: CellFeatures) -> Array:
    """Log step time by theory, up to a constant of each kind."""
    passes = points.layouts[:, 0] + points.layouts[:, 3]
    return np.asarray(0.8 * passes - points.facts.mean(axis=1))


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """The predictor."""

    fit_to: int = 250
    condition_on: int = 1000
    rounds: int = 40

    @property
    def name(self) -> str:
        return "learned"

    def fit(self, observations: Sequence[Observation]) -> "GaussianProcessModel":
        """Raises CannotPredict for fewer than three observations."""
        if len(observations) < 3:
            raise CannotPredict(f"{len(observations)} observations are too few to learn from")
        points = cell_features([observation.cell for observation in observations])
        times = -np.log([observation.steps_per_s for observation in observations]) - _line(points)
        middle = float(np.median(times))
        spreads = np.array([observation.spread / sqrt(observation.samples) for observation in observations])
        every = np.unique(np.linspace(0, len(times) - 1, min(self.fit_to, len(times))).astype(int))
        parameters = self._weights(_selected(points, every), times[every] - middle, spreads[every])
        few = _selected(points, every)
        core = np.unique(np.linspace(0, len(times) - 1, min(self.condition_on, len(times))).astype(int))
        return GaussianProcessModel(
            _condition(_selected(points, core), times[core] - middle, spreads[core], parameters),
            _by_kind(points, times - middle, spreads, np.setdiff1d(np.arange(len(times)), core)),
            middle,
            frozenset(points.accelerators),
            _unseen(few, times[every] - middle, spreads[every], parameters),
        )

    def _weights(self, points: CellFeatures, times: Array, spreads: Array) -> Array:
        shared = shared_features(points, points)

        eye = np.eye(len(times))

        def unlikely(parameters: Array) -> tuple[float, Array]:
            """Minus the log of posterior probability up to a constant, and its slope."""
            factor = _factor(shared, parameters, spreads)
            inverse = cho_solve(factor, eye)
            weights = inverse @ times
            away = (parameters - START_WEIGHTS) / _PULL
            fit = float(times @ weights) + 2.0 * float(np.log(np.diag(factor[0])).sum())
            slopes = shared.slopes(parameters, inverse - np.outer(weights, weights))
            return 0.5 * (fit + float(away @ away)), 0.5 * slopes + away / _PULL

        bounds = [(start - _REACH, start + _REACH) for start in START_WEIGHTS]
        found = minimize(
            unlikely, START_WEIGHTS, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": self.rounds}
        )
        return np.asarray(found.x)


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Observations of one kind that are conditioned on only where that kind is asked about."""

    points: CellFeatures
    times: Array
    spreads: Array


def _by_kind(
    points: CellFeatures, times: Array, spreads: Array, rows: NDArray[np.signedinteger[Any]]
) -> dict[str, _Seen]:
    of_kind: dict[str, list[int]] = {}
    for row in rows.tolist():
        of_kind.setdefault(points.kinds[row], []).append(row)
    taken = {kind: np.array(own) for kind, own in of_kind.items()}
    return {kind: _Seen(_selected(points, own), times[own], spreads[own]) for kind, own in taken.items()}


def _selected(points: CellFeatures, rows: NDArray[np.signedinteger[Any]]) -> CellFeatures:
    return CellFeatures(points.kinds[rows], points.accelerators[rows], points.facts[rows], points.layouts[rows])


def _factor(shared: SharedFeatures, parameters: Array, spreads: Array) -> tuple[Array, bool]:
    own = np.exp(2.0 * parameters[NOISE_AT]) + spreads**2
    factor, lower = cho_factor(shared.covariance(parameters) + np.diag(own), lower=True)
    return factor, lower


def _condition(points: CellFeatures, times: Array, spreads: Array, parameters: Array) -> "_Known":
    factor = _factor(shared_features(points, points), parameters, spreads)
    weights = cho_solve(factor, times)
    precision = np.diag(cho_solve(factor, np.eye(len(times))))
    # Leave-one-out errors of a Gaussian process, in standard deviations.
    return _Known(points, parameters, factor, weights, _scale(np.abs(weights) / np.sqrt(precision), _LEAST_SCALE))


def _scale(surprises: Array, least: float) -> float:
    """What standard deviations must be multiplied by for 80 % of such errors to lie inside the interval."""
    return min(_MOST_SCALE, max(least, float(np.quantile(surprises, INTERVAL)) / Z80))


def _unseen(points: CellFeatures, times: Array, spreads: Array, parameters: Array) -> float:
    """The scale for accelerators that nobody measured, from those that were; wide where that cannot be told."""
    names = sorted(set(points.accelerators))
    if len(names) < _FEW:
        return _MOST_SCALE
    surprises: list[float] = []
    for name in names:
        rest, held = (np.flatnonzero(mask) for mask in (points.accelerators != name, points.accelerators == name))
        common = held[np.isin(points.kinds[held], points.kinds[rest])]
        if len(common) == 0:
            continue
        known = _condition(_selected(points, rest), times[rest], spreads[rest], parameters)
        means, deviations = known.means(_selected(points, common))
        surprises.extend(np.abs(times[common] - means) / deviations)
    return _scale(np.array(surprises), 1.0) if surprises else _MOST_SCALE


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    points: CellFeatures
    parameters: Array
    factor: tuple[Array, bool]
    weights: Array
    #: Factor of standard deviations where kind and accelerator are known.
    scale: float

    def means(self, queried: CellFeatures, more: _Seen | None = None) -> tuple[Array, Array]:
        """Expected deviations from the line, and their standard deviations, unscaled; with `more` known too."""
        shared = self._with(queried, self.points)
        own = prior_variances(queried, self.parameters) + np.exp(2.0 * self.parameters[NOISE_AT])
        means, variances = shared @ self.weights, own - np.einsum("ij,ji->i", shared, cho_solve(self.factor, shared.T))
        if more is not None:
            theirs = self._with(more.points, self.points)
            pulled = cho_solve(self.factor, theirs.T)
            noise = np.diag(np.exp(2.0 * self.parameters[NOISE_AT]) + more.spreads**2)
            factor = cho_factor(self._with(more.points, more.points) + noise - theirs @ pulled, lower=True)
            left = self._with(queried, more.points) - shared @ pulled
            means = means + left @ cho_solve(factor, more.times - theirs @ self.weights)
            variances = variances - np.einsum("ij,ji->i", left, cho_solve(factor, left.T))
        return means, np.sqrt(np.maximum(variances, 1e-6))

    def _with(self, some: CellFeatures, others: CellFeatures) -> Array:
        return shared_features(some, others).covariance(self.parameters)


@dataclass(frozen=True, slots=True, eq=False)
class GaussianProcessModel:
    """Conditioned on observations."""

    known: _Known
    more: Mapping[str, _Seen]
    middle: float
    accelerators: frozenset[str]
    #: Factor of standard deviations on accelerators that nobody measured.
    unseen_scale: float

    def predict(self, cell: SpeedCell) -> Prediction:
        return self.predict_all([cell])[0]

    def predict_many(self, cells: Sequence[SpeedCell]) -> list[Prediction | None]:
        """In order; nothing is refused."""
        return [*self.predict_all(cells)]

    def predict_all(self, cells: Sequence[SpeedCell]) -> list[Prediction]:
        """Of many cells at once, which is faster than one by one."""
        queried = cell_features(cells)
        means, deviations = np.empty(len(cells)), np.empty(len(cells))
        for rows, more in self._batches(queried):
            means[rows], deviations[rows] = self.known.means(_selected(queried, rows), more)
        means = means + _line(queried) + self.middle
        scales = [self.known.scale if name in self.accelerators else self.unseen_scale for name in queried.accelerators]
        return [
            log_normal_prediction(-float(m), float(s * d)) for m, d, s in zip(means, deviations, scales, strict=True)
        ]

    def _batches(self, queried: CellFeatures) -> Iterator[tuple[NDArray[np.signedinteger[Any]], _Seen | None]]:
        """Rows to tell at once, and what is known of their kind beside what is known for all."""
        special = np.isin(queried.kinds, list(self.more))
        plain = np.flatnonzero(~special)
        for first in range(0, len(plain), _BATCH):
            yield plain[first : first + _BATCH], None
        for kind in dict.fromkeys(queried.kinds[special]):
            yield np.flatnonzero(queried.kinds == kind), self.more[kind]
