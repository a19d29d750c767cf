"""What predictors reach on a recorded matrix of CPU speeds, as numbers that benchmark and tests share.

Nearly a third of the cells are profiled, chosen before anything is known of them: for every kind the smallest and the
largest batch on one thread, one cell of every other layout, and for some kinds one more. The others are told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean, median
from typing import Any

from benchmarks.cpu_matrix import BATCHES, CpuCell
from benchmarks.performance_scores import step_time_error
from optimizer.prediction.affine_law import AffinePredictor
from optimizer.prediction.ensemble import Ensemble
from optimizer.prediction.gaussian_process import GaussianProcess
from optimizer.prediction.predictor import (
    AcceleratorSpecs,
    CannotPredict,
    KindFacts,
    Layout,
    Observation,
    Predictor,
    SpeedCell,
)

#: Nominal: a core's peak and the bandwidth of its memory. What a rank's accelerator is, is its number of threads.
_CORE_FLOPS, _CORE_BYTES = 5e10, 1e10
SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Recorded:
    """One cell: the median of its repeats, and each of them."""

    cell: CpuCell
    observation: Observation
    step_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of one predictor: errors of step time by cell that it told, and the share inside its intervals (None: none)."""

    errors: tuple[float, ...]
    refused: int
    coverage: float | None

    @property
    def median(self) -> float:
        """Relative."""
        return median(self.errors)


def read(document: dict[str, Any]) -> list[Recorded]:
    """The rows of a recorded matrix."""
    return [_recorded(row, document["kinds"][row["kind"]]) for row in document["rows"]]


def _recorded(row: dict[str, Any], facts: dict[str, float]) -> Recorded:
    cell = CpuCell(row["kind"], row["batch"], row["threads"], row["ranks"])
    kind = KindFacts(
        cell.kind,
        flops_per_sample=facts["flops_per_sample"] or None,
        gradient_bytes=facts["gradient_bytes"],
        layers=int(facts["layers"]),
    )
    threads = AcceleratorSpecs(
        f"cpu-{cell.threads}",
        cell.threads * _CORE_FLOPS,
        cell.threads * _CORE_BYTES,
        link_bytes_per_s=_CORE_BYTES,
    )
    times = tuple(row["step_s"])
    middle = median(times)
    spread = median(abs(step_s / middle - 1.0) for step_s in times)
    asked = SpeedCell(kind, threads, Layout(cell.batch * cell.ranks, accelerators=cell.ranks))
    return Recorded(cell, Observation(asked, 1.0 / middle, spread, len(times)), times)


def chosen(cells: Sequence[CpuCell]) -> set[CpuCell]:
    """Those to profile: at most `SHARE` of all."""
    kinds = list(dict.fromkeys(cell.kind for cell in cells))
    small, large = BATCHES[0], BATCHES[-1]
    found: list[CpuCell] = []
    for number, kind in enumerate(kinds):
        ends = (small, large) if number % 2 else (large, small)
        found += [CpuCell(kind, small, 1, 1), CpuCell(kind, large, 1, 1)]
        found += [CpuCell(kind, ends[0], 2, 1), CpuCell(kind, ends[1], 1, 2)]
    room = int(SHARE * len(cells)) - len(found)
    found += [CpuCell(kind, BATCHES[1 + number % 2], 2, 2) for number, kind in enumerate(kinds)][: max(0, room)]
    return set(found)


def predictors() -> tuple[Predictor, ...]:
    """The one that counts, and its members by themselves."""
    members = (AffinePredictor(), GaussianProcess())
    return (Ensemble(members), *members)


def judged(predictor: Predictor, known: Sequence[Observation], asked: Sequence[Observation]) -> Judgement:
    """Learn from some, tell the others."""
    model = predictor.fit(known)
    errors, held = [], []
    for truth in asked:
        try:
            prediction = model.predict(truth.cell)
        except CannotPredict:
            continue
        errors.append(step_time_error(prediction, truth.steps_per_s))
        held.append(prediction.holds(truth.steps_per_s))
    return Judgement(tuple(errors), len(asked) - len(errors), fmean(held) if held else None)


def baseline(known: Sequence[Recorded], asked: Sequence[Recorded]) -> Judgement:
    """Mean ratios: a kind's known cells, each times what its layout and the asked one differ by for all kinds.

    A layout's mean is over kinds against their own means, found by alternating until both fit.
    """
    times = {each.cell: -log(each.observation.steps_per_s) for each in known}
    layout_of = {cell: (cell.batch, cell.threads, cell.ranks) for cell in (*times, *(each.cell for each in asked))}
    kinds = dict.fromkeys({cell.kind for cell in times}, 0.0)
    layouts = dict.fromkeys(set(layout_of.values()), 0.0)
    seen = {layout_of[cell] for cell in times}
    for _ in range(100):
        for kind in kinds:
            kinds[kind] = fmean(time - layouts[layout_of[cell]] for cell, time in times.items() if cell.kind == kind)
        for layout in seen:
            layouts[layout] = fmean(time - kinds[c.kind] for c, time in times.items() if layout_of[c] == layout)
    for layout in set(layouts) - seen:
        layouts[layout] = _nearest(layout, seen, layouts)
    errors = [
        abs(each.observation.steps_per_s * exp(kinds[each.cell.kind] + layouts[layout_of[each.cell]]) - 1.0)
        for each in asked
    ]
    return Judgement(tuple(errors), 0, None)


def _nearest(
    layout: tuple[int, int, int], seen: set[tuple[int, int, int]], means: dict[tuple[int, int, int], float]
) -> float:
    """A layout that was never profiled is as slow as the line through those of its threads and ranks says."""
    alike = sorted(other for other in seen if other[1:] == layout[1:]) or sorted(seen)
    if len(alike) == 1:
        return means[alike[0]]
    low, high = alike[0], alike[-1]
    part = (log(layout[0]) - log(low[0])) / (log(high[0]) - log(low[0])) if low[0] != high[0] else 0.5
    return means[low] + part * (means[high] - means[low])


def floor(recorded: Sequence[Recorded]) -> float:
    """Median over cells and repeats of how far one repeat is from the median of its cell's others."""
    apart = [
        abs(step_s / median(others) - 1.0)
        for each in recorded
        for number, step_s in enumerate(each.step_s)
        if (others := [*each.step_s[:number], *each.step_s[number + 1 :]])
    ]
    return median(apart) if apart else 0.0
