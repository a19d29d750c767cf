"""A decision with space sharing, in stages: the objective first, then the largest sum of utilities that it leaves.

The counterpart of `optimizer.staged.stages.in_stages` where jobs may be packed. A policy makes its classes with the
jobs' kinds among the keys (`optimizer.packing.blocks.sharing_keys`) and states the same objective as without packing.
Every stage carries the prices of utility and of time beside those of the pools: with pairs, those alone prove nothing.
"""

from dataclasses import replace

import numpy as np

from optimizer.arrays.owners import best_by, sum_by
from optimizer.decision import Stage, Status
from optimizer.market.market import Market
from optimizer.market.objective import Level, Solution, Total
from optimizer.market.reached import FULL
from optimizer.packing.blocks import Block, blocks_of, spell
from optimizer.packing.generate import PackedSolution, Packer
from optimizer.packing.spread import pairs_of
from optimizer.problem import FloatArray
from optimizer.staged.quoting import scarce
from optimizer.staged.told import Asked, Staged, rising, told

#: Floors are held with this slack, so that rounding cannot make the next program infeasible.
_SLACK = 1e-9
#: A stage that takes more than this part of what it was to keep is not used.
_KEPT = 1e-7


def packed_in_stages(asked: Asked, objective: Level | Total, *, leftover: bool = True) -> Staged | None:
    """The objective's optimum, then (if `leftover`) the largest sum of utilities that takes nothing of it from anybody.

    None where nothing may be packed, or no solver answers: the decision is then the one without packing.

    Args:
        asked: the problem and its classes, each of one kind.
        objective: of the first stage; its worth is the fair-share utility if something is to follow.
        leftover: False: the first stage's shares as they are.
    """
    market = asked.classes.market
    blocks = blocks_of(asked.problem, asked.classes, asked.classes.classes.class_column >= 0)
    if not blocks or (isinstance(objective, Level) and not rising(market, objective).any()):
        return None
    packer = Packer(market, blocks)
    found = packer.solve(objective)
    if found.status not in (Status.OPTIMAL, Status.WORK_LIMIT) or not np.isfinite(found.objective):
        return None
    stages = [_told(asked, objective, found)]
    shown = found
    if leftover and isinstance(objective, Level):
        kept = np.minimum(objective.targets.at(found.objective)[0], _utility(market, blocks, objective.worth, found))
        if _room(market, objective, kept, found.duals.prices):
            total = Total(objective.worth, objective.worth, kept * (1 - _SLACK))
            more = packer.solve(total)
            if np.all(_utility(market, blocks, objective.worth, more) >= kept * (1 - _KEPT)):
                shown = more
                stages.append(_told(asked, total, more))
    packed = pairs_of(asked.classes.classes, blocks, shown.sides, shown.beside)
    x = asked.classes.to_columns(shown.x)
    return Staged(asked, found.status, found.path, x, tuple(stages), packed)


def _told(asked: Asked, objective: Level | Total, found: PackedSolution) -> Stage:
    """A solution over classes as a stage over jobs."""
    duals = found.duals
    alone = Solution(found.status, found.x, duals.prices, found.objective, found.bound, found.path, found.work)
    stage = told(asked.classes, alone, objective)
    to_jobs = asked.classes.to_jobs
    return replace(stage, multiplier=to_jobs(duals.multiplier), time=to_jobs(duals.time))


def _utility(market: Market, blocks: tuple[Block, ...], worth: FloatArray, found: PackedSolution) -> FloatArray:
    """What the shares give one member of each class (k,)."""
    sides = spell(found.sides, blocks)
    beside = sum_by(sides.member, sides.keeps * worth[sides.column] * found.beside, market.classes)
    return sum_by(market.owner(), worth * found.x, market.classes) + beside


def _room(market: Market, objective: Level, kept: FloatArray, prices: FloatArray) -> bool:
    """A class that is not full has a column that uses nothing scarce."""
    taken = scarce(prices, market.capacity).astype(np.float64)
    hungry = kept < best_by(market.owner(), objective.worth, market.classes) * (1 - FULL)
    return bool(np.any(hungry[market.owner()] & (market.cost(taken) == 0) & (objective.worth > 0)))
