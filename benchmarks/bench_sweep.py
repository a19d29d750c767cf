"""How much faster a sweep is on two processes than on one.

Runs of five seconds and more: below that, starting the processes is what is measured. Both sweeps do the same runs and
must come to the same figures. The figure means something only where two processors are free.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.tables import Measured
from simulator.reports.baselines import BoundsChoice
from simulator.reports.repeated_runs import ParallelWorkers
from simulator.reports.sweep import SweepGrid, SweepResult, run_sweep

#: Jobs of one run.
JOBS, RUNS = 40_000, 8
SPEEDUP = 1.8
RUN_S = 5.0


def grid(jobs: int) -> SweepGrid:
    """First come, first served on 512 accelerators, at about two thirds of what they can do."""
    return SweepGrid(
        workloads=("generate:poisson",),
        clusters=("philly-512",),
        policies=("fifo",),
        seeds=tuple(range(RUNS)),
        rates=(240.0,),
        trace_jobs=jobs,
        columns={},
        stretch=0.25,
        bounds=BoundsChoice.NONE,
    )


def timed(jobs: int, processes: int) -> tuple[SweepResult, float]:
    """One sweep into a folder of its own, and how long it took."""
    with TemporaryDirectory() as folder:
        began = perf_counter()
        swept = run_sweep(grid(jobs), Path(folder), ParallelWorkers(processes))
        return swept, perf_counter() - began


def measure(scale: float = 1.0) -> list[Measured]:
    """The ratio; runs are smaller below a scale of 1, and the target does not hold for them."""
    jobs = max(10, int(JOBS * scale))
    one, one_s = timed(jobs, 1)
    two, two_s = timed(jobs, 2)
    assert str([row.values for row in one.rows]) == str([row.values for row in two.rows]), "figures differ"
    measured = Measured("sweep", f"{RUNS} runs of {jobs:,} jobs, first come first served, 512 accelerators")
    measured.add("one run", one_s / RUNS, "s", at_least=RUN_S if scale >= 1 else None)
    measured.add("on one process", one_s, "s")
    measured.add("on two processes", two_s, "s")
    measured.add("speed-up", one_s / two_s, "times", at_least=SPEEDUP if scale >= 1 else None)
    return [measured]
