"""Places for planned gangs that no single free place can hold.

*Over several pools*: mixed gangs and forks (several whole gangs of one job). A queue is for gangs in one pool. A
plan that gives a job several parts gets its place found here, whole: either all of it is free, or jobs that are not
planned there are asked to leave, and one reservation keeps the machines of all pools. Parts of a mixed gang may have
any size; those of a fork are whole gangs. The policy chooses which jobs run over several pools, and over which.

*Defragmentation*: a plan counts accelerators, machines are whole. A pool may have enough free accelerators and too
few machines with enough of them. Then jobs planned on the same pool move to its other machines, those with the
cheapest restarts first, if that costs less accelerator time than the gang would lose by waiting for them to end. A
job more important than the gang moves only if there is a place for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from scheduler.core.placement.attempt_lifecycle import revoke_attempt, start_attempt
from scheduler.core.placement.preemption import emptiest_machines, fits_after_preemption, is_preemptible
from scheduler.core.placement.reservations import drop_reservation, open_reservation, settle_reservation, shape_of
from scheduler.core.state.fleet import FleetMachine, MachineCondition, Place, split_gang
from scheduler.core.state.job_classes import PoolParts, is_fork
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import expected_end_at
from scheduler.core.state.working_set import Cycle, JobOrdering
from walras.states import JobState, Reason

#: Gangs looked at after each plan, machines weighed for each of them, and sets of machines tried.
GANGS_MAX = 16
MACHINES_MAX = 256
TRIES_MAX = 4
#: A move counts as this much at least, seconds, however cheap a restart is: between free ones, the fewest jobs move.
_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class _ClearedMachine:
    """What must happen on a machine so that a part of a gang has room."""

    machine: FleetMachine
    part: int
    #: Who goes, planned on this pool or not.
    leaving: list[JobRecord]
    #: Accelerator-seconds that this costs.
    cost: float


def defragment(cycle: Cycle) -> None:
    """Move jobs together where a planned gang has found no room, the most important gangs first."""
    ordering = cycle.ordering
    tried = 0
    for job, pool in ordering.challengers(GANGS_MAX):
        if not cycle.queues.is_waiting(job.job_id):
            continue
        shape = shape_of(cycle, job)
        if shape.counts[pool] < 2 or cycle.ledger.fleet.find(pool, shape) is not None:
            continue
        if tried == GANGS_MAX:
            return
        tried += 1
        _Defragmentation(cycle, ordering, job, pool).make_room()


class _Defragmentation:
    """Room for one gang on one pool."""

    def __init__(self, cycle: Cycle, ordering: JobOrdering, job: JobRecord, pool: int) -> None:
        self._cycle = cycle
        self._ordering = ordering
        self._job = job
        self._pool = pool
        self._shape = shape_of(cycle, job)
        self._size = cycle.ledger.fleet.pools[pool].pool.shape.accelerators
        self._parts = split_gang(self._shape.counts[pool], self._shape.nodes, self._size)
        self._machines = self._unclaimed()

    def make_room(self) -> None:
        """Claim the machines that are cleared at the least cost, if that is less than waiting for them costs."""
        most, asked_of = self._cost_of_waiting(), self._machines
        for _ in range(TRIES_MAX):
            chosen = self._cheapest(asked_of)
            if chosen is None or sum(way.cost for way in chosen) > most:
                return
            stuck = self._stuck(chosen)
            if not stuck:
                self._clear(chosen)
                return
            asked_of = [machine for machine in asked_of if not any(each.job_id in machine.holders for each in stuck)]

    def _clear(self, chosen: list[_ClearedMachine]) -> None:
        """Keep the machines for the gang and ask those there to go."""
        cycle, job = self._cycle, self._job
        drop_reservation(cycle, job.job_id)
        reservation = open_reservation(
            cycle, job, self._pool, tuple((way.machine.row, way.part) for way in chosen), preempting=True
        )
        for each in {other.job_id: other for way in chosen for other in way.leaving}.values():
            reason = Reason.POLICY_MOVED if self._is_planned(each) else Reason.POLICY_PREEMPTED
            revoke_attempt(cycle, each, reason, detail=f"makes room for the gang of job {job.job_id}")
        settle_reservation(cycle, reservation)

    # ------------------------------------------------------------------------------------------ jobs

    def _is_planned(self, job: JobRecord) -> bool:
        return self._ordering.is_entitled(job, self._pool)

    def _rank(self, job: JobRecord) -> tuple[float, ...]:
        """The more important job has the smaller one."""
        return next((key for pool, key in self._ordering.keys(job) if pool == self._pool), (inf,))

    def _can_go(self, job: JobRecord) -> bool:
        if self._cycle.ledger.is_spread(job) or job.is_secured:
            return False  # what it holds elsewhere would have to be found again too; and who is secured stays
        return job.state is JobState.RUNNING and job.revoked is None and self._ordering.can_be_stopped(job)

    def _cost(self, job: JobRecord) -> float:
        """Accelerator-seconds lost by stopping the job; who is not planned here is to go anyhow."""
        if not self._is_planned(job):
            return 0.0
        stop_s = self._cycle.ledger.stop_cost_s(job, self._cycle.policy.rules)
        return _accelerators_held(job) * max(_LEAST_S, stop_s)

    # ------------------------------------------------------------------------------------------ machines

    def _unclaimed(self) -> list[FleetMachine]:
        """Machines of the pool that nobody has a claim on, most free accelerators first."""
        machines = [
            machine
            for machine in self._cycle.ledger.fleet.machines
            if machine is not None
            and machine.pool == self._pool
            and machine.condition is MachineCondition.UP
            and machine.row not in self._cycle.reserved_on
        ]
        return sorted(machines, key=lambda machine: (-len(machine.free), machine.row))[:MACHINES_MAX]

    def _holders(self, machine: FleetMachine) -> list[JobRecord]:
        return [self._cycle.ledger.jobs[job_id] for job_id in machine.holders]

    def _cheapest(self, machines: list[FleetMachine]) -> list[_ClearedMachine] | None:
        """Machines for all parts, each the cheapest to clear of those left; None if they cannot be had."""
        chosen: list[_ClearedMachine] = []
        for part in self._parts:
            taken = {each.machine.row for each in chosen}
            ways = [self._cleared(machine, part) for machine in machines if machine.row not in taken]
            found = min(filter(None, ways), key=lambda way: (way.cost, way.machine.row), default=None)
            if found is None:
                return None
            chosen.append(found)
        return chosen

    def _cleared(self, machine: FleetMachine, part: int) -> _ClearedMachine | None:
        """The cheapest way to have `part` accelerators of the machine free; None if there is none."""
        holders = self._holders(machine)
        gone = [each for each in holders if each.revoked is not None]
        able = [each for each in holders if self._can_go(each)]
        able.sort(key=lambda each: (self._cost(each) / len(machine.holders[each.job_id]), each.job_id))
        leaving: list[JobRecord] = []
        while self._is_short(machine, [*gone, *leaving], part):
            if len(leaving) == len(able):
                return None
            leaving.append(able[len(leaving)])
        for each in sorted(leaving, key=lambda each: -self._cost(each)):
            rest = [other for other in leaving if other is not each]
            if not self._is_short(machine, [*gone, *rest], part):
                leaving = rest  # the later ones may have made the earlier ones needless
        return _ClearedMachine(machine, part, leaving, sum(self._cost(each) for each in leaving))

    def _is_short(self, machine: FleetMachine, leaving: list[JobRecord], wanted: int) -> bool:
        """Whether accelerators, processors or memory are missing once these have left."""
        free, cpus, memory = len(machine.free), machine.free_cpus, machine.free_memory_bytes
        for each in leaving:
            held, theirs = len(machine.holders[each.job_id]), shape_of(self._cycle, each)
            free, cpus, memory = free + held, cpus + held * theirs.cpus, memory + held * theirs.memory_bytes
        shape = self._shape
        return free < wanted or cpus + 1e-9 < wanted * shape.cpus or memory < wanted * shape.memory_bytes

    def _cost_of_waiting(self) -> float:
        """Accelerator-seconds that the gang loses until there is room without anybody's being asked to go."""
        part = self._parts[0]
        ready = sorted(self._ready_at(machine, part) for machine in self._machines if machine.size >= part)
        if len(ready) < len(self._parts):
            return inf
        return sum(self._parts) * (ready[len(self._parts) - 1] - self._cycle.now)

    def _ready_at(self, machine: FleetMachine, part: int) -> float:
        """When so many accelerators of the machine will be free if nobody is asked to go."""
        ledger, rules, now = self._cycle.ledger, self._cycle.policy.rules, self._cycle.now
        missing, ready_at = part - len(machine.free), now
        ends = sorted((max(expected_end_at(ledger, each, rules), now), each.job_id) for each in self._holders(machine))
        for end_at, job_id in ends:
            if missing <= 0:
                break
            missing, ready_at = missing - len(machine.holders[job_id]), end_at
        return ready_at

    # ------------------------------------------------------------------------------------------ who has to wait

    def _stuck(self, chosen: list[_ClearedMachine]) -> list[JobRecord]:
        """Those more important than the gang who would find no place on the pool once they have left."""
        room = {machine.row: self._room(machine) for machine in self._machines}
        movers = {each.job_id: each for way in chosen for each in way.leaving if self._is_planned(each)}
        for way in chosen:
            room[way.machine.row] -= way.part
        for mover in movers.values():
            for row, count in mover.place:
                if row in room:
                    room[row] += count
        own = self._rank(self._job)
        order = sorted(movers.values(), key=lambda each: (-_accelerators_held(each), each.job_id))
        return [each for each in order if not self._settle(each, room) and self._rank(each) < own]

    def _room(self, machine: FleetMachine) -> int:
        """Accelerators that planned jobs could have there: free, or held by somebody who is to go."""
        going = [
            each
            for each in self._holders(machine)
            if each.revoked is not None or (self._can_go(each) and not self._is_planned(each))
        ]
        return len(machine.free) + sum(len(machine.holders[each.job_id]) for each in going)

    def _settle(self, job: JobRecord, room: dict[int, int]) -> bool:
        """Take the fullest machines that hold the job out of the room; False if there are none."""
        shape = shape_of(self._cycle, job)
        place: dict[int, int] = {}
        for part in split_gang(shape.counts[self._pool], shape.nodes, self._size):
            fitting = [row for row, free in room.items() if free >= part and row not in place]
            if not fitting:
                return False
            place[min(fitting, key=lambda row: (room[row], row))] = part
        for row, part in place.items():
            room[row] -= part
        return True


