"""Gavel's simulator as a scenario: its policies by name, its round mechanism and its time model.

Attempts that run in lockstep: each makes whole steps in a round, and then all wait for the next round.

This is the time model of round-based simulators. In a round an attempt makes as many whole steps as fit into the
round's length, or as are left. The round ends with its last attempt, so its length differs from the configured one. A
job that completes ends at its own instant. Starts and stops cost nothing. While nothing runs, the clock jumps to the
next arrival.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from optimizer.policy import Policy, PolicySpec
from scheduler.core.commands import BeginRound
from scheduler.core.events import AttemptEnded, AttemptStarted, EndCause, Event, RoundEnded
from scheduler.core.rules import RoundRules
from scheduler.core.state.working_set import Cycle
from scheduler.world.attempts import AttemptSimulator, SimAttempt, SimAttemptPhase, WorldParameters
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import PoolModel, SimulatedMachines
from scheduler.world.world import MakeAttemptSimulator
from simulator.experiment import speeds_path_of, trace_experiment
from simulator.ground_truth import GroundTruth
from simulator.simulation import Scenario, SchedulerWiring
from simulator.workloads.trace_binding import read_pair_speeds
from simulator.worlds.gavel.gavel_rounds import TYPE_ORDER, GavelRounds, GavelRules
from simulator.worlds.gavel.heuristic_policies import (
    GavelAlloX,
    GavelFifo,
    GavelFifoPacked,
    GavelFifoPerf,
    GavelGandiva,
    GavelIsolated,
    GavelPolicy,
    gavel_solver,
)
from simulator.worlds.gavel.program_policies import (
    ConeSolver,
    GavelFinishTimeFairness,
    GavelMaxMinFairness,
    GavelMaxSumThroughput,
    GavelMinTotalDuration,
    GavelWaterFilling,
    solve_cone_program,
    with_cone_solver,
)
from simulator.worlds.stepped_mechanism import own_wiring
from simulator.worlds.world_registry import WorldRequest, WorldRun, owned_pools
from walras.contract import EXIT_CHECKPOINTED
from walras.errors import ConfigError
from walras.job_request import JobId


class LockstepAttempts(AttemptSimulator):
    """Simulates attempts in rounds. Speeds may be noisy; costs, reports and planned failures are not modelled."""

    def __init__(self, machines: SimulatedMachines, model: WorldParameters, streams: RandomStreams) -> None:
        super().__init__(machines, model, streams)
        machines.engine.on_command[BeginRound] = self._begin_round
        #: Running attempts, in order of start.
        self._live: dict[JobId, SimAttempt] = {}
        #: Steps of each job in this round, and when they are done; completions are reported one by one.
        self._steps: dict[JobId, float] = {}
        self._stops_at: dict[JobId, float] = {}
        self._round_s = 0.0
        #: Nothing runs and the scheduler has nothing to run: the next arrivals end the idle round.
        self._idle = True
        #: Whether jobs have arrived since the last round ended.
        self._has_arrivals = False
        #: Whether the workload has ended, and whether an idle round has reported that.
        self._arrivals_over = False
        self._idle_reported = False
        self._starting: list[SimAttempt] = []
        self._stopping: list[SimAttempt] = []

    # -- called by the world

    def begin(self, now: float, attempt: SimAttempt) -> None:
        self._hold_devices(attempt)
        attempt.phase = SimAttemptPhase.RUNNING
        self._live[attempt.job_id] = attempt
        if not self._starting:
            self._engine.schedule(now, self._started)
        self._starting.append(attempt)

    def set_rate(self, now: float, attempt: SimAttempt, full_rate: float) -> None:
        attempt.full_rate = full_rate  # called only between rounds
        attempt.rate = full_rate * attempt.pace

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        if attempt.phase is not SimAttemptPhase.RUNNING:
            return
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[attempt.job_id]
        if not self._stopping:
            self._engine.schedule(now, self._stopped)
        self._stopping.append(attempt)

    def kill(self, at: float, attempt: SimAttempt) -> None:
        self._live.pop(attempt.job_id, None)
        attempt.phase = SimAttemptPhase.DEAD

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        self._has_arrivals = True
        return self._end_round(at) if self._idle else ()

    def no_more_arrivals(self) -> None:
        self._arrivals_over = True

    # -- called by timers and the scheduler

    def _started(self, at: float, _: object) -> Iterable[Event]:
        attempts, self._starting = self._starting, []
        return [AttemptStarted(at, attempt.job_id, attempt.number) for attempt in attempts]

    def _stopped(self, at: float, _: object) -> Iterable[Event]:
        attempts, self._stopping = self._stopping, []
        for attempt in attempts:
            self.release(attempt)
        return [
            AttemptEnded(
                at,
                attempt.job_id,
                attempt.number,
                EndCause.EXITED,
                EXIT_CHECKPOINTED,
                steps=attempt.job.steps,
            )
            for attempt in attempts
        ]

    def _begin_round(self, now: float, command: BeginRound) -> None:
        if not self._live:
            self._wait_for_arrivals(now)
            return
        self._idle_reported, self._round_s = False, command.round_s
        steps, stops_at = {}, {}
        last_at = now
        for job_id, attempt in self._live.items():
            made, stop_at = self._round_of(now, attempt)
            steps[job_id], stops_at[job_id] = made, stop_at
            if stop_at > last_at:
                last_at = stop_at
            if self._completes(attempt, made):
                self._engine.schedule(stop_at, self._completed, attempt)
        self._steps, self._stops_at = steps, stops_at
        self._engine.schedule(last_at, self._round_over)

    def _round_of(self, now: float, attempt: SimAttempt) -> tuple[float, float]:
        """Returns the steps that the attempt makes in the round that begins now, and the instant at which it stops."""
        job = attempt.job
        steps: float = self._whole_steps(attempt)
        left = job.plan.steps - job.steps
        if left < steps:
            steps = left
        stops_at = now + steps / attempt.rate
        if attempt.partner is not None:  # a pair makes the steps for which its slower member has time
            other = attempt.partner
            others = min(self._whole_steps(other), other.job.plan.steps - other.job.steps)
            stops_at = max(stops_at, now + others / other.rate)
        return steps, stops_at

    def _completes(self, attempt: SimAttempt, steps: float) -> bool:
        return steps == attempt.job.plan.steps - attempt.job.steps

    def _whole_steps(self, attempt: SimAttempt) -> int:
        """Returns the steps that fit into a round. Raises ConfigError if none does."""
        steps = int(attempt.rate * self._round_s)
        if steps < 1:
            job = attempt.job_id
            raise ConfigError(f"job {job} makes no step in a round of {self._round_s:g} s", field="rules.round_s")
        return steps

    def _completed(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        job, job_id = attempt.job, attempt.job_id
        if attempt.phase is not SimAttemptPhase.RUNNING:
            return ()
        job.worked_steps += self._steps[job_id]
        job.steps = job.plan.steps
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[job_id]
        self.release(attempt)
        return (AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, 0, steps=job.steps),)

    def _round_over(self, at: float, _: object) -> Iterable[Event]:
        events: list[Event] = []
        for job_id, attempt in list(self._live.items()):
            events.extend(self._count_round(at, attempt, self._steps[job_id]))
        return (*events, *self._end_round(at))

    def _count_round(self, at: float, attempt: SimAttempt, steps: float) -> Iterable[Event]:
        """Counts and saves the round's steps; returns further events."""
        job = attempt.job
        job.steps += steps
        job.worked_steps += steps
        job.saved_steps = job.steps
        return ()

    def _end_round(self, at: float) -> Iterable[Event]:
        """Ends the round: all attempts wait for the scheduler to begin the next one."""
        self._idle = self._has_arrivals = False
        attempts = self._live
        steps, stopped_at = (
            [attempt.job.steps for attempt in attempts.values()],
            [self._stops_at[job_id] for job_id in attempts],
        )
        return (RoundEnded(at, list(attempts), steps, stopped_at),)

    def _wait_for_arrivals(self, now: float) -> None:
        """Waits for arrivals: the next one ends the idle round. The end of the workload is reported once."""
        if self._has_arrivals or (self._arrivals_over and not self._idle_reported):
            self._idle_reported = self._arrivals_over
            self._engine.schedule(now, self._end_idle_round)
        else:
            self._idle = True

    def _end_idle_round(self, at: float, _: object) -> Iterable[Event]:
        return self._end_round(at)


