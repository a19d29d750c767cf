"""The round mechanism: reserve, fill, preempt. Policies never preempt; this file does (design 2).

`fill` runs whenever something became free or somebody came, and costs the number of forms in line. `compare` runs once
a round and after each solve, over all active jobs, through arrays.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from scheduler.core.cycle import Claim, Cycle
from scheduler.core.discipline import Incumbents
from scheduler.core.ledger.fleet import Machine, Place, split
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.ledger.lines import Key
from scheduler.core.ledger.remaining import foreseen_ends_on
from scheduler.core.placement.attempts import revoke, start
from scheduler.core.placement.claims import drop_claim, form_of, lend, open_claim, settle_claim
from scheduler.core.placement.room import ANY_ROOM, NO_ROOM, Room, room_on
from scheduler.core.placement.victims import MACHINES_MAX, likely_machines, open_machines, victims_of
from scheduler.core.rules import Backfill
from walras.reasons import Reason
from walras.states import JobState

#: Challengers looked at per pool and round. More would not fit in practice, and this bounds the work.
CHALLENGERS_MAX = 64
#: Incumbents weighed against each challenger, weakest first, and challengers in a row that may fail to displace any.
INCUMBENTS_MAX = 256
FAILURES_MAX = 8
#: Jobs of a form looked at for one that may borrow from a reservation.
BACKFILL_DEPTH = 64

#: The first of a line: its place there, the job, the pool and the form.
_Head = tuple[Key, JobRecord, int, int]


# ------------------------------------------------------------------------------------------------ fill


def fill(cycle: Cycle) -> None:
    """Give free places of the stale pools to the most urgent jobs that fit; keep one place for a gang that does not."""
    assert cycle.discipline is not None
    strict = cycle.discipline.strict or cycle.standing.rules.backfill is Backfill.NONE
    if not (cycle.stale_pools or strict):
        return
    # Under strict order the head of the line may wait for a pool in which nothing changed, and blocks all the same.
    pools = cycle.lines.busy(range(len(cycle.ledger.fleet.pools)) if strict else sorted(cycle.stale_pools))
    cycle.stale_pools.clear()
    if not pools:
        return
    filling = _Filling(pools, strict)
    while True:
        found = _next_in_line(cycle, filling)
        if found is None:
            return
        key, job, pool, form_row = found
        if not strict:
            filling.pass_over(cycle, key, pool)
        place = cycle.ledger.fleet.find(pool, cycle.ledger.classes.forms[form_row]) or _smaller(cycle, job, pool)
        if place is None:
            filling.full.add((pool, form_row))
            if not _reserve_or_lend(cycle, job, pool, filling):
                return
            filling.look_again()
            continue
        pool, place = _preferred(cycle, job, pool, place)
        drop_claim(cycle, job.job_id)  # a reservation it does not need any more
        start(cycle, job, pool, place)
        filling.look_again()


def _smaller(cycle: Cycle, job: JobRecord, pool: int) -> Place | None:
    """A place for the largest smaller gang that an elastic job may run as meanwhile; None if there is none."""
    if not job.request.sizes or cycle.discipline is None or not cycle.discipline.shrinks:
        return None
    classes, most = cycle.ledger.classes, cycle.ledger.count_on(job, pool)
    forms = (classes.forms[classes.classes[row].form] for row in reversed(classes.options(job.class_row)))
    places = (cycle.ledger.fleet.find(pool, form) for form in forms if form.counts[pool] < most)
    return next((place for place in places if place is not None), None)


@dataclass(slots=True)
class _Filling:
    """What one fill has found out."""

    pools: list[int]
    strict: bool
    #: (pool, form) for which there is no place.
    full: set[tuple[int, int]] = field(default_factory=set)
    #: By pool, as long as nothing has started, was lent or was reserved.
    room: dict[int, Room] = field(default_factory=dict)
    #: Pools whose first in line has been served or passed over.
    begun: set[int] = field(default_factory=set)

    def look_again(self) -> None:
        """Something started, was lent or was reserved."""
        self.room.clear()

    def pass_over(self, cycle: Cycle, key: Key, pool: int) -> None:
        """Whoever stands first on a pool, before the job with this key there, has no room: its form is full."""
        if len(self.begun) == len(self.pools):
            return
        for other in self.pools:
            if other in self.begun:
                continue
            is_first = other == pool and self.room[pool] is ANY_ROOM  # all who wait there were looked at
            if not is_first and cycle.ledger.fleet.pools[other].free:
                first = _first_on(cycle, self, other, ANY_ROOM)
                if first is None or (first[0], other) > (key, pool):
                    continue
                if first[0] < key or other != pool:
                    self.full.add((other, first[3]))
            self.begun.add(other)


def _next_in_line(cycle: Cycle, filling: _Filling) -> _Head | None:
    """The most urgent waiting job over these pools and all forms not known to be full, of those that may have room."""
    best: _Head | None = None
    for pool in filling.pools:
        room = filling.room.get(pool)
        if room is None:
            room = filling.room[pool] = ANY_ROOM if filling.strict else room_on(cycle, pool)
        first = _first_on(cycle, filling, pool, room)
        if first is not None and (best is None or first[0] < best[0]):
            best = first
    return best


def _first_on(cycle: Cycle, filling: _Filling, pool: int, room: Room) -> _Head | None:
    """The most urgent waiting job of the pool's lines that may have room and are not known to be full."""
    if room is NO_ROOM:
        return None
    best: _Head | None = None
    elastic = cycle.ledger.classes.elastic_forms
    for form_row, line in cycle.lines.of(pool):
        may_start = room.may_hold(line) or (form_row in elastic and _may_shrink(cycle, pool))
        if not may_start or (pool, form_row) in filling.full:
            continue
        head = cycle.lines.head(pool, form_row, line)
        if head is not None and (best is None or head[0] < best[0]):
            best = *head, pool, form_row
    return best


