"""Where a gang can run, and what it costs to have those machines: nothing, waiting, or stopping other jobs.

All searches ask the same questions:

    where.may_hold               may the job have so many accelerators of this pool?
    where.may_place              may it have what is free, or becomes free, on this machine?
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

Where switches join the machines (`Pool.topology`), the first three look for a place below one switch before others.

`find_victims` reads the incumbents only as far as it must and takes the first machine that they clear: it is a scan in
their order, and has no cost by machine.
"""

from collections.abc import Callable, Container, Iterable, Sequence, Set
from heapq import nsmallest
from itertools import groupby
from math import inf
from typing import NamedTuple

from scheduler.core.placement.where import PlaceOf, may_hold, may_place
from scheduler.core.state.crossings import crossing_of
from scheduler.core.state.fleet import FleetMachine, MachineCondition, Place, is_enough
from scheduler.core.state.job_classes import ResourceShape
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import freed_at, ready_at, work_ends_if_started_at
from scheduler.core.state.shared_accelerators import freed_by
from scheduler.core.state.stopping import StopFor, may_be_stopped
from scheduler.core.state.working_set import Cycle
from walras.job_request import JobId, project_of

#: Maximum of machines compared for one place.
MACHINES_MAX = 64


# ------------------------------------------------------------------------------------------------ which machines


def find_free_place(cycle: Cycle, job: JobRecord, pool: int, shape: ResourceShape | None = None) -> Place | None:
    """Returns free accelerators of the pool for the job's gang; None if there are none, or it may not have them.

    Machines on which it has not failed come first, of these the ones that are not slow. `shape` is another gang as
    which it may run.
    """
    shape = cycle.ledger.shape_of(job) if shape is None else shape
    place = _open_place(cycle, job, pool, shape)
    return place if place is not None and may_hold(cycle, job, pool, shape.counts[pool]) else None


def _open_place(cycle: Cycle, job: JobRecord, pool: int, shape: ResourceShape) -> Place | None:
    """Returns free accelerators for such a gang on machines that are open to the job."""
    fleet, retries, closed = cycle.ledger.fleet, cycle.ledger.retries, cycle.closed_to(job, pool)
    avoided = retries.rows(job.job_id, fleet, pool) - closed if job.job_id in retries.failed else frozenset[int]()
    known = cycle.ledger.slow_machines
    slow = known.rows(fleet, pool, project_of(job.request.kind)) - closed if known.slow else avoided
    for passed_over in dict.fromkeys((avoided | slow, avoided)):
        place = fleet.find(pool, shape, job.request.data, closed | passed_over) if passed_over else None
        if place is not None:
            return place
    return fleet.find(pool, shape, job.request.data, closed)


