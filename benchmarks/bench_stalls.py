"""Stalls that were planted in a real training script, and where the profiler finds them.

    python -m benchmarks stalls

Two ranks on this machine, gloo. A profile without any plant, then one for each; a plant is found by what a stall grew
by. The slow network is a delay around the all-reduce of gloo where every rank is a machine of its own (the loopback);
the slow disk, one around reads of what the host has not in memory. Thirty runs, each of which has its time limit: four
minutes on a quiet machine, eight where others use its processors as well. What is planted is long against what their
use of them moves a step by, which is milliseconds.
"""

import sys

from benchmarks.stall_runs import PLANTS, profiled, seconds
from benchmarks.tables import Measured
from walras.profiling.profiles import ProfilingExtent

_PLANTED_S, _UPDATES = 0.2, 30


def measure(scale: float) -> list[Measured]:
    """One table."""
    extent = ProfilingExtent(warm_up=5, updates=max(10, round(_UPDATES * scale)), timeout_s=90.0)
    bare = seconds(profiled({}, extent, sys.executable))
    setting = f"{1000 * _PLANTED_S:g} ms a step, {extent.updates} steps a run, 2 ranks, gloo"
    measured = Measured("planted stalls", setting)
    for plant, right in PLANTS.items():
        found = seconds(profiled({plant: _PLANTED_S}, extent, sys.executable))
        grew = {name: 100 * (found[name] - bare[name]) / _PLANTED_S for name in found if name in bare}
        measured.add(f"slow {plant.lower()}: part found in {right!r}", grew.get(right, 0.0), "%", at_least=90)
        wrong = {name: part for name, part in grew.items() if name != right}
        worst = max(wrong, key=lambda name: abs(wrong[name]))
        measured.add(f"   most in any other ({worst!r})", abs(wrong[worst]), "%", at_most=5)
    return [measured]
