"""What a job of a Pollux workload trains, and how the artifact's simulator lets it get on.

Two things are the artifact's own. The seconds that an epoch takes are rounded to whole ones where it ends. And a single
accelerator that trains with more than the initial batch cuts it into at least two passes (it could not tell the
gradient's noise by one).
"""

from bisect import bisect_right

from simulator.goodput.application import Application, goodput, split_batch, step_time
from simulator.goodput.placement import Placement, packed


class Training:
    """An application trained with one batch size on one type of accelerator. Jobs alike share one: it remembers."""

    def __init__(self, application: Application, accelerator: str, batch: int) -> None:
        self.application = application
        self.batch = batch
        self._accelerator = accelerator
        self._marks = application.learning.work
        self._goodput: dict[tuple[Placement, int], float] = {}
        self._predicted_s: dict[tuple[int, int], float] = {}
        self._mean_steps_per_s: dict[Placement, float] = {}

    @property
    def local_least(self) -> int:
        """Smallest batch per accelerator."""
        return self.application.on[self._accelerator].local_least

    @property
    def accelerator(self) -> str:
        """The type that it is trained on."""
        return self._accelerator

    def epoch(self, steps: float) -> int:
        """The epoch (from 0) in which a job is that has so many steps behind it; the number of epochs if it is done."""
        return bisect_right(self._marks, steps) - 1

    def advance(self, placement: Placement, steps: float, time_s: float) -> tuple[float, float]:
        """Train on: the steps behind the job afterwards, and the seconds that are left because it was done before."""
        marks, epoch = self._marks, self.epoch(steps)
        while time_s > 0 and epoch < len(marks) - 1:
            steps_per_s = self._steps_per_s(placement, epoch)
            reached = steps + steps_per_s * time_s
            if reached < marks[epoch + 1]:
                return reached, 0.0
            # To even where two whole seconds are equally near, as Python rounds.
            time_s -= round((marks[epoch + 1] - steps) / steps_per_s)
            epoch += 1
            steps = marks[epoch]
        return steps, time_s

    def _steps_per_s(self, placement: Placement, epoch: int) -> float:
        """Goodput in this epoch, with the batch split anew over the gang."""
        found = self._goodput.get((placement, epoch))
        if found is None:
            application, count = self.application, placement.accelerators
            least = 1 if count == 1 and self.batch > application.batch_initial else 0
            split = split_batch(application, self._accelerator, count, self.batch, accumulated_least=least)
            found = goodput(application, self._accelerator, placement, split, epoch)
            self._goodput[placement, epoch] = found
        return found

    def speed_at(self, placement: Placement, steps: float) -> float:
        """Steps per second on this placement, in the epoch in which a job is that has so many steps behind it."""
        return self._steps_per_s(placement, min(self.epoch(steps), self.application.epochs - 1))

    def predicted_s(self, accelerators: int, machine_size: int) -> float:
        """Seconds of one update as Optimus foresees them: packed, and on one accelerator always in two passes."""
        key = (accelerators, machine_size)
        found = self._predicted_s.get(key)
        if found is None:
            least = 1 if accelerators == 1 else 0
            split = split_batch(self.application, self._accelerator, accelerators, self.batch, accumulated_least=least)
            placement = packed(accelerators, machine_size)
            found = step_time(self.application, self._accelerator, placement, split)
            self._predicted_s[key] = found
        return found

    def mean_steps_per_s(self, placement: Placement) -> float:
        """Steps per second over the whole training on this placement."""
        found = self._mean_steps_per_s.get(placement)
        if found is None:
            marks, epochs = self._marks, range(self.application.epochs)
            time_s = sum((marks[k + 1] - marks[k]) / self._steps_per_s(placement, k) for k in epochs)
            found = self._mean_steps_per_s[placement] = self.application.work / time_s
        return found

    def updates_left(self, epoch: int) -> float:
        """Updates that Optimus takes to be left. The present epoch does not count as any of them."""
        application = self.application
        if epoch >= application.epochs - 1:
            return 1.0
        learning, batch = application.learning, self.batch
        return learning.updates(batch, application.epochs) - learning.updates(batch, epoch + 1)
