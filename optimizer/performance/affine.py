"""Step time as a line in the batch, for kinds that were measured, across places (an accelerator, and how many of it):
what every step costs, and what every sample costs (Scavenger's law).

    t = (o_k A_p exp(d_ka) + w_k b C_p exp(e_ka)) exp(f_kp) + s_0 + s_1 layers + s_2 bytes      s: where ranks exchange

k: kind, a: accelerator, p: place, b: samples per accelerator and pass. A_p and C_p are how much dearer a step's fixed
part and its samples are at a place than at the one that was measured most. Kinds differ from that by d and e on an
accelerator, however many of it there are (what an accelerator costs a step before it computes, such as waking its
threads, is a matter of the kind: d is larger than e), and by the smaller f at a place. All are found at once, by least
squares of log time with priors; intervals follow from how well the observations pin a cell's time down, scaled by how
the law tells observations from the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from optimizer.performance.observation import Cell, Observation
from optimizer.performance.predictor import INTERVAL, Z80, CannotPredict, Prediction, around

Array = NDArray[np.float64]
Place = tuple[str, int]

#: Standard deviations (log): of a measurement beside its own spread, and of what kinds differ by in the fixed part of a
#: step on an accelerator. Those are taken with which observations are told best from the others.
_NOISES, _OWNS = (0.02, 0.05, 0.1), (0.2, 0.4, 0.8)
#: What kinds differ by in the cost of samples, and at a place beside its accelerator, over that.
_SAMPLE_SHARE, _PLACE_SHARE = 0.25, 0.25
#: Of places.
_PLACES = 0.8
#: Fixed and sample costs of a kind, and costs of exchange, are known this badly before anything is measured.
_WIDE = 2.0
_EXCHANGE_S = np.log([1e-4, 3e-5, 1e-10])
_LEAST_SCALE, _MOST_SCALE = 1.0, 3.0
_FEWEST = 6


@dataclass(frozen=True, slots=True)
class Affine:
    """The predictor."""

    @property
    def name(self) -> str:
        return "affine"

    def fit(self, observations: Sequence[Observation]) -> "AffineModel":
        """Raises CannotPredict for fewer than six observations."""
        if len(observations) < _FEWEST:
            raise CannotPredict(f"{len(observations)} observations are too few for lines in the batch")
        names = _Names.of(observations)
        columns = names.columns([observation.cell for observation in observations])
        times = -np.log([observation.steps_per_s for observation in observations])
        spreads = np.array([observation.spread / sqrt(observation.samples) for observation in observations])
        fits = [_fitted(names, columns, (times, spreads), noise, own) for noise in _NOISES for own in _OWNS]
        return max(fits, key=lambda fit: fit[0])[1]


def _fitted(
    names: "_Names", columns: "_Columns", seen: tuple[Array, Array], noise_sd: float, own_sd: float
) -> "tuple[float, AffineModel]":
    """With these standard deviations: how likely each observation is, told from the others, and the model."""
    times, spreads = seen
    noise = np.sqrt(noise_sd**2 + spreads**2)
    centre, width = names.prior(columns, times, own_sd)

    def surprises(parameters: Array) -> Array:
        return np.concatenate([(names.log_times(parameters, columns) - times) / noise, (parameters - centre) / width])

    def slopes(parameters: Array) -> Array:
        return np.concatenate([names.slopes(parameters, columns) / noise[:, None], np.diag(1.0 / width)])

    found = least_squares(surprises, centre, jac=slopes, method="trf", x_scale=width, max_nfev=100)
    jacobian = slopes(found.x)
    covariance = np.asarray(np.linalg.inv(jacobian.T @ jacobian), dtype=np.float64)
    rows = jacobian[: len(times)]
    left = 1.0 - np.minimum(0.99, np.einsum("ij,jk,ik->i", rows, covariance, rows))
    # Leave-one-out surprises of a linear model, in the standard deviations it would then have stated.
    alone = np.abs(found.fun[: len(times)]) / np.sqrt(left)
    likely = -float((0.5 * alone**2 + np.log(noise / np.sqrt(left))).sum())
    scale = min(_MOST_SCALE, max(_LEAST_SCALE, float(np.quantile(alone, INTERVAL)) / Z80))
    return likely, AffineModel(names, np.asarray(found.x), covariance, noise_sd, scale)


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Cells as columns."""

    kinds: NDArray[np.int64]
    places: NDArray[np.int64]
    accelerators: NDArray[np.int64]
    samples: Array
    passes: Array
    #: (n, 3): 1, layers and gradient bytes where ranks exchange, else 0.
    exchange: Array


