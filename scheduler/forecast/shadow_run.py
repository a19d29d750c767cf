"""What would have happened since an instant under another policy, with the period's own jobs, machines and prices.

A shadow begins with the live core's state at its start, and gets the real events since: submissions, cancels, changes
by people, machines that came, went or were reclaimed, prices. Jobs are as long as they turned out to be; for those that
have not ended the rest is drawn, several times. Speeds are those known today. The live policy is run through the same
world (`own`): differences between reality and `own` are the model's error, differences between `own` and the shadow are
the policy's effect. Both use the same random draws.

Two things depend on the scheduler and so are not repeated: machines that it rents arrive after their pool's boot time,
and no attempt fails by itself. After the present no new jobs arrive.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heappop
from math import inf
from random import Random
from time import process_time
from typing import Any

from optimizer.policy import PolicySpec
from scheduler.core.booking_events import BookingsDeclared
from scheduler.core.commands import AttemptTransitioned, Rent, Solve, Start
from scheduler.core.events import (
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeBack,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeUncordoned,
    NodeUnreachable,
    PolicyChanged,
    PoolDeclared,
    PoolRemoved,
)
from scheduler.core.job_change_events import JobRedirected
from scheduler.core.rules import RoundRules
from scheduler.core.share_events import SharesDeclared
from scheduler.core.state.fleet import MachineCondition
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot, known_lengths
from scheduler.forecast.future_jobs import JobTruth, RolledJob, drawn_steps
from scheduler.forecast.past_jobs import DrawnLengths, PastJobs
from scheduler.forecast.recorded_period import HeldPlace, PeriodJob, RecordedPeriod
from scheduler.forecast.rollout import Rollout, RolloutLimits
from walras.cluster import Market
from walras.job_request import JobId, JobRequest
from walras.states import AttemptState, JobState

#: Number of draws of the lengths of jobs that have not ended.
SHADOW_DRAWS = 5
#: Seconds after the present without a held place and without a change of any job, after which the rest cannot run.
_PATIENCE_S = 4 * 3600.0
#: A solve takes the period divided by this, so that a shadow of a week needs no more solves than one of an hour.
_SOLVES_MOST = 1000
#: Bounds of a job's own speed relative to its kind's.
_SLOWEST, _FASTEST = 0.1, 10.0
_SHADOW_LIMITS = RolloutLimits(events=2_000_000, horizon_s=60 * 86_400.0)


@dataclass(frozen=True, slots=True)
class JobTimes:
    """What became of a job: instants (inf: never), preemptions, and its machines' cost since the beginning, USD."""

    starts_at: float
    ends_at: float
    preemptions: int
    usd: float


@dataclass(frozen=True, slots=True)
class ShadowJob:
    """A job of the period in reality, and in each draw under the live policy and under the other one."""

    job_id: JobId
    project: str
    submitted_at: float
    waited: bool
    #: Whether it really ended by itself, so that its length was not drawn.
    is_known: bool
    is_cancelled: bool
    live: JobTimes
    own: tuple[JobTimes, ...]
    shadow: tuple[JobTimes, ...]


@dataclass(frozen=True, slots=True)
class ShadowAnswer:
    """The result as of an instant.

    `fault` is what the other policy did wrong; if it is not empty, there are no jobs.
    """

    at: float
    jobs: tuple[ShadowJob, ...] = ()
    cpu_s: float = 0.0
    fault: str = ""


@dataclass(slots=True)
class _Work:
    """Work of a job from the beginning on, in steps, and its speed relative to its kind's."""

    left: float
    faster: float = 1.0


