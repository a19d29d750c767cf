"""The Pollux artifact's simulator as a scenario: under its own policies, or under Walras's plan policies.

Its third policy, Pollux itself, is not reproduced, because it searches at random without a seed.

Under our policies jobs change their batch with their gang: in every epoch a job trains with the batch of largest
goodput for its gang, as `simulator.goodput` computes it. Step times and the gradient noise of the present epoch
are known, later epochs are not. Applications that do not adapt in the artifact do not adapt here: ncf has one
accelerator and one batch.

Accelerators are reallocated at every step. A policy decides how many each job has next, and the order of placement. A
job whose number does not change keeps its machines. The others release theirs and are placed in the order of the
policy, each on the machines with the most free accelerators (the first of equals). No job is moved to bring a gang
together.

Two rules of training are peculiar to the artifact. The seconds of an epoch are rounded to a whole number at its end.
And a single accelerator that trains with more than the initial batch splits it into at least two passes, because the
gradient noise cannot be estimated from one. `TrainingLaw` and `best_goodput` serve the worlds in which jobs change
their batch with their gang.

Attempts are in steps of a fixed length, counted from time 0: the scheduler decides at the end of each step, never in
between, so it first sees a job at the end of the step in which it was submitted. An attempt first waits for its
restart, then trains; a job ends at its own instant. While there is no job, the clock jumps to the end of the step of
the next arrival.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heapreplace
from math import ceil, inf

from optimizer.policy import Policy, PolicySpec
from scheduler.core.commands import BeginRound
from scheduler.core.events import Event, RoundEnded
from scheduler.core.rules import RoundRules
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from scheduler.world.attempts import (
    AttemptCosts,
    SimAttempt,
    SimAttemptPhase,
    SimulatedJob,
    SpeedSegment,
    WorldParameters,
)
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import PoolModel, SimulatedMachines
from simulator.goodput import (
    Application,
    BatchSplit,
    GangLayout,
    OutsideProfileError,
    geometric_batches,
    goodput,
    packed_layout,
    read_pollux_applications,
    split_batch,
    update_time_s,
)
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.stepped_mechanism import (
    OrderBySubmission,
    StepConfiguration,
    StepEndMechanism,
    WholeStepAttempts,
    admit_arrivals,
    fill_emptiest,
    free_room,
    jobs_in_place,
    keep_in_place,
    own_wiring,
    plan_wiring,
)
from simulator.worlds.world_registry import WorldRequest, WorldRun, only_pool, required_speeds
from walras.cluster import Pool, PoolId, Shape
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
        #: The accelerator type on which it trains.
        self.accelerator = accelerator
        self._marks = application.learning.work
        self._goodput: dict[tuple[GangLayout, int], float] = {}
        self._predicted_s: dict[tuple[int, int], float] = {}
        self._mean_steps_per_s: dict[GangLayout, float] = {}

    @property
    def local_least(self) -> int:
        """Returns the smallest batch per accelerator."""
        return self.application.on[self.accelerator].local_least

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
        found = self._goodput.get((placement, epoch))
        if found is None:
            found = self._goodput[placement, epoch] = self._trained_goodput(placement, epoch)
        return found

    def _trained_goodput(self, placement: GangLayout, epoch: int) -> float:
        """Returns the goodput in this epoch, with the batch split anew over the gang."""
        split = self._split(placement, self.batch)
        return goodput(self.application, self.accelerator, placement, split, epoch)

    def _split(self, placement: GangLayout, batch: int) -> BatchSplit:
        """Splits a batch: above the initial one, a single accelerator needs two passes to estimate the noise."""
        application, count = self.application, placement.accelerators
        least = 1 if count == 1 and batch > application.batch_initial else 0
        return split_batch(application, self.accelerator, count, batch, accumulated_least=least)

    def speed_at(self, placement: GangLayout, steps: float) -> float:
        """Returns steps per second on this placement, in the epoch of a job after `steps` steps."""
        return self._steps_per_s(placement, min(self.epoch(steps), self.application.epochs - 1))

    def predicted_s(self, accelerators: int, machine_size: int) -> float:
        """Returns the seconds of one update that Optimus predicts: packed, and in two passes on one accelerator."""
        key = (accelerators, machine_size)
        found = self._predicted_s.get(key)
        if found is None:
            least = 1 if accelerators == 1 else 0
            split = split_batch(self.application, self.accelerator, accelerators, self.batch, accumulated_least=least)
            placement = packed_layout(accelerators, machine_size)
            found = update_time_s(self.application, self.accelerator, placement, split)
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


#: Number of batches that are tried.
_BATCHES = 50


def best_goodput(first: int, last: int, goodput_of: Callable[[int], float]) -> float:
    """Returns the largest goodput among batches from the first to the last; 0 where no batch can be used."""
    if first > last:
        return 0.0
    return max(_goodput_or_zero(goodput_of, batch) for batch in geometric_batches(first, last, _BATCHES))


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


class SteppedAttempts(WholeStepAttempts):
    """Simulates attempts in steps."""

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

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        if self._idle:
            self._idle = False
            self._engine.schedule(max(1, ceil(at / self._step_s)) * self._step_s, self._due)
        return ()

    # -- called by timers and the scheduler

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

    def _completed(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        if self._live.get(attempt.job_id) is not attempt:
            return ()
        del self._live[attempt.job_id]
        return (self._succeeded(at, attempt),)

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


#: Tiresias: a job that has received so many accelerator-seconds goes to the second queue (16 accelerator-hours).
_LONG_S = 57_600.0
#: Optimus: applications that use only one accelerator.
_SINGLE = frozenset({"ncf"})


@dataclass(frozen=True, slots=True)
class PolluxJob:
    """A job that has been submitted and has not ended."""

    job_id: JobId
    training: PolluxTraining
    #: Number of accelerators that it requested.
    gang: int
    #: Steps done, and accelerator-seconds received.
    steps: float
    attained_s: float


@dataclass(frozen=True, slots=True)
class PolluxFleet:
    """The accelerators of the cluster, free or not."""

    accelerators: int
    machine_size: int


class PolluxPolicy(OrderBySubmission, ABC):
    """A policy of the artifact: `allocate` makes the decisions."""

    @abstractmethod
    def allocate(self, jobs: Sequence[PolluxJob], fleet: PolluxFleet) -> list[tuple[PolluxJob, int]]:
        """Returns jobs with their numbers of accelerators, in order of placement. `jobs` are in order of their rows."""


class PolluxTiresias(PolluxPolicy):
    """Two queues by attained service, each first come, first served; jobs that do not fit are skipped."""

    def __init__(self) -> None:
        #: Jobs of each queue, in order.
        self._new: dict[JobId, None] = {}
        self._old: dict[JobId, None] = {}

    def allocate(self, jobs: Sequence[PolluxJob], fleet: PolluxFleet) -> list[tuple[PolluxJob, int]]:
        by_id = {job.job_id: job for job in jobs}
        self._new = {job_id: None for job_id in self._new if job_id in by_id}
        self._old = {job_id: None for job_id in self._old if job_id in by_id}
        self._new.update({job_id: None for job_id in by_id if job_id not in self._old})
        for job in jobs:
            if job.attained_s >= _LONG_S and job.job_id in self._new:
                del self._new[job.job_id]
                self._old[job.job_id] = None
        left, chosen = fleet.accelerators, []
        for job_id in (*self._new, *self._old):
            job = by_id[job_id]
            if job.gang <= left:
                left -= job.gang
                chosen.append((job, job.gang))
        return chosen


class PolluxOptimus(PolluxPolicy):
    """Gives each job one accelerator, then one more to the job that gains most by it; speeds are known, not learned.

    The gain is a difference of update times, not of rates; a job grows no further once its gain is not positive.
    """

    def allocate(self, jobs: Sequence[PolluxJob], fleet: PolluxFleet) -> list[tuple[PolluxJob, int]]:
        count = dict.fromkeys(range(min(len(jobs), fleet.accelerators)), 1)
        left = fleet.accelerators - len(count)
        updates = [job.training.updates_left(job.training.epoch(job.steps)) for job in jobs]

        def entry(row: int) -> tuple[float, int]:
            """Returns the heap entry that puts the largest gain first, then the earliest row."""
            return -_optimus_gain(jobs[row].training, count[row], updates[row], fleet.machine_size), row

        heap = [entry(row) for row in count] if left else []
        heapify(heap)
        while left and heap:
            gain, row = heap[0]
            if gain >= 0.0:
                break
            count[row] += 1
            left -= 1
            heapreplace(heap, entry(row))
        return [(jobs[row], count[row]) for row in sorted(count, key=lambda row: count[row])]


def _optimus_gain(training: PolluxTraining, count: int, updates: float, machine_size: int) -> float:
    most = 1 if training.application.name in _SINGLE else training.batch // training.local_least
    if count + 1 > most:
        return 0.0
    return (training.predicted_s(count, machine_size) - training.predicted_s(count + 1, machine_size)) * updates


class PolluxRounds(StepEndMechanism):
    """At the end of a step it decides, stops and starts jobs, and begins the next step."""

    def __init__(self, rules: RoundRules, policy: PolluxPolicy, trainings: dict[Kind, PolluxTraining]) -> None:
        super().__init__(rules.round_s)
        self._policy = policy
        self._trainings = trainings

    def step_ended(self, cycle: Cycle) -> None:
        jobs = cycle.ledger.jobs
        admit_arrivals(cycle)
        active = [self._active(cycle, job) for _, job in sorted(jobs.items()) if job.holds or job.waits]
        decided = self._policy.allocate(active, _fleet_of(cycle)) if active else []
        count = {job.job_id: accelerators for job, accelerators in decided}
        kept = jobs_in_place(cycle, {job_id: (0, accelerators) for job_id, accelerators in count.items()})
        placing = [(job_id, accelerators) for job_id, accelerators in count.items() if job_id not in kept]
        moves = ((jobs[job_id], 0, fill_emptiest(free_room(cycle, 0), wanted)) for job_id, wanted in placing)
        self.reallocation.begin(cycle, kept, moves)

    def _active(self, cycle: Cycle, job: JobRecord) -> PolluxJob:
        columns, request = cycle.ledger.columns, job.request
        columns.settle(job.slot, cycle.now)
        return PolluxJob(
            job.job_id,
            self._trainings[request.kind],
            request.demands[0].count,
            job.steps,
            float(columns.attained_s[job.slot]),
        )


def _fleet_of(cycle: Cycle) -> PolluxFleet:
    (pool,) = cycle.ledger.fleet.pools
    return PolluxFleet(pool.capacity, pool.pool.shape.accelerators)


#: The mechanism's name in `RoundRules`, and its parameters.
POLLUX = "pollux-osdi21"
POLLUX_RULES = RoundRules(mechanism=POLLUX, round_s=60.0, resolve_min_s=0.0, idle_to_round_end=True)
#: Seconds that every start costs, the first included.
RESTART_S = 30.0
#: The accelerator type on which the profiles were measured.
_T4 = "t4"
#: The cluster of the recorded runs: 16 machines of 4 T4.
T4_POOL = PoolModel(Pool(PoolId("t4"), Shape("t4x4", "t4", 4, 48.0, 192 * 2**30)), machines=16)

#: The artifact's policies that can be reproduced.
POLLUX_POLICIES: dict[str, Callable[[], PolluxPolicy]] = {"tiresias": PolluxTiresias, "optimus": PolluxOptimus}


class PackedGangSpeeds(Mapping[SpeedKey, float]):
    """The speeds announced to the scheduler: means over the training, on as few machines as possible, computed on
    demand.

    The time model determines a job's actual speed at a time and place.
    """

    def __init__(self, trainings: Mapping[Kind, PolluxTraining], pool: PoolModel) -> None:
        self._trainings = trainings
        self._shape = pool.pool.shape
        self._counts = range(1, pool.machines * self._shape.accelerators + 1)

    def __getitem__(self, key: SpeedKey) -> float:
        if key.accelerator != self._shape.accelerator or key.count not in self._counts:
            raise KeyError(key)
        return self._trainings[key.kind].mean_steps_per_s(packed_layout(key.count, self._shape.accelerators))

    def __iter__(self) -> Iterator[SpeedKey]:
        accelerator = self._shape.accelerator
        return (SpeedKey(kind, accelerator, count) for kind in self._trainings for count in self._counts)

    def __len__(self) -> int:
        return len(self._trainings) * len(self._counts)


def pollux_scenario(workload: PolluxWorkload, policy: str, *, pool: PoolModel = T4_POOL) -> Scenario:
    """Returns a run of the artifact's simulator, under one of `POLLUX_POLICIES`, on the pool of these jobs."""
    trainings = dict(workload.trainings)

    def rounds(cycle: Cycle, chosen: Policy, rules: RoundRules) -> PolluxRounds:
        assert isinstance(chosen, PolluxPolicy), "the artifact's mechanism runs the artifact's policies"
        return PolluxRounds(rules, chosen, trainings)

    pace = partial(SteppedAttempts, trainings=trainings, step_s=POLLUX_RULES.round_s)
    wiring = own_wiring(POLLUX, lambda spec: POLLUX_POLICIES[spec.name](), rounds, pace)
    truth = GroundTruth(PackedGangSpeeds(trainings, pool), default_costs=AttemptCosts(start_s=RESTART_S))
    return Scenario((pool,), truth, PolicySpec(policy), POLLUX_RULES, wiring=wiring)


