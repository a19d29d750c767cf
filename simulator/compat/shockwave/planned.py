"""Shockwave's world under plan policies of ours: its rounds, its charged starts, and batches that change by its rules.

The policy is told what a job has left at the batch that it has now: nobody foresees the batches to come.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from optimizer.policy import Policy, PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import Cycle
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.mechanism import MECHANISMS
from scheduler.core.rules import RoundRules
from simulator.compat.planned import PlannedSteps, Way, staying
from simulator.compat.shockwave.batches import Batching
from simulator.compat.shockwave.charge import OVERHEAD_S
from simulator.compat.shockwave.profile import SHOCKWAVE, SHOCKWAVE_RULES, one_machine_for
from simulator.compat.shockwave.steps import ShockwaveSteps
from simulator.machines import PoolModel
from simulator.simulate import Scenario, Wiring
from simulator.truth import Costs, Truth
from walras.ids import JobId

#: A plan for every round: nobody waits for a gate.
PLANNED_RULES = replace(SHOCKWAVE_RULES, resolve_min_s=0.0)


@dataclass(frozen=True, slots=True)
class GangWays:
    """The one way to run a job: its gang, at the speed of its present batch."""

    truth: Truth
    accelerator: str

    def __call__(self, job: JobRecord) -> tuple[Way, ...]:
        count = job.request.demands[0].count
        return (Way(0, count, self.truth.steps_per_s(job.request.kind, self.accelerator, count)),)


def planned_scenario(
    pool: PoolModel, truth: Truth, policy: PolicySpec, batchings: Mapping[JobId, Batching]
) -> Scenario:
    """A run of these jobs in Shockwave's world, on one type of accelerator, whose machines count as one.

    Raises ConfigError for a job larger than the pool.
    """
    whole = one_machine_for(pool, batchings)
    ways = GangWays(truth, whole.pool.shape.accelerator)

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> PlannedSteps:
        return PlannedSteps(rules.round_s, ways, staying)

    wiring = Wiring(
        core=partial(SchedulerCore, mechanisms={**MECHANISMS, SHOCKWAVE: rounds}),
        pace=partial(ShockwaveSteps, truth=truth, batchings=batchings),
    )
    charged = replace(truth, default_costs=Costs(start_s=OVERHEAD_S))
    return Scenario((whole,), charged, policy, PLANNED_RULES, wiring=wiring)
