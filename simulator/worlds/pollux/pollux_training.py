"""The jobs of the Pollux artifact's workloads, and the progress of their training in its simulator.

Two rules are peculiar to the artifact. The seconds of an epoch are rounded to a whole number at its end. And a single
accelerator that trains with more than the initial batch splits it into at least two passes, because the gradient noise
cannot be estimated from one. `TrainingLaw` and `best_goodput` serve the worlds in which jobs change their batch with
their gang.

Attempts in steps of a fixed length: the scheduler decides at the end of each step, and never in between.

This is the time model of the Pollux artifact. Steps are counted from time 0, so the scheduler first sees a job at the
end of the step in which it was submitted. An attempt first waits for its restart, then trains; a job ends at its own
instant. While there is no job, the clock jumps to the end of the step of the next arrival.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf

from scheduler.core.commands import BeginRound
from scheduler.core.events import AttemptEnded, AttemptStarted, EndCause, Event, RoundEnded
from scheduler.world.attempts import (
    AttemptSimulator,
    SimAttempt,
    SimAttemptPhase,
    SimulatedJob,
    SpeedSegment,
    WorldParameters,
)
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import PoolModel, SimulatedMachines
from simulator.goodput.application import (
    Application,
    GangLayout,
    OutsideProfileError,
    goodput,
    packed_layout,
    split_batch,
    update_time_s,
)
from simulator.workloads.trace_source import TraceJob
from walras.cluster import Pool
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.spec.file_model import nearest_or_all


class PolluxTraining:
    """An application trained with one batch size on one accelerator type. Equal jobs share one object and its cached
    speeds.
    """

    def __init__(self, application: Application, accelerator: str, batch: int) -> None:
        self.application = application
        self.batch = batch
        self._accelerator = accelerator
        self._marks = application.learning.work
        self._goodput: dict[tuple[GangLayout, int], float] = {}
        self._predicted_s: dict[tuple[int, int], float] = {}
        self._mean_steps_per_s: dict[GangLayout, float] = {}

    @property
    def local_least(self) -> int:
        """Returns the smallest batch per accelerator."""
        return self.application.on[self._accelerator].local_least

    @property
    def accelerator(self) -> str:
        """Returns the accelerator type on which it trains."""
        return self._accelerator

    def epoch(self, steps: float) -> int:
        """Returns the epoch (from 0) of a job after `steps` steps; the number of epochs if it is done."""
        return bisect_right(self._marks, steps) - 1

    def advance(self, placement: GangLayout, steps: float, time_s: float) -> tuple[float, float]:
        """Trains for `time_s` seconds. Returns the steps done afterwards, and the seconds left if the job is done."""
        marks, epoch = self._marks, self.epoch(steps)
        while time_s > 0 and epoch < len(marks) - 1:
            steps_per_s = self._steps_per_s(placement, epoch)
            reached = steps + steps_per_s * time_s
            if reached < marks[epoch + 1]:
                return reached, 0.0
            # `round` rounds halves to even, as in the artifact.
            time_s -= round((marks[epoch + 1] - steps) / steps_per_s)
            epoch += 1
            steps = marks[epoch]
        return steps, time_s

    def _steps_per_s(self, placement: GangLayout, epoch: int) -> float:
        """Returns the goodput in this epoch, with the batch split anew over the gang."""
        found = self._goodput.get((placement, epoch))
        if found is None:
            application, count = self.application, placement.accelerators
            least = 1 if count == 1 and self.batch > application.batch_initial else 0
            split = split_batch(application, self._accelerator, count, self.batch, accumulated_least=least)
            found = goodput(application, self._accelerator, placement, split, epoch)
            self._goodput[placement, epoch] = found
        return found

    def speed_at(self, placement: GangLayout, steps: float) -> float:
        """Returns steps per second on this placement, in the epoch of a job after `steps` steps."""
        return self._steps_per_s(placement, min(self.epoch(steps), self.application.epochs - 1))

    def predicted_s(self, accelerators: int, machine_size: int) -> float:
        """Returns the seconds of one update that Optimus predicts: packed, and in two passes on one accelerator."""
        key = (accelerators, machine_size)
        found = self._predicted_s.get(key)
        if found is None:
            least = 1 if accelerators == 1 else 0
            split = split_batch(self.application, self._accelerator, accelerators, self.batch, accumulated_least=least)
            placement = packed_layout(accelerators, machine_size)
            found = update_time_s(self.application, self._accelerator, placement, split)
            self._predicted_s[key] = found
        return found

    def mean_steps_per_s(self, placement: GangLayout) -> float:
        """Returns the mean steps per second over the whole training on this placement."""
        found = self._mean_steps_per_s.get(placement)
        if found is None:
            marks, epochs = self._marks, range(self.application.epochs)
            time_s = sum((marks[k + 1] - marks[k]) / self._steps_per_s(placement, k) for k in epochs)
            found = self._mean_steps_per_s[placement] = self.application.work / time_s
        return found

    def updates_left(self, epoch: int) -> float:
        """Returns the updates that Optimus assumes to be left; those of the present epoch do not count."""
        application = self.application
        if epoch >= application.epochs - 1:
            return 1.0
        learning, batch = application.learning, self.batch
        return learning.updates(batch, application.epochs) - learning.updates(batch, epoch + 1)


#: Number of batches that are tried, at equal ratios.
_BATCHES = 50


def best_goodput(first: int, last: int, goodput_of: Callable[[int], float]) -> float:
    """Returns the largest goodput among batches from the first to the last; 0 where no batch can be used."""
    if first > last:
        return 0.0
    ratio = (last / first) ** (1.0 / (_BATCHES - 1))
    batches = sorted({min(last, round(first * ratio**step)) for step in range(_BATCHES)})
    return max(_goodput_or_zero(goodput_of, batch) for batch in batches)


def _goodput_or_zero(goodput_of: Callable[[int], float], batch: int) -> float:
    try:
        return goodput_of(batch)
    except (OutsideProfileError, ConfigError):  # outside of the measurements
        return 0.0


@dataclass(frozen=True, slots=True)
class TrainingLaw:
    """A `simulator.ground_truth.SpeedLaw`: the progress of a job of one kind, by accelerator type."""

    trainings: Mapping[str, PolluxTraining]

    def speed_segment(self, accelerator: str, parts: tuple[int, ...], steps: float) -> SpeedSegment:
        """Returns the speed from `steps` on, until the epoch ends."""
        training = self.trainings[accelerator]
        marks, after = training.application.learning.work, training.epoch(steps) + 1
        until = marks[after] if after < len(marks) - 1 else inf
        return SpeedSegment(training.speed_at(GangLayout(parts), steps), until)


def gang_sizes_in(model: PoolModel) -> tuple[int, ...]:
    """Returns the gang sizes that a job may have on this type: parts of one machine, then whole machines."""
    size = model.pool.shape.accelerators
    parts = [1 << power for power in range(size.bit_length()) if 1 << power < size]
    return (*parts, *(size * machines for machines in range(1, model.machines + 1)))


@dataclass(frozen=True, slots=True)
class PolluxWorkload:
    """Jobs, numbered from 1 in the order of their rows, and the training of each kind."""

    jobs: tuple[SimulatedJob, ...]
    trainings: Mapping[Kind, PolluxTraining]


def pollux_workload(
    rows: Iterable[TraceJob], applications: Mapping[str, Application], pool: Pool, machines: int
) -> PolluxWorkload:
    """Converts the rows to jobs of one pool of `machines` machines.

    Raises ConfigError for an application without a profile and a job larger than the pool, and OutsideProfileError (a
    ConfigError too) for a batch that the profile does not cover.
    """
    shape, most = pool.shape, machines * pool.shape.accelerators
    trainings: dict[Kind, PolluxTraining] = {}
    jobs: list[SimulatedJob] = []
    for number, row in enumerate(rows, start=1):
        kind = _training_kind(row, applications, shape.accelerator, trainings)
        if row.gang > most:
            raise ConfigError(
                f"line {row.line}: {row.name!r} wants {row.gang} accelerators, {most} are there",
                field="num_replicas",
                fix="choose a larger cluster",
            )
        training = trainings[kind]
        training.mean_steps_per_s(packed_layout(row.gang, shape.accelerators))  # now, not after hours of the run
        steps = training.application.work
        request = JobRequest(JobId(number), kind, demands=(Demand(shape.accelerator, row.gang),), steps=steps)
        jobs.append(SimulatedJob(row.at, request, steps, name=row.name))
    return PolluxWorkload(tuple(jobs), trainings)


def _training_kind(
    row: TraceJob, applications: Mapping[str, Application], accelerator: str, trainings: dict[Kind, PolluxTraining]
) -> Kind:
    """Returns the row's kind, and registers its training in `trainings`."""
    if row.batch is None:
        raise ConfigError(f"line {row.line}: {row.name!r} has no batch size", field="batch_size", fix="give one")
    ending = f" (batch size {row.batch})"
    name = row.kind.removesuffix(ending)
    kind = Kind(name + ending)
    if kind not in trainings:
        application = applications.get(name)
        if application is None:
            fix = nearest_or_all(name, applications)
            raise ConfigError(f"line {row.line}: no profile of application {name!r}", field="application", fix=fix)
        trainings[kind] = PolluxTraining(application, accelerator, row.batch)
    return kind


