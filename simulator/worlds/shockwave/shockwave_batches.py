"""Jobs that change their batch size while they train: the rules, the step counters, and finish-time fairness.

There are two rules. Accordion uses the largest batch, except in the critical epochs of its network. The gradient noise
scale doubles the batch at each of the profiled epochs. A job requests a change at the end of a round in which it ran,
and makes it at the end of the next one. Steps are counted at the current batch, so a change converts the counter.

Shockwave reports finish-time fairness as completion time relative to that on a private share of the cluster:

    rho = JCT / (time alone x max(1, jobs / accelerators))

The time alone uses the profiled batch of each epoch, which can differ from the batch that the job has in the run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from simulator.ground_truth import GroundTruth
from simulator.workloads.trace_source import batch_in_kind
from walras.errors import ConfigError
from walras.job_request import Kind


class BatchRule(StrEnum):
    """The rule that changes a job's batch size."""

    STATIC = "static"
    ACCORDION = "accordion"
    GNS = "gns"


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    """A network: samples per epoch, and the batch sizes that it can use."""

    samples: int
    smallest: int
    largest: int
    #: False: no rule changes its batch.
    is_dynamic: bool = True

    def epoch_steps(self, batch: int) -> int:
        """Returns the steps of one epoch."""
        return -(-self.samples // batch)


NETWORKS = {
    "ResNet-18": TrainedNetwork(50_000, 16, 256),
    "ResNet-50": TrainedNetwork(100_000, 16, 128),
    "Transformer": TrainedNetwork(10_000, 16, 128, is_dynamic=False),
    "LM": TrainedNetwork(59_675, 5, 80),
    "Recommendation": TrainedNetwork(117_907, 512, 8192),
}

#: Epochs after which the gradient noise scale allows twice the batch, by network, gang and original batch.
_BREAKS: dict[tuple[str, int], dict[int, tuple[int, ...]]] = {
    ("ResNet-18", 1): {16: (31, 41, 51, 71), 32: (21, 31, 51), 64: (11, 31), 128: (11,)},
    ("ResNet-18", 2): {16: (21, 31, 91, 111), 32: (11, 21, 41), 64: (21, 41), 128: (41,)},
    ("ResNet-18", 4): {16: (11, 21, 81, 91), 32: (21, 31, 61), 64: (11, 61), 128: (11,)},
    ("ResNet-50", 1): {64: (101,)},
    ("ResNet-50", 2): {32: (101, 111), 64: (81,)},
    ("ResNet-50", 4): {32: (131, 221), 64: (191,)},
    ("LM", 1): {5: (31, 41, 61, 71), 10: (11, 21, 41), 20: (11, 41), 40: (11,)},
    ("LM", 2): {5: (31, 51, 61, 71), 10: (11, 31, 41), 20: (31, 41), 40: (11,)},
    ("LM", 4): {5: (11, 31, 71, 91), 10: (11, 31, 61), 20: (11, 61), 40: (61,)},
    ("Recommendation", 1): {512: (21, 41, 71, 91), 1024: (21, 51, 91), 2048: (21, 41), 4096: (41,)},
}


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """The schedule of one job's batch size. Raises ConfigError for a network or batch without a profile."""

    name: str
    original: int
    gang: int
    rule: BatchRule

    def __post_init__(self) -> None:
        if self.name not in NETWORKS:
            known = ", ".join(NETWORKS)
            raise ConfigError(f"no network {self.name!r} is profiled", field="job_type", fix=f"use one of {known}")
        if not self.network.smallest <= self.original <= self.network.largest:
            raise ConfigError(
                f"{self.name} has no batch of {self.original}",
                field="job_type",
                fix=f"write one from {self.network.smallest} to {self.network.largest}",
            )

    @property
    def network(self) -> TrainedNetwork:
        return NETWORKS[self.name]

    def kind(self, batch: int) -> Kind:
        """Returns the job's kind at this batch."""
        return Kind(f"{self.name} (batch size {batch})")

    def wanted(self, batch: int, epoch: int) -> int | None:
        """Returns the batch that the rule requests; None if the present one stays."""
        network = self.network
        if self.rule is BatchRule.STATIC or not network.is_dynamic:
            return None
        if self.rule is BatchRule.GNS:
            target = max(self.doubled(epoch), self.doubled(epoch + 1))
            return 2 * batch if batch < network.largest and target > batch else None
        critical = self.is_critical(epoch)
        if batch == self.original:
            return None if critical or batch >= network.largest else network.largest
        return self.original if critical and batch > network.smallest else None

    @property
    def breaks(self) -> tuple[int, ...]:
        """Returns the epochs after which the gradient noise scale allows twice the batch."""
        return _BREAKS.get((self.name, self.gang), {}).get(self.original, ())

    def doubled(self, epoch: int) -> int:
        """Returns the batch that the gradient noise scale allows in this epoch."""
        passed = sum(at <= epoch for at in self.breaks)
        return min(self.original << passed, self.network.largest)

    def is_critical(self, epoch: int) -> bool:
        """Returns whether the gradient changes so much in this epoch that Accordion keeps the original batch."""
        match self.name:
            case "LM":
                return epoch < 10
            case "Recommendation":
                return epoch < {2048: 40, 4096: 10, 8192: 10}.get(self.original, 30)
            case "ResNet-50":
                return epoch % 30 < 10
            case "ResNet-18":
                first = 20 if self.original == 256 else 10
                return epoch < first or 150 <= epoch < 160 or 250 <= epoch < 260
        return True


def batch_schedule_of(kind: str, gang: int, rule: str) -> BatchSchedule:
    """Reads a job's batch schedule from the fields of a trace's row. Raises ConfigError."""
    batch = batch_in_kind(kind)
    if batch is None:
        raise ConfigError(f"{kind!r} names no batch size", field="job_type", fix="write 'NAME (batch size NUMBER)'")
    if rule not in set(BatchRule):
        known = ", ".join(BatchRule)
        raise ConfigError(f"{rule!r} is no way to change a batch size", field="mode", fix=f"write one of {known}")
    return BatchSchedule(kind.split(" ")[0], batch, gang, BatchRule(rule))


@dataclass(frozen=True, slots=True)
class StepCount:
    """A job's step counter: its batch, its steps done and in all at that batch, and the requested batch."""

    batch: int
    steps: int
    total: int
    next_batch: int | None = None


def count_round(batching: BatchSchedule, count: StepCount, steps: int, is_known: Callable[[Kind], bool]) -> StepCount:
    """Returns the job's counter after a round in which it made `steps` steps.

    The change that was requested before happens now, if its speed is known (`is_known`); then the rule decides
    whether to request another.
    """
    now = replace(count, steps=count.steps + steps, next_batch=None)
    if count.next_batch is not None and is_known(batching.kind(count.next_batch)):
        now = _restate_count(batching.network, now, count.next_batch)
    epoch = -(-now.steps // batching.network.epoch_steps(now.batch))
    return replace(now, next_batch=batching.wanted(now.batch, epoch))


def _restate_count(network: TrainedNetwork, count: StepCount, batch: int) -> StepCount:
    """Converts the counter to another batch.

    An epoch that has begun counts as done, so the job may have no step left.
    """
    before, after = network.epoch_steps(count.batch), network.epoch_steps(batch)
    epochs = -(-count.total // before)
    total = -(-count.total * count.batch // batch)
    if -(-total // after) != epochs:
        total = after * epochs
    return StepCount(batch, -(-count.steps // before) * after, total)


_DECIMALS = 5
#: Part of the epochs during which Accordion's profile keeps the original batch.
_HELD = 0.3


def shockwave_alone_s(batching: BatchSchedule, steps: int, truth: GroundTruth, accelerator: str) -> float:
    """Returns the run time of a job of `steps` steps (at its first batch) on accelerators of its own.

    Raises ConfigError where a speed is unknown.
    """
    network = batching.network
    epochs = -(-steps // network.epoch_steps(batching.original))
    trained = Counter(profiled_batch(batching, epoch, epochs) for epoch in range(epochs))
    speed = {batch: truth.steps_per_s(batching.kind(batch), accelerator, batching.gang) for batch in trained}
    return sum(count * network.samples / batch / speed[batch] for batch, count in trained.items())


def profiled_batch(batching: BatchSchedule, epoch: int, epochs: int) -> int:
    """Returns the batch of an epoch (from 0) in the profile of a job of `epochs` epochs."""
    if not batching.network.is_dynamic:
        return batching.original
    match batching.rule:
        case BatchRule.STATIC:
            return batching.original
        case BatchRule.GNS:
            breaks = batching.breaks
            passed = sum(at <= epoch for at in breaks)
            if not breaks or epochs <= breaks[0] or (epoch == epochs - 1 and passed >= 2):
                return batching.original
            return batching.doubled(epoch)
    late = batching.name == "Recommendation" and (60 <= epoch < 70 or 80 <= epoch < 90)
    held = late or batching.is_critical(epoch) or epoch <= _HELD * epochs
    return batching.original if held else batching.network.largest


def shockwave_fairness(jct_s: Sequence[float], alone: Sequence[float], accelerators: int) -> list[float]:
    """Returns rho of each job, rounded to five decimals; a job above 1 is treated unfairly."""
    share = max(1.0, len(jct_s) / accelerators)
    return [round(jct / (time_s * share), _DECIMALS) for jct, time_s in zip(jct_s, alone, strict=True)]
