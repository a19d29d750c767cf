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
from optimizer.prediction.odd_pairs import Pair, odd_pairs, own_variances
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


def prior_variances(points: CellFeatures, parameters: Array, odd: Mapping[Pair, float]) -> Array:
    """Of each point by itself: the diagonal of its covariance with all of them."""
    facts = np.einsum("ij,ij->i", points.facts, points.facts)
    ones = np.ones_like(facts)
    own = own_variances(points.kinds, points.accelerators, odd)
    return SharedFeatures(ones, ones, facts, np.zeros_like(facts), own).covariance(parameters)


@dataclass(frozen=True, slots=True, eq=False)
class SharedFeatures:
    """What two sets of points share, before any weight: computed once, weighted often."""

    kind: Array
    accelerator: Array
    facts: Array
    distance: Array
    #: Variances that a kind on an accelerator has for itself, where both points are of that pair.
    own: Array

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
        total = self.own.copy()
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


def shared_features(left: CellFeatures, right: CellFeatures, odd: Mapping[Pair, float]) -> SharedFeatures:
    """(n left, n right) of each; `odd`: pairs of kind and accelerator with a variance of their own."""
    gaps = left.layouts[:, None, :] - right.layouts[None, :, :]
    kind = (left.kinds[:, None] == right.kinds[None, :]).astype(float)
    accelerator = (left.accelerators[:, None] == right.accelerators[None, :]).astype(float)
    return SharedFeatures(
        kind=kind,
        accelerator=accelerator,
        facts=left.facts @ right.facts.T,
        distance=np.einsum("ijk,ijk->ij", gaps, gaps),
        own=kind * accelerator * own_variances(left.kinds, left.accelerators, odd)[:, None],
    )


#: A weight may move so far from where it starts (log): few observations then do not run away.
_PULL = 1.0
_REACH = 3.0
#: No fit is so sure, or so unsure, of itself.
_LEAST_SCALE, _MOST_SCALE = 0.3, 4.0
#: So many accelerators must be known before their data sheets can be trusted to tell of another.
_FEW = 4
#: Kinds that must have run on an accelerator for its cells to set the weights.
_WELL_KNOWN = 3
#: Kinds by which an accelerator is half known.
_HALF_KNOWN = 1.0
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
        every = every[_well_known(_selected(points, every))]
        few, told, noise = _selected(points, every), times[every] - middle, spreads[every]
        parameters = self._weights(few, told, noise, {})
        if odd := _odd(few, told, noise, parameters):
            # Found by weights that the odd pairs had bent: they are weighed without them, and looked for again.
            parameters = self._weights(few, told, noise, odd)
        core = np.unique(np.linspace(0, len(times) - 1, min(self.condition_on, len(times))).astype(int))
        kept, told, noise = _selected(points, core), times[core] - middle, spreads[core]
        law = _Law(parameters, _odd(kept, told, noise, parameters))
        return GaussianProcessModel(
            _condition(kept, told, noise, law),
            _by_kind(points, times - middle, spreads, np.setdiff1d(np.arange(len(times)), core)),
            middle,
            _evidence(points),
            _unseen(few, times[every] - middle, spreads[every], law),
        )

    def _weights(self, points: CellFeatures, times: Array, spreads: Array, odd: Mapping[Pair, float]) -> Array:
        shared = shared_features(points, points, odd)

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
class _Law:
    """What a fit chose: weights, and the pairs that have a variance of their own."""

    parameters: Array
    odd: Mapping[Pair, float]


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


def _well_known(points: CellFeatures) -> NDArray[np.signedinteger[Any]]:
    """Rows of accelerators where several kinds ran: what a few cells say of another one is to be weighed by these."""
    evidence = _evidence(points)
    known = np.array([evidence[name] >= _WELL_KNOWN for name in points.accelerators])
    return np.flatnonzero(known if len(set(points.accelerators[known])) >= 2 else np.ones_like(known))


def _evidence(points: CellFeatures) -> dict[str, int]:
    pairs = set(zip(points.accelerators.tolist(), points.kinds.tolist(), strict=True))
    return {name: sum(accelerator == name for accelerator, _ in pairs) for name in sorted({a for a, _ in pairs})}


def _selected(points: CellFeatures, rows: NDArray[np.signedinteger[Any]]) -> CellFeatures:
    return CellFeatures(points.kinds[rows], points.accelerators[rows], points.facts[rows], points.layouts[rows])


def _factor(shared: SharedFeatures, parameters: Array, spreads: Array) -> tuple[Array, bool]:
    own = np.exp(2.0 * parameters[NOISE_AT]) + spreads**2
    factor, lower = cho_factor(shared.covariance(parameters) + np.diag(own), lower=True)
    return factor, lower


