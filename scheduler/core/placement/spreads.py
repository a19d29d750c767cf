"""Places over several pools: mixed gangs, and forks (several whole gangs of one job).

A line is for gangs in one pool, found as one. What a plan gives to a job in several parts is found here, whole: either
all of it is free, or those who are not planned where it is missing are asked to go, and what they leave is kept by one
claim on the machines of all its pools. Parts of a mixed gang may be cut to any size; those of a fork are whole gangs.
Which jobs are spread, and over what, is the policy's choice.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from optimizer.added import Mixtures, with_columns
from optimizer.problem import Problem
from scheduler.core.cycle import Cycle
from scheduler.core.discipline import Discipline
from scheduler.core.ledger.classes import Parts, is_fork
from scheduler.core.ledger.fleet import Condition, Machine, Place, split
from scheduler.core.ledger.ledger import JobRecord, Ledger
from scheduler.core.placement.attempts import revoke, start
from scheduler.core.placement.claims import drop_claim, form_of, open_claim, settle_claim
from scheduler.core.placement.victims import can_leave, has_room_after, likely_machines
from walras.reasons import Reason
from walras.states import JobState

#: Jobs weighed, of each pool, that may be asked to go for one of these places.
_INCUMBENTS_MAX = 256


def spread_out(cycle: Cycle, planned: Iterable[tuple[JobRecord, Parts]], *, may_displace: bool) -> None:
    """Start, or move, these jobs where they are planned.

    Args:
        planned: (job, parts), the most important first.
        may_displace: others may be asked to go, and the job itself to move: the plan is new.
    """
    for job, parts in planned:
        if job.job_id in cycle.lines.spoken_for or cycle.ledger.parts_of(job) == parts:
            continue
        if (job.waits and cycle.lines.is_waiting(job.job_id)) or (may_displace and _may_move(cycle, job, parts)):
            _place(cycle, job, parts, may_displace=may_displace)


def _may_move(cycle: Cycle, job: JobRecord, parts: Parts) -> bool:
    assert cycle.discipline is not None
    may_leave = job.request.preemptible and not job.secure
    runs = job.state is JobState.RUNNING and job.revoked is None and may_leave
    return runs and cycle.discipline.may_move(job, parts[0][0])


def _place(cycle: Cycle, job: JobRecord, parts: Parts, *, may_displace: bool) -> None:
    """Give the job its whole place, or claim it and ask those in it to go; nothing where it cannot be had."""
    assert cycle.discipline is not None
    room = _Room(cycle, cycle.discipline, job, may_displace=may_displace)
    if not all(room.find(pool, count, parts) for pool, count in parts):
        return
    drop_claim(cycle, job.job_id)
    if job.waits and not room.victims:
        start(cycle, job, parts[0][0], room.place)
        return
    claim = open_claim(cycle, job, parts[0][0], room.place, exchange=True)
    for victim in room.victims:
        revoke(cycle, victim, Reason.POLICY_PREEMPTED, detail=f"job {job.job_id} {cycle.discipline.claim_text}")
    if job.holds:
        pools = ", ".join(f"{cycle.ledger.fleet.pools[pool].pool.pool_id}: {count}" for pool, count in parts)
        revoke(cycle, job, Reason.POLICY_MOVED, detail=f"{cycle.discipline.move_text} {pools} accelerators")
    settle_claim(cycle, claim)


@dataclass(slots=True)
class _Taken:
    """What is to be had of one machine, and who has to go for it."""

    count: int = 0
    leaving: list[JobRecord] = field(default_factory=list)


class _Room:
    """A place for one job, found part by part."""

    def __init__(self, cycle: Cycle, discipline: Discipline, job: JobRecord, *, may_displace: bool) -> None:
        self._cycle = cycle
        self._discipline = discipline
        self._job = job
        self._may_displace = may_displace
        self._taken: dict[int, _Taken] = {}

    @property
    def place(self) -> Place:
        """What was found, in the order of its pools."""
        return tuple((row, taken.count) for row, taken in self._taken.items())

    @property
    def victims(self) -> list[JobRecord]:
        """Who has to go for it."""
        leaving = [job for taken in self._taken.values() for job in taken.leaving]
        return list({job.job_id: job for job in leaving}.values())

    def find(self, pool: int, count: int, parts: Parts) -> bool:
        """Find a part's accelerators. False: they are not to be had."""
        form, size = form_of(self._cycle, self._job), self._cycle.ledger.fleet.pools[pool].pool.shape.accelerators
        gang = form.counts[pool]
        pieces = split(gang, form.nodes, size) * (count // gang) if is_fork(parts, form.counts) else [1] * count
        leaving = self._leaving(pool)
        machines = {each.row: each for each in likely_machines(self._cycle, pool, self._job, 0)}
        machines.update((row, machine) for row in leaving if (machine := self._open(row)) is not None)
        return all(self._take(piece, list(machines.values()), leaving) for piece in pieces)

    def _leaving(self, pool: int) -> dict[int, list[JobRecord]]:
        """By machine of the pool, those who may be asked to go, weakest first."""
        found: dict[int, list[JobRecord]] = {}
        if self._may_displace:
            for other in self._discipline.incumbents(pool, _INCUMBENTS_MAX).weaker_than(self._job):
                for row, _ in other.place if other is not self._job and can_leave(other) else ():
                    machine = self._cycle.ledger.fleet.machines[row]
                    if machine is not None and machine.pool == pool:
                        found.setdefault(row, []).append(other)
        return found

    def _open(self, row: int) -> Machine | None:
        """The machine, unless it takes no jobs or another has a claim on it."""
        machine = self._cycle.ledger.fleet.machines[row]
        if machine is None or machine.condition is not Condition.UP:
            return None
        return machine if all(each == self._job.job_id for each in self._cycle.claims_on.get(row, ())) else None

    def _take(self, piece: int, machines: list[Machine], leaving: dict[int, list[JobRecord]]) -> bool:
        """Take so many accelerators of the machine for which fewest have to go, of equals one that is used already."""
        best: tuple[tuple[int, bool, int], int, _Taken] | None = None
        for machine in machines:
            before = self._taken.get(machine.row, _Taken())
            after = self._with(machine, before.count + piece, leaving.get(machine.row, []))
            if after is not None:
                cost = len(after.leaving) - len(before.leaving), not before.count, len(machine.free) - piece
                if best is None or cost < best[0]:
                    best = cost, machine.row, after
        if best is not None:
            self._taken[best[1]] = best[2]
        return best is not None

    def _with(self, machine: Machine, count: int, able: list[JobRecord]) -> _Taken | None:
        """So many accelerators of the machine, with the fewest of these gone; None: they are not to be had."""
        for going in range(len(able) + 1):
            if has_room_after(self._cycle, machine, able[:going], count, self._job):
                return _Taken(count, able[:going])
        return None


# ------------------------------------------------------------------------------------------------ asking


def with_spreads(ledger: Ledger, problem: Problem, records: list[JobRecord]) -> Problem:
    """The problem with who may be spread, and with what runs spread, or is on its way to it, as a configuration."""
    requests = [job.request for job in records]
    mixes = np.array([request.mixed for request in requests], dtype=np.bool_)
    forks = np.array([float(request.fork_max) for request in requests])
    asked = replace(problem, jobs=replace(problem.jobs, mixes=mixes, fork_max=forks))
    rows, rates, uses = [], [], []
    for row, job in enumerate(records):
        stays = job.holds and job.revoked is None
        parts = ledger.parts_of(job) if stays else ledger.planned_parts(job)
        job_class = ledger.classes.classes[ledger.class_over(job, parts)] if parts else None
        if job_class is not None and job_class.parts:
            rows.append(row)
            rates.append(job_class.speeds[parts[0][0]])
            uses.append([dict(parts).get(pool, 0) for pool in range(len(problem.pools))])
    if not rows:
        return asked
    spread = Mixtures(np.array(rows, dtype=np.int64), np.array(rates), np.array(uses, dtype=np.float64)).columns
    no_other = replace(asked.columns, running=asked.columns.running & ~np.isin(asked.columns.job, rows))
    return with_columns(
        replace(asked, columns=no_other), replace(spread, running=np.ones(len(spread), dtype=np.bool_))
    )[0]
