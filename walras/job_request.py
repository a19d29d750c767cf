"""The job as the scheduler sees it: the part of a job spec that decisions depend on, frozen.

A server makes a `JobRequest` from the spec that a person submitted; a simulation makes one from a row of a trace. The
scheduler never sees commands, code or environment variables.

The request is made of groups: `JobIdentity`, `JobLimits` and `GangRequest`. A job of a trace has the first two as well,
and classes of alike jobs hold the third, so that a field is added in one place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from math import inf
from operator import attrgetter
from typing import Any, NewType
from urllib.parse import unquote

from walras.cluster import Market, Pool
from walras.spec.accelerator_names import covers

#: The number of a submission. It increases from 1 in the order of admission and is never reused.
JobId = NewType("JobId", int)
#: The name of a kind of jobs, which share one row of the throughput table. A server learns per project
#: (`kind_within`): no job of another project changes what is believed of one's own.
Kind = NewType("Kind", str)

#: The project of what names none. Its kinds have their plain names.
DEFAULT_PROJECT = "default"


def kind_within(project: str, kind: Kind) -> Kind:
    """Returns the kind of a project that has this name, such as `@vision cnn`; a kind of the project is kept.

    Kinds of different projects differ, whatever names people choose.
    """
    prefix = f"@{project.replace('%', '%25').replace(' ', '%20')} "
    if kind.startswith(prefix) or (project == DEFAULT_PROJECT and not kind.startswith("@")):
        return kind
    return Kind(prefix + kind)


def project_of(kind: Kind) -> str:
    """Returns the project to which a kind of `kind_within` belongs."""
    return unquote(kind[1:].partition(" ")[0]) if kind.startswith("@") else DEFAULT_PROJECT


def plain_kind(kind: Kind) -> Kind:
    """Returns the name of a kind of `kind_within` inside its project."""
    return Kind(kind.partition(" ")[2]) if kind.startswith("@") else kind


# An attempt is named by (job id, attempt number). The number increases by one with every start of the job and is the
# fence: whatever an attempt writes counts only while its number is the job's current one.

#: Stands for "any accelerator type" in a `Demand`.
ANY_ACCELERATOR = "*"
#: Assumed relative loss of speed: of a gang over several pools by communication, and of a fork by averaging.
MIXING_LOSS = 0.0
AVERAGING_LOSS = 0.05


#: The most plans of a menu that a text names.
_PLANS_NAMED = 4

#: One of each entry.
ToolNeeds = tuple[tuple[str, ...], ...]


def can_prepare(tools: frozenset[str] | None, needs: ToolNeeds) -> bool:
    """Returns whether a machine with these tools meets every need. None: it has not said, and is taken to have
    everything.
    """
    return tools is None or all(not tools.isdisjoint(any_of) for any_of in needs)


@dataclass(frozen=True, slots=True)
class Demand:
    """One acceptable way to run the whole gang: `count` accelerators of one type."""

    #: A type, a family of types (`a100`; see `walras.spec.accelerator_names`), or `ANY_ACCELERATOR`.
    accelerator: str
    count: int

    def types_of(self, types: Iterable[str]) -> list[str]:
        """Returns those of the types that it means."""
        return [name for name in types if self.accelerator == ANY_ACCELERATOR or covers(self.accelerator, name)]


@dataclass(frozen=True, slots=True)
class RoleUse:
    """The processes of one role in a plan, and the accelerators of one type that each of them has on one machine."""

    name: str
    #: A type or a family of types; empty: its processes have none, and are beside the first process of the first role.
    accelerator: str
    each: int
    count: int

    @property
    def text(self) -> str:
        """The role as text, such as `rollout 2 x v100`."""
        return f"{self.name} {self.count * self.each} x {self.accelerator}" if self.each else self.name


@dataclass(frozen=True, slots=True)
class GangPlan:
    """One way of a job that states its ways itself: accelerators of some types, all at once, and a speed."""

    #: The accelerators of each type, ascending by its name.
    uses: tuple[Demand, ...]
    #: As stated; of a plan with roles, as assumed until it is measured.
    steps_per_s: float
    #: What the accelerators are for, the leading role first; empty: for the ranks of one gang.
    roles: tuple[RoleUse, ...] = ()

    @property
    def text(self) -> str:
        """The plan as text, such as `32 x a100 + 96 x v100`."""
        if self.roles:
            return " + ".join(role.text for role in self.roles)
        return " + ".join(f"{use.count} x {use.accelerator}" for use in self.uses)

    def pieces_on(self, accelerator: str) -> list[int]:
        """Returns the accelerators that each process of its roles has of this type, which must be on one machine: the
        first process of the leading role first, then the largest.
        """
        here = [role for role in self.roles if role.each and covers(role.accelerator, accelerator)]
        pieces = [role.each for role in here for _ in range(role.count)]
        first = 1 if here and here[0] is self.roles[0] else 0
        return [*pieces[:first], *sorted(pieces[first:], reverse=True)]

    def is_of(self, held: Sequence[Demand]) -> bool:
        """Returns whether it takes just these accelerators; it may name the families of their types."""
        return len(held) == len(self.uses) and all(
            any(use.count == one.count and covers(use.accelerator, one.accelerator) for one in held)
            for use in self.uses
        )


@dataclass(frozen=True, slots=True)
class RetryRule:
    """When a failed attempt is tried again. Infrastructure loss and preemption never consume `max_restarts`."""

    max_restarts: int = 0
    #: Exit codes that may be retried; empty means any non-zero code.
    on_exit_codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What a job takes of an accelerator that it agrees to share with one other job."""

    #: The most memory of the device that it ever uses.
    memory_bytes: int
    #: The part of the time (0..1] in which it keeps the device busy when it has it alone; None: unknown.
    busy: float | None = None


