"""Whether a fleet could ever run a job, and what its submitter could change to run sooner.

`infeasibility` answers for admission, dry runs and explanations alike. The caller knows how large a pool may become:
the core counts machines that it has seen and machines that it may rent; a server also counts those of its cluster file.
`remedies` examines machines one by one, for one job that a person asks about, and names only changes that would help at
this moment.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from scheduler.core.core import SchedulerCore
from scheduler.core.handlers.deadlines import deadline_outlook
from scheduler.core.state.fleet import (
    SLOW_ENDING,
    Fleet,
    FleetMachine,
    MachineCondition,
    PoolState,
    is_enough,
    most_that_fit,
    split_gang,
)
from scheduler.core.state.job_classes import ResourceShape
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.placement_limits import Reservation
from scheduler.core.state.remaining_work import freed_at, remaining_on_best_s
from scheduler.core.state.shared_accelerators import freed_by
from scheduler.core.state.stopping import StopFor, may_be_stopped
from walras.cluster import Market, Pool, PoolId, Shape
from walras.contract import HIGH_PRIORITY_CLASS
from walras.job_request import Demand, GangPlan, JobRequest, RoleUse, can_prepare
from walras.spec.file_model import nearest_word
from walras.states import Reason
from walras.units import format_length

_GIB = 2**30
#: What to change for a gang that several pools hold together.
_MIXED_FIX = (
    "write `mixed: shares` if its script shares batches (walras.training.Shares), else `mixed: true` to run at the "
    "pace of the slowest, and it runs over several pools; or "
)
#: The same under a policy that does not plan.
_PLANS_FIX = "have a policy that plans, such as `walras`: others place a gang in one pool; or "
#: Separates two remedies in a text.
_OR = "; or "
#: The priority that `--priority high` sets.
_HIGH_PRIORITY = 80


@dataclass(frozen=True, slots=True)
class Infeasibility:
    """Why the job can never run, however long it waits."""

    reason: Reason
    #: Field of the job spec to change.
    field: str
    #: The violated constraint with its numbers.
    detail: str
    fix: str


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """A pool, and the accelerators that it may come to have (inf if unknown)."""

    pool: Pool
    most: float


def pool_text(pool: Pool, pools: Iterable[Pool], ending: str = "") -> str:
    """Returns how people call a pool of these: by its type of accelerator, and by its id too if others have that type.

    `ending`: what a pool of slow machines adds to the id.
    """
    name = pool.shape.accelerator
    alike = sum(each.shape.accelerator == name and not each.removed for each in pools)
    return f"{name} ({pool.pool_id}{ending})" if alike > 1 else name


def fleet_pool_text(fleet: Fleet, state: PoolState) -> str:
    """Returns how people call a pool of the fleet (`pool_text`)."""
    ending = "" if state.slow_of is None else SLOW_ENDING
    return pool_text(state.pool, (each.pool for each in fleet.pools), ending)


def _sizes_text(limits: Sequence[PoolLimit], pools: Sequence[PoolLimit]) -> str:
    """Returns the most that each of these pools may come to have, in words."""
    known = [limit.pool for limit in pools]
    return ", ".join(f"{pool_text(limit.pool, known)}: {limit.most:g}" for limit in limits)


def pool_limits(fleet: Fleet, expected: Mapping[PoolId, int]) -> list[PoolLimit]:
    """Returns what each pool may come to have. `expected` are machines known from elsewhere, joined or not."""
    return [
        PoolLimit(state.pool, _largest_size(state, expected.get(state.pool.pool_id, 0)))
        for state in fleet.pools
        if not state.pool.removed and state.slow_of is None
    ]


def removed_pools_text(fleet: Fleet, request: JobRequest) -> str:
    """Returns the removed pools that the job accepts, in words; empty if there is none."""
    removed = [state.pool for state in fleet.pools if state.pool.removed and state.slow_of is None]
    gone = [pool.pool_id for pool in removed if request.accepts(pool)]
    if not gone:
        return ""
    return f"; {', '.join(gone)}, which it accepts, {'was' if len(gone) == 1 else 'were'} removed"


def _largest_size(state: PoolState, expected: int) -> float:
    size = state.pool.shape.accelerators
    if state.rented:
        return float(max(state.pool.quota, state.machines) * size)
    machines = max(state.most_machines, expected)
    return float(machines * size) if machines else inf


def infeasibility(request: JobRequest, pools: Iterable[PoolLimit], *, over_pools: bool = True) -> Infeasibility | None:
    """Returns what keeps the job from ever running on these pools; None if nothing does, or if there is no pool yet.

    `over_pools`: the policy in force places gangs over several pools too.
    """
    pools = list(pools)
    if not pools:
        return None
    fits = [_fits_together(request, pools), *(_plan_fits(request, plan, pools) for plan in request.plans)]
    if over_pools and any(fits):
        return None
    if request.has_roles:
        return _roles_do_not_fit(request, pools, only_planned=any(fits))
    wanted = request.text
    typed = [limit for limit in pools if request.accepts(limit.pool)]
    if not typed:
        return _no_such_type(request, wanted, pools)
    fitting = [limit for limit in typed if _fits_machines(request, limit.pool)]
    if not fitting:
        return _too_large_for_machines(request, typed)
    if not any(_is_large_enough(request, limit) for limit in fitting):
        spread = f" over {request.nodes} machines" if request.nodes > 1 else ""
        sizes = _sizes_text(fitting, pools)
        where = "in owned pools together" if request.mixed and over_pools else "in one pool"
        better = _PLANS_FIX * any(fits) or _MIXED_FIX * _could_mix(request, pools)
        return Infeasibility(
            Reason.CONFIG_EXCEEDS_FLEET,
            "resources.accelerators",
            f"wants {wanted}{spread} {where}; the most there can be is {sizes}",
            better + "ask for fewer accelerators, or have machines (or quota) added first",
        )
    return None


def _plan_fits(request: JobRequest, plan: GangPlan, pools: list[PoolLimit]) -> bool:
    """Returns whether owned pools, one for each type, may come to hold this plan, and machines its roles' processes."""
    fits = (
        any(limit.most >= use.count and request.accepts_part(use, limit.pool) for limit in pools) for use in plan.uses
    )
    return all(fits) and all(_role_fits(request, role, pools) for role in plan.roles)


