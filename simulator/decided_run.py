"""A simulated run whose starts are decided by the caller: virtual time stops until each decision is made.

The scheduler core, the world and its costs are those of every run. Only the round mechanism differs: it starts only the
job that `DecidedRun.start` names. A started job runs to its end, unless it fails.

A decision is due when all events of an instant were handled, some waiting job fits some pool, and something has changed
since the caller declined to start a job. With rounds, decisions are due only at their ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, inf, isnan

import numpy as np

from optimizer.bounds.instance import FloatArray
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Woke
from scheduler.core.placement.attempt_lifecycle import start_attempt
from scheduler.core.rules import OWED
from scheduler.core.state.fleet import Place
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from simulator.engine import RunLimits, RunOutcome
from simulator.metrics import JobMetrics
from simulator.reports.baselines import JobBaselines
from simulator.reports.run_spec import PreparedRun
from simulator.simulation import Simulation, SimulationResult
from walras.errors import ConfigError
from walras.job_request import JobId


@dataclass(slots=True, eq=False)
class WaitingJob:
    """A waiting job, and the places where it could start now."""

    job: JobRecord
    class_row: int
    #: Accelerators of its gang (the largest, where that depends on the type), and the instant of its submission.
    gang: int
    submitted_at: float
    #: Seconds of work left by pool; inf where the job cannot run, or states no steps (p,).
    left_s: FloatArray
    #: A free place by pool; None where the job cannot run, or where its gang does not fit now.
    places: tuple[Place | None, ...] = ()
    #: Whether it could start now.
    fits: bool = False


class DecidedRun:
    """One run, from decision to decision: `advance`, then `start` while something fits, then `advance` again."""

    def __init__(self, prepared: PreparedRun, round_s: float = 0.0) -> None:
        """`round_s`: seconds between two instants of decision; 0: at every event.

        Raises ConfigError for jobs that cannot run anywhere, and for a fleet that rents machines.
        """
        scenario = prepared.scenario
        rented = [model.pool.pool_id for model in scenario.pools if model.pool.quota]
        if rented:
            raise ConfigError(
                f"pool {rented[0]} is rented, and nothing here decides what to rent",
                field="cluster",
                fix="give a cluster of owned machines",
            )
        self._round_s = round_s
        self._baselines = JobBaselines(scenario.pools, scenario.truth, prepared.alone_s)
        jobs = list(self._baselines.recorded(prepared.jobs))
        #: For all jobs in order of arrival: arrival, time alone in the fleet, and end (inf until then), seconds (n,).
        self.arrival_at: FloatArray = np.array([job.at for job in jobs])
        self.alone_s: FloatArray = np.array([self._baselines.alone_s(job.request.job_id) for job in jobs])
        self.ended_at: FloatArray = np.full(len(jobs), inf)
        for job, alone_s in zip(jobs, self.alone_s, strict=True):
            if isnan(alone_s):
                raise ConfigError(f"job {job.name or job.request.job_id} can run on no machine of the cluster")
        if not jobs:
            raise ConfigError("the workload has no jobs", field="on")
        self._row: dict[JobId, int] = {job.request.job_id: row for row, job in enumerate(jobs)}
        self._ended: list[JobMetrics] = []
        self._starts = _NamedStarts()
        core = SchedulerCore(mechanisms={OWED: lambda *_: self._starts})
        self._ledger = core.ledger
        self._cycle = core.cycle
        costs = (scenario.truth.default_costs, *scenario.truth.costs.values())
        if all(each.checkpoint_every_s is not None for each in costs):
            # No kind takes checkpoints as the scheduler plans them, so planning would only take time.
            scenario = replace(scenario, rules=replace(scenario.rules, plan_checkpoints=False))
        self._simulation = Simulation(scenario, sink=self._job_ended, core=core)
        self._simulation.begin(jobs)
        #: Instant at which the caller declined to start a job: no other decision is due before time passes.
        self._settled_at = -inf
        self._waiting: list[WaitingJob] = []
        #: By job: class, attempt and version of the speeds to which the cached description belongs.
        self._described_as: dict[JobId, tuple[tuple[int, int, int], WaitingJob]] = {}
        #: The result, once the run has ended.
        self.result: SimulationResult | None = None

    @property
    def now(self) -> float:
        """Present instant, seconds."""
        return self._simulation.engine.now

    @property
    def waiting(self) -> list[WaitingJob]:
        """Waiting jobs at the present decision, in order of submission."""
        return self._waiting

    @property
    def free(self) -> FloatArray:
        """Free accelerators as a part of the capacity, by pool (p,)."""
        pools = self._ledger.fleet.pools
        return np.array([state.free / state.capacity if state.capacity else 0.0 for state in pools])

    @property
    def may_wait(self) -> bool:
        """Whether any job runs or will arrive. Otherwise a decision to start no job would end the run."""
        return self._simulation.world.awaits_arrivals or any(job.holds for job in self._ledger)

    # -- time and decisions

    def advance(self) -> bool:
        """Lets time pass until a decision is due. Returns False if the run has ended."""
        engine = self._simulation.engine
        while self.result is None:
            next_at = engine.next_at
            if self._round_s and next_at < inf:
                next_at = max(next_at, ceil(next_at / self._round_s) * self._round_s)
            outcome = engine.run(RunLimits(until_at=next_at))
            # With no timer left, the run continues only by a decision now.
            goes_on = outcome in (RunOutcome.TIME_LIMIT, RunOutcome.EXHAUSTED)
            if goes_on and engine.now > self._settled_at and self._is_due():
                return True
            if outcome is not RunOutcome.TIME_LIMIT:
                self._end(outcome)
        return False

    def start(self, waiting: WaitingJob, pool: int) -> bool:
        """Starts a job on a pool where it fits. Returns whether another job could start at this instant."""
        place = waiting.places[pool]
        assert place is not None, f"job {waiting.job.job_id} does not fit pool {pool}"
        self._starts.named = (waiting.job, pool, place)
        self._simulation.engine.send(Woke(self.now))
        self._waiting = [each for each in self._waiting if each is not waiting]
        return self._find_places()

    def start_nobody(self) -> None:
        """Declines to start a job before time passes."""
        self._settled_at = self.now

    def _is_due(self) -> bool:
        """Updates the waiting jobs. Returns whether one of them fits."""
        is_waiting = self._cycle.queues.is_waiting
        self._waiting = [self._described(job) for job in self._ledger if not job.place and is_waiting(job.job_id)]
        return self._find_places()

    def _described(self, job: JobRecord) -> WaitingJob:
        """Returns the job's description, which is cached until it runs or its speeds become known."""
        row, version = job.class_row, self._ledger.classes.version
        known = self._described_as.get(job.job_id)
        if known is not None and known[0] == (row, job.attempt, version):
            return known[1]
        job_class = self._ledger.classes.classes[row]
        steps = inf if job.request.steps is None else max(0.0, job.request.steps - job.steps)
        left_s = np.array([steps / speed if speed > 0 else inf for speed in job_class.speeds])
        submitted_at = float(self._ledger.columns.submitted_at[job.slot])
        made = WaitingJob(job, row, job_class.gang, submitted_at, left_s)
        self._described_as[job.job_id] = ((row, job.attempt, version), made)
        return made

    def _find_places(self) -> bool:
        """Finds the places where each waiting job could start now; equal shapes share them. Returns whether any job
        could.
        """
        known: dict[tuple[int, tuple[int, ...]], tuple[Place | None, ...]] = {}
        classes, limits, fits = self._ledger.classes.classes, self._cycle.limits, False
        for waiting in self._waiting:
            job_class = classes[waiting.class_row]
            key = (job_class.shape, job_class.pools)
            found = known.get(key)
            if found is None:
                found = known[key] = self._places_of(*key)
            if limits.are_declared:
                found = tuple(
                    None if self._ledger.count_on(waiting.job, pool) > limits.room(waiting.job, pool) else place
                    for pool, place in enumerate(found)
                )
            waiting.places, waiting.fits = found, any(found)
            fits = fits or waiting.fits
        return fits

    def _places_of(self, shape_row: int, pools: tuple[int, ...]) -> tuple[Place | None, ...]:
        """Returns a free place by pool for a job of the shape, on these pools only."""
        fleet, shape = self._ledger.fleet, self._ledger.classes.shapes[shape_row]
        return tuple([fleet.find(pool, shape) if pool in pools else None for pool in range(len(fleet.pools))])

    # -- what it came to

    def _job_ended(self, job: JobMetrics) -> None:
        self._ended.append(job)
        self.ended_at[self._row[job.job_id]] = job.ended_at

    def _end(self, outcome: RunOutcome) -> None:
        self._waiting = []
        result = self.result = self._simulation.finish(outcome)
        result.jobs = self._ended
        assert not result.violations, result.violations

    def job_seconds(self) -> tuple[float, float]:
        """Returns the seconds that all jobs have spent in the system until now, and a lower bound on them.

        Under any scheduler a job has spent at least its time alone, or all the time since its arrival.
        """
        spent = np.maximum(np.minimum(self.ended_at, self.now) - self.arrival_at, 0.0)
        return float(spent.sum()), float(np.minimum(spent, self.alone_s).sum())


class _NamedStarts:
    """A `RoundMechanism` that starts only the job that was named."""

    def __init__(self) -> None:
        self.named: tuple[JobRecord, int, Place] | None = None

    def settle(self, cycle: Cycle) -> None:
        """Makes arrived jobs eligible, and starts the job that was named."""
        backlog = cycle.backlog
        arrived, backlog.arrived = backlog.arrived, []
        _note_arrivals(cycle, arrived)
        backlog.freed.clear()
        backlog.stale_pools.clear()
        backlog.rebuild_queues = False
        if self.named is not None:
            named, self.named = self.named, None
            start_attempt(cycle, *named)


def _note_arrivals(cycle: Cycle, arrived: Iterable[JobId]) -> None:
    for job_id in arrived:
        job = cycle.ledger.jobs.get(job_id)
        if job is not None:
            cycle.ledger.set_eligible(job)
