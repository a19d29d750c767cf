"""May this job be there? The one rule: checkers of a machine, and the limits of a pool, each naming what it holds.

Every search asks `may_hold` of a pool, and `may_place` of a machine before it counts what is free there, or gives
`closed_to` to the index of free places (`Fleet.find`), which skips the same machines. `obstacles` says what keeps a
waiting job from what is free in a pool; explanations and dry runs read it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum, StrEnum

from scheduler.core.state.fleet import FleetMachine, MachineCondition, is_enough
from scheduler.core.state.job_classes import ResourceShape
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from walras.job_request import can_prepare


class Obstacle(StrEnum):
    """What keeps a job off a machine, as the rest of a sentence after the machine's name."""

    AWAY = "takes no jobs"
    NOT_BOOKED = "is not booked now"
    TOOLS = "lacks tools that it needs"
    BOOKED = "is booked"
    FAILED = "is where it failed"
    KEPT = "is kept for a job for which others leave"
    PRIVATE = "is private: a job there could not leave again"
    RESERVED = "is reserved for another job"
    PROMISED = "is reserved for a gang"
    RESOURCES = "has too few processors or too little memory free"


class PlaceOf(Enum):
    """Which accelerators of a machine a job would have, each with what keeps it from them, in the order asked."""

    #: What is free.
    FREE = (Obstacle.AWAY, Obstacle.TOOLS, Obstacle.BOOKED, Obstacle.FAILED, Obstacle.RESERVED)
    #: What jobs that are asked to leave will free.
    FREED = (Obstacle.AWAY, Obstacle.TOOLS, Obstacle.BOOKED, Obstacle.FAILED, Obstacle.PROMISED)
    #: What a reservation holds there and lends.
    LENT = (Obstacle.AWAY, Obstacle.TOOLS, Obstacle.BOOKED, Obstacle.FAILED)
    #: An accelerator that another job holds too.
    SHARED = (
        *(Obstacle.AWAY, Obstacle.KEPT, Obstacle.PRIVATE),
        *(Obstacle.TOOLS, Obstacle.BOOKED, Obstacle.FAILED, Obstacle.RESERVED),
    )
    #: What is free in a window that its project has booked.
    BOOKED = (Obstacle.NOT_BOOKED, Obstacle.KEPT, Obstacle.TOOLS, Obstacle.BOOKED, Obstacle.FAILED)


def may_place(cycle: Cycle, job: JobRecord, machine: FleetMachine, place: PlaceOf = PlaceOf.FREE) -> Obstacle | None:
    """Returns what keeps the job from such a place on the machine now; None if nothing does."""
    obstacles: tuple[Obstacle, ...] = place.value
    for obstacle in obstacles:
        if _KEEPS_OFF[obstacle](cycle, job, machine):
            return obstacle
    return None


def may_hold(cycle: Cycle, job: JobRecord, pool: int, count: int, leaving: Sequence[JobRecord] = ()) -> bool:
    """Returns whether limits let the job hold so many accelerators of the pool, once these jobs have left."""
    return not cycle.limits.are_asked or count <= cycle.limits.room(job, pool, leaving)


def obstacles(cycle: Cycle, job: JobRecord, pool: int, shape: ResourceShape) -> Counter[tuple[Obstacle, str]]:
    """Returns what keeps the job from machines of the pool with enough free for a part of it, and from how much."""
    found: Counter[tuple[Obstacle, str]] = Counter()
    part = min(cycle.ledger.fleet.gang_parts(pool, shape), default=1)
    for machine in cycle.ledger.fleet.pools[pool].members.values():
        if machine.condition is not MachineCondition.UP or len(machine.free) < part:
            continue
        obstacle = may_place(cycle, job, machine)
        if obstacle is None and not is_enough(machine.free_cpus, machine.free_memory_bytes, part, shape):
            obstacle = Obstacle.RESOURCES
        if obstacle is not None:
            found[obstacle, machine.node_id] += len(machine.free)
    return found


def _is_reserved(cycle: Cycle, job: JobRecord, machine: FleetMachine) -> bool:
    return any(job_id != job.job_id for job_id in cycle.reserved_on.get(machine.row, ()))


def _is_promised(cycle: Cycle, job: JobRecord, machine: FleetMachine) -> bool:
    """Returns whether a backfill reservation of another takes all that becomes free."""
    others = (job_id for job_id in cycle.reserved_on.get(machine.row, ()) if job_id != job.job_id)
    return any(not cycle.reservations[job_id].preempting for job_id in others)


def _failed_there(cycle: Cycle, job: JobRecord, machine: FleetMachine) -> bool:
    return job.job_id in cycle.ledger.retries.failed and machine.row in cycle.avoided(job, machine.pool)


_KEEPS_OFF: dict[Obstacle, Callable[[Cycle, JobRecord, FleetMachine], bool]] = {
    Obstacle.AWAY: lambda cycle, job, machine: machine.condition is not MachineCondition.UP,
    Obstacle.NOT_BOOKED: lambda cycle, job, machine: machine.condition is not MachineCondition.BOOKED,
    Obstacle.TOOLS: lambda cycle, job, machine: not can_prepare(machine.tools, job.request.tools),
    Obstacle.BOOKED: lambda cycle, job, machine: machine.row in cycle.booked_to(job, machine.pool),
    Obstacle.FAILED: _failed_there,
    Obstacle.KEPT: lambda cycle, job, machine: machine.closed,
    Obstacle.PRIVATE: lambda cycle, job, machine: machine.is_private,
    Obstacle.RESERVED: _is_reserved,
    Obstacle.PROMISED: _is_promised,
}
