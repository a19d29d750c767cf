"""The machines: what is free where, which job holds it, and where a gang fits without stopping anybody.

`Fleet.find` is the search for a free place; it runs at every event. The machines of a pool are kept in buckets by
their number of free accelerators (heaps with lazy deletion), so a search costs the size of a machine, not the size of
the fleet. Ties go to the machine that joined first. The searches that wait or stop jobs are in `placement/search.py`.
"""

from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heappop, heappush
from math import inf

from scheduler.core.state.job_classes import PoolParts, ResourceShape, ToolSets
from scheduler.core.state.machine_lifetimes import MachineLifetimes
from scheduler.core.state.tools_and_data import DataCaches, PoolTools
from walras.cluster import Market, NodeId, NodeShare, Placement, Pool, PoolId
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import JobId, ToolNeeds, can_prepare

#: Machines looked at, at most, when processors or memory (not accelerators) decide.
_TRIES = 32
_NONE: Set[int] = frozenset()


class MachineCondition(Enum):
    """Whether a machine takes jobs. Only UP does."""

    UP = "up"
    UNREACHABLE = "unreachable"
    LEAVING = "leaving"
    QUARANTINED = "quarantined"
    RELEASED = "released"  # rented, and being given back
    BOOKED = "reserved"  # for one project's jobs alone, or for nobody's (`bookings`)


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
    #: The `Rent` that brought it; empty for owned machines.
    token: str = ""
    joined_at: float = 0.0
    #: Rented: since when it is paid for; its billing steps are counted from then.
    paid_since: float = 0.0
    whole: str = ""  # name of the machine of several types that it is a part of; empty: of none
    #: Since when it holds nothing.
    idle_since: float = 0.0
    #: Rented: since when nobody has been planned on it who pays for it; inf: somebody is.
    unpaid_since: float = inf
    #: Condition to return to when contact is back.
    before: MachineCondition = MachineCondition.UP
    holders: dict[JobId, tuple[int, ...]] = field(default_factory=dict)
    #: When each held accelerator is free if nobody is stopped, and the version of the knowledge behind these instants
    #: (`remaining_work.expected_ends_on`).
    ends: list[float] = field(default_factory=list)
    ends_version: int = -1
    #: Devices of `holders` that two jobs share.
    shared: set[tuple[int, ...]] = field(default_factory=set)
    #: Rented, and the provider was asked to take it back.
    given_back: bool = False
    #: Jobs were revoked here for a preempting job that waits for more devices: what is free already is not for others.
    closed: bool = False
    #: Leaving: until when jobs that would lose their work may go on there; -inf: none may.
    gentle_until: float = -inf
    #: The warning with which the market takes it back, seconds; None: it has not said that it does.
    warning_s: float | None = None
    #: What jobs save here can be had nowhere else, as its proof of the store of checkpoints said.
    is_private: bool = False
    #: What it has of what jobs may need; None: it has not said, and may have everything.
    tools: frozenset[str] | None = None
    #: As its pool counts it: with what those need that run there (`machine_facts`).
    counted_tools: frozenset[str] | None = None
    #: Keys of data in its cache.
    data: frozenset[str] = frozenset()
    #: What it told of fetching them, as `NodeData` has it.
    fetched: tuple[tuple[str, int, float], ...] = ()
    #: Somebody other than the market has it leave: what follows says nothing about how long machines live.
    is_sent_away: bool = False
    #: (instant, job) of failures that may be the machine's fault.
    failures: deque[tuple[float, JobId]] = field(default_factory=lambda: deque(maxlen=16))

    def age_h(self, at: float) -> float:
        """Hours since a rented machine was first paid for, or an owned one joined."""
        return max(at - min(self.joined_at, self.paid_since), 0.0) / SECONDS_PER_HOUR