def _accelerators_held(job: JobRecord) -> int:
    return sum(count for _, count in job.place)


#: Jobs weighed, of each pool, that may be asked to go for one of these places.
_INCUMBENTS_MAX = 256


def place_multi_pool_jobs(cycle: Cycle, planned: Iterable[tuple[JobRecord, PoolParts]], *, may_displace: bool) -> None:
    """Start, or move, these jobs where they are planned.

    Args:
        planned: (job, parts), the most important first.
        may_displace: others may be asked to go, and the job itself to move: the plan is new.
    """
    for job, parts in planned:
        if job.job_id in cycle.queues.nominated or cycle.ledger.parts_of(job) == parts:
            continue
        if (job.waits and cycle.queues.is_waiting(job.job_id)) or (may_displace and _may_move(cycle, job, parts)):
            _place_job(cycle, job, parts, may_displace=may_displace)


def _may_move(cycle: Cycle, job: JobRecord, parts: PoolParts) -> bool:
    may_leave = job.request.preemptible and not job.is_secured
    runs = job.state is JobState.RUNNING and job.revoked is None and may_leave
    return runs and cycle.ordering.may_move(job, parts[0][0])


def _place_job(cycle: Cycle, job: JobRecord, parts: PoolParts, *, may_displace: bool) -> None:
    """Give the job its whole place, or claim it and ask those in it to go; nothing where it cannot be had."""
    room = _MultiPoolPlace(cycle, cycle.ordering, job, may_displace=may_displace)
    if not all(room.find(pool, count, parts) for pool, count in parts):
        return
    drop_reservation(cycle, job.job_id)
    if job.waits and not room.victims:
        start_attempt(cycle, job, parts[0][0], room.place)
        return
    reservation = open_reservation(cycle, job, parts[0][0], room.place, preempting=True)
    for victim in room.victims:
        revoke_attempt(
            cycle, victim, Reason.POLICY_PREEMPTED, detail=f"job {job.job_id} {cycle.ordering.preempt_reason}"
        )
    if job.holds:
        pools = ", ".join(f"{cycle.ledger.fleet.pools[pool].pool.pool_id}: {count}" for pool, count in parts)
        revoke_attempt(cycle, job, Reason.POLICY_MOVED, detail=f"{cycle.ordering.move_reason} {pools} accelerators")
    settle_reservation(cycle, reservation)


