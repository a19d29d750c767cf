"""Generated loads: how many arrivals per hour the fluid fleet could just bear, and jobs at a part of that."""

from statistics import fmean

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from benchmarks.grounds import traces
from optimizer.bounds.instance import SchedulingInstance
from simulator.reports.baselines import BoundsChoice, JobBaselines
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, prepare_run

CLUSTER = "gavel-12-12-12"


def speeds() -> str:
    """Gavel's throughput table."""
    return str(traces().parent / "throughputs" / "simulation_throughputs.json")


def full_per_h(jobs: int, gangs: bool, seeds: range) -> float:
    """Jobs over the time that the fluid fleet is busy with them, mean of the seeds: load 1."""
    return fmean(_full_per_h(jobs, gangs, seed) for seed in seeds)


def _full_per_h(jobs: int, gangs: bool, seed: int) -> float:
    ready = prepare_run(RunSpec(_made(jobs, gangs, 0.0), CLUSTER, "walras", seed, BoundsChoice.NONE))
    roster = JobBaselines(ready.scenario.pools, ready.scenario.truth)
    ids = [job.request.job_id for job in roster.recorded(ready.jobs)]
    return jobs * 3600.0 / _busy_s(roster.instance(ids))


def _busy_s(instance: SchedulingInstance) -> float:
    """How long the fluid fleet is busy with all of it, were every job as divisible as its kind: no job is too long.

    minimise T   s.t.  sum_r rate[j,r] t[j,r] = steps[j],   sum_j gang[j] t[j,r] <= capacity[r] T
    """
    jobs, pools = instance.steps_per_s.shape
    column = np.arange(jobs * pools)
    job, pool = np.divmod(column, pools)
    scale = float(instance.alone_s.max())
    work = sparse.csr_array((instance.steps_per_s.ravel() * scale / instance.steps[job], (job, column)))
    use = sparse.csr_array((instance.gang[job] / instance.capacity[pool], (pool, column)))
    found = linprog(
        np.r_[np.zeros(len(column)), 1.0],
        A_ub=sparse.hstack([use, -np.ones((pools, 1))], format="csr"),
        b_ub=np.zeros(pools),
        A_eq=sparse.hstack([work, np.zeros((jobs, 1))], format="csr"),
        b_eq=np.ones(jobs),
        bounds=(0, None),
        method="highs",
    )
    assert found.status == 0, found.message
    return float(found.x[-1]) * scale


def _made(jobs: int, gangs: bool, rate_per_h: float) -> WorkloadSource:
    return WorkloadSource("generate:gavel", speeds=speeds(), made=GeneratorOptions(jobs, rate_per_h, gangs))


def at_load(load: float, jobs: int, gangs: bool, full: float) -> WorkloadSource:
    """Poisson arrivals at this part of what the fluid fleet bears."""
    return _made(jobs, gangs, load * full)
