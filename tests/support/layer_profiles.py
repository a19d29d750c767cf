"""A made-up profile of a small model on two types of accelerator, as the file of `walras plan mixes`."""

from random import Random
from typing import Any

LAYERS = 3
FAST, SLOW = "fast", "slow"


def small_profile(seed: int = 0) -> dict[str, Any]:
    """Three layers; the fast type is some three times as fast, and the slow one holds half as much."""
    chance = Random(seed)

    def layers(samples: int, degree: int, pace: float) -> list[list[float]]:
        second = pace * (0.2 + 0.8 * samples) / degree**0.7
        return [[second * chance.uniform(0.8, 1.2), 2 * second * chance.uniform(0.8, 1.2), 0.01] for _ in range(LAYERS)]

    profiles = {
        name: {str(samples): {str(degree): layers(samples, degree, pace) for degree in (1, 2)} for samples in (1, 2)}
        for name, pace in ((FAST, 0.01), (SLOW, 0.03))
    }
    sizes = {
        str(degree): [
            {
                "params_bytes": 4e8 / degree * chance.uniform(0.8, 1.2),
                "act_mem_bytes": 1e9 / degree,
                "act_output_bytes": 8e6 * chance.uniform(0.8, 1.2),
            }
            for _ in range(LAYERS)
        ]
        for degree in (1, 2)
    }
    links = {
        name: {
            str(has): {
                other: {
                    str(there): {"polynomial": [0.1, 1.0 + has * there], "max_bytes_per_s": 1e9 * (has + there)}
                    for there in (1, 2)
                }
                for other in (FAST, SLOW)
            }
            for has in (1, 2)
        }
        for name in (FAST, SLOW)
    }
    return {
        "measured_by": "nobody",
        "model": {"name": "small", "global_batch_size": 24, "layers": LAYERS},
        "gpu_memory_gb": {FAST: 16, SLOW: 8},
        "usd_per_gpu_hour": {FAST: 3.0, SLOW: 1.0},
        "profiles": profiles,
        "layer_sizes": sizes,
        "links": links,
    }
