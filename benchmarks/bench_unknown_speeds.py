"""Speeds that are only predicted: what it costs not to know them, and what the width of their intervals is good for.

    WALRAS_DATA=... python -m benchmarks unknown_speeds [--row single-60 gangs-600 ...]

Jobs of Gavel's generator, a tenth as long (`long`: as they are), on twelve accelerators of each of three types, at
eight tenths of what the fleet bears. The scheduler (`walras`) is told no speed. It has a prediction of each, with an
interval as wide as those that the performance model states (`_DEVIATIONS`: the 14 of a run of this ground in which it
predicted), and is off by a draw from it. A start takes 60 or 600 s. The same jobs are served in five ways:

* every speed is told;
* a lease measures a predicted speed where all that the kind has left to run repays a restart (before the rule);
* where what it may save by knowing repays it (as shipped: rule `weigh_intervals`);
* each of the last two, where besides a plan counts a predicted speed by an index of what a job may gain by trying.

**The index**, which is in no policy. A job of R seconds at the predicted speed p tries a place whose speed X is
log-normal around p. If X is less than p, it may go on elsewhere as well as at p, after a restart of r seconds. So it
takes R E[min(p / X, 1 + r / R)] seconds. Where that is less than R, a try costs less than it may gain, and p is divided
by this part; at most up to the upper end of the interval. Where a job of the kind runs already its speed is about to be
known, and other jobs have no index there.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import exp, log
from random import Random
from statistics import fmean
from unittest.mock import patch

import numpy as np
from scipy.special import ndtr

from benchmarks.grounds import mean
from benchmarks.grounds_loads import CLUSTER, at_load, full_per_h
from benchmarks.tables import Measured
from optimizer.problem import FloatArray, Problem
from scheduler.core.cycle import problem_snapshot
from scheduler.core.cycle import round as core_round
from scheduler.core.events import Event
from scheduler.core.ordering.plan_ordering import PlanOrdering
from scheduler.core.speed_events import Guess, PredictedSpeed, SpeedsPredicted
from scheduler.core.state.ledger import Ledger
from scheduler.core.state.throughput import SpeedSource
from scheduler.world.attempts import AttemptCosts
from simulator.ground_truth import GroundTruth
from simulator.reports.baselines import BoundsChoice, JobBaselines
from simulator.reports.run_spec import RunSpec, prepare_run
from simulator.simulation import Simulation

#: Rows that can be measured alone: whether there are gangs, the seconds of a start, and how long jobs are.
_CELLS = {
    "single-60": (False, 60.0, 0.1),
    "single-600": (False, 600.0, 0.1),
    "gangs-60": (True, 60.0, 0.1),
    "gangs-600": (True, 600.0, 0.1),
    "long-60": (False, 60.0, 1.0),
}
ROWS = tuple(_CELLS)
_JOBS, _SEEDS, _FIRST_SEED, _LOAD, _REPORT_S = 120, 8, 1950, 0.8, 60.0
#: Jobs and seeds from which the load that the fleet bears is estimated.
_LOAD_JOBS, _LOAD_SEEDS = 200, range(2)
_full_per_h = cache(full_per_h)
#: Deviations of the logarithm of the speed in the model's intervals, and how many of them an interval of 80 % reaches.
_DEVIATIONS = (0.18, 0.28, 0.29, 0.31, 0.32, 0.32, 0.32, 0.33, 0.37, 0.39, 0.40, 0.41, 0.49, 0.63)
_REACH = 1.2816
#: Most that the rule may cost on any seed.
_WORST = 1.01
_TOLD, _BEFORE, _SHIPPED = "every speed is told", "all work repays a lease", "as shipped"
_BEFORE_INDEX, _SHIPPED_INDEX = "the index, all work repays a lease", "the index, else as shipped"
#: Which ways are compared with which.
_PAIRS = (
    (_BEFORE, _TOLD),
    (_SHIPPED, _TOLD),
    (_SHIPPED, _BEFORE),
    (_BEFORE_INDEX, _BEFORE),
    (_SHIPPED_INDEX, _SHIPPED),
)


def measure(scale: float, row: str) -> list[Measured]:
    """One table for each kind of jobs and length of a start."""
    jobs, seeds = max(40, round(_JOBS * scale)), range(_FIRST_SEED, _FIRST_SEED + max(2, round(_SEEDS * scale)))
    ways = (_TOLD, _BEFORE, _SHIPPED, _BEFORE_INDEX, _SHIPPED_INDEX)
    found = {way: [_mean_s(jobs, _CELLS[row], seed, way) for seed in seeds] for way in ways}
    measured = Measured(f"unknown speeds, {row}", f"{jobs} jobs, seeds {seeds[0]} to {seeds[-1]}; mean completion time")
    pairs = (
        (_BEFORE, _TOLD),
        (_SHIPPED, _TOLD),
        (_SHIPPED, _BEFORE),
        (_BEFORE_INDEX, _BEFORE),
        (_SHIPPED_INDEX, _SHIPPED),
    )
    for way, against in pairs:
        parts = [ours / theirs for ours, theirs in zip(found[way], found[against], strict=True)]
        is_goal = (way, against) == (_SHIPPED, _BEFORE)
        measured.add(f"{way}, against: {against}", fmean(parts), "x", at_most=1.0 if is_goal else None)
        measured.add("   best seed", min(parts), "x")
        measured.add("   worst seed", max(parts), "x", at_most=_WORST if is_goal else None)
    return [measured]


def _mean_s(jobs: int, cell: tuple[bool, float, float], seed: int, way: str) -> float:
    gangs, start_s, stretch = cell
    source = at_load(_LOAD, jobs, gangs, _full_per_h(_LOAD_JOBS, gangs, _LOAD_SEEDS))
    made = replace(source.made, stretch=stretch, rate_per_h=(source.made.rate_per_h or 0.0) / stretch)
    ready = prepare_run(RunSpec(replace(source, made=made), CLUSTER, "walras", seed, BoundsChoice.NONE))
    roster, scenario = JobBaselines(ready.scenario.pools, ready.scenario.truth), ready.scenario
    scenario = replace(scenario, truth=replace(scenario.truth, default_costs=AttemptCosts(start_s=start_s)))
    if way != _TOLD:
        scenario = replace(scenario, oracle=False, world=replace(scenario.world, report_s=_REPORT_S))
    if way in (_BEFORE, _BEFORE_INDEX):
        scenario = replace(scenario, rules=replace(scenario.rules, weigh_intervals=False))
    simulation = Simulation(scenario)
    simulation.begin(roster.recorded(ready.jobs))
    if way != _TOLD:
        simulation.engine.schedule(0.0, _event, SpeedsPredicted(0.0, tuple(_predictions(scenario.truth, seed))))
    with _planning(optimistically=way in (_BEFORE_INDEX, _SHIPPED_INDEX)):
        result = simulation.finish(simulation.engine.run(scenario.limits))
    assert not result.violations, result.violations[:3]
    assert not result.unfinished, f"{len(result.unfinished)} jobs did not end"
    return mean([job.jct_s for job in result.jobs])


def _event(_: float, event: Event) -> Iterable[Event]:
    return (event,)


def _predictions(truth: GroundTruth, seed: int) -> Iterator[PredictedSpeed]:
    """A prediction of every speed, so far off as its interval says."""
    random = Random(f"predictions {seed}")
    for key in sorted(truth.speeds, key=str):
        deviation, off = random.choice(_DEVIATIONS), random.gauss(0.0, 1.0)
        if truth.speeds[key] > 0:
            speed = truth.speeds[key] * exp(-deviation * off)
            reach = exp(_REACH * deviation)
            guess = Guess("fused", speed, speed / reach, speed * reach)
            yield PredictedSpeed(key.kind, key.accelerator, key.count, guess)


# ------------------------------------------------------------------------------------------------ the index


@contextmanager
def _planning(*, optimistically: bool) -> Iterator[None]:
    plan_problem: Callable[[Ledger, PlanOrdering], Problem] = problem_snapshot.plan_problem

    def asked(ledger: Ledger, ordering: PlanOrdering) -> Problem:
        problem = plan_problem(ledger, ordering)
        return _with_index(ledger, problem) if optimistically else problem

    with patch.object(core_round, "plan_problem", asked):
        yield


def _with_index(ledger: Ledger, problem: Problem) -> Problem:
    """The problem with the index in the place of speeds that are only predicted."""
    columns, jobs, classes = problem.columns, problem.jobs, ledger.classes.classes
    if ledger.classes.all_measured or len(columns.use_column) != len(columns):
        return problem
    slots = ledger.columns.slots_of(jobs.job_id)
    of_job = [classes[row] for row in ledger.columns.class_row[slots].tolist()]
    runs = {(each.kind, pool) for each, pool in zip(of_job, ledger.columns.pool[slots].tolist(), strict=True)}
    deviation = np.zeros(len(columns))
    for row, (job, pool) in enumerate(zip(columns.job.tolist(), columns.use_pool.tolist(), strict=True)):
        job_class = of_job[job]
        if not job_class.measured[pool] and (columns.running[row] or (job_class.kind, pool) not in runs):
            accelerator, count = problem.pools.accelerator[pool], int(columns.use_count[row])
            speed = ledger.table.speed(job_class.kind, accelerator, count, ledger.classes.nominal)
            if speed.source is SpeedSource.PREDICTED and speed.low and speed.high and speed.high > speed.low:
                deviation[row] = log(speed.high / speed.low) / (2.0 * _REACH)
    left_s = np.maximum(jobs.remaining_steps[columns.job] / columns.steps_per_s, 1.0)
    some = (deviation > 0) & np.isfinite(left_s)
    part = np.ones(len(columns))
    part[some] = _part_of_time(deviation[some], 1.0 + (jobs.restart_s[columns.job] / left_s)[some])
    return replace(problem, columns=replace(columns, steps_per_s=columns.steps_per_s / part))


def _part_of_time(deviation: FloatArray, most: FloatArray) -> FloatArray:
    """E[min(Y, most)] for Y log-normal around 1; no more than 1, and no less than at the upper end of the interval."""
    at = np.log(most)
    found = np.exp(deviation**2 / 2) * ndtr((at - deviation**2) / deviation) + most * ndtr(-at / deviation)
    part: FloatArray = np.clip(found, np.exp(-_REACH * deviation), 1.0)
    return part
