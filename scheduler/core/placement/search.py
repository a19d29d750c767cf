"""Where a gang can run, and what it costs to have those machines: nothing, waiting, or stopping other jobs.

All searches ask the same questions, which only this module answers:

    is_open_to, can_take_freed   may the job have what is free, or becomes free, on this machine?
    has_room_after               is there room for a part of the gang once these jobs have left?
    cheapest_machines            which machine for each part of the gang?

`remaining_work.ready_at` says when there is room if nobody is stopped. Machines on which the job failed are left out,
or come last where the place is free (`state/retry_places.py`). The searches differ in the cost of a machine:

    search                               cost of a machine                          ties
    Fleet.find (an index of buckets)     free accelerators (best fit)               joined first
    find_earliest_place                  when it has room if no job is stopped      joined first
    find_victims                         the weakest incumbents, in their order     first in that order
    planned_gangs: defragmentation       accelerator-seconds lost by stopped jobs   joined first
    planned_gangs: several pools         jobs stopped, then best fit                most free accelerators

`find_victims` reads the incumbents only as far as it must and takes the first machine that they clear: it is a scan in
their order, and has no cost by machine (docs/decisions/0010-search-for-machines.md).
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import groupby
from typing import NamedTuple

from scheduler.core.placement.reservations import shape_of
from scheduler.core.state.fleet import FleetMachine, MachineCondition, Place, is_enough
from scheduler.core.state.job_classes import ResourceShape
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import ready_at
from scheduler.core.state.shared_accelerators import freed_by
from scheduler.core.state.working_set import Cycle
from walras.job_request import JobId, can_prepare
from walras.states import JobState

#: Maximum of machines compared for one place.
MACHINES_MAX = 64


# ------------------------------------------------------------------------------------------------ which machines


def is_open_to(cycle: Cycle, machine: FleetMachine, job: JobRecord) -> bool:
    """Returns whether the machine takes jobs, can prepare this one, and no other job has a reservation there.

    A job's own reservation there does not count.
    """
    if not _takes(cycle, machine, job):
        return False
    reserved = cycle.reserved_on.get(machine.row)
    return not reserved or all(job_id == job.job_id for job_id in reserved)


def _takes(cycle: Cycle, machine: FleetMachine, job: JobRecord) -> bool:
    """Returns whether the machine takes jobs, can prepare this one, and is not closed to it (`Cycle.closed_to`)."""
    is_up = machine.condition is MachineCondition.UP
    if not is_up or not can_prepare(machine.tools, job.request.tools):
        return False
    return machine.row not in cycle.closed_to(job, machine.pool)


def can_take_freed(cycle: Cycle, machine: FleetMachine, job: JobRecord) -> bool:
    """Returns whether the job can have what others free on the machine beyond what is nominated already.

    A backfill reservation of another job takes all that becomes free; `has_room_after` deducts what preemptions need.
    """
    if not _takes(cycle, machine, job):
        return False
    reserved = cycle.reserved_on.get(machine.row)
    return not reserved or all(job_id == job.job_id or cycle.reservations[job_id].preempting for job_id in reserved)


def find_free_place(cycle: Cycle, job: JobRecord, pool: int, shape: ResourceShape | None = None) -> Place | None:
    """Returns free accelerators of the pool for the job's gang; None if there are none, or they are closed to it.

    Machines on which it has not failed come first, of these the ones that are not slow. `shape` is another gang as
    which it may run.
    """
    fleet, retries, closed = cycle.ledger.fleet, cycle.ledger.retries, cycle.closed_to(job, pool)
    shape = shape_of(cycle, job) if shape is None else shape
    avoided = retries.rows(job.job_id, fleet, pool) - closed if job.job_id in retries.failed else frozenset[int]()
    slow = cycle.ledger.slow_machines.rows(fleet, pool) - closed if cycle.ledger.slow_machines.slow else avoided
    for passed_over in dict.fromkeys((avoided | slow, avoided)):
        place = fleet.find(pool, shape, job.request.data, closed | passed_over) if passed_over else None
        if place is not None:
            return place
    return fleet.find(pool, shape, job.request.data, closed)


def open_machines(cycle: Cycle, pool: int, job: JobRecord, least: int) -> list[FleetMachine]:
    """Returns the machines open to the job that have `least` accelerators free, or hold the job."""
    reserved, job_id, is_up, needs = cycle.reserved_on, job.job_id, MachineCondition.UP, job.request.tools
    closed = cycle.closed_to(job, pool)
    return [
        machine
        for machine in cycle.ledger.fleet.pools[pool].members.values()
        if machine.condition is is_up
        and (not needs or can_prepare(machine.tools, needs))
        and (len(machine.free) >= least or job_id in machine.holders)
        and machine.row not in closed
        and (machine.row not in reserved or is_open_to(cycle, machine, job))
    ]


def emptiest(machines: Iterable[FleetMachine], most: int = MACHINES_MAX) -> list[FleetMachine]:
    """Returns the `most` machines with most accelerators free: a gang finds no better place elsewhere."""
    return sorted(machines, key=lambda machine: (-len(machine.free), machine.row))[:most]


# ------------------------------------------------------------------------------------------------ how much room


def has_room_after(
    cycle: Cycle, machine: FleetMachine, leaving: Sequence[JobRecord], wanted: int, job: JobRecord
) -> bool:
    """Returns whether `wanted` accelerators, with their processors and memory, are free once these jobs have left.

    What the job holds on the machine itself counts as free; what preemptions for others still need there does not.
    """
    own = [job] if job.job_id in machine.holders else []  # its reservation's holding there
    nominated = _nominated_to_others(cycle, machine, job)
    free, cpus = len(machine.free) - nominated[0], machine.free_cpus - nominated[1]
    memory_bytes = machine.free_memory_bytes - nominated[2]
    going = [*leaving, *own]
    free += freed_by(machine, {each.job_id for each in going})
    for each in going:
        shape, held = shape_of(cycle, each), len(machine.holders[each.job_id])
        cpus += held * shape.cpus
        memory_bytes += held * shape.memory_bytes
    return free >= wanted and is_enough(cpus, memory_bytes, wanted, shape_of(cycle, job))


def _nominated_to_others(cycle: Cycle, machine: FleetMachine, job: JobRecord) -> tuple[int, float, int]:
    """Returns what earlier preemptions for others need on the machine beyond what the jobs leaving it will free.

    Accelerators, processors, memory (bytes); each at least 0: a surplus of those leaving is not counted on.
    """
    reserving = cycle.reserved_on.get(machine.row)
    if not reserving:
        return 0, 0.0, 0
    others = [cycle.reservations[job_id] for job_id in reserving if job_id != job.job_id]
    if not others:
        return 0, 0.0, 0
    needs = [(other.needs[machine.row], shape_of(cycle, cycle.ledger.jobs[other.job_id])) for other in others]
    holders = [cycle.ledger.jobs[job_id] for job_id in machine.holders]
    going = [each for each in holders if each.revoked is not None and any(row == machine.row for row, _ in each.place)]
    left = [(len(machine.holders[each.job_id]), shape_of(cycle, each)) for each in going]
    return (
        max(0, sum(count for count, _ in needs) - freed_by(machine, {each.job_id for each in going})),
        max(0.0, sum(count * shape.cpus for count, shape in needs) - sum(count * shape.cpus for count, shape in left)),
        max(0, sum(n * shape.memory_bytes for n, shape in needs) - sum(n * shape.memory_bytes for n, shape in left)),
    )


# ------------------------------------------------------------------------------------------------ the best machines


class FoundPlace(NamedTuple):
    """A place for a job, and the jobs that have to leave it first."""

    #: Row of the pool of the machines; of several the first.
    pool: int
    place: Place
    victims: Sequence[JobRecord] = ()


class MachineCandidate(NamedTuple):
    """What one machine can give a gang, and at which cost."""

    row: int
    accelerators: int
    #: Smaller is better; all candidates of one search have costs of the same length.
    cost: tuple[float, ...]
    #: Jobs that have to leave the machine first.
    leaving: Sequence[JobRecord] = ()


def found_place(pool: int, offers: Iterable[MachineCandidate]) -> FoundPlace:
    """Returns the machines of these candidates as a place, and each job that has to leave one of them, once."""
    offers = list(offers)
    victims = {job.job_id: job for offer in offers for job in offer.leaving}
    return FoundPlace(pool, tuple((offer.row, offer.accelerators) for offer in offers), list(victims.values()))


def cheapest_machines(
    parts: Iterable[int],
    machines: Sequence[FleetMachine],
    offer_of: Callable[[FleetMachine, int], MachineCandidate | None],
) -> list[MachineCandidate] | None:
    """Returns the cheapest candidate for each part in turn, each of another machine; None if a part gets none.

    `parts` are accelerators, largest first. `offer_of(machine, part)` returns None if the machine cannot hold the part;
    it must not depend on the other parts. Of equal costs the machine that comes first is taken.
    """
    chosen: dict[int, MachineCandidate] = {}
    for part, equal in groupby(parts):
        count = len(list(equal))
        offers = (offer_of(machine, part) for machine in machines if machine.row not in chosen)
        cheapest = nsmallest(count, (offer for offer in offers if offer is not None), key=lambda offer: offer.cost)
        if len(cheapest) < count:
            return None
        chosen.update((offer.row, offer) for offer in cheapest)
    return list(chosen.values())


# ------------------------------------------------------------------------------------------------ cost: waiting


def find_earliest_place(cycle: Cycle, job: JobRecord, pool: int) -> Place | None:
    """Returns the machines that have room for the gang earliest if no job is stopped; None if too few are large enough.

    Every machine is checked for the largest part. One for which the instant is unknown counts as last.
    """
    parts = cycle.ledger.fleet.gang_parts(pool, shape_of(cycle, job))
    machines = open_machines(cycle, pool, job, 0)
    if len(machines) > MACHINES_MAX:
        machines = emptiest(machines)
    ledger, rules = cycle.ledger, cycle.policy.rules

    def offer_of(machine: FleetMachine, part: int) -> MachineCandidate | None:
        if machine.size < part:
            return None
        return MachineCandidate(machine.row, part, (ready_at(ledger, machine, part, rules), machine.row))

    found = cheapest_machines([parts[0]] * len(parts), machines, offer_of)
    return None if found is None else tuple((offer.row, part) for offer, part in zip(found, parts, strict=True))


# ------------------------------------------------------------------------------------------------ cost: weakest jobs


def find_victims(cycle: Cycle, job: JobRecord, pool: int, incumbents: Iterable[JobRecord]) -> FoundPlace | None:
    """Returns a place for the job and the incumbents who have to leave it; None if they do not make enough room.

    `incumbents` are jobs that may be displaced, weakest first. A machine is taken as soon as the incumbents read so far
    make room for the next part there; all of these leave it.
    """
    fleet = cycle.ledger.fleet
    parts = fleet.gang_parts(pool, shape_of(cycle, job))
    place = _place_without_victims(cycle, job, pool, parts)
    closed = {row for row, _ in place}  # machines chosen already, or that no job has to leave
    leaving: dict[int, list[JobRecord]] = {}
    room: dict[int, int] = {}  # accelerators that would be free, leaving nominations aside, by row
    halves: set[JobId] = set()  # incumbents whose accelerator is free once the job sharing it may be displaced too
    running = JobState.RUNNING
    for incumbent in incumbents:
        if incumbent.revoked is not None or incumbent.state is not running or not incumbent.request.preemptible:
            continue  # like `preemption.is_preemptible`, without a call for each of many
        if incumbent is job or incumbent.is_secured:
            continue
        partner = cycle.sharing.partner_of(incumbent.job_id) if cycle.sharing.pairs else None
        if partner is not None and partner.revoked is None and partner.job_id not in halves:
            halves.add(incumbent.job_id)
            continue
        both = [incumbent] if partner is None or partner.revoked is not None else [partner, incumbent]
        for row, held in incumbent.place:
            if row in closed or (machine_here := fleet.machines[row]) is None or machine_here.pool != pool:
                continue
            if row not in room:
                if not can_take_freed(cycle, machine_here, job):
                    closed.add(row)
                    continue
                room[row] = len(machine_here.free) + len(machine_here.holders.get(job.job_id, ()))
            room[row] += held
            leaving.setdefault(row, []).extend(both)
            if len(place) == len(parts) or room[row] < (wanted := parts[len(place)]):
                continue
            if has_room_after(cycle, machine_here, leaving[row], wanted, job):
                place.append((row, wanted))
                closed.add(row)
        if len(place) == len(parts):
            victims = {victim.job_id: victim for row, _ in place for victim in leaving.get(row, ())}
            return FoundPlace(pool, tuple(place), list(victims.values()))
    return FoundPlace(pool, tuple(place)) if job.holds and len(place) == len(parts) else None


def _place_without_victims(cycle: Cycle, job: JobRecord, pool: int, parts: list[int]) -> list[tuple[int, int]]:
    """Returns as many parts of a place as need no job to leave.

    The machines on which the job runs itself come first; then, for a gang over several machines, the others with most
    free accelerators. A machine that lacks room for a part is not tried for a smaller one.
    """
    place: list[tuple[int, int]] = []
    machines = _own_machines(cycle, pool, job) if job.place else []
    if len(parts) > 1:
        own = {machine.row for machine in machines}
        likely = emptiest(open_machines(cycle, pool, job, parts[-1]))
        machines.extend(machine for machine in likely if machine.row not in own)
    for machine in machines:
        if len(place) == len(parts):
            break
        wanted = parts[len(place)]
        free = len(machine.free) + len(machine.holders.get(job.job_id, ()))
        if free >= wanted and has_room_after(cycle, machine, (), wanted, job):
            place.append((machine.row, wanted))
    return place


def _own_machines(cycle: Cycle, pool: int, job: JobRecord) -> list[FleetMachine]:
    """Returns the machines of the pool on which the job runs; what it holds there counts as its room."""
    machines = [cycle.ledger.fleet.machines[row] for row, _ in job.place]
    return [
        each for each in machines if each is not None and each.pool == pool and each.condition is MachineCondition.UP
    ]
