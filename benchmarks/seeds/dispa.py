"""Where and on what jobs are cheapest as prices change, and collections of jobs (DISPA, 2020).

    WALRAS_DATA=... python -m benchmarks.seeds.dispa

The ladder of its first figure is climbed on GCP's recorded spot prices of 2024 to 2026, whose regions stand for several
clouds; speeds are those of ResNet-50 training per accelerator, relative to one A100 40 GB (samples/s of a published
benchmark), in proportion to the accelerators of one machine. The paper's prices are not public (it is up to 3.5 times
cheaper there); what carries over is that no rung is dearer than the one before.

Collections have the speeds that it published for five models, relative to one K80, and list prices of the time, whose
ratios are those behind its speeds per dollar. Lengths are drawn (seeded), 2 to 40 hours on a K80.
"""

import csv
import gzip
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.seeds.comparison import Comparison, reference_data, run_comparisons
from benchmarks.seeds.dispa_collections import (
    JobCollection,
    MachineTypeOffer,
    cheapest_stationary_plan,
    least_cost,
    least_time,
    soonest_stationary_plan,
)
from benchmarks.seeds.dispa_moves import (
    MoveCost,
    PricedPlace,
    RunBill,
    StepFunction,
    bill_of_following,
    bill_of_staying,
)

_DAY_S = 86_400.0
#: Accelerators and relative speed of one.
SHAPES = {
    "a2-highgpu-1g": (1, 1.0), "a2-highgpu-2g": (2, 1.0), "a2-highgpu-4g": (4, 1.0), "a2-highgpu-8g": (8, 1.0),
    "a2-ultragpu-1g": (1, 1.1), "a2-ultragpu-2g": (2, 1.1), "a2-ultragpu-4g": (4, 1.1), "a2-ultragpu-8g": (8, 1.1),
    "a3-highgpu-1g": (1, 1.4), "a3-highgpu-2g": (2, 1.4), "a3-highgpu-4g": (4, 1.4), "a3-highgpu-8g": (8, 1.4),
}  # fmt: skip
BASE = "a2-highgpu-1g"
#: 150 GB of data at 8 cents, 10 minutes.
MOVING = MoveCost(usd=12.0, pause_s=600.0)
_FIRST, _LAST = date(2024, 2, 1).toordinal(), date(2026, 7, 1).toordinal()


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung: what it costs in the mean, and the first rung's cost over that."""

    name: str
    usd: float
    cheaper: float
    moves: float