def _odd(points: CellFeatures, times: Array, spreads: Array, parameters: Array) -> dict[Pair, float]:
    covariance = shared_features(points, points, {}).covariance(parameters)
    noise = np.exp(2.0 * parameters[NOISE_AT]) + spreads**2
    return odd_pairs(points.kinds, points.accelerators, covariance + np.diag(noise), times)


def _condition(points: CellFeatures, times: Array, spreads: Array, law: _Law) -> "_Known":
    factor = _factor(shared_features(points, points, law.odd), law.parameters, spreads)
    weights = cho_solve(factor, times)
    precision = np.diag(cho_solve(factor, np.eye(len(times))))
    # Leave-one-out errors of a Gaussian process, in standard deviations.
    return _Known(points, law, factor, weights, _scale(np.abs(weights) / np.sqrt(precision), _LEAST_SCALE))


def _scale(surprises: Array, least: float) -> float:
    """What standard deviations must be multiplied by for 80 % of such errors to lie inside the interval."""
    return min(_MOST_SCALE, max(least, float(np.quantile(surprises, INTERVAL)) / Z80))


def _unseen(points: CellFeatures, times: Array, spreads: Array, law: _Law) -> float:
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
        # That one of its kinds is odd there is not known of an accelerator that nobody measured.
        others = _Law(law.parameters, {pair: own for pair, own in law.odd.items() if pair[1] != name})
        known = _condition(_selected(points, rest), times[rest], spreads[rest], others)
        means, deviations = known.means(_selected(points, common))
        surprises.extend(np.abs(times[common] - means) / deviations)
    return _scale(np.array(surprises), 1.0) if surprises else _MOST_SCALE


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    points: CellFeatures
    law: _Law
    factor: tuple[Array, bool]
    weights: Array
    #: Factor of standard deviations where kind and accelerator are known.
    scale: float

    def means(self, queried: CellFeatures, more: _Seen | None = None) -> tuple[Array, Array]:
        """Expected deviations from the line, and their standard deviations, unscaled; with `more` known too."""
        shared = self._with(queried, self.points)
        parameters = self.law.parameters
        own = prior_variances(queried, parameters, self.law.odd) + np.exp(2.0 * parameters[NOISE_AT])
        means, variances = shared @ self.weights, own - np.einsum("ij,ji->i", shared, cho_solve(self.factor, shared.T))
        if more is not None:
            theirs = self._with(more.points, self.points)
            pulled = cho_solve(self.factor, theirs.T)
            noise = np.diag(np.exp(2.0 * parameters[NOISE_AT]) + more.spreads**2)
            factor = cho_factor(self._with(more.points, more.points) + noise - theirs @ pulled, lower=True)
            left = self._with(queried, more.points) - shared @ pulled
            means = means + left @ cho_solve(factor, more.times - theirs @ self.weights)
            variances = variances - np.einsum("ij,ji->i", left, cho_solve(factor, left.T))
        return means, np.sqrt(np.maximum(variances, 1e-6))

    def _with(self, some: CellFeatures, others: CellFeatures) -> Array:
        return shared_features(some, others, self.law.odd).covariance(self.law.parameters)


@dataclass(frozen=True, slots=True, eq=False)
class GaussianProcessModel:
    """Conditioned on observations."""

    known: _Known
    more: Mapping[str, _Seen]
    middle: float
    #: By accelerator that was measured: how many kinds were.
    evidence: Mapping[str, int]
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
        scales = [self._scale_on(name) for name in queried.accelerators]
        return [
            log_normal_prediction(-float(m), float(s * d)) for m, d, s in zip(means, deviations, scales, strict=True)
        ]

    def _scale_on(self, accelerator: str) -> float:
        """An accelerator is known by the kinds that ran there, little by little."""
        unseen = _HALF_KNOWN / (_HALF_KNOWN + self.evidence.get(accelerator, 0))
        return float(self.known.scale ** (1.0 - unseen) * self.unseen_scale**unseen)

    def _batches(self, queried: CellFeatures) -> Iterator[tuple[NDArray[np.signedinteger[Any]], _Seen | None]]:
        """Rows to tell at once, and what is known of their kind beside what is known for all."""
        special = np.isin(queried.kinds, list(self.more))
        plain = np.flatnonzero(~special)
        for first in range(0, len(plain), _BATCH):
            yield plain[first : first + _BATCH], None
        for kind in dict.fromkeys(queried.kinds[special]):
            yield np.flatnonzero(queried.kinds == kind), self.more[kind]
