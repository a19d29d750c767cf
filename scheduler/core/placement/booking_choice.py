"""Which machines a booking gets, whether it can be honoured, and which jobs are in its way; used before booking.

Only machines of owned pools can be booked: rented ones come and go with their price. A machine is open to a booking if
nothing else is booked on it in that period and all jobs that run there will be gone when it begins: they end, or may be
stopped. A job that may be stopped loses at most its unsaved work. Among open machines those come first on which no job
loses work, then those that are empty soonest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.core.booking_events import Booking
from scheduler.core.state.bookings import STAYING, leaves_without_loss, notice_s, sure_end_at
from scheduler.core.state.fleet import FleetMachine, PoolState
from scheduler.core.state.ledger import Ledger
from walras.cluster import NodeId
from walras.job_request import JobId
from walras.spec.accelerator_names import covers

#: Number of jobs that are named.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class MachineOutlook:
    """State of one machine for a booking."""

    node_id: NodeId
    accelerators: int
    #: Jobs running there that the booking excludes.
    others: tuple[JobId, ...]
    #: Those of them that will still be there when it begins and may not be stopped.
    blocking: tuple[JobId, ...]
    #: Those of them that would lose work by being stopped.
    losing: tuple[JobId, ...]
    #: When they are gone at the latest; inf: unknown.
    empty_at: float
    #: Another booking of the machine that overlaps in time; None: there is none.
    booked: Booking | None = None

    @property
    def is_open(self) -> bool:
        """Returns whether the booking could be honoured on the machine."""
        return self.booked is None and not self.blocking


@dataclass(frozen=True, slots=True)
class BookingOutlook:
    """What becomes of a booking in the present state."""

    booking: Booking
    machines: tuple[MachineOutlook, ...]
    #: Its machines that are not in the fleet, or take no jobs.
    away: tuple[NodeId, ...]

    @property
    def accelerators(self) -> int:
        """Returns the accelerators on its machines that are present."""
        return sum(each.accelerators for each in self.machines)

    @property
    def ready_at(self) -> float:
        """Returns when the last of its machines is free of other jobs."""
        return max((each.empty_at for each in self.machines), default=self.booking.from_at)


def machine_outlook(
    ledger: Ledger, bookings: Iterable[Booking], wanted: Booking, machine: FleetMachine
) -> MachineOutlook:
    """Returns which jobs must leave the machine for the `wanted` booking, and whether they do.

    `bookings`: all others.
    """
    from_at = max(wanted.from_at, ledger.now)
    jobs = [ledger.jobs[job_id] for job_id in machine.holders]
    others = [job for job in jobs if job.holds and not wanted.is_open_to(job.request.project)]
    blocking, losing, empty_at = [], [], from_at
    for job in others:
        ends_at = sure_end_at(ledger, job)
        if ends_at <= from_at:
            continue
        if not job.request.preemptible:
            blocking.append(job.job_id)
            empty_at = max(empty_at, ends_at)
            continue
        empty_at = max(empty_at, ledger.now + notice_s(job))
        if not leaves_without_loss(ledger, job):
            losing.append(job.job_id)
    overlapping = (each for each in bookings if machine.node_id in each.node_ids)
    booked = next((each for each in overlapping if each.overlaps(wanted.from_at, wanted.until_at)), None)
    ids = tuple(job.job_id for job in others)
    return MachineOutlook(machine.node_id, machine.size, ids, tuple(blocking), tuple(losing), empty_at, booked)


def best_machines(ledger: Ledger, bookings: Sequence[Booking], wanted: Booking) -> list[MachineOutlook]:
    """Returns machines of the wanted type that the booking does not have yet, the best first."""
    found = []
    for state in ledger.fleet.pools:
        if state.rented or state.pool.removed or not covers(wanted.accelerator, state.pool.shape.accelerator):
            continue
        for machine in state.members.values():
            if machine.condition in STAYING and machine.node_id not in wanted.node_ids:
                outlook = machine_outlook(ledger, bookings, wanted, machine)
                found.append((_rank(ledger, outlook, machine), outlook))
    return [outlook for _, outlook in sorted(found, key=lambda each: each[0])]


def _rank(ledger: Ledger, outlook: MachineOutlook, machine: FleetMachine) -> tuple[float, ...]:
    held = sum(len(machine.holders[job_id]) for job_id in outlook.others)
    return not outlook.is_open, len(outlook.losing), outlook.empty_at, held, machine.row


def choose_machines(ledger: Ledger, bookings: Sequence[Booking], wanted: Booking) -> tuple[tuple[NodeId, ...], str]:
    """Chooses whole machines for `wanted.accelerators` of a type. Returns them, or none and why, with numbers."""
    chosen: list[NodeId] = []
    candidates, missing = best_machines(ledger, bookings, wanted), wanted.accelerators
    for each in candidates:
        if missing > 0 and each.is_open:
            chosen.append(each.node_id)
            missing -= each.accelerators
    if missing <= 0:
        return tuple(chosen), ""
    there = sum(each.accelerators for each in candidates)
    can_be_had = sum(each.accelerators for each in candidates if each.is_open)
    parts = [f"{can_be_had} of {there} {wanted.accelerator} on owned machines can be had for that time"]
    return (), "; ".join([*parts, *_obstacles(candidates)])


def check_machines(ledger: Ledger, bookings: Sequence[Booking], wanted: Booking, *, is_patient: bool = False) -> str:
    """Returns why exactly these machines cannot be booked, with numbers; empty if they can.

    `is_patient` accepts jobs that may not be stopped: the booking waits for them.
    """
    machines = {node_id: ledger.fleet.machine(node_id) for node_id in wanted.node_ids}
    unknown = [node_id for node_id, machine in machines.items() if machine is None]
    if unknown:
        return f"there is no machine {', '.join(unknown)}"
    here = [machine for machine in machines.values() if machine is not None]
    pools: list[PoolState] = ledger.fleet.pools
    rented = [machine.node_id for machine in here if pools[machine.pool].rented]
    if rented:
        return f"{', '.join(rented)} is rented: it comes and goes with its price"
    outlooks = [machine_outlook(ledger, bookings, wanted, machine) for machine in here]
    return "; ".join(_obstacles([each for each in outlooks if each.booked or (each.blocking and not is_patient)]))


def _obstacles(outlooks: Iterable[MachineOutlook]) -> list[str]:
    """Returns which bookings and jobs keep machines from being booked, with numbers of accelerators."""
    found: dict[str, int] = {}
    for each in outlooks:
        if each.booked is not None:
            words = f"are booked by {each.booked.words}"
        elif each.blocking:
            named = ", ".join(map(str, each.blocking[:_NAMED_MAX]))
            words = f"are on a machine with job {named}, which may not be stopped and is not known to end before"
        else:
            continue
        found[words] = found.get(words, 0) + each.accelerators
    return [f"{count} {words}" for words, count in found.items()][:_NAMED_MAX]


def booking_outlooks(ledger: Ledger, bookings: Sequence[Booking]) -> list[BookingOutlook]:
    """Returns what becomes of each booking in the present state."""
    found = []
    for booking in bookings:
        others = [each for each in bookings if each is not booking]
        machines = [(node_id, ledger.fleet.machine(node_id)) for node_id in booking.node_ids]
        away = [name for name, machine in machines if machine is None or machine.condition not in STAYING]
        here = [machine for name, machine in machines if machine is not None and name not in away]
        outlooks = tuple(machine_outlook(ledger, others, booking, machine) for machine in here)
        found.append(BookingOutlook(booking, outlooks, tuple(away)))
    return found
