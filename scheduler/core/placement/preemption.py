"""Preemption: waiting jobs, and jobs owed time on another pool, against running ones.

`compare_with_running` runs once a round and after each solve, over all active jobs, through arrays. The ordering
says which running jobs are weaker; `find_victims` weighs machines for the first of them whose leaving makes room for
the gang. The numbers (hysteresis, minimum runtime) are in `rules.py`.
"""

from collections import Counter
from collections.abc import Iterable

from scheduler.core.placement.attempt_lifecycle import revoke_attempt
from scheduler.core.placement.reservations import (
    drop_reservation,
    open_reservation,
    settle_reservation,
    shape_of,
)
from scheduler.core.state.fleet import FleetMachine, MachineCondition, Place, split_gang
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle, Incumbents
from walras.states import JobState, Reason

#: Machines weighed for one place.
MACHINES_MAX = 64


def emptiest_machines(cycle: Cycle, pool: int, job: JobRecord, least: int) -> list[FleetMachine]:
    """Machines of a pool with most accelerators free, `least` at least: a gang finds no better place elsewhere."""
    machines = unreserved_machines(cycle, pool, job, least)
    machines.sort(key=lambda machine: (-len(machine.free), machine.row))
    return machines[:MACHINES_MAX]


def unreserved_machines(cycle: Cycle, pool: int, job: JobRecord, least: int) -> list[FleetMachine]:
    """Machines of a pool that are spoken for by nobody else and have so many accelerators free, or hold the job."""
    reserved, job_id, is_up = cycle.reserved_on, job.job_id, MachineCondition.UP
    return [
        machine
        for machine in cycle.ledger.fleet.pools[pool].members.values()
        if machine.condition is is_up
        and (len(machine.free) >= least or job_id in machine.holders)
        and (machine.row not in reserved or not _is_reserved_by_others(cycle, machine.row, job))
    ]


def _is_reserved_by_others(cycle: Cycle, row: int, job: JobRecord) -> bool:
    """Whether the machine is spoken for. A job's own reservation there does not keep it from more than waiting."""
    return any(claimant != job.job_id for claimant in cycle.reserved_on.get(row, ()))


def find_victims(
    cycle: Cycle, job: JobRecord, pool: int, incumbents: Iterable[JobRecord]
) -> tuple[Place, list[JobRecord]] | None:
    """The first of these incumbents (weakest first) whose leaving makes room for the job, and the room they make."""
    fleet, shape = cycle.ledger.fleet, shape_of(cycle, job)
    parts = split_gang(shape.counts[pool], shape.nodes, fleet.pools[pool].pool.shape.accelerators)
    place = _place_without_victims(cycle, job, pool, parts)
    closed = {row for row, _ in place}  # machines that are chosen already, or on which nobody need leave
    leaving: dict[int, list[JobRecord]] = {}
    room: dict[int, int] = {}  # accelerators of a machine that would be free, were nothing of it promised
    running = JobState.RUNNING
    for incumbent in incumbents:
        if incumbent.revoked is not None or incumbent.state is not running or not incumbent.request.preemptible:
            continue  # as `is_preemptible` says, without a call for each of many
        if incumbent is job or incumbent.is_secured:
            continue
        for row, held in incumbent.place:
            if row in closed or (machine_here := fleet.machines[row]) is None or machine_here.pool != pool:
                continue
            if row not in room:
                if not _is_unreserved(cycle, machine_here, job):
                    closed.add(row)
                    continue
                room[row] = len(machine_here.free) + len(machine_here.holders.get(job.job_id, ()))
            room[row] += held
            leaving.setdefault(row, []).append(incumbent)
            if len(place) == len(parts) or room[row] < (wanted := parts[len(place)]):
                continue
            if fits_after_preemption(cycle, machine_here, leaving[row], wanted, job):
                place.append((row, wanted))
                closed.add(row)
        if len(place) == len(parts):
            victims = {victim.job_id: victim for row, _ in place for victim in leaving.get(row, ())}
            return tuple(place), list(victims.values())
    return (tuple(place), []) if job.holds and len(place) == len(parts) else None


