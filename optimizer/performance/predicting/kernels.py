"""What two cells have in common, as covariances that a Gaussian process adds up.

A speed is explained by the kind, the accelerator (its name, and its facts, so that a new one can be told from them),
the layout, and how these go together. Each term has a weight that the fit finds; see `_TERMS`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.performance.predicting.observation import AcceleratorFacts, Cell

Array = NDArray[np.float64]

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
START = np.log([*(weight for _, weight in _TERMS), 1.0, 0.05])
#: Positions in a parameter vector of the length scale (in log layout) and of the noise.
LENGTH, NOISE = len(_TERMS), len(_TERMS) + 1
#: Terms that hold the layout: alone, with the kind, with the accelerator, with both.
_OF_LAYOUT = (4, 5, 6, 8)


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Cells as columns: n of each."""

    kinds: NDArray[Any]
    accelerators: NDArray[Any]
    #: (n, 2) logs of arithmetic and memory bandwidth, as far as they are achieved, against a middling accelerator.
    facts: Array
    #: (n, 4) logs of samples per pass, accelerators, machines, passes.
    layouts: Array


def points_of(cells: Sequence[Cell]) -> Points:
    """Columns of the cells."""
    return Points(
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


def _achieved(facts: AcceleratorFacts) -> tuple[float, float]:
    return facts.achieves * facts.flops_per_s, facts.achieves * facts.memory_bytes_per_s


def own_variances(points: Points, parameters: Array) -> Array:
    """Of each point by itself: the diagonal of its covariance with all of them."""
    facts = np.einsum("ij,ij->i", points.facts, points.facts)
    ones = np.ones_like(facts)
    shared = Alike(ones, ones, facts, np.zeros_like(facts))
    return shared.covariance(parameters)


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """What two sets of points share, before any weight: computed once, weighted often."""

    kind: Array
    accelerator: Array
    facts: Array
    distance: Array

    def layout(self, parameters: Array) -> Array:
        """1 for equal layouts, less the further they are apart."""
        return np.asarray(np.exp(-0.5 * self.distance * np.exp(-2.0 * parameters[LENGTH])))

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
        weights = np.exp(2.0 * parameters[:LENGTH])
        total = np.zeros_like(self.kind)
        for weight, term in zip(weights, self.terms(self.layout(parameters)), strict=True):
            total += weight * term
        return total

    def slopes(self, parameters: Array, by: Array) -> Array:
        """Sum over all entries of `by` times the covariance's derivative by each parameter; for noise, its diagonal."""
        weights = np.exp(2.0 * parameters[:LENGTH])
        layout = self.layout(parameters)
        sums = [float((by * term).sum()) for term in self.terms(layout)]
        bent = by * layout * self.distance * np.exp(-2.0 * parameters[LENGTH])
        shares = (np.ones_like(bent), self.kind, self.accelerator, self.kind * self.accelerator)
        by_length = sum(
            weights[row] * float((bent * share).sum()) for row, share in zip(_OF_LAYOUT, shares, strict=True)
        )
        noise = 2.0 * np.exp(2.0 * parameters[NOISE]) * float(np.trace(by))
        return np.array([*(2.0 * weights * sums), by_length, noise])


def alike(left: Points, right: Points) -> Alike:
    """(n left, n right) of each."""
    gaps = left.layouts[:, None, :] - right.layouts[None, :, :]
    return Alike(
        kind=(left.kinds[:, None] == right.kinds[None, :]).astype(float),
        accelerator=(left.accelerators[:, None] == right.accelerators[None, :]).astype(float),
        facts=left.facts @ right.facts.T,
        distance=np.einsum("ijk,ijk->ij", gaps, gaps),
    )
