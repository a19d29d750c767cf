"""Sailor (SOSP'25): one language model over two types of accelerator, beside the plans that its own planner recorded.

    WALRAS_DATA=... python -m benchmarks.seeds.sailor

OPT-350, 1,024 samples a step, from the layers, links and memory that its profiler measured. Its planner was asked
fifteen times for speed and once for money. Ours lists every useful pair of counts of A100 and V100 with its fastest
plan: none of the recorded answers may be faster or cheaper, and eleven are the same plan.
"""

import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from time import process_time
from typing import Any

from benchmarks.seeds.comparison import Comparison, reference_data, run_comparisons
from benchmarks.seeds.sailor_plans import MixedPlan, plan_mixes
from benchmarks.seeds.sailor_profiles import read_profile

A100, V100 = "A100-40", "V100-16"
#: Relative, between two plans that are the same.
_SAME = 1e-5


def compare() -> Iterator[Comparison]:
    """One table."""
    folder = reference_data() / "sailor"
    given = json.loads(gzip.decompress((folder / "opt350_profiles.json.gz").read_bytes()))
    rows: list[dict[str, Any]] = json.loads((folder / "recorded.json").read_text())["rows"]
    began = process_time()
    menu = plan_mixes(read_profile(given, [A100, V100]), (80, 240))
    seconds, useful = process_time() - began, len(menu)
    menu += plan_mixes(read_profile(given, [A100]), (128, 0))
    asked = [row for row in rows if row["objective"] == "throughput"]
    ratios = [max(plan.steps_per_s for plan in _within(menu, row)) / row["iterations_per_s"] for row in asked]
    found = Comparison("Sailor's plans for OPT-350")
    found.equal("useful pairs of 80 A100 and 240 V100", 2443, useful)
    found.show("processor time for all of them, s", seconds)
    found.equal("asks for speed", 15, len(asked))
    found.equal("   with the same answer", 11, sum(abs(ratio - 1) < _SAME for ratio in ratios))
    found.at_least("   our speed over the recorded one, least", 1 - _SAME, min(ratios))
    found.show("   most", max(ratios))
    (row,) = (row for row in rows if row["objective"] == "iteration_cost")
    usd_per_h = given["usd_per_gpu_hour"]
    able = [plan for plan in _within(menu, row) if plan.steps_per_s >= row["min_iterations_per_s"]]
    cheapest = min(_usd_per_step(plan, usd_per_h) for plan in able)
    found.at_most("ask for money: USD of a step", row["usd_per_iteration"] * (1 + _SAME), cheapest)
    yield found


def _within(menu: Sequence[MixedPlan], row: Mapping[str, Any]) -> list[MixedPlan]:
    return [plan for plan in menu if plan.accelerators[0] <= row["a100_40"] and plan.accelerators[1] <= row["v100_16"]]


def _usd_per_step(plan: MixedPlan, usd_per_h: Mapping[str, float]) -> float:
    per_h = sum(count * usd_per_h[name] for count, name in zip(plan.accelerators, (A100, V100), strict=True))
    return per_h / 3600 / plan.steps_per_s


if __name__ == "__main__":
    sys.exit(run_comparisons(compare))
