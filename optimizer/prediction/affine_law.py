"""Step time as an affine function of the batch: a cost per step and a cost per sample (Scavenger).

It is fitted for kinds of jobs that were measured, across accelerators and gang sizes.

    t = (o_k A_p exp(d_ka) + w_k b C_p exp(e_ka)) exp(f_kp) + s_0 + s_1 layers + s_2 bytes      s: where ranks exchange

k is the kind, a the accelerator, p the place (an accelerator and a number of them), b the samples per accelerator and
pass. A_p and C_p are the factors of a step's fixed cost and of its cost per sample at a place, relative to a typical
place. A kind deviates from these factors by d and e on an accelerator, whatever the gang size, and by the smaller f at
a place. d is larger than e, because the overhead before an accelerator computes (such as waking its threads) depends on
the kind. All parameters are estimated together, by least squares of log time with priors. Intervals follow from the
posterior variance of a cell's log time, scaled by leave-one-out errors. Places that were not measured are left to
predictors that read data sheets.

Every kind has parameters of its own, and all kinds share some, so the normal matrix has arrow form. The own parameters
are eliminated kind by kind, so time is linear and not cubic in the number of kinds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from optimizer.prediction.predictor import (
    INTERVAL,
    Z80,
    CannotPredict,
    Observation,
    Prediction,
    SpeedCell,
    log_normal_prediction,
)

Array = NDArray[np.float64]
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SlopeRows:
    """Jacobian of n observations: their groups, and derivatives by own (n, few) and shared (n, few) parameters.

    `own_at` and `shared_at` are the positions of these parameters.
    """

    groups: Positions
    own_at: Positions
    own: Array
    shared_at: Positions
    shared: Array

    def over(self, noise: Array) -> "SlopeRows":
        """Returns the rows divided by each observation's noise (standard deviation)."""
        own, shared = self.own / noise[:, None], self.shared / noise[:, None]
        return SlopeRows(self.groups, self.own_at, own, self.shared_at, shared)

    def times(self, weights: Array, groups: int, own: int, shared: int) -> tuple[Array, Array]:
        """Returns the Jacobian's transpose times the weights, for own (groups, own) and shared (shared,) parameters."""
        by_own, by_shared = np.zeros((groups, own)), np.zeros(shared)
        np.add.at(by_own, (self.groups[:, None], self.own_at), self.own * weights[:, None])
        np.add.at(by_shared, self.shared_at, self.shared * weights[:, None])
        return by_own, by_shared


@dataclass(frozen=True, slots=True, eq=False)
class ArrowInverse:
    """Inverse of the arrow-shaped normal matrix in block form: groups, coupling blocks, and shared parameters."""

    alone: Array
    across: Array
    shared: Array

    def solve(self, own: Array, shared: Array) -> tuple[Array, Array]:
        """Returns the inverse times a vector with parts (groups, own) and (shared,)."""
        by_group = np.einsum("kij,kj->ki", self.alone, own)
        middle = self.shared @ (shared - np.einsum("kig,ki->g", self.across, by_group))
        return by_group - np.einsum("kij,kj->ki", self.alone, self.across @ middle), middle

    def variances(self, rows: SlopeRows) -> Array:
        """Returns the variance of the linear combination that each row describes (n,)."""
        group = rows.groups[:, None, None]
        alone = self.alone[group, rows.own_at[:, :, None], rows.own_at[:, None, :]]
        own = np.einsum("ni,nij,nj->n", rows.own, alone, rows.own)
        pulled = np.einsum("nik,ni->nk", self.alone[rows.groups[:, None], rows.own_at], rows.own)
        left = -np.einsum("nk,nkg->ng", pulled, self.across[rows.groups])
        np.add.at(left, (np.arange(len(left))[:, None], rows.shared_at), rows.shared)
        return np.asarray(own + np.einsum("ng,gh,nh->n", left, self.shared, left))