@dataclass(frozen=True, kw_only=True)
class JobIdentity:
    """Owner of the job, and its weight against others."""

    __slots__ = ()

    project: str = DEFAULT_PROJECT
    user: str = ""
    #: 0-100; see `JobRequest.priority_class`.
    priority: int = 50
    #: Share against other jobs of the same class. A weight of 2 is entitled to twice the normalised throughput.
    weight: float = 1.0
    #: Value of an hour at its best speed, USD; None: the project's value.
    value_usd_per_h: float | None = None


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """When the job may run, for how long, and what it may cost."""

    __slots__ = ()

    not_before_at: float = -inf
    deadline_at: float = inf
    max_runtime_s: float = inf
    max_queue_s: float = inf
    #: Largest total cost, USD.
    budget_usd: float = inf
    #: Time to checkpoint and stop before its processes are killed.
    grace_s: float = 30.0
    #: Whether it may be stopped for other jobs; if not, it runs to its end once started.
    preemptible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """What a gang takes, and which pools may hold it. Jobs with equal gang requests are alike to every placement.

    A field that limits placement belongs here, and its rule into `accepts` (docs/how-to/add-a-placement-field.md).
    """

    #: Acceptable demands. The scheduler chooses among them; equal counts need not be given twice.
    demands: tuple[Demand, ...]
    #: Elastic: the gang sizes, ascending, that a policy may choose on every acceptable type, including the counts of
    #: all demands, which are its size unless a policy chooses. Empty: rigid.
    sizes: tuple[int, ...] = ()
    #: A menu of ways, each with its speed, which holds whatever is measured. `demands` are then those of one type, the
    #: first of each, as which the job runs where no policy chooses among all. Empty: the job is its `demands`.
    plans: tuple[GangPlan, ...] = ()
    #: Machines the gang must be spread over evenly; 1 means "as few as possible".
    nodes: int = 1
    cpus_per_accelerator: float = 0.0
    memory_bytes_per_accelerator: int = 0
    #: Whether the gang may be in several pools: at the pace of its slowest accelerator, and, if its ranks share each
    #: batch by speed, at the sum of their speeds.
    mixed: bool = False
    shares: bool = False
    #: Pools whose machines may hold the gang, by id; empty: every pool.
    pools: tuple[str, ...] = ()
    #: What a machine must have to prepare the gang (`walras.machines.machine_facts`): of each entry, one.
    tools: ToolNeeds = ()

    def accepts(self, pool: Pool) -> bool:
        """Whether the gang may run on machines such as this pool's, however many they are."""
        if self.pools and pool.pool_id not in self.pools:
            return False
        return self.demand_on(pool.shape.accelerator) is not None

    def demand_on(self, accelerator: str) -> Demand | None:
        """Returns the demand that holds on this type: one that names it, else its family, else any; None: none does."""
        found = None
        for demand in self.demands:
            if demand.accelerator == accelerator:
                return demand
            if demand.accelerator == ANY_ACCELERATOR:
                found = found or demand
            elif covers(demand.accelerator, accelerator):
                found = demand
        return found

    def size_on(self, pool: Pool) -> int:
        """Returns the accelerators that the gang takes on this pool; 0 if it cannot run there."""
        if pool.removed or not self.accepts(pool):
            return 0
        demand = self.demand_on(pool.shape.accelerator)
        count = 0 if demand is None else demand.count
        if self.nodes > 1 and (count % self.nodes or count // self.nodes > pool.shape.accelerators):
            return 0
        return count

    def plan_of(self, counts: Mapping[str, int]) -> GangPlan | None:
        """Returns the plan that takes just this many accelerators of each type; None: there is none."""
        uses = tuple(Demand(name, counts[name]) for name in sorted(counts))
        exact = next((plan for plan in self.plans if plan.uses == uses), None)
        return exact or next((plan for plan in self.plans if plan.is_of(uses)), None)

    def accepts_part(self, use: Demand, pool: Pool) -> bool:
        """Returns whether this part of a plan may be on machines such as this pool's: owned ones, wherever the gang
        may run.
        """
        own = pool.market is Market.OWNED and not pool.removed
        return own and replace(self, demands=(use,)).accepts(pool)

    def mixes_on(self, pool: Pool) -> int:
        """Returns the accelerators of the whole gang if it may have a part of itself in this pool, which is owned;
        else 0.
        """
        return self.size_on(pool) if self.mixed and pool.market is Market.OWNED else 0

    @property
    def has_roles(self) -> bool:
        """Whether it has several roles, whose speed together is measured."""
        return bool(self.plans and self.plans[0].roles)

    @property
    def is_measured_spread(self) -> bool:
        """Whether its speed over several pools counts: one of ranks that share each batch, or of several roles."""
        return self.shares or self.has_roles

    @property
    def gang_request(self) -> "GangRequest":
        """Returns only this part of a request: equal for all jobs whose gangs are alike."""
        return GangRequest(**dict(zip(_GANG_FIELDS, _gang_values(self), strict=True)))

    @property
    def text(self) -> str:
        """The acceptable gangs in words, such as `2 x a100 or 4 x v100`."""
        needs = "".join(f" with {' or '.join(any_of)}" for any_of in self.tools)
        words = [f"{d.count} x {'any' if d.accelerator == ANY_ACCELERATOR else d.accelerator}" for d in self.demands]
        if self.plans:
            more = (f"{len(self.plans) - _PLANS_NAMED} plans more",) if len(self.plans) > _PLANS_NAMED else ()
            words = [*(plan.text for plan in self.plans[:_PLANS_NAMED]), *more]
        return " or ".join(words) + (f" of {' or '.join(self.pools)}" if self.pools else "") + needs


def roles_of(request: GangRequest, machines: Sequence[tuple[str, int]]) -> tuple[RoleUse, ...]:
    """Returns the roles of the plan that has these accelerators (type and number of each machine); none without it."""
    held: dict[str, int] = {}
    for name, count in machines:
        held[name] = held.get(name, 0) + count
    plan = request.plan_of(held)
    return () if plan is None else plan.roles


def fill_machines(pieces: Sequence[int], rooms: Iterable[int]) -> list[list[int]]:
    """Returns the pieces, accelerators of each, that machines with so much room take in turn.

    The first one is the first machine's; each machine takes the largest of the others that it has room for. One with
    just the room of what it takes takes the same, so a place tells which piece is where.
    """
    left, found = Counter(pieces), list[list[int]]()
    sizes = sorted(left, reverse=True)
    for room in rooms:
        taken = list(pieces[:1]) if not found and room >= pieces[0] else []
        left.subtract(taken)
        for size in sizes:
            many = min(left[size], (room - sum(taken)) // size)
            taken += [size] * many
            left[size] -= many
        found.append(taken)
    return found


def place_roles(roles: Sequence[RoleUse], machines: Sequence[tuple[str, int]]) -> list[list[tuple[RoleUse, int]]]:
    """Returns the processes on each machine, as role and index, which have all its accelerators.

    Processes without accelerators are on the first machine. Raises ValueError where `fill_machines` fills others.

    Args:
        roles: the leading role first; its first process is on the first machine of its type.
        machines: accelerator type and number of accelerators of each.
    """
    plan, begun = GangPlan((), 0.0, tuple(roles)), [0] * len(roles)
    places = [list[tuple[RoleUse, int]]() for _ in machines]

    def begin(machine: int, each: int, accelerator: str) -> None:
        able = (row for row, role in enumerate(roles) if role.each == each and begun[row] < role.count)
        row = next(row for row in able if not each or covers(roles[row].accelerator, accelerator))
        places[machine].append((roles[row], begun[row]))
        begun[row] += 1

    for name in dict.fromkeys(name for name, _ in machines):
        here = [row for row, (each, _) in enumerate(machines) if each == name]
        for machine, pieces in zip(
            here, fill_machines(plan.pieces_on(name), [machines[row][1] for row in here]), strict=True
        ):
            for piece in pieces:
                begin(machine, piece, name)
    for _ in range(sum(role.count for role in roles if not role.each)):
        begin(0, 0, "")
    if begun != [role.count for role in roles] or any(
        sum(role.each for role, _ in here) != count for here, (_, count) in zip(places, machines, strict=True)
    ):
        raise ValueError(f"{plan.text} are not what fills {list(machines)}")
    return places


# Cached: every submission compares itself with like jobs.
_GANG_FIELDS = tuple(field.name for field in fields(GangRequest))
_gang_values = attrgetter(*_GANG_FIELDS)


@dataclass(frozen=True, slots=True)
class JobRequest(JobIdentity, JobLimits, GangRequest):
    """A job as the scheduler sees it. Stored and sent flat: the groups are not levels of the JSON."""

    job_id: JobId
    kind: Kind
    _: KW_ONLY
    #: The number of parts into which it may be forked: whole gangs with steps of their own, averaged now and then. 1:
    #: never.
    fork_max: int = 1
    #: Total work in steps; None when unknown.
    steps: float | None = None
    #: The submitter's guess of the run time on the best accelerator, seconds; None when unknown.
    duration_s: float | None = None
    retry: RetryRule = RetryRule()
    depends_on: tuple[JobId, ...] = ()
    #: Whether a dependency only has to end; if not, it has to succeed.
    depends_on_any_end: bool = False
    #: Whether it was submitted on hold, not to start until released.
    held: bool = False
    #: Whether nothing shows that it saves its work when asked to stop; until something does, it is not stopped for
    #: others.
    unproven: bool = False
    #: The sweep to which it belongs, named by the first of its jobs, and how many of those may run at once (0: all).
    sweep: JobId | None = None
    sweep_limit: int = 0
    #: Seconds between two checkpoints as its owner states it; None: as the scheduler plans.
    checkpoint_every_s: float | None = None
    #: Keys of its inputs, by which machines report what they have fetched (`walras.machines.machine_facts.data_key`).
    data: tuple[str, ...] = ()
    #: Declared speeds (accelerator type, steps per second of the whole gang): believed until measured.
    declared: tuple[tuple[str, float], ...] = ()
    #: Digest of the code that its machines get, its command and its environment; empty: none is known.
    program: str = ""
    #: What it takes of an accelerator that it may share with another job; None: it does not share.
    shared: DeviceShare | None = None

    @property
    def owners(self) -> tuple[str, str]:
        """The project and the user of the job, as entities of shares and limits are called."""
        return self.project, f"{self.project}/{self.user}"

    @property
    def spreads(self) -> bool:
        """Whether it may run otherwise than as one gang in one pool."""
        return self.mixed or self.fork_max > 1 or bool(self.plans)

    @property
    def priority_class(self) -> int:
        """0 low, 1 normal, 2 high. A higher class preempts a lower one; inside a class, shares decide."""
        return (self.priority > 33) + (self.priority > 66)


def group_fields(job: object, *groups: type[JobIdentity | JobLimits | GangRequest]) -> dict[str, Any]:
    """Returns the fields of these groups by name, to construct another representation of the same job."""
    return {name: getattr(job, name) for group in groups for name in _GROUP_FIELDS[group]}


#: A table, because every submitted job needs the names and `dataclasses.fields` is slow.
_GROUP_FIELDS: dict[type, tuple[str, ...]] = {
    group: tuple(field.name for field in fields(group)) for group in (JobIdentity, JobLimits, GangRequest)
}
