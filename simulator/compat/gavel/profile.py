"""Gavel's mechanism, policies and time model as one scenario: what `simulate` needs to be Gavel's simulator."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from optimizer.policy import Policy, PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import Cycle
from scheduler.core.mechanism import MECHANISMS
from scheduler.core.rules import RoundRules
from simulator.compat.gavel.cones import ConeSolver, clarabel
from simulator.compat.gavel.fifo import Fifo, FifoPacked, FifoPerf
from simulator.compat.gavel.policy import GavelPolicy, answers
from simulator.compat.gavel.programs import (
    FinishTimeFairness,
    MaxMinFairness,
    MaxSumThroughput,
    MinTotalDuration,
    with_solver,
)
from simulator.compat.gavel.rounds import GavelRounds, GavelRules
from simulator.compat.gavel.simple import AlloX, Gandiva, Isolated
from simulator.compat.gavel.water_filling import WaterFilling
from simulator.lockstep import Lockstep
from simulator.machines import PoolModel
from simulator.simulate import Scenario, Wiring
from simulator.truth import Truth
from walras.errors import UnknownPolicyError

#: The mechanism's name in `RoundRules`, and its numbers.
GAVEL = "gavel"
GAVEL_RULES = RoundRules(mechanism=GAVEL, round_s=360.0, resolve_min_s=1920.0, idle_to_round_end=True)

#: Gavel draws each thing from a generator of its own: the order of types from this far above the seed.
_SHUFFLE = 5


#: USD per hour of one accelerator (Google, 2020).
PRICES = {"v100": 0.74, "p100": 0.43, "k80": 0.135}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A policy by Gavel's name for it, and what the mechanism does differently under it."""

    make: Callable[[int, Truth], GavelPolicy]
    shuffles: bool = False
    only_shares: bool = False
    packs: bool = False


_POLICIES: dict[str, _Entry] = {
    "isolated": _Entry(lambda seed, truth: Isolated(), shuffles=True),
    "fifo": _Entry(lambda seed, truth: Fifo(seed), shuffles=True, only_shares=True),
    "fifo_fixed": _Entry(lambda seed, truth: Fifo(seed, fixed=True), shuffles=True, only_shares=True),
    "fifo_perf": _Entry(lambda seed, truth: FifoPerf(), only_shares=True),
    "fifo_packed": _Entry(lambda seed, truth: FifoPacked(truth), only_shares=True, packs=True),
    "allox": _Entry(lambda seed, truth: AlloX()),
    "max_min_fairness": _Entry(lambda seed, truth: MaxMinFairness(aware=False), shuffles=True),
    "max_min_fairness_perf": _Entry(lambda seed, truth: MaxMinFairness()),
    "max_min_fairness_packed": _Entry(lambda seed, truth: MaxMinFairness(pairs=truth), packs=True),
    "max_min_fairness_water_filling_perf": _Entry(lambda seed, truth: WaterFilling()),
    "finish_time_fairness": _Entry(lambda seed, truth: FinishTimeFairness(aware=False), shuffles=True),
    "finish_time_fairness_perf": _Entry(lambda seed, truth: FinishTimeFairness()),
    "min_total_duration": _Entry(lambda seed, truth: MinTotalDuration(aware=False), shuffles=True),
    "min_total_duration_perf": _Entry(lambda seed, truth: MinTotalDuration()),
    "min_total_duration_packed": _Entry(lambda seed, truth: MinTotalDuration(pairs=truth), packs=True),
    "max_sum_throughput_perf": _Entry(lambda seed, truth: MaxSumThroughput()),
    "max_sum_throughput_normalized_by_cost_perf": _Entry(lambda seed, truth: MaxSumThroughput(PRICES)),
    "max_sum_throughput_normalized_by_cost_perf_SLOs": _Entry(
        lambda seed, truth: MaxSumThroughput(PRICES, keeps_deadlines=True)
    ),
    "gandiva": _Entry(lambda seed, truth: Gandiva(truth, seed), packs=True),
}


def policy_names() -> tuple[str, ...]:
    """Gavel's names of the policies that can be reproduced; `fifo_fixed` is `fifo` without its defect."""
    return tuple(_POLICIES)


def gavel_scenario(
    pools: tuple[PoolModel, ...],
    truth: Truth,
    policy: str,
    *,
    seed: int = 0,
    rules: RoundRules = GAVEL_RULES,
    solver: ConeSolver = clarabel,
) -> Scenario:
    """A run of Gavel's simulator. Which machine a job runs on never matters there: each pool becomes one machine.

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
    answering = with_solver(entry.make(seed, truth), solver)

    def make(spec: PolicySpec) -> GavelPolicy:
        return answering

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> GavelRounds:
        return GavelRounds(cycle, rules, gavel)

    wiring = Wiring(partial(SchedulerCore, make, {**MECHANISMS, GAVEL: rounds}), answers(make), Lockstep)
    return Scenario(tuple(map(as_one_machine, pools)), truth, PolicySpec(policy), rules, seed=seed, wiring=wiring)


def as_one_machine(model: PoolModel) -> PoolModel:
    """The pool's machines as one, where it never matters which of them a job runs on."""
    shape, machines = model.pool.shape, model.machines
    large = replace(
        shape,
        accelerators=shape.accelerators * machines,
        cpus=shape.cpus * machines,
        memory_bytes=shape.memory_bytes * machines,
    )
    usd_per_h = model.pool.usd_per_h * machines
    return replace(model, pool=replace(model.pool, shape=large, usd_per_h=usd_per_h), machines=1)
