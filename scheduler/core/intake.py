"""What every mechanism of ours does at an event, whatever it decides: freed machines, newcomers, the round timer."""

from math import inf

from scheduler.core.cycle import Cycle
from scheduler.core.handlers import jobs
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.placement.claims import offer


def take_in(cycle: Cycle) -> list[JobRecord]:
    """Offer freed machines to claims and judge newcomers, until neither brings more. Returns the newcomers."""
    seen: list[JobRecord] = []
    while cycle.freed or cycle.arrived:
        freed, cycle.freed = cycle.freed, {}
        for row in freed:
            machine = cycle.ledger.fleet.machines[row]
            if machine is not None:
                offer(cycle, machine)
        newcomers, cycle.arrived = cycle.arrived, []
        for job_id in newcomers:
            job = cycle.ledger.jobs.get(job_id)
            if job is not None:
                jobs.arrived(cycle, job)
                seen.append(job)
    return seen


def fill_lines_anew(cycle: Cycle) -> None:
    """If something changed that every line must know."""
    assert cycle.discipline is not None
    if cycle.refill:
        cycle.refill = False
        cycle.lines.clear()
        cycle.discipline.fill_lines(cycle.lines)
        cycle.stale_pools.update(range(len(cycle.ledger.fleet.pools)))


def set_round_timer(cycle: Cycle) -> None:
    """A round is worth a timer only if somebody waits, or is owed time on another pool."""
    if cycle.now < cycle.round_timer_at < inf:
        return
    rules = cycle.standing.rules
    if rules.round_s <= 0:
        return
    discipline = cycle.discipline
    if discipline is None or not (discipline.compares or rules.idle_to_round_end):
        return
    if not cycle.ledger.jobs:
        cycle.round_timer_at = inf
        return
    cycle.round_timer_at = (cycle.now // rules.round_s + 1) * rules.round_s
    cycle.timers.set(cycle.round_timer_at, "round")
