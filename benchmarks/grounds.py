"""Runs on the grounds of other schedulers: one workload, several ways to serve it, the same chance for all.

Reference A is a run that Gavel's own simulator recorded. Reference B is max-min fairness with speeds, solved at every
event, without a gate and at equal restart costs; it is the one that counts. x is what a mean completion time is above
no contention, over the same of the reference.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

from benchmarks.needs import reference_data
from optimizer.bounds.flow_time import flow_time_bound
from optimizer.bounds.instance import SchedulingInstance
from scheduler.world.attempts import SimulatedJob
from simulator.reports.baselines import BoundsChoice, JobBaselines
from simulator.reports.run_spec import RunSpec, WorkloadSource, prepare_run
from simulator.simulation import Scenario, Simulation
from walras.states import JobState

#: Prices of the bound are constant for so long, and improved so often.
_PRICED_S, _PRICED_STEPS = 1800.0, 300
Change = Callable[[Scenario], Scenario]
Retell = Callable[[Iterable[SimulatedJob]], Iterable[SimulatedJob]]


def traces() -> Path:
    """The folder of Gavel's traces."""
    return reference_data() / "gavel" / "traces"


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a run; seconds. Every list is in the order of the jobs' numbers."""

    job_ids: list[int]
    jct_s: list[float]
    alone_s: list[float]
    preemptions: int
    makespan_s: float
    cpu_s: float

    @property
    def mean_s(self) -> float:
        """Mean completion time of all jobs."""
        return mean(self.jct_s)

    @property
    def no_contention_s(self) -> float:
        """The same if every job had the fleet to itself."""
        return mean(self.alone_s)

    @property
    def slowdowns(self) -> list[float]:
        """Completion times over those alone on the best type."""
        return [jct / alone for jct, alone in zip(self.jct_s, self.alone_s, strict=True)]

    @property
    def moves(self) -> float:
        """Preemptions per job."""
        return self.preemptions / len(self.jct_s)

    def over(self, job_ids: Collection[int]) -> "Served":
        """These jobs alone."""
        rows = [row for row, job_id in enumerate(self.job_ids) if job_id in job_ids]
        part = [[told[row] for row in rows] for told in (self.jct_s, self.alone_s)]
        return replace(self, job_ids=[self.job_ids[row] for row in rows], jct_s=part[0], alone_s=part[1])


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def excess(ours: Served, reference_s: float) -> float:
    """x against the mean completion time of a reference on the same jobs."""
    return (ours.mean_s - ours.no_contention_s) / (reference_s - ours.no_contention_s)


def as_shipped(scenario: Scenario) -> Scenario:
    """Nothing changed."""
    return scenario


def as_told(jobs: Iterable[SimulatedJob]) -> Iterable[SimulatedJob]:
    """Nothing changed."""
    return jobs


def reference_b(scenario: Scenario) -> Scenario:
    """No gate, no patience and no lag: the reference decides at events as we do."""
    rules = scenario.rules
    rules = replace(rules, resolve_min_s=0.0, restart_default_s=0.0, min_runtime_s=0.0, tolerated_lag=0.0)
    return replace(scenario, rules=rules)


def priced_bound_s(source: WorkloadSource, cluster: str, seed: int = 0) -> float:
    """What no schedule's mean completion time of all jobs can go below, by prices over time."""
    return flow_time_bound(instance_of(source, cluster, seed), interval_s=_PRICED_S, steps=_PRICED_STEPS).mean_s


def instance_of(source: WorkloadSource, cluster: str, seed: int = 0) -> SchedulingInstance:
    """The jobs and pools of a run as bounds see them."""
    ready = prepare_run(RunSpec(source, cluster, "walras", seed, BoundsChoice.NONE))
    roster = JobBaselines(ready.scenario.pools, ready.scenario.truth)
    return roster.instance([job.request.job_id for job in roster.recorded(ready.jobs)])


def serve(
    source: WorkloadSource,
    cluster: str,
    policy: str,
    *,
    seed: int = 0,
    change: Change = as_shipped,
    retell: Retell = as_told,
    hearsay: Change = as_shipped,
) -> Served:
    """Run it; every job must succeed and no law of conservation be broken.

    `change` is of the world and the scheduler, `retell` of what jobs say of themselves, `hearsay` of what the scheduler
    is told of the world without its being so.
    """
    ready = prepare_run(RunSpec(source, cluster, policy, seed, BoundsChoice.NONE))
    roster = JobBaselines(ready.scenario.pools, ready.scenario.truth)
    simulation = Simulation(change(ready.scenario))
    simulation.scenario = hearsay(simulation.scenario)  # the world is made, the scheduler not yet told of it
    began = process_time()
    result = simulation.run(retell(roster.recorded(ready.jobs)))
    cpu_s = process_time() - began
    assert not result.violations, f"{policy}: {result.violations[:3]}"
    assert not result.unfinished, f"{policy}: {len(result.unfinished)} jobs did not end"
    jobs = sorted(result.jobs, key=lambda job: job.job_id)
    assert all(job.state is JobState.SUCCEEDED for job in jobs), f"{policy}: a job failed"
    return Served(
        [int(job.job_id) for job in jobs],
        [job.jct_s for job in jobs],
        [roster.alone_s(job.job_id) for job in jobs],
        sum(job.preemptions for job in jobs),
        result.last_ended_at - result.first_submitted_at,
        cpu_s,
    )
