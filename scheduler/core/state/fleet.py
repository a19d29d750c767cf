"""The machines: free accelerators, which job holds what, where a gang fits, and what speaks against a machine.

`Fleet.find` is the search for a place without stopping any job; it runs at every event. The machines of a pool are kept
in buckets by their number of free accelerators (heaps with lazy deletion), so the cost of a search grows with the size
of a machine, not of the fleet. Ties go to the machine that joined first. The searches that wait or stop jobs are in
`placement/search.py`.

Kept beside is what speaks against a machine: failures of jobs that are evidence, faults of its devices, and what
follows in time; `handlers/quarantine.py` acts on it.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heappop, heappush
from math import inf

from scheduler.core.state.job_classes import PoolParts, ResourceShape, ToolSets
from scheduler.core.state.machine_lifetimes import MachineLifetimes
from scheduler.core.state.tools_and_data import DataCaches, PoolTools
from walras.cluster import Market, NodeId, NodeShare, Placement, Pool, PoolId
from walras.contract import EXIT_NOT_PREPARED, SECONDS_PER_HOUR
from walras.job_request import JobId, ToolNeeds, can_prepare
from walras.machines.topology import FreeMachine, blocks_of, holds, tightest_machines

#: Ending of the names of pools of slow machines.
SLOW_ENDING = "~slow"
#: Maximum of machines examined in a bucket where processors or memory (not accelerators) are lacking.
_TRIES = 32
_NONE: Set[int] = frozenset()
#: Maximum of blocks of one level that are searched for a gang.
_BLOCKS_MAX = 32


class MachineCondition(Enum):
    """Whether a machine takes jobs; only in UP does it."""

    UP = "up"
    UNREACHABLE = "unreachable"
    LEAVING = "leaving"
    QUARANTINED = "quarantined"
    RELEASED = "released"  # rented, and being returned
    BOOKED = "reserved"  # for one project's jobs only, or for maintenance (`bookings`)


#: A failure on a machine: its instant, the job, and the job's user.
MachineFailure = tuple[float, JobId, str]
#: Jobs of a single user are no evidence, however many fail: of this many users some must be.
_USERS_LEAST = 2
#: A shell's codes for a command that cannot be run, or is not there.
_NO_COMMAND = (126, 127)

#: Seconds until the first trial of a machine that was put aside, and the most doublings of them.
TRIAL_AFTER_S, _DOUBLINGS_MAX = 600.0, 5


def is_jobs_fault(exit_code: int | None, *, own_fault: bool) -> bool:
    """Returns whether a failure is certainly the job's: its command, its setup, or what its output ends with."""
    return own_fault or exit_code in (*_NO_COMMAND, EXIT_NOT_PREPARED)


def failed_jobs(failures: Iterable[MachineFailure], since_at: float, wanted: int) -> int:
    """Returns how many distinct jobs failed since then if that is evidence against the machine, else 0.

    `wanted`: the jobs that it takes.
    """
    recent = [failure for failure in failures if failure[0] >= since_at]
    jobs, users = {job_id for _, job_id, _ in recent}, {user for _, _, user in recent}
    return len(jobs) if len(jobs) >= wanted and len(users) >= min(_USERS_LEAST, wanted) else 0


@dataclass(slots=True)
class MachineStanding:
    """Whether the machine is at fault, as far as is known, and since how many tries."""

    #: Fault of its devices that its agent reports; empty: none.
    unfit: str = ""
    #: When it takes jobs on trial after it was put aside, whether it does now, and how often in a row it was put aside.
    trial_at: float = inf
    on_trial: bool = False
    times_aside: int = 0

    def put_aside(self, now: float) -> float:
        """Returns when the machine should be tried again: later each time, until something succeeds there."""
        self.on_trial = False
        self.trial_at = now + TRIAL_AFTER_S * 2 ** min(self.times_aside, _DOUBLINGS_MAX)
        self.times_aside += 1
        return self.trial_at

    def begin_trial(self, now: float) -> bool:
        """Begins the trial if it is due. Returns whether it does; never while the devices are at fault."""
        if self.unfit or now < self.trial_at:
            return False
        self.on_trial, self.trial_at = True, inf
        return True

    def clear(self) -> None:
        """Forgets that the machine was put aside for failures, since something succeeded or a person vouches for it."""
        self.on_trial, self.times_aside, self.trial_at = False, 0, inf


