"""Measured speeds of the reference data (`WALRAS_DATA`, folder `profiles`) as observations.

Data sheets: peak of the arithmetic that a row's precision uses (TF32 counts as fp32 where frameworks use it) in
TFLOP/s, fp32 and fp16, and memory bandwidth in GB/s; of one accelerator of a board. Boost clocks throughout.
"""

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import median
from zlib import crc32

import numpy as np

from optimizer.prediction.predictor import AcceleratorSpecs, KindFacts, Layout, Observation, SpeedCell
from optimizer.prediction.table_predictors import sheet_speed
from walras.spec.accelerator_names import canonical_accelerator

_SHEETS: dict[str, tuple[float, float, float]] = {
    "K80": (4.37, 4.37, 240),
    "M60": (4.83, 4.83, 160),
    "T4": (8.1, 65, 320),
    "P100": (9.3, 18.7, 732),
    "V100": (15.7, 125, 900),
    "V100-32GB": (15.7, 125, 900),
    "RTX2080Ti": (13.4, 107.6, 616),
    "QuadroRTX6000": (16.3, 130.5, 672),
    "QuadroRTX8000": (16.3, 130.5, 672),
    "A10": (62.5, 125, 600),
    "A100-40GB": (156, 312, 1555),
    "A100-40GB-PCIe": (156, 312, 1555),
    "A100-80GB": (156, 312, 2039),
    "A100-80GB-PCIe": (156, 312, 1935),
    "RTX-A6000": (77.4, 154.8, 768),
    "RTX3090": (35.6, 142, 936),
    "RTX4090": (82.6, 330, 1008),
    "RTX6000-Ada": (182, 364, 960),
    "H100-PCIe": (378, 756, 2000),
    "H100-SXM": (494, 989, 3350),
}


def singles(data: Path, source: str) -> list[Observation]:
    """One accelerator each; repeats of a cell become one observation, their median."""
    found: dict[SpeedCell, list[float]] = {}
    with gzip.open(data / "profiles" / "throughputs.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            wanted = row["source"] == source and row["num_gpus"] == "1" and row["placement"] == "single"
            if wanted and row["batch_size"] and float(row["steps_per_s"] or 0.0) > 0.0:
                found.setdefault(_cell(row), []).append(float(row["steps_per_s"]))
    return [Observation(cell, median(speeds), samples=len(speeds)) for cell, speeds in found.items()]


def _cell(row: dict[str, str]) -> SpeedCell:
    single, half, memory = _SHEETS[row["gpu_type"]]
    peak = half if row["precision"] == "fp16" else single
    accelerator = AcceleratorSpecs(row["gpu_type"], peak * 1e12, memory * 1e9)
    return SpeedCell(KindFacts(f"{row['model']} {row['precision']}"), accelerator, Layout(float(row["batch_size"])))


def achieving(observations: Sequence[Observation], achieved: Mapping[str, float]) -> list[Observation]:
    """With what is known of how far accelerators (by canonical name) stay behind their data sheets."""
    found = []
    for observation in observations:
        cell = observation.cell
        facts = replace(cell.accelerator, achieves=achieved.get(canonical(cell.accelerator.name), 1.0))
        found.append(replace(observation, cell=replace(cell, accelerator=facts)))
    return found


def canonical(name: str) -> str:
    """As the catalog has it; memory that does not matter for speed is left out."""
    return canonical_accelerator(name).removesuffix("-32gb")


def over_sheets(observations: Sequence[Observation]) -> dict[str, float]:
    """By accelerator, logs of speed over what data sheets promise, up to a constant, on the same cells."""
    names = sorted({canonical(o.cell.accelerator.name) for o in observations})
    pairs = sorted({(o.cell.kind.name, o.cell.layout.batch) for o in observations})
    rows = np.zeros((len(observations), len(names) + len(pairs)))
    for row, o in zip(rows, observations, strict=True):
        row[names.index(canonical(o.cell.accelerator.name))] = 1.0
        row[len(names) + pairs.index((o.cell.kind.name, o.cell.layout.batch))] = 1.0
    values = [log(o.steps_per_s / sheet_speed(replace(o.cell.accelerator, achieves=1.0))) for o in observations]
    return dict(zip(names, np.linalg.lstsq(rows, np.array(values), rcond=None)[0].tolist(), strict=False))


def parted(
    observations: Sequence[Observation], key: Callable[[SpeedCell], tuple[object, ...]], percent: int
) -> tuple[list[Observation], list[Observation]]:
    """Those to learn from, and about so many percent to be told: by a checksum of the key, the same everywhere."""
    held = [crc32(repr(key(observation.cell)).encode()) % 100 < percent for observation in observations]
    return (
        [observation for observation, out in zip(observations, held, strict=True) if not out],
        [observation for observation, out in zip(observations, held, strict=True) if out],
    )


def without(observations: Sequence[Observation], accelerator: str) -> tuple[list[Observation], list[Observation]]:
    """Those of other accelerators, and those of this one whose kind ran on another too."""
    others = [o for o in observations if o.cell.accelerator.name != accelerator]
    kinds = {o.cell.kind.name for o in others}
    held = [o for o in observations if o.cell.accelerator.name == accelerator and o.cell.kind.name in kinds]
    return others, held


def pair(cell: SpeedCell) -> tuple[object, ...]:
    """A model and a batch, on whatever accelerator."""
    return (cell.kind.name, cell.layout.batch)


def pair_on_type(cell: SpeedCell) -> tuple[object, ...]:
    """A model and a batch on one accelerator."""
    return (*pair(cell), cell.accelerator.name)