def _may_shrink(cycle: Cycle, pool: int) -> bool:
    """Whether somebody in a line of elastic jobs could start with a smaller gang."""
    assert cycle.discipline is not None
    return cycle.ledger.fleet.pools[pool].free > 0 and cycle.discipline.shrinks


def _preferred(cycle: Cycle, job: JobRecord, pool: int, place: Place) -> tuple[int, Place]:
    """Under an order, the fastest pool with room; shares have already chosen the pool."""
    assert cycle.discipline is not None
    for other in cycle.discipline.alternatives(job, pool):
        found = cycle.ledger.fleet.find(other, form_of(cycle, job))
        if found is not None:
            return other, found
    return pool, place


def _reserve_or_lend(cycle: Cycle, job: JobRecord, pool: int, filling: _Filling) -> bool:
    """The first in line does not fit. False: nobody behind it may go either."""
    if filling.strict:
        return any(
            cycle.ledger.fleet.find(other, form_of(cycle, job)) is not None
            for other in range(len(cycle.ledger.fleet.pools))
        )
    if cycle.standing.rules.backfill is Backfill.EASY:
        reservation = _reservation(cycle, pool)
        if reservation is None:
            reserve(cycle, job, pool)
        elif _holds(reservation, cycle.ledger.count_on(job, pool)):
            those_in_line = chain((job,), cycle.lines.behind(job, pool, BACKFILL_DEPTH))
            if _lend_to_first(cycle, reservation, those_in_line):
                filling.full.discard((pool, cycle.ledger.class_of(job).form))
                settle_claim(cycle, reservation)
    return True


# ------------------------------------------------------------------------------------------------ reserve


def _reservation(cycle: Cycle, pool: int) -> Claim | None:
    """The pool's reservation, once as many are open as the rules allow."""
    found = cycle.reservations.get(pool)
    return next(iter(found.values())) if found and len(found) >= cycle.standing.rules.max_reservations else None


def _holds(reservation: Claim, count: int) -> bool:
    """Whether a machine of the reservation has so many accelerators to lend."""
    return any(reservation.wanted[row] - need >= count for row, need in reservation.needs.items())


def reserve(cycle: Cycle, job: JobRecord, pool: int) -> None:
    """Keep the place that will be free earliest for a gang that fits nowhere."""
    assert cycle.discipline is not None
    form = form_of(cycle, job)
    if form.counts[pool] < 2 or job.job_id in cycle.claims or not cycle.discipline.is_entitled(job, pool):
        return
    state = cycle.ledger.fleet.pools[pool]
    parts = split(form.counts[pool], form.nodes, state.pool.shape.accelerators)
    largest = parts[0]
    machines = open_machines(cycle, pool, job, 0)
    if len(machines) > MACHINES_MAX:
        machines = likely_machines(cycle, pool, job, 0)
    ready = [(_ready_at(cycle, each, largest), each.row) for each in machines if each.size >= largest]
    ready.sort()
    if len(ready) >= len(parts):
        place = tuple((row, count) for (_, row), count in zip(ready, parts, strict=False))
        open_claim(cycle, job, pool, place, exchange=False)


def _ready_at(cycle: Cycle, machine: Machine, wanted: int) -> float:
    """When `wanted` accelerators of the machine will be free if nobody is asked to go."""
    missing = wanted - len(machine.free)
    if missing <= 0:
        return cycle.now
    ends = foreseen_ends_on(cycle.ledger, machine, cycle.standing.rules)
    if missing > len(ends):
        return inf
    end_at = ends[missing - 1]
    return end_at if end_at > cycle.now else cycle.now


