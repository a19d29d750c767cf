"""The bathtub law of preemptible machines' lives (Kadupitiya and others, HPDC'20), which conditions and providers name.

python -m benchmarks.seeds.bathtub
"""

import sys
from collections.abc import Iterator

from benchmarks.seeds.comparison import Comparison, run_comparisons
from optimizer.renting.lifetime_laws import BathtubLifetime

#: Parameters of the published code, and F(t) by the age in hours.
_LAW = BathtubLifetime(0.4137, 0.9, 0.76, 24.0)
_GONE = ((1, 0.278), (3, 0.399), (12, 0.414), (22, 0.443), (23, 0.525), (24, 0.827))


def compare() -> Iterator[Comparison]:
    """One table."""
    found = Comparison("Part of the machines that are gone by an age (HPDC'20)")
    for age_h, gone in _GONE:
        found.equal(f"{age_h} h", gone, 1.0 - _LAW.survival(age_h), within=5e-4)
    found.equal("beyond the cap of 24 h", 1.0, 1.0 - _LAW.survival(24.01))
    yield found


if __name__ == "__main__":
    sys.exit(run_comparisons(compare))
