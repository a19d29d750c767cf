"""Jobs that change their batch size while they train: when, what happens to their step counts, and their fairness.

Two rules. Accordion: the largest batch, except in the critical epochs of its network. Gradient noise scale: twice the
batch at each of the epochs that were profiled. A job requests a change at the end of a round in which it ran and makes
it at the end of the next one. Steps are counted at the current batch, so a change rewrites the counter.

Finish-time fairness as Shockwave reports it is completion time over that on a private share of the cluster:

    rho = JCT / (time alone x max(1, jobs / accelerators))

The time alone is computed at the batches that were profiled for each epoch, which are not quite those that a job has.
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
    """Who changes a job's batch size."""

    STATIC = "static"
    ACCORDION = "accordion"
    GNS = "gns"


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    """What is trained: samples in an epoch and the batches that it can have."""

    samples: int
    smallest: int
    largest: int
    #: False: no rule changes its batch.
    is_dynamic: bool = True

    def epoch_steps(self, batch: int) -> int:
        """Steps of one epoch."""
        return -(-self.samples // batch)


NETWORKS = {
    "ResNet-18": TrainedNetwork(50_000, 16, 256),
    "ResNet-50": TrainedNetwork(100_000, 16, 128),
    "Transformer": TrainedNetwork(10_000, 16, 128, is_dynamic=False),
    "LM": TrainedNetwork(59_675, 5, 80),
    "Recommendation": TrainedNetwork(117_907, 512, 8192),
}

#: Epochs after which the gradient noise lets the batch double, by network, gang and original batch.
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
    """How one job's batch size changes. Raises ConfigError for a network or batch without a profile."""

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
        """Kind of the job at this batch."""
        return Kind(f"{self.name} (batch size {batch})")

    def wanted(self, batch: int, epoch: int) -> int | None:
        """The batch that the rule wants instead of the present one; None: it stays."""
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
        """Epochs after which the gradient noise lets the batch double."""
        return _BREAKS.get((self.name, self.gang), {}).get(self.original, ())

    def doubled(self, epoch: int) -> int:
        """The batch that the gradient noise lets the job have in this epoch."""
        passed = sum(at <= epoch for at in self.breaks)
        return min(self.original << passed, self.network.largest)

    def is_critical(self, epoch: int) -> bool:
        """Whether the gradient changes so much in this epoch that Accordion keeps the first batch."""
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
    """What a trace's row says about a job's batch. Raises ConfigError."""
    batch = batch_in_kind(kind)
    if batch is None:
        raise ConfigError(f"{kind!r} names no batch size", field="job_type", fix="write 'NAME (batch size NUMBER)'")
    if rule not in set(BatchRule):
        known = ", ".join(BatchRule)
        raise ConfigError(f"{rule!r} is no way to change a batch size", field="mode", fix=f"write one of {known}")
    return BatchSchedule(kind.split(" ")[0], batch, gang, BatchRule(rule))


@dataclass(frozen=True, slots=True)
class StepCount:
    """A job's step counter: its batch, steps done and in all at that batch, and the next batch."""

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
    """The count at another batch. An epoch that has begun is taken for done, so a job may have no step left."""
    before, after = network.epoch_steps(count.batch), network.epoch_steps(batch)
    epochs = -(-count.total // before)
    total = -(-count.total * count.batch // batch)
    if -(-total // after) != epochs:
        total = after * epochs
    return StepCount(batch, -(-count.steps // before) * after, total)


_DECIMALS = 5
#: Accordion's profile holds on to the first batch for this part of the epochs.
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
    """rho of each job, of five decimals; above 1: unfair."""
    share = max(1.0, len(jct_s) / accelerators)
    return [round(jct / (time_s * share), _DECIMALS) for jct, time_s in zip(jct_s, alone, strict=True)]
