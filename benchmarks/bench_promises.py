"""How often the ends that a menu tells are kept for those who take a way of it, and what that costs the others.

    python -m benchmarks promises --row walras

A drawn part of the jobs of generated workloads asks for the menu when the job before them has just been submitted, and
takes the way in which it asks to be run: the late end of its interval (corrected by what former quotes came to, as a
server does it) becomes the deadline. The same jobs are then simulated with nobody taking anything. What is told is the
part of the taken ends that are kept, against the same ends where the scheduler knows nothing of them, and how much
later all jobs end on average. Quotes have a budget of processor time, so that a row takes minutes whatever the policy:
the number of promises is told.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from statistics import mean
from time import process_time

from benchmarks.forecast_runs import generated_run
from benchmarks.tables import Measured
from scheduler.core.commands import Command, JobTransitioned
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, JobSubmitted
from scheduler.forecast.core_copy import snapshot_at_once
from scheduler.forecast.job_forecasts import IntervalCalibration
from scheduler.forecast.past_jobs import EndedJob, PastJobs
from scheduler.forecast.what_if import WhatIfQuestion, what_if
from simulator.metrics import JobMetrics
from simulator.simulated_jobs import LengthEstimates, SimulatedJob
from simulator.simulation import Scenario, Simulation
from walras.job_request import JobId, JobRequest

ROWS = ("fifo/known", "fifo/unknown", "walras/known", "walras/unknown")
_SEEDS, _JOBS, _DRAWS = (11, 12, 13), 100, 5
#: Jobs an hour, and what their lengths are multiplied by.
_MADE = 12.0, 0.1
#: Processor time for quotes in one simulated workload, seconds: once it is spent nobody asks for the menu any more.
_QUOTES_S = 50.0
#: Part of the jobs that ask for the menu and take its way; the first ones, which are this part, only teach.
_TAKING, _WARM_UP = 0.3, 0.15
_KEPT = 0.95


@dataclass(slots=True)
class TakenRun:
    """A simulated workload in which some jobs took a way of the menu."""

    #: The latest end that was told to each job that took it, and when each job ended.
    told: dict[JobId, float] = field(default_factory=dict)
    ended: dict[JobId, float] = field(default_factory=dict)
    jct_s: list[float] = field(default_factory=list)

    def kept(self, told: dict[JobId, float]) -> float:
        """Part of these ends that this run keeps."""
        return mean(self.ended.get(job_id, inf) <= end_by for job_id, end_by in told.items())


class _Quoting:
    """Quotes jobs as they come, and has those that were drawn take what is quoted."""

    def __init__(self, scenario: Scenario, jobs: list[SimulatedJob], taking: float, seed: int) -> None:
        self.run_found = TakenRun()
        self._simulation = Simulation(scenario, sink=self._ended)
        self._jobs, self._taking, self._chance = jobs, taking, Random(f"take/{seed}")
        self._past, self._calibration = PastJobs(), IntervalCalibration()
        self._requests: dict[JobId, JobRequest] = {}
        self._spent_s = 0.0

    def run(self) -> TakenRun:
        self._simulation.run(self._quoted_jobs(), self._saw)
        return self.run_found

    def _quoted_jobs(self) -> Iterator[SimulatedJob]:
        for position, job in enumerate(self._jobs):
            if position and self._chance.random() < self._taking and self._spent_s < _QUOTES_S:
                end_by = self._quote(job.request)
                if position >= _WARM_UP * len(self._jobs) and end_by < inf:
                    self.run_found.told[job.request.job_id] = end_by
                    job = replace(job, request=replace(job.request, deadline_at=end_by))
            yield job

    def _quote(self, request: JobRequest) -> float:
        core, at, began_s = self._simulation.core, self._simulation.engine.now, process_time()
        assert isinstance(core, SchedulerCore)
        alternative = (JobSubmitted(at, request),)
        question = WhatIfQuestion(
            snapshot_at_once(core, at), self._past, (alternative,), draws=_DRAWS, cpu_s=60.0, seed=int(at)
        )
        (outcome,) = what_if(question).outcomes
        raw = outcome.added[request.job_id].end
        told = self._calibration.corrected(at, raw).p90
        self._calibration.said(request.job_id, at, raw)
        self._spent_s += process_time() - began_s
        return told

    def _saw(self, event: Event, commands: list[Command]) -> None:
        if isinstance(event, JobSubmitted):
            self._past.arrived(event.at, event.job)
            self._requests[event.job.job_id] = event.job
        for command in commands:
            if isinstance(command, JobTransitioned) and command.state.is_final:
                self.run_found.ended[command.job_id] = event.at
                self._calibration.came(command.job_id, event.at)

    def _ended(self, job: JobMetrics) -> None:
        request = self._requests[job.job_id]
        ratio = 1.0 if request.steps is not None else None
        self._past.ended.append(EndedJob(job.user, job.kind, job.running_s, ratio))
        self.run_found.jct_s.append(job.jct_s)


def measure(scale: float, row: str) -> list[Measured]:
    """One table of a policy."""
    many = max(60, round(_JOBS * scale))
    policy, lengths = row.split("/")
    measured = Measured(
        f"promises under `{policy}`, lengths {lengths}", f"{many} jobs, {_TAKING:.0%} take, seeds {_SEEDS}"
    )
    kept, unaided, later, promises = [], [], [], 0
    for seed in _SEEDS:
        scenario, jobs = generated_run("gavel", policy, seed, many, _MADE)
        scenario = replace(scenario, lengths=LengthEstimates(known=lengths == "known"))
        taken = _Quoting(scenario, jobs, _TAKING, seed).run()
        as_is = _Quoting(scenario, jobs, 0.0, seed).run()
        if not taken.told:
            continue
        promises += len(taken.told)
        kept.append(taken.kept(taken.told))
        unaided.append(as_is.kept(taken.told))
        later.append(mean(taken.jct_s) / mean(as_is.jct_s) - 1.0)
    measured.add("promises taken", promises, "")
    if kept:
        measured.add("kept, mean", mean(kept), "", at_least=_KEPT)
        measured.add("kept, worst seed", min(kept), "")
        measured.add("the same ends, nobody taking anything", mean(unaided), "")
        measured.add("mean completion time, change", 100 * mean(later), "%")
        measured.add("the same, worst seed", 100 * max(later), "%")
    return [measured]
