"""Arena's time model: whole rounds, in which a start costs the seconds of tuning its parallel plan.

All events happen at the starts of rounds. A job ends at the first start of a round by which its run time contains all
of its iterations, counted in whole iterations. Tuning that fits into a round costs throughput but no progress; longer
tuning costs one round of progress, and the throughput of two rounds. The scheduler gets a report in rounds in which a
job ends or is submitted, because no other round could change a decision.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor

from scheduler.core.commands import BeginRound
from scheduler.core.events import AttemptEnded, AttemptStarted, CheckpointRecorded, EndCause, Event, RoundEnded
from simulator.attempts import AttemptSimulator, SimAttempt, SimAttemptPhase, WorldParameters
from simulator.engine import Engine, RandomStreams, Timer
from simulator.machines import SimulatedMachines
from simulator.worlds.arena.arena_places import ArenaModel, PlaceTable
from walras.contract import EXIT_CHECKPOINTED
from walras.job_request import JobId, Kind

#: Length of a round, seconds.
ROUND_S = 300.0
#: Largest number of rounds of progress that the tuning of a start costs.
_TUNED_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class TuningCost:
    """The cost of tuning the parallel plan after a start or a change of placement."""

    per_accelerator_s: float
    most_s: float

    def seconds(self, accelerators: int) -> float:
        """Returns the seconds of tuning of a gang of that size."""
        return min(self.per_accelerator_s * accelerators, self.most_s)

    def lost_s(self, accelerators: int) -> float:
        """Returns the seconds of progress that the tuning costs."""
        return _TUNED_ROUNDS * ROUND_S if self.seconds(accelerators) > ROUND_S else 0.0


#: Tuning under all policies but Arena's own, and under Arena's own, which tunes only plans that were not measured.
TUNING = TuningCost(150.0, 600.0)
ARENA_TUNING = TuningCost(10.0, 40.0)


@dataclass(frozen=True, slots=True)
class TunedSpan:
    """An ended attempt: the rounds in which it ran, samples per second, and seconds of tuning."""

    first_round: int
    end_round: int
    throughput: float
    tuning_s: float

    def throughput_in(self, round_: int) -> float:
        """Returns the throughput that counts in the given round, less the tuning."""
        since = round_ - self.first_round
        if self.tuning_s > ROUND_S:
            return 0.0 if since <= _TUNED_ROUNDS else self.throughput
        return self.throughput * (ROUND_S - self.tuning_s) / ROUND_S if since == 0 else self.throughput


def round_throughputs(spans: Iterable[TunedSpan], rounds: int) -> list[float]:
    """Returns the cluster's samples per second in each of the first `rounds` rounds."""
    total = [0.0] * rounds
    for span in spans:
        for round_ in range(span.first_round, min(span.end_round, rounds)):
            total[round_] += span.throughput_in(round_)
    return [round(each, 3) for each in total]


def rounds_needed(iterations: float, iteration_s: float) -> int:
    """Returns the rounds until the run time contains that many whole iterations."""
    rounds = max(1, ceil(iterations * iteration_s / ROUND_S))
    while floor(rounds * ROUND_S / iteration_s) < iterations:
        rounds += 1
    while rounds > 1 and floor((rounds - 1) * ROUND_S / iteration_s) >= iterations:
        rounds -= 1
    return rounds


@dataclass(slots=True)
class _Run:
    """An attempt that is running."""

    attempt: SimAttempt
    iteration_s: float
    throughput: float
    #: Instant from which its run time counts, and the job's iterations before it.
    counts_from: float
    base_steps: float
    ends_at: float
    timer: Timer

    def steps_at(self, at: float) -> float:
        """Returns the iterations of the job at the start of a round before its end."""
        return self.base_steps + floor(max(0.0, at - self.counts_from) / self.iteration_s)


