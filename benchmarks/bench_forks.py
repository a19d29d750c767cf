"""What forking brings where there are fewer jobs than machines: one to twelve jobs on five unlike machines.

    python -m benchmarks forks

The policy `hadar` alone in exact rounds (see `bench_hadar`), all jobs there from the beginning, one accelerator each:
as it is, and with jobs that may be forked over all machines (HadarE), as fast as their parts together less what
averaging costs. The paper (arXiv 2503.10918) tells of 1.45 times the utilisation and of half the total time; its jobs
and machines are not public, so the mixes are ours.

Then the same policy through the whole scheduler, in the simulator: the generated jobs of `hadar-60` on its cluster, all
of which may be forked, against the same jobs whole. A restart costs 60 s, and averaging 5 %.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.bench_hadar import Served, Work, serve, work_of
from benchmarks.tables import Measured
from optimizer.policies.hadar import Hadar
from scheduler.world.attempts import AttemptCosts
from simulator.experiment import trace_experiment
from simulator.shipped_configs import load_named_policy
from simulator.simulation import Scenario, SimulationResult, simulate
from simulator.workloads.generators import generate_jobs, generator_request
from simulator.workloads.trace_source import Trace
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml

_MOST_JOBS = 12
#: Machines of one accelerator each, of the types of hadar-60.
_MACHINES = np.array([2.0, 2.0, 1.0])
_SEEDS = range(5)
#: Of the simulated ones.
_SIMULATED_JOBS, _PARTS, _SIMULATED_SEEDS = 60, 4, (0, 1, 2)
_RATES = {"all at once": 0.0, "0.3 jobs/h": 0.3}
_CLUSTER = Path(__file__).resolve().parents[1] / "configs" / "clusters" / "hadar-60.yaml"
_SYNC = {"no cost of averaging": 0.0, "5 % for averaging": 0.05, "20 % for averaging": 0.2}


def measure(scale: float) -> list[Measured]:
    """Ratios over all mixes, and those with fewer jobs than machines."""
    most = max(2, round(_MOST_JOBS * scale))
    measured = Measured(
        "forks", f"mixes of 1 to {most} jobs on 5 machines, {len(_SEEDS)} seeds; times are means of ratios"
    )
    mixes = [_mix(jobs, seed) for jobs in range(1, most + 1) for seed in _SEEDS]
    whole = [serve(work, Hadar(mixed=False)) for work in mixes]
    for name, sync in _SYNC.items():
        forked = [serve(replace(work, fork_max=5.0, sync=sync), Hadar(mixed=False, sync=sync)) for work in mixes]
        for which, few in (("all mixes", most), ("fewer jobs than machines", 4)):
            pairs = [
                (before, after)
                for work, before, after in zip(mixes, whole, forked, strict=True)
                if len(work.steps) <= few
            ]
            _tell(measured, f"{name}, {which}", pairs)
    return [measured, _simulated(scale)]


def _simulated(scale: float) -> Measured:
    """Through scheduler and simulator, at a light load and with all jobs there at the beginning."""
    jobs = max(10, round(_SIMULATED_JOBS * scale))
    measured = Measured(
        "forks, simulated", f"hadar-60, {jobs} jobs, {len(_SIMULATED_SEEDS)} seeds; forks of up to {_PARTS} parts"
    )
    for load, rate_per_h in _RATES.items():
        for name, parts in (("whole", 1), ("forked", _PARTS)):
            runs = [_run(jobs, rate_per_h, seed, parts) for seed in _SIMULATED_SEEDS]
            measured.add(f"{load}, {name}: JCT", float(np.mean([_mean_jct_s(run) for run in runs])) / 3600, "h")
            total_s = [run.last_ended_at - run.first_submitted_at for run in runs]
            measured.add(f"{load}, {name}: total time", float(np.mean(total_s)) / 3600, "h")
            measured.add(f"{load}, {name}: accelerators that run", float(np.mean([_used(run) for run in runs])), "%")
    return measured


def _mean_jct_s(run: SimulationResult) -> float:
    return float(np.mean([job.jct_s for job in run.jobs]))


def _used(run: SimulationResult) -> float:
    return 100 * sum(pool.running_s for pool in run.pools) / sum(pool.there_s for pool in run.pools)


def _run(jobs: int, rate_per_h: float, seed: int, parts: int) -> SimulationResult:
    asked = generator_request("hadar-60", jobs=jobs, rate_per_h=rate_per_h, seed=seed)
    made = [replace(job, fork_max=parts) for job in generate_jobs("hadar-60", asked)]
    experiment = trace_experiment(Trace("hadar-60", "generated", made), load_yaml(_CLUSTER, ClusterConfig))
    policy, rules = load_named_policy("hadar")
    truth = replace(experiment.truth, default_costs=AttemptCosts(start_s=60.0))
    result = simulate(experiment.jobs, Scenario(experiment.pools, truth, policy, rules, seed=seed))
    assert not result.violations, result.violations
    return result


def _tell(measured: Measured, name: str, pairs: list[tuple[Served, Served]]) -> None:
    used = np.mean([after.used for _, after in pairs]) / np.mean([before.used for before, _ in pairs])
    shorter = np.mean([after.makespan_s / before.makespan_s for before, after in pairs])
    sooner = np.mean([after.mean_s / before.mean_s for before, after in pairs])
    measured.add(f"{name}: mean utilisation", float(used), "x")
    measured.add(f"{name}: total time", 100 * (float(shorter) - 1), "%")
    measured.add(f"{name}: JCT", 100 * (float(sooner) - 1), "%")


def _mix(jobs: int, seed: int) -> Work:
    """Jobs of hadar-60 of one to ten hours on the best type, on single machines."""
    work = work_of(jobs, 0.0, seed)
    rng = np.random.default_rng((seed, jobs))
    fastest = work.steps_per_s.max(axis=1)
    steps = rng.uniform(1.0, 10.0, jobs) * 3600.0 * fastest
    return replace(work, arrived_at=np.zeros(jobs), gang=np.ones(jobs), steps=steps, capacity=_MACHINES)
