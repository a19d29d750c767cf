"""The truth behind simulated jobs: their work, their speeds, and the costs of starting, saving and moving them.

The scheduler sees the request of a job, and never reads the truth: an oracle announces a part in advance, or the
scheduler learns it from reports.

Two functions change a stream of jobs before a run: `inject_random_failures` adds random cancellations (stream
`cancellations`) and crashes (stream `crashes`) to those that the workload states, and `with_estimate_error` hides or
distorts the length that a request states. A job keeps its true work in both cases. `PredictionSettings` says how the
scheduler predicts speeds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Protocol, TypeVar

from optimizer.prediction.predictor import AcceleratorSpecs
from optimizer.prediction.step_time import exchange_part, pace_over
from scheduler.core.speed_events import FactsTold
from scheduler.core.state.fleet import split_gang
from scheduler.world.attempts import (
    AttemptCosts,
    JobProgress,
    PlannedFailure,
    SimAttempt,
    SimulatedJob,
    SpeedCurve,
    SpeedSegment,
    WorldParameters,
)
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import HeldDevices, SimulatedMachines
from walras.cluster import Placement
from walras.errors import ConfigError
from walras.job_request import ANY_ACCELERATOR, AVERAGING_LOSS, MIXING_LOSS, DeviceShare, JobRequest, Kind
from walras.spec.accelerator_names import family_of

Size = TypeVar("Size", int, float)

#: The count of a `SpeedKey` that holds for gangs of any size.
ANY_COUNT = 0


@dataclass(frozen=True, slots=True)
class SpeedKey:
    """A kind of job on `count` accelerators of one type (`ANY_COUNT`, `ANY_ACCELERATOR`: any)."""

    kind: Kind
    accelerator: str
    count: int = ANY_COUNT


@dataclass(frozen=True, slots=True)
class PoolPart:
    """The accelerators of an attempt in one of its pools."""

    accelerator: str
    #: Accelerators on each machine of one whole gang in this pool.
    machines: tuple[int, ...]
    #: Whole gangs in this pool; 0: a part of one.
    gangs: int
    #: The fraction of a whole gang that is here, if its ranks share each batch by speed; else 0.
    share: float = 0.0


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
    default_costs: AttemptCosts = field(default_factory=AttemptCosts)
    #: Speed of the first kind, co-located with the second on the same accelerators.
    pairs: Mapping[tuple[SpeedKey, Kind], float] = field(default_factory=dict)
    #: Speeds of gangs on several machines, where they differ from `speeds`, those on one machine.
    multi_machine_speeds: Mapping[SpeedKey, float] = field(default_factory=dict)
    #: Laws of kinds whose speed changes with progress; such kinds need no entry in `speeds`.
    laws: Mapping[Kind, SpeedLaw] = field(default_factory=dict)
    #: Part of its speed that a gang over several pools loses to communication, and a fork to averaging.
    mixing_loss: float = MIXING_LOSS
    averaging_loss: float = AVERAGING_LOSS
    #: Bytes that workers of a kind exchange at each step; of others that takes a fixed part of it (`exchange_part`).
    gradient_bytes: Mapping[Kind, float] = field(default_factory=dict)

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
        the pace of its slowest worker, unless its ranks share each batch: then their speeds add up.
        """
        found = [self.speed_segment(kind, part.accelerator, part.machines, steps) for part in parts]
        until = min(each.until_steps for each in found)
        if all(part.gangs for part in parts):
            whole = sum(part.gangs * each.steps_per_s for part, each in zip(parts, found, strict=True))
            return SpeedSegment(whole * (1.0 - self.averaging_loss), until)
        shared = sum(part.share * each.steps_per_s for part, each in zip(parts, found, strict=True))
        return SpeedSegment((shared or min(each.steps_per_s for each in found)) * (1.0 - self.mixing_loss), until)

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


def largest_by_type(values: Iterable[tuple[str, Size]]) -> dict[str, Size]:
    """Returns the largest value of each accelerator type."""
    largest: dict[str, Size] = {}
    for name, value in values:
        largest[name] = max(value, largest.get(name, value))
    return largest


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


