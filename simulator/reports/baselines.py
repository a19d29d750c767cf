"""The baselines of a run: each job alone in the fleet, lower bounds, and finish-time fairness.

`JobBaselines` records every job before it is simulated: its work, its gang, and its true speed on every pool, in a few
numbers per job. `lower_bounds` computes three bounds that no scheduler beats, and the run's distance to each. They
cover the jobs that succeeded (without the others the fleet is emptier, so bounds only get smaller), with true speeds,
free restarts, and rented machines up to their quota from the start. `fairness_metrics` computes finish-time fairness in
both definitions and Jain's index. `docs/simulator.md` states the formulas.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import isfinite, nan

import numpy as np

from optimizer.bounds.instance import FloatArray, SchedulingInstance, no_contention_jct_s
from optimizer.problem import IntArray
from scheduler.core.state.fleet import split_gang
from scheduler.world.attempts import SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth
from simulator.metrics import JobMetrics
from simulator.worlds.world_registry import LeastUse
from walras.job_request import GangPlan, JobId, JobRequest


class JobBaselines:
    """The jobs of one run. Pools count at their maximum: owned machines, and the quota of rented ones."""

    def __init__(
        self,
        pools: Sequence[PoolModel],
        truth: GroundTruth,
        alone_s: Mapping[JobId, float] | None = None,
        least: Mapping[JobId, LeastUse] | None = None,
    ) -> None:
        """Where steps and speeds do not determine them: seconds of each job alone, and what it needs for the bounds."""
        self._types = [model.pool.shape.accelerator for model in pools]
        self._capacity = np.array(
            [max(model.machines, model.pool.quota) * model.pool.shape.accelerators for model in pools], dtype=float
        )
        self._machine_size = [model.pool.shape.accelerators for model in pools]
        self._truth = truth
        self._alone_s = alone_s
        self._least = least
        self._configurations: dict[object, int] = {}
        #: For every distinct configuration: steps per second on each pool, and accelerators.
        self._speeds: list[list[float]] = []
        self._gangs: list[int] = []
        #: Largest number of such gangs that a forked job runs at once.
        self._forks: list[int] = []
        self._row: dict[JobId, int] = {}
        self._arrival: list[float] = []
        self._steps: list[float] = []
        self._configuration: list[int] = []
        self._deadline: list[float] = []
        self._names: list[str] = []

    def recorded(self, jobs: Iterable[SimulatedJob]) -> Iterator[SimulatedJob]:
        """Yields the same jobs, and records each."""
        for job in jobs:
            request = job.request
            self._row[request.job_id] = len(self._arrival)
            self._arrival.append(job.at)
            self._steps.append(job.steps)
            self._configuration.append(self._configuration_of(request))
            self._deadline.append(request.deadline_at)
            self._names.append(job.name)
            yield job

    def __len__(self) -> int:
        return len(self._row)

    @property
    def has_bounds(self) -> bool:
        """Returns whether lower bounds are known for these jobs."""
        return self._alone_s is None or self._least is not None

    def _configuration_of(self, request: JobRequest) -> int:
        key = (request.kind, request.demands, request.sizes, request.fork_max, request.plans, request.mixed)
        configuration = self._configurations.get(key)
        if configuration is None:
            configuration = self._configurations[key] = len(self._gangs)
            planned = (sum(use.count for use in plan.uses) for plan in request.plans)
            self._gangs.append(min((*request.sizes, *(demand.count for demand in request.demands), *planned)))
            self._forks.append(request.fork_max)
            if self._alone_s is None:
                self._speeds.append([self._speed(request, pool) for pool in range(len(self._types))])
        return configuration

    def _speed(self, request: JobRequest, pool: int) -> float:
        """Returns the speed of the fastest gang that the job accepts in the pool; 0 if none fits. Of a gang that may be
        mixed only a part need be there.
        """
        here = self._types[pool]
        most = self._capacity.sum() if request.mixed and self._capacity[pool] else self._capacity[pool]
        if request.plans:
            ways = (plan for plan in request.plans if any(use.types_of((here,)) for use in plan.uses))
            return max((plan.steps_per_s for plan in ways if self._may_hold(plan)), default=0.0)
        counts = {
            count
            for demand in request.demands
            for count in (demand.count, *request.sizes)
            if demand.types_of((here,)) and count <= most
        }
        parts = (tuple(split_gang(count, request.nodes, self._machine_size[pool])) for count in sorted(counts))
        return max((self._truth.highest_speed(request.kind, here, each) for each in parts), default=0.0)

    def _may_hold(self, plan: GangPlan) -> bool:
        """Returns whether the fleet has the accelerators of this plan."""
        there: dict[str, float] = {}
        for name, capacity in zip(self._types, self._capacity.tolist(), strict=True):
            there[name] = there.get(name, 0.0) + capacity
        return all(use.count <= max((there[name] for name in use.types_of(there)), default=0.0) for use in plan.uses)

    # -- of one job

    def name(self, job_id: JobId) -> str:
        """Returns the job's name in its workload; "" if it has none."""
        return self._names[self._row[job_id]]

    def gang(self, job_id: JobId) -> int:
        """Returns the job's accelerators: the fewest, where the number depends on the type."""
        return self._gangs[self._configuration[self._row[job_id]]]

    def alone_s(self, job_id: JobId) -> float:
        """Returns the job's time alone on its fastest pool, without interruptions; nan if it runs nowhere."""
        if self._alone_s is not None:
            return self._alone_s[job_id]
        row = self._row[job_id]
        best = max(self._speeds[self._configuration[row]])
        return self._steps[row] / best if best > 0 else nan

    def deadline_at(self, job_id: JobId) -> float:
        """Returns the job's deadline; inf if it has none."""
        return self._deadline[self._row[job_id]]

    # -- of all

    def instance(self, job_ids: Iterable[JobId]) -> SchedulingInstance:
        """Returns these jobs as an instance for the lower bounds.

        A gang whose size depends on the type counts with its smallest size. A job that may be forked counts as one gang
        of all its parts, with their joint speed, because no fork of it is faster. A gang that may be mixed counts as
        one gang in each pool that holds a part: dividing its time among them in proportion does as much work. A job
        with plans counts with the fewest accelerators of any plan, in each pool at the speed of the fastest plan that
        uses the pool: dividing a plan's time among its pools in proportion does at least as much work as the plan.
        Where the jobs' needs were given, a job has as much work as its seconds alone.
        """
        assert self.has_bounds, "no lower bound holds where speeds do not say how long a job takes"
        ids = list(job_ids)
        rows = np.array([self._row[job_id] for job_id in ids], dtype=np.int64)
        steps, gang, speeds = self._given_needs(ids) if self._least is not None else self._needs(rows)
        there = self._capacity > 0
        arrival_at = np.array(self._arrival)[rows]
        return SchedulingInstance(
            arrival_at, steps, gang, np.ascontiguousarray(speeds[:, there]), self._capacity[there]
        )

    def _needs(self, rows: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns steps (n,), accelerators (n,) and speeds on each pool (n, p), by what the jobs state."""
        configurations = np.array(self._configuration, dtype=np.int64)[rows]
        forks = np.array(self._forks, dtype=float)[configurations]
        speeds: FloatArray = np.array(self._speeds, dtype=float)[configurations] * forks[:, None]
        return np.array(self._steps)[rows], np.array(self._gangs, dtype=float)[configurations] * forks, speeds

    def _given_needs(self, job_ids: Sequence[JobId]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns the same where the needs of the jobs were given: steps are seconds at pace 1."""
        assert self._least is not None
        given = [self._least[job_id] for job_id in job_ids]
        work = np.array([each.alone_s for each in given])
        return work, np.array([each.accelerators for each in given]), np.array([each.pace for each in given])


#: Largest number of job-pool pairs for which `CHEAP` includes the linear program and the priced bound.
FLUID_PAIRS_MAX = 10_000
PRICED_PAIRS_MAX = 1_000
#: Prices of the priced bound are constant over this part of its horizon.
_PRICE_INTERVALS = 200.0
_SUBGRADIENT_STEPS = 300
#: Number of runs whose bounds are cached for other runs of the same jobs: the usual number of seeds in a comparison.
_BOUNDS_KEPT = 16


class BoundsChoice(StrEnum):
    """The choice of lower bounds to compute."""

    NONE = "none"
    #: The bounds that are cheap at this size.
    CHEAP = "cheap"
    #: All bounds, whatever time they take.
    ALL = "all"


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Lower bounds, seconds; nan for bounds that were not computed. Gaps are run / bound - 1."""

    #: Mean completion time if every job had the fleet to itself.
    no_contention_s: float = nan
    no_contention_gap: float = nan
    #: Makespan of the fluid fleet.
    makespan_s: float = nan
    makespan_gap: float = nan
    #: Mean completion time that prices over time prove as a lower bound.
    jct_s: float = nan
    jct_gap: float = nan


def lower_bounds(
    succeeded: Iterable[JobMetrics], baselines: JobBaselines, choice: BoundsChoice, *, is_whole: bool = True
) -> LowerBounds:
    """Returns the chosen bounds for these jobs of a run. Only whole runs have a makespan bound."""
    # Sorted by number, so that policies that finish all jobs get bounds that are equal to the last bit.
    done = sorted(succeeded, key=lambda job: job.job_id)
    if choice is BoundsChoice.NONE or not done:
        return LowerBounds()
    instance = baselines.instance(job.job_id for job in done)
    key = _KnownInstance(instance)
    pairs = instance.steps_per_s.size
    mean_s = sum(job.jct_s for job in done) / len(done)
    ended_s = max(job.ended_at for job in done) - float(instance.arrival_at.min())
    alone_s = no_contention_jct_s(instance)
    fluid_s = priced_s = nan
    if is_whole and (choice is BoundsChoice.ALL or pairs <= FLUID_PAIRS_MAX):
        fluid_s = _fluid_bound_s(key)
    if choice is BoundsChoice.ALL or pairs <= PRICED_PAIRS_MAX:
        priced_s = max(_priced_bound_s(key), alone_s)
    return LowerBounds(
        alone_s, mean_s / alone_s - 1.0, fluid_s, ended_s / fluid_s - 1.0, priced_s, mean_s / priced_s - 1.0
    )


class _KnownInstance:
    """A cache key: equal instances share bounds, which serves policies that finish the same jobs."""

    def __init__(self, instance: SchedulingInstance) -> None:
        self.instance = instance
        numbers = (instance.arrival_at, instance.steps, instance.gang, instance.steps_per_s, instance.capacity)
        self._key = tuple((each.shape, each.tobytes()) for each in numbers)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _KnownInstance) and self._key == other._key


@lru_cache(maxsize=_BOUNDS_KEPT)
def _fluid_bound_s(known: _KnownInstance) -> float:
    from optimizer.bounds.instance import fluid_makespan_s

    return fluid_makespan_s(known.instance)


@lru_cache(maxsize=_BOUNDS_KEPT)
def _priced_bound_s(known: _KnownInstance) -> float:
    """Every interval length gives a valid bound; this choice limits the number of intervals."""
    from optimizer.bounds.flow_time import flow_time_bound

    instance = known.instance
    first = float(instance.arrival_at.min())
    work_s = float((instance.gang * instance.alone_s).sum()) / float(instance.capacity.sum())
    horizon_s = float((instance.arrival_at + instance.alone_s).max()) - first + work_s
    return flow_time_bound(instance, interval_s=horizon_s / _PRICE_INTERVALS, steps=_SUBGRADIENT_STEPS).mean_s


#: Tolerance above 1 within which rho counts as fair, relative.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class FairnessMetrics:
    """Fairness over the jobs that succeeded; nan for metrics that do not exist."""

    #: Completion time / time in an equal share of the fleet, by the contention that the job met (Themis).
    rho_mean: float = nan
    rho_max: float = nan
    #: Part of the jobs with rho above 1 (by more than rounding), which an equal share would have served better.
    unfair: float = nan
    #: Completion time / completion time of the same job under the policy `isolated` on the same trace (Gavel).
    isolated_mean: float = nan
    isolated_max: float = nan
    #: Jain's index of the jobs' paces (time alone / completion time).
    jain: float = nan


def jain_index(values: Iterable[float]) -> float:
    """Returns (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything; nan for no values."""
    x = np.fromiter(values, dtype=float)
    square = float((x * x).sum())
    return float(x.sum()) ** 2 / (len(x) * square) if square > 0 else nan


def mean_contention(jobs: Sequence[JobMetrics], until_at: float) -> FloatArray:
    """Returns the mean number of jobs in the system during each job, itself included (n,).

    Unfinished jobs end at `until_at`.
    """
    begin = np.array([job.submitted_at for job in jobs])
    end = np.array([job.ended_at if isfinite(job.ended_at) else until_at for job in jobs])
    at = np.concatenate([begin, end])
    change = np.concatenate([np.ones(len(jobs)), -np.ones(len(jobs))])
    order = np.argsort(at, kind="stable")
    at, active = at[order], np.cumsum(change[order])
    passed = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(at))])
    length = end - begin
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (np.interp(end, at, passed) - np.interp(begin, at, passed)) / length
    return np.where(length > 0, np.maximum(mean, 1.0), 1.0)


def themis_rho(
    jobs: Sequence[JobMetrics], baselines: JobBaselines, accelerators: float, until_at: float
) -> dict[JobId, float]:
    """Returns completion time / (time alone x max(1, contention x gang / accelerators)) of every job that has ended.

    With n jobs in a fleet of M accelerators an equal share is M/n. A job of g accelerators runs at full speed in it if
    the share is at least g, and takes g n / M times as long otherwise.
    """
    rivals = mean_contention(jobs, until_at)
    rho: dict[JobId, float] = {}
    for job, n in zip(jobs, rivals.tolist(), strict=True):
        if isfinite(job.ended_at) and accelerators > 0:
            shared_s = baselines.alone_s(job.job_id) * max(1.0, n * baselines.gang(job.job_id) / accelerators)
            rho[job.job_id] = job.jct_s / shared_s
    return rho


def fairness_metrics(
    done: Sequence[JobMetrics],
    rho: Mapping[JobId, float],
    baselines: JobBaselines,
    isolated_jct_s: Mapping[JobId, float] | None,
) -> FairnessMetrics:
    """Returns fairness over `done`, the jobs that succeeded.

    `isolated_jct_s`: completion times of the reference run, if there was one.
    """
    rhos = np.array([rho[job.job_id] for job in done])
    alone = isolated_jct_s or {}
    ratios = np.array([job.jct_s / alone[job.job_id] for job in done if alone.get(job.job_id, 0.0) > 0.0])
    paces = (baselines.alone_s(job.job_id) / job.jct_s for job in done if job.jct_s > 0)
    return FairnessMetrics(
        float(rhos.mean()) if len(rhos) else nan,
        float(rhos.max()) if len(rhos) else nan,
        float((rhos > 1.0 + ROUNDING).mean()) if len(rhos) else nan,
        float(ratios.mean()) if len(ratios) else nan,
        float(ratios.max()) if len(ratios) else nan,
        jain_index(paces),
    )
