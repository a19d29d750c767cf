"""Training applications whose batch size and gang may change, and their goodput.

    goodput = throughput x statistical efficiency

Throughput is samples per second, by layout of the gang and batch. Efficiency is the value of a sample of a large batch
relative to one of the initial batch; it follows from the gradient noise. Goodput is measured in steps at the initial
batch per second, so that work and progress have one unit whatever batches a job uses.

Callers choose batch and gang, and charge restarts.

Measured profiles of applications, interpolated: step times by layout and batch, learning curves by batch.

Step times are linear between local batches where the layout itself was measured, and are interpolated between layouts
elsewhere (the points lie on a grid, so the triangulation depends on their order, which is kept as given). Learning is
linear between the batch sizes that were run. Nothing is extrapolated: outside of the measurements `OutsideProfileError`
is raised.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np

from optimizer.prediction.loss_curve import update_gain
from walras.errors import ConfigError


class OutsideProfileError(ConfigError):
    """A layout, batch or epoch is outside of a profile; nothing is extrapolated."""


@dataclass(frozen=True, slots=True)
class GangLayout:
    """Accelerators on each machine, in rank order; every part is at least 1. The machines themselves are not in it."""

    parts: tuple[int, ...]

    @property
    def machines(self) -> int:
        return len(self.parts)

    @property
    def accelerators(self) -> int:
        return sum(self.parts)

    def in_ring(self) -> "GangLayout":
        """Returns the canonical rotation of the ring of machines: ranks in a ring have no first machine."""
        return GangLayout(_smallest_rotation(self.parts))


def packed_layout(accelerators: int, machine_size: int) -> GangLayout:
    """Returns the layout of a gang on as few machines as possible: full ones, and one with the rest."""
    full, rest = divmod(accelerators, machine_size)
    return GangLayout((machine_size,) * full + ((rest,) if rest else ()))


@lru_cache(maxsize=65536)
def _smallest_rotation(parts: tuple[int, ...]) -> tuple[int, ...]:
    return min((parts[first:] + parts[:first] for first in range(len(parts))), default=parts)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one pass over a local batch and of the synchronisation in it."""

    step_s: float
    #: Part of `step_s` that accumulated passes do not have, because they do not synchronise.
    sync_s: float


class StepTimeModel(Protocol):
    """Step times of an application on one type of accelerator."""

    def times(self, placement: GangLayout, local: int) -> StepTimes:
        """Returns the times with `local` samples per accelerator and pass. Raises OutsideProfileError."""
        ...


@dataclass(frozen=True, slots=True)
class GradientStatistics:
    """Squared norm of the gradient and variance of the initial batch's estimate of it, as measured at one batch."""

    grad_sqr: float
    grad_var: float

    def gain(self, times: float) -> float:
        """Returns the worth of one update with a batch `times` as large, in steps at the initial batch."""
        return update_gain(self.grad_sqr, self.grad_var, times)


class LearningCurve(Protocol):
    """How an application learns, epoch by epoch (counted from 0)."""

    @property
    def work(self) -> tuple[float, ...]:
        """Returns the steps at the initial batch that a job has done after k epochs, k from 0 to all; ascending."""
        ...

    def noise(self, batch: int, epoch: int) -> GradientStatistics:
        """Returns the gradient statistics of an epoch with this batch. Raises OutsideProfileError."""
        ...

    def updates(self, batch: int, epochs: int) -> float:
        """Returns the updates in the first `epochs` epochs with this batch alone. Raises OutsideProfileError."""
        ...


@dataclass(frozen=True, slots=True)
class AcceleratorProfile:
    """An application on one type of accelerator."""

    law: StepTimeModel
    #: Least and largest samples per accelerator and pass.
    local_least: int
    local_most: int