class TruePhysics:
    """What is true in a simulated world; noise is drawn from the streams `speeds` and `delays`."""

    def __init__(
        self, truth: GroundTruth, machines: SimulatedMachines, model: WorldParameters, streams: RandomStreams
    ) -> None:
        self._truth = truth
        self._machines, self._pools = machines, machines.pools
        self._model = model
        self._speeds = streams.stream("speeds")
        self._delays = streams.stream("delays")
        #: Constant speeds by kind, accelerator type and accelerators on each machine.
        self._tabled: dict[tuple[Kind, str, tuple[int, ...]], SpeedCurve] = {}

    def speed_curve(self, job: JobProgress, placement: Placement) -> SpeedCurve:
        """Returns the attempt's speeds, scaled by its own draw of the noise."""
        kind = job.plan.request.kind
        accelerator = self._pools[placement.pool_id].pool.shape.accelerator
        parts = tuple([len(part.devices) for part in placement.parts])
        noise = self._speeds.lognormvariate(0.0, self._model.speed_noise) if self._model.speed_noise else 1.0
        if job.plan.request.plans:  # as stated, wherever it is
            planned = _scaled_segment(SpeedSegment(self._planned_speed(job.plan.request, placement)), noise)
            return lambda _: planned
        noise *= self._pace(kind, placement)
        over = self._spread_parts(job.plan.request, placement) if job.plan.request.spreads else ()
        if over:
            return lambda steps: _scaled_segment(self._truth.speed_segment_over(kind, over, steps), noise)
        if kind in self._truth.laws:

            def law(steps: float) -> SpeedSegment:
                return _scaled_segment(self._truth.speed_segment(kind, accelerator, parts, steps), noise)

            return law
        known = self._tabled.get((kind, accelerator, parts))
        if known is None:
            steady = self._truth.speed_segment(kind, accelerator, parts)
            known = self._tabled[kind, accelerator, parts] = lambda _: steady
        if noise == 1.0:
            return known
        uneven = _scaled_segment(known(0.0), noise)
        return lambda _: uneven

    def _pace(self, kind: Kind, placement: Placement) -> float:
        """Returns the speed of a gang in one pool relative to that in the closest place."""
        pool, parts = self._pools[placement.pool_id].pool, [len(part.devices) for part in placement.parts]
        if pool.topology is None or len(parts) < 2 or len(placement.by_pool) > 1:
            return 1.0
        links, there = pool.topology.links, self._machines.in_pool(pool.pool_id)
        sizes = ((each.node_id, len(each.devices)) for each in there)
        usual = links.slowest_at_best(sorted(parts, reverse=True), sizes)
        steps_per_s = self._truth.speed_segment(kind, pool.shape.accelerator, tuple(parts)).steps_per_s
        part = exchange_part(self._truth.gradient_bytes.get(kind), len(parts), usual, steps_per_s)
        return pace_over(min(1.0, links.slowest(each.node_id for each in placement.parts) / usual), part)

    def _planned_speed(self, request: JobRequest, placement: Placement) -> float:
        """Returns the speed that the attempt's plan states."""
        held: dict[str, int] = {}
        for pool_id, count in placement.by_pool.items():
            name = self._pools[pool_id].pool.shape.accelerator
            held[name] = held.get(name, 0) + count
        plan = request.plan_of(held)
        assert plan is not None, f"job {request.job_id} runs on {held}, which is none of its plans"
        return plan.steps_per_s

    def _spread_parts(self, request: JobRequest, placement: Placement) -> list[PoolPart]:
        """Returns what a job over several pools or gangs holds by pool; empty for one gang in one pool."""
        found, whole = [], 0
        for pool_id, count in placement.by_pool.items():
            pool = self._pools[pool_id].pool
            gang = request.size_on(pool)
            gangs = count // gang if count % gang == 0 else 0
            machines = tuple(split_gang(gang, request.nodes, pool.shape.accelerators))
            share = count / gang if request.shares else 0.0
            found.append(PoolPart(pool.shape.accelerator, machines, gangs, share))
            whole += gangs
        return found if len(found) > 1 or whole > 1 else []

    def shared_speed(self, attempt: SimAttempt) -> float:
        """Returns the speed beside its partner, as the table of pairs states it, or by the processor time of both."""
        assert attempt.partner is not None
        one, other = attempt.job.plan.request, attempt.partner.job.plan.request
        node, devices = attempt.parts[0]
        accelerator = self._pools[node.pool_id].pool.shape.accelerator
        speed = self._truth.colocated_speed(one.kind, other.kind, accelerator, len(devices))
        return speed or attempt.alone_rate * processor_share(one.shared, other.shared)

    def costs(self, job: JobProgress, parts: list[HeldDevices], number: int) -> AttemptCosts:
        """Returns the costs of its kind, scaled by draws, or the times that are known of the attempt."""
        costs = self._drawn_costs(job, parts)
        known = self._model.attempt_times.get((job.plan.request.job_id, number))
        if known is None:
            return costs
        return replace(
            costs,
            start_s=costs.start_s if known.start_s is None else known.start_s,
            warm_up_s=costs.warm_up_s if known.warm_up_s is None else known.warm_up_s,
            exit_s=costs.exit_s if known.exit_s is None else known.exit_s,
            first_report_s=costs.first_report_s if known.first_report_s is None else known.first_report_s,
        )

    def _drawn_costs(self, job: JobProgress, parts: list[HeldDevices]) -> AttemptCosts:
        costs, noise = self._truth.costs_of(job.plan.request.kind), self._model.cost_noise
        if costs.migrate_s:
            machines = frozenset([node.node_id for node, _ in parts])
            if job.last_nodes and machines != job.last_nodes:
                costs = replace(costs, start_s=costs.start_s + costs.migrate_s)
            job.last_nodes = machines
        if not noise:
            return costs
        starting, exiting = self._delays.lognormvariate(0.0, noise), self._delays.lognormvariate(0.0, noise)
        return replace(
            costs,
            start_s=costs.start_s * starting,
            warm_up_s=costs.warm_up_s * starting,
            exit_s=costs.exit_s * exiting,
            first_report_s=self._delays.random() * self._model.report_s if self._model.report_s < inf else None,
        )


