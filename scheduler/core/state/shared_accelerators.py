"""Accelerators that two jobs share: which jobs agreed to it, which share now, and how fast pairs of kinds are.

The *host* had the accelerator first, the *guest* was added; when one of them leaves, the other has it alone. While a
job is in a pair, it has the speeds of a kind of its own, `A beside B`: so the throughput table holds what pairs of
kinds reach on each type, measured as every speed is, and the speed of a kind alone stays unchanged.

A job reports its speed as a median over its newest windows of steps. After a change such a median still describes the
old state, so reports count again only once all of their windows are new (`counts_report`).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from scheduler.core.state.fleet import Fleet, FleetMachine, Place
from scheduler.core.state.job_classes import ResourceShape
from scheduler.core.state.ledger import JobRecord, Ledger
from walras.cluster import NodeShare, Placement
from walras.job_request import DeviceShare, JobId, Kind, project_of

#: Maximum of windows in the median of a job's report (`walras.training` keeps as many).
_WINDOWS_KEPT = 60
#: Windows of an attempt in a single state after which its report counts for a pair.
_WINDOWS_LEAST = 10


def beside_kind(kind: Kind, other: Kind) -> Kind:
    """Returns the kind as which a job of `kind` counts while it shares its accelerator with a job of the other."""
    return Kind(f"{kind} beside {other}")


def hold_beside(fleet: Fleet, job_id: JobId, beside: JobId, place: Place, shape: ResourceShape) -> Placement:
    """Lets the job share the accelerators that another job holds on one machine. Returns the placement.

    Processors and main memory are not shared.
    """
    ((row, count),) = place
    machine = fleet.machines[row]
    assert machine is not None
    devices = machine.holders[beside]
    assert len(devices) == count, f"job {job_id} wants {count} accelerators of the {devices} of job {beside}"
    assert devices not in machine.shared, f"{machine.node_id}: {devices} are shared by two jobs already"
    machine.holders[job_id] = devices
    machine.ends_version = -1
    machine.shared.add(devices)
    machine.free_cpus -= count * shape.cpus
    machine.free_memory_bytes -= count * shape.memory_bytes
    return Placement(fleet.pools[machine.pool].pool.pool_id, (NodeShare(machine.node_id, devices),))


def sole_holder(machine: FleetMachine, devices: tuple[int, ...]) -> JobId | None:
    """Returns the one job that holds exactly these accelerators; None if none does, or two do."""
    found = [job_id for job_id, held in machine.holders.items() if held == devices]
    return found[0] if len(found) == 1 else None


def freed_by(machine: FleetMachine, leaving: Collection[JobId]) -> int:
    """Returns the accelerators of the machine that are freed once these jobs have left, beyond those free now.

    An accelerator that two jobs share is free when both have left.
    """
    holders = machine.holders
    if not machine.shared:
        return sum([len(holders[job_id]) for job_id in leaving])
    stay = {held for job_id, held in holders.items() if job_id not in leaving}
    return sum(len(held) for held in {holders[job_id] for job_id in leaving} - stay)


@dataclass(slots=True)
class SharedPair:
    """Two jobs on one accelerator."""

    host: JobId
    guest: JobId
    #: Accelerator type.
    accelerator: str
    #: Whether the guest has made steps.
    has_begun: bool = False
    #: Jobs whose speed beside the other was measured in this pair.
    measured: set[JobId] = field(default_factory=set)


@dataclass(slots=True)
class AcceleratorSharing:
    """Which jobs share accelerators, and whether pairs need to be examined."""

    ledger: Ledger
    #: Active jobs that agreed to share, in order of admission.
    willing: dict[JobId, None] = field(default_factory=dict)
    #: Those of them that hold an accelerator, in order of their starts.
    holding: dict[JobId, None] = field(default_factory=dict)
    #: The pair of each job that is in one.
    pairs: dict[JobId, SharedPair] = field(default_factory=dict)
    #: Whether something changed that may make a new pair, or end one.
    is_due: bool = False
    #: When a guest that could leave is protected no longer; inf: none is kept by that.
    protected_until: float = inf
    #: Of running jobs that agreed: windows of the attempt that are older than its present state; -1: unknown yet.
    _old_windows: dict[JobId, int] = field(default_factory=dict)

    def take_job(self, job: JobRecord) -> None:
        """Notes a new job, if it agreed to share."""
        if job.request.shared is not None:
            self.willing[job.job_id] = None
            self.is_due = True

    def forget(self, job: JobRecord) -> None:
        """Drops a job that has ended."""
        self.willing.pop(job.job_id, None)
        self.is_due = True  # another job may now be the head of the queue
        self._old_windows.pop(job.job_id, None)

    def started(self, job: JobRecord) -> None:
        """Notes that the job holds a place."""
        if job.request.shared is not None:
            self.holding[job.job_id] = None

    def partner_of(self, job_id: JobId) -> JobRecord | None:
        """Returns the job that shares the accelerator of this one; None if it has it alone."""
        pair = self.pairs.get(job_id)
        return None if pair is None else self.ledger.jobs[pair.guest if pair.host == job_id else pair.host]

    def pair(self, host: JobRecord, guest: JobRecord, accelerator: str) -> None:
        """Makes a pair: the guest was given the host's accelerator, so both change to kinds beside each other."""
        pair = SharedPair(host.job_id, guest.job_id, accelerator)
        self.pairs[host.job_id] = self.pairs[guest.job_id] = pair
        self._old_windows[host.job_id], self._old_windows[guest.job_id] = -1, 0
        for job, other in ((host, guest), (guest, host)):
            own, beside = job.request.kind, beside_kind(job.request.kind, other.request.kind)
            alone = self.ledger.table.measured(own, accelerator, 1)
            self.ledger.table.derive(beside, own)
            if alone is not None:
                assert job.request.shared is not None, f"job {job.job_id} did not agree to share"
                assert other.request.shared is not None, f"job {other.job_id} did not agree to share"
                slowed = foreseen_part(job.request.shared, other.request.shared)
                self.ledger.table.guess(beside, accelerator, 1, alone * (1.0 if slowed is None else slowed))
            self.ledger.change_kind(job, beside, guest.leased_at)
            self.ledger.usage.scale(job.request, 0.5, self.ledger.now)

    def part(self, job_id: JobId) -> JobRecord | None:
        """Ends the pair of a job that gave its accelerator back. Returns its partner; None if it had none."""
        self._old_windows.pop(job_id, None)
        self.holding.pop(job_id, None)
        partner = self.partner_of(job_id)
        if partner is None:
            return None
        pair = self.pairs.pop(job_id)
        del self.pairs[partner.job_id]
        # A host whose guest made no step has run alone all the time.
        if pair.has_begun:
            self._old_windows[partner.job_id] = -1
        else:
            self._old_windows.pop(partner.job_id, None)
        self.ledger.usage.scale(partner.request, 2.0, self.ledger.now)
        self.is_due = True
        return partner

    def counts_report(self, job: JobRecord, windows: int) -> bool:
        """Returns whether a speed over so many windows of the job's attempt describes its present state."""
        pair = self.pairs.get(job.job_id)
        if pair is not None and not pair.has_begun:
            pair.has_begun = job.job_id == pair.guest
            return False
        old = self._old_windows.get(job.job_id)
        if old is None:
            return True
        if old < 0:
            self._old_windows[job.job_id] = windows
            return False
        if windows - old < (_WINDOWS_LEAST if not old else _WINDOWS_KEPT):
            return False
        if pair is None:
            del self._old_windows[job.job_id]
        elif job.job_id not in pair.measured:
            pair.measured.add(job.job_id)
            self.is_due = True
        return True

    def is_settled(self, job_id: JobId) -> bool:
        """Returns whether the job's reports describe its present state."""
        return job_id not in self._old_windows