@dataclass(frozen=True, slots=True)
class _Names:
    """Positions of kinds, places, accelerators in a vector of parameters. The first place is the one measured most."""

    kinds: dict[str, int]
    places: dict[Place, int]
    accelerators: dict[str, int]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "_Names":
        kinds = sorted({observation.cell.kind.name for observation in observations})
        counts: dict[Place, int] = {}
        for observation in observations:
            place = _place(observation.cell)
            counts[place] = counts.get(place, 0) + 1
        places = sorted(counts, key=lambda place: (-counts[place], place))
        accelerators = dict.fromkeys(accelerator for accelerator, _ in places)
        return cls(
            {kind: n for n, kind in enumerate(kinds)},
            {place: n for n, place in enumerate(places)},
            {accelerator: n for n, accelerator in enumerate(accelerators)},
        )

    @property
    def _cuts(self) -> tuple[int, ...]:
        """Where the parts of a parameter vector begin: w, A, C, d, e, f, s."""
        kinds, places, accelerators = len(self.kinds), len(self.places), len(self.accelerators)
        own = kinds * accelerators
        return tuple(np.cumsum([kinds, kinds, places, places, own, own, kinds * places]).tolist())

    def columns(self, cells: Sequence[Cell]) -> _Columns:
        return _Columns(
            np.array([self.kinds[cell.kind.name] for cell in cells]),
            np.array([self.places[_place(cell)] for cell in cells]),
            np.array([self.accelerators[cell.accelerator.name] for cell in cells]),
            np.array([cell.layout.local for cell in cells]),
            np.array([cell.layout.accumulated + 1.0 for cell in cells]),
            np.array([_exchanged(cell) for cell in cells]),
        )

    def prior(self, columns: _Columns, times: Array, own_sd: float) -> tuple[Array, Array]:
        """Centre and standard deviation of every parameter before the fit."""
        kinds, places = len(self.kinds), len(self.places)
        fixed, sample = np.zeros(kinds), np.zeros(kinds)
        for kind in range(kinds):
            own = columns.kinds == kind
            fixed[kind] = times[own].min() - np.log(2.0)
            sample[kind] = np.median(times[own] - np.log(columns.samples[own])) - np.log(2.0)
        first = np.where(np.arange(places) == 0, 1e-6, _PLACES)
        # The first accelerator and the first place are what the others are compared with.
        on_accelerator, at_place = np.full((kinds, len(self.accelerators)), own_sd), np.full((kinds, places), own_sd)
        on_accelerator[:, 0] = at_place[:, 0] = 1e-6
        own = (on_accelerator, _SAMPLE_SHARE * on_accelerator, _PLACE_SHARE * at_place)
        centre = np.concatenate([fixed, sample, np.zeros(2 * places + sum(each.size for each in own)), _EXCHANGE_S])
        width = np.concatenate(
            [np.full(2 * kinds, _WIDE), first, first, *(each.ravel() for each in own), np.full(3, _WIDE)]
        )
        return centre, width

    def log_times(self, parameters: Array, columns: _Columns) -> Array:
        """Of every cell."""
        fixed, samples, exchange = self._parts(parameters, columns)
        return np.asarray(np.log(fixed + samples + exchange.sum(axis=1)))

    def slopes(self, parameters: Array, columns: _Columns) -> Array:
        """(n, parameters): of log times."""
        fixed, samples, exchange = self._parts(parameters, columns)
        whole = fixed + samples + exchange.sum(axis=1)
        row, k, p = np.arange(len(whole)), columns.kinds, columns.places
        w, step_at, sample_at, d, e, f, s = self._cuts
        at = k * len(self.accelerators) + columns.accelerators
        found = np.zeros((len(whole), len(parameters)))
        found[row, k] = found[row, step_at + p] = found[row, d + at] = fixed / whole
        found[row, w + k] = found[row, sample_at + p] = found[row, e + at] = samples / whole
        found[row, f + k * len(self.places) + p] = (fixed + samples) / whole
        found[:, s:] = exchange / whole[:, None]
        return found

    def _parts(self, parameters: Array, columns: _Columns) -> tuple[Array, Array, Array]:
        """Seconds of every cell: fixed, of its samples, and (n, 3) of exchange."""
        fixed, sample, step_at, sample_at, own_fixed, own_sample, own, exchange = np.split(parameters, self._cuts)
        k, p = columns.kinds, columns.places
        at = k * len(self.accelerators) + columns.accelerators
        both = columns.passes * np.exp(own[k * len(self.places) + p])
        return (
            both * np.exp(fixed[k] + step_at[p] + own_fixed[at]),
            both * columns.samples * np.exp(sample[k] + sample_at[p] + own_sample[at]),
            columns.exchange * np.exp(exchange),
        )


def _place(cell: Cell) -> Place:
    return cell.accelerator.name, cell.layout.accelerators


def _exchanged(cell: Cell) -> tuple[float, float, float]:
    if cell.layout.accelerators == 1:
        return 0.0, 0.0, 0.0
    return 1.0, float(cell.kind.layers or 0), cell.kind.gradient_bytes or 0.0


@dataclass(frozen=True, slots=True, eq=False)
class AffineModel:
    """Fitted lines."""

    names: _Names
    parameters: Array
    covariance: Array
    noise_sd: float
    #: Factor of the standard deviations that the covariance gives.
    scale: float

    def predict(self, cell: Cell) -> Prediction:
        if cell.kind.name not in self.names.kinds or _place(cell) not in self.names.places:
            raise CannotPredict(f"{cell.kind.name} or {cell.accelerator.name} x {cell.layout.accelerators} is unknown")
        columns = self.names.columns([cell])
        told = float(self.names.log_times(self.parameters, columns)[0])
        slope = self.names.slopes(self.parameters, columns)[0]
        return around(-told, self.scale * sqrt(float(slope @ self.covariance @ slope) + self.noise_sd**2))
