"""A Gaussian process over kinds, accelerators and layouts, which predicts unmeasured cells from similar ones.

It models the logarithm of step time as a linear trend (time grows with the samples of a pass and falls with the speed
of the accelerator, less so as far as a pass only starts, which a kind's batches tell) plus deviations. Their covariance
is a sum of weighted terms: the kind, the accelerator (its name, its starts, and its data sheet, so that a new one can
be predicted), the layout, and interactions of these. The weights maximise the posterior likelihood on at most `fit_to`
observations, evenly taken. The process is conditioned on all observations up to `condition_on`; of more, it is
conditioned on that many, evenly taken, and on all of the queried kind, so that time stays linear in their number.
Intervals are scaled by leave-one-out errors, and for unmeasured accelerators by errors when all observations of one
accelerator are left out.

Outliers among pairs of a kind and an accelerator must not shift the predictions for other kinds on the accelerator. A
normal model explains one cell that is ten times slower than expected by a slow accelerator; real tables have such pairs
for other reasons: a slow host, or a library without a kernel for that chip. A pair whose cells lie too far from their
prediction by all other cells gets a variance of its own, as if its deviation had a distribution with heavy tails. Its
own cells are then predicted as measured, and it has almost no influence on other kinds. The most extreme pair is
treated first and the others are tested again, so that an outlier does not make its neighbours look odd. Two kinds that
agree that an accelerator is slow are no outliers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

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

#: Exponent of an accelerator's speed in the time to start a pass, relative to its time per sample. 0 would be a start
#: that only the host pays for, 1 one that kernels pay for.
_START_EXPONENT = 0.7
#: Starts that are tried, from none to many times the largest batch; and how far beyond the batches measured.
_STARTS_TRIED, _STARTS_BEYOND = 60, 16.0


@dataclass(frozen=True, slots=True, eq=False)
class CellFeatures:
    """Feature columns of n cells."""

    kinds: NDArray[Any]
    accelerators: NDArray[Any]
    #: (n, 2) logs of achieved arithmetic and memory bandwidth against a typical accelerator, as far as they count.
    facts: Array
    #: (n, 4) logs of samples per pass, accelerators, machines, passes.
    layouts: Array
    #: (n,) part of a pass before its first sample, 0 to 1; 0 where unknown.
    start: Array


def cell_features(cells: Sequence[SpeedCell], starts: Mapping[str, float]) -> CellFeatures:
    """Returns the feature columns of the cells. `starts` as `start_samples` returns it."""
    layouts = np.log(
        [
            [layout.local, layout.accelerators, layout.machines, layout.accumulated + 1.0]
            for layout in (cell.layout for cell in cells)
        ]
    )
    local, samples = np.exp(layouts[:, 0]), np.array([starts.get(cell.kind.name, np.nan) for cell in cells])
    start = np.nan_to_num(samples / (samples + local), nan=0.0)
    facts = np.log([_achieved(cell.accelerator) for cell in cells]) - np.log([1e13, 5e11])
    return CellFeatures(
        kinds=np.array([cell.kind.name for cell in cells], dtype=object),
        accelerators=np.array([cell.accelerator.name for cell in cells], dtype=object),
        facts=(1.0 - (1.0 - _START_EXPONENT) * start)[:, None] * facts,
        layouts=layouts,
        start=start,
    )


def _achieved(facts: AcceleratorSpecs) -> tuple[float, float]:
    return facts.achieves * facts.flops_per_s, facts.achieves * facts.memory_bytes_per_s


def start_samples(observations: Sequence[Observation]) -> dict[str, float]:
    """Returns, by kind, the samples that take as long as the start of a pass: s in time = c (s + samples).

    The same on all accelerators, by least absolute deviations; only of kinds that ran in several batches on one.
    """
    curves: dict[str, dict[tuple[str, int, int, int], list[tuple[float, float]]]] = {}
    for observation in observations:
        layout = observation.cell.layout
        place = (observation.cell.accelerator.name, layout.accelerators, layout.machines, layout.accumulated)
        point = (layout.local, -log(observation.steps_per_s))
        curves.setdefault(observation.cell.kind.name, {}).setdefault(place, []).append(point)
    found = {}
    for kind, places in curves.items():
        bent = [np.array(points) for points in places.values() if len({local for local, _ in points}) > 1]
        if bent:
            least, most = min(each[:, 0].min() for each in bent), max(each[:, 0].max() for each in bent)
            tried = [0.0, *np.geomspace(least / _STARTS_BEYOND, most * _STARTS_BEYOND, _STARTS_TRIED)]
            found[kind] = float(min(tried, key=partial(_deviation, bent)))
    return found


def _deviation(curves: Sequence[Array], start: float) -> float:
    levels = [points[:, 1] - np.log(points[:, 0] + start) for points in curves]
    return sum(float(np.abs(level - np.median(level)).sum()) for level in levels)


#: Initial weights (standard deviations of log time), in the order of `terms`.
_TERMS: tuple[tuple[str, float], ...] = (
    ("kind", 3.0),
    ("accelerator", 0.5),
    ("accelerator's start", 0.2),
    ("facts", 0.3),
    ("kind, facts", 0.1),
    ("layout", 0.5),
    ("kind, layout", 0.4),
    ("accelerator, layout", 0.15),
    ("kind, accelerator", 0.15),
    ("kind, accelerator, layout", 0.1),
)
START_WEIGHTS = np.log([*(weight for _, weight in _TERMS), 1.0, 0.05])
#: Positions in the parameter vector of the length scale (in log layout) and of the noise.
LENGTH_AT, NOISE_AT = len(_TERMS), len(_TERMS) + 1
#: Terms that include the layout: alone, with the kind, with the accelerator, with both.
_OF_LAYOUT = (5, 6, 7, 9)

Floats = NDArray[np.float64]
#: A kind and an accelerator.
Pair = tuple[str, str]

#: Standard deviations of its common shift from which on a pair is odd; by chance about 1 pair in 500 is.
_ODD = 3.0
#: Largest share of pairs treated as odd: more indicate that the model itself does not fit.
_MOST = 0.2


def prior_variances(points: CellFeatures, parameters: Array, odd: Mapping[Pair, float]) -> Array:
    """Returns the prior variance of each point: the diagonal of the points' covariance matrix."""
    facts = np.einsum("ij,ij->i", points.facts, points.facts)
    ones = np.ones_like(facts)
    own = own_variances(points.kinds, points.accelerators, odd)
    return SharedFeatures(ones, ones, points.start**2, facts, np.zeros_like(facts), own).covariance(parameters)


