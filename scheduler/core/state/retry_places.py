"""Machines on which a job failed: its next attempts prefer others, wait a while for one, and in the end insist on it.

Of each waiting job, by machine, how often in a row an attempt failed there: by the job's own fault as it counts against
its retries, or by the machine's. A checkpoint that is recorded there, and the job's end, clear it.

    after one failure      the machine is closed to the job until the end of the delay, then others are preferred
    after two and more     it is closed to the job

Neither closes the last place: only while enough other machines of a pool that the job may use are up and large enough
to hold the gang, busy or not, is anything closed. So no job waits for machines that are not there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.core.state.fleet import Fleet, FleetMachine, MachineCondition
from scheduler.core.state.job_classes import ResourceShape
from walras.cluster import NodeId
from walras.job_request import JobId, can_prepare

#: Failures in a row on one machine, after which it is closed to the job for good.
INSISTS_AFTER = 2
#: Machines remembered of a job, the last ones.
_MACHINES_MAX = 16
_NOWHERE: frozenset[int] = frozenset()
#: Of a job: (machine, failures there in a row, when the delay for it ends).
RememberedFailures = tuple[JobId, tuple[tuple[NodeId, int, float], ...]]


@dataclass(slots=True)
class RetryPlaces:
    """Where jobs failed. Ask it where some did (`failed`)."""

    #: By job and machine: failures in a row, and when the delay ends.
    failed: dict[JobId, dict[NodeId, tuple[int, float]]] = field(default_factory=dict)
    #: (job, pool): it would have a place there, were nothing closed for its failures.
    waiting: set[tuple[JobId, int]] = field(default_factory=set)

    def blame(self, job_id: JobId, node_id: NodeId, until_at: float) -> None:
        """The job failed on the machine. `until_at`: when it may start there again if that was the first time."""
        machines = self.failed.setdefault(job_id, {})
        times, _ = machines.pop(node_id, (0, 0.0))
        machines[node_id] = (times + 1, until_at)
        if len(machines) > _MACHINES_MAX:
            del machines[next(iter(machines))]

    def clear(self, job_id: JobId, node_ids: Iterable[NodeId]) -> None:
        """The job does well on these machines."""
        machines = self.failed.get(job_id)
        if machines is None:
            return
        for node_id in node_ids:
            machines.pop(node_id, None)
        if not machines:
            self.forget(job_id)

    def forget(self, job_id: JobId) -> None:
        """The job has ended."""
        self.failed.pop(job_id, None)

    def remembered(self, job_ids: Iterable[JobId]) -> Iterator[RememberedFailures]:
        """What a successor should know of these jobs."""
        for job_id in job_ids:
            machines = self.failed.get(job_id)
            if machines:
                yield job_id, tuple((node_id, *known) for node_id, known in machines.items())

    def recall(self, told: Iterable[RememberedFailures]) -> None:
        """Take in what a former core knew."""
        for job_id, machines in told:
            self.failed[job_id] = {node_id: (times, until_at) for node_id, times, until_at in machines}

    def rows(self, job_id: JobId, fleet: Fleet, pool: int) -> frozenset[int]:
        """Return the rows of the pool's machines on which the job failed."""
        found = (fleet.machine(node_id) for node_id in self.failed.get(job_id, ()))
        return frozenset(machine.row for machine in found if machine is not None and machine.pool == pool)

    def closed(
        self,
        job_id: JobId,
        fleet: Fleet,
        shape: ResourceShape,
        now: float,
        usable: Callable[[int], frozenset[int] | None],
    ) -> frozenset[int]:
        """Return the rows of machines of all pools that are closed to the job now; none if only they could hold it.

        `usable`: of a pool, the rows that are booked for others; None where the job may hold no gang at all.
        """
        closed = {
            machine.row
            for node_id, (times, until_at) in self.failed[job_id].items()
            if (times >= INSISTS_AFTER or now < until_at) and (machine := fleet.machine(node_id)) is not None
        }
        if not closed:
            return _NOWHERE
        for pool, count in enumerate(shape.counts):
            booked = usable(pool) if count else None
            if booked is not None and has_others(fleet, pool, shape, closed | booked):
                return frozenset(closed)
        return _NOWHERE


def has_others(fleet: Fleet, pool: int, shape: ResourceShape, closed: set[int] | frozenset[int]) -> bool:
    """Whether enough machines of the pool besides these are up, and large enough for a gang of this shape."""
    parts = fleet.gang_parts(pool, shape)
    able = 0
    for machine in fleet.pools[pool].members.values():
        able += machine.row not in closed and _may_hold(machine, parts, shape)
        if able >= len(parts):
            return True
    return False


def _may_hold(machine: FleetMachine, parts: Sequence[int], shape: ResourceShape) -> bool:
    is_open = machine.condition is MachineCondition.UP and not machine.closed
    return is_open and machine.size >= parts[0] and can_prepare(machine.tools, shape.tools)
