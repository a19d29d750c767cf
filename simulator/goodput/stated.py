"""Applications as a person states them in a workload file: a table of step times, and the noise of the gradient."""

from collections.abc import Mapping
from math import inf

import numpy as np

from simulator.goodput.application import Application, Noise, Profile, StepTimes
from simulator.goodput.errors import OutsideTable
from simulator.goodput.placement import Placement
from walras.goodput_given import LawGiven, SpeedGiven


class StatedSteps:
    """A `StepLaw` from a table by gang and samples per accelerator, linear between the samples.

    A gang that the table does not have is not guessed. The synchronisation in a step is what it takes longer than one
    accelerator with as many samples; where the table does not say that, there is none.
    """

    def __init__(self, name: str, given: SpeedGiven) -> None:
        self._name = name
        self._tables = {count: sorted(points.items()) for count, points in given.step_s.items()}
        self._spread = given.spread
        self._known: dict[tuple[int, bool, int], StepTimes] = {}

    @property
    def local_range(self) -> tuple[int, int]:
        """Fewest and most samples per accelerator of any gang."""
        local = [samples for points in self._tables.values() for samples, _ in points]
        return min(local), max(local)

    def times(self, placement: Placement, local: int) -> StepTimes:
        key = (placement.accelerators, placement.machines > 1, local)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._times(*key)
        return found

    def _times(self, count: int, is_spread: bool, local: int) -> StepTimes:
        packed_s = self._step_s(count, local)
        if packed_s is None:
            raise OutsideTable(f"the law of {self._name} has no step time of {count} accelerators with {local} samples")
        alone_s = self._step_s(1, local)
        step_s = packed_s / self._spread if is_spread else packed_s
        return StepTimes(step_s, 0.0 if alone_s is None else max(0.0, step_s - alone_s))

    def _step_s(self, count: int, local: int) -> float | None:
        points = self._tables.get(count, [])
        if not points or not points[0][0] <= local <= points[-1][0]:
            return None
        samples, seconds = zip(*points, strict=True)
        return float(np.interp(local, samples, seconds))


class StatedLearning:
    """A `Learning` whose noise scale is known from each of some steps on. It has no end: a job's own steps say that."""

    def __init__(self, initial: int, scales: Mapping[float, float]) -> None:
        self._initial = initial
        self._scales = list(scales.values())
        self._work = (*scales, inf)

    @property
    def work(self) -> tuple[float, ...]:
        return self._work

    def noise(self, batch: int, epoch: int) -> Noise:
        return Noise(1.0, self._scales[epoch] / self._initial)

    def updates(self, batch: int, epochs: int) -> float:
        total = 0.0
        for epoch in range(epochs):
            gain = self.noise(batch, epoch).gain(batch / self._initial)
            total += (self._work[epoch + 1] - self._work[epoch]) / gain
        return total


def stated_application(name: str, given: LawGiven) -> Application:
    """The application that a file states."""
    scales = given.noise_scale if isinstance(given.noise_scale, dict) else {0.0: given.noise_scale}
    profiles = {}
    for accelerator, speed in given.on.items():
        steps = StatedSteps(name, speed)
        profiles[accelerator] = Profile(steps, *steps.local_range)
    return Application(
        name, given.batch.initial, given.batch.max, StatedLearning(given.batch.initial, scales), profiles
    )
