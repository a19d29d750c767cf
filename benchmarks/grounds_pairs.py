"""The policy `makespan` with space sharing, its shares carried out by Gavel's rounds: our scheduler starts no pairs.

What two jobs keep of their speeds together comes from the throughput table, and so do the rounds' own rows of pairs.
"""

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np

from benchmarks.grounds_loads import speeds
from optimizer.decision import Memory
from optimizer.policies.finish_times import Makespan
from optimizer.problem import Pairs
from simulator.ground_truth import GroundTruth
from simulator.simulation import Scenario
from simulator.workloads.trace_binding import read_pair_speeds
from simulator.worlds.gavel.gavel_scenario import GAVEL_RULES, GavelRules, gavel_wiring, merge_machines
from simulator.worlds.gavel.heuristic_policies import GavelAllocation, GavelPolicy, GavelProblem

_RULES = replace(GAVEL_RULES, resolve_min_s=0.0)


@dataclass(frozen=True, slots=True)
class MakespanOfPairs(GavelPolicy):
    """Shares of jobs alone and two by two."""

    truth: GroundTruth

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        """The shares, by type."""
        together = self._pairs(problem)
        shares, _ = Makespan(packed=True).decide(replace(problem, pairs=together), None)
        type_of = np.argsort(problem.pool_row)
        columns, packed = problem.columns, shares.packed
        x = np.zeros_like(problem.speed)
        x[columns.job, type_of[columns.use_pool]] = shares.x
        on = type_of[together.pool[packed.pair]]
        one, two = np.minimum(packed.first, packed.second), np.maximum(packed.first, packed.second)
        pairs = zip(one.tolist(), two.tolist(), on.tolist(), packed.share.tolist(), strict=True)
        return GavelAllocation(x, tuple(pairs)), None

    def _pairs(self, problem: GavelProblem) -> Pairs:
        """Which kinds of those present go together, kinds of other gangs being other kinds."""
        told = list(zip(problem.kind, problem.count.tolist(), strict=True))
        kinds = sorted(set(told))
        row_of = {kind: row for row, kind in enumerate(kinds)}
        listed: list[tuple[int, int, int, float, float]] = []
        for pool, accelerator in enumerate(problem.pools.accelerator):
            alone = {kind: problem.speed[told.index(kind), np.argsort(problem.pool_row)[pool]] for kind in kinds}
            for a, b in combinations_with_replacement(kinds, 2):
                if a[1] != b[1] or min(alone[a], alone[b]) <= 0:
                    continue
                # A table may say that company makes a job faster; it is held to be as fast as alone.
                one = self.truth.colocated_speed(a[0], b[0], accelerator, a[1]) / alone[a]
                two = self.truth.colocated_speed(b[0], a[0], accelerator, a[1]) / alone[b]
                if min(one, two) > 0:
                    listed.append((row_of[a], row_of[b], pool, min(one, 1.0), min(two, 1.0)))
        kind_of = np.array([row_of[kind] for kind in told])
        if not listed:
            none = np.zeros(0, dtype=np.int64)
            return Pairs(kind_of, none, none, none, np.zeros(0), np.zeros(0))
        first, second, at, one_factor, two_factor = (np.array(part) for part in zip(*listed, strict=True))
        return Pairs(kind_of, first, second, at, one_factor, two_factor)


def in_pairs(scenario: Scenario) -> Scenario:
    """The same jobs and fleet in Gavel's rounds, without its gate, at the speeds that the table has for pairs."""
    accelerators = {model.pool.shape.accelerator for model in scenario.pools}
    truth = replace(scenario.truth, pairs=read_pair_speeds(speeds(), accelerators))
    wiring = gavel_wiring(MakespanOfPairs(truth), GavelRules(pairs=truth))
    pools = tuple(map(merge_machines, scenario.pools))
    return replace(scenario, pools=pools, truth=truth, rules=_RULES, wiring=wiring)