def _place_without_victims(cycle: Cycle, job: JobRecord, pool: int, parts: list[int]) -> list[tuple[int, int]]:
    """As much of its place as needs nobody to leave: where it runs itself, and for a gang whole machines elsewhere."""
    place: list[tuple[int, int]] = []
    machines = _own_machines(cycle, pool, job) if job.place else []
    if len(parts) > 1:
        own = {machine.row for machine in machines}
        likely = emptiest_machines(cycle, pool, job, parts[-1])
        machines.extend(machine for machine in likely if machine.row not in own)
    for machine in machines:
        if len(place) == len(parts):
            break
        wanted = parts[len(place)]
        free = len(machine.free) + len(machine.holders.get(job.job_id, ()))
        if free >= wanted and fits_after_preemption(cycle, machine, [], wanted, job):
            place.append((machine.row, wanted))
    return place


def _own_machines(cycle: Cycle, pool: int, job: JobRecord) -> list[FleetMachine]:
    """Machines of the pool on which it runs: what it holds there is room for itself."""
    machines = [cycle.ledger.fleet.machines[row] for row, _ in job.place]
    return [
        each for each in machines if each is not None and each.pool == pool and each.condition is MachineCondition.UP
    ]


def is_preemptible(incumbent: JobRecord) -> bool:
    """Whether a job runs, may be stopped, and has not been asked to go."""
    may_leave = incumbent.request.preemptible and not incumbent.is_secured
    return incumbent.revoked is None and incumbent.state is JobState.RUNNING and may_leave


def _is_unreserved(cycle: Cycle, machine: FleetMachine, job: JobRecord) -> bool:
    """Whether what is freed on the machine can be the job's: no reservation of another takes it."""
    if machine.condition is not MachineCondition.UP:
        return False
    reservations = cycle.reserved_on.get(machine.row)
    return not reservations or all(
        job_id == job.job_id or cycle.reservations[job_id].preempting for job_id in reservations
    )


def fits_after_preemption(
    cycle: Cycle, machine: FleetMachine, leaving: list[JobRecord], wanted: int, job: JobRecord
) -> bool:
    """Whether `wanted` accelerators, with their processors and memory, are free once these jobs have left."""
    own = [job] if job.job_id in machine.holders else []  # what its reservation holds there
    promised = _promised_to_others(cycle, machine, job)
    free, cpus = len(machine.free) - promised[0], machine.free_cpus - promised[1]
    memory = machine.free_memory_bytes - promised[2]
    for victim in [*leaving, *own]:
        shape, held = shape_of(cycle, victim), len(machine.holders[victim.job_id])
        free += held
        cpus += held * shape.cpus
        memory += held * shape.memory_bytes
    shape = shape_of(cycle, job)
    return free >= wanted and cpus + 1e-9 >= wanted * shape.cpus and memory >= wanted * shape.memory_bytes


def _promised_to_others(cycle: Cycle, machine: FleetMachine, job: JobRecord) -> tuple[int, float, int]:
    """What earlier exchanges of others need on the machine beyond what those who were asked to go will leave there.

    Accelerators, processors, memory; each 0 at least: what more is left is not counted on.
    """
    reserving = cycle.reserved_on.get(machine.row)
    if not reserving:
        return 0, 0.0, 0
    reservations = [cycle.reservations[job_id] for job_id in reserving if job_id != job.job_id]
    if not reservations:
        return 0, 0.0, 0
    needs = [
        (reservation.needs[machine.row], shape_of(cycle, cycle.ledger.jobs[reservation.job_id]))
        for reservation in reservations
    ]
    holders = [cycle.ledger.jobs[job_id] for job_id in machine.holders]
    going = [each for each in holders if each.revoked is not None and any(row == machine.row for row, _ in each.place)]
    left = [(len(machine.holders[each.job_id]), shape_of(cycle, each)) for each in going]
    return (
        max(0, sum(count for count, _ in needs) - sum(count for count, _ in left)),
        max(0.0, sum(count * shape.cpus for count, shape in needs) - sum(count * shape.cpus for count, shape in left)),
        max(0, sum(n * shape.memory_bytes for n, shape in needs) - sum(n * shape.memory_bytes for n, shape in left)),
    )


