"""How an application learns, from runs that were recorded with several batch sizes."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.goodput.application import Noise
from simulator.goodput.errors import OutsideTable


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run with one batch: parallel tuples, an entry per epoch."""

    #: Progress at the end of the epoch, in steps at the initial batch.
    progress: tuple[float, ...]
    #: Updates made by then.
    updates: tuple[float, ...]
    grad_sqr: tuple[float, ...]
    grad_var: tuple[float, ...]


class RecordedLearning:
    """Linear between the batches that were run; outside them nothing is known.

    An epoch is as much work as the recorded run that made least of it.
    """

    def __init__(self, name: str, runs: Mapping[int, Recorded], epochs: int) -> None:
        """`runs` by batch, each of at least so many epochs."""
        assert runs, f"{name} has no recorded run"
        assert all(len(run.progress) >= epochs > 0 for run in runs.values()), f"{name} was not run for {epochs} epochs"
        self._name = name
        self._runs = dict(sorted(runs.items()))
        self._batches = list(self._runs)
        self._work = (0.0, *(min(run.progress[epoch] for run in runs.values()) for epoch in range(epochs)))

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches that were run, ascending."""
        return tuple(self._batches)

    @property
    def work(self) -> tuple[float, ...]:
        return self._work

    def noise(self, batch: int, epoch: int) -> Noise:
        self._check(epoch)
        low, high, weight = self._around(batch)
        return Noise(
            weight * low.grad_sqr[epoch] + (1.0 - weight) * high.grad_sqr[epoch],
            weight * low.grad_var[epoch] + (1.0 - weight) * high.grad_var[epoch],
        )

    def updates(self, batch: int, epochs: int) -> float:
        if epochs == 0:
            return 0.0
        self._check(epochs - 1)
        low, high, weight = self._around(batch)
        return weight * low.updates[epochs - 1] + (1.0 - weight) * high.updates[epochs - 1]

    def _check(self, epoch: int) -> None:
        if not 0 <= epoch < len(self._work) - 1:
            raise OutsideTable(f"{self._name} trains {len(self._work) - 1} epochs; there is no epoch {epoch}")

    def _around(self, batch: int) -> tuple[Recorded, Recorded, float]:
        """The nearest runs below and above, and the weight of the one below."""
        batches = self._batches
        if not batches[0] <= batch <= batches[-1]:
            raise OutsideTable(
                f"{self._name} was recorded with batches from {batches[0]} to {batches[-1]}, not {batch}",
                field="batch_size",
                fix="choose a batch in that range",
            )
        at = bisect_left(batches, batch)
        high = batches[at]
        if high == batch:
            return self._runs[high], self._runs[high], 1.0
        low = batches[at - 1]
        return self._runs[low], self._runs[high], (high - batch) / (high - low)