#: Applications with one accelerator, and the batch with which they always train.
_FIXED = {"ncf": 32_768}


class AdaptivePolluxTraining(PolluxTraining):
    """An application that trains with the batch of largest goodput, in every epoch and on every placement."""

    def _trained_goodput(self, placement: GangLayout, epoch: int) -> float:
        application = self.application
        first, last = max(application.batch_initial, self.local_least * placement.accelerators), application.batch_most
        if application.name in _FIXED:
            first = last = _FIXED[application.name]
        return best_goodput(first, last, partial(self._with, placement=placement, epoch=epoch))

    def _with(self, batch: int, placement: GangLayout, epoch: int) -> float:
        """Returns the goodput with this batch; 0 where a rank would have too few samples or too many."""
        split, profile = self._split(placement, batch), self.application.on[self.accelerator]
        if not profile.local_least <= split.local <= profile.local_most:
            return 0.0
        return goodput(self.application, self.accelerator, placement, split, epoch)


def with_adaptive_batches(workload: PolluxWorkload) -> PolluxWorkload:
    """Returns the same jobs with adaptive batches. Jobs of one application share computed speeds."""
    shared: dict[str, AdaptivePolluxTraining] = {}
    trainings: dict[Kind, PolluxTraining] = {}
    for kind, training in workload.trainings.items():
        name = training.application.name
        if name not in shared:
            shared[name] = AdaptivePolluxTraining(training.application, training.accelerator, training.batch)
        trainings[kind] = shared[name]
    return replace(workload, trainings=trainings)