@dataclass(slots=True)
class FleetMachine:
    node_id: NodeId
    #: Row of the machine in `Fleet.machines`, and of its pool.
    row: int
    pool: int
    size: int
    free: list[int]
    free_cpus: float
    free_memory_bytes: int
    condition: MachineCondition = MachineCondition.UP
    detail: str = ""
    #: Token of the `Rent` that requested it; empty for owned machines.
    token: str = ""
    joined_at: float = 0.0
    #: Since when a rented machine is paid for; its billing steps are counted from then.
    paid_since: float = 0.0
    whole: str = ""  # name of the machine with several accelerator types of which this is a part; empty: it is whole
    idle_since: float = 0.0  # since when it holds no job
    #: Since when no paying job is planned on a rented machine; inf: one is.
    unpaid_since: float = inf
    #: Nothing was heard of it, so nobody knows what runs there; it may be drained or put aside as well.
    is_silent: bool = False
    #: Condition to return to when its heartbeats return.
    before: MachineCondition = MachineCondition.UP
    holders: dict[JobId, tuple[int, ...]] = field(default_factory=dict)
    #: When each held accelerator is free if no job is stopped, by which data (`remaining_work.expected_ends_on`).
    ends: list[float] = field(default_factory=list)
    ends_version: int = -1
    #: Devices in `holders` that two jobs share.
    shared: set[tuple[int, ...]] = field(default_factory=set)
    #: Rented, and the provider was asked to take it back.
    given_back: bool = False
    #: Jobs were revoked here for a preempting job that needs more devices: what is free already is kept from others.
    closed: bool = False
    #: While leaving: until when jobs that would lose their work may run on; -inf: none may.
    gentle_until: float = -inf
    #: Notice that the market gave before reclaiming it, seconds; None: no notice was given.
    warning_s: float | None = None
    #: Whether checkpoints saved here can be read nowhere else, as its test of the checkpoint store showed.
    is_private: bool = False
    #: Tools that it has reported; None: it has reported none, so it may have all.
    tools: frozenset[str] | None = None
    #: Tools as its pool counts it: its own and those needed by jobs that run there (`count_tools`).
    counted_tools: frozenset[str] | None = None
    data: frozenset[str] = frozenset()  # keys of data in its cache
    #: What it reported of downloads, as in `NodeData`.
    fetched: tuple[tuple[str, int, float], ...] = ()
    #: A person or the scheduler has it leave, so its end says nothing about machines' lifetimes.
    is_sent_away: bool = False
    standing: MachineStanding = field(default_factory=MachineStanding)
    #: Failures that may be the machine's fault.
    failures: deque[MachineFailure] = field(default_factory=lambda: deque(maxlen=16))

    @property
    def host(self) -> str:
        """Returns the name by which a topology knows the machine."""
        return self.whole or self.node_id

    def age_h(self, at: float) -> float:
        """Returns hours since a rented machine was first paid for, or an owned one joined."""
        return max(at - min(self.joined_at, self.paid_since), 0.0) / SECONDS_PER_HOUR


@dataclass(slots=True)
class PoolState:
    pool: Pool
    row: int
    #: Accelerators of machines that take jobs, and how many of them are free.
    capacity: int = 0
    free: int = 0
    machines: int = 0
    #: Present machines, by row.
    members: dict[int, FleetMachine] = field(default_factory=dict)
    #: Maximum of machines present at once so far: those that are away may return.
    most_machines: int = 0
    #: buckets[k]: heap of rows of machines that had k free accelerators when pushed.
    buckets: list[list[int]] = field(default_factory=list)
    #: Machines requested and not present yet: token -> number.
    awaited: dict[str, int] = field(default_factory=dict)
    #: Consecutive failed requests, the provider's last message, and when the next request may be made.
    rent_failures: int = 0
    rent_problem: str = ""
    rent_not_before: float = -inf
    #: Whether nothing of the last request came. If part of it came, the rest is requested once more.
    rent_refused: bool = False
    #: When idle machines are checked next; inf if no check is due.
    idle_look_at: float = inf
    lives: MachineLifetimes = field(default_factory=MachineLifetimes)
    #: Counts of its machines by `FleetMachine.counted_tools`.
    tools: PoolTools = field(default_factory=PoolTools)
    #: Row of the declared pool whose slow machines these are (None: it is one), and their speed relative to others'.
    slow_of: int | None = None
    pace: float = 1.0

    @property
    def name(self) -> PoolId:
        """Returns its name in problems. `pool` is that of the machines, so a pool of slow machines needs another."""
        return self.pool.pool_id if self.slow_of is None else PoolId(f"{self.pool.pool_id}{SLOW_ENDING}")

    @property
    def tool_sets(self) -> ToolSets:
        """Returns the different tool sets of its machines; empty if one has not reported, so it may have all."""
        return self.tools.sets(self.machines)

    def can_prepare(self, needs: ToolNeeds) -> bool:
        """Returns whether a machine of the pool may have all of these tools."""
        return not needs or not self.tool_sets or any(can_prepare(tools, needs) for tools in self.tool_sets)

    @property
    def rented(self) -> bool:
        return self.pool.market is not Market.OWNED

    @property
    def quota(self) -> int:
        """Returns how many machines may be rented; 0 for a pool that is drained."""
        return 0 if self.pool.drained else self.pool.quota