@dataclass(frozen=True, slots=True, eq=False)
class SharedFeatures:
    """Similarities of two sets of points before weighting: computed once, and used for many weights."""

    kind: Array
    accelerator: Array
    #: Of two points on one accelerator, the product of the parts of their steps that start kernels.
    start: Array
    facts: Array
    distance: Array
    #: Additional variance of an odd pair of kind and accelerator, where both points belong to that pair.
    own: Array

    def layout(self, parameters: Array) -> Array:
        """Returns the layouts' squared-exponential kernel: 1 for equal layouts, falling with their distance."""
        return np.asarray(np.exp(-0.5 * self.distance * np.exp(-2.0 * parameters[LENGTH_AT])))

    def terms(self, layout: Array) -> tuple[Array, ...]:
        """Returns the terms in the order of `_TERMS`, each with weight 1."""
        both = self.kind * self.accelerator
        return (
            self.kind,
            self.accelerator,
            self.start,
            self.facts,
            self.kind * self.facts,
            layout,
            self.kind * layout,
            self.accelerator * layout,
            both,
            both * layout,
        )

    def covariance(self, parameters: Array) -> Array:
        """Returns the sum of all weighted terms, without noise."""
        weights = np.exp(2.0 * parameters[:LENGTH_AT])
        total = self.own.copy()
        for weight, term in zip(weights, self.terms(self.layout(parameters)), strict=True):
            total += weight * term
        return total

    def slopes(self, parameters: Array, by: Array) -> Array:
        """Returns the sum of `by` times the covariance's derivative by each parameter; for noise, of its diagonal."""
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
    """Returns the similarities (n left, n right); `odd` maps pairs of kind and accelerator to their additional
    variance.
    """
    gaps = left.layouts[:, None, :] - right.layouts[None, :, :]
    kind = (left.kinds[:, None] == right.kinds[None, :]).astype(float)
    accelerator = (left.accelerators[:, None] == right.accelerators[None, :]).astype(float)
    return SharedFeatures(
        kind=kind,
        accelerator=accelerator,
        start=accelerator * np.outer(left.start, right.start),
        facts=left.facts @ right.facts.T,
        distance=np.einsum("ijk,ijk->ij", gaps, gaps),
        own=kind * accelerator * own_variances(left.kinds, left.accelerators, odd)[:, None],
    )