@dataclass(frozen=True, slots=True)
class AdaptiveConfigurations:
    """Returns every configuration of a job, by its goodput in its present epoch."""

    trainings: Mapping[Kind, PolluxTraining]
    sizes: Mapping[Kind, tuple[int, ...]]
    machine_size: int

    @classmethod
    def of(cls, workload: PolluxWorkload, pool: PoolModel) -> "AdaptiveConfigurations":
        """Returns the configurations of these jobs on this pool."""
        trainings = workload.trainings.items()
        sizes = {kind: (1,) if each.application.name in _FIXED else gang_sizes_in(pool) for kind, each in trainings}
        return cls(workload.trainings, sizes, pool.pool.shape.accelerators)

    def __call__(self, job: JobRecord) -> list[StepConfiguration]:
        kind = job.request.kind
        training = self.trainings[kind]
        speeds = (
            (count, training.speed_at(packed_layout(count, self.machine_size), job.steps)) for count in self.sizes[kind]
        )
        return [StepConfiguration(0, count, speed) for count, speed in speeds if speed > 0]


def pollux_plan_scenario(workload: PolluxWorkload, policy: PolicySpec, *, pool: PoolModel = T4_POOL) -> Scenario:
    """Returns a run of these jobs, with adaptive batches, in the artifact's world under a plan policy of Walras."""
    ours = with_adaptive_batches(workload)
    ways = AdaptiveConfigurations.of(ours, pool)

    pace = partial(SteppedAttempts, trainings=ours.trainings, step_s=POLLUX_RULES.round_s)
    wiring = plan_wiring(POLLUX, ways, keep_in_place, pace)
    accelerator = pool.pool.shape.accelerator
    laws = {kind: TrainingLaw({accelerator: training}) for kind, training in ours.trainings.items()}
    truth = GroundTruth({}, default_costs=AttemptCosts(start_s=RESTART_S), laws=laws)
    return Scenario((pool,), truth, policy, POLLUX_RULES, wiring=wiring)


def pollux_world_run(request: WorldRequest) -> WorldRun:
    """Makes the run. Raises ConfigError for a cluster, speeds or a trace that the artifact's simulator cannot have."""
    pool = only_pool(request)
    shape = pool.pool.shape
    if shape.accelerator != _T4:
        raise ConfigError(
            f"world 'pollux' was measured on {_T4}, the cluster has {shape.accelerator}",
            field="cluster",
            fix="choose a cluster such as pollux-64",
        )
    known = read_pollux_applications(required_speeds(request, "a folder of the artifact's profiles"))
    made = pollux_workload(request.trace.jobs, known, pool.pool, pool.machines)
    alone_s = {}
    for job in made.jobs:
        training = made.trainings[job.request.kind]
        place = packed_layout(job.request.demands[0].count, shape.accelerators)
        alone_s[job.request.job_id] = job.steps / training.mean_steps_per_s(place)
    if request.is_own:
        return WorldRun(made.jobs, pollux_scenario(made, request.policy.name, pool=pool), alone_s)
    return WorldRun(made.jobs, pollux_plan_scenario(made, request.policy, pool=pool), alone_s)
