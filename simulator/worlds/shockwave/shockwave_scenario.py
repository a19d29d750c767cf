"""Shockwave's simulator as a scenario: under those of its policies that need no special solver, or under Walras's.

Its rounds are in lockstep; starts cost steps, and jobs change their batch size. A job that has no step left after a
change of batch stays active until it has been without work for five rounds in a row. Our plan policies see the work
that a job has left at its present batch; later batches are unknown.

Two rules change the batch size. Accordion uses the largest batch, except in the critical epochs of its network. The
gradient noise scale doubles the batch at each of the profiled epochs. A job requests a change at the end of a round in
which it ran, and makes it at the end of the next one. Steps are counted at the current batch, so a change converts the
counter.

Shockwave reports finish-time fairness as completion time relative to that on a private share of the cluster:

    rho = JCT / (time alone x max(1, jobs / accelerators))

The time alone uses the profiled batch of each epoch, which can differ from the batch that the job has in the run.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import floor

import numpy as np

from optimizer.decision import Memory
from optimizer.policy import PolicySpec
from scheduler.core.commands import BeginRound
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured, WorkRestated
from scheduler.core.state.ledger import JobRecord
from scheduler.world.attempts import AttemptCosts, SimAttempt, WorldParameters
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import PoolModel, SimulatedMachines
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario
from simulator.workloads.trace_binding import TraceBinding, nominal_speeds, read_throughput_table
from simulator.workloads.trace_source import TraceJob, batch_in_kind
from simulator.worlds.gavel.gavel_scenario import GavelRules, LockstepAttempts, gavel_wiring, merge_machines
from simulator.worlds.gavel.heuristic_policies import GavelAllocation, GavelPolicy, GavelProblem
from simulator.worlds.gavel.program_policies import (
    ConeSolver,
    GavelMaxMinFairness,
    GavelMaxSumThroughput,
    GavelMinTotalDuration,
    solve_cone_program,
    with_cone_solver,
)
from simulator.worlds.stepped_mechanism import StepConfiguration, keep_in_place, plan_wiring
from simulator.worlds.world_registry import WorldRequest, WorldRun, only_pool, required_speeds
from walras.errors import ConfigError
from walras.job_request import JobId, Kind


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


#: Seconds of a round that a job loses if it did not run in the round before...
OVERHEAD_S = 20.0
#: ...and runs for longer than this.
SPARED_S = 115.0


def charged_time_s(ran_s: float, started: bool) -> float:
    """Returns the part of a job's run time in a round (seconds) that counts."""
    return ran_s - OVERHEAD_S if started and ran_s > SPARED_S else ran_s


def charged_steps(steps: float, ran_s: float, started: bool) -> float:
    """Returns the whole steps that count of those made in `ran_s` seconds."""
    if not (started and ran_s > SPARED_S):
        return steps
    return float(floor(steps * (ran_s - OVERHEAD_S) / ran_s))


#: A job is removed after this many rounds in a row without work.
EMPTY_MAX = 5