def _empty_pool(pool: Pool, row: int) -> PoolState:
    return PoolState(pool, row, buckets=[[] for _ in range(pool.shape.accelerators + 1)])


#: A place: (machine row, accelerators) for every machine, in node-rank order.
Place = tuple[tuple[int, int], ...]


class Fleet:
    """Pools in order of declaration, machines in order of joining (rows of lost machines stay empty)."""

    def __init__(self) -> None:
        self.pools: list[PoolState] = []
        self.machines: list[FleetMachine | None] = []
        #: Whether any machine has reported its tools.
        self.knows_tools = False
        #: Whether the machines of any pool cost something.
        self.has_prices = False
        self._pool_row: dict[PoolId, int] = {}
        #: Rows of removed pools, which they get back if declared again.
        self._removed_row: dict[PoolId, int] = {}
        self._machine_row: dict[NodeId, int] = {}
        #: Which machines have which data in their caches.
        self.caches = DataCaches()

    # ------------------------------------------------------------------------------------------ what there is

    def declare(self, pool: Pool) -> bool:
        """Adds a pool, or replaces its price and quota. Returns whether it is new."""
        row = self._pool_row.get(pool.pool_id)
        self.has_prices = self.has_prices or pool.usd_per_h > 0
        if row is not None:
            self.pools[row].pool = pool
            return False
        row = self._pool_row[pool.pool_id] = self._removed_row.pop(pool.pool_id, len(self.pools))
        self.pools[row : row + 1] = [_empty_pool(pool, row)]
        return True

    def drop(self, pool_id: PoolId) -> int:
        """Removes a pool without machines; its row stays, and nothing fits it. Returns the row."""
        row = self._pool_row.pop(pool_id)
        state = self.pools[row]
        assert not state.members, f"{pool_id} still has {state.machines} machines"
        assert not state.awaited, f"machines of {pool_id} are on their way"
        self._removed_row[pool_id] = row
        self.pools[row] = _empty_pool(replace(state.pool, usd_per_h=0.0, quota=0, removed=True), row)
        return row

    def pool_row(self, pool_id: PoolId) -> int | None:
        return self._pool_row.get(pool_id)

    def declared_row(self, row: int) -> int:
        slow_of = self.pools[row].slow_of
        return row if slow_of is None else slow_of

    def machine(self, node_id: NodeId) -> FleetMachine | None:
        row = self._machine_row.get(node_id)
        return None if row is None else self.machines[row]

    def whole(self, machine: FleetMachine) -> list[FleetMachine]:
        """Returns all parts of the machine with several accelerator types to which this one belongs, or itself."""
        if not machine.whole:
            return [machine]
        return [each for each in self.machines if each is not None and each.whole == machine.whole]

    def join(self, node_id: NodeId, pool: int, at: float, token: str, paid_since: float | None = None) -> FleetMachine:
        """Adds a (returning) machine with all accelerators free. `paid_since`: if it was paid for before."""
        state = self.pools[pool]
        shape = state.pool.shape
        machine = FleetMachine(
            node_id,
            len(self.machines),
            pool,
            shape.accelerators,
            list(range(shape.accelerators)),
            shape.cpus,
            shape.memory_bytes,
            token=token,
            joined_at=at,
            paid_since=at if paid_since is None else paid_since,
            idle_since=at,
        )
        self._machine_row[node_id] = machine.row
        self.machines.append(machine)
        state.members[machine.row] = machine
        state.machines += 1
        state.lives.began(at)
        state.most_machines = max(state.most_machines, state.machines)
        self._admit(machine)
        if token in state.awaited:
            state.awaited[token] -= 1
            if state.awaited[token] <= 0:
                del state.awaited[token]
        return machine

    def remove(self, machine: FleetMachine) -> None:
        """Removes a machine. Its holders must have been released."""
        assert not machine.holders, f"{machine.node_id} still holds {sorted(machine.holders)}"
        self.set_condition(machine, MachineCondition.LEAVING)
        self.pools[machine.pool].machines -= 1
        del self.pools[machine.pool].members[machine.row]
        del self._machine_row[machine.node_id]
        if machine.data:
            machine.data = self.caches.tell(machine.row, machine.data, {})
        if machine.counted_tools is not None:
            self.pools[machine.pool].tools.recount(machine.counted_tools, None)
        self.machines[machine.row] = None

    def set_condition(self, machine: FleetMachine, condition: MachineCondition, detail: str = "") -> None:
        """Sets whether a machine takes jobs. Accelerators of one that does not are no capacity."""
        was_up, is_up = machine.condition is MachineCondition.UP, condition is MachineCondition.UP
        machine.condition, machine.detail = condition, detail
        if was_up and not is_up:
            state = self.pools[machine.pool]
            state.capacity -= machine.size
            state.free -= len(machine.free)
        elif is_up and not was_up:
            self._admit(machine)

    def _admit(self, machine: FleetMachine) -> None:
        state = self.pools[machine.pool]
        state.capacity += machine.size
        state.free += len(machine.free)
        self._file(state, machine)

    def _file(self, state: PoolState, machine: FleetMachine) -> None:
        """Puts the machine where `find` looks for it. Full machines are not filed."""
        if not machine.free:
            return
        bucket = state.buckets[len(machine.free)]
        if len(bucket) > 64 + 4 * state.machines:  # mostly stale entries: keeps memory linear in machines
            bucket[:] = sorted(set(bucket))
        heappush(bucket, machine.row)

    # ------------------------------------------------------------------------------------------ finding a place

    def find(self, pool: int, shape: ResourceShape, data: Sequence[str] = (), closed: Set[int] = _NONE) -> Place | None:
        """Returns free accelerators for a gang of this shape, on as few machines as possible; None if there are none.

        Each part goes to the machine with the fewest free accelerators that suffice; of equal ones to the one with most
        of this data in its cache. Machines in the rows `closed` are skipped.
        """
        count = shape.counts[pool]
        state = self.pools[pool]
        if not count or state.free < count:
            return None
        parts: list[tuple[int, int]] = []
        warm = self.caches.rows_with(data, state.members) if data else ()
        split = split_gang(count, shape.nodes, state.pool.shape.accelerators)
        if state.pool.topology is not None and len(split) > 1:
            return self._tightest(state, split, shape, closed, warm)
        for wanted in split:
            machine = self._best_fit(state, wanted, shape, closed | {row for row, _ in parts}, warm)
            if machine is None:
                return None
            if state.pool.topology is not None and machine.row not in warm:
                machine = self._in_fullest_block(state, machine, wanted, shape, closed)
            parts.append((machine.row, wanted))
        return tuple(parts)

    def outside_blocks(self, pool: int, parts: Sequence[int]) -> list[Set[int]]:
        """Returns what to leave out of a pool to have such a gang close together, one set of rows after the other.

        They leave the lowest blocks that could hold it, those with most free first; the last one leaves everything.
        """
        state = self.pools[pool]
        found = list[Set[int]]()
        if state.pool.topology is not None and len(parts) > 1:
            links, members = state.pool.topology.links, state.members
            level = links.closest_level(parts, ((each.host, each.size) for each in members.values()))
            machines = [FreeMachine(row, each.size, 0, links.path(each.host)) for row, each in members.items()]
            blocks = [block for block in blocks_of(machines, level).values() if holds(parts, block)]
            blocks.sort(key=lambda block: -sum(len(members[each.row].free) for each in block))
            found = [members.keys() - {each.row for each in block} for block in blocks[:_BLOCKS_MAX]]
        return [*filter(None, found), _NONE]

    def gang_parts(self, pool: int, shape: ResourceShape) -> list[int]:
        """Returns the accelerators that a gang of this shape takes of each machine of the pool, largest first."""
        return split_gang(shape.counts[pool], shape.nodes, self.pools[pool].pool.shape.accelerators)

    def most_free(self, pool: int) -> int:
        """Returns an upper bound on the free accelerators of any machine of the pool."""
        state = self.pools[pool]
        for size in range(len(state.buckets) - 1, 0, -1):
            bucket = state.buckets[size]
            while bucket:
                machine = self.machines[bucket[0]]
                if machine is not None and machine.condition is MachineCondition.UP and len(machine.free) == size:
                    return size
                heappop(bucket)
        return 0

    def _best_fit(
        self, state: PoolState, wanted: int, shape: ResourceShape, taken: Set[int], warm: Sequence[int] = ()
    ) -> FleetMachine | None:
        """Returns the machine with the fewest free accelerators that still has `wanted`; None if there is none.

        Among machines with equally few it prefers those in `warm` (they hold the job's data), in that order. It passes
        over at most `_TRIES` machines of each free count for lack of processors or memory.
        """
        for size in range(wanted, len(state.buckets)):
            if not (bucket := state.buckets[size]):
                continue
            passed_over, tries = list[int](), 0
            found = self._first_warm(warm, size, wanted, shape, taken) if warm else None
            while bucket and found is None and tries < _TRIES:
                row = bucket[0]
                machine = self.machines[row]
                stale = machine is None or machine.condition is not MachineCondition.UP or len(machine.free) != size
                if machine is None or stale or row in passed_over[-1:]:
                    heappop(bucket)  # changed since it was pushed, or pushed twice
                elif row in taken or machine.closed or not can_prepare(machine.tools, shape.tools):
                    passed_over.append(heappop(bucket))
                elif not is_enough(machine.free_cpus, machine.free_memory_bytes, wanted, shape):
                    passed_over.append(heappop(bucket))
                    tries += 1
                else:
                    found = machine
            for row in passed_over:
                heappush(bucket, row)
            if found is not None:
                return found
        return None

    def _tightest(
        self, state: PoolState, parts: Sequence[int], shape: ResourceShape, closed: Set[int], warm: Sequence[int]
    ) -> Place | None:
        """Returns the machines that are nearest to each other, and of these the best fit (`tightest_machines`)."""
        assert state.pool.topology is not None
        links, rank = state.pool.topology.links, {row: place for place, row in enumerate(warm)}
        able = [
            FreeMachine(machine.row, most, rank.get(machine.row, len(rank)), links.path(machine.host))
            for machine in state.members.values()
            if self._is_open(machine, shape, closed) and (most := most_that_fit(machine, len(machine.free), shape))
        ]
        found = tightest_machines(parts, able)
        return None if found is None else tuple(found)

    def _in_fullest_block(
        self, state: PoolState, machine: FleetMachine, wanted: int, shape: ResourceShape, closed: Set[int]
    ) -> FleetMachine:
        """Returns the machine with as many accelerators free whose blocks have fewest: so whole blocks stay free."""
        assert state.pool.topology is not None
        many, path, free = len(machine.free), state.pool.topology.links.path, defaultdict[str, int](int)
        alike = [each for each in map(self.machines.__getitem__, {*state.buckets[many]}) if each is not None]
        alike = [each for each in alike if len(each.free) == many and self._is_open(each, shape, closed)]
        alike = [each for each in alike if is_enough(each.free_cpus, each.free_memory_bytes, wanted, shape)]
        for each in state.members.values() if len(alike) > 1 else ():
            for block in dict.fromkeys(path(each.host)):
                free[block] += len(each.free)
        return min(alike, key=lambda each: ([free[block] for block in path(each.host)], each.row))

    @staticmethod
    def _is_open(machine: FleetMachine, shape: ResourceShape, closed: Set[int]) -> bool:
        """Returns whether such a gang may have what is free on the machine, if that is enough."""
        is_up = machine.condition is MachineCondition.UP and machine.row not in closed and not machine.closed
        return is_up and bool(machine.free) and can_prepare(machine.tools, shape.tools)

    def _first_warm(
        self, rows: Iterable[int], size: int, wanted: int, shape: ResourceShape, taken: Set[int]
    ) -> FleetMachine | None:
        """Returns the first of these machines with exactly `size` accelerators free on which `wanted` of them fit."""
        for row in rows:
            machine = self.machines[row]
            if machine is None or len(machine.free) != size or not self._is_open(machine, shape, taken):
                continue
            if is_enough(machine.free_cpus, machine.free_memory_bytes, wanted, shape):
                return machine
        return None

    # ------------------------------------------------------------------------------------------ taking and giving

    def take(self, job_id: JobId, place: Place, shape: ResourceShape) -> Placement:
        """Assigns the place to the job."""
        parts = []
        first = self.machines[place[0][0]]
        assert first is not None
        for row, count in place:
            machine = self.machines[row]
            assert machine is not None
            devices = self.hold(job_id, machine, count, shape)
            elsewhere = None if machine.pool == first.pool else self.pools[machine.pool].pool.pool_id
            parts.append(NodeShare(machine.node_id, devices, elsewhere))
        return Placement(self.pools[first.pool].pool.pool_id, tuple(parts))

    def hold(self, job_id: JobId, machine: FleetMachine, count: int, shape: ResourceShape) -> tuple[int, ...]:
        """Gives the job `count` accelerators of this machine. Returns their numbers."""
        assert len(machine.free) >= count, f"{machine.node_id} has {machine.free}, wanted {count}"
        devices = machine.holders[job_id] = tuple(machine.free[:count])
        del machine.free[:count]
        machine.ends_version = -1
        self._changed(machine, -count, shape)
        return devices

    def parts_of(self, place: Iterable[tuple[int, int]]) -> PoolParts:
        """Returns (pool, accelerators) of each pool of a place, ascending; machines that are gone are left out."""
        found: dict[int, int] = {}
        for row, count in place:
            machine = self.machines[row]
            if machine is not None:
                found[machine.pool] = found.get(machine.pool, 0) + count
        return tuple(sorted(found.items()))

    def take_again(
        self, job_id: JobId, placement: Placement, shape: ResourceShape, lost: Collection[NodeId] = ()
    ) -> Place:
        """Gives a job exactly what it held before a restart of the core; `lost` machines may be back, as others."""
        place = []
        for part in placement.parts:
            machine = self.machine(part.node_id)
            if machine is None or part.node_id in lost:  # while the rest of the gang is still being stopped
                place.append((len(self.machines), len(part.devices)))
                self.machines.append(None)
                continue
            assert set(part.devices) <= set(machine.free), f"{part.node_id}: {part.devices} of job {job_id} are taken"
            machine.free = [device for device in machine.free if device not in part.devices]
            machine.holders[job_id] = part.devices
            machine.ends_version = -1
            self._changed(machine, -len(part.devices), shape)
            place.append((machine.row, len(part.devices)))
        return tuple(place)

    def give_back(self, job_id: JobId, machine: FleetMachine, shape: ResourceShape, at: float) -> None:
        """Frees all that the job holds on this machine."""
        devices = machine.holders.pop(job_id, ())
        if not devices:
            return
        machine.ends_version = -1
        if devices in machine.shared:
            machine.shared.discard(devices)  # the other job keeps them
            machine.free_cpus += len(devices) * shape.cpus
            machine.free_memory_bytes += len(devices) * shape.memory_bytes
            return
        machine.free.extend(devices)
        machine.free.sort()
        self._changed(machine, len(devices), shape)
        if not machine.holders:
            machine.idle_since = at

    def _changed(self, machine: FleetMachine, freed: int, shape: ResourceShape) -> None:
        machine.free_cpus += freed * shape.cpus
        machine.free_memory_bytes += freed * shape.memory_bytes
        if machine.condition is MachineCondition.UP:
            state = self.pools[machine.pool]
            state.free += freed
            self._file(state, machine)


def split_gang(count: int, nodes: int, machine_size: int) -> list[int]:
    """Returns accelerators per machine, largest first: even over several `nodes`, else on the fewest machines."""
    if nodes > 1:
        return [count // nodes] * nodes
    full, rest = divmod(count, machine_size)
    return [machine_size] * full + ([rest] if rest else [])


def is_enough(cpus: float, memory_bytes: int, accelerators: int, shape: ResourceShape) -> bool:
    """Returns whether these processors and this memory suffice for this many accelerators of a gang of this shape."""
    return cpus + 1e-9 >= accelerators * shape.cpus and memory_bytes >= accelerators * shape.memory_bytes


def most_that_fit(machine: FleetMachine, most: int, shape: ResourceShape) -> int:
    """Returns the largest number up to `most` for which the machine's free processors and memory suffice."""
    while most > 0 and not is_enough(machine.free_cpus, machine.free_memory_bytes, most, shape):
        most -= 1
    return most
