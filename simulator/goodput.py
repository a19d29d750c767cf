"""Training applications whose batch size and gang may change: their goodput, its laws, and measured profiles.

    goodput = throughput x statistical efficiency

Throughput is samples per second, by layout of the gang and batch. Efficiency is the value of a sample of a large batch
relative to one of the initial batch; it follows from the gradient noise. Goodput is measured in steps at the initial
batch per second, so that work and progress have one unit whatever batches a job uses. Callers choose batch and gang,
and charge restarts.

Measured step times are linear between local batches where the layout itself was measured, and are interpolated between
layouts elsewhere (the points lie on a grid, so the triangulation depends on their order, which is kept as given).
Learning is linear between the batch sizes that were run. Nothing is extrapolated: outside of the measurements
`OutsideProfileError` is raised.

A goodput law is the progress of a job with its gang. The speed is constant within an epoch, because the gradient noise,
and with it the efficiency of a large batch, is known per epoch. The scheduler gives the job its gang; the job splits
its batch optimally. `StatedStepTimes` and `StatedLearningCurve` are the laws of a workload file; `GoodputLaws` finds
the law of a job by its kind.

Profiles are read in the format of the Pollux artifact (OSDI 2021), which Sia shares: a folder for each application with
`placements.csv` (`placement` has a digit for each machine), `scalability.csv`, and `validation-B.csv` for every batch B
that was run, a row for each epoch. Columns are checked; errors name file and line.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from optimizer.prediction.loss_curve import update_gain
from scheduler.world.attempts import SpeedSegment
from simulator.ground_truth import SpeedLaw
from simulator.workloads.trace_source import ReadOptions, TraceRow, TraceSource, header_row_format
from walras.errors import ConfigError
from walras.job_request import Kind, plain_kind
from walras.spec.file_model import check_model, load_mapping
from walras.spec.workload_file import GoodputLawEntry, GoodputLawsFile, StepTimesEntry, WorkloadFile


class OutsideProfileError(ConfigError):
    """A layout, batch or epoch is outside of a profile; nothing is extrapolated."""


@dataclass(frozen=True, slots=True)
class GangLayout:
    """The number of a gang's accelerators on each machine (at least 1), in rank order; not on which machines it is."""

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
        """Returns the smallest and largest profiled batch of one accelerator, in samples, over all sizes of gang."""
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
        """Returns the kind of a job that trains this application, and makes sure that `of` has the kind's law.

        Args:
            name: the application.
            batch: with `most` None the batch size of the whole run; else the smallest that the job may use (None: the
                application's initial one).
            most: the largest batch size that the job may use. None for both: any that the application allows.
            where: the place in the user's input, with which a message begins.

        Raises ConfigError for a batch above the largest of the application.
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


_DIGITS = re.compile(r"[1-9]{1,64}")
_RUN = re.compile(r"validation-([1-9]\d{0,8})\.csv")
_LARGEST_COUNT = 10**9
#: Largest value of a cell: squared gradients of large models are large.
_LARGEST_NOISE = 1e30


def read_step_times(name: str, placements: Path, scalability: Path) -> MeasuredStepTimes:
    """Reads step times on one type of accelerator. Raises ConfigError."""
    rows: dict[GangLayout, list[tuple[int, float, float]]] = {}
    for row in _profile_rows(placements, ("placement", "local_bsz", "step_time", "sync_time")):
        digits = row.text("placement")
        if not _DIGITS.fullmatch(digits):
            raise row.error("placement", f"is {digits[:40]!r}", "give a digit from 1 to 9 per machine")
        placement = GangLayout(tuple(map(int, digits))).in_ring()
        rows.setdefault(placement, []).append((row.whole("local_bsz", most=_LARGEST_COUNT), *_row_times(row)))
    curves = {}
    for placement, measured in rows.items():
        measured.sort()
        local, step_s, sync_s = zip(*measured, strict=True)
        if len(set(local)) < len(local):
            raise ConfigError(f"{placements}: two rows of placement {placement.parts} have the same local_bsz")
        curves[placement] = StepTimeCurve(local, step_s, sync_s)
    columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    scaling = [(_layout_point(row), StepTimes(*_row_times(row))) for row in _profile_rows(scalability, columns)]
    return MeasuredStepTimes(name, curves, scaling)


def read_learning_curve(name: str, folder: Path, epochs: int) -> RecordedLearningCurve:
    """Reads the first `epochs` epochs of every `validation-*.csv`. Raises ConfigError."""
    columns = ("progress", "iteration", "grad_sqr", "grad_var")
    runs: dict[int, RecordedTraining] = {}
    for path in sorted(folder.glob("validation-*.csv")):
        named = _RUN.fullmatch(path.name)
        if named is None:
            raise ConfigError(f"{path}: a name such as validation-128.csv is expected")
        cells = [
            tuple(row.number(column, least=0.0, most=_LARGEST_NOISE) for column in columns)
            for row in _profile_rows(path, columns)
        ]
        if len(cells) < epochs:
            raise ConfigError(f"{path}: {len(cells)} epochs, {epochs} expected", fix="record the rest of the run")
        progress = [row[0] for row in cells]
        if progress[0] <= 0 or any(b <= a for a, b in pairwise(progress)):
            raise ConfigError(f"{path}: progress does not grow from epoch to epoch", field="progress")
        runs[int(named[1])] = RecordedTraining(*zip(*cells, strict=True))
    if not runs:
        raise ConfigError(f"{folder}: no validation-*.csv", fix="check the path")
    return RecordedLearningCurve(name, runs, epochs)


def local_batch_range(placements: Path) -> tuple[int, int]:
    """Reads the smallest and largest local batch measured on any layout. Raises ConfigError."""
    local = [row.whole("local_bsz", most=_LARGEST_COUNT) for row in _profile_rows(placements, ("local_bsz",))]
    if not local:
        raise ConfigError(f"{placements}: no row", fix="check the path")
    return min(local), max(local)


def _profile_rows(path: Path, columns: Sequence[str]) -> Iterator[TraceRow]:
    source = TraceSource(path, ReadOptions())
    lines = source.lines()
    return source.rows(lines, header_row_format(source, lines, columns))


def _layout_point(row: TraceRow) -> LayoutPoint:
    machines, accelerators, local = (
        row.whole(name, most=_LARGEST_COUNT) for name in ("num_nodes", "num_replicas", "local_bsz")
    )
    return machines, accelerators, local


def _row_times(row: TraceRow) -> tuple[float, float]:
    step_s = row.number("step_time", above=0.0)
    sync_s = row.number("sync_time", least=0.0)
    if sync_s > step_s:
        raise row.error("sync_time", f"is {sync_s:g}, above step_time ({step_s:g})", "it is a part of it")
    return step_s, sync_s


#: Epochs of each application: a job is done after them, whatever its validation shows.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
#: Largest batch per accelerator, where it is not the largest that was measured.
_LOCAL_MOST = {"yolov3": 8}


def applications_in(folder: str | Path) -> list[str]:
    """Returns the names of the applications that have a folder there. Raises ConfigError if none has."""
    names = [name for name in EPOCHS if (Path(folder) / name).is_dir()]
    if not names:
        raise ConfigError(f"{folder}: no application's profile; known are {', '.join(EPOCHS)}", fix="check the path")
    return names


def read_pollux_applications(folder: str | Path) -> dict[str, Application]:
    """Reads the applications whose profiles are in the folder, by name. Raises ConfigError."""
    return {name: _read_application(name, Path(folder) / name) for name in applications_in(folder)}


def _read_application(name: str, folder: Path) -> Application:
    placements = folder / "placements.csv"
    learning = read_learning_curve(name, folder, EPOCHS[name])
    least, most = local_batch_range(placements)
    profile = AcceleratorProfile(
        read_step_times(name, placements, folder / "scalability.csv"), least, min(most, _LOCAL_MOST.get(name, most))
    )
    return Application(name, learning.batches[0], learning.batches[-1], learning, {"t4": profile})
