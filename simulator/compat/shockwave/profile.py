"""`shockwave-nsdi23`: Shockwave's simulator as one scenario, with the policies that need no solver of its own."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from optimizer.policy import Policy, PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import Cycle
from scheduler.core.mechanism import MECHANISMS
from scheduler.core.rules import RoundRules
from simulator.compat.gavel.cones import ConeSolver, clarabel
from simulator.compat.gavel.policy import GavelPolicy, answers
from simulator.compat.gavel.profile import as_one_machine
from simulator.compat.gavel.programs import MaxMinFairness, MaxSumThroughput, MinTotalDuration, with_solver
from simulator.compat.gavel.rounds import GavelRounds, GavelRules
from simulator.compat.shockwave.batches import Batching, BatchRule, batching_of
from simulator.compat.shockwave.charge import received_s
from simulator.compat.shockwave.policy import GandivaFair
from simulator.compat.shockwave.steps import ShockwaveSteps
from simulator.machines import PoolModel
from simulator.simulate import Scenario, Wiring
from simulator.truth import Truth
from simulator.workloads.job import TraceJob
from walras.errors import ConfigError, UnknownPolicyError
from walras.ids import JobId

#: The mechanism's name in `RoundRules`, and its numbers.
SHOCKWAVE = "shockwave-nsdi23"
SHOCKWAVE_RULES = RoundRules(mechanism=SHOCKWAVE, round_s=120.0, resolve_min_s=1000.0, idle_to_round_end=True)

_POLICIES: dict[str, Callable[[], GavelPolicy]] = {
    "gandiva_fair": GandivaFair,
    "max_min_fairness": lambda: MaxMinFairness(aware=False),
    "max_sum_throughput_perf": MaxSumThroughput,
    "min_total_duration": MinTotalDuration,
}


def policy_names() -> tuple[str, ...]:
    """Shockwave's names of the policies that can be reproduced."""
    return tuple(_POLICIES)


def batchings_of(rows: Iterable[TraceJob]) -> dict[JobId, Batching]:
    """How the batch size of every job of a trace lives, by the numbers that `Placing` gives them.

    Raises ConfigError naming the line of a job that the profile cannot have.
    """
    found: dict[JobId, Batching] = {}
    for number, row in enumerate(rows, start=1):
        try:
            found[JobId(number)] = batching_of(row.kind, row.gang, row.batch_rule or BatchRule.STATIC)
        except ConfigError as error:
            raise ConfigError(f"line {row.line}: job {row.name!r}: {error}", field=error.field, fix=error.fix) from None
    return found


def one_machine_for(pool: PoolModel, batchings: Mapping[JobId, Batching]) -> PoolModel:
    """The pool's machines as one. Raises ConfigError for a job larger than that."""
    whole = as_one_machine(pool)
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
    truth: Truth,
    policy: str,
    batchings: Mapping[JobId, Batching],
    *,
    rules: RoundRules = SHOCKWAVE_RULES,
    solver: ConeSolver = clarabel,
) -> Scenario:
    """A run of Shockwave's simulator on one type of accelerator, whose machines count as one.

    Jobs without a batching keep their batch. Raises UnknownPolicyError, and ConfigError for a job larger than the pool.
    """
    whole = one_machine_for(pool, batchings)
    make_policy = _POLICIES.get(policy)
    if make_policy is None:
        known = ", ".join(_POLICIES)
        raise UnknownPolicyError(f"Shockwave's profile has no policy '{policy}'; known: {known}", field="policy.name")
    answering = with_solver(make_policy(), solver)

    def make(spec: PolicySpec) -> GavelPolicy:
        return answering

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> GavelRounds:
        return GavelRounds(cycle, rules, GavelRules(received_s=received_s))

    wiring = Wiring(
        partial(SchedulerCore, make, {**MECHANISMS, SHOCKWAVE: rounds}),
        answers(make),
        partial(ShockwaveSteps, truth=truth, batchings=batchings),
    )
    return Scenario((whole,), truth, PolicySpec(policy), rules, wiring=wiring)
