"""The price path alone: market to shares and certificate, objective by objective, and how often it is certified.

    python -m benchmarks prices

Times are medians in one warm process, on markets whose classes all differ; the gap, the violation and the bound are
recomputed from the answer.
"""

import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.instances import Drawn, Instance, draw, optimality_gap
from benchmarks.tables import Measured
from optimizer.classes.class_problem import (
    ClassProblem,
    ClassSolution,
    MaxMin,
    MaxSum,
    NashWelfare,
    Objective,
    TargetFunction,
)
from optimizer.decision import Status
from optimizer.lp.dual_newton.price_solver import solve_by_prices
from optimizer.problem import FloatArray, IntArray

_GAP = 1e-4


@dataclass(frozen=True)
class _Linear:
    """rate z."""

    rate: FloatArray
    highest: float

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        return self.rate * z, self.rate

    def part(self, classes: IntArray) -> TargetFunction:
        return _Linear(self.rate[classes], self.highest)


@dataclass(frozen=True)
class _FinishTime:
    """rate z / (1 - bend z): z is 1 / rho, and some of the time has passed."""

    rate: FloatArray
    bend: FloatArray
    highest: float

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        rest = 1 - self.bend * z
        return self.rate * z / rest, self.rate / rest**2

    def part(self, classes: IntArray) -> TargetFunction:
        return _FinishTime(self.rate[classes], self.bend[classes], self.highest)


def objective_of(name: str, drawn: Drawn) -> Objective:
    """One of the objectives over a drawn market."""
    market = drawn.market
    width = np.diff(market.first)

    def best(values: FloatArray) -> FloatArray:
        return np.maximum.reduceat(values, market.first[:-1])

    fair = drawn.speed * np.repeat(drawn.gang / drawn.equal_speed, width)
    rng = np.random.default_rng(1)
    match name:
        case "max-min":
            return MaxMin(fair, _Linear(drawn.weight, float((best(fair) / drawn.weight).min())))
        case "makespan":
            # No job is so long that it alone decides.
            steps = np.minimum(drawn.steps, np.quantile(drawn.steps / best(drawn.speed), 0.5) * best(drawn.speed))
            return MaxMin(drawn.speed, _Linear(steps, float((best(drawn.speed) / steps).min())))
        case "finish-time fairness":
            worth = drawn.speed / np.repeat(drawn.equal_speed, width)
            rate, bend = rng.uniform(0.5, 2, market.classes), rng.uniform(0, 0.1, market.classes)
            return MaxMin(worth, _FinishTime(rate, bend, float((best(worth) / (rate + bend * best(worth))).min())))
        case "throughput":
            return MaxSum(drawn.speed, drawn.speed, np.zeros(market.classes))
        case "throughput of own best":
            part = drawn.speed / np.repeat(best(drawn.speed), width)
            return MaxSum(part, part, np.zeros(market.classes))
        case "cost + SLO":
            wanted = drawn.equal_speed * rng.uniform(0.02, 0.3, market.classes)
            floor = np.where(rng.random(market.classes) < 0.2, np.minimum(wanted, 0.9 * best(drawn.speed)), 0.0)
            return MaxSum(drawn.speed / drawn.usd_per_h, drawn.speed, floor)
        case _:
            return NashWelfare(fair, drawn.weight)


NAMES = ("max-min", "throughput", "Nash", "cost + SLO", "finish-time fairness", "makespan", "throughput of own best")
_MAIN = NAMES[:4]


def measure(scale: float) -> list[Measured]:
    """Times by size, and the grid. `scale` shrinks the markets; the grid keeps its instances but takes fewer."""
    _timed("max-min", draw(Instance(40_000, 4)), 1)  # compiles, and starts the threads
    return [_sizes(scale), _large(scale), _grid(max(10, int(200 * min(1.0, scale))))]