class SteppedAttempts(AttemptSimulator):
    """Simulates attempts in steps. Reports, noise, periodic checkpoints and planned failures are not modelled."""

    def __init__(
        self,
        machines: SimulatedMachines,
        model: WorldParameters,
        streams: RandomStreams,
        *,
        trainings: Mapping[Kind, PolluxTraining],
        step_s: float,
    ) -> None:
        super().__init__(machines, model, streams)
        machines.engine.on_command[BeginRound] = self._begin_step
        self._trainings = trainings
        self._step_s = step_s
        #: Running attempts in order of start, and the steps that each job will have done by the end of this step.
        self._live: dict[JobId, SimAttempt] = {}
        self._reached: dict[JobId, float] = {}
        #: Nothing runs: the next arrival starts the clock.
        self._idle = True

    # -- called by the world

    def begin(self, now: float, attempt: SimAttempt) -> None:
        self._hold_devices(attempt)
        attempt.base_at, attempt.up_at = now, now + attempt.costs.start_s
        self._live[attempt.job_id] = attempt
        attempt.timer = self._engine.schedule(attempt.up_at, self._ranks_up, attempt)

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        if attempt.phase in (SimAttemptPhase.STOPPING, SimAttemptPhase.DEAD):
            return
        if now > attempt.base_at:
            self._credit(attempt, self._train(attempt, now)[0])
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[attempt.job_id]
        self._set_timer(attempt, now, self._stopped_at_once)

    def kill(self, at: float, attempt: SimAttempt) -> None:
        self._live.pop(attempt.job_id, None)
        super().kill(at, attempt)

    def _settle(self, at: float, attempt: SimAttempt) -> None:
        """Does nothing: steps are counted at the ends of steps, so a killed attempt loses those since the last one."""

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        if self._idle:
            self._idle = False
            self._engine.schedule(max(1, ceil(at / self._step_s)) * self._step_s, self._due)
        return ()

    # -- called by timers and the scheduler

    def _ranks_up(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        attempt.phase = SimAttemptPhase.RUNNING
        return (AttemptStarted(at, attempt.job_id, attempt.number),)

    def _begin_step(self, now: float, command: BeginRound) -> None:
        if not self._live:
            self._idle = True
            return
        self._reached = {}
        ends_at = now + command.round_s
        for job_id, attempt in self._live.items():
            attempt.base_at = now
            self._reached[job_id], left_s = self._train(attempt, ends_at)
            if self._reached[job_id] >= attempt.job.plan.steps:
                self._engine.schedule(ends_at - left_s, self._completed, attempt)
        self._engine.schedule(ends_at, self._due)

    def _train(self, attempt: SimAttempt, until_at: float) -> tuple[float, float]:
        """Returns the job's steps at `until_at` if it runs until then, and the seconds left after it was done."""
        training_s = until_at - max(attempt.base_at, attempt.up_at)
        if training_s <= 0.0:
            return attempt.job.steps, 0.0
        placement = GangLayout(tuple(len(devices) for _, devices in attempt.parts))
        return self._training(attempt).advance(placement, attempt.job.steps, training_s)

    def _training(self, attempt: SimAttempt) -> PolluxTraining:
        return self._trainings[attempt.job.plan.request.kind]

    def _credit(self, attempt: SimAttempt, steps: float) -> None:
        attempt.job.worked_steps += steps - attempt.job.steps
        attempt.job.steps = steps

    def _completed(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        job, job_id = attempt.job, attempt.job_id
        if self._live.get(job_id) is not attempt:
            return ()
        self._credit(attempt, job.plan.steps)
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[job_id]
        self.release(attempt)
        return (AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, 0, steps=job.steps),)

    def _due(self, at: float, _: object) -> Iterable[Event]:
        """Schedules the end of the step after all other events of this instant."""
        self._engine.schedule(at, self._step_over)
        return ()

    def _step_over(self, at: float, _: object) -> Iterable[Event]:
        for job_id, attempt in self._live.items():
            self._credit(attempt, self._reached[job_id])
            attempt.job.saved_steps = attempt.job.steps
            attempt.base_at = at
        steps = [attempt.job.steps for attempt in self._live.values()]
        return (RoundEnded(at, list(self._live), steps, [at] * len(steps)),)
