"""Judging predictors by a recorded matrix of CPU speeds."""

import json
from math import exp
from random import Random
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

from benchmarks.cpu_matrix import BATCHES, RECORDED, CpuCell
from benchmarks.cpu_scores import SHARE, Recorded, baseline, chosen, floor, judged, predictors, read
from optimizer.prediction.affine_law import AffinePredictor


def document(noise: float) -> dict[str, Any]:
    """A made-up matrix: twelve kinds with costs by step and by sample, own gains from threads, and exchange."""
    random = Random(4)
    kinds, rows = {}, []
    for number in range(12):
        facts = {"flops_per_sample": 1e6 * (number + 1), "gradient_bytes": 1e5 * (number + 1), "layers": 3 + number}
        kinds[f"kind-{number}"] = facts
        fixed, sample, gain = random.uniform(2e-4, 3e-3), random.uniform(1e-5, 5e-4), random.uniform(0.5, 1.0)
        for threads in (1, 2):
            for ranks in (1, 2):
                for batch in BATCHES:
                    step_s = fixed + sample * batch * (gain if threads == 2 else 1.0)
                    step_s = step_s * (1.0 if ranks == 1 else 1.3) + (ranks - 1) * (2e-4 + 5e-5 * facts["layers"])
                    times = [step_s * exp(random.gauss(0.0, noise)) for _ in range(5)]
                    cell = {"kind": f"kind-{number}", "batch": batch, "threads": threads, "ranks": ranks}
                    rows.append({**cell, "step_s": times})
    return {"kinds": kinds, "rows": rows}


def parted(recorded: list[Recorded]) -> tuple[list[Recorded], list[Recorded]]:
    profiled = chosen([each.cell for each in recorded])
    known = [each for each in recorded if each.cell in profiled]
    return known, [each for each in recorded if each.cell not in profiled]


def test_at_most_the_stated_share_is_profiled() -> None:
    """Every kind is profiled, at both ends of its batches, and never more than the stated share of all cells."""
    cells = [each.cell for each in read(document(0.0))]
    profiled = chosen(cells)
    assert len(profiled) <= SHARE * len(cells)
    assert profiled <= set(cells)
    assert all(CpuCell(f"kind-{n}", batch, 1, 1) in profiled for n in range(12) for batch in (BATCHES[0], BATCHES[-1]))


def test_the_floor_is_that_of_the_noise() -> None:
    """A repeat differs from the median of its four others by the noise, and a little for theirs."""
    assert floor(read(document(0.0))) == 0.0
    assert floor(read(document(0.04))) == pytest.approx(0.03, rel=0.2)


def test_lines_beat_mean_ratios() -> None:
    """On kinds that scale differently, the predictor is at least a quarter better than the baseline."""
    known, asked = parted(read(document(0.03)))
    found = judged(AffinePredictor(), [each.observation for each in known], [each.observation for each in asked])
    assert found.refused == 0
    assert found.median <= 0.08
    assert found.median <= 0.75 * baseline(known, asked).median


@pytest.mark.slow
def test_real_training_is_told_from_a_third_of_its_cells() -> None:
    """The recorded matrix: within 8 %, a quarter below mean ratios, and 80 % intervals that hold 70 to 90 %."""
    known, asked = parted(read(json.loads(RECORDED.read_text())))
    with threadpool_limits(1):  # small matrices: threads would only wait for each other
        found = judged(predictors()[0], [each.observation for each in known], [each.observation for each in asked])
    assert found.refused == 0
    assert found.median <= max(0.08, 1.5 * floor([*known, *asked]))
    assert found.median <= 0.75 * baseline(known, asked).median
    assert found.coverage is not None
    assert 0.7 <= found.coverage <= 0.9
