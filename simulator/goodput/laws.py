"""Goodput laws: the progress of a job with its gang, epoch by epoch.

A step is one at the initial batch, whatever batch the job uses. The speed is constant within an epoch, because the
gradient noise, and with it the efficiency of a large batch, is known per epoch. The scheduler gives the job its gang;
the job splits its batch optimally. `StatedStepTimes` and `StatedLearningCurve` are the laws of a workload file;
`GoodputLaws` finds the law of a job by its kind.
"""

from bisect import bisect_right
from collections.abc import Mapping
from math import inf
from pathlib import Path

import numpy as np

from scheduler.world.attempts import SpeedSegment
from simulator.goodput.application import (
    AcceleratorProfile,
    Application,
    GangLayout,
    GradientStatistics,
    OutsideProfileError,
    StepTimes,
    goodput,
    split_batch,
)
from simulator.ground_truth import SpeedLaw
from walras.errors import ConfigError
from walras.job_request import Kind, plain_kind
from walras.spec.file_model import check_model, load_mapping
from walras.spec.workload_file import GoodputLawEntry, GoodputLawsFile, StepTimesEntry, WorkloadFile

#: Number of batches tried between the initial and the largest one, at equal ratios.
_BATCHES_TRIED = 24


class GoodputLaw:
    """A `SpeedLaw` with a fixed `batch`, with the best batch from `batch` to `most`, or without both with the best of
    all.

    The best batch is the one with the largest goodput, chosen in every epoch for the gang and the gradient noise.
    """

    def __init__(self, application: Application, batch: int | None = None, most: int | None = None) -> None:
        self._application = application
        if batch is None:
            self._batches = geometric_batches(application.batch_initial, application.batch_most)
        else:
            self._batches = geometric_batches(batch, batch if most is None else most)
        self._best: dict[tuple[str, tuple[int, ...], int], float] = {}

    def speed_segment(self, accelerator: str, parts: tuple[int, ...], steps: float) -> SpeedSegment:
        """Returns the speed from `steps` on, until the epoch ends."""
        work, epochs = self._application.learning.work, self._application.epochs
        epoch = min(max(bisect_right(work, steps) - 1, 0), epochs - 1)
        until = work[epoch + 1] if epoch + 1 < epochs else inf
        key = (accelerator, parts, epoch)
        best = self._best.get(key)
        if best is None:
            best = self._best[key] = max((self._goodput(batch, *key) for batch in self._batches), default=0.0)
        return SpeedSegment(best, until)

    def _goodput(self, batch: int, accelerator: str, parts: tuple[int, ...], epoch: int) -> float:
        """Returns the goodput; 0 outside of the profile, and where a rank would have too few or too many samples."""
        application, placement = self._application, GangLayout(parts)
        profile = application.on.get(accelerator)
        if profile is None:
            return 0.0
        split = split_batch(application, accelerator, placement.accelerators, batch)
        if not profile.local_least <= split.local <= profile.local_most:
            return 0.0
        try:
            return goodput(application, accelerator, placement, split, epoch)
        except OutsideProfileError:
            return 0.0


def geometric_batches(first: int, last: int, tried: int = _BATCHES_TRIED) -> tuple[int, ...]:
    """Returns the batches that are tried from the first to the last, at equal ratios."""
    ratio = (last / first) ** (1.0 / (tried - 1))
    return tuple(sorted({min(last, round(first * ratio**step)) for step in range(tried)}))


class StatedStepTimes:
    """A `StepTimeModel` from a table by gang and samples per accelerator, linear between the samples.

    A gang that is not in the table is refused. The synchronisation in a step is its excess over a step of one
    accelerator with as many samples; it is 0 where the table lacks that step.
    """

    def __init__(self, name: str, given: StepTimesEntry) -> None:
        self._name = name
        self._tables = {count: sorted(points.items()) for count, points in given.step_s.items()}
        self._spread = given.spread
        self._known: dict[tuple[int, bool, int], StepTimes] = {}

    @property
    def local_range(self) -> tuple[int, int]:
        """Returns the fewest and most samples per accelerator of any gang."""
        local = [samples for points in self._tables.values() for samples, _ in points]
        return min(local), max(local)

    def times(self, placement: GangLayout, local: int) -> StepTimes:
        key = (placement.accelerators, placement.machines > 1, local)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._times(*key)
        return found

    def _times(self, count: int, is_spread: bool, local: int) -> StepTimes:
        packed_s = self._step_s(count, local)
        if packed_s is None:
            raise OutsideProfileError(
                f"the law of {self._name} has no step time of {count} accelerators with {local} samples"
            )
        alone_s = self._step_s(1, local)
        step_s = packed_s / self._spread if is_spread else packed_s
        return StepTimes(step_s, 0.0 if alone_s is None else max(0.0, step_s - alone_s))

    def _step_s(self, count: int, local: int) -> float | None:
        points = self._tables.get(count, [])
        if not points or not points[0][0] <= local <= points[-1][0]:
            return None
        samples, seconds = zip(*points, strict=True)
        return float(np.interp(local, samples, seconds))


