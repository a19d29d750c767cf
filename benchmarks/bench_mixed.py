"""How gangs over several pools change mean completion times, where whole gangs leave accelerators over and where not.

    python -m benchmarks mixed [--row fragments whole hadar-60]

Generated jobs of `hadar-60`, a twentieth as long, all at once and at Poisson arrivals; a start is 60 s. Under Gavel's
`max_min_fairness`, `hadar` and `walras` gangs are in one pool. `hadar` also takes gangs at the pace of their slowest
accelerator (Hadar), and forks jobs into three whole gangs (HadarE); `walras` also takes gangs that share each batch.

Grounds: *fragments*, gangs of 4 and 5 on three pools of 6, types 4 : 2 : 1, where whole gangs leave a third of the
fleet; *whole*, gangs of 2 and 3 there, which fill the pools; *hadar-60*, gangs of 1, 2, 4 and 8 on three pools of 20.
Such gangs bring at most the speed of all accelerators over the speed of those that whole gangs can take.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.tables import Measured
from scheduler.world.attempts import AttemptCosts
from simulator.experiment import trace_experiment
from simulator.reports.repeated_runs import estimate_mean
from simulator.shipped_configs import load_named_policy
from simulator.simulation import Scenario, simulate
from simulator.workloads.generators import generate_jobs, generator_request
from simulator.workloads.trace_source import Trace
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml

_CLUSTER = Path(__file__).resolve().parents[1] / "configs" / "clusters" / "hadar-60.yaml"
_SPEEDS = {"v100": 4.0, "p100": 2.0, "k80": 1.0}
_SEEDS, _STRETCH, _START_S = range(8), 0.05, 60.0


@dataclass(frozen=True, slots=True)
class _Ground:
    #: Gang by that of hadar-60.
    gangs: Mapping[int, int]
    #: Machines of a pool, their accelerators, jobs, and arrivals per hour.
    machines: int
    size: int
    jobs: int
    rate_per_h: float
    #: The most that the default policy with such gangs may take, of the best policy without.
    at_most: float


_GROUNDS = {
    "fragments": _Ground({1: 4, 2: 4, 4: 4, 8: 5}, 3, 2, 16, 6.0, 0.92),
    "whole": _Ground({1: 2, 2: 2, 4: 3, 8: 3}, 3, 2, 16, 8.0, 1.005),
    "hadar-60": _Ground({1: 1, 2: 2, 4: 4, 8: 8}, 5, 4, 24, 24.0, 1.005),
}
ROWS = tuple(_GROUNDS)
_ALONE = ("Gavel", "hadar in one pool", "walras in one pool")
_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gavel": ("max_min_fairness", {}),
    "hadar in one pool": ("hadar", {}),
    "Hadar": ("hadar", {"mixed": True}),
    "HadarE": ("hadar", {"fork_max": 3}),
    "walras in one pool": ("walras", {}),
    "walras": ("walras", {"mixed": "shares"}),
}


def measure(scale: float, row: str) -> list[Measured]:
    """A ground with all jobs at once, and with arrivals."""
    return [_told(row, rate_per_h, scale) for rate_per_h in (0.0, _GROUNDS[row].rate_per_h)]


def _told(name: str, rate_per_h: float, scale: float) -> Measured:
    ground, seeds = _GROUNDS[name], _SEEDS if scale >= 1 else range(2)
    jobs, when = max(6, round(ground.jobs * scale)), f"{rate_per_h:g} an hour" if rate_per_h else "all at once"
    measured = Measured(f"mixed gangs, {name}, {when}", f"{jobs} jobs, {len(seeds)} seeds, 95 % intervals")
    hours = {
        way: [_mean_jct_s(ground, policy, how, jobs, rate_per_h, seed) / 3600 for seed in seeds]
        for way, (policy, how) in _WAYS.items()
    }
    for way, found in hours.items():
        measured.add(f"{way}: JCT", estimate_mean(found).mean, "h")
    best = min(_ALONE, key=lambda way: sum(hours[way]))
    ratios = {way: [ours / its for ours, its in zip(hours["walras"], hours[way], strict=True)] for way in _WAYS}
    against = estimate_mean(ratios[best])
    measured.add("against the best in one pool: mean", against.mean, "x", at_most=ground.at_most)
    measured.add("against the best in one pool: 95 %, +-", against.high - against.mean, "x")
    measured.add("against the best in one pool: worst seed", max(ratios[best]), "x")
    for way in (each for each in _WAYS if each != "walras"):
        ratio = estimate_mean(ratios[way])
        measured.add(f"against {way}: mean", ratio.mean, "x")
        measured.add(f"against {way}: 95 %, +-", ratio.high - ratio.mean, "x")
    return measured


def _mean_jct_s(
    ground: _Ground, policy_name: str, how: Mapping[str, Any], jobs: int, rate_per_h: float, seed: int
) -> float:
    asked = generator_request("hadar-60", jobs=jobs, rate_per_h=rate_per_h, seed=seed, stretch=_STRETCH)
    made = [replace(job, gang=ground.gangs[job.gang], **how) for job in generate_jobs("hadar-60", asked)]
    experiment = trace_experiment(Trace("hadar-60", "generated", made), _cluster(ground))
    policy, rules = load_named_policy(policy_name)
    truth = replace(experiment.truth, default_costs=AttemptCosts(start_s=_START_S))
    result = simulate(experiment.jobs, Scenario(experiment.pools, truth, policy, rules, seed=seed))
    assert not result.violations, result.violations
    return sum(job.jct_s for job in result.jobs) / len(result.jobs)


def _cluster(ground: _Ground) -> ClusterConfig:
    """The pools of hadar-60 with machines of this ground, and types 4 : 2 : 1 for all kinds of job."""
    shipped = load_yaml(_CLUSTER, ClusterConfig)
    size = {"accelerators": ground.size, "machines": ground.machines}
    pools = [entry.model_copy(update=size | {"shape": f"{entry.accelerator}x{ground.size}"}) for entry in shipped.pools]
    speeds = shipped.speeds if ground.size == 4 else {kind: dict(_SPEEDS) for kind in shipped.speeds}
    return shipped.model_copy(update={"pools": tuple(pools), "speeds": speeds})
