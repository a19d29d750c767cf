"""Co-location of two jobs on one accelerator: which jobs share, when a pair is separated, when one moves out.

Only jobs that agreed (`JobRequest.shared`), take one accelerator and have no deadline are considered, and only if no
free place is left for them. A waiting job becomes the guest of the running one with the largest gain, if both end
sooner together than one after the other by a margin: the sum of the fractions of their speeds that they keep
(`pair_gain`) is at least `GAIN_LEAST`, and their memory fits the device. No other job loses a place by it. A pair whose
measured sum is below `GAIN_KEPT` is separated: the guest is asked to save its work and leave, and the measurement keeps
such jobs apart from then on. A guest moves to a free place that no job waits for, if that saves more than its restart
costs. Both wait for the end of the guest's protected time (`protected_s`).

A policy's shares and plans do not model pairs: each of the two counts as holding the accelerator, and has the speed of
its kind beside the other.
"""

from collections.abc import Iterable
from itertools import islice
from math import inf

from scheduler.core.placement.attempt_lifecycle import ask_to_leave, start_attempt
from scheduler.core.placement.preemption import take_place
from scheduler.core.placement.search import FoundPlace, find_free_place
from scheduler.core.placement.where import PlaceOf, may_hold, may_place
from scheduler.core.state.fleet import FleetMachine, is_enough
from scheduler.core.state.job_queues import QueueKey
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import UNKNOWN_LENGTH_S
from scheduler.core.state.shared_accelerators import pair_gain
from scheduler.core.state.stopping import StopFor, may_be_stopped
from scheduler.core.state.working_set import Cycle
from walras.job_request import JobRequest
from walras.states import JobState, Reason

#: Minimum sum of the speed fractions that two jobs must be expected to keep, and the measured sum below which a pair is
#: separated. On a device that only time-slices the sum is about 1, and the host is slowed for nothing.
GAIN_LEAST, GAIN_KEPT = 1.1, 1.05
#: Maximum of waiting jobs considered, most urgent first, and of running jobs compared for each.
GUESTS_MAX, HOSTS_MAX = 64, 256


def settle_sharing(cycle: Cycle) -> None:
    """Separates pairs that lose, starts waiting jobs beside running ones, and moves guests to free places.

    Called after everything else of a round, when something changed, and at round ends.
    """
    sharing = cycle.sharing
    is_over = sharing.protected_until <= cycle.now
    if not (sharing.is_due or cycle.due.compares or is_over):
        return
    sharing.is_due, sharing.protected_until = False, inf if is_over else sharing.protected_until
    _separate_losing_pairs(cycle)
    _place_guests(cycle)
    _move_guests_out(cycle)


def may_share(request: JobRequest) -> bool:
    """Returns whether a job may ever be one of a pair."""
    takes_one = all(demand.count == 1 for demand in request.demands) and not request.sizes and not request.spreads
    return request.shared is not None and takes_one and request.nodes == 1 and request.deadline_at == inf


# ------------------------------------------------------------------------------------------------ together


def _place_guests(cycle: Cycle) -> None:
    """Starts waiting jobs beside running ones, the most urgent first."""
    hosts = _hosts(cycle)
    for guest in _guests(cycle) if hosts else ():
        found = _best_host(cycle, guest, hosts)
        if found is None:
            continue
        host, machine = found
        pool = cycle.ledger.fleet.pools[machine.pool].pool
        start_attempt(cycle, guest, machine.pool, host.place, beside=host)
        cycle.sharing.pair(host, guest, pool.shape.accelerator)
        cycle.solves.problem_changed = True
        hosts.remove(found)


def _guests(cycle: Cycle) -> list[JobRecord]:
    """Returns the jobs that could be guests, most urgent first; under a strict order only the head of the queue."""
    jobs = cycle.ledger.jobs
    found = [job for job in map(jobs.__getitem__, cycle.sharing.willing) if _waits_for_place(cycle, job)]
    found = [job for job in found if may_share(job.request)]
    found = [job for job in found if may_be_stopped(cycle.ledger, job, StopFor.LENDER) is None]
    if found and cycle.ordering.strict:
        first = min((job for job in jobs.values() if _waits_for_place(cycle, job)), key=lambda job: _rank(cycle, job))
        return [job for job in found if job is first]
    return sorted(found, key=lambda job: _rank(cycle, job))[:GUESTS_MAX]


def _waits_for_place(cycle: Cycle, job: JobRecord) -> bool:
    is_free = job.job_id not in cycle.reservations and job.job_id not in cycle.limits.parked
    return job.waits and job.ready_at <= cycle.now and is_free


def _rank(cycle: Cycle, job: JobRecord) -> tuple[QueueKey, int]:
    """Returns the job's key in the queue where it is most urgent; a job in no queue (a plan left it out) comes last."""
    keys = [key for _, key in cycle.ordering.keys(job)]
    return min(keys, default=(inf,)), job.job_id