def open_machines(cycle: Cycle, pool: int, job: JobRecord, least: int) -> list[FleetMachine]:
    """Returns the machines open to the job that have `least` accelerators free, or hold the job."""
    members = cycle.ledger.fleet.pools[pool].members.values()
    enough = (each for each in members if len(each.free) >= least or job.job_id in each.holders)
    return [machine for machine in enough if may_place(cycle, job, machine) is None]


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
        shape, held = cycle.ledger.shape_of(each), len(machine.holders[each.job_id])
        cpus += held * shape.cpus
        memory_bytes += held * shape.memory_bytes
    return free >= wanted and is_enough(cpus, memory_bytes, wanted, cycle.ledger.shape_of(job))


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
    needs = [(other.needs[machine.row], cycle.ledger.shape_of(cycle.ledger.jobs[other.job_id])) for other in others]
    holders = [cycle.ledger.jobs[job_id] for job_id in machine.holders]
    going = [each for each in holders if each.revoked is not None and any(row == machine.row for row, _ in each.place)]
    left = [(len(machine.holders[each.job_id]), cycle.ledger.shape_of(each)) for each in going]
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
    #: Victims that a plan gives another place: their move is no preemption.
    moved: Container[JobId] = ()


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

    Every machine is checked for the largest part. One for which the instant is unknown counts as last. Machines in one
    block come first if that instant is known.
    """
    parts = cycle.ledger.fleet.gang_parts(pool, cycle.ledger.shape_of(job))
    everywhere = open_machines(cycle, pool, job, 0)
    ledger, rules = cycle.ledger, cycle.policy.rules

    def offer_of(machine: FleetMachine, part: int) -> MachineCandidate | None:
        if machine.size < part:
            return None
        return MachineCandidate(machine.row, part, (ready_at(ledger, machine, part, rules), machine.row))

    best: list[MachineCandidate] | None = None
    for outside in cycle.ledger.fleet.outside_blocks(pool, parts):
        if not outside and best is not None and _last(best) < inf:
            break
        machines = [machine for machine in everywhere if machine.row not in outside]
        if len(machines) > MACHINES_MAX:
            machines = emptiest(machines)
        found = cheapest_machines([parts[0]] * len(parts), machines, offer_of)
        if found is not None and (best is None or _last(found) < _last(best)):
            best = found
    return None if best is None else tuple((offer.row, part) for offer, part in zip(best, parts, strict=True))


def _last(offers: list[MachineCandidate]) -> float:
    return max(offer.cost[0] for offer in offers)


def ready_closer_at(cycle: Cycle, job: JobRecord, pool: int) -> float:
    """Returns when machines as close as such a gang could be are free if no job is stopped; inf if unknown."""
    ledger, rules, at = cycle.ledger, cycle.policy.rules, cycle.now
    place = find_earliest_place(cycle, job, pool)
    if place is None or crossing_of(ledger, job, place) is not None:
        return inf
    for row, part in place:
        machine = ledger.fleet.machines[row]
        assert machine is not None, "it was found"
        missing = part - len(machine.free)
        free_at = freed_at(ledger, machine, missing, rules) if missing > 0 else cycle.now
        if free_at < cycle.now:
            return inf  # jobs there have overstayed, so nothing says when they end
        at = max(at, free_at)
    return at


def waits_for_closer(cycle: Cycle, job: JobRecord, pool: int, place: Place) -> bool:
    """Returns whether the job loses less by waiting for machines close together than by running in this place.

    Only where exchanged bytes, its work and the ends of jobs there are known; and in all for no longer than what it
    would have lost in the first such place, however often those ends move.
    """
    found = crossing_of(cycle.ledger, job, place)
    if found is None or not found.is_known:
        return False
    rules = cycle.policy.rules
    left_s = work_ends_if_started_at(cycle.ledger, job, pool, rules) - cycle.now - cycle.ledger.restart_s(job, rules)
    until_at = min(job.declines_until, cycle.now + left_s * (1.0 / found.pace - 1.0))
    if not ready_closer_at(cycle, job, pool) < until_at < inf:
        return False
    if job.declines_until == inf:
        job.declines_until = until_at
        cycle.timers.set(until_at, "ready", job.job_id)
    return True


# ------------------------------------------------------------------------------------------------ cost: weakest jobs


def find_victims(cycle: Cycle, job: JobRecord, pool: int, incumbents: Iterable[JobRecord]) -> FoundPlace | None:
    """Returns a place for the job and the incumbents who have to leave it; None if they do not make enough room.

    `incumbents` are jobs that may be displaced, weakest first. A machine is taken as soon as the incumbents read so far
    make room for the next part there; all of these leave it. Places in one block come first.
    """
    outsides = cycle.ledger.fleet.outside_blocks(pool, cycle.ledger.fleet.gang_parts(pool, cycle.ledger.shape_of(job)))
    incumbents = incumbents if len(outsides) == 1 else list(incumbents)
    found = (_find_victims(cycle, job, pool, incumbents, outside) for outside in outsides)
    return next((place for place in found if place is not None), None)


def makes_room(cycle: Cycle, holder: JobRecord, job: JobRecord) -> bool:
    """Returns whether the holder of a place may be stopped for the job: not on what the holder's project owns."""
    stops = may_be_stopped(cycle.ledger, holder, StopFor.PLACE) is None
    return stops and not cycle.ledger.usage.owned.keeps(cycle.ledger, holder, job)


def _find_victims(
    cycle: Cycle, job: JobRecord, pool: int, incumbents: Iterable[JobRecord], outside: Set[int]
) -> FoundPlace | None:
    """Returns what `find_victims` does, leaving out the machines in these rows."""
    fleet = cycle.ledger.fleet
    parts = fleet.gang_parts(pool, cycle.ledger.shape_of(job))
    place = _place_without_victims(cycle, job, pool, parts, outside)
    closed = {*outside, *(row for row, _ in place)}  # machines chosen already, or that no job has to leave
    leaving: dict[int, list[JobRecord]] = {}
    room: dict[int, int] = {}  # accelerators that would be free, leaving nominations aside, by row
    halves: set[JobId] = set()  # incumbents whose accelerator is free once the job sharing it may be displaced too
    for incumbent in incumbents:
        if incumbent is job or not makes_room(cycle, incumbent, job):
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
                if may_place(cycle, job, machine_here, PlaceOf.FREED) is not None:
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
            victims = list({victim.job_id: victim for row, _ in place for victim in leaving.get(row, ())}.values())
            return FoundPlace(pool, tuple(place), victims) if may_hold(cycle, job, pool, sum(parts), victims) else None
    is_enough_free = job.holds and len(place) == len(parts) and may_hold(cycle, job, pool, sum(parts))
    return FoundPlace(pool, tuple(place)) if is_enough_free else None


def _place_without_victims(
    cycle: Cycle, job: JobRecord, pool: int, parts: list[int], outside: Set[int]
) -> list[tuple[int, int]]:
    """Returns as many parts of a place as need no job to leave.

    The machines on which the job runs itself come first; then, for a gang over several machines, the others with most
    free accelerators. A machine that lacks room for a part is not tried for a smaller one.
    """
    place: list[tuple[int, int]] = []
    machines = [each for each in _own_machines(cycle, pool, job) if each.row not in outside] if job.place else []
    if len(parts) > 1:
        own = {machine.row for machine in machines}
        inside = (each for each in open_machines(cycle, pool, job, parts[-1]) if each.row not in outside)
        likely = emptiest(inside)
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
