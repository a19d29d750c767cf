"""The Pollux artifact's Tiresias and Optimus, and its round mechanism: reallocation at every step.

A policy decides how many accelerators each job has next, and the order of placement. A job whose number of accelerators
does not change keeps its machines. The others release theirs and are placed in the policy's order, each on the machines
with the most free accelerators (the first of equals). No job is moved to bring a gang closer together.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import FleetMachine, MachineCondition, Place
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from simulator.worlds.pollux.pollux_training import PolluxTraining
from simulator.worlds.stepped_mechanism import Move, Reallocation
from walras.job_request import JobId, Kind

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


class PolluxPolicy(ABC):
    """A policy of the artifact. The core runs it as a rank policy without solves; `allocate` makes the decisions."""

    preemptive = True
    strict = False
    aware = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Orders jobs by submission."""
        return (jobs.submitted_at,)

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


class PolluxRounds:
    """A `RoundMechanism`: at the end of a step it decides, stops and starts jobs, and begins the next step."""

    def __init__(self, rules: RoundRules, policy: PolluxPolicy, trainings: dict[Kind, PolluxTraining]) -> None:
        self._policy = policy
        self._trainings = trainings
        self._reallocation = Reallocation(rules.round_s)

    def settle(self, cycle: Cycle) -> None:
        """Decides when a step has ended, and then acts until the reallocation is complete."""
        if cycle.due.lockstep_round is not None:
            self._decide(cycle)
        self._reallocation.advance(cycle)

    def _decide(self, cycle: Cycle) -> None:
        ledger, arrived = cycle.ledger, cycle.backlog.arrived
        cycle.backlog.arrived = []
        for job_id in arrived:
            if job_id in ledger.jobs:
                ledger.set_eligible(ledger.jobs[job_id])
        fleet = _fleet_of(cycle)
        active = [self._active(cycle, job) for _, job in sorted(ledger.jobs.items()) if job.holds or job.waits]
        decided = self._policy.allocate(active, fleet) if active else []
        count = {job.job_id: accelerators for job, accelerators in decided}
        stopping: list[JobRecord] = []
        kept: set[JobId] = set()
        for job in ledger:
            if not job.holds:
                continue
            if sum(part for _, part in job.place) == count.get(job.job_id, 0):
                kept.add(job.job_id)
            else:
                stopping.append(job)
        placing = [(job_id, accelerators) for job_id, accelerators in count.items() if job_id not in kept]
        self._reallocation.begin(cycle, stopping, self._moves(cycle, placing))

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

    def _moves(self, cycle: Cycle, placing: list[tuple[JobId, int]]) -> Iterator[Move]:
        for job_id, accelerators in placing:
            yield cycle.ledger.jobs[job_id], 0, place_on_emptiest(cycle.ledger.fleet.machines, accelerators)


def _fleet_of(cycle: Cycle) -> PolluxFleet:
    (pool,) = cycle.ledger.fleet.pools
    return PolluxFleet(pool.capacity, pool.pool.shape.accelerators)


def place_on_emptiest(machines: list[FleetMachine | None], accelerators: int) -> Place:
    """Returns free accelerators of the emptiest machines, one machine after the other."""
    free = {
        machine.row: len(machine.free) for machine in machines if machine and machine.condition is MachineCondition.UP
    }
    place: list[tuple[int, int]] = []
    while accelerators:
        row = max(free, key=free.__getitem__)  # the first of the emptiest
        taken = min(accelerators, free.pop(row))
        assert taken, "the policy gives away more accelerators than there are"
        place.append((row, taken))
        accelerators -= taken
    return tuple(place)
