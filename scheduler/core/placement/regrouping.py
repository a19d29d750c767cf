"""Room made for planned gangs: a plan counts accelerators, machines are whole.

A pool may have as many free accelerators as a gang takes and no machine, or too few, with enough of them. Then jobs
that are planned on the same pool move over to its other machines, those first whose restarts cost least, if that costs
less accelerator time than the gang would lose by waiting for them to end. Whoever is more important than the gang moves
only if there is a place for it.
"""

from dataclasses import dataclass
from math import inf

from scheduler.core.cycle import Cycle
from scheduler.core.discipline import Discipline
from scheduler.core.ledger.fleet import Condition, Machine, split
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.ledger.remaining import foreseen_end_at
from scheduler.core.placement.attempts import revoke
from scheduler.core.placement.claims import drop_claim, form_of, open_claim, settle_claim
from walras.reasons import Reason
from walras.states import JobState

#: Gangs looked at after each plan, machines weighed for each of them, and sets of machines tried.
GANGS_MAX = 16
MACHINES_MAX = 256
TRIES_MAX = 4
#: A move counts as this much at least, seconds, however cheap a restart is: between free ones, the fewest jobs move.
_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class _Cleared:
    """What must happen on a machine so that a part of a gang has room."""

    machine: Machine
    part: int
    #: Who goes, planned on this pool or not.
    leaving: list[JobRecord]
    #: Accelerator-seconds that this costs.
    cost: float


def regroup(cycle: Cycle) -> None:
    """Move jobs together where a planned gang has found no room, the most important gangs first."""
    discipline = cycle.discipline
    assert discipline is not None
    tried = 0
    for job, pool in discipline.contests(GANGS_MAX):
        if not cycle.lines.is_waiting(job.job_id):
            continue
        form = form_of(cycle, job)
        if form.counts[pool] < 2 or cycle.ledger.fleet.find(pool, form) is not None:
            continue
        if tried == GANGS_MAX:
            return
        tried += 1
        _Regrouping(cycle, discipline, job, pool).make_room()