def _role_fits(request: JobRequest, role: RoleUse, pools: list[PoolLimit]) -> bool:
    """Returns whether machines of one pool may come to hold the role's processes, each of them whole."""
    form = ResourceShape((), 1, request.cpus_per_accelerator, request.memory_bytes_per_accelerator)
    return not role.each or any(
        limit.most / limit.pool.shape.accelerators * (limit.pool.shape.accelerators // role.each) >= role.count
        and request.accepts_part(Demand(role.accelerator, role.each), limit.pool)
        and is_enough(limit.pool.shape.cpus, limit.pool.shape.memory_bytes, role.each, form)
        for limit in pools
    )


def _roles_do_not_fit(request: JobRequest, pools: list[PoolLimit], *, only_planned: bool) -> Infeasibility:
    """Returns which role the fleet cannot hold, or that its policy places no roles."""
    if only_planned:
        detail = f"wants {request.text} together; the policy in force places no roles"
        return Infeasibility(Reason.CONFIG_EXCEEDS_FLEET, "roles", detail, _PLANS_FIX.removesuffix(_OR))
    fewest = min(request.plans, key=lambda plan: sum(use.count for use in plan.uses))
    lacks = next((role for role in fewest.roles if not _role_fits(request, role, pools)), None)
    sizes = _sizes_text(pools, pools)
    wanted = f"wants {request.text} together"
    if lacks is not None:
        each = f"{lacks.count} times {lacks.each} x {lacks.accelerator}"
        wanted = f"{lacks.name} wants {each}, each on one machine, of one owned pool"
    fix = "ask for fewer or others, or have machines added first"
    return Infeasibility(Reason.CONFIG_EXCEEDS_FLEET, "roles", f"{wanted}; the most there can be is {sizes}", fix)


def _fits_together(request: JobRequest, pools: list[PoolLimit]) -> bool:
    """Returns whether owned pools together may come to hold the gang, if it may be over several; its parts are single
    accelerators, so any machine may hold some.
    """
    if not request.mixed:
        return False
    alone = replace(request, demands=tuple(replace(each, count=1) for each in request.demands))
    owned = [limit for limit in pools if limit.pool.market is Market.OWNED and _fits_machines(alone, limit.pool)]
    gang = max((request.size_on(limit.pool) for limit in owned), default=0)
    return gang > 0 and sum(limit.most for limit in owned) >= gang


def _could_mix(request: JobRequest, pools: list[PoolLimit]) -> bool:
    """Returns whether the gang would fit over several pools, were it a gang that may be mixed."""
    is_one_gang = request.nodes == 1 and not (request.sizes or request.spreads)
    same = len({demand.count for demand in request.demands}) == 1
    return is_one_gang and same and _fits_together(replace(request, mixed=True), pools)


def _no_such_type(request: JobRequest, wanted: str, pools: list[PoolLimit]) -> Infeasibility:
    have = sorted({limit.pool.shape.accelerator for limit in pools})
    ids = sorted(limit.pool.pool_id for limit in pools)
    if request.pools and not set(request.pools) & set(ids):
        near = next(filter(None, (nearest_word(each, ids) for each in request.pools)), None)
        return Infeasibility(
            Reason.CONFIG_NO_SUCH_ACCELERATOR,
            "resources.pools",
            f"wants {wanted}; this fleet has no such pool",
            (f"did you mean {near!r}? " if near else "") + "change resources.pools, or leave it out",
        )
    meant = next(filter(None, (nearest_word(demand.accelerator, have) for demand in request.demands)), None)
    hint = f"did you mean {meant!r}? " if meant else ""
    return Infeasibility(
        Reason.CONFIG_NO_SUCH_ACCELERATOR,
        "resources.accelerators",
        f"wants {wanted}; this fleet has {', '.join(have)}",
        f"{hint}change resources.accelerators, or have such machines added first",
    )


def _fits_machines(request: JobRequest, pool: Pool) -> bool:
    """Returns whether empty machines of this shape could hold the gang's parts."""
    count, shape = request.size_on(pool), pool.shape
    if not count:
        return False
    part = max(split_gang(count, request.nodes, shape.accelerators))
    form = ResourceShape((count,), request.nodes, request.cpus_per_accelerator, request.memory_bytes_per_accelerator)
    return is_enough(shape.cpus, shape.memory_bytes, part, form)


def _is_large_enough(request: JobRequest, limit: PoolLimit) -> bool:
    count, size = request.size_on(limit.pool), limit.pool.shape.accelerators
    return limit.most >= count and limit.most / size >= len(split_gang(count, request.nodes, size))


def _too_large_for_machines(request: JobRequest, typed: list[PoolLimit]) -> Infeasibility:
    shapes = "; ".join(shape_text(limit.pool.shape) for limit in typed)
    if not any(request.size_on(limit.pool) for limit in typed):
        return Infeasibility(
            Reason.CONFIG_EXCEEDS_LARGEST_NODE,
            "num_nodes",
            f"wants {request.text} spread evenly over {request.nodes} machines; a machine has at most {shapes}",
            "choose num_nodes so that every machine's part fits on one",
        )
    per_each = f"{request.cpus_per_accelerator:g} cpus and {request.memory_bytes_per_accelerator / _GIB:.3g} GiB"
    return Infeasibility(
        Reason.CONFIG_EXCEEDS_LARGEST_NODE,
        "resources",
        f"wants {request.text} with {per_each} for each; a machine has at most {shapes}",
        "ask for less resources.cpus or resources.memory (both count for each accelerator)",
    )


def shape_text(shape: Shape) -> str:
    """Returns the kind of machine in words."""
    memory = f"{shape.memory_bytes / _GIB:.3g} GiB"
    return f"{shape.name}: {shape.accelerators} x {shape.accelerator}, {shape.cpus:g} cpus, {memory}"


def expected_free_text(core: SchedulerCore, reservation: Reservation) -> str:
    """Returns in words when a reserved place will be free if the jobs on it are left alone."""
    ledger, longest_s = core.ledger, 0.0
    for row, missing in reservation.needs.items():
        machine = ledger.fleet.machines[row]
        if not missing or machine is None:
            continue
        free_at = freed_at(ledger, machine, missing, core.cycle.policy.rules)
        if free_at == inf:
            return f"when jobs on {machine.node_id} end is not known: they state no `steps`, duration or limit"
        longest_s = max(longest_s, free_at - ledger.now)
    return f"free in {format_length(longest_s)} if those there take as long as foreseen"


def missed_deadline_text(core: SchedulerCore, job: JobRecord) -> str:
    """Returns that the job cannot end by its deadline wherever it runs; empty if it can, or nobody knows."""
    ledger, left_s = core.ledger, job.request.deadline_at - core.ledger.now
    if left_s == inf:
        return ""
    if left_s <= 0:
        return "its deadline has passed"
    outlook, where = deadline_outlook(core.cycle, job), ""
    if outlook is not None:
        where = f" on {fleet_pool_text(ledger.fleet, ledger.fleet.pools[outlook.pool])}"
        where += "" if outlook.is_there else ", moving there included"
        needs_s = inf if outlook.is_feasible else outlook.needs_s
    elif job.request.sizes:
        return ""
    else:
        needs_s = float(remaining_on_best_s(ledger, np.array([job.slot]))[0])
    if not left_s < needs_s < inf:
        return ""
    return (
        f"its deadline cannot be met: it needs {format_length(needs_s)} more{where}; has {format_length(left_s)} left"
    )


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change to a waiting job that looks as if it would let it start now."""

    #: Text for people.
    text: str
    #: Demands with which to submit it anew; empty: the job is not resubmitted.
    demands: tuple[Demand, ...] = ()
    #: New priority; None: the job keeps its own.
    priority: int | None = None


def possible_remedies(core: SchedulerCore, job: JobRecord) -> list[Remedy]:
    """Returns remedies for a gang on one machine, smallest change first; empty if only waiting helps."""
    shape = core.ledger.shape_of(job)
    if shape.nodes > 1:
        return []
    anew = () if job.request.plans else (*_smaller(core, job, shape), *_other_types(core, job, shape))
    return [*anew, *_more_urgent(core, job, shape)]


def without_failing(fix: str, looks: Collection[str], helps: Collection[str]) -> str:
    """Returns the fix without those parts that are in `looks` (they seem to help) but not in `helps` (they do not)."""
    return _OR.join(part for part in fix.split(_OR) if part not in looks or part in helps)


def remedies(core: SchedulerCore, job: JobRecord) -> str:
    """Returns the possible remedies in words; empty if there is none."""
    return _OR.join(each.text for each in possible_remedies(core, job))


def _smaller(core: SchedulerCore, job: JobRecord, shape: ResourceShape) -> Iterator[Remedy]:
    for state in core.ledger.fleet.pools:
        most = _most_free(state, job, shape)
        if 0 < most < shape.counts[state.row]:
            name = state.pool.shape.accelerator
            yield Remedy(f"submit it with {name}:{most}, which would fit now", (Demand(name, most),))


def _other_types(core: SchedulerCore, job: JobRecord, shape: ResourceShape) -> Iterator[Remedy]:
    """Yields remedies: types that have free accelerators and that the job does not accept."""
    pools, fewest = core.ledger.fleet.pools, min(filter(None, shape.counts), default=0)
    accepted = {state.pool.shape.accelerator for state in pools if shape.counts[state.row]}
    free: dict[str, int] = {}
    for state in pools:
        name = state.pool.shape.accelerator
        if name not in accepted:
            free[name] = max(free.get(name, 0), _most_free(state, job, shape))
    types = [Demand(name, fewest) for name, most in sorted(free.items()) if 0 < fewest <= most]
    if types:
        named = ", ".join(f"{each.accelerator}:{each.count}" for each in types)
        yield Remedy(f"accept {named} too, which would fit now", (*job.request.demands, *types))


def _more_urgent(core: SchedulerCore, job: JobRecord, shape: ResourceShape) -> Iterator[Remedy]:
    """Yields a higher priority class if that would let the job stop others. Inside a class shares decide."""
    policy, jobs = core.cycle.policy, core.ledger.jobs
    if policy.pricing is None or policy.plans or job.request.priority_class >= HIGH_PRIORITY_CLASS:
        return
    for state in core.ledger.fleet.pools:
        count = shape.counts[state.row]
        for machine in state.members.values() if count else ():
            holders = [jobs[job_id] for job_id in machine.holders if job_id != job.job_id]
            lower = [each for each in holders if each.request.priority_class < HIGH_PRIORITY_CLASS]
            weaker = [each for each in lower if may_be_stopped(core.ledger, each, StopFor.PLACE) is None]
            room = _free_for(machine, job, shape) + freed_by(machine, {each.job_id for each in weaker})
            is_open = machine.condition is MachineCondition.UP and can_prepare(machine.tools, shape.tools)
            if is_open and room >= count:
                yield Remedy(f"let it stop others: walras update {job.job_id} --priority high", priority=_HIGH_PRIORITY)
                return


def _most_free(state: PoolState, job: JobRecord, shape: ResourceShape) -> int:
    """Returns the most accelerators of one machine of the pool that the job could have now."""
    up = (machine for machine in state.members.values() if machine.condition is MachineCondition.UP)
    return max((_free_for(machine, job, shape) for machine in up), default=0)


def _free_for(machine: FleetMachine, job: JobRecord, shape: ResourceShape) -> int:
    """Returns the accelerators of a machine that the job could have now, its own reservation there included.

    They are limited by processors and memory; 0 if the machine could not prepare the job. What is free on a closed
    machine is kept for others.
    """
    if not can_prepare(machine.tools, shape.tools):
        return 0
    own = len(machine.holders.get(job.job_id, ()))
    most = 0 if machine.closed and not own else len(machine.free)
    return own + most_that_fit(machine, most, shape)