def places(data: Path) -> list[PricedPlace]:
    """Every shape in every region that sells it, by its recorded spot prices."""
    sold = _sold(data)
    changes: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with gzip.open(data / "spot" / "gcp_gpu_price_changes.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["spot_price"] and (row["instance_type"], row["region"]) in sold:
                at = date.fromisoformat(row["date"]).toordinal() * _DAY_S
                changes.setdefault((row["instance_type"], row["region"]), []).append((at, float(row["spot_price"])))
    return [
        PricedPlace(f"{shape}/{region}", StepFunction.of(found), SHAPES[shape][0] * SHAPES[shape][1])
        for (shape, region), found in sorted(changes.items())
    ]


def _sold(data: Path) -> set[tuple[str, str]]:
    """Shapes and regions with a zone that is known to have them: prices are listed for many that have none."""
    with gzip.open(data / "catalog" / "instances.csv.gz", "rt", encoding="utf-8") as file:
        return {
            (row["instance_type"], row["region"])
            for row in csv.DictReader(file)
            if row["cloud"] == "gcp" and row["zone"] and row["instance_type"] in SHAPES
        }


def ladder(known: Sequence[PricedPlace], days: float, every_days: int = 14) -> list[Rung]:
    """The five rungs, for a job of so many days on the base machine, from every region, started every so many days."""
    names = ("base", "+ accelerator", "+ larger machines", "+ regions", "+ dynamic")
    usd, moves, runs = [0.0] * 5, 0, 0
    for day in range(_FIRST, _LAST - int(days), every_days):
        at = day * _DAY_S
        offered = [place for place in known if place.price.starts_at[0] <= at]
        for home in sorted({_region(place) for place in offered if place.name.startswith(BASE)}):
            bills = _bills(offered, home, days * _DAY_S, at)
            usd = [total + bill.usd for total, bill in zip(usd, bills, strict=True)]
            moves, runs = moves + len(bills[-1].places) - 1, runs + 1
    return [
        Rung(name, paid / runs, usd[0] / paid, moves / runs if rung == 4 else 0.0)
        for rung, (name, paid) in enumerate(zip(names, usd, strict=True))
    ]


def _bills(offered: Sequence[PricedPlace], home: str, steps: float, at: float) -> list[RunBill]:
    there = [place for place in offered if _region(place) == home]
    single = [place for place in there if SHAPES[_shape(place)][0] == 1]
    base = [place for place in single if _shape(place) == BASE]
    return [bill_of_staying(part, steps, at) for part in (base, single, there, offered)] + [
        bill_of_following(offered, steps, at, MOVING)
    ]


def _shape(place: PricedPlace) -> str:
    return place.name.split("/")[0]


def _region(place: PricedPlace) -> str:
    return place.name.split("/")[1]


#: K80, P100, V100: Transformer, A3C, CycleGAN, ResNet-18, ResNet-50.
_SPEEDS = ((1.0, 3.3, 3.3), (1.0, 1.2, 2.2), (1.0, 4.5, 9.3), (1.0, 4.0, 6.8), (1.0, 3.7, 9.6))
_OFFERS = (MachineTypeOffer("k80", 0.45, 8), MachineTypeOffer("p100", 1.46, 8), MachineTypeOffer("v100", 2.48, 8))
_SHORTEST_H, _LONGEST_H = 2.0, 40.0
_JOBS = 60
#: What the budget is over the least cost within the time.
_MORE = 1.1


def collection(jobs: int, seed: int = 0) -> JobCollection:
    """So many jobs, the models in turn."""
    random = Random(seed)
    work = np.array([random.uniform(_SHORTEST_H, _LONGEST_H) for _ in range(jobs)])
    return JobCollection(_OFFERS, work, np.array([_SPEEDS[number % len(_SPEEDS)] for number in range(jobs)]))


def compare() -> Iterator[Comparison]:
    """A table for each length of the ladder's job, and one for a collection."""
    known = places(reference_data())
    for days in (4, 64):
        found = Comparison(f"DISPA's ladder, {days} days on one A100: cheaper than the base by, x")
        rungs = ladder(known, days)
        found.show(rungs[0].name, rungs[0].cheaper)
        for before, rung in pairwise(rungs):
            found.at_least(rung.name, before.cheaper * (1 - 1e-9), rung.cheaper)
        found.show("moves of a job", rungs[-1].moves)
        yield found
    yield _collections()


def _collections() -> Comparison:
    """Money within a time, time within a budget, each against the bound that no plan beats."""
    given = collection(_JOBS)
    only_v100 = JobCollection(_OFFERS[2:], given.work, given.rate[:, 2:])
    fastest = soonest_stationary_plan(only_v100, float("inf"))
    assert fastest is not None, "every job runs on a V100"
    within_h = 2 * fastest.time_h
    cheap, bound = cheapest_stationary_plan(given, within_h), least_cost(given, within_h)
    assert cheap is not None, "twice the time of the V100 alone is enough"
    assert bound is not None, "where a plan fits, the relaxed one does"
    found = Comparison(f"{_JOBS} jobs of five models, 8 machines of each of three kinds")
    found.show("time allowed: twice what the V100 alone need, h", within_h)
    found.at_most("least cost, nobody moves, against all on V100, USD", fastest.usd, cheap.usd)
    found.at_most("   its time, h", within_h, cheap.time_h)
    found.at_most("   its cost over the least without moves, x", 1.05, cheap.over)
    found.show("   its cost over the least with free moves, x", cheap.usd / bound.usd)
    budget = _MORE * bound.usd
    quick, soonest = soonest_stationary_plan(given, budget), least_time(given, budget)
    assert quick is not None, "the budget is above the least cost"
    assert soonest is not None, "the same"
    found.at_most("least makespan, nobody moves: its cost within the budget, USD", budget, quick.usd)
    found.at_most("   over the least without moves, x", 1.1, quick.over)
    found.show("   over the least with free moves, x", quick.time_h / soonest.time_h)
    return found


if __name__ == "__main__":
    sys.exit(run_comparisons(compare))
