"""When the last job ends: Gavel's trace of 100 jobs at once under the policy `makespan` (needs `WALRAS_DATA`).

    WALRAS_DATA=... python -m benchmarks grounds_makespan

Rigid jobs, each alone on its accelerators: the scheduler with the policy file that comes with it. With pairs: the same
policy's shares in Gavel's rounds, because our scheduler starts no pairs. The fluid bounds are 63,750 and 57,484 s.
"""

from benchmarks.grounds import serve, traces
from benchmarks.grounds_pairs import in_pairs
from benchmarks.tables import Measured
from simulator.reports.run_spec import WorkloadSource

CLUSTER = "gavel-8-16-24"
_ALONE_S, _PAIRS_S = 64_150.0, 60_000.0


def measure(scale: float) -> list[Measured]:
    """It is small: the same at every scale."""
    measured = Measured("makespan", f"minimize_makespan, {CLUSTER}, exact speeds, free restarts")
    source = WorkloadSource(str(traces() / "minimize_makespan.tsv"))
    alone = serve(source, CLUSTER, "makespan")
    measured.add("rigid, unpacked", alone.makespan_s, "s", at_most=_ALONE_S)
    measured.add("   preemptions per job", alone.moves, "")
    measured.add("with pairs", serve(source, CLUSTER, "makespan", change=in_pairs).makespan_s, "s", at_most=_PAIRS_S)
    return [measured]