def _hosts(cycle: Cycle) -> list[tuple[JobRecord, FleetMachine]]:
    """Returns the running jobs that another could be put beside, with their machines."""
    ledger, found = cycle.ledger, list[tuple[JobRecord, FleetMachine]]()
    lent = {job_id for each in cycle.reservations.values() for job_id in each.lent}
    for job_id in cycle.sharing.holding:
        job = ledger.jobs[job_id]
        if job.state is not JobState.RUNNING or job.revoked is not None or job_id in cycle.sharing.pairs:
            continue
        if job.is_secured or job_id in lent or not may_share(job.request) or ledger.kind_of(job) != job.request.kind:
            continue
        machine = ledger.fleet.machines[job.place[0][0]]
        if machine is not None:
            found.append((job, machine))
    return found


def _best_host(
    cycle: Cycle, guest: JobRecord, hosts: Iterable[tuple[JobRecord, FleetMachine]]
) -> tuple[JobRecord, FleetMachine] | None:
    """Returns the running job with the largest gain, and its machine; None if no gain is large enough."""
    ledger, best, most = cycle.ledger, None, 0.0
    shape, known = cycle.ledger.shape_of(guest), dict[tuple[str, str, float], float | None]()
    for host, machine in islice(hosts, HOSTS_MAX):
        device = ledger.fleet.pools[machine.pool].pool.shape
        if shape.counts[machine.pool] != 1 or not may_hold(cycle, guest, machine.pool, 1):
            continue
        assert guest.request.shared is not None, f"job {guest.job_id} did not agree to share"
        assert host.request.shared is not None, f"job {host.job_id} did not agree to share"
        if guest.request.shared.memory_bytes + host.request.shared.memory_bytes > device.accelerator_memory_bytes:
            continue
        has_room = is_enough(machine.free_cpus, machine.free_memory_bytes, 1, shape)
        if not has_room or may_place(cycle, guest, machine, PlaceOf.SHARED) is not None:
            continue
        key = device.accelerator, str(host.request.kind), host.request.shared.busy or 0.0
        if key not in known:
            known[key] = pair_gain(ledger, device.accelerator, guest, host)
        gain = known[key]
        if gain is not None and gain >= GAIN_LEAST and gain > most:
            best, most = (host, machine), gain
    return best


# ------------------------------------------------------------------------------------------------ apart


def _separate_losing_pairs(cycle: Cycle) -> None:
    """Asks guests to leave whose pair was measured to be hardly faster together than one after the other."""
    for job_id, pair in cycle.sharing.pairs.items():
        if job_id != pair.guest or pair.measured != {pair.host, pair.guest}:
            continue
        host, guest = cycle.ledger.jobs[pair.host], cycle.ledger.jobs[pair.guest]
        gain = pair_gain(cycle.ledger, pair.accelerator, guest, host)
        if gain is not None and gain < GAIN_KEPT and _may_be_asked(cycle, guest) and host.revoked is None:
            detail = f"shared an accelerator with job {pair.host}: together they ran at {gain:.2f} of one's speed"
            ask_to_leave(cycle, guest, StopFor.PLACE, Reason.POLICY_MOVED, detail=detail)


def _may_be_asked(cycle: Cycle, guest: JobRecord) -> bool:
    protected_s = cycle.policy.rules.protected_s
    until = guest.protected_from + protected_s
    if protected_s > 0 and cycle.now < until:
        if until < cycle.sharing.protected_until:
            cycle.sharing.protected_until = until
            cycle.timers.set(until, "protection")  # only wakes the core
        return False
    return not (may_be_stopped(cycle.ledger, guest, StopFor.PLACE) or may_be_stopped(cycle.ledger, guest, StopFor.TURN))


def _move_guests_out(cycle: Cycle) -> None:
    """Asks guests to leave for free places that no job waits for, if that saves more than their restart costs."""
    ledger, left = cycle.ledger, dict[int, int]()
    for job_id, pair in cycle.sharing.pairs.items():
        guest = ledger.jobs[pair.guest]
        if job_id != pair.guest or not _may_be_asked(cycle, guest):
            continue
        here, rate = int(ledger.columns.pool[guest.slot]), ledger.rate_of(guest)
        for pool, state in enumerate(ledger.fleet.pools):
            alone = ledger.table.measured(guest.request.kind, state.pool.shape.accelerator, 1)
            if alone is None or left.get(pool, state.free) < 1:
                continue
            if state.rented and pool != here:
                continue  # the policy decides whether it is worth another price
            if cycle.policy.plans and not cycle.ordering.is_entitled(guest, pool):
                continue  # nothing is given there to a job that the plan leaves out
            if _saved_s(guest, rate, alone) <= ledger.restart_s(guest, cycle.policy.rules):
                continue
            place = find_free_place(cycle, guest, pool)
            if place is None:
                continue
            left[pool] = left.get(pool, state.free) - 1
            detail = f"has an accelerator of {state.pool.pool_id} alone, which it shared with job {pair.host}"
            take_place(cycle, guest, FoundPlace(pool, place), "", move_detail=detail)
            break


def _saved_s(guest: JobRecord, rate: float, alone: float) -> float:
    """Returns the seconds by which the guest would end sooner alone; for an hour of work if its length is unknown."""
    if rate <= 0 or alone <= 0:
        return 0.0
    left = UNKNOWN_LENGTH_S * alone if guest.request.steps is None else max(0.0, guest.request.steps - guest.steps)
    return left / rate - left / alone
