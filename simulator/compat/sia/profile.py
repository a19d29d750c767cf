"""`sia-sosp23`: Sia's simulator with its Gavel as one scenario: what `simulate` needs to be it.

Sia's own policy is not among what is reproduced: its program has many equal optima, which no two solvers choose alike.
"""

from functools import partial

from optimizer.policy import Policy, PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import Cycle
from scheduler.core.mechanism import MECHANISMS
from scheduler.core.rules import RoundRules
from simulator.compat.gavel.cones import ConeSolver, clarabel
from simulator.compat.gavel.policy import GavelPolicy, answers
from simulator.compat.sia.pace import SiaSteps
from simulator.compat.sia.policy import SiaGavel
from simulator.compat.sia.rounds import SiaRounds
from simulator.compat.sia.workload import SIA_POOLS, SiaWorkload
from simulator.machines import PoolModel
from simulator.simulate import Scenario, Wiring
from simulator.truth import Costs, SpeedKey, Truth
from walras.errors import UnknownPolicyError

#: The mechanism's name in `RoundRules`, and its numbers.
SIA = "sia-sosp23"
SIA_GAVEL_RULES = RoundRules(mechanism=SIA, round_s=360.0, resolve_min_s=0.0, idle_to_round_end=True)
_GAVEL = "gavel"


def policy_names() -> tuple[str, ...]:
    """The policies of Sia's simulator that can be reproduced."""
    return (_GAVEL,)


def sia_scenario(
    workload: SiaWorkload,
    policy: str = _GAVEL,
    *,
    pools: tuple[PoolModel, ...] = SIA_POOLS,
    solver: ConeSolver = clarabel,
) -> Scenario:
    """A run of Sia's simulator over these jobs, on the pools they were made for.

    Raises UnknownPolicyError.
    """
    if policy != _GAVEL:
        raise UnknownPolicyError(f"'{policy}' of Sia's simulator is not known; known: {_GAVEL}", field="policy.name")
    names = {job.request.job_id: job.name for job in workload.jobs}

    def make(spec: PolicySpec) -> GavelPolicy:
        return SiaGavel(names, solver)

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> SiaRounds:
        return SiaRounds(rules)

    pace = partial(SiaSteps, trainings=workload.trainings, step_s=SIA_GAVEL_RULES.round_s)
    wiring = Wiring(partial(SchedulerCore, make, {**MECHANISMS, SIA: rounds}), answers(make), pace)
    costs = {kind: Costs(start_s=restart_s) for kind, restart_s in workload.restart_s.items()}
    return Scenario(pools, Truth(_speeds(workload, pools), costs), PolicySpec(policy), SIA_GAVEL_RULES, wiring=wiring)


def _speeds(workload: SiaWorkload, pools: tuple[PoolModel, ...]) -> dict[SpeedKey, float]:
    """What the scheduler is told of a kind: updates per second on as few machines as possible.

    How fast a job gets on at a time and place is the time model's matter. Raises ConfigError (OutsideTable) where
    nobody knows.
    """
    ways = {(job.request.kind, job.request.demands[0].count) for job in workload.jobs}
    speeds: dict[SpeedKey, float] = {}
    for kind, gang in sorted(ways):
        for model in pools:
            accelerator, size = model.pool.shape.accelerator, model.pool.shape.accelerators
            training = workload.trainings[kind][accelerator]
            speeds[SpeedKey(kind, accelerator, gang)] = training.updates_per_s(gang, size * model.machines, size)
    return speeds
