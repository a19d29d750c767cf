"""The true speeds of jobs, and the true costs of starting, saving and moving them.

The scheduler never reads this: an oracle announces part of it in advance, or the scheduler learns it from reports.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from walras.errors import ConfigError
from walras.job_request import ANY_ACCELERATOR, AVERAGING_LOSS, MIXING_LOSS, JobRequest, Kind

#: In a speed's key: a gang of any size.
ANY_COUNT = 0


@dataclass(frozen=True, slots=True)
class AttemptCosts:
    """What the life of an attempt costs besides its steps, seconds."""

    #: Start command to all ranks up: the attempt counts as running from here on.
    start_s: float = 0.0
    #: Writing a checkpoint, during which no step is done. None: this kind cannot checkpoint and loses all its work.
    checkpoint_s: float | None = 0.0
    #: Running time between two checkpoints that the job takes by itself; 0: it takes none.
    checkpoint_every_s: float = 0.0
    #: All ranks up to where the first step begins (imports, data, restore).
    warm_up_s: float = 0.0
    #: Last step, or last checkpoint, to no process left.
    exit_s: float = 0.0
    #: Added to the start of an attempt that is not on exactly the machines of the one before: its state is fetched.
    migrate_s: float = 0.0

    @property
    def restart_s(self) -> float:
        """What moving a job costs it: save, fetch, start, warm up."""
        return self.start_s + self.warm_up_s + (self.checkpoint_s or 0.0) + self.migrate_s


@dataclass(frozen=True, slots=True)
class SpeedKey:
    """A way to run a kind of job: `count` accelerators of one type (`ANY_COUNT`, `ANY_ACCELERATOR`: any)."""

    kind: Kind
    accelerator: str
    count: int = ANY_COUNT


class SpeedSegment(NamedTuple):
    """A speed, and the steps behind the job from which on it is another; inf: never."""

    steps_per_s: float
    until_steps: float = inf


@dataclass(frozen=True, slots=True)
class PoolPart:
    """What an attempt holds in one of its pools."""

    accelerator: str
    #: Accelerators on each machine of a whole gang, were it here alone.
    machines: tuple[int, ...]
    #: Whole gangs that it has here; 0: a piece of one.
    gangs: int


class SpeedLaw(Protocol):
    """How fast jobs of one kind come nearer to their end, where a table cannot say it.

    A step is a unit of progress. Where the batch grows with the gradient noise, a law answers goodput (throughput x
    statistical efficiency) in steps at the first batch size, as a staircase over the job's progress.
    """

    def stretch(self, accelerator: str, parts: tuple[int, ...], steps: float) -> SpeedSegment:
        """From `steps` on, with so many accelerators on each machine; a speed of 0 where it cannot run."""
        ...


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Speeds (steps per second of the whole gang) and costs by kind."""

    speeds: Mapping[SpeedKey, float]
    costs: Mapping[Kind, AttemptCosts] = field(default_factory=dict)
    default_costs: AttemptCosts = AttemptCosts()
    #: Speed of the first kind beside the second on the same accelerators.
    pairs: Mapping[tuple[SpeedKey, Kind], float] = field(default_factory=dict)
    #: Speeds of gangs on several machines, where that makes a difference; `speeds` are those on one.
    spread: Mapping[SpeedKey, float] = field(default_factory=dict)
    #: Kinds whose speed follows a law. They need no entry in `speeds`.
    laws: Mapping[Kind, SpeedLaw] = field(default_factory=dict)
    #: Part of its speed that a gang over several pools loses by talking between them, and a fork by averaging.
    mixing_loss: float = MIXING_LOSS
    averaging_loss: float = AVERAGING_LOSS

    def beside(self, kind: Kind, other: Kind, accelerator: str, count: int) -> float:
        """Speed of a gang that shares its accelerators with one of another kind; 0 where they do not go together."""
        return self.pairs.get((SpeedKey(kind, accelerator, count), other), 0.0)

    def stretch(self, kind: Kind, accelerator: str, parts: tuple[int, ...], steps: float = 0.0) -> SpeedSegment:
        """Speed of a gang with so many accelerators on each machine and these steps behind it, and how far it lasts.

        Raises:
            ConfigError: nobody said how fast this kind runs there.
        """
        law = self.laws.get(kind)
        if law is not None:
            return law.stretch(accelerator, parts, steps)
        return SpeedSegment(self._tabled(kind, accelerator, sum(parts), len(parts)))

    def stretch_over(self, kind: Kind, parts: Sequence[PoolPart], steps: float = 0.0) -> SpeedSegment:
        """Speed of an attempt over several pools, or of several gangs, with these steps behind it.

        A fork's gangs take steps of their own at the same time, shared between them by speed. One gang over several
        pools goes, worker by worker, at the pace of the slowest.
        """
        found = [self.stretch(kind, part.accelerator, part.machines, steps) for part in parts]
        until = min(each.until_steps for each in found)
        if all(part.gangs for part in parts):
            whole = sum(part.gangs * each.steps_per_s for part, each in zip(parts, found, strict=True))
            return SpeedSegment(whole * (1.0 - self.averaging_loss), until)
        return SpeedSegment(min(each.steps_per_s for each in found) * (1.0 - self.mixing_loss), until)

    def steps_per_s(self, kind: Kind, accelerator: str, count: int) -> float:
        """Speed of a gang on one machine at the job's beginning; 0 where it cannot run.

        Raises:
            ConfigError: nobody said how fast this kind runs there.
        """
        return self.stretch(kind, accelerator, (count,)).steps_per_s

    def fastest(self, kind: Kind, accelerator: str, parts: tuple[int, ...]) -> float:
        """The highest speed that a gang of this kind ever has there, whatever lies behind it."""
        best, steps = 0.0, 0.0
        while steps < inf:
            speed, steps = self.stretch(kind, accelerator, parts, steps)
            best = max(best, speed)
        return best

    def takes_s(self, kind: Kind, accelerator: str, parts: tuple[int, ...], steps: float) -> float:
        """Run time of so many steps from the beginning on, nothing lost; inf where a gang makes no step there."""
        seconds, behind = 0.0, 0.0
        while behind < steps:
            speed, until = self.stretch(kind, accelerator, parts, behind)
            if speed <= 0:
                return inf
            seconds += (min(until, steps) - behind) / speed
            behind = until
        return seconds

    def _tabled(self, kind: Kind, accelerator: str, count: int, machines: int) -> float:
        for table in (self.spread, self.speeds) if machines > 1 and self.spread else (self.speeds,):
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
        """Costs of a kind, the default where it has none of its own."""
        return self.costs.get(kind, self.default_costs)

    def accelerators_of(self, request: JobRequest, fleet: Iterable[str]) -> list[tuple[str, int]]:
        """Every (accelerator, count) of the fleet that the job accepts, in a fixed order."""
        found: dict[tuple[str, int], None] = {}
        types = sorted(set(fleet))
        for demand in request.demands:
            names = types if demand.accelerator == ANY_ACCELERATOR else [demand.accelerator]
            counts = sorted({demand.count, *request.sizes})
            found.update({(name, count): None for name in names if name in types for count in counts})
        return list(found)


def _lookup_keys(kind: Kind, accelerator: str, count: int) -> Iterator[SpeedKey]:
    """Under which a speed may be known, the most particular first."""
    yield SpeedKey(kind, accelerator, count)
    yield SpeedKey(kind, accelerator)
    yield SpeedKey(kind, ANY_ACCELERATOR)