#: The mechanism's name in `RoundRules`, and its parameters. Jobs save at each round's end, so no interval is planned.
GAVEL = "gavel"
GAVEL_RULES = RoundRules(
    mechanism=GAVEL, plan_checkpoints=False, round_s=360.0, resolve_min_s=1920.0, idle_to_round_end=True
)

#: Gavel has one random generator per purpose; the one for the order of types is seeded with the seed plus this.
_SHUFFLE = 5


#: USD per hour of one accelerator (Google, 2020).
GAVEL_USD_PER_H = {"v100": 0.74, "p100": 0.43, "k80": 0.135}


@dataclass(frozen=True, slots=True)
class _PolicyEntry:
    """A policy under Gavel's name, and the rules of the mechanism under it."""

    make: Callable[[int, GroundTruth], GavelPolicy]
    shuffles: bool = False
    only_shares: bool = False
    packs: bool = False
    #: Whether it gives each job one accelerator.
    no_gangs: bool = False


#: By Gavel's names, the policies that can be reproduced; `fifo_fixed` is `fifo` without its defect.
GAVEL_POLICIES: dict[str, _PolicyEntry] = {
    "isolated": _PolicyEntry(lambda seed, truth: GavelIsolated(), shuffles=True),
    "fifo": _PolicyEntry(lambda seed, truth: GavelFifo(seed), shuffles=True, only_shares=True),
    "fifo_fixed": _PolicyEntry(lambda seed, truth: GavelFifo(seed, fixed=True), shuffles=True, only_shares=True),
    "fifo_perf": _PolicyEntry(lambda seed, truth: GavelFifoPerf(), only_shares=True),
    "fifo_packed": _PolicyEntry(lambda seed, truth: GavelFifoPacked(truth), only_shares=True, packs=True),
    "allox": _PolicyEntry(lambda seed, truth: GavelAlloX(), no_gangs=True),
    "max_min_fairness": _PolicyEntry(lambda seed, truth: GavelMaxMinFairness(aware=False), shuffles=True),
    "max_min_fairness_perf": _PolicyEntry(lambda seed, truth: GavelMaxMinFairness()),
    "max_min_fairness_packed": _PolicyEntry(lambda seed, truth: GavelMaxMinFairness(pairs=truth), packs=True),
    "max_min_fairness_water_filling_perf": _PolicyEntry(lambda seed, truth: GavelWaterFilling()),
    "finish_time_fairness": _PolicyEntry(lambda seed, truth: GavelFinishTimeFairness(aware=False), shuffles=True),
    "finish_time_fairness_perf": _PolicyEntry(lambda seed, truth: GavelFinishTimeFairness()),
    "min_total_duration": _PolicyEntry(lambda seed, truth: GavelMinTotalDuration(aware=False), shuffles=True),
    "min_total_duration_perf": _PolicyEntry(lambda seed, truth: GavelMinTotalDuration()),
    "min_total_duration_packed": _PolicyEntry(lambda seed, truth: GavelMinTotalDuration(pairs=truth), packs=True),
    "max_sum_throughput_perf": _PolicyEntry(lambda seed, truth: GavelMaxSumThroughput()),
    "max_sum_throughput_normalized_by_cost_perf": _PolicyEntry(
        lambda seed, truth: GavelMaxSumThroughput(GAVEL_USD_PER_H)
    ),
    "max_sum_throughput_normalized_by_cost_perf_SLOs": _PolicyEntry(
        lambda seed, truth: GavelMaxSumThroughput(GAVEL_USD_PER_H, keeps_deadlines=True)
    ),
    "gandiva": _PolicyEntry(lambda seed, truth: GavelGandiva(truth, seed), packs=True),
}


