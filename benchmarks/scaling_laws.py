"""Scavenger's laws of synchronous training, which a few short runs determine (CCGrid 2023).

    tau   = a + a_1 b + s_1 K            seconds per iteration; b samples per worker, K workers
    gamma = c_0 + c_1 / sqrt(B)          noise of the gradient with batch B = b K
    e     = e_0 + theta gamma            epochs to the target
    time  = e D/B tau                    D samples in an epoch

Four corners of the range of (K, B) determine tau and gamma. Epochs by noise come from runs of this or a similar model.
`walras search` uses the first law alone (`optimizer.planning.online_search`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.planning.machine_choice import MachineOffer, RunOption, option_of
from optimizer.planning.online_search import fit_iteration_law, iteration_s, relative_least_squares


@dataclass(frozen=True, slots=True)
class ShortRun:
    """Some tens of iterations with so many workers and so large a batch; `noise`: settled gamma."""

    workers: int
    batch: float
    iteration_s: float
    noise: float


@dataclass(frozen=True, slots=True)
class ScalingLaws:
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

    def options(self, workers: Sequence[int], batches: Sequence[float], usd_per_h: float) -> Iterator[RunOption]:
        """Every pair as an option: counts are workers and batch, workers alone are paid for."""
        for count in workers:
            for batch in batches:
                paid = option_of([MachineOffer("worker", usd_per_h, count)], (count,), self.time_s(count, batch))
                yield RunOption((count, round(batch)), paid.time_s, paid.usd)


def corner_runs(workers: Sequence[int], batches: Sequence[float]) -> list[tuple[int, float]]:
    """What to run first: the ends of both ranges."""
    return [(count, batch) for count in (min(workers), max(workers)) for batch in (min(batches), max(batches))]


def fit_scaling_laws(
    runs: Sequence[ShortRun], epochs_by_noise: Sequence[tuple[float, float]], epoch_samples: float
) -> ScalingLaws:
    """Least squares, relative for times. Raises CannotPredict where the runs do not tell the coefficients apart.

    `epochs_by_noise`: (gamma, epochs) of finished runs, at least two that differ.
    """
    iteration = fit_iteration_law([(run.workers, run.batch, run.iteration_s) for run in runs])
    noise = relative_least_squares(
        np.array([[1.0, run.batch**-0.5] for run in runs]), np.array([run.noise for run in runs]), "gradient noise"
    )
    epochs = relative_least_squares(
        np.array([[1.0, gamma] for gamma, _ in epochs_by_noise]),
        np.array([count for _, count in epochs_by_noise]),
        "epochs by noise",
    )
    return ScalingLaws(
        iteration,
        (float(noise[0]), float(noise[1])),
        (float(epochs[0]), float(epochs[1])),
        epoch_samples,
    )
