"""The true speeds of jobs, and the true costs of starting, saving and moving them.

The scheduler never reads them: an oracle announces a part in advance, or the scheduler learns them from reports.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from walras.errors import ConfigError
from walras.job_request import ANY_ACCELERATOR, AVERAGING_LOSS, MIXING_LOSS, DeviceShare, JobRequest, Kind
from walras.spec.accelerator_names import family_of

#: The count of a `SpeedKey` that holds for gangs of any size.
ANY_COUNT = 0


@dataclass(frozen=True, slots=True)
class AttemptCosts:
    """Times in the life of an attempt besides its steps, seconds."""

    #: Start command until all ranks are up; the attempt counts as running from then on.
    start_s: float = 0.0
    #: Writing a checkpoint, without steps meanwhile. None: the kind cannot checkpoint, and loses its work when stopped.
    checkpoint_s: float | None = 0.0
    #: Run time between two periodic checkpoints; 0: the job takes none; None: as the scheduler plans.
    checkpoint_every_s: float | None = 0.0
    #: From all ranks up to the first step (imports, data, restore).
    warm_up_s: float = 0.0
    #: From the last step or checkpoint to the exit of the last process.
    exit_s: float = 0.0
    #: Added to the start of an attempt on other machines than the one before, which has to fetch its state.
    migrate_s: float = 0.0

    @property
    def restart_s(self) -> float:
        """Returns the seconds that a move costs a job: save, fetch, start, warm up."""
        return self.start_s + self.warm_up_s + (self.checkpoint_s or 0.0) + self.migrate_s


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """Times of one attempt as they were measured, seconds. None: unknown, as `AttemptCosts` of its kind says."""

    start_s: float | None
    warm_up_s: float | None
    exit_s: float | None


@dataclass(frozen=True, slots=True)
class SpeedKey:
    """A kind of job on `count` accelerators of one type (`ANY_COUNT`, `ANY_ACCELERATOR`: any)."""

    kind: Kind
    accelerator: str
    count: int = ANY_COUNT


class SpeedSegment(NamedTuple):
    """A constant speed, and the number of steps done at which it ends; inf: never."""

    steps_per_s: float
    until_steps: float = inf


@dataclass(frozen=True, slots=True)
class PoolPart:
    """The accelerators of an attempt in one of its pools."""

    accelerator: str
    #: Accelerators on each machine of one whole gang in this pool.
    machines: tuple[int, ...]
    #: Whole gangs in this pool; 0: a part of one.
    gangs: int


class SpeedLaw(Protocol):
    """The speed of jobs of one kind as a function of progress, where a table cannot state it.

    A step is a unit of progress. Where the batch grows with the gradient noise, a law returns goodput (throughput x
    statistical efficiency) in steps at the first batch size, as a staircase over the job's progress.
    """

    def speed_segment(self, accelerator: str, parts: tuple[int, ...], steps: float) -> SpeedSegment:
        """Returns the speed from `steps` on, with `parts` accelerators on each machine; 0 where the job cannot run."""
        ...


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Speeds (steps per second of the whole gang) and costs by kind."""

    speeds: Mapping[SpeedKey, float]
    costs: Mapping[Kind, AttemptCosts] = field(default_factory=dict)
    default_costs: AttemptCosts = AttemptCosts()
    #: Speed of the first kind, co-located with the second on the same accelerators.
    pairs: Mapping[tuple[SpeedKey, Kind], float] = field(default_factory=dict)
    #: Speeds of gangs on several machines, where they differ from `speeds`, those on one machine.
    multi_machine_speeds: Mapping[SpeedKey, float] = field(default_factory=dict)
    #: Laws of kinds whose speed changes with progress; such kinds need no entry in `speeds`.
    laws: Mapping[Kind, SpeedLaw] = field(default_factory=dict)
    #: Part of its speed that a gang over several pools loses to communication, and a fork to averaging.
    mixing_loss: float = MIXING_LOSS
    averaging_loss: float = AVERAGING_LOSS

    def colocated_speed(self, kind: Kind, other: Kind, accelerator: str, count: int) -> float:
        """Returns the speed of a gang co-located with one of another kind; 0 where they cannot share accelerators."""
        return self.pairs.get((SpeedKey(kind, accelerator, count), other), 0.0)

    def speed_segment(self, kind: Kind, accelerator: str, parts: tuple[int, ...], steps: float = 0.0) -> SpeedSegment:
        """Returns the speed of a gang with `parts` accelerators on each machine after `steps`, and the step at which it
        ends.

        Raises:
            ConfigError: the speed of this kind there is unknown.
        """
        law = self.laws.get(kind)
        if law is not None:
            return law.speed_segment(accelerator, parts, steps)
        return SpeedSegment(self._table_speed(kind, accelerator, sum(parts), len(parts)))

    def speed_segment_over(self, kind: Kind, parts: Sequence[PoolPart], steps: float = 0.0) -> SpeedSegment:
        """Returns the speed of an attempt over several pools, or of several gangs, after `steps`.

        The gangs of a fork make steps independently, shared between them by speed. One gang over several pools runs at
        the pace of its slowest worker.
        """
        found = [self.speed_segment(kind, part.accelerator, part.machines, steps) for part in parts]
        until = min(each.until_steps for each in found)
        if all(part.gangs for part in parts):
            whole = sum(part.gangs * each.steps_per_s for part, each in zip(parts, found, strict=True))
            return SpeedSegment(whole * (1.0 - self.averaging_loss), until)
        return SpeedSegment(min(each.steps_per_s for each in found) * (1.0 - self.mixing_loss), until)

    def steps_per_s(self, kind: Kind, accelerator: str, count: int) -> float:
        """Returns the speed of a gang on one machine at the job's beginning; 0 where it cannot run.

        Raises:
            ConfigError: the speed of this kind there is unknown.
        """
        return self.speed_segment(kind, accelerator, (count,)).steps_per_s

    def highest_speed(self, kind: Kind, accelerator: str, parts: tuple[int, ...]) -> float:
        """Returns the highest speed that a gang of this kind has there at any progress."""
        best, steps = 0.0, 0.0
        while steps < inf:
            speed, steps = self.speed_segment(kind, accelerator, parts, steps)
            best = max(best, speed)
        return best

    def run_time_s(self, kind: Kind, accelerator: str, parts: tuple[int, ...], steps: float) -> float:
        """Returns the run time of the first `steps`, without interruptions; inf where a gang makes no steps there."""
        seconds, behind = 0.0, 0.0
        while behind < steps:
            speed, until = self.speed_segment(kind, accelerator, parts, behind)
            if speed <= 0:
                return inf
            seconds += (min(until, steps) - behind) / speed
            behind = until
        return seconds

    def _table_speed(self, kind: Kind, accelerator: str, count: int, machines: int) -> float:
        on_several = machines > 1 and self.multi_machine_speeds
        for table in (self.multi_machine_speeds, self.speeds) if on_several else (self.speeds,):
            for key in _lookup_keys(kind, accelerator, count):
                speed = table.get(key)
                if speed is not None:
                    return speed
        raise ConfigError(
            f"no speed is known for kind {kind!r} on {count} x {accelerator}",
            field=f"speeds.{kind}.{accelerator}",
            fix="add it to the cluster's speeds or to the throughput table",
        )

    def costs_of(self, kind: Kind) -> AttemptCosts:
        """Returns the costs of a kind, or the default if it has none of its own."""
        return self.costs.get(kind, self.default_costs)

    def accelerators_of(self, request: JobRequest, fleet: Iterable[str]) -> list[tuple[str, int]]:
        """Returns every (accelerator type, count) of the fleet that the job accepts, in a fixed order."""
        found: dict[tuple[str, int], None] = {}
        types = sorted(set(fleet))
        for demand in request.demands:
            counts = sorted({demand.count, *request.sizes})
            found.update({(name, count): None for name in demand.types_of(types) for count in counts})
        return list(found)


def processor_share(own: DeviceShare | None, other: DeviceShare | None) -> float:
    """Returns the part of its speed that a job keeps when co-located, where no table of pairs states it.

    Each job runs while the device is free for it: two that together need it for more than all of the time share it in
    proportion to their needs. A job that does not state its need is assumed to need all of the time. Returns 0 unless
    both jobs agreed to share.
    """
    if own is None or other is None:
        return 0.0
    return 1.0 / max(1.0, sum(1.0 if each.busy is None else each.busy for each in (own, other)))


def _lookup_keys(kind: Kind, accelerator: str, count: int) -> Iterator[SpeedKey]:
    """Yields the keys under which a speed may be found, the most specific first."""
    yield SpeedKey(kind, accelerator, count)
    yield SpeedKey(kind, accelerator)
    if (family := family_of(accelerator)) != accelerator:
        yield SpeedKey(kind, family, count)
        yield SpeedKey(kind, family)
    yield SpeedKey(kind, ANY_ACCELERATOR)