@dataclass(slots=True)
class PoolState:
    pool: Pool
    row: int
    #: Accelerators of machines that take jobs, and how many of them are free.
    capacity: int = 0
    free: int = 0
    machines: int = 0
    #: Machines that are here, by row.
    members: dict[int, FleetMachine] = field(default_factory=dict)
    #: The most machines there were at once: those that are away may come back.
    most_machines: int = 0
    #: buckets[k]: heap of rows of machines that had k free accelerators when pushed.
    buckets: list[list[int]] = field(default_factory=list)
    #: Machines asked for and not yet here: token -> how many.
    awaited: dict[str, int] = field(default_factory=dict)
    #: Requests in a row that failed, what was said of the last, and when the next may be made.
    rent_failures: int = 0
    rent_problem: str = ""
    rent_not_before: float = -inf
    #: Nothing of the last request came. What came in part is kept while the rest is asked for once more.
    rent_refused: bool = False
    #: When idle machines are checked next; inf if no check is due.
    idle_look_at: float = inf
    lives: MachineLifetimes = field(default_factory=MachineLifetimes)
    #: Of its machines, by `FleetMachine.counted_tools`.
    tools: PoolTools = field(default_factory=PoolTools)

    @property
    def tool_sets(self) -> ToolSets:
        """What its machines have, as far as all of them have said it."""
        return self.tools.sets(self.machines)

    def can_prepare(self, needs: ToolNeeds) -> bool:
        """Whether a machine of the pool may have all of this."""
        return not needs or not self.tool_sets or any(can_prepare(tools, needs) for tools in self.tool_sets)

    @property
    def rented(self) -> bool:
        return self.pool.market is not Market.OWNED

    @property
    def quota(self) -> int:
        """Machines that may be held rented: none of a pool that is being emptied."""
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
        #: Whether any machine has said what it has of what jobs may need.
        self.knows_tools = False
        #: Whether the machines of any pool cost something.
        self.has_prices = False
        self._pool_row: dict[PoolId, int] = {}
        #: Rows that removed pools left, for the same to come back to.
        self._removed_row: dict[PoolId, int] = {}
        self._machine_row: dict[NodeId, int] = {}
        #: What machines have in their caches.
        self.caches = DataCaches()

    # ------------------------------------------------------------------------------------------ what there is

    def declare(self, pool: Pool) -> bool:
        """Add a pool, or replace its price and quota. True if it is new."""
        row = self._pool_row.get(pool.pool_id)
        self.has_prices = self.has_prices or pool.usd_per_h > 0
        if row is not None:
            self.pools[row].pool = pool
            return False
        row = self._pool_row[pool.pool_id] = self._removed_row.pop(pool.pool_id, len(self.pools))
        self.pools[row : row + 1] = [_empty_pool(pool, row)]
        return True

    def drop(self, pool_id: PoolId) -> int:
        """Take a pool without machines out. Its row stays, so that others keep theirs; nothing fits it. Returns it."""
        row = self._pool_row.pop(pool_id)
        state = self.pools[row]
        assert not state.members, f"{pool_id} still has {state.machines} machines"
        assert not state.awaited, f"machines of {pool_id} are on their way"
        self._removed_row[pool_id] = row
        self.pools[row] = _empty_pool(replace(state.pool, usd_per_h=0.0, quota=0, removed=True), row)
        return row

    def pool_row(self, pool_id: PoolId) -> int | None:
        return self._pool_row.get(pool_id)

    def machine(self, node_id: NodeId) -> FleetMachine | None:
        row = self._machine_row.get(node_id)
        return None if row is None else self.machines[row]

    def join(self, node_id: NodeId, pool: int, at: float, token: str, paid_since: float | None = None) -> FleetMachine:
        """A machine is here (again): all its accelerators are free. `paid_since`: if it was paid for before."""
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
        """The machine is gone. Its holders must have been released."""
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
        """Let a machine take jobs, or not. Accelerators of a machine that does not count as capacity."""
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
        """Put the machine where `find` looks for it. Full machines are not filed."""
        if not machine.free:
            return
        bucket = state.buckets[len(machine.free)]
        if len(bucket) > 64 + 4 * state.machines:  # mostly stale entries: keep memory linear in machines
            bucket[:] = sorted(set(bucket))
        heappush(bucket, machine.row)

    # ------------------------------------------------------------------------------------------ finding a place

    def find(self, pool: int, shape: ResourceShape, data: Sequence[str] = (), closed: Set[int] = _NONE) -> Place | None:
        """Return free accelerators for a gang of this shape, on as few machines as possible; None if there are none.

        Each part goes to the machine with the fewest free accelerators that has enough; of equal ones to that with most
        of this data in its cache. Machines in the rows `closed` are passed over.
        """
        count = shape.counts[pool]
        state = self.pools[pool]
        if not count or state.free < count:
            return None
        parts: list[tuple[int, int]] = []
        warm = self.caches.rows_with(data, state.members) if data else ()
        for wanted in split_gang(count, shape.nodes, state.pool.shape.accelerators):
            machine = self._best_fit(state, wanted, shape, closed | {row for row, _ in parts}, warm)
            if machine is None:
                return None
            parts.append((machine.row, wanted))
        return tuple(parts)

    def gang_parts(self, pool: int, shape: ResourceShape) -> list[int]:
        """Return the accelerators that a gang of this shape takes of each machine of the pool, most first."""
        return split_gang(shape.counts[pool], shape.nodes, self.pools[pool].pool.shape.accelerators)

    def most_free(self, pool: int) -> int:
        """No machine of the pool has more free accelerators to give than this."""
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
        """Return the machine with the fewest free accelerators that still has `wanted`; None if there is none.

        Of equal ones the first of `warm`. In each bucket, at most `_TRIES` machines that lack processors or memory are
        looked at.
        """
        for size in range(wanted, len(state.buckets)):
            bucket = state.buckets[size]
            passed_over: list[int] = []
            tries = 0
            found = self._first_warm(warm, size, wanted, shape, taken) if bucket and warm else None
            while bucket and found is None and tries < _TRIES:
                row = bucket[0]
                machine = self.machines[row]
                stale = machine is None or machine.condition is not MachineCondition.UP or len(machine.free) != size
                if machine is None or stale or row in passed_over[-1:]:
                    heappop(bucket)  # the machine changed since it was pushed, or was pushed twice
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

    def _first_warm(
        self, rows: Iterable[int], size: int, wanted: int, shape: ResourceShape, taken: Set[int]
    ) -> FleetMachine | None:
        """Return the first of these machines with just `size` accelerators free on which `wanted` of them fit."""
        for row in rows:
            machine = self.machines[row]
            if machine is None or machine.condition is not MachineCondition.UP or len(machine.free) != size:
                continue
            has_room = is_enough(machine.free_cpus, machine.free_memory_bytes, wanted, shape)
            if has_room and row not in taken and not machine.closed and can_prepare(machine.tools, shape.tools):
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
        """Give the job `count` accelerators of this machine. Returns their numbers."""
        assert len(machine.free) >= count, f"{machine.node_id} has {machine.free}, wanted {count}"
        devices = machine.holders[job_id] = tuple(machine.free[:count])
        del machine.free[:count]
        machine.ends_version = -1
        self._changed(machine, -count, shape)
        return devices

    def parts_of(self, place: Iterable[tuple[int, int]]) -> PoolParts:
        """(pool, accelerators) of each pool of a place, in its order; without machines that are gone."""
        found: dict[int, int] = {}
        for row, count in place:
            machine = self.machines[row]
            if machine is not None:
                found[machine.pool] = found.get(machine.pool, 0) + count
        return tuple(found.items())

    def take_again(self, job_id: JobId, placement: Placement, shape: ResourceShape) -> Place:
        """Give a job exactly the accelerators it held when this core's predecessor stopped."""
        place = []
        for part in placement.parts:
            machine = self.machine(part.node_id)
            if machine is None:  # lost while the rest of the gang is still being stopped
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
        """The job holds nothing on this machine any more."""
        devices = machine.holders.pop(job_id, ())
        if not devices:
            return
        machine.ends_version = -1
        if devices in machine.shared:
            machine.shared.discard(devices)  # the other one stays
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
    """Return accelerators per machine, most first: even over several `nodes`, else on as few machines as possible."""
    if nodes > 1:
        return [count // nodes] * nodes
    full, rest = divmod(count, machine_size)
    return [machine_size] * full + ([rest] if rest else [])


def is_enough(cpus: float, memory_bytes: int, accelerators: int, shape: ResourceShape) -> bool:
    """Return whether these processors and this memory suffice for so many accelerators of a gang of this shape."""
    return cpus + 1e-9 >= accelerators * shape.cpus and memory_bytes >= accelerators * shape.memory_bytes


def most_that_fit(machine: FleetMachine, most: int, shape: ResourceShape) -> int:
    """Return the largest number up to `most` for which the machine's free processors and memory suffice."""
    while most > 0 and not is_enough(machine.free_cpus, machine.free_memory_bytes, most, shape):
        most -= 1
    return most
