"""Laws of synchronous training that a few short runs are enough for (Scavenger, CCGrid 2023).

    tau   = a + a_1 b + s_1 K            seconds per iteration; b samples per worker, K workers
    gamma = c_0 + c_1 / sqrt(B)          noise of the gradient with batch B = b K
    e     = e_0 + theta gamma            epochs to the target
    time  = e D/B tau                    D samples in an epoch

Four corners of the range of (K, B) tell tau and gamma. Epochs by noise come from runs of this or a similar model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.performance.choosing.choice import Offer, Option, option_of
from optimizer.performance.predicting.predictor import CannotPredict


@dataclass(frozen=True, slots=True)
class ShortRun:
    """Some tens of iterations with so many workers and so large a batch; `noise`: settled gamma."""

    workers: int
    batch: float
    iteration_s: float
    noise: float


@dataclass(frozen=True, slots=True)
class Laws:
    """Fitted coefficients, in the order of the formulas."""

    iteration: tuple[float, float, float]
    noise: tuple[float, float]
    epochs: tuple[float, float]
    #: Samples of an epoch.
    epoch_samples: float

    def iteration_s(self, workers: int, batch: float) -> float:
        """tau; never below 0, whatever the fit."""
        return iteration_s(self.iteration, workers, batch)

    def time_s(self, workers: int, batch: float) -> float:
        """To the target."""
        noise = self.noise[0] + self.noise[1] / float(np.sqrt(batch))
        epochs = max(0.0, self.epochs[0] + self.epochs[1] * noise)
        return epochs * self.epoch_samples / batch * self.iteration_s(workers, batch)

    def options(self, workers: Sequence[int], batches: Sequence[float], usd_per_h: float) -> Iterator[Option]:
        """Every pair as an option: counts are workers and batch, workers alone are paid for."""
        for count in workers:
            for batch in batches:
                paid = option_of([Offer("worker", usd_per_h, count)], (count,), self.time_s(count, batch))
                yield Option((count, round(batch)), paid.time_s, paid.usd)


def iteration_s(law: tuple[float, float, float], workers: int, batch: float) -> float:
    """tau by its three coefficients; never below 0, whatever the fit."""
    start, per_sample, per_worker = law
    return max(0.0, start + per_sample * batch / workers + per_worker * workers)


def fit_iteration(runs: Sequence[tuple[int, float, float]]) -> tuple[float, float, float]:
    """tau from (workers, batch, seconds). Raises CannotPredict where the runs do not tell the coefficients apart."""
    design = [[1.0, batch / workers, float(workers)] for workers, batch, _ in runs]
    told = _solved(np.array(design), np.array([seconds for _, _, seconds in runs]), "iteration time")
    return float(told[0]), float(told[1]), float(told[2])


def corners(workers: Sequence[int], batches: Sequence[float]) -> list[tuple[int, float]]:
    """What to run first: the ends of both ranges."""
    return [(count, batch) for count in (min(workers), max(workers)) for batch in (min(batches), max(batches))]


def fit_laws(runs: Sequence[ShortRun], epochs_by_noise: Sequence[tuple[float, float]], epoch_samples: float) -> Laws:
    """Least squares, relative for times. Raises CannotPredict where the runs do not tell the coefficients apart.

    `epochs_by_noise`: (gamma, epochs) of finished runs, at least two that differ.
    """
    iteration = fit_iteration([(run.workers, run.batch, run.iteration_s) for run in runs])
    noise = _solved(
        np.array([[1.0, run.batch**-0.5] for run in runs]), np.array([run.noise for run in runs]), "gradient noise"
    )
    epochs = _solved(
        np.array([[1.0, gamma] for gamma, _ in epochs_by_noise]),
        np.array([count for _, count in epochs_by_noise]),
        "epochs by noise",
    )
    return Laws(
        iteration,
        (float(noise[0]), float(noise[1])),
        (float(epochs[0]), float(epochs[1])),
        epoch_samples,
    )


def _solved(design: NDArray[np.float64], values: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    if design.ndim != 2 or np.linalg.matrix_rank(design) < design.shape[1]:
        raise CannotPredict(f"too few different runs to tell {what} by")
    relative = 1.0 / np.maximum(np.abs(values), 1e-12)
    return np.asarray(np.linalg.lstsq(design * relative[:, None], values * relative, rcond=None)[0])