class _Regrouping:
    """Room for one gang on one pool."""

    def __init__(self, cycle: Cycle, discipline: Discipline, job: JobRecord, pool: int) -> None:
        self._cycle = cycle
        self._discipline = discipline
        self._job = job
        self._pool = pool
        self._form = form_of(cycle, job)
        self._size = cycle.ledger.fleet.pools[pool].pool.shape.accelerators
        self._parts = split(self._form.counts[pool], self._form.nodes, self._size)
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

    def _clear(self, chosen: list[_Cleared]) -> None:
        """Keep the machines for the gang and ask those there to go."""
        cycle, job = self._cycle, self._job
        drop_claim(cycle, job.job_id)
        claim = open_claim(cycle, job, self._pool, tuple((way.machine.row, way.part) for way in chosen), exchange=True)
        for each in {other.job_id: other for way in chosen for other in way.leaving}.values():
            reason = Reason.POLICY_MOVED if self._is_planned(each) else Reason.POLICY_PREEMPTED
            revoke(cycle, each, reason, detail=f"makes room for the gang of job {job.job_id}")
        settle_claim(cycle, claim)

    # ------------------------------------------------------------------------------------------ jobs

    def _is_planned(self, job: JobRecord) -> bool:
        return self._discipline.is_entitled(job, self._pool)

    def _rank(self, job: JobRecord) -> tuple[float, ...]:
        """The more important job has the smaller one."""
        return next((key for pool, key in self._discipline.keys(job) if pool == self._pool), (inf,))

    def _can_go(self, job: JobRecord) -> bool:
        if self._cycle.ledger.is_spread(job) or job.secure:
            return False  # what it holds elsewhere would have to be found again too; and who is secured stays
        return job.state is JobState.RUNNING and job.revoked is None and self._discipline.can_be_stopped(job)

    def _cost(self, job: JobRecord) -> float:
        """Accelerator-seconds lost by stopping the job; who is not planned here is to go anyhow."""
        if not self._is_planned(job):
            return 0.0
        stop_s = self._cycle.ledger.stop_cost_s(job, self._cycle.standing.rules)
        return _held(job) * max(_LEAST_S, stop_s)

    # ------------------------------------------------------------------------------------------ machines

    def _unclaimed(self) -> list[Machine]:
        """Machines of the pool that nobody has a claim on, most free accelerators first."""
        machines = [
            machine
            for machine in self._cycle.ledger.fleet.machines
            if machine is not None
            and machine.pool == self._pool
            and machine.condition is Condition.UP
            and machine.row not in self._cycle.claims_on
        ]
        return sorted(machines, key=lambda machine: (-len(machine.free), machine.row))[:MACHINES_MAX]

    def _holders(self, machine: Machine) -> list[JobRecord]:
        return [self._cycle.ledger.jobs[job_id] for job_id in machine.holders]

    def _cheapest(self, machines: list[Machine]) -> list[_Cleared] | None:
        """Machines for all parts, each the cheapest to clear of those left; None if they cannot be had."""
        chosen: list[_Cleared] = []
        for part in self._parts:
            taken = {each.machine.row for each in chosen}
            ways = [self._cleared(machine, part) for machine in machines if machine.row not in taken]
            found = min(filter(None, ways), key=lambda way: (way.cost, way.machine.row), default=None)
            if found is None:
                return None
            chosen.append(found)
        return chosen

    def _cleared(self, machine: Machine, part: int) -> _Cleared | None:
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
        return _Cleared(machine, part, leaving, sum(self._cost(each) for each in leaving))

    def _is_short(self, machine: Machine, leaving: list[JobRecord], wanted: int) -> bool:
        """Whether accelerators, processors or memory are missing once these have left."""
        free, cpus, memory = len(machine.free), machine.free_cpus, machine.free_memory_bytes
        for each in leaving:
            held, theirs = len(machine.holders[each.job_id]), form_of(self._cycle, each)
            free, cpus, memory = free + held, cpus + held * theirs.cpus, memory + held * theirs.memory_bytes
        form = self._form
        return free < wanted or cpus + 1e-9 < wanted * form.cpus or memory < wanted * form.memory_bytes

    def _cost_of_waiting(self) -> float:
        """Accelerator-seconds that the gang loses until there is room without anybody's being asked to go."""
        part = self._parts[0]
        ready = sorted(self._ready_at(machine, part) for machine in self._machines if machine.size >= part)
        if len(ready) < len(self._parts):
            return inf
        return sum(self._parts) * (ready[len(self._parts) - 1] - self._cycle.now)

    def _ready_at(self, machine: Machine, part: int) -> float:
        """When so many accelerators of the machine will be free if nobody is asked to go."""
        ledger, rules, now = self._cycle.ledger, self._cycle.standing.rules, self._cycle.now
        missing, ready_at = part - len(machine.free), now
        ends = sorted((max(foreseen_end_at(ledger, each, rules), now), each.job_id) for each in self._holders(machine))
        for end_at, job_id in ends:
            if missing <= 0:
                break
            missing, ready_at = missing - len(machine.holders[job_id]), end_at
        return ready_at

    # ------------------------------------------------------------------------------------------ who has to wait

    def _stuck(self, chosen: list[_Cleared]) -> list[JobRecord]:
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
        order = sorted(movers.values(), key=lambda each: (-_held(each), each.job_id))
        return [each for each in order if not self._settle(each, room) and self._rank(each) < own]

    def _room(self, machine: Machine) -> int:
        """Accelerators that planned jobs could have there: free, or held by somebody who is to go."""
        going = [
            each
            for each in self._holders(machine)
            if each.revoked is not None or (self._can_go(each) and not self._is_planned(each))
        ]
        return len(machine.free) + sum(len(machine.holders[each.job_id]) for each in going)

    def _settle(self, job: JobRecord, room: dict[int, int]) -> bool:
        """Take the fullest machines that hold the job out of the room; False if there are none."""
        form = form_of(self._cycle, job)
        place: dict[int, int] = {}
        for part in split(form.counts[self._pool], form.nodes, self._size):
            fitting = [row for row, free in room.items() if free >= part and row not in place]
            if not fitting:
                return False
            place[min(fitting, key=lambda row: (room[row], row))] = part
        for row, part in place.items():
            room[row] -= part
        return True


def _held(job: JobRecord) -> int:
    return sum(count for _, count in job.place)