def foreseen_part(own: DeviceShare, other: DeviceShare) -> float | None:
    """Returns the fraction of its speed that a job keeps beside another, if nothing was measured; None if unknown.

    Two jobs that together keep the device busy for at most all of the time do not slow each other down; otherwise they
    share it in proportion to what they need (processor sharing).
    """
    if own.busy is None or other.busy is None:
        return None
    return 1.0 / max(1.0, own.busy + other.busy)


def pair_gain(ledger: Ledger, accelerator: str, one: JobRecord, other: JobRecord) -> float | None:
    """Returns the sum of the fractions of their speeds that two jobs keep on one accelerator; None if unknown.

    Above 1 the two end sooner together than one after the other. Both kinds must have been measured alone on this type.
    Measurements of pairs of their kinds are used first, what the jobs state second. Jobs of two projects gain by
    measurements as the one that keeps less says, twice: no project's reports make a job of another stay.
    """
    assert one.request.shared is not None, f"job {one.job_id} did not agree to share"
    assert other.request.shared is not None, f"job {other.job_id} did not agree to share"
    table, parts = ledger.table, list[float | None]()
    for own, beside in ((one.request.kind, other.request.kind), (other.request.kind, one.request.kind)):
        alone = table.measured(own, accelerator, 1)
        if alone is None:
            return None
        together = table.measured(beside_kind(own, beside), accelerator, 1)
        parts.append(None if together is None else together / alone)
    kept = [part for part in parts if part is not None]
    if len(kept) == len(parts):
        alike = project_of(one.request.kind) == project_of(other.request.kind)
        return sum(kept) if alike else 2.0 * min(kept)
    part = foreseen_part(one.request.shared, other.request.shared)
    return None if part is None else 2.0 * part