def _lend_to_first(cycle: Cycle, reservation: Claim, jobs: Iterable[JobRecord]) -> bool:
    """Lend to the first of these jobs that may borrow. They are of one form: if there is no room for one, for none."""
    for job in jobs:
        if _may_borrow(cycle, job, reservation):
            return lend(cycle, reservation, job)
    return False


def _may_borrow(cycle: Cycle, job: JobRecord, reservation: Claim) -> bool:
    """A borrower ends, or can be stopped, before the reservation needs the place."""
    assert cycle.discipline is not None
    if reservation.job_id == job.job_id:
        return False
    if cycle.discipline.can_be_stopped(job):
        return True
    rate = float(cycle.ledger.class_of(job).rates[reservation.pool])
    if job.request.steps is None or rate <= 0:
        return False
    end_at = cycle.now + cycle.ledger.restart_s(job, cycle.standing.rules) + (job.request.steps - job.steps) / rate
    machines = [cycle.ledger.fleet.machines[row] for row in reservation.wanted]
    needed_at = max(
        _ready_at(cycle, machine, reservation.needs[machine.row]) for machine in machines if machine is not None
    )
    return end_at <= needed_at


# ------------------------------------------------------------------------------------------------ preempt


def compare(cycle: Cycle) -> None:
    """Set waiting jobs (and jobs owed time on another pool) against incumbents."""
    discipline = cycle.discipline
    assert discipline is not None
    if not discipline.compares:
        return
    incumbents: dict[int, Incumbents] = {}
    failures: Counter[int] = Counter()
    hopeless: set[tuple[int, int]] = set()  # those behind a job of their class that failed have less of a claim still
    head: JobRecord | None = None
    for job, pool in discipline.contests(CHALLENGERS_MAX):
        if discipline.strict and head is not None and job is not head and _still_waits(cycle, head):
            return  # nobody passes the first in line, by preemption as little as by filling
        head = job
        if failures[pool] >= FAILURES_MAX:
            continue
        in_vain = (job.class_row, pool) in hopeless and job.waits and job.job_id not in cycle.claims
        if in_vain or not _challenge(cycle, job, pool, incumbents):
            hopeless.add((job.class_row, pool))
            failures[pool] += 1
            if all(failures[state.row] >= FAILURES_MAX for state in cycle.ledger.fleet.pools):
                return


def challenge_now(cycle: Cycle, job: JobRecord) -> None:
    """A job of a high class need not wait for the round to end."""
    assert cycle.discipline is not None
    for pool in cycle.discipline.pools_of(job):
        if _still_waits(cycle, job):
            _challenge(cycle, job, pool, {})


def _still_waits(cycle: Cycle, job: JobRecord) -> bool:
    return job.waits and job.job_id not in cycle.lines.spoken_for


def _challenge(cycle: Cycle, job: JobRecord, pool: int, incumbents: dict[int, Incumbents]) -> bool:
    """Claim a place on the pool, if the job has a right to it and those in it may be asked to go.

    False: nobody who is there can be displaced. `incumbents`: by pool, as far as they have been asked for.
    """
    discipline = cycle.discipline
    assert discipline is not None
    if job.job_id in cycle.lines.spoken_for or not (job.waits or _is_movable(cycle, job, pool)):
        return True
    place = cycle.ledger.fleet.find(pool, form_of(cycle, job))
    if place is not None and job.waits:
        return True  # fill will start it
    victims: list[JobRecord] = []
    if place is None:
        if pool not in incumbents:
            incumbents[pool] = discipline.incumbents(pool, INCUMBENTS_MAX)
        found = victims_of(cycle, job, pool, incumbents[pool].weaker_than(job))
        if found is None:
            return False
        place, victims = found
    drop_claim(cycle, job.job_id)
    claim = open_claim(cycle, job, pool, place, exchange=True)
    for victim in victims:
        revoke(cycle, victim, Reason.POLICY_PREEMPTED, detail=f"job {job.job_id} {discipline.claim_text}")
    if job.holds:
        revoke(cycle, job, Reason.POLICY_MOVED, detail=_move_text(cycle, job, pool, discipline.move_text))
    settle_claim(cycle, claim)
    return True


def _move_text(cycle: Cycle, job: JobRecord, pool: int, text: str) -> str:
    pool_id, columns = cycle.ledger.fleet.pools[pool].pool.pool_id, cycle.ledger.columns
    if pool != columns.pool[job.slot]:
        return f"{text} {pool_id}"
    return f"{text} {pool_id}: {cycle.ledger.count_on(job, pool)} accelerators instead of {columns.count[job.slot]:g}"


def _is_movable(cycle: Cycle, job: JobRecord, pool: int) -> bool:
    assert cycle.discipline is not None
    return (
        job.state is JobState.RUNNING
        and job.revoked is None
        and job.request.preemptible
        and not job.secure
        and cycle.discipline.may_move(job, pool)
    )
