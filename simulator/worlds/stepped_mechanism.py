"""Round mechanisms for worlds of fixed steps: a solve at the end of each step, then a reallocation.

`Reallocation` stops the jobs that must leave, starts the others once all of these have ended, and begins the next step.
`PlannedMechanism` runs Walras's policies in another simulator's world, with its clock, jobs and machines. At the end of
a step it asks the policy for a plan of all jobs; a job whose accelerators do not change stays where it is, and the
others are placed anew, the largest first.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from optimizer.policy import OrderFacts, Policy, PolicySpec
from optimizer.problem import Columns, FloatArray, Problem
from scheduler.core.commands import BeginRound, Solve
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import solve_requests
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.cycle.round import MECHANISMS, MakeMechanism
from scheduler.core.events import AttemptEnded, AttemptStarted, EndCause, Event, Proposal
from scheduler.core.placement.attempt_lifecycle import is_prepared, revoke_attempt, start_attempt
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import Place
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from scheduler.world.attempts import AttemptSimulator, SimAttempt, SimAttemptPhase
from scheduler.world.world import MakeAttemptSimulator
from simulator.simulation import SchedulerWiring
from walras.job_request import JobId
from walras.states import Reason

#: A job, the row of a pool, and the job's place there.
Move = tuple[JobRecord, int, Place]
#: Free accelerators of one pool's machines, by row.
Room = dict[int, int]


class Reallocation:
    """A reallocation in progress. It lasts until the attempts have stopped and the new gangs are prepared."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._stopping: list[JobRecord] = []
        self._starting: list[JobRecord] = []
        #: Starts that follow once the stopping jobs have ended; None while no reallocation is in progress.
        self._moves: Iterator[Move] | None = None

    def begin(self, cycle: Cycle, kept: Collection[JobId], moves: Iterable[Move]) -> None:
        """Stops all running jobs but those kept.

        `moves` are computed once all have ended, each after the ones before it are placed.
        """
        self._stopping = [job for job in cycle.ledger if job.holds and job.job_id not in kept]
        self._starting, self._moves = [], iter(moves)
        for job in self._stopping:
            revoke_attempt(cycle, job, Reason.POLICY_PREEMPTED)

    def advance(self, cycle: Cycle) -> None:
        """Continues the reallocation as far as possible, and begins the next step when it is complete."""
        if self._moves is None or any(job.holds for job in self._stopping):
            return
        self._stopping = []
        for job, pool, place in self._moves:
            start_attempt(cycle, job, pool, place)
            self._starting.append(job)
        if all(is_prepared(job) for job in self._starting if job.holds):
            self._moves = None
            self._starting = []
            cycle.commands.append(BeginRound(self._step_s))


