"""How often the ends that a menu tells are kept for those who take a way of it, and what that costs the others.

    python -m benchmarks promises --row walras/rough

A drawn part of the jobs of generated workloads asks for the menu at the instant of its submission, and takes the way in
which it asks to be run: the end that the menu promises (corrected by what former quotes came to, as a server does it)
becomes its deadline. The same jobs are then simulated with nobody taking anything. What is told is the part of the
taken ends that are kept, against the same ends where the scheduler knows nothing of them, and how much later all jobs
end on average. Lengths are `known`, `unknown`, or stated wrongly in the conditions `rough`, in which machines die and
jobs crash too: a job that does not succeed has no promise that could be kept. Quotes have a budget of processor time,
so that a row takes minutes whatever the policy: the number of promises is told. Seeds below 30 have served to look at.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from statistics import mean, median
from time import process_time

from benchmarks.forecast_runs import generated_run
from benchmarks.tables import Measured
from scheduler.core.commands import Command, JobTransitioned
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, JobDeadlineChanged, JobSubmitted
from scheduler.forecast.core_copy import snapshot_at_once
from scheduler.forecast.job_forecasts import ForecastQuestion, IntervalCalibration, forecast_jobs
from scheduler.forecast.past_jobs import EndedJob, PastJobs
from scheduler.live.services.start_forecasts import QUOTED_CPU_S
from scheduler.world.attempts import SimulatedJob
from simulator.ground_truth import LengthEstimates, with_estimate_error
from simulator.metrics import JobMetrics
from simulator.simulation import Scenario, Simulation
from walras.job_request import JobId, JobRequest
from walras.states import JobState

ROWS = tuple(f"{policy}/{lengths}" for policy in ("fifo", "walras") for lengths in ("known", "unknown", "rough"))
_SEEDS, _JOBS, _DRAWS = (31, 32, 33), 100, 20
#: Jobs an hour by policy, and what their lengths are multiplied by. Where newcomers overtake, so few come that not ever
#: more jobs wait.
_PER_H, _STRETCH = {"fifo": 12.0, "walras": 8.0}, 0.1
#: Processor time for quotes in one simulated workload, seconds: once it is spent nobody asks for the menu any more.
_QUOTES_S = 150.0
#: Part of the jobs that ask for the menu and take its way; the first ones, which are this part, only teach.
_TAKING, _WARM_UP = 0.3, 0.15
_KEPT = 0.95


@dataclass(slots=True)
class TakenRun:
    """A simulated workload in which some jobs took a way of the menu."""

    #: The end that was promised to each job that took it, how long after its submission that was, and when jobs ended.
    told: dict[JobId, float] = field(default_factory=dict)
    within_s: dict[JobId, float] = field(default_factory=dict)
    ended: dict[JobId, float] = field(default_factory=dict)
    #: Of the jobs that succeeded, from submission to end.
    jct_s: dict[JobId, float] = field(default_factory=dict)

    def kept(self, told: dict[JobId, float]) -> list[bool]:
        """Of those of these ends whose jobs succeed in this run: whether it keeps them."""
        return [self.ended[job_id] <= end_by for job_id, end_by in told.items() if job_id in self.jct_s]


class QuotedRun:
    """Quotes jobs as they come, and has those that were drawn take what is quoted."""

    def __init__(self, scenario: Scenario, jobs: list[SimulatedJob], taking: float, seed: int) -> None:
        """`jobs`: as the scheduler hears of them; nothing is hidden or distorted any more."""
        self.found = TakenRun()
        self._simulation = Simulation(scenario, sink=self._ended)
        self._jobs, self._taking, self._chance = jobs, taking, Random(f"take/{seed}")
        self._by_id = {job.request.job_id: job for job in jobs}
        self._past, self._calibration = PastJobs(), IntervalCalibration()
        self._spent_s = 0.0

    def run(self) -> TakenRun:
        self._simulation.run(self._quoted_jobs(), self._saw)
        return self.found

    def _quoted_jobs(self) -> Iterator[SimulatedJob]:
        """The jobs; those that were drawn ask for the menu at the instant of their submission, just before it."""
        for position, job in enumerate(self._jobs):
            if position and self._chance.random() < self._taking and self._spent_s < _QUOTES_S:
                takes = position >= _WARM_UP * len(self._jobs)
                self._simulation.engine.schedule(job.at, self._ask, (job.request, takes))
            yield job

    def _ask(self, at: float, subject: tuple[JobRequest, bool]) -> Iterable[Event]:
        request, takes = subject
        end_by = self._promised(at, request)
        if takes and end_by < inf:
            self.found.told[request.job_id], self.found.within_s[request.job_id] = end_by, end_by - at
            self._simulation.engine.schedule(at, self._take, request.job_id)
        return ()

    def _take(self, at: float, job_id: JobId) -> Iterable[Event]:
        """The deadline comes with the job: at the same instant."""
        return (JobDeadlineChanged(at, job_id, self.found.told[job_id]),)

    def _promised(self, at: float, request: JobRequest) -> float:
        core, began_s = self._simulation.core, process_time()
        assert isinstance(core, SchedulerCore)
        snapshot, told = snapshot_at_once(core, at), (JobSubmitted(at, request),)
        question = ForecastQuestion(
            snapshot, self._past, _DRAWS, QUOTED_CPU_S, seed=int(at), told=told, only=request.job_id
        )
        forecast = forecast_jobs(question).jobs[request.job_id]
        end_by = self._calibration.promised(at, forecast)
        self._calibration.said(request.job_id, at, forecast.end)
        self._spent_s += process_time() - began_s
        return end_by

    def _saw(self, event: Event, commands: list[Command]) -> None:
        if isinstance(event, JobSubmitted):
            self._past.arrived(event.at, event.job)
        for command in commands:
            if isinstance(command, JobTransitioned) and command.state.is_final:
                self.found.ended[command.job_id] = event.at
                if command.state is JobState.CANCELLED:
                    self._calibration.forget(command.job_id)
                else:
                    self._calibration.came(command.job_id, event.at)

    def _ended(self, job: JobMetrics) -> None:
        plan = self._by_id[job.job_id]
        succeeded, stated = job.state is JobState.SUCCEEDED, plan.request.steps
        ratio, steps = plan.steps / stated if succeeded and stated else None, plan.steps if succeeded else 0.0
        self._past.ended.append(EndedJob(job.user, job.kind, job.running_s, ratio, steps, plan.request, job.project))
        if succeeded:
            self.found.jct_s[job.job_id] = job.jct_s


def workload(row: str, seed: int, jobs: int) -> tuple[Scenario, list[SimulatedJob]]:
    """A scenario, and jobs as the scheduler hears of them."""
    policy, lengths = row.split("/")
    scenario, made = generated_run(
        "gavel", policy, seed, jobs, (_PER_H[policy], _STRETCH), "rough" if lengths == "rough" else None
    )
    estimates = LengthEstimates(known=False) if lengths == "unknown" else scenario.lengths
    heard = with_estimate_error(made, estimates, Random(f"lengths/{seed}"))
    return replace(scenario, lengths=LengthEstimates()), list(heard)


def measure(scale: float, row: str) -> list[Measured]:
    """One table of a policy."""
    many = max(60, round(_JOBS * scale))
    measured = Measured(f"promises, {row}", f"{many} jobs, {_TAKING:.0%} take, seeds {_SEEDS}")
    kept, unaided, later, within = list[list[bool]](), list[bool](), list[float](), list[float]()
    for seed in _SEEDS:
        scenario, jobs = workload(row, seed, many)
        taken = QuotedRun(scenario, jobs, _TAKING, seed).run()
        as_is = QuotedRun(scenario, jobs, 0.0, seed).run()
        if not taken.kept(taken.told):
            continue
        kept.append(taken.kept(taken.told))
        unaided.extend(as_is.kept(taken.told))
        within.extend(taken.within_s[each] / taken.jct_s[each] for each in taken.told if each in taken.jct_s)
        both = taken.jct_s.keys() & as_is.jct_s.keys()
        later.append(sum(taken.jct_s[each] for each in both) / sum(as_is.jct_s[each] for each in both) - 1.0)
    measured.add("promises taken", sum(map(len, kept)), "")
    if kept:
        measured.add("kept, of all", mean(each for seed in kept for each in seed), "", at_least=_KEPT)
        measured.add("kept, worst seed", min(mean(seed) for seed in kept), "")
        measured.add("the same ends, nobody taking anything", mean(unaided), "")
        measured.add("promised time over the time it took, median", median(within), "")
        measured.add("mean completion time, change", 100 * mean(later), "%")
        measured.add("the same, worst seed", 100 * max(later), "%")
    return [measured]