def run_shadow(
    period: RecordedPeriod,
    now: CoreSnapshot,
    policy: tuple[PolicySpec, RoundRules],
    past: PastJobs,
    cpu_s: float = inf,
    seed: int = 0,
    most_draws: int = SHADOW_DRAWS,
) -> ShadowAnswer:
    """Runs both policies through the period. `now` is the live core at its end, whose speeds are used.

    Gives up after `cpu_s` seconds of processor time, and states so as the fault.
    """
    began_s = process_time()
    measured = _Measured(period, now, known_lengths(now, past.ended))
    changed = replace(period.begin, policy=PolicyChanged(period.begin.at, *policy))
    draws = most_draws if any(not job.is_known for job in period.jobs.values()) else 1
    runs: list[tuple[_PeriodRollout, _PeriodRollout]] = []
    limits = replace(_SHADOW_LIMITS, cpu_until_s=began_s + cpu_s)
    for draw in range(draws):
        if runs and process_time() - began_s > cpu_s * len(runs) / (len(runs) + 1):
            break
        luck = f"{seed}/{draw}"
        pair = tuple(
            _PeriodRollout(period, replace(begin, speeds=now.speeds, costs=now.costs, networks=now.networks),
                           measured.work(luck), luck, is_own=begin is period.begin)
            for begin in (period.begin, changed)
        )  # fmt: skip
        is_whole = all(each.run_period(limits) for each in pair)
        fault = pair[1].fault or (pair[0].fault and f"the policy in force failed in the model: {pair[0].fault}")
        if not is_whole and not runs:
            fault = fault or f"not simulated within {cpu_s:g} s of processor time; stop it and start it anew"
        if fault:
            return ShadowAnswer(now.at, cpu_s=process_time() - began_s, fault=fault)
        if not is_whole:
            break
        runs.append((pair[0], pair[1]))
    jobs = tuple(_told_job(job_id, job, period, runs) for job_id, job in sorted(period.jobs.items()))
    return ShadowAnswer(now.at, jobs, process_time() - began_s)


def _told_job(
    job_id: JobId, job: PeriodJob, period: RecordedPeriod, runs: "list[tuple[_PeriodRollout, _PeriodRollout]]"
) -> ShadowJob:
    live = JobTimes(job.starts_at, job.ends_at, job.preemptions, job.usd(period.prices, period.until_at))
    own, shadow = zip(*((each.times(job_id) for each in pair) for pair in runs), strict=True)
    is_cancelled = job.ended is JobState.CANCELLED
    return ShadowJob(
        job_id, job.request.project, job.submitted_at, job.waited, job.is_known, is_cancelled, live, own, shadow
    )


class _Measured:
    """Measures how much work each job is, by what it really did and the speeds of today."""

    def __init__(self, period: RecordedPeriod, now: CoreSnapshot, lengths: DrawnLengths) -> None:
        self._period, self._lengths = period, lengths
        self._ledger = CoreCopy(replace(now, jobs=())).core.ledger
        self._now = {told.job.job_id: told for told in now.jobs}
        self._had_s = now.had_s

    def work(self, luck: str) -> dict[JobId, _Work]:
        """Returns the work of each job; what is unknown is drawn."""
        return {job_id: self._of(job, Random(f"{luck}/{job_id}")) for job_id, job in self._period.jobs.items()}

    def _of(self, job: PeriodJob, chance: Random) -> _Work:
        request, until_at = job.request, self._period.until_at
        work = sum(
            _speed(self._ledger, job, place) * ran_s for place in job.places if (ran_s := place.ran_s(until_at)) > 0
        )
        stated = request.steps or 0.0
        if job.is_known and work > 0:
            ends = stated if job.ended is JobState.SUCCEEDED and stated else job.ends_steps
            made = (ends - job.begins_steps) if stated and ends is not None else work
            return _Work(made, _faster(made, work)) if made > 0 else _Work(work)
        told, classes = self._now.get(request.job_id), self._ledger.classes
        best = max(classes.classes[classes.row(request)].best_rate, 1e-9)
        steps = job.begins_steps if told is None else told.steps
        had_s = self._had_s.get(request.job_id, 0.0)
        more = drawn_steps(self._lengths, request, (steps, had_s), best, chance)
        made = steps - job.begins_steps if stated else work
        return _Work(max(made, 0.0) + more, _faster(made, work))


def _faster(made: float, work: float) -> float:
    return min(max(made / work, _SLOWEST), _FASTEST) if made > 0 and work > 0 else 1.0


