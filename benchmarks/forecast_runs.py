"""Forecasts made while a workload is simulated, and what came of them.

Only jobs that wait are counted. At drawn instants the state of the core is taken, rolled forward as a server would do
it, and corrected by what former forecasts came to. The naive forecast beside it knows how long jobs waited, and ran,
lately; its width is what would have covered as much in hindsight, the same for all, which no forecast could have known.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from math import inf, nextafter
from random import Random
from statistics import mean, median
from typing import Any

from scheduler.core.commands import Command, JobTransitioned
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, JobSubmitted
from scheduler.forecast.core_copy import snapshot_at_once
from scheduler.forecast.job_forecasts import (
    ForecastAnswer,
    ForecastQuestion,
    Interval,
    IntervalCalibration,
    forecast_jobs,
    least_half_s,
    still_true,
)
from scheduler.forecast.past_jobs import EndedJob, PastJobs
from scheduler.world.attempts import SimulatedJob
from simulator.metrics import JobMetrics
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, prepare_run
from simulator.simulation import Scenario, Simulation
from walras.job_request import JobId, JobRequest
from walras.states import JobState

#: The naive forecast is the mean of so many.
_NAIVE_LAST = 50
#: Forecasts of this part of the instants only teach.
_WARM_UP = 0.25


#: The fleet is this part of the cluster file's, so that few jobs wait for each other and a future is cheap.
_FLEET_PART = 3


def generated_run(
    workload: str, policy: str, seed: int, jobs: int, made: tuple[float, float], conditions: str | None = None
) -> tuple[Scenario, list[SimulatedJob]]:
    """A generator's jobs on twelve accelerators of three types, without gangs larger than a type; `made`: jobs an hour,
    and a factor of their lengths.
    """
    rate, stretch = made
    source = WorkloadSource(f"generate:{workload}", made=GeneratorOptions(jobs=jobs, rate_per_h=rate, stretch=stretch))
    ready = prepare_run(RunSpec(source, "gavel-12-12-12", policy, seed, BoundsChoice.NONE, conditions=conditions))
    pools = tuple(replace(model, machines=model.machines // _FLEET_PART) for model in ready.scenario.pools)
    most = {model.pool.shape.accelerator: model.machines * model.pool.shape.accelerators for model in pools}
    fitting = [
        job for job in ready.jobs if any(each.count <= most.get(each.accelerator, 0) for each in job.request.demands)
    ]
    return replace(ready.scenario, pools=pools), fitting


@dataclass(slots=True)
class Promised:
    """An interval that was told, and what came."""

    at: float
    told: Interval
    #: The instant that the naive forecast says.
    naive_at: float
    came: float = inf


@dataclass(slots=True)
class Tally:
    """All that was told of starts, or of ends."""

    open: dict[JobId, list[Promised]] = field(default_factory=dict)
    done: list[Promised] = field(default_factory=list)

    def came(self, job_id: JobId, at: float) -> None:
        """It has come."""
        for each in self.open.pop(job_id, ()):
            each.came = at
            self.done.append(each)

    def cover(self) -> float:
        """Part of the intervals that held."""
        return mean(each.told.p10 <= each.came <= each.told.p90 for each in self.done)

    def early(self) -> float:
        """Part of the intervals before which it came."""
        return mean(each.came < each.told.p10 for each in self.done)

    def late(self) -> float:
        """Part of the intervals after which it came."""
        return mean(each.came > each.told.p90 for each in self.done)

    def certain(self) -> float:
        """Part of the intervals that are as narrow as any is told: nothing unknown moves what they are about."""
        return mean(each.told.p90 - each.told.p10 < 2.1 * least_half_s(each.at, each.told) for each in self.done)

    def width_s(self) -> float:
        """Median width; inf where it is beyond what was looked ahead."""
        return median(inf if each.told.p90 == inf else each.told.p90 - each.told.p10 for each in self.done)

    def naive_width_s(self) -> float:
        """Width about the naive forecast that holds what came as often, in hindsight, with equal tails."""
        late = sorted(each.came - each.naive_at for each in self.done)
        outside = (1.0 - self.cover()) / 2.0
        low = min(int(outside * len(late)), len(late) - 1)
        return late[max(len(late) - 1 - low, low)] - late[low]


@dataclass(slots=True)
class ForecastRun:
    """What a run came to."""

    starts: Tally
    ends: Tally
    looks: int = 0
    #: Forecasts without an interval, because most futures did not reach the start or the end.
    untold: int = 0
    #: Not counted: intervals that end after the last arrival, when jobs come sooner than anybody could know, of what
    #: comes after it too.
    beyond: int = 0
    #: Of these, jobs told to start, or to end, after an instant; and of these, how many did.
    floors: int = 0
    floors_held: int = 0
    #: Instants that were told so and have not come: what comes, and by whom.
    open_floors: dict[tuple[str, JobId], list[float]] = field(default_factory=dict)
    cpu_s: float = 0.0
    draws: int = 0
    #: Told instants that the state at that moment contradicts: a start of a job that runs, or an instant that is past.
    contradicted: int = 0


@dataclass(frozen=True, slots=True)
class ForecastLooks:
    """How often a run is looked at, at drawn instants, and how much that may cost."""

    looks: int
    draws: int
    #: Processor time of all forecasts; once it is spent nobody looks any more.
    cpu_s: float
    seed: int
    #: Looks are taken while the second half of this part of the jobs arrives: before that hardly any waits. The others
    #: overtake whom they overtake, as they always do: if nobody arrived after the last look, jobs that wait would end
    #: sooner than any forecast could know.
    part: float = 1.0
    #: Processor time of a look for each active job, seconds.
    look_cpu_s: float = inf
    #: Whether no newcomer changes what becomes of who came before: what comes after the last arrival counts too then.
    newcomers_wait: bool = False


class _Watcher:
    """Sees what a server would see: submissions, transitions, and how long ended jobs were."""

    def __init__(
        self, scenario: Scenario, jobs: Sequence[SimulatedJob], instants: list[float], chosen: ForecastLooks
    ) -> None:
        self.simulation = Simulation(scenario, sink=self._ended)
        self._chosen, self._jobs = chosen, jobs
        self._past = PastJobs()
        self._requests: dict[JobId, JobRequest] = {}
        self._steps = {job.request.job_id: job.steps for job in jobs}
        self._submitted: dict[JobId, float] = {}
        self._waits, self._stays = deque[float](maxlen=_NAIVE_LAST), deque[float](maxlen=_NAIVE_LAST)
        self._by = {name: IntervalCalibration() for name in ("starts", "ends")}
        self.found, self.answer = ForecastRun(Tally(), Tally()), ForecastAnswer(0.0, {}, 0, 0.0)
        self._scored_from = instants[int(_WARM_UP * len(instants))]
        #: The last arrival: what comes later, comes sooner than can be known.
        self._scored_until = inf if chosen.newcomers_wait else jobs[-1].at
        for at in instants:
            self.simulation.engine.schedule(at, self._look)

    def run(self) -> ForecastRun:
        """Simulate until nobody arrives any more. What has not come by then has come after the intervals before it.

        No interval is left out for its own length: of few futures, those that all come soon are not by chance the ones
        that are told.
        """
        self.simulation.run(self._jobs, self._saw)
        for tally in (self.found.starts, self.found.ends):
            for each in chain.from_iterable(tally.open.values()):
                if each.told.p90 > self._scored_until:
                    self.found.beyond += 1
                else:
                    each.came = nextafter(self._scored_until, inf)
                    tally.done.append(each)
            tally.open.clear()
        known = [after for told in self.found.open_floors.values() for after in told if after <= self._scored_until]
        self.found.floors, self.found.floors_held = self.found.floors + len(known), self.found.floors_held + len(known)
        return self.found

    def _saw(self, event: Event, commands: list[Command]) -> None:
        if event.at > self._scored_until:
            self.simulation.engine.stop()
            return
        if isinstance(event, JobSubmitted):
            self._past.arrived(event.at, event.job)
            self._requests[event.job.job_id], self._submitted[event.job.job_id] = event.job, event.at
        for command in commands:
            if isinstance(command, JobTransitioned):
                if command.state is JobState.STARTING:
                    self._came("starts", self.found.starts, command.job_id, event.at)
                elif command.state.is_final:
                    self._came("ends", self.found.ends, command.job_id, event.at)

    def _came(self, which: str, tally: Tally, job_id: JobId, at: float) -> None:
        tally.came(job_id, at)
        self._by[which].came(job_id, at)
        told = self.found.open_floors.pop((which, job_id), [])
        self.found.floors, self.found.floors_held = (
            self.found.floors + len(told),
            self.found.floors_held + sum(after <= at for after in told),
        )
        is_open = self.found.starts.open or self.found.ends.open or self.found.open_floors
        if not is_open and self.found.looks >= self._chosen.looks > 0:
            self.simulation.engine.stop()

    def _ended(self, job: JobMetrics) -> None:
        request = self._requests[job.job_id]
        ratio = 1.0 if request.steps is not None else None
        steps = self._steps[job.job_id] if job.state is JobState.SUCCEEDED else 0.0
        self._past.ended.append(EndedJob(job.user, job.kind, job.running_s, ratio, steps, request, job.project))
        self._waits.append(job.queueing_s)
        self._stays.append(job.jct_s)

    def _look(self, at: float, _: Any) -> Iterable[Event]:
        core = self.simulation.core
        assert isinstance(core, SchedulerCore)
        left_s = self._chosen.cpu_s - self.found.cpu_s
        if left_s <= 0:
            return ()
        snapshot, draws = snapshot_at_once(core, at), self._chosen.draws
        left_s = min(
            left_s / max(self._chosen.looks - self.found.looks, 1), self._chosen.look_cpu_s * len(snapshot.jobs)
        )
        answer = forecast_jobs(ForecastQuestion(snapshot, self._past, draws=draws, cpu_s=left_s, seed=int(at)))
        self.answer = answer
        self.found.looks, self.found.draws = self.found.looks + 1, self.found.draws + answer.draws
        self.found.cpu_s += answer.cpu_s
        for job_id, forecast in answer.jobs.items():
            if forecast.start is None:
                continue  # it runs: whoever looks at the same long job again and again would count it again and again
            if inf in (forecast.start.p50, forecast.end.p50):
                self.found.untold += 1
                beyond = "starts" if forecast.start.p50 == inf else "ends"
                after = forecast.starts_after if beyond == "starts" else forecast.ends_after
                if after > at:
                    self.found.open_floors.setdefault((beyond, job_id), []).append(after)
                continue
            self._tell("starts", self.found.starts, job_id, at, forecast.start, self._waits)
            self._tell("ends", self.found.ends, job_id, at, forecast.end, self._stays)
        return ()

    def _tell(self, which: str, tally: Tally, job_id: JobId, at: float, raw: Interval, lately: Iterable[float]) -> None:
        since_s = at - self._submitted[job_id]
        known = list(lately)
        ahead_s = max((mean(known) if known else 3600.0) - since_s, 0.0)
        ours = self._by[which]
        told = ours.corrected(at, raw)
        if at >= self._scored_from:
            tally.open.setdefault(job_id, []).append(Promised(at, told, at + ahead_s))
        ours.said(job_id, at, raw)


def forecast_run(scenario: Scenario, jobs: list[SimulatedJob], chosen: ForecastLooks) -> ForecastRun:
    """Simulate, look at drawn instants while jobs arrive, and tell what came of the forecasts."""
    chance, last = Random(chosen.seed), max(int(chosen.part * len(jobs)) - 1, 0)
    instants = sorted(chance.uniform(jobs[last // 2].at, jobs[last].at) for _ in range(chosen.looks))
    return _Watcher(scenario, jobs, instants, chosen).run()


class _Life(_Watcher):
    """Looks regularly, and notes all that a screen would tell between two looks; a restart forgets what was learnt."""

    def __init__(
        self, scenario: Scenario, jobs: Sequence[SimulatedJob], looks: list[float], chosen: ForecastLooks
    ) -> None:
        super().__init__(scenario, jobs, looks, chosen)
        self._scored_from = inf
        for at, after in pairwise(looks):
            self.simulation.engine.schedule(at + 0.5 * (after - at), self._screen)
        for at in looks[:: len(looks) // 4]:
            self.simulation.engine.schedule(at + 1.0, self._restart)

    def _restart(self, _: float, __: Any) -> Iterable[Event]:
        self._by = {name: IntervalCalibration() for name in self._by}
        self.answer = ForecastAnswer(0.0, {}, 0, 0.0)
        return ()

    def _screen(self, at: float, _: Any) -> Iterable[Event]:
        core, made_at = self.simulation.core, self.answer.at
        assert isinstance(core, SchedulerCore)
        for job_id, raw in self.answer.jobs.items():
            job = core.ledger.jobs.get(job_id)
            if job is None:
                continue
            start = None if raw.start is None else self._by["starts"].corrected(made_at, raw.start)
            told = replace(raw, start=start, end=self._by["ends"].corrected(made_at, raw.end))
            if (left := still_true(told, at, job.leased_at if job.holds else inf)) is None:
                continue
            for tally, each in ((self.found.starts, left.start), (self.found.ends, left.end)):
                if each is not None and each.p50 < inf:
                    tally.open.setdefault(job_id, []).append(Promised(at, each, at))
                    self.found.contradicted += each.p90 < at or (each is left.start and job.holds)
        return ()


def life_run(scenario: Scenario, jobs: list[SimulatedJob], looks: int, chosen: ForecastLooks) -> ForecastRun:
    """Simulate a life with regular looks, and four restarts, and tell what came of all that screens told meanwhile."""
    first, last = jobs[0].at, jobs[-1].at
    return _Life(
        scenario, jobs, [first + (last - first) * (number + 1) / looks for number in range(looks)], chosen
    ).run()
