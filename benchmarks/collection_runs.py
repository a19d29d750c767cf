"""Collections of jobs on three kinds of accelerator, with the speeds that DISPA'20 published for five models.

Speeds are relative to one K80; prices per accelerator-hour are Google's list prices of the time, whose ratios are those
behind the published speeds per dollar. Lengths are drawn (seeded), 2 to 40 hours on a K80.
"""

from random import Random

import numpy as np

from benchmarks.tables import Measured
from optimizer.planning.job_collection import (
    JobCollection,
    MachineTypeOffer,
    cheapest_stationary_plan,
    least_cost,
    least_time,
    soonest_stationary_plan,
)

#: K80, P100, V100: Transformer, A3C, CycleGAN, ResNet-18, ResNet-50.
_SPEEDS = ((1.0, 3.3, 3.3), (1.0, 1.2, 2.2), (1.0, 4.5, 9.3), (1.0, 4.0, 6.8), (1.0, 3.7, 9.6))
_OFFERS = (MachineTypeOffer("k80", 0.45, 8), MachineTypeOffer("p100", 1.46, 8), MachineTypeOffer("v100", 2.48, 8))
_SHORTEST_H, _LONGEST_H = 2.0, 40.0
#: What the budget is over the least cost within the time.
_MORE = 1.1


def collection(jobs: int, seed: int = 0) -> JobCollection:
    """So many jobs, the models in turn."""
    random = Random(seed)
    work = np.array([random.uniform(_SHORTEST_H, _LONGEST_H) for _ in range(jobs)])
    return JobCollection(_OFFERS, work, np.array([_SPEEDS[number % len(_SPEEDS)] for number in range(jobs)]))


def measure_collections(jobs: int) -> Measured:
    """Money within a time, time within a budget, each against the bound that no plan beats."""
    given = collection(jobs)
    only_v100 = JobCollection(_OFFERS[2:], given.work, given.rate[:, 2:])
    fastest = soonest_stationary_plan(only_v100, float("inf"))
    assert fastest is not None, "every job runs on a V100"
    within_h = 2 * fastest.time_h
    measured = Measured("collections of jobs", f"{jobs} jobs of five models, 8 machines of each of three kinds")
    cheap, bound = cheapest_stationary_plan(given, within_h), least_cost(given, within_h)
    assert cheap is not None, "twice the time of the V100 alone is enough"
    assert bound is not None, "where a plan fits, the relaxed one does"
    measured.add("time allowed: twice what the V100 alone need", within_h, "h")
    measured.add("all on V100: cost", fastest.usd, "USD")
    measured.add("least cost, nobody moves", cheap.usd, "USD", at_most=fastest.usd)
    measured.add("its time", cheap.time_h, "h", at_most=within_h)
    measured.add("its cost over the least without moves", cheap.over, "x", at_most=1.05)
    measured.add("its cost over the least with free moves", cheap.usd / bound.usd, "x")
    budget = _MORE * bound.usd
    quick, soonest = soonest_stationary_plan(given, budget), least_time(given, budget)
    assert quick is not None, "the budget is above the least cost"
    assert soonest is not None, "the same"
    measured.add("budget: a tenth above the least cost", budget, "USD")
    measured.add("least makespan, nobody moves", quick.time_h, "h")
    measured.add("its cost", quick.usd, "USD", at_most=budget)
    measured.add("its makespan over the least without moves", quick.over, "x", at_most=1.1)
    measured.add("its makespan over the least with free moves", quick.time_h / soonest.time_h, "x")
    return measured