def _sizes(scale: float) -> Measured:
    measured = Measured("the price path by size", "medians of 5; all classes differ; load 6")
    for instance, names, at_most in (
        (Instance(10_000, 8), _MAIN, 0.05),
        (Instance(10_000, 8), NAMES[4:6], 0.25),
        (Instance(10_000, 8), NAMES[6:], None),
        (Instance(100_000, 16), NAMES[:6], 0.5),
        (Instance(100_000, 16, mixed=4), _MAIN, 1.0),
    ):
        instance = replace(instance, jobs=max(100, int(instance.jobs * scale)))
        drawn = draw(instance)
        for name in names:
            _add(measured, name, instance, drawn, 5, at_most)
    return measured


def _large(scale: float) -> Measured:
    """A million jobs; memory is what the solve allocates at its peak, shares included, over market and objective."""
    measured = Measured("the price path, a million jobs", "medians of 3; all classes differ; load 6")
    for instance, names, at_most in (
        (Instance(1_000_000, 16), _MAIN, 1.0),
        (Instance(1_000_000, 8), ("Nash",), 0.5),
    ):
        instance = replace(instance, jobs=max(100, int(instance.jobs * scale)))
        drawn = draw(instance)
        for name in names:
            _add(measured, name, instance, drawn, 3, at_most)
        objective = objective_of(names[0], drawn)
        tracemalloc.start()
        solve_by_prices(drawn.market, objective)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        given = _bytes(drawn.market) + objective.worth.nbytes
        measured.add(f"   peak memory, {names[0]}", (peak + given) / given, "x input", 4.0)
    return measured


def _add(measured: Measured, name: str, instance: Instance, drawn: Drawn, repeats: int, at_most: float | None) -> None:
    took_s, solution, objective = _timed(name, drawn, repeats)
    columns = drawn.market.columns // drawn.market.classes
    what = f"{name}, {instance.jobs:,} x {columns} columns, {instance.pools} pools"
    measured.add(what, took_s, "s", at_most)
    measured.add("   gap", optimality_gap(drawn.market, objective, solution.objective, solution.bound), "", _GAP)
    over = float((drawn.market.used(solution.x) / drawn.market.capacity).max()) - 1
    measured.add("   violation", max(0.0, over), "", 1e-9)


def _timed(name: str, drawn: Drawn, repeats: int) -> tuple[float, ClassSolution, Objective]:
    objective = objective_of(name, drawn)
    times = []
    for _ in range(repeats):
        began = perf_counter()
        solution = solve_by_prices(drawn.market, objective)
        times.append(perf_counter() - began)
    return median(times), solution, objective


def _bytes(market: ClassProblem) -> int:
    arrays = (market.size, market.first, market.use_first, market.use_row, market.use_count, market.capacity)
    return sum(array.nbytes for array in arrays)


def grid_instance(seed: int) -> Instance:
    """A random instance: sizes, load, zeros, ties, equal jobs."""
    rng = np.random.default_rng(seed)
    return Instance(
        jobs=int(np.exp(rng.uniform(np.log(3_000), np.log(30_000)))),
        pools=int(rng.integers(2, 17)),
        load=float(np.exp(rng.uniform(np.log(0.5), np.log(20.0)))),
        seed=seed,
        zeros=float(rng.choice([0.0, 0.0, 0.3])),
        ties=bool(rng.random() < 0.3),
        equal=int(rng.choice([1, 1, 1, 4])),
    )


def _grid(count: int) -> Measured:
    measured = Measured(
        "a random grid by prices alone", "J 3,000-30,000, 2-16 pools, load .5-20, zeros, ties, equal jobs"
    )
    missed: Counter[str] = Counter()
    gaps, times = [], []
    for seed in range(count):
        name, drawn = NAMES[seed % len(NAMES)], draw(grid_instance(seed))
        took_s, solution, objective = _timed(name, drawn, 1)
        missed[name] += solution.status is not Status.OPTIMAL
        gaps.append(optimality_gap(drawn.market, objective, solution.objective, solution.bound))
        times.append(took_s)
    measured.add("not certified", 100 * sum(missed.values()) / count, "%", 3.0)
    for name, times_missed in missed.items():
        if times_missed:
            measured.add(f"   of them {name}", times_missed, "")
    measured.add("largest gap", max(gaps), "")
    measured.add("median time", median(times), "s")
    measured.add("longest time", max(times), "s")
    return measured
