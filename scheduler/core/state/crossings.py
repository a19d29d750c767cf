"""Gangs whose machines are further apart than they could be: how much slower they are, and as which kind they count.

While such a gang runs it is a kind of its own, with its kind's speed over the slower links until that is measured. So a
plan uses its true speed, and its reports say nothing of gangs in one block.
"""

from dataclasses import dataclass

from optimizer.prediction.step_time import exchange_part, pace_over
from scheduler.core.state.fleet import Place
from scheduler.core.state.ledger import JobRecord, Ledger
from walras.job_request import Kind


@dataclass(frozen=True, slots=True)
class Crossing:
    """What a gang loses in a place."""

    #: Over what its slowest path leads, such as `2 racks`, and the kind as which it counts.
    over: str
    kind: Kind
    #: Its speed relative to that in the closest place, and whether it is more than an assumption.
    pace: float
    is_known: bool


def crossing_of(ledger: Ledger, job: JobRecord, place: Place) -> Crossing | None:
    """Returns what the job loses by such a place for one gang; None if no place is closer, or nothing tells, and for
    plans, whose speeds are stated.
    """
    machines = [machine for row, _ in place if (machine := ledger.fleet.machines[row]) is not None]
    pools = {machine.pool for machine in machines}
    if len(machines) < 2 or len(pools) > 1 or job.request.plans or ledger.is_spread(job):
        return None
    state = ledger.fleet.pools[pools.pop()]
    if state.pool.topology is None:
        return None
    links, names = state.pool.topology.links, [machine.host for machine in machines]
    parts = sorted((count for _, count in place), reverse=True)
    usual = links.slowest_at_best(parts, ((each.host, each.size) for each in state.members.values()))
    slowest = links.slowest(names)
    if slowest >= usual:
        return None
    own, accelerator, count = job.request.kind, state.pool.shape.accelerator, sum(parts)
    over = links.crossed(names)
    kind = Kind(f"{own} across {over.partition(' ')[2]}")
    known, facts = ledger.table.measured(kind, accelerator, count), ledger.facts.of(own)
    steps_per_s = ledger.table.speed(own, accelerator, count, ledger.classes.nominal).steps_per_s
    size_bytes = None if facts is None else facts.gradient_bytes
    pace = pace_over(slowest / usual, exchange_part(size_bytes, len(machines), usual, steps_per_s))
    pace = pace if known is None else min(1.0, known / steps_per_s)
    return Crossing(over, kind, pace, known is not None or size_bytes is not None)


def count_crossing(ledger: Ledger, job: JobRecord) -> None:
    """Makes the job a kind of its own if it has just begun, or is found again, where it is slower than it could be."""
    found = crossing_of(ledger, job, job.place)
    if found is not None:
        ledger.slow_down(job, found.kind, found.pace)
