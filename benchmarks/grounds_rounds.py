"""The policy `walras` in Gavel's own rounds: places are decided at the beginning of a round and kept to its end.

What the plan names has the whole of its time on its type and everything else none, so Gavel's mechanism, which orders
by share over time received, carries the plan out as it stands. It solves only after something has changed, and here
without a gate. An accelerator whose job ended stays idle until the round ends.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from optimizer.decision import Memory
from optimizer.policies.walras import Walras
from simulator.simulation import Scenario
from simulator.worlds.gavel.gavel_scenario import GAVEL_RULES, GavelRules, gavel_wiring, merge_machines
from simulator.worlds.gavel.heuristic_policies import GavelAllocation, GavelPolicy, GavelProblem

_RULES = replace(GAVEL_RULES, resolve_min_s=0.0)


@dataclass(frozen=True, slots=True)
class WalrasInRounds(GavelPolicy):
    """The plan as shares of one."""

    policy: Walras = field(default_factory=Walras)

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        """All of the round on the planned type, for those who are planned."""
        plan, memory = self.policy.decide(problem, memory)
        x = np.zeros_like(problem.speed)
        type_of = np.argsort(problem.pool_row)
        columns = problem.columns
        chosen = plan.column[columns.job[columns.use_column]] == columns.use_column
        x[columns.job[columns.use_column[chosen]], type_of[columns.use_pool[chosen]]] = 1.0
        return GavelAllocation(x), memory


def in_gavel_rounds(scenario: Scenario) -> Scenario:
    """The same jobs and fleet under Gavel's rounds."""
    wiring = gavel_wiring(WalrasInRounds(), GavelRules(only_shares=True))
    pools = tuple(map(merge_machines, scenario.pools))
    return replace(scenario, pools=pools, rules=_RULES, wiring=wiring)
