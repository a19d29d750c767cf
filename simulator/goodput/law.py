"""Goodput as a law of the simulated world: how fast an application gets on with the gang that it has.

A step is one at the initial batch, whatever batch the job runs with. The speed is one for each epoch, because the noise
of the gradient, and with it what a large batch is worth, is known epoch by epoch. Who gives the job its gang is the
scheduler's business; how it cuts its batch is its own, and it cuts it as well as it can.
"""

from bisect import bisect_right
from math import inf

from simulator.goodput.application import Application, goodput, split_batch
from simulator.goodput.errors import OutsideTable
from simulator.goodput.placement import Placement
from simulator.truth import Stretch

#: Batches tried between the initial and the largest, in equal ratios.
_BATCHES = 24


class GoodputLaw:
    """A `simulator.truth.Law`. `batch`: one that never changes; None: in every epoch the best for gang and noise.

    `batch` and `most`: the best between the two.
    """

    def __init__(self, application: Application, batch: int | None = None, most: int | None = None) -> None:
        self._application = application
        if batch is None:
            self._batches = _tried(application.batch_initial, application.batch_most)
        else:
            self._batches = _tried(batch, batch if most is None else most)
        self._best: dict[tuple[str, tuple[int, ...], int], float] = {}

    def stretch(self, accelerator: str, parts: tuple[int, ...], steps: float) -> Stretch:
        """From `steps` on, until the epoch ends."""
        work, epochs = self._application.learning.work, self._application.epochs
        epoch = min(max(bisect_right(work, steps) - 1, 0), epochs - 1)
        until = work[epoch + 1] if epoch + 1 < epochs else inf
        key = (accelerator, parts, epoch)
        best = self._best.get(key)
        if best is None:
            best = self._best[key] = max((self._goodput(batch, *key) for batch in self._batches), default=0.0)
        return Stretch(best, until)

    def _goodput(self, batch: int, accelerator: str, parts: tuple[int, ...], epoch: int) -> float:
        """0 where nobody knows, or where a rank would have too few samples, or too many."""
        application, placement = self._application, Placement(parts)
        profile = application.on.get(accelerator)
        if profile is None:
            return 0.0
        split = split_batch(application, accelerator, placement.accelerators, batch)
        if not profile.local_least <= split.local <= profile.local_most:
            return 0.0
        try:
            return goodput(application, accelerator, placement, split, epoch)
        except OutsideTable:
            return 0.0


def _tried(first: int, last: int) -> tuple[int, ...]:
    ratio = (last / first) ** (1.0 / (_BATCHES - 1))
    return tuple(sorted({min(last, round(first * ratio**step)) for step in range(_BATCHES)}))
