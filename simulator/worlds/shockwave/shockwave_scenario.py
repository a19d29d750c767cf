"""Shockwave's simulator as a scenario: under those of its policies that need no special solver, or under Walras's.

Our plan policies see the work that a job has left at its present batch; later batches are unknown.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from optimizer.decision import Memory
from optimizer.policy import Policy, PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.round import MECHANISMS
from scheduler.core.rules import RoundRules
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from simulator.ground_truth import AttemptCosts, GroundTruth
from simulator.machines import PoolModel
from simulator.simulation import Scenario, SchedulerWiring
from simulator.workloads.speed_tables import read_throughput_table
from simulator.workloads.trace import TraceJob
from simulator.workloads.trace_binding import TraceBinding, nominal_speeds
from simulator.worlds.gavel.gavel_policy import GavelAllocation, GavelPolicy, GavelProblem, gavel_solver
from simulator.worlds.gavel.gavel_rounds import GavelRounds, GavelRules
from simulator.worlds.gavel.gavel_scenario import merge_machines
from simulator.worlds.gavel.program_policies import (
    GavelMaxMinFairness,
    GavelMaxSumThroughput,
    GavelMinTotalDuration,
    with_cone_solver,
)
from simulator.worlds.gavel.share_polytope import ConeSolver, solve_cone_program
from simulator.worlds.shockwave.shockwave_attempts import OVERHEAD_S, ShockwaveAttempts, charged_time_s
from simulator.worlds.shockwave.shockwave_batches import BatchRule, BatchSchedule, batch_schedule_of, shockwave_alone_s
from simulator.worlds.stepped_mechanism import PlannedMechanism, StepConfiguration, keep_in_place
from simulator.worlds.world_run import WorldRequest, WorldRun, only_pool, required_speeds
from walras.errors import ConfigError, UnknownPolicyError
from walras.job_request import JobId


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
