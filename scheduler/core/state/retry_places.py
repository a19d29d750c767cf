"""Machines on which a job failed: its next attempts prefer others, then wait for others, then never use these.

For each waiting job, counts by machine the consecutive attempts that failed there, by the job's own fault as it counts
against its retries, or by the machine's. A checkpoint recorded there, and the job's end, clear the count.

    after one failure      the machine is closed to the job until the end of the delay, then others are preferred
    after two and more     it is closed to the job

Machines are closed only while enough other machines of a pool that the job may use are up and large enough to hold the
gang, busy or not. So no job waits for machines that do not exist.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.core.state.fleet import Fleet, FleetMachine, MachineCondition
from scheduler.core.state.job_classes import ResourceShape
from walras.cluster import NodeId
from walras.job_request import JobId, can_prepare

#: Consecutive failures on one machine after which it is closed to the job without an end.
INSISTS_AFTER = 2
#: Maximum of machines kept per job, the newest ones.
_MACHINES_MAX = 16
_NOWHERE: frozenset[int] = frozenset()
#: Job, and its (machine, consecutive failures there, when the delay for it ends).
RememberedFailures = tuple[JobId, tuple[tuple[NodeId, int, float], ...]]


@dataclass(slots=True)
class RetryPlaces:
    """Where jobs failed. Callers check `failed` first, because few jobs fail."""

    #: By job and machine: consecutive failures, and when the delay ends.
    failed: dict[JobId, dict[NodeId, tuple[int, float]]] = field(default_factory=dict)
    #: (job, pool) pairs: the job would have a place there if no machine was closed to it.
    waiting: set[tuple[JobId, int]] = field(default_factory=set)

    def blame(self, job_id: JobId, node_id: NodeId, until_at: float) -> None:
        """Records a failure of the job on the machine, closed until `until_at` if it was the first there."""
        machines = self.failed.setdefault(job_id, {})
        times, _ = machines.pop(node_id, (0, 0.0))
        machines[node_id] = (times + 1, until_at)
        if len(machines) > _MACHINES_MAX:
            del machines[next(iter(machines))]

    def clear(self, job_id: JobId, node_ids: Iterable[NodeId]) -> None:
        """Clears failures on machines on which the job works now."""
        machines = self.failed.get(job_id)
        if machines is None:
            return
        for node_id in node_ids:
            machines.pop(node_id, None)
        if not machines:
            self.forget(job_id)

    def forget(self, job_id: JobId) -> None:
        """Drops the records of a job that has ended."""
        self.failed.pop(job_id, None)

    def remembered(self, job_ids: Iterable[JobId]) -> Iterator[RememberedFailures]:
        """Yields what a restarted core should know of these jobs."""
        for job_id in job_ids:
            machines = self.failed.get(job_id)
            if machines:
                yield job_id, tuple((node_id, *known) for node_id, known in machines.items())

    def recall(self, told: Iterable[RememberedFailures]) -> None:
        """Restores what a former core knew."""
        for job_id, machines in told:
            self.failed[job_id] = {node_id: (times, until_at) for node_id, times, until_at in machines}

    def rows(self, job_id: JobId, fleet: Fleet, pool: int) -> frozenset[int]:
        """Returns the rows of the pool's machines on which the job failed."""
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
        """Returns the rows of machines of all pools that are closed to the job now; empty if no others could hold it.

        `usable(pool)` returns the rows that are booked for others; None where the job may hold no gang at all.
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
    """Returns whether enough machines of the pool besides these are up and large enough for a gang of this shape."""
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
