"""Places for planned gangs that no single free place can hold.

*Several pools*: mixed gangs and forks (several whole gangs of one job). A queue is for gangs in one pool. If a plan
gives a job several parts, this module finds the whole place: either all of it is free, or jobs that are not planned
there are asked to leave, and one reservation keeps the machines of all pools. Parts of a mixed gang, and of a plan that
the job states, may have any size; those of a fork are whole gangs. The policy chooses which jobs run over several
pools, and over which.

*Defragmentation*: a plan counts accelerators, but machines are whole. A pool may have enough free accelerators and too
few machines with enough of them. Then jobs planned on the same pool move to its other machines, those with the cheapest
restarts first, if that costs less accelerator time than the gang would lose by waiting for them to end. A job more
important than the gang moves only if there is a place for it.

Both use the finder of `search.py`, each with its own cost of a machine.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf

from scheduler.core.placement.attempt_lifecycle import start_attempt
from scheduler.core.placement.preemption import INCUMBENTS_MAX, is_movable, repays_restarts, take_place
from scheduler.core.placement.reservations import drop_reservation
from scheduler.core.placement.search import (
    MachineCandidate,
    cheapest_machines,
    emptiest,
    find_free_place,
    found_place,
    has_room_after,
    makes_room,
    open_machines,
)
from scheduler.core.placement.where import may_hold, may_place
from scheduler.core.state.fleet import FleetMachine, split_gang
from scheduler.core.state.job_classes import PoolParts, is_fork
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import ready_at
from scheduler.core.state.shared_accelerators import freed_by
from scheduler.core.state.working_set import Cycle, JobOrdering
from walras.job_request import GangPlan, fill_machines
from walras.spec.accelerator_names import covers

#: Maximum of gangs examined after each plan, of machines for each of them, and of sets of machines tried.
GANGS_MAX = 16
MACHINES_MAX = 256
TRIES_MAX = 4
#: Minimum cost of a move in seconds, however cheap a restart is, so that among free moves the fewest jobs move.
_LEAST_S = 1.0


# ------------------------------------------------------------------------------------------------ defragmentation


def defragment(cycle: Cycle) -> None:
    """Moves jobs together where a planned gang has found no room, the most important gangs first."""
    ordering = cycle.ordering
    tried = 0
    for job, pool in ordering.challengers(GANGS_MAX):
        if not cycle.queues.is_waiting(job.job_id):
            continue
        shape = cycle.ledger.shape_of(job)
        if shape.counts[pool] < 2 or not may_hold(cycle, job, pool, shape.counts[pool]):
            continue
        if find_free_place(cycle, job, pool) is not None:
            continue
        if tried == GANGS_MAX:
            return
        tried += 1
        _Defragmentation(cycle, ordering, job, pool).make_room()


class _Defragmentation:
    """Makes room for one waiting gang on one pool."""

    def __init__(self, cycle: Cycle, ordering: JobOrdering, job: JobRecord, pool: int) -> None:
        self._cycle = cycle
        self._ordering = ordering
        self._job = job
        self._pool = pool
        self._parts = cycle.ledger.fleet.gang_parts(pool, cycle.ledger.shape_of(job))
        self._machines = self._unreserved()

    def make_room(self) -> None:
        """Takes the machines that are cleared at the least cost, if that is below the cost of waiting for them."""
        most, machines = self._cost_of_waiting(), self._machines
        for _ in range(TRIES_MAX):
            chosen = cheapest_machines(self._parts, machines, self._cleared)
            if chosen is None or sum(offer.cost[0] for offer in chosen) > most:
                return
            stuck = self._stuck(chosen)
            if not stuck:
                self._take(chosen)
                return
            machines = [machine for machine in machines if not any(each.job_id in machine.holders for each in stuck)]

    def _take(self, chosen: list[MachineCandidate]) -> None:
        """Nominates the gang for the machines and asks the jobs there to leave."""
        found = found_place(self._pool, chosen)
        if not repays_restarts(self._cycle.ledger, self._job, found):
            return
        found = found._replace(moved={each.job_id for each in found.victims if self._is_planned(each)})
        take_place(self._cycle, self._job, found, f"makes room for the gang of job {self._job.job_id}")

    # ------------------------------------------------------------------------------------------ jobs

    def _is_planned(self, job: JobRecord) -> bool:
        return self._ordering.is_entitled(job, self._pool)

    def _rank(self, job: JobRecord) -> tuple[float, ...]:
        """Returns the job's key in the queue of the pool; a more important job has a smaller key."""
        return next((key for pool, key in self._ordering.keys(job) if pool == self._pool), (inf,))

    def _can_leave(self, job: JobRecord) -> bool:
        if self._cycle.ledger.is_spread(job):
            return False  # its parts in other pools would need new places too
        if not self._is_planned(job) and job.request.priority_class > self._job.request.priority_class:
            return False
        return makes_room(self._cycle, job, self._job) and self._ordering.protects(job) is None

    def _cost(self, job: JobRecord) -> float:
        """Returns the accelerator-seconds lost by stopping the job; 0 for a job that must leave the pool anyhow."""
        if not self._is_planned(job):
            return 0.0
        stop_s = self._cycle.ledger.stop_cost_s(job, self._cycle.policy.rules)
        return _accelerators_held(job) * max(_LEAST_S, stop_s)

    # ------------------------------------------------------------------------------------------ machines

    def _unreserved(self) -> list[FleetMachine]:
        """Returns machines for the gang on which no job has a reservation, most free accelerators first."""
        return emptiest(open_machines(self._cycle, self._pool, self._job, 0), MACHINES_MAX)

    def _holders(self, machine: FleetMachine) -> list[JobRecord]:
        return [self._cycle.ledger.jobs[job_id] for job_id in machine.holders]

    def _cleared(self, machine: FleetMachine, part: int) -> MachineCandidate | None:
        """Returns the cheapest way to free `part` accelerators of the machine; None if there is none."""
        holders = self._holders(machine)
        gone = [each for each in holders if each.revoked is not None]
        able = [each for each in holders if self._can_leave(each)]
        able.sort(key=lambda each: (self._cost(each) / len(machine.holders[each.job_id]), each.job_id))
        leaving: list[JobRecord] = []
        while not self._has_room_after(machine, [*gone, *leaving], part):
            if len(leaving) == len(able):
                return None
            leaving.append(able[len(leaving)])
        for each in sorted(leaving, key=lambda each: -self._cost(each)):
            rest = [other for other in leaving if other is not each]
            if self._has_room_after(machine, [*gone, *rest], part):
                leaving = rest  # later jobs may have made earlier ones unnecessary
        return MachineCandidate(machine.row, part, (sum(self._cost(each) for each in leaving), machine.row), leaving)

    def _has_room_after(self, machine: FleetMachine, leaving: Sequence[JobRecord], part: int) -> bool:
        return has_room_after(self._cycle, machine, leaving, part, self._job)

    def _cost_of_waiting(self) -> float:
        """Returns the accelerator-seconds that the gang loses until it has room without any job being stopped."""
        part, ledger, rules = self._parts[0], self._cycle.ledger, self._cycle.policy.rules
        ready = sorted(ready_at(ledger, machine, part, rules) for machine in self._machines if machine.size >= part)
        if len(ready) < len(self._parts):
            return inf
        return sum(self._parts) * (ready[len(self._parts) - 1] - self._cycle.now)

    # ------------------------------------------------------------------------------------------ who has to wait

    def _stuck(self, chosen: list[MachineCandidate]) -> list[JobRecord]:
        """Returns the jobs more important than the gang that would find no place on the pool after leaving."""
        room = {machine.row: self._room(machine) for machine in self._machines}
        movers = {each.job_id: each for offer in chosen for each in offer.leaving if self._is_planned(each)}
        for offer in chosen:
            room[offer.row] -= offer.accelerators
        for mover in movers.values():
            for row, count in mover.place:
                if row in room:
                    room[row] += count
        own = self._rank(self._job)
        order = sorted(movers.values(), key=lambda each: (-_accelerators_held(each), each.job_id))
        return [each for each in order if not self._settle(each, room) and self._rank(each) < own]

    def _room(self, machine: FleetMachine) -> int:
        """Returns the accelerators that planned jobs could have there: free, or held by a job that is to leave."""
        going = [
            each
            for each in self._holders(machine)
            if each.revoked is not None or (self._can_leave(each) and not self._is_planned(each))
        ]
        return len(machine.free) + freed_by(machine, {each.job_id for each in going})

    def _settle(self, job: JobRecord, room: dict[int, int]) -> bool:
        """Removes the fullest machines that hold the job from `room` (accelerators by row); False if none hold it."""

        def offer_of(machine: FleetMachine, part: int) -> MachineCandidate | None:
            free = room[machine.row]
            return MachineCandidate(machine.row, part, (free, machine.row)) if free >= part else None

        parts = self._cycle.ledger.fleet.gang_parts(self._pool, self._cycle.ledger.shape_of(job))
        chosen = cheapest_machines(parts, self._machines, offer_of)
        for offer in chosen or ():
            room[offer.row] -= offer.accelerators
        return chosen is not None


