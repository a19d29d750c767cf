"""Gavel's simulator as a scenario: its policies by name, its round mechanism and its time model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from optimizer.policy import Policy, PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.round import MECHANISMS
from scheduler.core.rules import RoundRules
from scheduler.core.state.working_set import Cycle
from simulator.experiment import speeds_path_of, trace_experiment
from simulator.ground_truth import GroundTruth
from simulator.machines import PoolModel
from simulator.simulation import Scenario, SchedulerWiring
from simulator.workloads.speed_tables import read_pair_speeds
from simulator.worlds.gavel.gavel_policy import GavelPolicy, gavel_solver
from simulator.worlds.gavel.gavel_rounds import TYPE_ORDER, GavelRounds, GavelRules
from simulator.worlds.gavel.heuristic_policies import (
    GavelAlloX,
    GavelFifo,
    GavelFifoPacked,
    GavelFifoPerf,
    GavelGandiva,
    GavelIsolated,
)
from simulator.worlds.gavel.lockstep_attempts import LockstepAttempts
from simulator.worlds.gavel.program_policies import (
    GavelFinishTimeFairness,
    GavelMaxMinFairness,
    GavelMaxSumThroughput,
    GavelMinTotalDuration,
    GavelWaterFilling,
    with_cone_solver,
)
from simulator.worlds.gavel.share_polytope import ConeSolver, solve_cone_program
from simulator.worlds.world_run import WorldRequest, WorldRun, owned_pools
from walras.errors import ConfigError, UnknownPolicyError

#: The mechanism's name in `RoundRules`, and its parameters. Jobs save at each round's end, so no interval is planned.
GAVEL = "gavel"
GAVEL_RULES = RoundRules(
    mechanism=GAVEL, plan_checkpoints=False, round_s=360.0, resolve_min_s=1920.0, idle_to_round_end=True
)

#: Gavel has one random generator per purpose; the one for the order of types is seeded with the seed plus this.
_SHUFFLE = 5


#: USD per hour of one accelerator (Google, 2020).
GAVEL_USD_PER_H = {"v100": 0.74, "p100": 0.43, "k80": 0.135}


@dataclass(frozen=True, slots=True)
class _PolicyEntry:
    """A policy under Gavel's name, and the rules of the mechanism under it."""

    make: Callable[[int, GroundTruth], GavelPolicy]
    shuffles: bool = False
    only_shares: bool = False
    packs: bool = False
    #: Whether it gives each job one accelerator.
    no_gangs: bool = False


_POLICIES: dict[str, _PolicyEntry] = {
    "isolated": _PolicyEntry(lambda seed, truth: GavelIsolated(), shuffles=True),
    "fifo": _PolicyEntry(lambda seed, truth: GavelFifo(seed), shuffles=True, only_shares=True),
    "fifo_fixed": _PolicyEntry(lambda seed, truth: GavelFifo(seed, fixed=True), shuffles=True, only_shares=True),
    "fifo_perf": _PolicyEntry(lambda seed, truth: GavelFifoPerf(), only_shares=True),
    "fifo_packed": _PolicyEntry(lambda seed, truth: GavelFifoPacked(truth), only_shares=True, packs=True),
    "allox": _PolicyEntry(lambda seed, truth: GavelAlloX(), no_gangs=True),
    "max_min_fairness": _PolicyEntry(lambda seed, truth: GavelMaxMinFairness(aware=False), shuffles=True),
    "max_min_fairness_perf": _PolicyEntry(lambda seed, truth: GavelMaxMinFairness()),
    "max_min_fairness_packed": _PolicyEntry(lambda seed, truth: GavelMaxMinFairness(pairs=truth), packs=True),
    "max_min_fairness_water_filling_perf": _PolicyEntry(lambda seed, truth: GavelWaterFilling()),
    "finish_time_fairness": _PolicyEntry(lambda seed, truth: GavelFinishTimeFairness(aware=False), shuffles=True),
    "finish_time_fairness_perf": _PolicyEntry(lambda seed, truth: GavelFinishTimeFairness()),
    "min_total_duration": _PolicyEntry(lambda seed, truth: GavelMinTotalDuration(aware=False), shuffles=True),
    "min_total_duration_perf": _PolicyEntry(lambda seed, truth: GavelMinTotalDuration()),
    "min_total_duration_packed": _PolicyEntry(lambda seed, truth: GavelMinTotalDuration(pairs=truth), packs=True),
    "max_sum_throughput_perf": _PolicyEntry(lambda seed, truth: GavelMaxSumThroughput()),
    "max_sum_throughput_normalized_by_cost_perf": _PolicyEntry(
        lambda seed, truth: GavelMaxSumThroughput(GAVEL_USD_PER_H)
    ),
    "max_sum_throughput_normalized_by_cost_perf_SLOs": _PolicyEntry(
        lambda seed, truth: GavelMaxSumThroughput(GAVEL_USD_PER_H, keeps_deadlines=True)
    ),
    "gandiva": _PolicyEntry(lambda seed, truth: GavelGandiva(truth, seed), packs=True),
}