def _speed(ledger: Ledger, job: PeriodJob, place: HeldPlace) -> float:
    """Returns steps per second of the job's kind there, as known today; 0 if the pool is gone."""
    rows = [(ledger.fleet.pool_row(pool_id), count) for pool_id, count in place.placement.by_pool.items()]
    parts = tuple((pool, count) for pool, count in rows if pool is not None)
    if not parts:
        return 0.0
    classes = ledger.classes
    row, (pool, count) = classes.row(job.request), parts[0]
    if len(parts) > 1:
        row = classes.spread(row, parts)
    elif classes.shapes[classes.classes[row].shape].counts[pool] != count:
        row = classes.resized(row, {ledger.fleet.pools[pool].pool.shape.accelerator: count})
    return classes.classes[row].speeds[pool]


class _PeriodRollout(Rollout):
    """One core's run through the period."""

    solve_slower = wake_slower = 0.0

    def __init__(
        self, period: RecordedPeriod, begin: CoreSnapshot, work: Mapping[JobId, _Work], luck: str, *, is_own: bool
    ) -> None:
        super().__init__(begin, CoreCopy(begin), PastJobs(), DrawnLengths(()), luck)
        self._period, self._work, self._is_own = period, work, is_own
        self._solve_takes_s = (period.until_at - begin.at) / _SOLVES_MOST
        self._coming = len(period.happened)
        self._places: dict[JobId, list[HeldPlace]] = {}
        self._preempted: dict[JobId, int] = {}
        self._policy = begin.policy
        #: Machines that were really reclaimed, and the machines that stand for them here.
        self._stands_for: dict[str, str] = {}
        self._pool_of = {each.node_id: each.pool_id for each in begin.fleet if isinstance(each, NodeJoined)}

    @property
    def fault(self) -> str:
        """Returns what the policy did wrong; empty if nothing."""
        fault = self._core.ledger.policy.fault
        return str(fault) if fault is not None else self.solve_failure and f"a solve failed: {self.solve_failure}"

    def run_period(self, limits: RolloutLimits) -> bool:
        """Runs until every job has ended, or none of the rest can run. Returns False if it exceeded its limits."""
        for job in list(self._core.ledger):
            self._begin(job)
            if job.holds and job.placement is not None:
                self._places[job.job_id] = [HeldPlace(job.placement, self.now)]
        self._open = len(self.jobs)
        for state in self._core.ledger.fleet.pools:
            for token, machines in list(state.awaited.items()):
                self._boot(Rent(token, state.pool.pool_id, machines))
        for event in self._period.happened:
            self._schedule(event.at, self._happen, event)
        self._carry_out(self._copy.open(self._began_at))
        heap, until_at = self._heap, self._period.until_at
        while heap and (self._open or self._coming):
            at, _, act, subject = heappop(heap)
            if self.fault or at > self._began_at + limits.horizon_s:
                return True
            if process_time() > limits.cpu_until_s or self.events >= limits.events:
                return False
            self.now = max(self.now, at)
            is_idle = self._holding <= 0 and self.now - max(self._moved_at, until_at) > _PATIENCE_S
            if is_idle and not self._coming:
                return True
            act(subject)
        return True

    def times(self, job_id: JobId) -> JobTimes:
        """Returns what became of a job."""
        rolled, prices = self.jobs.get(job_id, RolledJob()), self._period.prices
        usd = sum(
            prices.usd(pool_id, count, place.since_at, min(place.until_at, self.now))
            for place in self._places.get(job_id, ())
            for pool_id, count in place.placement.by_pool.items()
        )
        return JobTimes(rolled.starts_at, rolled.ends_at, self._preempted.get(job_id, 0), usd)

    # ------------------------------------------------------------------------------------------------ what happens

    def _happen(self, event: Any) -> None:
        self._coming -= 1
        happening = replace(event)
        if isinstance(event, JobSubmitted):
            self.jobs[event.job.job_id] = RolledJob()
            self._truths[event.job.job_id] = JobTruth(self._work[event.job.job_id].left)
            self._open += 1
            self._send(happening)
        elif isinstance(event, PolicyChanged):
            self._change_policy(happening)
        elif isinstance(event, (PoolDeclared, SharesDeclared, BookingsDeclared)):
            self._send(happening)
        elif isinstance(event, PoolRemoved):
            row = self._core.ledger.fleet.pool_row(event.pool_id)
            if row is not None and not any(
                machine is not None and machine.pool == row for machine in self._core.ledger.fleet.machines
            ):
                self._send(happening)
        elif hasattr(event, "node_id"):
            self._happen_to_machine(happening)
        elif self._concerns_job(event):
            self._send(happening)

    def _change_policy(self, event: PolicyChanged) -> None:
        """Applies the live core's policy changes to the live policy's run only; a restarted server repeats them."""
        if self._is_own and (event.policy, event.rules) != (self._policy.policy, self._policy.rules):
            self._policy = event
            self._send(event)

    def _concerns_job(self, event: Any) -> bool:
        job = self._core.ledger.jobs.get(event.job_id)
        if job is None or job.state.is_final:
            return False
        is_held = job.state is JobState.HELD
        if isinstance(event, (JobReleased, JobRedirected)):
            return is_held
        return not (is_held and isinstance(event, JobHeld))

    def _happen_to_machine(self, event: Any) -> None:
        fleet, known = self._core.ledger.fleet, str(event.node_id)
        if isinstance(event, NodeJoined):
            self._pool_of[event.node_id] = event.pool_id
            if not event.token and fleet.machine(event.node_id) is None and fleet.pool_row(event.pool_id) is not None:
                self._send(event)
            return
        node_id = self._stand_in(event)
        machine = None if node_id is None else fleet.machine(node_id)  # type: ignore[arg-type]
        if machine is None or machine.condition is MachineCondition.RELEASED:
            return
        wanted = {
            NodeUnreachable: machine.condition is MachineCondition.UP,
            NodeBack: machine.condition is MachineCondition.UNREACHABLE,
            NodeLeaving: machine.condition is not MachineCondition.LEAVING,
            NodeUncordoned: machine.condition in (MachineCondition.LEAVING, MachineCondition.QUARANTINED),
            NodeLost: known not in self._period.released,
        }
        if wanted.get(type(event), True):
            event.node_id = node_id
            self._send(event)

    def _stand_in(self, event: Any) -> str | None:
        """Returns the machine that stands for a real one: itself, or another of the pool if rented since; else None.

        Only revocations by the market are applied to a machine that stands for another.
        """
        node_id = str(event.node_id)
        fleet = self._core.ledger.fleet
        if fleet.machine(event.node_id) is not None:
            return node_id
        if node_id in self._stands_for:
            return self._stands_for[node_id]
        row = fleet.pool_row(self._pool_of[node_id]) if node_id in self._pool_of else None  # type: ignore[index]
        if row is None or not isinstance(event, (NodeLeaving, NodeLost)) or node_id in self._period.released:
            return None
        if fleet.pools[row].pool.market is not Market.SPOT:
            return None
        taken = set(self._stands_for.values())
        for machine in fleet.machines:
            if machine is not None and machine.pool == row and machine.token and machine.node_id not in taken:
                self._stands_for[node_id] = machine.node_id
                return str(machine.node_id)
        return None

    # ------------------------------------------------------------------------------------------------ what jobs are

    def _drawn_steps(
        self, request: JobRequest, steps: float, had_s: float, best: float, chance: Random, *, joins: bool = False
    ) -> float:
        return self._work[request.job_id].left

    def _know_place(self, job: JobRecord, truth: JobTruth) -> None:
        super()._know_place(job, truth)
        truth.rate *= self._work[job.job_id].faster

    def _carry_out(self, commands: Iterable[Any]) -> None:
        commands = list(commands)
        for command in commands:
            if isinstance(command, Start):
                self._places.setdefault(command.job_id, []).append(HeldPlace(command.placement, self.now))
            elif isinstance(command, AttemptTransitioned) and command.state.is_final:
                self._preempted[command.job_id] = self._preempted.get(command.job_id, 0) + (
                    command.state is AttemptState.PREEMPTED
                )
                places = self._places.get(command.job_id)
                if places:
                    places[-1].until_at = min(places[-1].until_at, self.now)
        super()._carry_out(commands)

    # ------------------------------------------------------------------------------------------------ the world

    def _draw_life(self, node_id: str, pool_id: str) -> None:
        """Draws nothing, because the market reclaims what it really reclaimed."""

    def _solve_events(self, command: Solve) -> float:
        return inf

    def _solve_s(self) -> float:
        return self._solve_takes_s