class ShockwaveAttempts(LockstepAttempts):
    """Simulates attempts in rounds; the steps of a new attempt count only in part."""

    def __init__(
        self,
        machines: SimulatedMachines,
        model: WorldParameters,
        streams: RandomStreams,
        *,
        truth: GroundTruth,
        batchings: Mapping[JobId, BatchSchedule],
    ) -> None:
        super().__init__(machines, model, streams)
        self._truth = truth
        self._batchings = batchings
        self._counts: dict[JobId, StepCount] = {}
        #: Number of consecutive rounds in which a job had no work.
        self._empty: dict[JobId, int] = {}
        #: Jobs that ran in the round before this one; None in the first round.
        self._ran: set[JobId] | None = None

    def _begin_round(self, now: float, command: BeginRound) -> None:
        self._ran = set(self._steps) if self._steps else None
        super()._begin_round(now, command)

    def _round_of(self, now: float, attempt: SimAttempt) -> tuple[float, float]:
        left = attempt.job.plan.steps - attempt.job.steps
        if left <= 0:
            return 0.0, now
        steps, stops_at = super()._round_of(now, attempt)
        started = self._ran is not None and attempt.job_id not in self._ran
        return charged_steps(steps, stops_at - now, started), stops_at

    def _completes(self, attempt: SimAttempt, steps: float) -> bool:
        job_id = attempt.job_id
        if attempt.job.steps < attempt.job.plan.steps:
            return super()._completes(attempt, steps)
        self._empty[job_id] = self._empty.get(job_id, 0) + 1
        return self._empty[job_id] == EMPTY_MAX

    def _completed(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        self._forget(attempt)
        return super()._completed(at, attempt)

    def _count_round(self, at: float, attempt: SimAttempt, steps: float) -> Iterable[Event]:
        super()._count_round(at, attempt, steps)
        job_id = attempt.job_id
        batching = self._batchings.get(job_id)
        if batching is None or job_id in self._empty:
            return ()
        count = self._counts.get(job_id) or StepCount(batching.original, 0, int(attempt.job.plan.steps))
        accelerator = self._machines.pools[attempt.parts[0][0].pool_id].pool.shape.accelerator

        def key(kind: Kind) -> SpeedKey:
            return SpeedKey(kind, accelerator, batching.gang)

        now = count_round(batching, count, int(steps), lambda kind: key(kind) in self._truth.speeds)
        self._counts[job_id] = now
        if now.batch == count.batch:
            return ()
        kind = batching.kind(now.batch)
        speed = self._truth.speeds[key(kind)]
        self._restate(attempt, kind, speed, now)
        return (
            ThroughputMeasured(at, kind, accelerator, batching.gang, speed),
            WorkRestated(at, job_id, kind, now.total, attempt.job.steps),
        )

    def _restate(self, attempt: SimAttempt, kind: Kind, speed: float, count: StepCount) -> None:
        """Converts the job's counters to the steps of its new batch size."""
        job = attempt.job
        attempt.rate = attempt.alone_rate = speed
        request = replace(job.plan.request, kind=kind, steps=float(count.total))
        job.plan = replace(job.plan, request=request, steps=float(count.total))
        steps = float(min(count.steps, count.total))
        job.worked_steps += steps - job.steps
        job.steps = job.saved_steps = steps

    def _forget(self, attempt: SimAttempt) -> None:
        job_id = attempt.job_id
        self._counts.pop(job_id, None)
        self._empty.pop(job_id, None)


@dataclass(frozen=True, slots=True)
class ShockwaveGandivaFair(GavelPolicy):
    """Gives every job (accelerators / jobs) of the time: whatever its gang, as in Shockwave's code."""

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        share = min(1.0, float(problem.total.sum()) / len(problem.jobs))
        return GavelAllocation(np.where(problem.speed > 0, share, 0.0)), None


#: The mechanism's name in `RoundRules`, and its parameters.
SHOCKWAVE = "shockwave-nsdi23"
SHOCKWAVE_RULES = RoundRules(mechanism=SHOCKWAVE, round_s=120.0, resolve_min_s=1000.0, idle_to_round_end=True)

#: By Shockwave's names, the policies that can be reproduced.
SHOCKWAVE_POLICIES: dict[str, Callable[[], GavelPolicy]] = {
    "gandiva_fair": ShockwaveGandivaFair,
    "max_min_fairness": lambda: GavelMaxMinFairness(aware=False),
    "max_sum_throughput_perf": GavelMaxSumThroughput,
    "min_total_duration": GavelMinTotalDuration,
}


def batch_schedules(rows: Iterable[TraceJob]) -> dict[JobId, BatchSchedule]:
    """Returns the batch schedule of every job of a trace, by the numbers that `Placing` gives the jobs.

    Raises ConfigError naming the line of a job that the profile does not cover.
    """
    found: dict[JobId, BatchSchedule] = {}
    for number, row in enumerate(rows, start=1):
        try:
            found[JobId(number)] = batch_schedule_of(row.kind, row.gang, row.batch_rule or BatchRule.STATIC)
        except ConfigError as error:
            raise ConfigError(f"line {row.line}: job {row.name!r}: {error}", field=error.field, fix=error.fix) from None
    return found


def one_machine_pool(pool: PoolModel, batchings: Mapping[JobId, BatchSchedule]) -> PoolModel:
    """Merges the pool's machines into one. Raises ConfigError for a job that is larger."""
    whole = merge_machines(pool)
    for job_id, batching in batchings.items():
        if batching.gang > whole.pool.shape.accelerators:
            raise ConfigError(
                f"job {job_id} wants {batching.gang} accelerators, {whole.pool.shape.accelerators} are there",
                field="scale_factor",
                fix="choose a larger cluster",
            )
    return whole


def shockwave_scenario(
    pool: PoolModel,
    truth: GroundTruth,
    policy: str,
    batchings: Mapping[JobId, BatchSchedule],
    *,
    solver: ConeSolver = solve_cone_program,
) -> Scenario:
    """Returns a run of Shockwave's simulator on one accelerator type, whose machines are merged into one.

    `policy` is one of `SHOCKWAVE_POLICIES`. Jobs without a batching keep their batch. Raises ConfigError for a job
    larger than the pool.
    """
    whole = one_machine_pool(pool, batchings)
    wiring = gavel_wiring(
        with_cone_solver(SHOCKWAVE_POLICIES[policy](), solver),
        GavelRules(received_s=charged_time_s),
        SHOCKWAVE,
        partial(ShockwaveAttempts, truth=truth, batchings=batchings),
    )
    return Scenario((whole,), truth, PolicySpec(policy), SHOCKWAVE_RULES, wiring=wiring)


#: A plan is made for every round, so no solve waits for the minimum interval.
SHOCKWAVE_PLAN_RULES = replace(SHOCKWAVE_RULES, resolve_min_s=0.0)


@dataclass(frozen=True, slots=True)
class FixedGangConfigurations:
    """Returns the only configuration of a job: its gang, at the speed of its present batch."""

    truth: GroundTruth
    accelerator: str

    def __call__(self, job: JobRecord) -> tuple[StepConfiguration, ...]:
        count = job.request.demands[0].count
        return (StepConfiguration(0, count, self.truth.steps_per_s(job.request.kind, self.accelerator, count)),)


def shockwave_plan_scenario(
    pool: PoolModel, truth: GroundTruth, policy: PolicySpec, batchings: Mapping[JobId, BatchSchedule]
) -> Scenario:
    """Returns a run of these jobs in Shockwave's world, on one accelerator type, whose machines are merged into one.

    Raises ConfigError for a job larger than the pool.
    """
    whole = one_machine_pool(pool, batchings)
    ways = FixedGangConfigurations(truth, whole.pool.shape.accelerator)
    pace = partial(ShockwaveAttempts, truth=truth, batchings=batchings)
    wiring = plan_wiring(SHOCKWAVE, ways, keep_in_place, pace)
    charged = replace(truth, default_costs=AttemptCosts(start_s=OVERHEAD_S))
    return Scenario((whole,), charged, policy, SHOCKWAVE_PLAN_RULES, wiring=wiring)


def shockwave_world_run(request: WorldRequest) -> WorldRun:
    """Makes the run. Raises ConfigError for a cluster, speeds or a trace that Shockwave's simulator cannot have."""
    pool = only_pool(request)
    accelerator = pool.pool.shape.accelerator
    truth = GroundTruth(read_throughput_table(required_speeds(request, "a throughput table")))
    trace = request.trace
    batchings = batch_schedules(trace.jobs)
    binding = TraceBinding(nominal_speeds(request.cluster), table=truth.speeds, source=trace.source)
    jobs = list(binding.jobs(trace.jobs))
    alone_s = {
        job.request.job_id: shockwave_alone_s(batchings[job.request.job_id], int(job.steps), truth, accelerator)
        for job in jobs
    }
    if request.is_own:
        return WorldRun(jobs, shockwave_scenario(pool, truth, request.policy.name, batchings), alone_s)
    return WorldRun(jobs, shockwave_plan_scenario(pool, truth, request.policy, batchings), alone_s)
