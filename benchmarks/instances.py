"""Synthetic markets for benchmarks: jobs that gain differently from newer accelerators.

Speed of model type m on pool g: speed[g] ** sensitivity[m], times lognormal noise, times the model's own scale. Gangs
of 1, 2, 4, 8 (.7, .1, .15, .05), weights 1 and 2 (.8, .2). `load` is the demand in accelerators over the capacity.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.classes.class_problem import ClassProblem, NashWelfare, Objective

FloatArray = NDArray[np.float64]

_TYPES = 60


@dataclass(frozen=True)
class Instance:
    """Sizes, and what makes the instance hard."""

    jobs: int
    pools: int
    load: float = 6.0
    seed: int = 0
    #: Part of the speeds that are 0.
    zeros: float = 0.0
    #: True: jobs of a model have the speeds of their model, so that jobs that differ in weight and target tie exactly.
    ties: bool = False
    #: Jobs per class.
    equal: int = 1
    #: Counts per pool (elastic gangs), and mixed gangs of two pools besides.
    counts: int = 1
    mixed: int = 0


@dataclass(frozen=True)
class Drawn:
    """A market, and what the policies need to know of its jobs."""

    market: ClassProblem
    #: Steps per second of each column, and accelerators in it (C,).
    speed: FloatArray
    count: FloatArray
    #: USD per hour of each column (C,).
    usd_per_h: FloatArray
    #: Of each class (k,).
    weight: FloatArray
    gang: FloatArray
    steps: FloatArray
    #: Speed of each class on an equal split of the pools (k,).
    equal_speed: FloatArray


def draw(instance: Instance) -> Drawn:
    """The instance's market."""
    rng = np.random.default_rng(instance.seed)
    k, pools = max(instance.jobs // instance.equal, 1), instance.pools
    speeds = _speeds(instance, k, rng)
    gang = rng.choice([1.0, 2.0, 4.0, 8.0], k, p=[0.7, 0.1, 0.15, 0.05])
    weight = rng.choice([1.0, 2.0], k, p=[0.8, 0.2])
    size = np.full(k, float(instance.equal))
    capacity = rng.dirichlet(np.full(pools, 5.0)) * float(size @ gang) / instance.load
    capacity = np.maximum(8.0, np.round(capacity))
    rows, counts, speed = _columns(instance, speeds, gang, rng)
    width, uses = speed.shape[1], rows.shape[2]
    used = rows >= 0
    market = ClassProblem(
        size=size,
        first=np.arange(k + 1) * width,
        use_first=np.concatenate(([0], np.cumsum(used.reshape(-1, uses).sum(axis=1)))),
        use_row=rows[used].astype(np.int32),
        use_count=np.broadcast_to(counts[..., None], rows.shape)[used],
        capacity=capacity,
    )
    count = (counts * used.sum(axis=2)).ravel()
    price = np.geomspace(1, 8, pools)
    usd = (np.where(used, price[rows], 0.0).sum(axis=2) * counts).ravel()
    equal = speeds @ (capacity / capacity.sum())
    steps = rng.lognormal(9, 1.2, k) * speeds.mean(axis=1) / speeds.mean()
    return Drawn(market, speed.ravel(), count, usd, weight, gang, steps, equal)


def _speeds(instance: Instance, k: int, rng: np.random.Generator) -> FloatArray:
    """Of each class on each pool, with its own gang (k, p)."""
    pools = instance.pools
    sensitivity = rng.uniform(0.15, 1.1, _TYPES)
    base = np.geomspace(1, 12, pools) ** sensitivity[:, None]
    base = base * rng.lognormal(0, 0.25, (_TYPES, pools)) * rng.lognormal(0, 1.0, (_TYPES, 1))
    speeds: FloatArray = base[rng.integers(0, _TYPES, k)]
    if not instance.ties:
        speeds = speeds * rng.lognormal(0, 0.1, (k, pools))
    if instance.zeros:
        gone = rng.random((k, pools)) < instance.zeros
        gone[np.arange(k), rng.integers(0, pools, k)] = False
        speeds = np.where(gone, 0.0, speeds)
    return speeds


def _columns(
    instance: Instance, speeds: FloatArray, gang: FloatArray, rng: np.random.Generator
) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
    """Rows of each column (k, W, 2; -1: none), accelerators per row (k, W), speed (k, W)."""
    k, pools = speeds.shape
    rows, counts, speed = [], [], []
    for step in range(instance.counts):
        factor = 2.0**step
        for pool in range(pools):
            rows.append(np.stack([np.full(k, pool), np.full(k, -1)], axis=1))
            counts.append(gang * factor)
            speed.append(speeds[:, pool] * factor**0.8)
    for _ in range(instance.mixed):
        one = rng.integers(0, pools, k)
        other = (one + rng.integers(1, pools, k)) % pools
        rows.append(np.stack([one, other], axis=1))
        counts.append(gang / 2)
        both = np.minimum(speeds[np.arange(k), one], speeds[np.arange(k), other])
        speed.append(both * rng.uniform(0.8, 1.0, k))
    return np.stack(rows, axis=1), np.stack(counts, axis=1), np.stack(speed, axis=1)


def optimality_gap(problem: ClassProblem, objective: Objective, reached: float, bound: float) -> float:
    """Relative gap of bound and objective; for NashWelfare the gap of the mean weighted logarithm."""
    if isinstance(objective, NashWelfare):
        return max(bound - reached, 0.0) / max(float(problem.size @ objective.weight), 1e-300)
    return max(bound - reached, 0.0) / max(abs(bound), abs(reached), 1e-12)
