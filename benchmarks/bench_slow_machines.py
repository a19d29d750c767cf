"""Machines that are slower than others of their pool: what it is worth to find them, and to price them apart.

    WALRAS_DATA=... python -m benchmarks slow_machines [--row single-0.6 gangs-0.9 ...]

Jobs of Gavel's generator on twelve machines of each of three types, of which a tenth to a quarter, drawn anew for each
seed, work at half to seven tenths of their speed from the start. Nobody says which; the scheduler (`walras`) knows the
speeds of the kinds, and gets reports every three minutes. The same seeds where no machine is ever called slow, where
gangs go to slow machines last, and where these are pools with prices of their own, as shipped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from random import Random
from statistics import fmean
from unittest.mock import patch

from benchmarks.grounds import Served, serve
from benchmarks.grounds_loads import CLUSTER, at_load, full_per_h
from benchmarks.tables import Measured
from scheduler.core.cycle import slow_pools
from scheduler.core.state import slow_machines
from simulator.faults import NodeSlowdown
from simulator.simulation import Scenario

#: Rows that can be measured alone: whether there are gangs, and the load.
_CELLS = {f"{'gangs' if gangs else 'single'}-{load}": (gangs, load) for gangs in (False, True) for load in (0.6, 0.9)}
ROWS = tuple(_CELLS)
_JOBS, _SEEDS, _FIRST_SEED = 120, 4, 1940
_FRACTION, _PACE, _REPORT_S = (0.1, 0.25), (0.5, 0.7), 180.0
#: Jobs and seeds from which the load that the fleet bears is estimated.
_LOAD_JOBS, _LOAD_SEEDS = 300, range(3)
_full_per_h = cache(full_per_h)
_IGNORED, _LAST, _APART = "no machine is ever called slow", "slow machines are used last", "slow machines have prices"


def measure(scale: float, row: str) -> list[Measured]:
    """One table for each kind of jobs and load."""
    gangs, load = _CELLS[row]
    jobs, seeds = max(60, round(_JOBS * scale)), range(_FIRST_SEED, _FIRST_SEED + max(2, round(_SEEDS * scale)))
    found = {way: [_serve(jobs, gangs, load, seed, way) for seed in seeds] for way in (_IGNORED, _LAST, _APART)}
    measured = Measured(f"slow machines, {row}", f"{jobs} jobs, seeds {seeds[0]} to {seeds[-1]}; mean completion time")
    for way, against in ((_LAST, _IGNORED), (_APART, _IGNORED), (_APART, _LAST)):
        parts = [ours.mean_s / theirs.mean_s for ours, theirs in zip(found[way], found[against], strict=True)]
        is_goal = (way, against) == (_APART, _LAST)
        measured.add(f"{way}, against: {against}", fmean(parts), "x", at_most=1.0 if is_goal else None)
        measured.add("   worst seed", max(parts), "x")
    for way, runs in found.items():
        measured.add(f"{way}: moves and stops", fmean(each.moves for each in runs), "a job")
    return [measured]


def _serve(jobs: int, gangs: bool, load: float, seed: int, way: str) -> Served:
    source = at_load(load, jobs, gangs, _full_per_h(_LOAD_JOBS, gangs, _LOAD_SEEDS))
    with _scheduler(way):
        return serve(source, CLUSTER, "walras", seed=seed, change=partial(_slowed, seed=seed))


@contextmanager
def _scheduler(way: str) -> Iterator[None]:
    """The scheduler without what this way lacks."""
    with (
        patch.object(slow_machines, "SLOW", 1.0 if way == _IGNORED else slow_machines.SLOW),
        patch.object(slow_pools, "LEAST_MACHINES", slow_pools.LEAST_MACHINES if way == _APART else 10**9),
    ):
        yield


def _slowed(scenario: Scenario, seed: int) -> Scenario:
    """Some machines are slow from the start, and jobs report their speed."""
    random = Random(f"slow machines {seed}")
    every = [(model.pool.pool_id, index) for model in scenario.pools for index in range(model.machines)]
    slow = random.sample(every, round(random.uniform(*_FRACTION) * len(every)))
    incidents = tuple(NodeSlowdown(0.0, pool_id, index, random.uniform(*_PACE)) for pool_id, index in slow)
    world = replace(scenario.world, report_s=_REPORT_S)
    return replace(scenario, world=world, incidents=(*scenario.incidents, *incidents))