def gavel_scenario(
    pools: tuple[PoolModel, ...],
    truth: GroundTruth,
    policy: str,
    *,
    seed: int = 0,
    rules: RoundRules = GAVEL_RULES,
    solver: ConeSolver = solve_cone_program,
) -> Scenario:
    """Returns a run of Gavel's simulator under one of `GAVEL_POLICIES`.

    Each pool becomes one machine, because Gavel does not model which machine runs a job.
    """
    entry = GAVEL_POLICIES[policy]
    gavel = GavelRules(
        shuffle_seed=seed + _SHUFFLE if entry.shuffles else None,
        only_shares=entry.only_shares,
        pairs=truth if entry.packs else None,
    )
    wiring = gavel_wiring(with_cone_solver(entry.make(seed, truth), solver), gavel)
    return Scenario(tuple(map(merge_machines, pools)), truth, PolicySpec(policy), rules, seed=seed, wiring=wiring)


def gavel_wiring(
    policy: GavelPolicy, gavel: GavelRules, mechanism: str = GAVEL, pace: MakeAttemptSimulator = LockstepAttempts
) -> SchedulerWiring:
    """Returns the parts of a run in which this policy decides and Gavel's rounds carry its shares out."""

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> GavelRounds:
        return GavelRounds(cycle, rules, gavel)

    return own_wiring(mechanism, lambda spec: policy, rounds, pace, gavel_solver(policy))