class StatedLearningCurve:
    """A `LearningCurve` with a noise scale from each of several steps on. It has no end: each job states its steps."""

    def __init__(self, initial: int, scales: Mapping[float, float]) -> None:
        self._initial = initial
        self._scales = list(scales.values())
        self._work = (*scales, inf)

    @property
    def work(self) -> tuple[float, ...]:
        return self._work

    def noise(self, batch: int, epoch: int) -> GradientStatistics:
        return GradientStatistics(1.0, self._scales[epoch] / self._initial)

    def updates(self, batch: int, epochs: int) -> float:
        total = 0.0
        for epoch in range(epochs):
            gain = self.noise(batch, epoch).gain(batch / self._initial)
            total += (self._work[epoch + 1] - self._work[epoch]) / gain
        return total


def stated_application(name: str, given: GoodputLawEntry) -> Application:
    """Returns the application that a file describes."""
    scales = given.noise_scale if isinstance(given.noise_scale, dict) else {0.0: given.noise_scale}
    profiles = {}
    for accelerator, speed in given.on.items():
        steps = StatedStepTimes(name, speed)
        profiles[accelerator] = AcceleratorProfile(steps, *steps.local_range)
    return Application(
        name, given.batch.initial, given.batch.max, StatedLearningCurve(given.batch.initial, scales), profiles
    )


#: The pattern of batches in the name of a kind, as in other traces.
_BATCH_SUFFIX = " (batch size "


class GoodputLaws:
    """Applications by name, and the laws of the kinds of jobs that were requested so far."""

    def __init__(self, applications: Mapping[str, Application], steps: Mapping[str, float]) -> None:
        """`steps`: steps of the whole training, for applications that have them."""
        self._applications = dict(applications)
        self._steps = dict(steps)
        #: Laws by kind; `kind_of` adds to it.
        self.of: dict[Kind, SpeedLaw] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._applications

    def steps(self, name: str) -> float | None:
        """Returns the steps of the whole training; None if each job states its own."""
        return self._steps.get(name)

    def batch_most(self, name: str) -> int:
        """Returns the largest batch that the law allows."""
        return self._applications[name].batch_most

    def kind_of(self, name: str, batch: int | None, most: int | None, where: str) -> Kind:
        """Returns the kind of a job that trains this application, and adds its law to `of`.

        `batch` alone never changes; with `most` the job chooses between the two; without both the law decides. Raises
        ConfigError, which begins with `where`, for batches that the law does not cover.
        """
        application = self._applications[name]
        largest = max(batch or 1, most or 1)
        if largest > application.batch_most:
            raise ConfigError(
                f"{where}: a batch of {largest} is above {application.batch_most}, the most in the law of {name!r}",
                field="batch",
                fix="choose a smaller batch, or raise the law's `batch.max`",
            )
        law: SpeedLaw
        if batch is None and most is None:
            kind, law = Kind(name), GoodputLaw(application)
        elif most is None:
            kind, law = Kind(f"{name}{_BATCH_SUFFIX}{batch})"), GoodputLaw(application, batch)
        else:
            least = batch if batch is not None else application.batch_initial
            kind, law = Kind(f"{name}{_BATCH_SUFFIX}{least} to {most})"), GoodputLaw(application, least, most)
        self.of.setdefault(kind, law)
        return kind


def goodput_laws(given: Mapping[str, GoodputLawEntry]) -> GoodputLaws:
    steps = {name: law.steps for name, law in given.items() if law.steps is not None}
    return GoodputLaws({name: stated_application(name, law) for name, law in given.items()}, steps)


def law_name(kind: Kind) -> str:
    """Returns the name of the law that a kind follows: the kind without its project and its batches."""
    return plain_kind(kind).partition(_BATCH_SUFFIX)[0]


def is_law_file(path: str | Path) -> bool:
    """Returns whether the path's ending is that of a file of laws; throughput tables are JSON."""
    return Path(path).suffix in (".yaml", ".yml")


def read_goodput_laws(path: str | Path) -> GoodputLaws:
    """Reads the laws of a file of laws or of a workload file. Raises ConfigError that names it."""
    data = load_mapping(path)
    if "jobs" in data:
        return goodput_laws(check_model(WorkloadFile, data, source=str(path)).laws)
    return goodput_laws(check_model(GoodputLawsFile, data, source=str(path)).laws)