#: Prior standard deviation of a log weight, and its largest change: few observations cannot move it far.
_PULL = 1.0
_REACH = 3.0
#: Limits of the factor on the stated standard deviations.
_LEAST_SCALE, _MOST_SCALE = 0.3, 4.0
#: Fewest accelerators from whose data sheets another one's speed is predicted.
_FEW = 4
#: Fewest kinds that must have run on an accelerator for its cells to determine the weights.
_WELL_KNOWN = 3
#: Number of measured kinds at which an accelerator counts as half known.
_HALF_KNOWN = 1.0
#: Cells predicted at once: memory grows with this times the observations conditioned on.
_BATCH = 500


def _line(points: CellFeatures) -> Array:
    """Returns the linear trend of log step time, up to a constant of each kind."""
    passes = points.layouts[:, 0] + points.layouts[:, 3]
    return np.asarray(0.8 * passes - points.facts.mean(axis=1))


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    fit_to: int = 250
    condition_on: int = 1000
    rounds: int = 40

    @property
    def name(self) -> str:
        return "learned"

    def fit(self, observations: Sequence[Observation]) -> "GaussianProcessModel":
        """Fits the process. Raises CannotPredict for fewer than three observations."""
        if len(observations) < 3:
            raise CannotPredict(f"{len(observations)} observations are too few to learn from")
        starts = start_samples(observations)
        points = cell_features([observation.cell for observation in observations], starts)
        times = -np.log([observation.steps_per_s for observation in observations]) - _line(points)
        middle = float(np.median(times))
        spreads = np.array([observation.spread / sqrt(observation.samples) for observation in observations])
        every = np.unique(np.linspace(0, len(times) - 1, min(self.fit_to, len(times))).astype(int))
        every = every[_well_known(_selected(points, every))]
        few, told, noise = _selected(points, every), times[every] - middle, spreads[every]
        parameters = self._weights(few, told, noise, {})
        if odd := _odd(few, told, noise, parameters):
            # The odd pairs biased the weights with which they were found, so the weights are fitted again without them.
            parameters = self._weights(few, told, noise, odd)
        core = np.unique(np.linspace(0, len(times) - 1, min(self.condition_on, len(times))).astype(int))
        kept, told, noise = _selected(points, core), times[core] - middle, spreads[core]
        law = _Law(parameters, _odd(kept, told, noise, parameters))
        return GaussianProcessModel(
            _condition(kept, told, noise, law),
            _by_kind(points, times - middle, spreads, np.setdiff1d(np.arange(len(times)), core)),
            middle,
            _evidence(points),
            starts,
            _unseen(few, times[every] - middle, spreads[every], law),
        )

    def _weights(self, points: CellFeatures, times: Array, spreads: Array, odd: Mapping[Pair, float]) -> Array:
        shared = shared_features(points, points, odd)

        eye = np.eye(len(times))

        def unlikely(parameters: Array) -> tuple[float, Array]:
            """Returns the negative log posterior up to a constant, and its gradient."""
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
    """The result of a fit: the parameters, and the additional variance of odd pairs."""

    parameters: Array
    odd: Mapping[Pair, float]


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Observations of one kind, on which the process is conditioned only for queries of that kind."""

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
    """Returns the rows of accelerators on which several kinds ran, or all rows if there are fewer than two of these."""
    evidence = _evidence(points)
    known = np.array([evidence[name] >= _WELL_KNOWN for name in points.accelerators])
    return np.flatnonzero(known if len(set(points.accelerators[known])) >= 2 else np.ones_like(known))


def _evidence(points: CellFeatures) -> dict[str, int]:
    pairs = set(zip(points.accelerators.tolist(), points.kinds.tolist(), strict=True))
    return {name: sum(accelerator == name for accelerator, _ in pairs) for name in sorted({a for a, _ in pairs})}


def _selected(points: CellFeatures, rows: NDArray[np.signedinteger[Any]]) -> CellFeatures:
    return CellFeatures(*(getattr(points, field.name)[rows] for field in fields(CellFeatures)))


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
    # Leave-one-out residuals of a Gaussian process, in standard deviations.
    return _Known(points, law, factor, weights, _scale(np.abs(weights) / np.sqrt(precision), _LEAST_SCALE))


def _scale(surprises: Array, least: float) -> float:
    """Returns the factor on standard deviations with which 80 % of these errors lie in the interval, within limits."""
    return min(_MOST_SCALE, max(least, float(np.quantile(surprises, INTERVAL)) / Z80))


def _unseen(points: CellFeatures, times: Array, spreads: Array, law: _Law) -> float:
    """Returns the factor for unmeasured accelerators, by leaving out each measured one; the maximum where there are
    few.
    """
    names = sorted(set(points.accelerators))
    if len(names) < _FEW:
        return _MOST_SCALE
    surprises: list[float] = []
    for name in names:
        rest, held = (np.flatnonzero(mask) for mask in (points.accelerators != name, points.accelerators == name))
        common = held[np.isin(points.kinds[held], points.kinds[rest])]
        if len(common) == 0:
            continue
        # The odd pairs of an accelerator would be unknown if it had not been measured.
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
    #: Factor on standard deviations where kind and accelerator are known.
    scale: float

    def means(self, queried: CellFeatures, more: _Seen | None = None) -> tuple[Array, Array]:
        """Returns mean deviations from the trend and their unscaled standard deviations; `more` adds observations."""
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

    def covariance(self, queried: CellFeatures) -> Array:
        """Returns the covariance of the deviations of these cells (n, n) that observations leave."""
        shared = self._with(queried, self.points)
        return np.asarray(self._with(queried, queried) - shared @ cho_solve(self.factor, shared.T))

    def _with(self, some: CellFeatures, others: CellFeatures) -> Array:
        return shared_features(some, others, self.law.odd).covariance(self.law.parameters)


@dataclass(frozen=True, slots=True, eq=False)
class GaussianProcessModel:
    """The fitted process, conditioned on observations."""

    known: _Known
    more: Mapping[str, _Seen]
    middle: float
    #: Number of kinds measured on each accelerator.
    evidence: Mapping[str, int]
    starts: Mapping[str, float]
    #: Factor on standard deviations for accelerators that were not measured.
    unseen_scale: float

    def predict(self, cell: SpeedCell) -> Prediction:
        return self.predict_all([cell])[0]

    def predict_many(self, cells: Sequence[SpeedCell]) -> list[Prediction | None]:
        """Returns predictions in the cells' order; no cell is refused."""
        return [*self.predict_all(cells)]

    def predict_all(self, cells: Sequence[SpeedCell]) -> list[Prediction]:
        """Predicts many cells at once, which is faster than one by one."""
        queried = cell_features(cells, self.starts)
        means, deviations = np.empty(len(cells)), np.empty(len(cells))
        for rows, more in self._batches(queried):
            means[rows], deviations[rows] = self.known.means(_selected(queried, rows), more)
        means = means + _line(queried) + self.middle
        scales = [self._scale_on(name) for name in queried.accelerators]
        return [
            log_normal_prediction(-float(m), float(s * d)) for m, d, s in zip(means, deviations, scales, strict=True)
        ]

    def most_telling(self, cells: Sequence[SpeedCell], many: int) -> list[int]:
        """Returns the positions of the cells to measure first: each narrows most what those before it leave unknown.

        So cells that start kernels, move bytes and compute are told apart, and kinds that differ are each tried.
        """
        left = self.known.covariance(cell_features(cells, self.starts))
        noise = float(np.exp(2.0 * self.known.law.parameters[NOISE_AT]))
        taken: list[int] = []
        for _ in range(min(many, len(cells))):
            gains = np.square(left).sum(axis=0) / (np.diag(left) + noise)
            gains[taken] = -1.0
            taken.append(best := int(gains.argmax()))
            left = left - np.outer(left[best], left[best]) / (left[best, best] + noise)
        return taken

    def _scale_on(self, accelerator: str) -> float:
        """Interpolates between the two factors by the number of kinds that were measured on the accelerator."""
        unseen = _HALF_KNOWN / (_HALF_KNOWN + self.evidence.get(accelerator, 0))
        return float(self.known.scale ** (1.0 - unseen) * self.unseen_scale**unseen)

    def _batches(self, queried: CellFeatures) -> Iterator[tuple[NDArray[np.signedinteger[Any]], _Seen | None]]:
        """Generates rows to predict together, with the additional observations of their kind."""
        special = np.isin(queried.kinds, list(self.more))
        plain = np.flatnonzero(~special)
        for first in range(0, len(plain), _BATCH):
            yield plain[first : first + _BATCH], None
        for kind in dict.fromkeys(queried.kinds[special]):
            yield np.flatnonzero(queried.kinds == kind), self.more[kind]