def merge_machines(model: PoolModel) -> PoolModel:
    """Merges the pool's machines into one, for worlds that do not model which of them runs a job."""
    shape, machines = model.pool.shape, model.machines
    large = replace(
        shape,
        accelerators=shape.accelerators * machines,
        cpus=shape.cpus * machines,
        memory_bytes=shape.memory_bytes * machines,
    )
    usd_per_h = model.pool.usd_per_h * machines
    return replace(model, pool=replace(model.pool, shape=large, usd_per_h=usd_per_h), machines=1)


def gavel_world_run(request: WorldRequest) -> WorldRun:
    """Makes the run. Raises ConfigError for a cluster, speeds or a gang that Gavel's simulator cannot have."""
    pools = owned_pools(request)
    _reject_gangs(request)
    types = [model.pool.shape.accelerator for model in pools]
    if len(set(types)) < len(types) or not set(types) <= set(TYPE_ORDER):
        raise ConfigError(
            f"world 'gavel' has one pool each of {', '.join(TYPE_ORDER)}, the cluster has {', '.join(types)}",
            field="cluster",
            fix="choose a cluster such as gavel-12-12-12",
        )
    experiment = trace_experiment(request.trace, request.cluster, request.speeds)
    if experiment.truth.laws:
        raise ConfigError(
            "world 'gavel' has speeds that never change, and `speeds` gives laws",
            field="speeds",
            fix="give a throughput table",
        )
    table = speeds_path_of(request.trace, request.speeds)
    truth = experiment.truth if table is None else replace(experiment.truth, pairs=read_pair_speeds(table, types))
    return WorldRun(experiment.jobs, gavel_scenario(pools, truth, request.policy.name, seed=request.seed))


def _reject_gangs(request: WorldRequest) -> None:
    """Raises ConfigError for the first gang under a policy that knows none."""
    if not GAVEL_POLICIES[request.policy.name].no_gangs:
        return
    gang = next((row for row in request.trace.jobs if row.gang > 1), None)
    if gang is not None:
        raise ConfigError(
            f"line {gang.line}: job {gang.name!r} is a gang of {gang.gang},"
            f" which policy {request.policy.name!r} of world {request.world!r} does not know",
            field="policy",
            fix="choose another policy",
        )
