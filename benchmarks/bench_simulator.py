"""How long a million jobs take, first come first served, and how much memory; then recorded traces (`traces.py`).

Each size runs in a process of its own, so that its peak memory is its own. The jobs are made as they are needed and
their measures are only added up: what is left in memory is what is active. Offered load is about 95 % of the fleet.
"""

import resource
from collections.abc import Iterator
from random import Random
from time import process_time

from benchmarks import traces
from benchmarks.tables import Measured
from benchmarks.traces import in_a_process_of_its_own
from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import SimulatedJob
from scheduler.world.engine import RunOutcome
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.metrics import JobMetrics
from simulator.simulation import Scenario, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

JOBS, ACCELERATORS = 1_000_000, 10_000
TARGET_S = 240.0
_PER_MACHINE = 8
_MEAN_S = 3600.0
_LOAD = 0.95
_GANGS = (1, 1, 1, 1, 1, 1, 1, 2, 4, 8)
_KINDS = [Kind(f"kind-{n}") for n in range(20)]
#: What ten times the jobs may take of memory, as many being active at a time.
_GROWTH = 1.25
#: A run that hangs is ended after this many times its target.
_PATIENCE = 5


def jobs(count: int, accelerators: int, seed: int) -> Iterator[SimulatedJob]:
    """Poisson arrivals, exponential lengths, mostly single-accelerator gangs."""
    random = Random(f"{seed}/workload")
    mean_gang = sum(_GANGS) / len(_GANGS)
    arrivals_per_s = _LOAD * accelerators / (mean_gang * _MEAN_S)
    at = 0.0
    for number in range(1, count + 1):
        at += random.expovariate(arrivals_per_s)
        steps = 1.0 + random.expovariate(1.0 / _MEAN_S)
        gang, kind = random.choice(_GANGS), random.choice(_KINDS)
        request = JobRequest(JobId(number), kind, demands=(Demand("a100", gang),), steps=steps)
        yield SimulatedJob(at, request, steps)


class Totals:
    """Takes the jobs' measures and keeps none."""

    def __init__(self) -> None:
        self.ended = 0
        self.jct_s = 0.0
        self.waited = 0

    def __call__(self, measure: JobMetrics) -> None:
        self.ended += 1
        self.jct_s += measure.jct_s
        self.waited += measure.queueing_s > 0


def run(count: int, accelerators: int) -> dict[str, float]:
    """One simulation in this process: seconds, peak memory, and proof that it did the work."""
    pool = Pool(PoolId("a100"), Shape("a100x8", "a100", _PER_MACHINE, 64.0, 2**39))
    truth = GroundTruth({SpeedKey(kind, "a100"): 1.0 for kind in _KINDS})
    pools = (PoolModel(pool, machines=max(1, accelerators // _PER_MACHINE)),)
    totals = Totals()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = process_time()
    result = simulate(
        jobs(count, accelerators, seed=1),
        Scenario(pools, truth, PolicySpec("fifo", {"strict": False}), RoundRules()),
        sink=totals,
    )
    cpu_s = process_time() - began_s
    assert result.outcome is RunOutcome.COMPLETE, result.outcome
    assert totals.ended == count
    assert not result.violations, result.violations[:3]
    (meter,) = result.pools
    return {
        "wall_s": result.wall_s,
        "cpu_s": cpu_s,
        "events": result.events,
        "before_mib": before / 1024,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "avg_jct_s": totals.jct_s / count,
        "waited": totals.waited / count,
        "utilisation": meter.held_s / meter.there_s,
    }


def measure(scale: float = 1.0) -> list[Measured]:
    """`scale` shrinks the number of jobs, not the fleet: memory must follow the fleet, not the jobs."""
    measured = Measured("simulated jobs, fifo with backfill", f"{ACCELERATORS} accelerators, load {_LOAD:.0%}")
    full = max(1000, int(JOBS * scale))
    above_mib: list[float] = []
    for count in (full // 10, full):
        figures = in_a_process_of_its_own(
            f"benchmarks.bench_simulator.run({count}, {ACCELERATORS})", _PATIENCE * TARGET_S
        )
        target = TARGET_S * count / JOBS if count == full else None
        measured.add(f"{count:,} jobs", figures["wall_s"], "s", target)
        measured.add("  of which on the processor", figures["cpu_s"], "s")
        above_mib.append(figures["peak_mib"] - figures["before_mib"])
        measured.add("  peak memory above the start", above_mib[-1], "MiB")
        measured.add("  processor time per event", 1e6 * figures["cpu_s"] / figures["events"], "us")
        measured.add("  utilisation", 100 * figures["utilisation"], "%")
        measured.add("  jobs that waited", 100 * figures["waited"], "%")
    whole = scale >= 1  # a tenth of fewer jobs does not fill the fleet
    measured.add("memory, ten times the jobs", above_mib[1] / above_mib[0], "times", _GROWTH if whole else None)
    return [measured, *traces.measure(scale)]