def odd_pairs(kinds: NDArray[Any], accelerators: NDArray[Any], covariance: Floats, values: Floats) -> dict[Pair, float]:
    """The additional variance of each odd pair.

    `covariance` (n, n) is that of `values` (n,), their noise in it; `kinds` and `accelerators` name each value's pair.
    """
    rows: dict[Pair, list[int]] = {}
    for row, pair in enumerate(zip(kinds.tolist(), accelerators.tolist(), strict=True)):
        rows.setdefault(pair, []).append(row)
    if len(rows) < 3:
        return {}
    inverse: Floats = np.linalg.inv(covariance).astype(np.float64)
    found: dict[Pair, float] = {}
    for _ in range(int(_MOST * len(rows)) + 1):
        pulls = inverse @ values
        pair, stands_out, shift = _oddest(rows, inverse, pulls)
        if stands_out <= _ODD:
            break
        variance = shift**2
        found[pair] = found.get(pair, 0.0) + variance
        inverse = _with_own_variance(inverse, np.array(rows[pair]), variance)
    return found


def own_variances(kinds: NDArray[Any], accelerators: NDArray[Any], odd: Mapping[Pair, float]) -> Floats:
    """The additional variance of each point's pair, 0 where the pair is not odd (n,)."""
    if not odd:
        return np.zeros(len(kinds))
    pairs = zip(kinds.tolist(), accelerators.tolist(), strict=True)
    return np.array([odd.get(pair, 0.0) for pair in pairs])


def _oddest(rows: Mapping[Pair, list[int]], inverse: Floats, pulls: Floats) -> tuple[Pair, float, float]:
    """The pair furthest from its prediction by the others, with its deviation in standard deviations and absolutely.

    With the precision matrix Q and the values y, all values but a block's leave it the precision Q_bb and the
    deviation Q_bb^-1 (Q y)_b (conditioning of a normal distribution); its common shift is their mean by generalised
    least squares.
    """
    best, most, shift = next(iter(rows)), -1.0, 0.0
    for pair, own in rows.items():
        precision = float(inverse[np.ix_(own, own)].sum())
        if precision <= 0.0:
            continue
        pull = float(pulls[own].sum())
        stands_out = abs(pull) / precision**0.5
        if stands_out > most:
            best, most, shift = pair, stands_out, pull / precision
    return best, most, shift


def _with_own_variance(inverse: Floats, own: NDArray[np.signedinteger[Any]], variance: float) -> Floats:
    """The precision matrix after adding a common variance to the block (Sherman and Morrison)."""
    column = inverse[:, own].sum(axis=1)
    return np.asarray(inverse - np.outer(column, column) * (variance / (1.0 + variance * float(column[own].sum()))))
