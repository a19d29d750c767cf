"""What a waiting job's submitter could change, and when its place is free by itself: only what is true at this moment.

Looks at machines one by one: for one job that somebody asks about, not for listings.
"""

from collections.abc import Iterator
from math import inf

from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import Claim
from scheduler.core.ledger.classes import Form
from scheduler.core.ledger.fleet import Condition, Machine, PoolState, fits
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.ledger.remaining import foreseen_ends_on
from scheduler.core.placement.victims import can_leave
from walras.units import format_length

#: The class of `--priority high`.
_HIGH = 2


def free_when(core: SchedulerCore, claim: Claim) -> str:
    """When those who are on a reserved place will have left it by themselves."""
    ledger, longest_s = core.ledger, 0.0
    for row, missing in claim.needs.items():
        machine = ledger.fleet.machines[row]
        if not missing or machine is None:
            continue
        ends = foreseen_ends_on(ledger, machine, core.cycle.standing.rules)
        free_at = ends[missing - 1] if missing <= len(ends) else inf
        if free_at == inf:
            return f"when jobs on {machine.node_id} end is not known: they state no `steps`"
        longest_s = max(longest_s, free_at - ledger.now)
    return f"free in {format_length(longest_s)} if those there take as long as foreseen"


def remedies(core: SchedulerCore, job: JobRecord) -> str:
    """What would help a gang on one machine; empty where nothing does but time."""
    form = core.ledger.classes.forms[core.ledger.class_of(job).form]
    if form.nodes > 1:
        return ""
    return "; or ".join((*_smaller(core, job, form), *_other_types(core, job, form), *_more_urgent(core, job, form)))


def _smaller(core: SchedulerCore, job: JobRecord, form: Form) -> Iterator[str]:
    for state in core.ledger.fleet.pools:
        most = _most_free(state, job, form)
        if 0 < most < form.counts[state.row]:
            yield f"submit it with {state.pool.shape.accelerator}:{most}, which would fit now"


def _other_types(core: SchedulerCore, job: JobRecord, form: Form) -> Iterator[str]:
    """Types that it does not accept, and that are free."""
    pools, fewest = core.ledger.fleet.pools, min(filter(None, form.counts), default=0)
    accepted = {state.pool.shape.accelerator for state in pools if form.counts[state.row]}
    free: dict[str, int] = {}
    for state in pools:
        name = state.pool.shape.accelerator
        if name not in accepted:
            free[name] = max(free.get(name, 0), _most_free(state, job, form))
    types = [f"{name}:{fewest}" for name, most in sorted(free.items()) if 0 < fewest <= most]
    if types:
        yield f"accept {', '.join(types)} too, which would fit now"


def _more_urgent(core: SchedulerCore, job: JobRecord, form: Form) -> Iterator[str]:
    """Shares decide inside a class of priority; a higher class takes the places of a lower one."""
    standing, jobs = core.cycle.standing, core.ledger.jobs
    if standing.sharing is None or standing.plans or job.request.priority_class >= _HIGH:
        return
    for state in core.ledger.fleet.pools:
        count = form.counts[state.row]
        for machine in state.members.values() if count else ():
            holders = [jobs[job_id] for job_id in machine.holders if job_id != job.job_id]
            weaker = [each for each in holders if each.request.priority_class < _HIGH and can_leave(each)]
            room = _room(machine, job, form) + sum(len(machine.holders[each.job_id]) for each in weaker)
            if machine.condition is Condition.UP and room >= count:
                yield f"let it stop others: walras update {job.job_id} --priority high"
                return


def _most_free(state: PoolState, job: JobRecord, form: Form) -> int:
    """Accelerators of one machine that the job could have now."""
    up = (machine for machine in state.members.values() if machine.condition is Condition.UP)
    return max((_room(machine, job, form) for machine in up), default=0)


def _room(machine: Machine, job: JobRecord, form: Form) -> int:
    """What is free on a machine and not kept for others, with processors and memory; its own reservation counts."""
    own = len(machine.holders.get(job.job_id, ()))
    more = 0 if machine.closed and not own else len(machine.free)
    while more and not fits(machine, more, form):
        more -= 1
    return own + more
