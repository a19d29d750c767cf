"""Our own policies in another simulator's world: its clock, its jobs and its machines, and at every step our plan.

At the end of a step the policy is asked about all jobs that are there; whoever the plan gives what he has stays where
he is, the others go and are placed anew, the largest first. The policy is one of ours, by its registered name, answered
as everywhere (`scheduler.core.solving`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optimizer.problem import Columns, Problem
from scheduler.core.cycle import Cycle
from scheduler.core.ledger.fleet import Place
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.resolve import build_problem
from simulator.compat.asking import AskedSteps
from simulator.compat.moving import Move
from walras.ids import JobId


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a job: the row of a pool, accelerators there, steps per second."""

    pool: int
    count: int
    steps_per_s: float


#: What a job could have now, smallest first in every pool.
WaysOf = Callable[[JobRecord], Sequence[Way]]


#: Pool and accelerators of all that are to run.
Wanted = Mapping[JobId, tuple[int, int]]
#: Who stays on the machines that he has, and places for the others, each worked out when those before it have theirs.
Placing = tuple[set[JobId], Iterator[Move]]


class PlannedSteps(AskedSteps):
    """At the end of a step ask, then stop and start, and begin the next."""

    def __init__(self, step_s: float, ways: WaysOf, placer: Callable[[Cycle, Wanted], Placing]) -> None:
        super().__init__(step_s)
        self._ways = ways
        self._placer = placer

    def step_ended(self, cycle: Cycle) -> None:
        ledger, (arrived, cycle.arrived) = cycle.ledger, (cycle.arrived, [])
        for job_id in arrived:
            if job_id in ledger.jobs:
                ledger.set_eligible(ledger.jobs[job_id])
        self.ask(cycle, lambda: problem_of(cycle, self._ways))

    def decide(self, cycle: Cycle) -> None:
        proposal, jobs = cycle.standing.proposal, cycle.ledger.jobs
        wanted: dict[JobId, tuple[int, int]] = {}
        if proposal is not None:
            for job_id, pool, count in zip(proposal.job_ids, proposal.pool_rows, proposal.counts, strict=True):
                assert job_id not in wanted, "no gang of these worlds sits in two pools"
                if job_id in jobs:
                    wanted[job_id] = pool, count
        kept, moves = self._placer(cycle, wanted)
        stopping = [job for job in cycle.ledger if job.holds and job.job_id not in kept]
        self.moving.begin(cycle, stopping, moves)


def problem_of(cycle: Cycle, ways: WaysOf) -> Problem:
    """The ledger as a problem whose configurations are these ways."""
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
    restart_s = np.array([ledger.restart_s(job, cycle.standing.rules) for job in records])
    jobs = replace(plain.jobs, gang=np.where(np.isfinite(gang), gang, 1.0), restart_s=restart_s)
    return replace(plain, jobs=jobs, columns=columns)


def staying(cycle: Cycle, wanted: Wanted) -> Placing:
    """Whoever has as many accelerators of that pool as before stays; the others are put close together."""
    ledger = cycle.ledger
    kept = {
        job_id
        for job_id, (pool, count) in wanted.items()
        if (job := ledger.jobs[job_id]).holds
        and int(ledger.columns.pool[job.slot]) == pool
        and sum(part for _, part in job.place) == count
    }
    return kept, _close_moves(cycle, [(job_id, *where) for job_id, where in wanted.items() if job_id not in kept])


def _close_moves(cycle: Cycle, placing: list[tuple[JobId, int, int]]) -> Iterator[Move]:
    for job_id, pool, count in sorted(placing, key=lambda each: -each[2]):
        yield cycle.ledger.jobs[job_id], pool, _close(cycle, pool, count)


def _close(cycle: Cycle, pool: int, count: int) -> Place:
    """Whole machines first, then the machine with least room that has enough; apart only where nothing else is left."""
    machines = [machine for machine in cycle.ledger.fleet.machines if machine is not None and machine.pool == pool]
    free = {machine.row: len(machine.free) for machine in machines}
    place: list[tuple[int, int]] = []
    while count:
        enough = [row for row, room in free.items() if room >= count]
        row = min(enough, key=free.__getitem__) if enough else max(free, key=free.__getitem__)
        taken = min(count, free.pop(row))
        assert taken, "the plan gives away more accelerators than there are"
        place.append((row, taken))
        count -= taken
    return tuple(place)
