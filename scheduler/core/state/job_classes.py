"""Classes of equal jobs: one class per (kind, demands, resources), with its speed on every pool.

A class has one gang size on each pool. An elastic job changes its class: each of its sizes is a class of its own, and a
decision that gives the job another size puts it into another class.

Classes make large problems small (equal jobs are solved as one) and events cheap: a new speed changes a class, not its
jobs. A *resource shape* is coarser: classes of one shape take the same accelerators, processors and memory on every
pool, so their jobs compete for a place on equal terms, whatever their speed.

Any accelerators of several pools would make a gang, and there are far too many sets of them. Listed for a job are at
most `GANGS_MAX`: those over the fewest pools first, because each link costs, and of these the fastest first. Large
gangs are cut into an eighth at the smallest, or into all that a pool has.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from statistics import median

import numpy as np
from numpy.typing import NDArray

from scheduler.core.state.throughput import SpeedSource, ThroughputTable
from walras.cluster import Pool
from walras.job_request import (
    ANY_ACCELERATOR,
    AVERAGING_LOSS,
    MIXING_LOSS,
    Demand,
    GangRequest,
    JobRequest,
    Kind,
    ToolNeeds,
    can_prepare,
)
from walras.spec.accelerator_names import covers

#: (pool row, accelerators) of each pool of a gang, ascending by pool.
_Parts = tuple[tuple[int, int], ...]

#: Maximum of gangs over several pools considered for a class of jobs, and of pools among which every set is tried.
GANGS_MAX = 32
POOLS_MAX = 6
#: Over up to so many pools every cut is tried; over more, all that each pool has but for one.
_EVERY_CUT = 3
_CUTS = 8


def gangs_over_pools(gang: int, speeds: Sequence[float], most: Sequence[int]) -> list[_Parts]:
    """Returns the gangs over two pools or more that are considered.

    Args:
        gang: accelerators of the whole gang.
        speeds: of the whole gang in each pool alone, in steps per second; 0 where no part of it may be.
        most: accelerators that each pool has.
    """
    able = sorted((row for row in range(len(speeds)) if speeds[row] > 0 < most[row]), key=lambda row: -speeds[row])
    found = set[_Parts]()
    ranked: list[_Parts] = []

    def take(gangs: Iterator[_Parts]) -> None:
        new = set(gangs) - found
        found.update(new)
        ranked.extend(sorted(new, key=lambda parts: (-sum(speeds[row] * count for row, count in parts), parts)))

    for pools in range(2, min(len(able), gang, POOLS_MAX) + 1):
        if len(ranked) >= GANGS_MAX:
            break
        take(each for rows in combinations(able[:POOLS_MAX], pools) for each in _cuts(gang, rows, most))
    if not ranked:
        take(_fastest(gang, able, most))
    return ranked[:GANGS_MAX]


def _cuts(gang: int, rows: Sequence[int], most: Sequence[int]) -> Iterator[_Parts]:
    """Yields the gangs that have a part in each of these pools."""
    step = -(-gang // _CUTS)
    if len(rows) <= _EVERY_CUT:
        counts = [sorted({*range(step, min(most[row], gang - 1) + 1, step), min(most[row], gang - 1)}) for row in rows]
    else:
        counts = [[most[row]] for row in rows]
    for rest in range(len(rows)):
        others = [*rows[:rest], *rows[rest + 1 :]]
        for chosen in product(*counts[:rest], *counts[rest + 1 :]):
            left = gang - sum(chosen)
            if 0 < left <= most[rows[rest]]:
                yield tuple(sorted([*zip(others, chosen, strict=True), (rows[rest], left)]))


def _fastest(gang: int, able: Sequence[int], most: Sequence[int]) -> Iterator[_Parts]:
    """Yields the gang with as many accelerators of the fastest pools as there are, if that is one over several."""
    left, parts = gang, list[tuple[int, int]]()
    for row in able:
        if left > 0:
            parts.append((row, min(left, most[row])))
            left -= parts[-1][1]
    if left <= 0 and len(parts) > 1:
        yield tuple(sorted(parts))


#: Maximum of placements considered for one plan of several types: choices of an owned pool for each type.
PLAN_PLACES_MAX = 16

#: (pool row, accelerators) of each pool of an attempt.
PoolParts = tuple[tuple[int, int], ...]
#: The different tool sets of a pool's machines; empty: a machine, present or to come, may have all tools.
ToolSets = frozenset[frozenset[str]]


@dataclass(frozen=True, slots=True)
class ResourceShape:
    """What a gang takes: accelerators by pool (0: cannot run there), machines, and resources per accelerator."""

    counts: tuple[int, ...]
    nodes: int
    cpus: float
    memory_bytes: int
    #: Tools that each of its machines must have.
    tools: ToolNeeds = ()


@dataclass(slots=True)
class JobClass:
    kind: Kind
    request: GangRequest
    #: Row of `JobClasses.shapes`.
    shape: int
    #: Steps per second by pool; 0 where it cannot run.
    rates: NDArray[np.float64]
    #: Whether that speed was measured, or shared and bounded by one that its project knows, by pool.
    measured: tuple[bool, ...] = ()
    #: Speed on the best pool that exists; 0 if there is none.
    best_rate: float = 0.0
    #: The rates as Python floats: reading one of them is cheaper than reading an array.
    speeds: tuple[float, ...] = ()
    #: Pools on which it can run: in their order, and fastest first.
    pools: tuple[int, ...] = ()
    fastest: tuple[int, ...] = ()
    #: For attempts over several pools or of several whole gangs: what they hold in each pool. Such a class has its
    #: total speed and count on the first of these pools alone. Empty: one gang in one pool.
    parts: PoolParts = ()

    @property
    def gang(self) -> int:
        """Returns the accelerators of its largest gang."""
        return max((demand.count for demand in self.request.demands), default=1)


@dataclass(frozen=True, slots=True, eq=False)
class ClassWays:
    """How jobs of each class can run, given the most accelerators that each pool may come to have (p,).

    Parallel arrays sorted by class, then pool, then gang size (w,); those of class i are first[i]:first[i + 1].
    """

    most: NDArray[np.float64]
    first: NDArray[np.int64]
    pool: NDArray[np.int64]
    count: NDArray[np.float64]
    steps_per_s: NDArray[np.float64]
    #: Accelerators of the machines over which the gang is spread; 0: it need not be spread.
    room: NDArray[np.float64]


class JobClasses:
    """All classes seen so far. Rows are never removed: there are few, whatever the number of jobs."""

    def __init__(self, table: ThroughputTable) -> None:
        self._table = table
        self._pools: list[Pool] = []
        #: Tool sets by pool; pools beyond the end of the list may have any tools.
        self._tools: Sequence[ToolSets] = ()
        #: Speed of the pools' machines relative to what is usual for their type; beyond the end of the list 1.
        self._paces: Sequence[float] = ()
        self._nominal: dict[str, float] = {}
        self._index: dict[tuple[object, ...], int] = {}
        self._by_kind: dict[Kind, list[int]] = {}
        self._shape_index: dict[ResourceShape, int] = {}
        self.shapes: list[ResourceShape] = []
        #: Rows of shapes of elastic jobs.
        self.elastic_shapes: set[int] = set()
        self.classes: list[JobClass] = []
        self._rates: NDArray[np.float64] | None = None
        self._counts: NDArray[np.float64] | None = None
        self._shape_rows: NDArray[np.int64] | None = None
        self._all_measured: bool | None = None
        self._options: dict[int, tuple[int, ...]] = {}
        self._plan_ways: dict[int, tuple[tuple[PoolParts, float], ...]] = {}
        #: Cache of `mixes`, for the `version` and the accelerators for which it holds.
        self._mixes: dict[int, tuple[tuple[PoolParts, float], ...]] = {}
        self._mixes_for: tuple[int, tuple[int, ...]] = (-1, ())
        #: Cache of `option_table`, and the number of classes when it was made.
        self._option_of = self._option = np.zeros(0, np.int64)
        self._option_classes = 0
        self._option_machines = np.zeros(0, np.int64)
        #: Cache of `ways`.
        self._ways: ClassWays | None = None
        #: Changes whenever a speed may have changed.
        self.version = 0

    def copy(self) -> "JobClasses":
        """Returns these classes, to which others can be added."""
        found = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (list, dict, set)):
                setattr(found, name, value.copy())
        found._by_kind = {kind: list(rows) for kind, rows in self._by_kind.items()}
        return found

    def row(self, job: JobRequest) -> int:
        """Returns the row of the class of a job that runs as it requested; makes the class if it is new."""
        return self._row(job.kind, job.gang_request)

    def resized(self, row: int, chosen: Mapping[str, int]) -> int:
        """Returns the row of the class with other counts (by accelerator type); types not in `chosen` keep theirs."""
        like = self.classes[row]
        counts = {demand.accelerator: demand.count for demand in like.request.demands}
        counts.update(sorted(chosen.items()))
        return self._alike(row, tuple(Demand(accelerator, count) for accelerator, count in counts.items()))

    def of_kind(self, row: int, kind: Kind) -> int:
        """Returns the row of the class that differs from this one in its kind only."""
        return self._row(kind, self.classes[row].request, self.classes[row].parts)

    def spread(self, row: int, parts: PoolParts) -> int:
        """Returns the row of the class as which a job of this class runs over these parts."""
        like = self.classes[row]
        return self._row(like.kind, replace(like.request, sizes=()), parts)

    def options(self, row: int) -> tuple[int, ...]:
        """Returns the rows of the classes that a decision may choose for a job of this class; itself if it is rigid."""
        found = self._options.get(row)
        if found is None:
            like = self.classes[row]
            types = [demand.accelerator for demand in like.request.demands]
            types = [ANY_ACCELERATOR] if ANY_ACCELERATOR in types else types
            found = self._options[row] = tuple(
                self._alike(row, tuple(Demand(accelerator, size) for accelerator in types))
                for size in like.request.sizes
            ) or (row,)
        return found

    def plan_ways(self, row: int) -> tuple[tuple[PoolParts, float], ...]:
        """Returns how a job of this class may run its plans other than as the class itself: parts, steps per second.

        These are plans of several types, and of one type with another count, in owned pools, one for each type.
        """
        found = self._plan_ways.get(row)
        if found is None:
            found = self._plan_ways[row] = tuple(self._ways_of_plans(self.classes[row].kind, self.classes[row].request))
        return found

    def _ways_of_plans(self, kind: Kind, request: GangRequest) -> Iterator[tuple[PoolParts, float]]:
        able = {
            use.accelerator: [
                row
                for row, pool in enumerate(self._pools)
                if request.accepts_part(use, pool) and self._can_prepare(row, request.tools)
            ]
            for use in {use.accelerator: use for plan in request.plans for use in plan.uses}.values()
        }
        for plan in request.plans:
            choices = product(*(able[use.accelerator] for use in plan.uses))
            for rows in islice(choices, PLAN_PLACES_MAX):
                parts = tuple(sorted((row, use.count) for row, use in zip(rows, plan.uses, strict=True)))
                if len(parts) > 1 or request.size_on(self._pools[parts[0][0]]) != parts[0][1]:
                    yield parts, self._rate_over(kind, request, parts, ())

    def mixes(self, row: int, most: Sequence[int]) -> tuple[tuple[PoolParts, float], ...]:
        """Returns the gangs over several pools that are listed for a job of this class: parts, steps per second.

        None where whole gangs leave no accelerator of their pools over: then gangs over several only fragment them.
        Those at the pace of the slowest only where a pool does not hold a whole gang: policies make the others at their
        prices. `most`: accelerators of each pool.
        """
        request = self.classes[row].request
        if not request.mixed:
            return ()
        if self._mixes_for != (self.version, tuple(most)):
            self._mixes, self._mixes_for = {}, (self.version, tuple(most))
        found = self._mixes.get(row)
        if found is None:
            gangs, kind = [request.mixes_on(pool) for pool in self._pools], self.classes[row].kind
            speeds = [speed * (gang > 0) for speed, gang in zip(self.classes[row].speeds, gangs, strict=True)]
            here = [(gang, many) for gang, many in zip(gangs, most, strict=True) if gang and many]
            leaves = (
                any(many % gang for gang, many in here) if request.shares else any(gang > many for gang, many in here)
            )
            several = gangs_over_pools(max(gangs, default=0), speeds, most) if leaves else []
            if not request.shares:
                several.reverse()  # of equal pace, those with the fewest fast accelerators first
            rated = ((parts, self._rate_over(kind, request, parts, gangs)) for parts in several)
            found = self._mixes[row] = tuple(rated)
        return found

    def shape(self, row: int) -> ResourceShape:
        """Returns what a gang of the class takes."""
        return self.shapes[self.classes[row].shape]

    def count(self, row: int, pool: int) -> int:
        """Returns the accelerators that a gang of the class takes of the pool; 0 where it cannot run."""
        return self.shapes[self.classes[row].shape].counts[pool]

    @property
    def option_table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns (class, option) for every option of every class, as two parallel arrays, classes ascending."""
        if self._option_classes != len(self.classes):
            row = 0
            while row < len(self.classes):  # options of a class may be new classes with options of their own
                self.options(row)
                row += 1
            options = [self.options(row) for row in range(len(self.classes))]
            lengths = [len(of) for of in options]
            self._option = np.array([option for of in options for option in of], dtype=np.int64)
            self._option_of = np.repeat(np.arange(len(options)), lengths)
            self._option_classes = len(self.classes)
            self._option_machines = np.array([self.classes[row].request.nodes for row in self._option], dtype=np.int64)
        return self._option_of, self._option

    def machine_room(self) -> NDArray[np.float64]:
        """Returns the accelerators of the machines over which each option of `option_table` is spread, by pool (n, p).

        0 for options that need not be spread.
        """
        _, option = self.option_table
        size = np.array([pool.shape.accelerators for pool in self._pools], dtype=np.float64)
        machines = np.where(self._option_machines > 1, self._option_machines, 0)
        return np.asarray(machines[:, None] * size).reshape(len(option), len(self._pools))

    def fits_machines(self, most: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Returns whether pools of `most` accelerators (p,) have the machines that each option of `option_table` needs.

        The result has shape (n, p). An option needs as many machines as it is spread over, each with room for its part.
        """
        _, option = self.option_table
        if (self._option_machines <= 1).all():
            return np.ones((len(option), len(self._pools)), dtype=np.bool_)
        room = self.machine_room()
        return np.asarray((room == 0) | ((room <= most) & (self.counts[option] <= room)))

    def ways(self, most: NDArray[np.float64]) -> ClassWays:
        """Returns how jobs of each class can run on pools that may come to have `most` accelerators (p,)."""
        owner, option = self.option_table
        if self._ways is not None and np.array_equal(self._ways.most, most):
            return self._ways
        counts, rates = self.counts[option], self.rates[option]
        at, pool = np.nonzero((counts > 0) & (counts <= most) & (rates > 0) & self.fits_machines(most))
        count, steps_per_s, room = counts[at, pool], rates[at, pool], self.machine_room()[at, pool]
        if len(owner) > len(self.classes):  # a class may have several gang sizes
            order = np.lexsort((count, pool, owner[at]))
            at, pool, count, steps_per_s, room = at[order], pool[order], count[order], steps_per_s[order], room[order]
        first = np.searchsorted(owner[at], np.arange(len(self.classes) + 1))
        self._ways = ClassWays(most, first, pool, count, steps_per_s, room)
        return self._ways

    def _alike(self, row: int, demands: tuple[Demand, ...]) -> int:
        like = self.classes[row]
        return self._row(like.kind, replace(like.request, demands=demands))

    def _row(self, kind: Kind, request: GangRequest, parts: PoolParts = ()) -> int:
        key = (kind, request, parts)
        row = self._index.get(key)
        if row is None:
            row = self._index[key] = len(self.classes)
            self._by_kind.setdefault(kind, []).append(row)
            new = JobClass(kind, request, shape=-1, rates=np.zeros(0), parts=parts)
            self.classes.append(new)
            self._refresh(new)
        return row

    @property
    def nominal(self) -> dict[str, float]:
        """Returns nominal speeds by accelerator type, from which unmeasured speeds are scaled; read only."""
        return self._nominal

    @property
    def rates(self) -> NDArray[np.float64]:
        """Returns steps per second of every class on every pool (classes, pools); read only."""
        if self._rates is None:
            rows = [job_class.rates for job_class in self.classes]
            self._rates = np.array(rows).reshape(len(rows), len(self._pools))
        return self._rates

    @property
    def all_measured(self) -> bool:
        """Returns whether no class could run on a pool at an unmeasured speed."""
        if self._all_measured is None:
            rows = (zip(each.speeds, each.measured, strict=True) for each in self.classes)
            self._all_measured = all(measured or not speed for row in rows for speed, measured in row)
        return self._all_measured

    @property
    def shape_rows(self) -> NDArray[np.int64]:
        """Returns the row of the shape of every class; read only."""
        if self._shape_rows is None:
            self._shape_rows = np.array([job_class.shape for job_class in self.classes], dtype=np.int64)
        return self._shape_rows

    @property
    def counts(self) -> NDArray[np.float64]:
        """Returns accelerators of a gang of every class on every pool, 0 where it cannot run (classes, pools)."""
        if self._counts is None:
            rows = [self.shapes[job_class.shape].counts for job_class in self.classes]
            self._counts = np.array(rows, dtype=np.float64).reshape(len(rows), len(self._pools))
        return self._counts

    def declare(self, job: JobRequest) -> None:
        """Takes over the speeds that a submitter declared."""
        for accelerator, steps_per_s in job.declared:
            for demand in job.demands:
                speaks_of = demand.types_of((accelerator,)) or covers(accelerator, demand.accelerator)
                if speaks_of and self._table.declare(job.kind, accelerator, demand.count, steps_per_s):
                    self.refresh_kind(job.kind)

    def pools_changed(self, pools: Sequence[Pool], tools: Sequence[ToolSets] = (), paces: Sequence[float] = ()) -> None:
        """Recomputes every class, because the list of pools grew, or a pool's shape or its machines' pace changed.

        `tools`, `paces`: of their machines.
        """
        self._pools, self._tools, self._paces = list(pools), list(tools), list(paces)
        self._nominal = {pool.shape.accelerator: pool.shape.nominal_speed for pool in pools}
        self._shape_index.clear()
        self._plan_ways.clear()
        self.shapes.clear()
        self.elastic_shapes.clear()
        for job_class in self.classes:
            self._refresh(job_class)

    def tools_changed(self, tools: Sequence[ToolSets]) -> bool:
        """Sets the tools of the pools' machines. Returns whether classes that need tools were recomputed."""
        if list(tools) == list(self._tools):
            return False
        self._tools = list(tools)
        self._plan_ways.clear()
        stale = [job_class for job_class in self.classes if job_class.request.tools]
        for job_class in stale:
            self._refresh(job_class)
        return bool(stale)

    def _can_prepare(self, pool: int, needs: ToolNeeds) -> bool:
        """Returns whether a machine of the pool may have the tools that the gang needs."""
        sets = self._tools[pool] if pool < len(self._tools) else ()
        return not sets or any(can_prepare(tools, needs) for tools in sets)

    def of(self, kind: Kind) -> list[JobClass]:
        """Returns the classes whose jobs are of this kind."""
        return [self.classes[row] for row in self._by_kind.get(kind, ())]

    def refresh_kind(self, kind: Kind) -> None:
        """Recomputes the classes of a kind whose published speed changed."""
        self._plan_ways.clear()
        for each in (kind, *self._table.derived(kind)):
            for row in self._by_kind.get(each, ()):
                self._refresh(self.classes[row])

    def _refresh(self, job_class: JobClass) -> None:
        request = job_class.request
        gangs = tuple(request.size_on(pool) for pool in self._pools)
        if request.tools:
            gangs = tuple(size * self._can_prepare(pool, request.tools) for pool, size in enumerate(gangs))
        parts = () if any(self._pools[pool].removed for pool, _ in job_class.parts) else job_class.parts
        counts = _counts_on_first_pool(parts, len(gangs)) if parts else gangs
        cpus, memory_bytes = request.cpus_per_accelerator, request.memory_bytes_per_accelerator
        shape = ResourceShape(counts, request.nodes, cpus, memory_bytes, request.tools)
        row = self._shape_index.get(shape)
        if row is None:
            row = self._shape_index[shape] = len(self.shapes)
            self.shapes.append(shape)
        job_class.shape = row
        if request.sizes:
            self.elastic_shapes.add(row)
        job_class.rates = np.zeros(len(self._pools))
        measured = [False] * len(self._pools)
        if parts:
            first = parts[0][0]
            rate = self._rate_over(job_class.kind, request, parts, gangs)
            job_class.rates[first], measured[first] = rate, True
        for p, pool in enumerate(self._pools):
            if counts[p] and request.plans and not parts:
                job_class.rates[p], measured[p] = _planned_rate(request, {pool.shape.accelerator: counts[p]}), True
            elif counts[p] and not parts:
                speed = self._table.speed(job_class.kind, pool.shape.accelerator, counts[p], self._nominal)
                job_class.rates[p] = speed.steps_per_s
                is_bounded = speed.source is SpeedSource.SHARED and self._table.is_measured_or_declared(job_class.kind)
                measured[p] = is_bounded or speed.source is SpeedSource.MEASURED
        for p, pace in enumerate(self._paces):
            job_class.rates[p] *= pace if not parts else 1.0
        job_class.measured = tuple(measured)
        job_class.best_rate = float(job_class.rates.max(initial=0.0))
        job_class.speeds = tuple(job_class.rates.tolist())
        job_class.pools = tuple(np.flatnonzero(job_class.rates > 0).tolist())
        job_class.fastest = tuple(sorted(job_class.pools, key=lambda pool: -job_class.speeds[pool]))
        self._rates = self._counts = self._shape_rows = self._all_measured = self._ways = None
        self.version += 1

    def _rate_over(self, kind: Kind, request: GangRequest, parts: PoolParts, gangs: Sequence[int]) -> float:
        """Returns steps/s over several parts: of a gang that shares batches as measured, if it was; else estimated
        from each pool's speed alone.
        """
        held = self.types_of(parts)
        if request.has_roles:
            return self._rate_of_roles(kind, request, held)
        if request.plans:
            return _planned_rate(request, held)
        if request.shares and (known := self._table.measured_mix(kind, held)) is not None:
            return known
        alone = []
        for pool, _ in parts:
            accelerator = self._pools[pool].shape.accelerator
            speed = self._table.speed(kind, accelerator, gangs[pool], self._nominal).steps_per_s
            alone.append(speed * self._paces[pool] if self._paces else speed)
        if request.shares and not is_fork(parts, gangs):
            shared = sum(rate * count / gangs[pool] for (pool, count), rate in zip(parts, alone, strict=True))
            return shared * self._table.mixing_part(kind, self._nominal)
        return multi_pool_rate(parts, gangs, alone)

    def _rate_of_roles(self, kind: Kind, request: GangRequest, held: Mapping[str, int]) -> float:
        """Returns steps/s of the plan with these accelerators: as measured, else as assumed, corrected by the plans
        that were measured.
        """
        ran = self._table.measured_mixes(kind)
        ratios = [
            speed / _planned_rate(request, dict(each)) for each, speed in ran.items() if request.plan_of(dict(each))
        ]
        return ran.get(tuple(sorted(held.items())), _planned_rate(request, held) * (median(ratios) if ratios else 1.0))

    def types_of(self, parts: PoolParts) -> dict[str, int]:
        """Returns the accelerators of each type in these parts."""
        held: dict[str, int] = {}
        for pool, count in parts:
            name = self._pools[pool].shape.accelerator
            held[name] = held.get(name, 0) + count
        return held


def _planned_rate(request: GangRequest, counts: Mapping[str, int]) -> float:
    """Returns steps/s of the stated plan that takes these accelerators; 0 if there is none."""
    plan = request.plan_of(counts)
    return 0.0 if plan is None else plan.steps_per_s


def multi_pool_rate(parts: PoolParts, gangs: Sequence[int], alone: Sequence[float]) -> float:
    """Returns steps per second of an attempt over several parts.

    The speeds of a fork's gangs are added; a mixed gang has the speed of its slowest part. Both are reduced by a loss
    for averaging or mixing.

    Args:
    parts: what it holds.
    gangs: accelerators of a whole gang, by pool row.
    alone: speed of a whole gang in each part's pool.
    """
    if is_fork(parts, gangs):
        whole = sum(count // gangs[pool] * rate for (pool, count), rate in zip(parts, alone, strict=True))
        return whole * (1.0 - AVERAGING_LOSS)
    return min(alone) * (1.0 - MIXING_LOSS)


def is_fork(parts: PoolParts, gangs: Sequence[int]) -> bool:
    """Returns whether these are several whole gangs; else they are one gang over several pools."""
    return all(gangs[pool] and count % gangs[pool] == 0 for pool, count in parts)


def _counts_on_first_pool(parts: PoolParts, pools: int) -> tuple[int, ...]:
    """Returns counts by pool with all accelerators counted on the first pool of the parts."""
    whole = sum(count for _, count in parts)
    return tuple(whole if pool == parts[0][0] else 0 for pool in range(pools))
