"""Invariants of the core's state, recomputed from scratch, for tests and simulations.

Time grows with the whole state.
"""

from collections import Counter

from scheduler.core.core import SchedulerCore
from scheduler.core.state.fleet import MachineCondition
from walras.states import JobState


def check_invariants(core: SchedulerCore) -> None:
    """Raises AssertionError with the broken rule."""
    _check_machines(core)
    _check_pools(core)
    _check_jobs(core)
    _check_shared_accelerators(core)
    _check_reservations(core)


def _check_machines(core: SchedulerCore) -> None:
    """Checks that no accelerator is lost or held twice except by a pair; processors and memory add up."""
    ledger = core.ledger
    for machine in ledger.fleet.machines:
        if machine is None:
            continue
        held = [device for devices in set(machine.holders.values()) for device in devices]
        everything = sorted([*held, *machine.free])
        assert everything == list(range(machine.size)), f"{machine.node_id}: {machine.holders} + free {machine.free}"
        shape = ledger.fleet.pools[machine.pool].pool.shape
        cpus, memory = shape.cpus, shape.memory_bytes
        for job_id, devices in machine.holders.items():
            taken = ledger.classes.shapes[ledger.class_of(ledger.jobs[job_id]).shape]
            cpus -= taken.cpus * len(devices)
            memory -= taken.memory_bytes * len(devices)
        assert abs(cpus - machine.free_cpus) < 1e-6, f"{machine.node_id}: cpus {machine.free_cpus}, should be {cpus}"
        assert memory == machine.free_memory_bytes, f"{machine.node_id}: memory {machine.free_memory_bytes}"
        assert machine.free_cpus > -1e-6, f"{machine.node_id}: processors promised twice"
        assert machine.free_memory_bytes >= 0, f"{machine.node_id}: memory promised twice"
        for devices, many in Counter(machine.holders.values()).items():
            assert many == 1 + (devices in machine.shared), f"{machine.node_id}: {many} jobs hold {devices}"


def _check_pools(core: SchedulerCore) -> None:
    """Checks that a pool's counters are the sums over its machines."""
    for state in core.ledger.fleet.pools:
        machines = [m for m in core.ledger.fleet.machines if m is not None and m.pool == state.row]
        up = [m for m in machines if m.condition is MachineCondition.UP]
        takes_jobs = (MachineCondition.UP, MachineCondition.BOOKED)
        assert not any(m.is_silent and m.condition in takes_jobs for m in machines), "a silent machine takes jobs"
        assert state.machines == len(machines), state.pool.pool_id
        assert state.capacity == sum(m.size for m in up), state.pool.pool_id
        assert state.free == sum(len(m.free) for m in up), state.pool.pool_id
        told = [m.counted_tools for m in machines if m.counted_tools is not None]
        assert state.tools.counts == Counter(told), state.pool.pool_id
    problem = core.ledger.fleet.caches.problem((m.row, m.data) for m in core.ledger.fleet.machines if m)
    assert not problem, problem


def _check_jobs(core: SchedulerCore) -> None:
    """Checks that state, place and columns of a job agree, and that gangs are whole."""
    ledger, columns = core.ledger, core.ledger.columns
    slots = Counter(job.slot for job in ledger)
    assert all(count == 1 for count in slots.values()), "two jobs share a slot"
    assert int(columns.active.sum()) == len(ledger.jobs), "active rows and jobs differ"
    for job in ledger:
        assert not job.state.is_final, f"job {job.job_id} ended and is still here"
        assert job.holds == job.state.holds_accelerators, f"job {job.job_id}: {job.state} and place {job.place}"
        assert job.holds == (columns.pool[job.slot] >= 0), f"job {job.job_id}: pool column"
        assert job.safe_steps <= job.steps + 1e-9, f"job {job.job_id}: checkpoint ahead of its steps"
        if job.holds:
            shape = ledger.classes.shapes[ledger.classes.classes[int(columns.runs_as[job.slot])].shape]
            assert sum(count for _, count in job.place) == shape.counts[int(columns.pool[job.slot])], "a gang in part"
            for row, count in job.place:
                machine = ledger.fleet.machines[row]
                if machine is not None:
                    assert len(machine.holders[job.job_id]) == count, f"job {job.job_id} on {machine.node_id}"
                    pools = {pool for pool, _ in ledger.parts_of(job)}
                    assert machine.pool in pools, f"job {job.job_id} on {machine.node_id}: counted to {pools}"


def _check_shared_accelerators(core: SchedulerCore) -> None:
    """Checks that jobs that share an accelerator agreed to it, hold the same one, and fit its memory together."""
    ledger, sharing = core.ledger, core.cycle.sharing
    assert set(sharing.willing) == {job.job_id for job in ledger if job.request.shared is not None}
    for pair in {id(each): each for each in sharing.pairs.values()}.values():
        host, guest = ledger.jobs[pair.host], ledger.jobs[pair.guest]
        assert sharing.partner_of(pair.host) is guest, f"{pair}"
        assert sharing.partner_of(pair.guest) is host, f"{pair}"
        assert host.placement == guest.placement, f"jobs {pair.host} and {pair.guest} are a pair on {host.placement}"
        assert host.place == guest.place, f"{pair}: {host.place}, {guest.place}"
        ((row, count),) = host.place
        machine = ledger.fleet.machines[row]
        assert machine is not None, f"{pair} on a machine that is gone"
        assert count == 1, f"{pair} shares {count} accelerators"
        assert machine.holders[pair.host] in machine.shared, f"{machine.node_id} does not know {pair}"
        both = (host.request.shared, guest.request.shared)
        memory = ledger.fleet.pools[machine.pool].pool.shape.accelerator_memory_bytes
        assert sum(each.memory_bytes for each in both if each is not None) <= memory, f"{pair}: over {memory} bytes"


def _check_reservations(core: SchedulerCore) -> None:
    """Checks that a reservation holds what it states on its machines, and counts correctly what is missing."""
    cycle, ledger = core.cycle, core.ledger
    for reservation in cycle.reservations.values():
        job = ledger.jobs[reservation.job_id]
        assert job.state is not JobState.HELD, f"job {job.job_id} is held and claims a place"
        for borrower, row in reservation.lent.items():
            assert borrower in ledger.jobs, f"job {job.job_id} lends to {borrower}, which ended"
            assert row in dict(ledger.jobs[borrower].place), f"job {job.job_id} lends to {borrower}, which left"
        for row, wanted in reservation.wanted.items():
            machine = ledger.fleet.machines[row]
            assert machine is not None, f"claim of job {job.job_id} on a machine that is gone"
            runs_there = any(row == own for own, _ in job.place)
            held = 0 if runs_there else len(machine.holders.get(reservation.job_id, ()))
            assert held == wanted - reservation.needs[row], f"claim of job {job.job_id} on {machine.node_id}"
            assert reservation.job_id in cycle.reserved_on[row], (
                f"claim of job {job.job_id} not filed on {machine.node_id}"
            )
    for machine in filter(None, ledger.fleet.machines):
        reservations = [cycle.reservations[job_id] for job_id in cycle.reserved_on.get(machine.row, ())]
        incomplete = any(reservation.preempting and reservation.needs[machine.row] > 0 for reservation in reservations)
        assert machine.closed == incomplete, f"{machine.node_id}: closed to others {machine.closed}, {reservations}"
