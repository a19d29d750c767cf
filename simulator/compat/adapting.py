"""What is common to the worlds in which jobs change their batch with their gang, under policies of ours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from simulator.compat.pollux.training import Training
from simulator.goodput.errors import OutsideTable
from simulator.goodput.placement import Placement
from simulator.machines import PoolModel
from simulator.truth import Stretch
from walras.errors import ConfigError

#: Batches that are tried, in equal ratios.
_BATCHES = 50


def best_goodput(first: int, last: int, goodput_of: Callable[[int], float]) -> float:
    """The largest goodput of the batches from the first to the last; 0 where none can be had."""
    if first > last:
        return 0.0
    ratio = (last / first) ** (1.0 / (_BATCHES - 1))
    batches = sorted({min(last, round(first * ratio**step)) for step in range(_BATCHES)})
    return max(_or_nothing(goodput_of, batch) for batch in batches)


def _or_nothing(goodput_of: Callable[[int], float], batch: int) -> float:
    try:
        return goodput_of(batch)
    except (OutsideTable, ConfigError):  # nobody measured that
        return 0.0


@dataclass(frozen=True, slots=True)
class TrainingLaw:
    """A `simulator.truth.Law`: how a job of one kind gets on, by type of accelerator."""

    trainings: Mapping[str, Training]

    def stretch(self, accelerator: str, parts: tuple[int, ...], steps: float) -> Stretch:
        """From `steps` on, until the epoch ends."""
        training = self.trainings[accelerator]
        marks, after = training.application.learning.work, training.epoch(steps) + 1
        until = marks[after] if after < len(marks) - 1 else inf
        return Stretch(training.speed_at(Placement(parts), steps), until)


def sizes_of(model: PoolModel) -> tuple[int, ...]:
    """Gangs that a job may have on this type: part of one machine, then whole machines."""
    size = model.pool.shape.accelerators
    parts = [1 << power for power in range(size.bit_length()) if 1 << power < size]
    return (*parts, *(size * machines for machines in range(1, model.machines + 1)))
