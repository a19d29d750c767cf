"""The gradient noise scale, and the statistical efficiency of larger batches that follows from it.

    E|g_B|^2 = |G|^2 + S/B            g_B: gradient of B samples; S: trace of its covariance for one sample
    phi = S / |G|^2                   the noise scale, in samples (McCandlish et al. 2018)
    gain(B) = (V + |G|^2) / (V B_0/B + |G|^2)        of an update in those of the initial batch B_0, V = S/B_0 (Pollux,
                                                     OSDI 2021)
    efficiency(B) = gain(B) B_0/B = (phi + B_0) / (phi + B)      of a sample against one of the initial batch

Both the measurement of running jobs and the ground truth of the simulator use this law. S and |G|^2 are estimated from
two batch sizes, that of single workers and that of all together. Both are averaged over steps before they are divided,
because a quotient of noisy figures is biased.
"""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Running averages of S and |G|^2; a new job begins without any."""

    #: Weight of the previous average at each step; averages are corrected for their start at 0.
    keep: float = 0.95
    signal_sum: float = 0.0
    spread_sum: float = 0.0
    weight: float = 0.0

    def seen(self, worker_square: float, mean_square: float, local: float, workers: int) -> "GradientNoise":
        """The averages after one more step.

        It is stated by the mean of the workers' |g|^2, each over `local` samples, and |g|^2 of the mean gradient.

        With accumulation the passes of one worker count as workers. Needs two of them.
        """
        assert workers >= 2, "the noise of one gradient cannot be told from it alone"
        total = local * workers
        signal = (total * mean_square - local * worker_square) / (total - local)
        spread = (worker_square - mean_square) / (1.0 / local - 1.0 / total)
        fresh = 1.0 - self.keep
        return GradientNoise(
            self.keep,
            self.keep * self.signal_sum + fresh * signal,
            self.keep * self.spread_sum + fresh * spread,
            self.keep * self.weight + fresh,
        )

    @property
    def known(self) -> bool:
        """Whether a step was counted."""
        return self.weight > 0.0

    @property
    def scale(self) -> float:
        """phi, in samples, at least 0; infinite where the estimate of |G|^2 is not positive."""
        if self.spread_sum <= 0.0:
            return 0.0
        return self.spread_sum / self.signal_sum if self.signal_sum > 0.0 else inf


def update_gain(signal: float, spread: float, times: float) -> float:
    """Steps at the initial batch that one update with a batch larger by this factor is worth.

    `signal`: |G|^2; `spread`: V, variance of the initial batch's gradient, in the same unit.
    """
    return (spread + signal) / (spread / times + signal)


def statistical_efficiency(scale: float, batch: float, initial: float) -> float:
    """Efficiency of a sample relative to one of the initial batch: 1 there, less for larger batches. By phi."""
    return 1.0 if scale == inf else (scale + initial) / (scale + batch)
