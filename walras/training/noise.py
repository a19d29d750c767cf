"""How noisy the gradient is, measured while training goes on: what a larger batch would be worth.

Every so many updates, the gradients of two updates in a row are compared. The parameters hardly move between them, so
they are two draws of one gradient, each of a batch of B samples:

    |G|^2 = g . g'        S = B |g - g'|^2 / 2        noise scale phi = S / |G|^2, in samples

Both are averaged before they are divided (`optimizer.performance.noise` says what follows from phi). The gradients are
those that the optimizer is about to use: averaged over ranks, summed over passes, and clipped where the script clips.
Between the two updates a copy of the gradients is kept.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

#: Weight of what came before, for one comparison.
KEEP = 0.95


class NoiseGauge:
    """Listens to one optimizer."""

    def __init__(self, optimizer: Any, every: int) -> None:
        if every < 2:
            raise ValueError(f"noise_every={every}: two updates in a row are compared, so at least 2")
        #: Samples in one batch over all ranks; None until known.
        self.samples: int | None = None
        #: Batches that the script has taken.
        self.batches = 0
        self._every = every
        self._updates = 0
        self._batches_then = 0
        self._kept: list[Any] | None = None
        #: Not read yet: reading waits for the accelerator.
        self._fresh: list[tuple[Any, float]] = []
        self._signal = self._spread = 0.0
        optimizer.register_step_pre_hook(self._before_step)

    @property
    def scale(self) -> float | None:
        """phi in samples; None until something was seen, and where all of it was noise."""
        for sums, samples in self._fresh:
            first, second, both = sums.tolist()
            spread = samples * (0.5 * (first + second) - both)
            if math.isfinite(spread):
                self._signal = KEEP * self._signal + (1.0 - KEEP) * both
                self._spread = KEEP * self._spread + (1.0 - KEEP) * spread
        self._fresh.clear()
        return max(0.0, self._spread) / self._signal if self._signal > 0.0 else None

    def resize(self, samples: int | None) -> None:
        """Batches have so many samples from now on; a batch of the old size is not compared with one of the new."""
        self.samples, self._kept = samples, None

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._updates += 1
        turn = self._updates % self._every
        if turn == self._every - 1:
            self._batches_then = self.batches
            self._kept = [gradient.clone() for gradient in _gradients(optimizer)]
        elif turn == 0 and self._kept is not None:
            gradients, kept, self._kept = _gradients(optimizer), self._kept, None
            # The batch of an update in progress was counted when the one before it ended.
            batches = max(1, self.batches - self._batches_then)
            if self.samples is not None and gradients and len(gradients) == len(kept):
                self._fresh.append((_products(gradients, kept), float(self.samples * batches)))


def gauge_of(things: Iterable[Any], every: int | None, rank: int) -> NoiseGauge | None:
    """A gauge of the first optimizer among them, on rank 0, which reports: all ranks have the same mean gradient."""
    if every is None:
        return None
    optimizer = next((thing for thing in things if hasattr(thing, "register_step_pre_hook")), None)
    if optimizer is None:
        raise ValueError("noise_every: the checkpoint holds no torch optimizer whose gradients could be compared")
    return NoiseGauge(optimizer, every) if rank == 0 else None


def _gradients(optimizer: Any) -> list[Any]:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter.grad.detach() for parameter in parameters if parameter.grad is not None]


def _products(gradients: list[Any], kept: list[Any]) -> Any:
    """|g|^2, |g'|^2 and g . g' as one tensor, still on its way."""
    torch: Any = sys.modules["torch"]
    rows = []
    for gradient, other in zip(gradients, kept, strict=True):
        now, then = gradient.reshape(-1).float(), other.reshape(-1).float()
        rows.append(torch.stack([now.dot(now), then.dot(then), now.dot(then)]))
    return torch.stack(rows).sum(dim=0)
