"""Whose leaving would make room for a gang, and where: machines weighed, nobody asked to go.

Who may be asked at all is for the caller to say (`rounds.py`, `profiling.py`), weakest first.
"""

from collections.abc import Iterable

from scheduler.core.cycle import Cycle
from scheduler.core.ledger.fleet import Condition, Machine, Place, split
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.placement.claims import form_of
from walras.states import JobState

#: Machines weighed for one place.
MACHINES_MAX = 64


def likely_machines(cycle: Cycle, pool: int, job: JobRecord, least: int) -> list[Machine]:
    """Machines of a pool with most accelerators free, `least` at least: a gang finds no better place elsewhere."""
    machines = open_machines(cycle, pool, job, least)
    machines.sort(key=lambda machine: (-len(machine.free), machine.row))
    return machines[:MACHINES_MAX]


def open_machines(cycle: Cycle, pool: int, job: JobRecord, least: int) -> list[Machine]:
    """Machines of a pool that are spoken for by nobody else and have so many accelerators free, or hold the job."""
    claimed, job_id, is_up = cycle.claims_on, job.job_id, Condition.UP
    return [
        machine
        for machine in cycle.ledger.fleet.pools[pool].members.values()
        if machine.condition is is_up
        and (len(machine.free) >= least or job_id in machine.holders)
        and (machine.row not in claimed or not _is_claimed_by_others(cycle, machine.row, job))
    ]


def _is_claimed_by_others(cycle: Cycle, row: int, job: JobRecord) -> bool:
    """Whether the machine is spoken for. A job's own reservation there does not keep it from more than waiting."""
    return any(claimant != job.job_id for claimant in cycle.claims_on.get(row, ()))


def victims_of(
    cycle: Cycle, job: JobRecord, pool: int, incumbents: Iterable[JobRecord]
) -> tuple[Place, list[JobRecord]] | None:
    """The first of these incumbents (weakest first) whose leaving makes room for the job, and the room they make."""
    fleet, form = cycle.ledger.fleet, form_of(cycle, job)
    parts = split(form.counts[pool], form.nodes, fleet.pools[pool].pool.shape.accelerators)
    place = _place_already(cycle, job, pool, parts)
    closed = {row for row, _ in place}  # machines that are chosen already, or on which nobody need leave
    leaving: dict[int, list[JobRecord]] = {}
    room: dict[int, int] = {}  # accelerators of a machine that would be free, were nothing of it promised
    running = JobState.RUNNING
    for incumbent in incumbents:
        if incumbent.revoked is not None or incumbent.state is not running or not incumbent.request.preemptible:
            continue  # as `can_leave` says, without a call for each of many
        if incumbent is job or incumbent.secure:
            continue
        for row, held in incumbent.place:
            if row in closed or (machine_here := fleet.machines[row]) is None or machine_here.pool != pool:
                continue
            if row not in room:
                if not _is_open(cycle, machine_here, job):
                    closed.add(row)
                    continue
                room[row] = len(machine_here.free) + len(machine_here.holders.get(job.job_id, ()))
            room[row] += held
            leaving.setdefault(row, []).append(incumbent)
            if len(place) == len(parts) or room[row] < (wanted := parts[len(place)]):
                continue
            if has_room_after(cycle, machine_here, leaving[row], wanted, job):
                place.append((row, wanted))
                closed.add(row)
        if len(place) == len(parts):
            victims = {victim.job_id: victim for row, _ in place for victim in leaving.get(row, ())}
            return tuple(place), list(victims.values())
    return (tuple(place), []) if job.holds and len(place) == len(parts) else None


def _place_already(cycle: Cycle, job: JobRecord, pool: int, parts: list[int]) -> list[tuple[int, int]]:
    """As much of its place as needs nobody to leave: where it runs itself, and for a gang whole machines elsewhere."""
    place: list[tuple[int, int]] = []
    machines = _own_machines(cycle, pool, job) if job.place else []
    if len(parts) > 1:
        own = {machine.row for machine in machines}
        likely = likely_machines(cycle, pool, job, parts[-1])
        machines.extend(machine for machine in likely if machine.row not in own)
    for machine in machines:
        if len(place) == len(parts):
            break
        wanted = parts[len(place)]
        free = len(machine.free) + len(machine.holders.get(job.job_id, ()))
        if free >= wanted and has_room_after(cycle, machine, [], wanted, job):
            place.append((machine.row, wanted))
    return place


def _own_machines(cycle: Cycle, pool: int, job: JobRecord) -> list[Machine]:
    """Machines of the pool on which it runs: what it holds there is room for itself."""
    machines = [cycle.ledger.fleet.machines[row] for row, _ in job.place]
    return [each for each in machines if each is not None and each.pool == pool and each.condition is Condition.UP]


def can_leave(incumbent: JobRecord) -> bool:
    """Whether a job runs, may be stopped, and has not been asked to go."""
    may_leave = incumbent.request.preemptible and not incumbent.secure
    return incumbent.revoked is None and incumbent.state is JobState.RUNNING and may_leave


def _is_open(cycle: Cycle, machine: Machine, job: JobRecord) -> bool:
    """Whether what is freed on the machine can be the job's: no reservation of another takes it."""
    if machine.condition is not Condition.UP:
        return False
    claims = cycle.claims_on.get(machine.row)
    return not claims or all(job_id == job.job_id or cycle.claims[job_id].exchange for job_id in claims)


def has_room_after(cycle: Cycle, machine: Machine, leaving: list[JobRecord], wanted: int, job: JobRecord) -> bool:
    """Whether `wanted` accelerators, with their processors and memory, are free once these jobs have left."""
    own = [job] if job.job_id in machine.holders else []  # what its reservation holds there
    promised = _promised(cycle, machine, job)
    free, cpus = len(machine.free) - promised[0], machine.free_cpus - promised[1]
    memory = machine.free_memory_bytes - promised[2]
    for victim in [*leaving, *own]:
        form, held = form_of(cycle, victim), len(machine.holders[victim.job_id])
        free += held
        cpus += held * form.cpus
        memory += held * form.memory_bytes
    form = form_of(cycle, job)
    return free >= wanted and cpus + 1e-9 >= wanted * form.cpus and memory >= wanted * form.memory_bytes


def _promised(cycle: Cycle, machine: Machine, job: JobRecord) -> tuple[int, float, int]:
    """What earlier exchanges of others need on the machine beyond what those who were asked to go will leave there.

    Accelerators, processors, memory; each 0 at least: what more is left is not counted on.
    """
    claiming = cycle.claims_on.get(machine.row)
    if not claiming:
        return 0, 0.0, 0
    claims = [cycle.claims[job_id] for job_id in claiming if job_id != job.job_id]
    if not claims:
        return 0, 0.0, 0
    needs = [(claim.needs[machine.row], form_of(cycle, cycle.ledger.jobs[claim.job_id])) for claim in claims]
    holders = [cycle.ledger.jobs[job_id] for job_id in machine.holders]
    going = [each for each in holders if each.revoked is not None and any(row == machine.row for row, _ in each.place)]
    left = [(len(machine.holders[each.job_id]), form_of(cycle, each)) for each in going]
    return (
        max(0, sum(count for count, _ in needs) - sum(count for count, _ in left)),
        max(0.0, sum(count * form.cpus for count, form in needs) - sum(count * form.cpus for count, form in left)),
        max(0, sum(n * form.memory_bytes for n, form in needs) - sum(n * form.memory_bytes for n, form in left)),
    )