def _accelerators_held(job: JobRecord) -> int:
    return sum(count for _, count in job.place)


# ------------------------------------------------------------------------------------------------ several pools


def place_multi_pool_jobs(cycle: Cycle, planned: Iterable[tuple[JobRecord, PoolParts]], *, may_displace: bool) -> None:
    """Starts, or moves, these jobs where they are planned.

    Args:
    cycle: what the handlers work with.
    planned: (job, parts), the most important first.
    may_displace: the plan is new, so other jobs may be asked to leave, and the job itself to move.
    """
    for job, parts in planned:
        if job.job_id in cycle.queues.nominated or cycle.ledger.parts_of(job) == parts:
            continue
        is_startable = job.waits and cycle.queues.is_waiting(job.job_id)
        if is_startable or (may_displace and is_movable(cycle, job, parts[0][0])):
            _place_job(cycle, job, parts, may_displace=may_displace)


def _place_job(cycle: Cycle, job: JobRecord, parts: PoolParts, *, may_displace: bool) -> None:
    """Starts the job on its whole place, or nominates it and asks the jobs there to leave.

    Does nothing without a place.
    """
    ordering = cycle.ordering
    search = _MultiPoolPlace(cycle, ordering, job, may_displace=may_displace)
    if not all(search.find(pool, count, parts) for pool, count in search.leading_first(parts)):
        return
    found = found_place(parts[0][0], search.chosen.values())
    if not cycle.limits.allows(job, parts, found.victims):
        return
    if job.waits and not found.victims:
        drop_reservation(cycle, job.job_id)
        start_attempt(cycle, job, found.pool, found.place)
        return
    if not repays_restarts(cycle.ledger, job, found):
        return
    pools = ", ".join(f"{cycle.ledger.fleet.pools[pool].pool.pool_id}: {count}" for pool, count in parts)
    move_detail = f"{ordering.move_reason} {pools} accelerators"
    take_place(cycle, job, found, f"job {job.job_id} {ordering.preempt_reason}", move_detail=move_detail)