@dataclass(frozen=True, slots=True, eq=False)
class Application:
    """A model with its data set: its learning curve, and its step times by accelerator type."""

    name: str
    #: The batch for which training is designed, the reference of all efficiencies; and the largest batch allowed.
    batch_initial: int
    batch_most: int
    learning: LearningCurve
    on: Mapping[str, AcceleratorProfile]

    @property
    def work(self) -> float:
        """Returns the steps at the initial batch of the whole training."""
        return self.learning.work[-1]

    @property
    def epochs(self) -> int:
        return len(self.learning.work) - 1


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """The split of a batch: samples per accelerator and pass, and accumulated passes of one update."""

    local: int
    #: Passes before the one that synchronises.
    accumulated: int = 0

    def batch(self, accelerators: int) -> int:
        """Returns the samples of one update."""
        return accelerators * self.local * (self.accumulated + 1)


def split_batch(
    application: Application, accelerator: str, accelerators: int, batch: int, *, accumulated_least: int = 0
) -> BatchSplit:
    """Splits `batch` samples into as few passes as memory allows, rounded up, but not above the largest batch.

    Raises OutsideProfileError for a gang so large that the largest batch has no sample for each of its passes.
    """
    local = -(-batch // accelerators)
    passes = max(-(-local // application.on[accelerator].local_most), accumulated_least + 1)
    most = application.batch_most // (accelerators * passes)
    if most < 1:
        raise OutsideProfileError(
            f"{application.name} has at most {application.batch_most} samples for {accelerators} accelerators"
            f" in {passes} passes",
            field="num_replicas",
            fix="choose a smaller gang",
        )
    return BatchSplit(min(-(-local // passes), most), passes - 1)


def update_time_s(application: Application, accelerator: str, placement: GangLayout, split: BatchSplit) -> float:
    times = application.on[accelerator].law.times(placement, split.local)
    return times.step_s + split.accumulated * (times.step_s - times.sync_s)


def batch_gain(application: Application, batch: int, epoch: int) -> float:
    """Returns the steps at the initial batch to which one update with this batch is equal, in this epoch."""
    return application.learning.noise(batch, epoch).gain(batch / application.batch_initial)


def goodput(application: Application, accelerator: str, placement: GangLayout, split: BatchSplit, epoch: int) -> float:
    """Returns steps at the initial batch per second: throughput x efficiency."""
    batch = split.batch(placement.accelerators)
    return batch_gain(application, batch, epoch) / update_time_s(application, accelerator, placement, split)


@dataclass(frozen=True, slots=True)
class RecordedTraining:
    """One run with one batch: parallel tuples with an entry per epoch."""

    #: Progress at the end of the epoch, in steps at the initial batch.
    progress: tuple[float, ...]
    #: Updates made until then.
    updates: tuple[float, ...]
    grad_sqr: tuple[float, ...]
    grad_var: tuple[float, ...]


class RecordedLearningCurve:
    """A `LearningCurve` that is linear between the batches that were run, and undefined outside of them.

    The work of an epoch is that of the recorded run that did least in it.
    """

    def __init__(self, name: str, runs: Mapping[int, RecordedTraining], epochs: int) -> None:
        """`runs` by batch; each has at least `epochs` epochs."""
        assert runs, f"{name} has no recorded run"
        assert all(len(run.progress) >= epochs > 0 for run in runs.values()), f"{name} was not run for {epochs} epochs"
        self._name = name
        self._runs = dict(sorted(runs.items()))
        self._batches = list(self._runs)
        self._work = (0.0, *(min(run.progress[epoch] for run in runs.values()) for epoch in range(epochs)))

    @property
    def batches(self) -> tuple[int, ...]:
        """Returns the batches that were run, ascending."""
        return tuple(self._batches)

    @property
    def work(self) -> tuple[float, ...]:
        return self._work

    def noise(self, batch: int, epoch: int) -> GradientStatistics:
        self._check(epoch)
        low, high, weight = self._around(batch)
        return GradientStatistics(
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
            raise OutsideProfileError(f"{self._name} trains {len(self._work) - 1} epochs; there is no epoch {epoch}")

    def _around(self, batch: int) -> tuple[RecordedTraining, RecordedTraining, float]:
        """Returns the nearest runs below and above, and the weight of the one below."""
        batches = self._batches
        if not batches[0] <= batch <= batches[-1]:
            raise OutsideProfileError(
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


#: Machines, accelerators, samples per accelerator.
LayoutPoint = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class StepTimeCurve:
    """Step times of one placement: parallel tuples, ascending by local batch."""

    local: tuple[int, ...]
    step_s: tuple[float, ...]
    sync_s: tuple[float, ...]


class MeasuredStepTimes:
    """A `StepTimeModel` from two tables. A layout on more machines than were measured counts as the largest measured
    one.
    """

    def __init__(
        self,
        name: str,
        curves: Mapping[GangLayout, StepTimeCurve],
        scaling: Sequence[tuple[LayoutPoint, StepTimes]] = (),
    ) -> None:
        """`curves` by placement in ring order (`GangLayout.in_ring`); `scaling` holds further points."""
        self._name = name
        #: The measurements: placements in ring order, and further points.
        self.curves = dict(curves)
        self.scaling = tuple(scaling)
        self._known: dict[tuple[GangLayout, int], StepTimes] = {}

    def times(self, placement: GangLayout, local: int) -> StepTimes:
        ring = placement.in_ring()
        found = self._known.get((ring, local))
        if found is None:
            curve = self.curves.get(ring)
            found = self._on_curve(curve, ring, local) if curve is not None else self._between(ring, local)
            self._known[ring, local] = found
        return found

    def _on_curve(self, curve: StepTimeCurve, ring: GangLayout, local: int) -> StepTimes:
        if not curve.local[0] <= local <= curve.local[-1]:
            raise self._outside(ring, local, f"from {curve.local[0]} to {curve.local[-1]} were measured there")
        return StepTimes(
            float(np.interp(local, curve.local, curve.step_s)), float(np.interp(local, curve.local, curve.sync_s))
        )

    def _between(self, ring: GangLayout, local: int) -> StepTimes:
        if self._mesh is None:
            raise self._outside(ring, local, "too few placements were measured to interpolate")
        interpolate, most_machines = self._mesh
        step_s, sync_s = interpolate(min(ring.machines, most_machines), ring.accelerators, local)
        if np.isnan(step_s):
            raise self._outside(ring, local, "no placements around it were measured")
        return StepTimes(float(step_s), float(sync_s))

    @cached_property
    def _mesh(self) -> tuple[Any, int] | None:
        """The interpolation over all points, and the largest number of machines; None if the points span no volume."""
        from scipy.interpolate import LinearNDInterpolator
        from scipy.spatial import QhullError

        points = [*self._means(), *((point, times.step_s, times.sync_s) for point, times in self.scaling)]
        where = np.array([point for point, _, _ in points], float).reshape(-1, 3)
        values = np.array([(step_s, sync_s) for _, step_s, sync_s in points]).reshape(-1, 2)
        try:
            mesh = LinearNDInterpolator(where, values)
        except (QhullError, ValueError):
            return None

        def interpolate(machines: int, accelerators: int, local: int) -> Any:
            return mesh(machines, accelerators, local)

        return interpolate, int(where[:, 0].max())

    def _means(self) -> list[tuple[LayoutPoint, float, float]]:
        """Returns the points, averaged over layouts with equal numbers of machines and accelerators."""
        groups: dict[LayoutPoint, list[tuple[float, float]]] = {}
        for placement, curve in self.curves.items():
            for local, step_s, sync_s in zip(curve.local, curve.step_s, curve.sync_s, strict=True):
                point = (placement.machines, placement.accelerators, local)
                groups.setdefault(point, []).append((step_s, sync_s))
        means = {point: np.mean(times, axis=0).tolist() for point, times in sorted(groups.items())}
        return [(point, step_s, sync_s) for point, (step_s, sync_s) in means.items()]

    def _outside(self, ring: GangLayout, local: int, why: str) -> OutsideProfileError:
        parts = "+".join(map(str, ring.parts))
        return OutsideProfileError(
            f"{self._name} was not measured on {parts} accelerators with {local} samples each: {why}",
            field="batch_size",
            fix="choose a batch or a gang that was measured",
        )