class ArenaAttempts(AttemptSimulator):
    """Simulates attempts in whole rounds. Noise, reports and planned failures are not modelled."""

    def __init__(
        self,
        engine: Engine,
        machines: SimulatedMachines,
        model: WorldParameters,
        streams: RandomStreams,
        *,
        places: PlaceTable,
        models: Mapping[Kind, ArenaModel],
        tuning: TuningCost,
        on_span: Callable[[TunedSpan], None] | None = None,
    ) -> None:
        """`on_span` is called with every attempt that has ended."""
        super().__init__(engine, machines, model, streams)
        engine.on_command[BeginRound] = self._begin_round
        self._places = places
        self._models = models
        self._tuning = tuning
        self._on_span = on_span
        #: Running attempts, in order of start.
        self._live: dict[JobId, _Run] = {}
        #: The last instant for which a report was scheduled.
        self._report_at = -1.0

    # -- called by the world

    def begin(self, now: float, attempt: SimAttempt) -> None:
        self._hold_devices(attempt)
        parts = tuple(len(devices) for _, devices in attempt.parts)
        accelerator = self._machines.pools[attempt.parts[0][0].pool_id].pool.shape.accelerator
        model, place = self._models[attempt.job.plan.request.kind], self._places.place_of(accelerator, parts)
        tuning_s = self._tuning.seconds(sum(parts))
        attempt.costs = replace(attempt.costs, start_s=tuning_s)
        attempt.base_at, attempt.up_at = now, now + tuning_s
        iteration_s = self._places.seconds_per_iteration(model, place)
        counts_from = now + self._tuning.lost_s(sum(parts))
        left = attempt.job.plan.steps - attempt.job.steps
        ends_at = counts_from + ROUND_S * rounds_needed(left, iteration_s)
        attempt.timer = self._engine.schedule(attempt.up_at, self._ranks_up, attempt)
        self._live[attempt.job_id] = _Run(
            attempt,
            iteration_s,
            self._places.throughput(model, place),
            counts_from,
            attempt.job.steps,
            ends_at,
            self._engine.schedule(ends_at, self._due),
        )

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        if attempt.phase in (SimAttemptPhase.STOPPING, SimAttemptPhase.DEAD):
            return
        run = self._take_off(now, attempt)
        self._credit(attempt, run.steps_at(now))
        attempt.phase = SimAttemptPhase.STOPPING
        self._set_timer(attempt, now, self._stopped)

    def kill(self, at: float, attempt: SimAttempt) -> None:
        self._take_off(at, attempt)
        super().kill(at, attempt)

    def _settle(self, at: float, attempt: SimAttempt) -> None:
        """Does nothing: iterations are counted at the starts of rounds."""

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        return self._due(at, None)

    # -- called by timers and the scheduler

    def _begin_round(self, now: float, command: BeginRound) -> None:
        """Does nothing: the next report comes with the next end or arrival."""

    def _ranks_up(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        attempt.phase = SimAttemptPhase.RUNNING
        return (AttemptStarted(at, attempt.job_id, attempt.number),)

    def _due(self, at: float, _: object) -> Iterable[Event]:
        """Schedules the report of this instant after its other events."""
        if at > self._report_at:
            self._report_at = at
            self._engine.schedule(at, self._report_round)
        return ()

    def _report_round(self, at: float, _: object) -> Iterable[Event]:
        ended = [run.attempt for run in self._live.values() if run.ends_at <= at]
        events: list[Event] = [self._completed(at, attempt) for attempt in ended]
        for run in self._live.values():
            self._credit(run.attempt, run.steps_at(at))
            run.attempt.job.saved_steps = run.attempt.job.steps
        steps = [run.attempt.job.steps for run in self._live.values()]
        return (*events, RoundEnded(at, list(self._live), steps, [at] * len(steps)))

    def _completed(self, at: float, attempt: SimAttempt) -> AttemptEnded:
        self._take_off(at, attempt)
        self._credit(attempt, attempt.job.plan.steps)
        attempt.phase = SimAttemptPhase.STOPPING
        self.release(attempt)
        return AttemptEnded(at, attempt.job_id, attempt.number, EndCause.EXITED, 0, steps=attempt.job.steps)

    def _stopped(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        job, job_id = attempt.job, attempt.job_id
        self.release(attempt)
        ended = AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, EXIT_CHECKPOINTED, steps=job.steps)
        if job.steps == job.saved_steps:
            return (ended,)
        return (CheckpointRecorded(at, job_id, attempt.number, job.steps), ended)

    def _take_off(self, at: float, attempt: SimAttempt) -> _Run:
        run = self._live.pop(attempt.job_id)
        self._engine.cancel(run.timer)
        if self._on_span is not None:
            first, end = round(attempt.base_at / ROUND_S), round(at / ROUND_S)
            self._on_span(TunedSpan(first, end, run.throughput, attempt.costs.start_s))
        return run

    def _credit(self, attempt: SimAttempt, steps: float) -> None:
        attempt.job.worked_steps += steps - attempt.job.steps
        attempt.job.steps = steps