@dataclass(slots=True)
class _MachineShare:
    """What is to be had of one machine, and who has to go for it."""

    count: int = 0
    leaving: list[JobRecord] = field(default_factory=list)


class _MultiPoolPlace:
    """A place for one job, found part by part."""

    def __init__(self, cycle: Cycle, ordering: JobOrdering, job: JobRecord, *, may_displace: bool) -> None:
        self._cycle = cycle
        self._ordering = ordering
        self._job = job
        self._may_displace = may_displace
        self._taken: dict[int, _MachineShare] = {}

    @property
    def place(self) -> Place:
        """What was found, in the order of its pools."""
        return tuple((row, taken.count) for row, taken in self._taken.items())

    @property
    def victims(self) -> list[JobRecord]:
        """Who has to go for it."""
        leaving = [job for taken in self._taken.values() for job in taken.leaving]
        return list({job.job_id: job for job in leaving}.values())

    def find(self, pool: int, count: int, parts: PoolParts) -> bool:
        """Find a part's accelerators. False: they are not to be had."""
        shape, size = shape_of(self._cycle, self._job), self._cycle.ledger.fleet.pools[pool].pool.shape.accelerators
        gang = shape.counts[pool]
        pieces = split_gang(gang, shape.nodes, size) * (count // gang) if is_fork(parts, shape.counts) else [1] * count
        leaving = self._leaving(pool)
        machines = {each.row: each for each in emptiest_machines(self._cycle, pool, self._job, 0)}
        machines.update((row, machine) for row in leaving if (machine := self._open(row)) is not None)
        return all(self._take(piece, list(machines.values()), leaving) for piece in pieces)

    def _leaving(self, pool: int) -> dict[int, list[JobRecord]]:
        """By machine of the pool, those who may be asked to go, weakest first."""
        found: dict[int, list[JobRecord]] = {}
        if self._may_displace:
            for other in self._ordering.incumbents(pool, _INCUMBENTS_MAX).weaker_than(self._job):
                for row, _ in other.place if other is not self._job and is_preemptible(other) else ():
                    machine = self._cycle.ledger.fleet.machines[row]
                    if machine is not None and machine.pool == pool:
                        found.setdefault(row, []).append(other)
        return found

    def _open(self, row: int) -> FleetMachine | None:
        """The machine, unless it takes no jobs or another has a claim on it."""
        machine = self._cycle.ledger.fleet.machines[row]
        if machine is None or machine.condition is not MachineCondition.UP:
            return None
        return machine if all(each == self._job.job_id for each in self._cycle.reserved_on.get(row, ())) else None

    def _take(self, piece: int, machines: list[FleetMachine], leaving: dict[int, list[JobRecord]]) -> bool:
        """Take so many accelerators of the machine for which fewest have to go, of equals one that is used already."""
        best: tuple[tuple[int, bool, int], int, _MachineShare] | None = None
        for machine in machines:
            before = self._taken.get(machine.row, _MachineShare())
            after = self._with(machine, before.count + piece, leaving.get(machine.row, []))
            if after is not None:
                cost = len(after.leaving) - len(before.leaving), not before.count, len(machine.free) - piece
                if best is None or cost < best[0]:
                    best = cost, machine.row, after
        if best is not None:
            self._taken[best[1]] = best[2]
        return best is not None

    def _with(self, machine: FleetMachine, count: int, able: list[JobRecord]) -> _MachineShare | None:
        """So many accelerators of the machine, with the fewest of these gone; None: they are not to be had."""
        for going in range(len(able) + 1):
            if fits_after_preemption(self._cycle, machine, able[:going], count, self._job):
                return _MachineShare(count, able[:going])
        return None
