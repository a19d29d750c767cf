"""Shockwave's simulator as a scenario: under those of its policies that need no special solver, or under Walras's.

Our plan policies see the work that a job has left at its present batch; later batches are unknown.

Its rounds are in lockstep; starts cost steps, and jobs change their batch size. A job that has no step left after a
change of batch stays active until it has been without work for five rounds in a row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import floor

import numpy as np

from optimizer.decision import Memory
from optimizer.policy import Policy, PolicySpec
from scheduler.core.commands import BeginRound
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.round import MECHANISMS
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured, WorkRestated
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from simulator.attempts import SimAttempt, WorldParameters
from simulator.engine import Engine, RandomStreams
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel, SimulatedMachines
from simulator.simulation import Scenario, SchedulerWiring
from simulator.workloads.speed_tables import read_throughput_table
from simulator.workloads.trace import TraceJob
from simulator.workloads.trace_binding import TraceBinding, nominal_speeds
from simulator.worlds.gavel.gavel_policy import GavelAllocation, GavelPolicy, GavelProblem, gavel_solver
from simulator.worlds.gavel.gavel_rounds import GavelRounds, GavelRules
from simulator.worlds.gavel.gavel_scenario import merge_machines
from simulator.worlds.gavel.lockstep_attempts import LockstepAttempts
from simulator.worlds.gavel.program_policies import (
    GavelMaxMinFairness,
    GavelMaxSumThroughput,
    GavelMinTotalDuration,
    with_cone_solver,
)
from simulator.worlds.gavel.share_polytope import ConeSolver, solve_cone_program
from simulator.worlds.shockwave.shockwave_batches import (
    BatchRule,
    BatchSchedule,
    StepCount,
    batch_schedule_of,
    count_round,
    shockwave_alone_s,
)
from simulator.worlds.stepped_mechanism import PlannedMechanism, StepConfiguration, keep_in_place
from simulator.worlds.world_run import WorldRequest, WorldRun, only_pool, required_speeds
from walras.errors import ConfigError, UnknownPolicyError
from walras.job_request import JobId, Kind

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
        engine: Engine,
        machines: SimulatedMachines,
        model: WorldParameters,
        streams: RandomStreams,
        *,
        truth: GroundTruth,
        batchings: Mapping[JobId, BatchSchedule],
    ) -> None:
        super().__init__(engine, machines, model, streams)
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

_POLICIES: dict[str, Callable[[], GavelPolicy]] = {
    "gandiva_fair": ShockwaveGandivaFair,
    "max_min_fairness": lambda: GavelMaxMinFairness(aware=False),
    "max_sum_throughput_perf": GavelMaxSumThroughput,
    "min_total_duration": GavelMinTotalDuration,
}


def shockwave_policy_names() -> tuple[str, ...]:
    """Returns Shockwave's names of the policies that can be reproduced."""
    return tuple(_POLICIES)


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
    rules: RoundRules = SHOCKWAVE_RULES,
    solver: ConeSolver = solve_cone_program,
) -> Scenario:
    """Returns a run of Shockwave's simulator on one accelerator type, whose machines are merged into one.

    Jobs without a batching keep their batch. Raises UnknownPolicyError, and ConfigError for a job larger than the pool.
    """
    whole = one_machine_pool(pool, batchings)
    make_policy = _POLICIES.get(policy)
    if make_policy is None:
        known = ", ".join(_POLICIES)
        raise UnknownPolicyError(f"Shockwave's profile has no policy '{policy}'; known: {known}", field="policy.name")
    answering = with_cone_solver(make_policy(), solver)

    def make(spec: PolicySpec) -> GavelPolicy:
        return answering

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> GavelRounds:
        return GavelRounds(cycle, rules, GavelRules(received_s=charged_time_s))

    wiring = SchedulerWiring(
        partial(SchedulerCore, make, {**MECHANISMS, SHOCKWAVE: rounds}),
        gavel_solver(make),
        partial(ShockwaveAttempts, truth=truth, batchings=batchings),
    )
    return Scenario((whole,), truth, PolicySpec(policy), rules, wiring=wiring)


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

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> PlannedMechanism:
        return PlannedMechanism(rules.round_s, ways, keep_in_place)

    wiring = SchedulerWiring(
        core=partial(SchedulerCore, mechanisms={**MECHANISMS, SHOCKWAVE: rounds}),
        pace=partial(ShockwaveAttempts, truth=truth, batchings=batchings),
    )
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