def invert_arrow(rows: SlopeRows, own_precision: Array, shared_precision: Array) -> ArrowInverse:
    """Returns the inverse for whitened rows and prior precisions (groups, own) and (shared,)."""
    groups, own = own_precision.shape
    shared = len(shared_precision)
    corner = np.zeros((groups, own, own))
    corner[:, np.arange(own), np.arange(own)] = own_precision
    across, common = np.zeros((groups, own, shared)), np.diag(shared_precision)
    group, left, right = rows.groups[:, None, None], rows.own_at[:, :, None], rows.own_at[:, None, :]
    np.add.at(corner, (group, left, right), rows.own[:, :, None] * rows.own[:, None, :])
    to = rows.shared_at[:, None, :]
    np.add.at(across, (group, left, to), rows.own[:, :, None] * rows.shared[:, None, :])
    np.add.at(common, (rows.shared_at[:, :, None], to), rows.shared[:, :, None] * rows.shared[:, None, :])
    alone = np.asarray(np.linalg.inv(corner), dtype=np.float64)
    flat = across.reshape(-1, shared)
    middle = np.linalg.inv(common - flat.T @ (alone @ across).reshape(-1, shared))
    return ArrowInverse(alone, across, np.asarray(middle, dtype=np.float64))


GangPlace = tuple[str, int]
#: Parameters: o, w, d, e, f by kind (kinds, own), and log A, log C, log s (shared,).
AffineParameters = tuple[Array, Array]

#: Standard deviations (log) that are tried: of a measurement beyond its own spread, and of the kinds' deviations d in
#: the fixed cost. The pair with the highest leave-one-out likelihood is used.
_NOISES, _OWNS = (0.02, 0.05, 0.1), (0.2, 0.4, 0.8)
#: Standard deviations of e and of f, relative to that of d.
_SAMPLE_SHARE, _PLACE_SHARE = 0.25, 0.25
#: Prior standard deviation of log A and log C.
_PLACES = 0.8
#: Prior standard deviation (log) of o, w and s.
_WIDE = 2.0
_EXCHANGE_S = np.log([1e-4, 3e-5, 1e-10])
_LEAST_SCALE, _MOST_SCALE = 1.0, 3.0
_FEWEST = 6
#: Largest number of kinds for the choice of standard deviations, because each choice needs a fit.
_CHOOSE_ON = 40
_NEAR_0 = 1e-6
_ROUNDS, _SETTLED = 60, 1e-6


