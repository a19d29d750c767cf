"""Step times of real training on a CPU, told from at most 30 % of them.

    python -m benchmarks cpu_matrix

judges predictors by `cpu_matrix.json`, which `python -m benchmarks.cpu_matrix --measure FILE` records.
"""

import json

from benchmarks.cpu_matrix import RECORDED
from benchmarks.cpu_scores import SHARE, baseline, chosen, floor, judged, predictors, read
from benchmarks.tables import Measured


def measure(scale: float) -> list[Measured]:
    """One table; nothing without a record."""
    if not RECORDED.exists():
        return []
    document = json.loads(RECORDED.read_text())
    recorded = read(document)
    profiled = chosen([each.cell for each in recorded])
    known = [each for each in recorded if each.cell in profiled]
    asked = [each for each in recorded if each.cell not in profiled]
    setting = f"{len(known)} of {len(recorded)} cells profiled; {document['machine']}, {document['date']}"
    measured = Measured("step times of real training on a CPU", setting)
    measured.add("cells profiled", 100 * len(known) / len(recorded), "%", at_most=100 * SHARE)
    noise = floor(recorded)
    measured.add("noise floor: a cell's repeat against its others, median", 100 * noise, "%")
    plain = baseline(known, asked).median
    measured.add("baseline, mean ratios: median error", 100 * plain, "%")
    goal = 100 * min(max(0.08, 1.5 * noise), 0.75 * plain)
    for place, predictor in enumerate(predictors()):
        found = judged(predictor, [each.observation for each in known], [each.observation for each in asked])
        counts = place == 0
        name = f"{predictor.name}: median error"
        measured.add(name, 100 * found.median, "%", at_most=goal if counts else None)
        if found.coverage is not None:
            low, high = (70, 90) if counts else (None, None)
            measured.add("   inside 80 % intervals", 100 * found.coverage, "%", at_least=low, at_most=high)
        measured.add("   refused", found.refused, "")
    return [measured]
