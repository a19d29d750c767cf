"""Room made for planned gangs: a plan counts accelerators, machines are whole.

A pool may have as many free accelerators as a gang takes and no machine, or too few, with enough of them. Then jobs
that are planned on the same pool move over to its other machines, those first whose restarts cost least, if that costs
less accelerator time than the gang would lose by waiting for them to end. Only where the others cannot hold them all,
and the gang is more important than those left over, do these have to wait.
"""

from dataclasses import dataclass, field
from math import inf

from scheduler.core.attempts import revoke
from scheduler.core.claims import drop_claim, form_of, open_claim, settle_claim
from scheduler.core.classes import Form
from scheduler.core.cycle import Cycle
from scheduler.core.discipline import Discipline
from scheduler.core.fleet import Condition, Machine, split
from scheduler.core.ledger import JobRecord
from scheduler.core.rounds import expected_end
from walras.reasons import Reason
from walras.states import JobState

#: Gangs looked at after each plan, and machines for each of them.
GANGS_MAX = 16
MACHINES_MAX = 256


@dataclass(slots=True)
class _Cleared:
    """What must happen on a machine so that a part of a gang has room."""

    machine: Machine
    #: Who goes, planned on this pool or not.
    leaving: list[JobRecord] = field(default_factory=list)
    #: Accelerator-seconds that this costs.
    cost: float = 0.0


def regroup(cycle: Cycle) -> None:
    """Move jobs together where a planned gang has found no room, the most important gangs first."""
    discipline = cycle.discipline
    assert discipline is not None
    tried = 0
    for job, pool in discipline.contests(GANGS_MAX):
        if not job.waits or job.job_id in cycle.lines.spoken_for or job.ready_at > cycle.now:
            continue
        form = form_of(cycle, job)
        if form.counts[pool] < 2 or cycle.ledger.fleet.find(pool, form) is not None:
            continue
        tried += 1
        if tried > GANGS_MAX:
            return
        _make_room(cycle, discipline, job, pool)


def _make_room(cycle: Cycle, discipline: Discipline, job: JobRecord, pool: int) -> None:
    """Claim the machines that are cleared at the least cost, if that is less than waiting for them costs."""
    form, fleet = form_of(cycle, job), cycle.ledger.fleet
    parts = split(form.counts[pool], form.nodes, fleet.pools[pool].pool.shape.accelerators)
    open_ones = _open_machines(cycle, pool)
    chosen: list[_Cleared] = []
    for part in parts:
        taken = {each.machine.row for each in chosen}
        ways = [
            _cleared(cycle, discipline, machine, part, form, pool) for machine in open_ones if machine.row not in taken
        ]
        found = min(filter(None, ways), key=lambda way: (way.cost, way.machine.row), default=None)
        if found is None:
            return
        chosen.append(found)
    displaced = {each.job_id: each for way in chosen for each in way.leaving}
    cost = sum(_cost(cycle, discipline, each, pool) for each in displaced.values())
    ready = sorted(_ready_at(cycle, machine, parts[0]) for machine in open_ones if machine.size >= parts[0])
    if cost > form.counts[pool] * (ready[len(parts) - 1] - cycle.now):
        return
    planned = [each for each in displaced.values() if discipline.is_entitled(each, pool)]
    staying = {way.machine.row: part for way, part in zip(chosen, parts, strict=True)}
    room = {each.row: _room(cycle, discipline, each, pool) - staying.get(each.row, 0) for each in open_ones}
    last = _rank(discipline, job, pool)
    if any(_rank(discipline, each, pool) <= last for each in _left_over(cycle, planned, pool, room)):
        return
    drop_claim(cycle, job.job_id)
    claim = open_claim(cycle, job, pool, tuple(staying.items()), exchange=True)
    for each in displaced.values():
        stays = discipline.is_entitled(each, pool)
        reason = Reason.POLICY_MOVED if stays else Reason.POLICY_PREEMPTED
        revoke(cycle, each, reason, detail=f"makes room for the {form.counts[pool]} accelerators of job {job.job_id}")
    settle_claim(cycle, claim)


def _rank(discipline: Discipline, job: JobRecord, pool: int) -> tuple[float, ...]:
    """The more important job has the smaller one."""
    return next((key for other, key in discipline.keys(job) if other == pool), (inf,))


def _open_machines(cycle: Cycle, pool: int) -> list[Machine]:
    """Machines of the pool that nobody has a claim on, most free accelerators first."""
    machines = [
        machine
        for machine in cycle.ledger.fleet.machines
        if machine is not None
        and machine.pool == pool
        and machine.condition is Condition.UP
        and machine.row not in cycle.claims_on
    ]
    return sorted(machines, key=lambda machine: (-len(machine.free), machine.row))[:MACHINES_MAX]


