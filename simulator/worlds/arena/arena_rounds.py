"""Arena's first come, first served as a round mechanism, and the placement of gangs under Walras's plan policies.

Each type has its own queue. Every job keeps the type and the gang that it requested, and no job is preempted or moved.
Waiting jobs are tried only in rounds in which a job has ended.
"""

from collections.abc import Iterator, Sequence

from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import Place
from scheduler.core.state.working_set import Cycle
from simulator.worlds.arena.arena_places import ArenaPlace, PlaceTable
from simulator.worlds.stepped_mechanism import Move, Reallocation, StepPlacement, WantedAccelerators
from walras.job_request import JobId

#: Free accelerators of one pool's machines, by row.
Room = dict[int, int]


class ArenaFcfs:
    """A rank policy without solves, because the core needs a policy; `ArenaRounds` makes the decisions."""

    preemptive = False
    strict = False
    aware = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Orders jobs by submission."""
        return (jobs.submitted_at,)


class ArenaRounds:
    """A `RoundMechanism`: first come, first served at the starts of rounds."""

    def __init__(self, rules: RoundRules, places: PlaceTable) -> None:
        self._places = places
        self._reallocation = Reallocation(rules.round_s)
        #: Waiting jobs in order of submission, and running jobs.
        self._waiting: list[JobId] = []
        self._running: set[JobId] = set()

    def settle(self, cycle: Cycle) -> None:
        """Decides when a round has begun, and then acts until the jobs that start are prepared."""
        if cycle.due.lockstep_round is not None:
            self._decide(cycle)
        self._reallocation.advance(cycle)

    def _decide(self, cycle: Cycle) -> None:
        ledger, arrived = cycle.ledger, cycle.backlog.arrived
        cycle.backlog.arrived = []
        for job_id in arrived:
            ledger.set_eligible(ledger.jobs[job_id])
        running = {job.job_id for job in ledger if job.holds}
        rooms = {state.pool.shape.accelerator: _room(cycle, state.row) for state in ledger.fleet.pools}
        started: list[Move] = []
        if running != self._running:
            self._waiting = self._start_in_order(cycle, self._waiting, rooms, set(), started)
        types = {ledger.jobs[job_id].request.demands[0].accelerator for job_id in self._waiting}
        self._waiting += self._start_in_order(cycle, arrived, rooms, types, started)
        self._running = running | {job.job_id for job, _, _ in started}
        self._reallocation.begin(cycle, [], started)

    def _start_in_order(
        self, cycle: Cycle, job_ids: Sequence[JobId], rooms: dict[str, Room], blocked: set[str], started: list[Move]
    ) -> list[JobId]:
        """Starts the jobs that fit; the first of a type that does not fit blocks its type. Returns the waiting jobs."""
        ledger, waiting = cycle.ledger, list[JobId]()
        pool_rows = {state.pool.shape.accelerator: state.row for state in ledger.fleet.pools}
        for job_id in job_ids:
            (demand,) = ledger.jobs[job_id].request.demands
            best, room = self._places.best_place(demand.accelerator, demand.count), rooms[demand.accelerator]
            place = () if demand.accelerator in blocked else _emptiest(room, best)
            if not place:
                blocked.add(demand.accelerator)
                waiting.append(job_id)
                continue
            for row, count in place:
                room[row] -= count
            started.append((ledger.jobs[job_id], pool_rows[demand.accelerator], place))
        return waiting


def _room(cycle: Cycle, pool: int) -> Room:
    machines = cycle.ledger.fleet.machines
    return {each.row: len(each.free) for each in machines if each is not None and each.pool == pool}


def _emptiest(room: Room, best: ArenaPlace) -> Place:
    """Returns the machines with most free accelerators, the first of equals; () where the gang does not fit on them."""
    rows = sorted(room, key=lambda row: (-room[row], row))[: best.machines]
    fits = len(rows) == best.machines and room[rows[-1]] >= best.each
    return tuple((row, best.each) for row in rows) if fits else ()


def keep_or_pack(cycle: Cycle, wanted: WantedAccelerators) -> StepPlacement:
    """Keeps jobs in place that have as many accelerators of that pool as before; packs the others, largest first."""
    ledger = cycle.ledger
    kept = {
        job_id
        for job_id, (pool, count) in wanted.items()
        if (job := ledger.jobs[job_id]).holds
        and int(ledger.columns.pool[job.slot]) == pool
        and sum(part for _, part in job.place) == count
    }
    placing = {job_id: where for job_id, where in wanted.items() if job_id not in kept}
    return kept, _packed(cycle, placing)


def _packed(cycle: Cycle, placing: WantedAccelerators) -> Iterator[Move]:
    for job_id, (pool, count) in sorted(placing.items(), key=lambda each: (-each[1][1], each[0])):
        size = cycle.ledger.fleet.pools[pool].pool.shape.accelerators
        yield cycle.ledger.jobs[job_id], pool, pack_evenly(_room(cycle, pool), count, min(count, size))


def pack_evenly(room: Room, count: int, each: int) -> Place:
    """Places equal parts of `each` accelerators, one part per machine, on the fullest machines that have room for them.

    If too few machines have room, the parts are halved repeatedly. If even single accelerators do not fit, the emptiest
    machines hold as many as they can. The pool must have room for the gang.
    """
    while each:
        fits = sorted((row for row in room if room[row] >= each), key=lambda row: (room[row], row))
        if len(fits) * each >= count:
            return tuple((row, each) for row in fits[: count // each])
        each //= 2
    place: list[tuple[int, int]] = []
    for row in sorted(room, key=lambda row: (-room[row], row)):
        taken = min(room[row], count)
        if taken:
            place.append((row, taken))
            count -= taken
    assert not count, "the plan gives away more accelerators than there are"
    return tuple(place)
