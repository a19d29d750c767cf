"""Training applications whose batch size and gang may change, and their goodput.

    goodput = throughput x statistical efficiency

Throughput is samples per second, by layout of the gang and batch. Efficiency is the value of a sample of a large batch
relative to one of the initial batch; it follows from the gradient noise. Goodput is measured in steps at the initial
batch per second, so that work and progress have one unit whatever batches a job uses.

Callers choose batch and gang, and charge restarts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from optimizer.prediction import gradient_noise
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
        return gradient_noise.update_gain(self.grad_sqr, self.grad_var, times)


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
    """Returns the seconds of one update."""
    times = application.on[accelerator].law.times(placement, split.local)
    return times.step_s + split.accumulated * (times.step_s - times.sync_s)


def batch_gain(application: Application, batch: int, epoch: int) -> float:
    """Returns the steps at the initial batch to which one update with this batch is equal, in this epoch."""
    return application.learning.noise(batch, epoch).gain(batch / application.batch_initial)


def goodput(application: Application, accelerator: str, placement: GangLayout, split: BatchSplit, epoch: int) -> float:
    """Returns steps at the initial batch per second: throughput x efficiency."""
    batch = split.batch(placement.accelerators)
    return batch_gain(application, batch, epoch) / update_time_s(application, accelerator, placement, split)