@dataclass(frozen=True, slots=True)
class AffinePredictor:
    @property
    def name(self) -> str:
        return "affine"

    def fit(self, observations: Sequence[Observation]) -> "AffineModel":
        """Fits the law, in time linear in the number of kinds. Raises CannotPredict for fewer than six observations."""
        if len(observations) < _FEWEST:
            raise CannotPredict(f"{len(observations)} observations are too few for lines in the batch")
        kinds = sorted({observation.cell.kind.name for observation in observations})
        few = set(kinds[:: -(-len(kinds) // _CHOOSE_ON)])
        chosen = [observation for observation in observations if observation.cell.kind.name in few]
        choices = [(noise, own) for noise in _NOISES for own in _OWNS]
        fits = [_AffineLaw.of(chosen, noise, own).fitted(chosen) for noise, own in choices]
        best = max(range(len(fits)), key=lambda place: fits[place][0])
        if len(few) == len(kinds):
            return fits[best][1]
        return _AffineLaw.of(observations, *choices[best]).fitted(observations)[1]


@dataclass(frozen=True, slots=True, eq=False)
class _CellColumns:
    """The columns of n cells."""

    kinds: NDArray[np.int64]
    places: NDArray[np.int64]
    accelerators: NDArray[np.int64]
    samples: Array
    passes: Array
    #: (n, 3): 1, layers and gradient bytes where ranks exchange gradients, else 0.
    exchange: Array


@dataclass(frozen=True, slots=True)
class _AffineLaw:
    """Positions of kinds, places and accelerators in the parameter vectors, and the standard deviations in use."""

    kinds: dict[str, int]
    places: dict[GangPlace, int]
    accelerators: dict[str, int]
    noise_sd: float
    own_sd: float

    @classmethod
    def of(cls, observations: Sequence[Observation], noise_sd: float, own_sd: float) -> "_AffineLaw":
        cells = [observation.cell for observation in observations]
        kinds = sorted({cell.kind.name for cell in cells})
        places = sorted({_place(cell) for cell in cells})
        return cls(
            {kind: n for n, kind in enumerate(kinds)},
            {place: n for n, place in enumerate(places)},
            {name: n for n, name in enumerate(sorted({accelerator for accelerator, _ in places}))},
            noise_sd,
            own_sd,
        )

    def columns(self, cells: Sequence[SpeedCell]) -> _CellColumns:
        return _CellColumns(
            np.array([self.kinds[cell.kind.name] for cell in cells]),
            np.array([self.places[_place(cell)] for cell in cells]),
            np.array([self.accelerators[cell.accelerator.name] for cell in cells]),
            np.array([cell.layout.local for cell in cells]),
            np.array([cell.layout.accumulated + 1.0 for cell in cells]),
            np.array([_exchanged(cell) for cell in cells]),
        )

    def prior(self, columns: _CellColumns, times: Array) -> tuple[AffineParameters, AffineParameters]:
        """Returns the prior's mean and standard deviation of every parameter."""
        kinds, places, accelerators = len(self.kinds), len(self.places), len(self.accelerators)
        own = np.zeros((kinds, 2 + 2 * accelerators + places))
        for kind in range(kinds):
            at = columns.kinds == kind
            own[kind, 0] = times[at].min() - log(2.0)
            own[kind, 1] = np.median(times[at] - np.log(columns.samples[at])) - log(2.0)
        shares = np.repeat([1.0, _SAMPLE_SHARE, _PLACE_SHARE], [accelerators, accelerators, places])
        widths = np.concatenate([np.full(2, _WIDE), self.own_sd * shares])
        # The accelerator and the place with the most observations are the reference, so their deviations are fixed at
        # 0.
        first = 2 + np.bincount(columns.accelerators).argmax()
        widths[[first, first + accelerators]] = _NEAR_0
        widths[2 + 2 * accelerators + np.bincount(columns.places).argmax()] = _NEAR_0
        shared = np.concatenate([np.zeros(2 * places), _EXCHANGE_S])
        wide = np.repeat([_PLACES, _WIDE], [2 * places, 3])
        return (own, shared), (np.tile(widths, (kinds, 1)), wide)

    def log_times_and_slopes(self, parameters: AffineParameters, columns: _CellColumns) -> tuple[Array, SlopeRows]:
        """Returns the log times of cells, and their Jacobian."""
        own, shared = parameters
        k, a, p = columns.kinds, columns.accelerators, columns.places
        accelerators, places = len(self.accelerators), len(self.places)
        zero = np.zeros_like(k)
        own_at = np.stack([zero, zero + 1, 2 + a, 2 + accelerators + a, 2 + 2 * accelerators + p], axis=1)
        last = 2 * places + np.arange(3)
        shared_at = np.hstack([np.stack([p, places + p], axis=1), np.tile(last, (len(k), 1))])
        both = columns.passes * np.exp(own[k, own_at[:, 4]])
        fixed = both * np.exp(own[k, 0] + own[k, own_at[:, 2]] + shared[p])
        cost = own[k, 1] + own[k, own_at[:, 3]] + shared[places + p]
        samples = both * columns.samples * np.exp(cost)
        exchange = columns.exchange * np.exp(shared[last])
        whole = fixed + samples + exchange.sum(axis=1)
        f, s = fixed / whole, samples / whole
        slopes = np.hstack([np.stack([f, s], axis=1), exchange / whole[:, None]])
        return np.log(whole), SlopeRows(k, own_at, np.stack([f, s, f, s, f + s], axis=1), shared_at, slopes)

    def fitted(self, observations: Sequence[Observation]) -> "tuple[float, AffineModel]":
        """Fits the law. Returns the mean leave-one-out log likelihood, and the model."""
        columns = self.columns([observation.cell for observation in observations])
        times = -np.log([observation.steps_per_s for observation in observations])
        spreads = np.array([observation.spread / sqrt(observation.samples) for observation in observations])
        noise = np.sqrt(self.noise_sd**2 + spreads**2)
        found, slopes, whole = self._least(columns, times, noise)
        surprises = (self.log_times_and_slopes(found, columns)[0] - times) / noise
        left = 1.0 - np.minimum(0.99, whole.variances(slopes))
        # Leave-one-out residuals of a linear model, in their predictive standard deviations.
        alone = np.abs(surprises) / np.sqrt(left)
        likely = -float((0.5 * alone**2 + np.log(noise / np.sqrt(left))).mean())
        scale = min(_MOST_SCALE, max(_LEAST_SCALE, float(np.quantile(alone, INTERVAL)) / Z80))
        return likely, AffineModel(self, found, whole, scale)

    def _least(
        self, columns: _CellColumns, times: Array, noise: Array
    ) -> tuple[AffineParameters, SlopeRows, ArrowInverse]:
        """Minimises by Levenberg-Marquardt. Returns parameters, the whitened Jacobian there, and the inverse normal
        matrix.
        """
        (own, shared), (own_sd, shared_sd) = self.prior(columns, times)
        centre, sizes = (own, shared), (*own.shape, len(shared))
        precision = own_sd**-2, shared_sd**-2

        def cost(log_times: Array, own: Array, shared: Array) -> float:
            away = float((precision[0] * (own - centre[0]) ** 2).sum() + precision[1] @ (shared - centre[1]) ** 2)
            return float((((log_times - times) / noise) ** 2).sum()) + away

        log_times, rows = self.log_times_and_slopes((own, shared), columns)
        worst, damping = cost(log_times, own, shared), 0.1
        for _ in range(_ROUNDS):
            over = rows.over(noise)
            down_own, down_shared = over.times((times - log_times) / noise, *sizes)
            down_own -= precision[0] * (own - centre[0])
            down_shared -= precision[1] * (shared - centre[1])
            whole = invert_arrow(over, (1.0 + damping) * precision[0], (1.0 + damping) * precision[1])
            step_own, step_shared = whole.solve(down_own, down_shared)
            moved_times, moved = self.log_times_and_slopes((own + step_own, shared + step_shared), columns)
            better = cost(moved_times, own + step_own, shared + step_shared)
            if better <= worst:
                own, shared, log_times, rows = own + step_own, shared + step_shared, moved_times, moved
                settled, worst, damping = worst - better <= _SETTLED * worst, better, damping / 10.0
                if settled:
                    break
            else:
                damping *= 10.0
        over = rows.over(noise)
        return (own, shared), over, invert_arrow(over, *precision)


def _place(cell: SpeedCell) -> GangPlace:
    return cell.accelerator.name, cell.layout.accelerators


def _exchanged(cell: SpeedCell) -> tuple[float, float, float]:
    if cell.layout.accelerators == 1:
        return 0.0, 0.0, 0.0
    return 1.0, float(cell.kind.layers or 0), cell.kind.gradient_bytes or 0.0


@dataclass(frozen=True, slots=True, eq=False)
class AffineModel:
    """The fitted law."""

    law: _AffineLaw
    parameters: AffineParameters
    whole: ArrowInverse
    #: Factor on the standard deviations that the inverse normal matrix gives.
    scale: float

    def knows(self, cell: SpeedCell) -> bool:
        """Returns whether the kind and the place were both measured, though perhaps not together."""
        return cell.kind.name in self.law.kinds and _place(cell) in self.law.places

    def predict(self, cell: SpeedCell) -> Prediction:
        if not self.knows(cell):
            raise CannotPredict(f"{cell.kind.name} or {cell.accelerator.name} x {cell.layout.accelerators} is unknown")
        return self._predict_known([cell])[0]

    def predict_many(self, cells: Sequence[SpeedCell]) -> list[Prediction | None]:
        """Returns predictions in the cells' order; None for a cell whose kind or place was never measured."""
        predictions = iter(self._predict_known([cell for cell in cells if self.knows(cell)]))
        return [next(predictions) if self.knows(cell) else None for cell in cells]

    def _predict_known(self, cells: Sequence[SpeedCell]) -> list[Prediction]:
        if not cells:
            return []
        log_times, rows = self.law.log_times_and_slopes(self.parameters, self.law.columns(cells))
        deviations = self.scale * np.sqrt(self.whole.variances(rows) + self.law.noise_sd**2)
        return [
            log_normal_prediction(-time, sd) for time, sd in zip(log_times.tolist(), deviations.tolist(), strict=True)
        ]