class _MultiPoolPlace:
    """Searches a place for one job, pool by pool."""

    def __init__(self, cycle: Cycle, ordering: JobOrdering, job: JobRecord, *, may_displace: bool) -> None:
        self._cycle = cycle
        self._ordering = ordering
        self._job = job
        self._may_displace = may_displace
        #: The plan, if the job has roles.
        self._plan: GangPlan | None = None
        #: Machines found so far by row, in the order in which they were searched.
        self.chosen: dict[int, MachineCandidate] = {}

    def leading_first(self, parts: PoolParts) -> PoolParts:
        """Returns the parts in the order of the search: the job's first machine is that of its leading role."""
        request, ledger = self._job.request, self._cycle.ledger
        if not request.has_roles:
            return parts
        self._plan = plan = request.plan_of(ledger.classes.types_of(parts))
        leading = "" if plan is None else plan.roles[0].accelerator
        return tuple(sorted(parts, key=lambda part: not covers(leading, self._type_in(part[0]))))

    def _type_in(self, pool: int) -> str:
        return self._cycle.ledger.fleet.pools[pool].pool.shape.accelerator

    def find(self, pool: int, count: int, parts: PoolParts) -> bool:
        """Finds `count` accelerators in one of the pools. Returns False if there are not enough."""
        ledger, shape = self._cycle.ledger, self._cycle.ledger.shape_of(self._job)
        gang, size = shape.counts[pool], ledger.fleet.pools[pool].pool.shape.accelerators
        is_forked = not self._job.request.plans and is_fork(parts, shape.counts)
        pieces = split_gang(gang, shape.nodes, size) * (count // gang) if is_forked else [1] * count
        if self._job.request.has_roles:
            pieces = [] if self._plan is None else self._plan.pieces_on(self._type_in(pool))
            if sum(pieces) != count:
                return False  # capacity was lost since it was planned
        leaving = self._leaving(pool)
        open_ones = emptiest(open_machines(self._cycle, pool, self._job, 0))
        machines = {each.row: each for each in open_ones}
        machines.update((row, machine) for row in leaving if (machine := self._open(row)) is not None)
        most = sorted((sum(each) for each in fill_machines(pieces, [size] * len(pieces)) if each), reverse=True)
        outsides = self._cycle.ledger.fleet.outside_blocks(pool, most if len(most) > 1 else sorted(pieces)[::-1])
        return any(
            self._take(pieces, [each for row, each in machines.items() if row not in outside], leaving)
            for outside in outsides
        )

    def _leaving(self, pool: int) -> dict[int, list[JobRecord]]:
        """Returns the jobs that may be asked to leave, by machine of the pool, weakest first."""
        found: dict[int, list[JobRecord]] = {}
        if self._may_displace:
            for other in self._ordering.incumbents(pool, INCUMBENTS_MAX).weaker_than(self._job):
                leaves = other is not self._job and makes_room(self._cycle, other, self._job)
                for row, _ in other.place if leaves else ():
                    machine = self._cycle.ledger.fleet.machines[row]
                    if machine is not None and machine.pool == pool:
                        found.setdefault(row, []).append(other)
        return found

    def _open(self, row: int) -> FleetMachine | None:
        """Returns the machine if it is open to the job, else None."""
        machine = self._cycle.ledger.fleet.machines[row]
        return machine if machine is not None and may_place(self._cycle, self._job, machine) is None else None

    def _take(self, pieces: list[int], machines: list[FleetMachine], leaving: dict[int, list[JobRecord]]) -> bool:
        """Takes machines for the pieces, in turn filled with them (`fill_machines`); returns False if some are left.

        The next piece goes to the machine that fewest jobs must leave; of equal ones to one that is used already, then
        to the one with the fewest accelerators left over.
        """
        rooms, here = dict[int, int](), {machine.row: machine for machine in machines}
        taken = dict[int, int]()

        def least(row: int, count: int) -> list[JobRecord] | None:
            return self._fewest_leaving(here[row], count, leaving.get(row, []))

        def offer_of(machine: FleetMachine, part: int) -> MachineCandidate | None:
            row, used = machine.row, taken.get(machine.row, 0)
            before, after = least(row, used), least(row, used + part)
            if before is None or after is None:
                return None
            return MachineCandidate(
                row, used + part, (len(after) - len(before), not used, len(machine.free) - part), after
            )

        while True:
            filled = fill_machines(pieces, rooms.values())
            taken.update(zip(rooms, map(sum, filled), strict=True))
            left = Counter(pieces) - Counter(chain.from_iterable(filled))
            if not left:
                break
            found = cheapest_machines([max(left) if filled else pieces[0]], machines, offer_of)
            if found is None:
                return False
            row, room = found[0].row, found[0].accelerators
            while has_room_after(self._cycle, here[row], found[0].leaving, room + 1, self._job):
                room += 1
            rooms[row] = room
        for row, count in taken.items():
            if count:
                self.chosen[row] = MachineCandidate(row, count, (), least(row, count) or ())
        return True

    def _fewest_leaving(self, machine: FleetMachine, count: int, able: list[JobRecord]) -> list[JobRecord] | None:
        """Returns the fewest of these jobs, weakest first, whose leaving makes room; None if even all do not."""
        for going in range(len(able) + 1):
            if has_room_after(self._cycle, machine, able[:going], count, self._job):
                return able[:going]
        return None