#: Challengers looked at per pool and round. More would not fit in practice, and this bounds the work.
CHALLENGERS_MAX = 64
#: Incumbents weighed against each challenger, weakest first, and challengers in a row that may fail to displace any.
INCUMBENTS_MAX = 256
FAILURES_MAX = 8


# ------------------------------------------------------------------------------------------------ preempt


def compare_with_running(cycle: Cycle) -> None:
    """Set waiting jobs (and jobs owed time on another pool) against incumbents."""
    ordering = cycle.ordering
    if not ordering.compares:
        return
    incumbents: dict[int, Incumbents] = {}
    failures: Counter[int] = Counter()
    hopeless: set[tuple[int, int]] = set()  # those behind a job of their class that failed have less of a claim still
    head: JobRecord | None = None
    for job, pool in ordering.challengers(CHALLENGERS_MAX):
        if ordering.strict and head is not None and job is not head and _still_waits(cycle, head):
            return  # nobody passes the first in line, by preemption as little as by filling
        head = job
        if failures[pool] >= FAILURES_MAX:
            continue
        in_vain = (job.class_row, pool) in hopeless and job.waits and job.job_id not in cycle.reservations
        if in_vain or not _preempt_for(cycle, job, pool, incumbents):
            hopeless.add((job.class_row, pool))
            failures[pool] += 1
            if all(failures[state.row] >= FAILURES_MAX for state in cycle.ledger.fleet.pools):
                return


def preempt_now(cycle: Cycle, job: JobRecord) -> None:
    """A job of a high class need not wait for the round to end."""
    for pool in cycle.ordering.pools_of(job):
        if _still_waits(cycle, job):
            _preempt_for(cycle, job, pool, {})


def _still_waits(cycle: Cycle, job: JobRecord) -> bool:
    return job.waits and job.job_id not in cycle.queues.nominated


def _preempt_for(cycle: Cycle, job: JobRecord, pool: int, incumbents: dict[int, Incumbents]) -> bool:
    """Claim a place on the pool, if the job has a right to it and those in it may be asked to go.

    False: nobody who is there can be displaced. `incumbents`: by pool, as far as they have been asked for.
    """
    ordering = cycle.ordering
    if job.job_id in cycle.queues.nominated or not (job.waits or _is_movable(cycle, job, pool)):
        return True
    place = cycle.ledger.fleet.find(pool, shape_of(cycle, job))
    if place is not None and job.waits:
        return True  # fill will start it
    victims: list[JobRecord] = []
    if place is None:
        if pool not in incumbents:
            incumbents[pool] = ordering.incumbents(pool, INCUMBENTS_MAX)
        found = find_victims(cycle, job, pool, incumbents[pool].weaker_than(job))
        if found is None:
            return False
        place, victims = found
    drop_reservation(cycle, job.job_id)
    reservation = open_reservation(cycle, job, pool, place, preempting=True)
    for victim in victims:
        revoke_attempt(cycle, victim, Reason.POLICY_PREEMPTED, detail=f"job {job.job_id} {ordering.preempt_reason}")
    if job.holds:
        revoke_attempt(cycle, job, Reason.POLICY_MOVED, detail=_move_text(cycle, job, pool, ordering.move_reason))
    settle_reservation(cycle, reservation)
    return True


def _move_text(cycle: Cycle, job: JobRecord, pool: int, text: str) -> str:
    pool_id, columns = cycle.ledger.fleet.pools[pool].pool.pool_id, cycle.ledger.columns
    if pool != columns.pool[job.slot]:
        return f"{text} {pool_id}"
    return f"{text} {pool_id}: {cycle.ledger.count_on(job, pool)} accelerators instead of {columns.count[job.slot]:g}"


def _is_movable(cycle: Cycle, job: JobRecord, pool: int) -> bool:
    return (
        job.state is JobState.RUNNING
        and job.revoked is None
        and job.request.preemptible
        and not job.is_secured
        and cycle.ordering.may_move(job, pool)
    )