def _can_go(discipline: Discipline, job: JobRecord) -> bool:
    return job.state is JobState.RUNNING and job.revoked is None and discipline.can_be_stopped(job)


def _cost(cycle: Cycle, discipline: Discipline, job: JobRecord, pool: int) -> float:
    """Accelerator-seconds lost by stopping the job; who is not planned here is to go anyhow."""
    if not discipline.is_entitled(job, pool):
        return 0.0
    held = sum(count for _, count in job.place)
    return held * cycle.ledger.stop_cost_s(job, cycle.standing.rules)


def _cleared(
    cycle: Cycle, discipline: Discipline, machine: Machine, part: int, form: Form, pool: int
) -> _Cleared | None:
    """The cheapest way to have `part` accelerators of the machine free; None if there is none."""
    way = _Cleared(machine)
    holders = [cycle.ledger.jobs[job_id] for job_id in machine.holders]
    going = [each for each in holders if each.revoked is not None]
    short = _short(cycle, machine, going, part, form)
    able = [each for each in holders if _can_go(discipline, each)]
    able.sort(key=lambda each: (_cost(cycle, discipline, each, pool) / len(machine.holders[each.job_id]), each.job_id))
    for each in able:
        if not short:
            break
        way.leaving.append(each)
        short = _short(cycle, machine, [*going, *way.leaving], part, form)
    if short:
        return None
    for each in sorted(way.leaving, key=lambda each: -_cost(cycle, discipline, each, pool)):
        rest = [other for other in way.leaving if other is not each]
        if not _short(cycle, machine, [*going, *rest], part, form):
            way.leaving = rest  # the others leave room enough
    way.cost = sum(_cost(cycle, discipline, each, pool) for each in way.leaving)
    return way


def _short(cycle: Cycle, machine: Machine, leaving: list[JobRecord], wanted: int, form: Form) -> bool:
    """Whether accelerators, processors or memory are missing once these have left."""
    free, cpus, memory = len(machine.free), machine.free_cpus, machine.free_memory_bytes
    for each in leaving:
        held, theirs = len(machine.holders[each.job_id]), form_of(cycle, each)
        free, cpus, memory = free + held, cpus + held * theirs.cpus, memory + held * theirs.memory_bytes
    return free < wanted or cpus + 1e-9 < wanted * form.cpus or memory < wanted * form.memory_bytes


def _ready_at(cycle: Cycle, machine: Machine, part: int) -> float:
    """When so many accelerators of the machine will be free if nobody is asked to go."""
    missing = part - len(machine.free)
    ends = sorted(
        (expected_end(cycle, cycle.ledger.jobs[job_id]), len(held)) for job_id, held in machine.holders.items()
    )
    ready_at = cycle.now
    for end_at, held in ends:
        if missing <= 0:
            break
        missing, ready_at = missing - held, end_at
    return ready_at


def _room(cycle: Cycle, discipline: Discipline, machine: Machine, pool: int) -> int:
    """Accelerators that planned jobs could have there: free, or held by somebody who is planned elsewhere."""
    holders = [cycle.ledger.jobs[job_id] for job_id in machine.holders]
    others = [
        each
        for each in holders
        if each.revoked is not None or (_can_go(discipline, each) and not discipline.is_entitled(each, pool))
    ]
    return len(machine.free) + sum(len(machine.holders[each.job_id]) for each in others)


def _left_over(cycle: Cycle, displaced: list[JobRecord], pool: int, room: dict[int, int]) -> list[JobRecord]:
    """Those who find no place in this room once they have left; `room` must not count what they leave for others."""
    size, left = cycle.ledger.fleet.pools[pool].pool.shape.accelerators, []
    for job in sorted(displaced, key=lambda each: (-sum(count for _, count in each.place), each.job_id)):
        for row, count in job.place:
            if row in room:
                room[row] += count
    for job in sorted(displaced, key=lambda each: (-sum(count for _, count in each.place), each.job_id)):
        form = form_of(cycle, job)
        place: dict[int, int] = {}
        for part in split(form.counts[pool], form.nodes, size):
            fitting = [row for row, free in room.items() if free >= part and row not in place]
            if not fitting:
                break
            place[min(fitting, key=lambda row: (room[row], row))] = part
        else:
            for row, part in place.items():
                room[row] -= part
            continue
        left.append(job)
    return left