class WholeStepAttempts(AttemptSimulator):
    """Simulates attempts whose steps are counted at the ends of rounds only.

    Reports, noise, periodic checkpoints and planned failures are not modelled.
    """

    def _settle(self, at: float, attempt: SimAttempt) -> None:
        """Does nothing: a killed attempt loses what it made since the last round."""

    def _ranks_up(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        attempt.phase = SimAttemptPhase.RUNNING
        return (AttemptStarted(at, attempt.job_id, attempt.number),)

    def _credit(self, attempt: SimAttempt, steps: float) -> None:
        """Sets the job's steps."""
        attempt.job.worked_steps += steps - attempt.job.steps
        attempt.job.steps = steps

    def _succeeded(self, at: float, attempt: SimAttempt) -> AttemptEnded:
        """Ends an attempt that has done all of its job's steps."""
        self._credit(attempt, attempt.job.plan.steps)
        attempt.phase = SimAttemptPhase.STOPPING
        self.release(attempt)
        return AttemptEnded(at, attempt.job_id, attempt.number, EndCause.EXITED, 0, steps=attempt.job.steps)


def admit_arrivals(cycle: Cycle) -> list[JobId]:
    """Lets jobs that arrived since the last step be chosen, and returns them."""
    arrived, cycle.backlog.arrived = cycle.backlog.arrived, []
    active = [job_id for job_id in arrived if job_id in cycle.ledger.jobs]
    for job_id in active:
        cycle.ledger.set_eligible(cycle.ledger.jobs[job_id])
    return active


class OrderBySubmission:
    """A rank policy without solves, where a world's mechanism decides and the core needs a policy."""

    preemptive = True
    strict = False
    aware = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Orders jobs by submission."""
        return (jobs.submitted_at,)


class StepEndMechanism(ABC):
    """A `RoundMechanism` that acts when a step has ended, and then until its reallocation is complete."""

    def __init__(self, step_s: float) -> None:
        self.reallocation = Reallocation(step_s)

    def settle(self, cycle: Cycle) -> None:
        """Acts when a step has ended, and while a reallocation is in progress."""
        if cycle.due.lockstep_round is not None:
            self.step_ended(cycle)
        self.reallocation.advance(cycle)

    @abstractmethod
    def step_ended(self, cycle: Cycle) -> None:
        """Admits newcomers, and begins the reallocation or asks for a solve."""


class SteppedMechanism(StepEndMechanism):
    """Solves at the end of every step. Subclasses decide which jobs run where."""

    _is_solving = False

    def settle(self, cycle: Cycle) -> None:
        """Acts when a solve was answered, too."""
        if self._is_solving and not cycle.solves.in_flight:
            self._is_solving = False
            self.decide(cycle)
        super().settle(cycle)

    def request_solve(self, cycle: Cycle, problem_of: Callable[[], Problem]) -> None:
        """Requests a solve for the active jobs; without jobs, begins the next step."""
        if cycle.ledger.jobs:
            self._is_solving = True
            solve_requests.request_solve(cycle, problem_of())
        else:
            self.reallocation.begin(cycle, (), ())

    @abstractmethod
    def decide(self, cycle: Cycle) -> None:
        """Carries out the last answer through `reallocation`; after a failed solve the previous one stays in force."""


@dataclass(frozen=True, slots=True)
class StepConfiguration:
    """One way to run a job: the row of a pool, a number of its accelerators, and steps per second."""

    pool: int
    count: int
    steps_per_s: float


#: Returns the present configurations of a job, in each pool the smallest first.
ConfigurationsOf = Callable[[JobRecord], Sequence[StepConfiguration]]


#: Pool and number of accelerators of all jobs that are to run.
WantedAccelerators = Mapping[JobId, tuple[int, int]]
#: Jobs that stay on their machines, and places for the others, each computed once those before it are taken.
StepPlacement = tuple[Collection[JobId], Iterable[Move]]
#: Places a gang of so many accelerators of a pool.
PlaceGang = Callable[[Cycle, int, int], Place]


class PlannedMechanism(SteppedMechanism):
    """At the end of a step it asks for a plan, stops and starts jobs, and begins the next step."""

    def __init__(
        self, step_s: float, ways: ConfigurationsOf, placer: Callable[[Cycle, WantedAccelerators], StepPlacement]
    ) -> None:
        super().__init__(step_s)
        self._ways = ways
        self._placer = placer

    def step_ended(self, cycle: Cycle) -> None:
        admit_arrivals(cycle)
        self.request_solve(cycle, lambda: step_problem(cycle, self._ways))

    def decide(self, cycle: Cycle) -> None:
        proposal, jobs = cycle.policy.proposal, cycle.ledger.jobs
        wanted: dict[JobId, tuple[int, int]] = {}
        if proposal is not None:
            for job_id, pool, count in zip(proposal.job_ids, proposal.pool_rows, proposal.counts, strict=True):
                assert job_id not in wanted, "no gang of these worlds sits in two pools"
                if job_id in jobs:
                    wanted[job_id] = pool, count
        self.reallocation.begin(cycle, *self._placer(cycle, wanted))


def plan_wiring(
    mechanism: str,
    ways: ConfigurationsOf,
    placer: Callable[[Cycle, WantedAccelerators], StepPlacement],
    pace: MakeAttemptSimulator,
) -> SchedulerWiring:
    """Returns the parts of a run in which Walras's plan policies decide at the end of every step of a world."""

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> PlannedMechanism:
        return PlannedMechanism(rules.round_s, ways, placer)

    return SchedulerWiring(core=partial(SchedulerCore, mechanisms={**MECHANISMS, mechanism: rounds}), pace=pace)


def own_wiring(
    mechanism: str,
    make: Callable[[PolicySpec], Policy],
    rounds: MakeMechanism,
    pace: MakeAttemptSimulator,
    solver: Callable[[Solve], Proposal] | None = None,
) -> SchedulerWiring:
    """Returns the parts of a run in which a world's own policy decides; `solver`: None if it asks for no solve."""
    core = partial(SchedulerCore, make, {**MECHANISMS, mechanism: rounds})
    return SchedulerWiring(core, solver or reject_solve, pace)


def reject_solve(command: Solve) -> Proposal:
    """The solver of a world whose own policies ask for no solve."""
    raise AssertionError(f"{command.policy.name} asks for no solve")


def step_problem(cycle: Cycle, ways: ConfigurationsOf) -> Problem:
    """Returns the ledger as a problem with these configurations."""
    ledger = cycle.ledger
    plain = build_problem(ledger)
    records = [ledger.jobs[JobId(job_id)] for job_id in plain.jobs.job_id.tolist()]
    found = [(row, way) for row, job in enumerate(records) for way in ways(job)]
    slot = np.array([job.slot for job in records], dtype=np.int64)
    job = np.array([row for row, _ in found], dtype=np.int64)
    pool = np.array([way.pool for _, way in found], dtype=np.int64)
    count = np.array([float(way.count) for _, way in found])
    gang = np.full(len(records), np.inf)
    np.minimum.at(gang, job, count)
    held = ledger.columns
    holds = np.array([job.holds for job in records], dtype=np.bool_)
    columns = Columns(
        job=job,
        steps_per_s=np.array([way.steps_per_s for _, way in found]),
        use_column=np.arange(len(found)),
        use_pool=pool,
        use_count=count,
        running=holds[job] & (held.pool[slot][job] == pool) & (held.count[slot][job] == count),
    )
    restart_s = np.array([ledger.restart_s(job, cycle.policy.rules) for job in records])
    jobs = replace(plain.jobs, gang=np.where(np.isfinite(gang), gang, 1.0), restart_s=restart_s)
    return replace(plain, jobs=jobs, columns=columns)


def jobs_in_place(cycle: Cycle, wanted: WantedAccelerators) -> set[JobId]:
    """Returns the jobs that have as many accelerators of the wanted pool as before."""
    ledger = cycle.ledger
    return {
        job_id
        for job_id, (pool, count) in wanted.items()
        if (job := ledger.jobs[job_id]).holds
        and int(ledger.columns.pool[job.slot]) == pool
        and sum(part for _, part in job.place) == count
    }


def free_room(cycle: Cycle, pool: int) -> Room:
    """Returns the free accelerators of the pool's machines, by row in ascending order."""
    machines = cycle.ledger.fleet.machines
    return {each.row: len(each.free) for each in machines if each is not None and each.pool == pool}


def fill_emptiest(room: Room, count: int) -> Place:
    """Returns free accelerators of the emptiest machines (the first of equals), one machine after the other."""
    left, place = dict(room), list[tuple[int, int]]()
    while count:
        row = max(left, key=left.__getitem__)
        taken = min(count, left.pop(row))
        assert taken, "more accelerators are given away than there are"
        place.append((row, taken))
        count -= taken
    return tuple(place)


def place_compactly(cycle: Cycle, pool: int, count: int) -> Place:
    """Fills whole machines, then the machine with the least sufficient room; splits the rest only if none is
    sufficient.
    """
    free = free_room(cycle, pool)
    place: list[tuple[int, int]] = []
    while count:
        enough = [row for row, room in free.items() if room >= count]
        row = min(enough, key=free.__getitem__) if enough else max(free, key=free.__getitem__)
        taken = min(count, free.pop(row))
        assert taken, "the plan gives away more accelerators than there are"
        place.append((row, taken))
        count -= taken
    return tuple(place)


def keep_in_place(cycle: Cycle, wanted: WantedAccelerators, place_gang: PlaceGang = place_compactly) -> StepPlacement:
    """Keeps jobs in place that have as many accelerators of that pool as before; places the others, largest first,
    equals in the plan's order.
    """
    kept = jobs_in_place(cycle, wanted)
    placing = [(job_id, *where) for job_id, where in wanted.items() if job_id not in kept]
    placing.sort(key=lambda each: -each[2])
    jobs = cycle.ledger.jobs
    return kept, ((jobs[job_id], pool, place_gang(cycle, pool, count)) for job_id, pool, count in placing)