def _scaled_segment(speed_segment: SpeedSegment, noise: float) -> SpeedSegment:
    return speed_segment if noise == 1.0 else SpeedSegment(speed_segment.steps_per_s * noise, speed_segment.until_steps)


@dataclass(frozen=True, slots=True)
class RandomFailures:
    """Rates of random cancellations and crashes."""

    #: Part of the jobs whose user cancels them, and the mean time from submission to that (exponential); jobs that have
    #: ended by then are not cancelled.
    cancelled: float = 0.0
    cancelled_after_s: float = 3600.0
    #: Part of the jobs that crash, anywhere in their work, the exit code, and how often; None: every time.
    crashing: float = 0.0
    exit_code: int = 1
    crashes: int | None = 1


def inject_random_failures(
    jobs: Iterable[SimulatedJob], failures: RandomFailures, streams: RandomStreams
) -> Iterator[SimulatedJob]:
    """Yields the jobs with random cancellations and crashes. The draws of a job do not depend on other jobs."""
    cancellations, crashes = streams.stream("cancellations"), streams.stream("crashes")
    for job in jobs:
        if failures.cancelled:
            is_cancelled, after = cancellations.random() < failures.cancelled, cancellations.expovariate(1.0)
            if is_cancelled:
                job = replace(job, cancel_at=min(job.cancel_at, job.at + after * failures.cancelled_after_s))
        if failures.crashing:
            does_crash, part = crashes.random() < failures.crashing, crashes.random()
            if does_crash:
                crash = PlannedFailure(part * job.steps, failures.exit_code, failures.crashes)
                job = replace(job, failures=(*job.failures, crash))
        yield job


@dataclass(frozen=True, slots=True)
class LengthEstimates:
    """The scheduler's knowledge of the lengths of jobs."""

    #: False: requests state no length.
    known: bool = True
    #: Standard deviation of log(stated length / the workload's length).
    spread: float = 0.0
    #: Median of stated length / the workload's length.
    factor: float = 1.0


def with_estimate_error(
    jobs: Iterable[SimulatedJob], lengths: LengthEstimates, random: Random
) -> Iterator[SimulatedJob]:
    """Yields the jobs with the lengths that the scheduler may know. One draw for each job, in their order."""
    for job in jobs:
        request = job.request
        if not lengths.known:
            yield replace(job, request=replace(request, steps=None, duration_s=None))
        elif lengths.spread or lengths.factor != 1.0:
            wrong = lengths.factor * (random.lognormvariate(0.0, lengths.spread) if lengths.spread else 1.0)
            steps = None if request.steps is None else request.steps * wrong
            duration_s = None if request.duration_s is None else request.duration_s * wrong
            yield replace(job, request=replace(request, steps=steps, duration_s=duration_s))
        else:
            yield job


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    """How a run predicts speeds that were not measured (`simulator.simulation`)."""

    #: Least seconds between two predictions; inf: there are none, but those `asked`.
    every_s: float = inf
    #: When to predict, whatever has happened, and the seconds to the answer, as in a recorded run.
    asked: tuple[tuple[float, float], ...] = ()
    #: Data sheets by accelerator type.
    sheets: Mapping[str, AcceleratorSpecs] = field(default_factory=dict)
    #: Facts about the models of kinds, announced to the scheduler at their instants.
    facts: tuple[FactsTold, ...] = ()
