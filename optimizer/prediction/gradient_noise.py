"""The gradient noise scale, and the statistical efficiency of larger batches that follows from it.

    E|g_B|^2 = |G|^2 + S/B            g_B: gradient of B samples; S: trace of its covariance for one sample
    phi = S / |G|^2                   the noise scale, in samples (McCandlish et al. 2018)
    gain(B) = (V + |G|^2) / (V B_0/B + |G|^2)        of an update in those of the initial batch B_0, V = S/B_0 (Pollux,
                                                     OSDI 2021)
    efficiency(B) = gain(B) B_0/B = (phi + B_0) / (phi + B)      of a sample against one of the initial batch

Forecasts and the ground truth of the simulator use this law; running jobs measure phi (`walras.training.measurements`).
"""

from math import inf


def update_gain(signal: float, spread: float, times: float) -> float:
    """Steps at the initial batch that one update with a batch larger by this factor is worth.

    `signal`: |G|^2; `spread`: V, variance of the initial batch's gradient, in the same unit.
    """
    return (spread + signal) / (spread / times + signal)


def statistical_efficiency(scale: float, batch: float, initial: float) -> float:
    """Efficiency of a sample relative to one of the initial batch: 1 there, less for larger batches. By phi."""
    return 1.0 if scale == inf else (scale + initial) / (scale + batch)