def gavel_policy_names() -> tuple[str, ...]:
    """Returns Gavel's names of the policies that can be reproduced; `fifo_fixed` is `fifo` without its defect."""
    return tuple(_POLICIES)


def gavel_scenario(
    pools: tuple[PoolModel, ...],
    truth: GroundTruth,
    policy: str,
    *,
    seed: int = 0,
    rules: RoundRules = GAVEL_RULES,
    solver: ConeSolver = solve_cone_program,
) -> Scenario:
    """Returns a run of Gavel's simulator. Each pool becomes one machine, because Gavel does not model which machine
    runs a job.

    Raises UnknownPolicyError.
    """
    entry = _POLICIES.get(policy)
    if entry is None:
        raise UnknownPolicyError(f"Gavel has no policy '{policy}'; known: {', '.join(_POLICIES)}", field="policy.name")
    gavel = GavelRules(
        shuffle_seed=seed + _SHUFFLE if entry.shuffles else None,
        only_shares=entry.only_shares,
        pairs=truth if entry.packs else None,
    )
    answering = with_cone_solver(entry.make(seed, truth), solver)

    def make(spec: PolicySpec) -> GavelPolicy:
        return answering

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> GavelRounds:
        return GavelRounds(cycle, rules, gavel)

    wiring = SchedulerWiring(
        partial(SchedulerCore, make, {**MECHANISMS, GAVEL: rounds}), gavel_solver(make), LockstepAttempts
    )
    return Scenario(tuple(map(merge_machines, pools)), truth, PolicySpec(policy), rules, seed=seed, wiring=wiring)


def merge_machines(model: PoolModel) -> PoolModel:
    """Merges the pool's machines into one, for worlds that do not model which of them runs a job."""
    shape, machines = model.pool.shape, model.machines
    large = replace(
        shape,
        accelerators=shape.accelerators * machines,
        cpus=shape.cpus * machines,
        memory_bytes=shape.memory_bytes * machines,
    )
    usd_per_h = model.pool.usd_per_h * machines
    return replace(model, pool=replace(model.pool, shape=large, usd_per_h=usd_per_h), machines=1)


def gavel_world_run(request: WorldRequest) -> WorldRun:
    """Makes the run. Raises ConfigError for a cluster, speeds or a gang that Gavel's simulator cannot have."""
    pools = owned_pools(request)
    _reject_gangs(request)
    types = [model.pool.shape.accelerator for model in pools]
    if len(set(types)) < len(types) or not set(types) <= set(TYPE_ORDER):
        raise ConfigError(
            f"world 'gavel' has one pool each of {', '.join(TYPE_ORDER)}, the cluster has {', '.join(types)}",
            field="cluster",
            fix="choose a cluster such as gavel-12-12-12",
        )
    experiment = trace_experiment(request.trace, request.cluster, request.speeds)
    if experiment.truth.laws:
        raise ConfigError(
            "world 'gavel' has speeds that never change, and --speeds gives laws",
            field="speeds",
            fix="give a throughput table",
        )
    table = speeds_path_of(request.trace, request.speeds)
    truth = experiment.truth if table is None else replace(experiment.truth, pairs=read_pair_speeds(table, types))
    return WorldRun(experiment.jobs, gavel_scenario(pools, truth, request.policy.name, seed=request.seed))


def _reject_gangs(request: WorldRequest) -> None:
    """Raises ConfigError for the first gang under a policy that knows none."""
    if not _POLICIES[request.policy.name].no_gangs:
        return
    gang = next((row for row in request.trace.jobs if row.gang > 1), None)
    if gang is not None:
        raise ConfigError(
            f"line {gang.line}: job {gang.name!r} is a gang of {gang.gang},"
            f" which policy {request.policy.name!r} of world {request.world!r} does not know",
            field="policy",
            fix="choose another policy",
        )
