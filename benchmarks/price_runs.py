"""The ladder of "Analysis and Exploitation of Dynamic Pricing" (DISPA'20) on GCP's recorded spot prices.

One cloud's regions stand for several clouds. Speeds are those of ResNet-50 training per accelerator, relative to one
A100 40 GB (samples/s of a published benchmark), in proportion to the accelerators of one machine.
"""

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from optimizer.planning.price_moves import (
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
