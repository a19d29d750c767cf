"""The fleet as every layer sees it: machine shapes, markets, pools, and the placement of an attempt on machines.

All types are frozen. The rules of money that core, server and simulator share are here too: what a stretch of time
costs (`usd_of`), what a gang pays for its part of machines (`gang_usd_per_h`), until when a rented machine is paid for
(`billed_until`).

People state how long machines of a pool live before the market takes them back as a law: a name and its numbers, in
one line: `exponential 8h`, `uniform 24h`, `weibull 0.6,6h` (shape, scale) or `bathtub 0.4137,54m,45m36s,24h` (fraction
of early deaths, then the times early, late and cap). The same line stands in cluster files, in files of conditions and
in `walras cloud spot`; what follows from a law is computed in `optimizer.renting.lifetime_laws`.

A machine with accelerators of several types has one agent, and a part for each type. A part is what the server and the
scheduler know as a machine of one type: `gpu-1.a100` and `gpu-1.t4` are the parts of `gpu-1`. Each has devices,
processors and memory of its own, so nothing is promised twice. The agent's name has two halves: the first names the
state folder of the whole machine, the second that of the part. So an agent that lost either folder counts as another
one, and parts of one machine are told from those of another machine that took its name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf
from typing import NewType

from walras.contract import SECONDS_PER_HOUR
from walras.machines.topology import Topology
from walras.spec.accelerator_names import canonical_accelerator
from walras.units import parse_length

#: For each law by name: how many plain numbers it has, and how many lengths after them.
_PARAMETERS = {"exponential": (0, 1), "uniform": (0, 1), "weibull": (1, 1), "bathtub": (1, 3)}
_EXAMPLES = "'exponential 8h', 'uniform 24h', 'weibull 0.6,6h', 'bathtub 0.4137,54m,45m36s,24h'"
#: The longest text that is parsed, and the largest shape of a Weibull law.
_LONGEST_TEXT, _STEEPEST = 100, 50.0


@dataclass(frozen=True, slots=True)
class StatedLifetime:
    """A law of lifetimes, as it was stated."""

    #: `exponential`, `uniform`, `weibull` or `bathtub`.
    law: str
    #: The parameters in the order of writing, with times in hours: the mean; the cap; shape and scale; or fraction of
    #: early deaths, early, late and cap.
    numbers: tuple[float, ...]


def parse_lifetime(text: str) -> StatedLifetime:
    """Returns the law. Raises ValueError, with examples, for a text that names none or has impossible numbers."""
    shown = repr(text[:60])
    name, _, rest = text.strip().partition(" ")
    if len(text) > _LONGEST_TEXT or name not in _PARAMETERS:
        raise ValueError(f"{shown} names no law of lifetimes; write {_EXAMPLES}")
    parts = [part.strip() for part in rest.split(",") if part.strip()]
    plain, lengths = _PARAMETERS[name]
    if len(parts) != plain + lengths:
        raise ValueError(f"{shown}: {name} takes {plain + lengths} values, not {len(parts)}; write {_EXAMPLES}")
    try:
        numbers = [float(part) for part in parts[:plain]]
        times_h = [parse_length(part) / SECONDS_PER_HOUR for part in parts[plain:]]
    except ValueError:
        raise ValueError(f"{shown}: its values are numbers and lengths of time; write {_EXAMPLES}") from None
    if min(times_h) <= 0:
        raise ValueError(f"{shown}: its times are above 0; write {_EXAMPLES}")
    if any(not 0 < number <= _STEEPEST for number in numbers):
        raise ValueError(f"{shown}: its number is above 0 and at most {_STEEPEST:g}; write {_EXAMPLES}")
    if name == "bathtub" and numbers[0] >= 1:
        raise ValueError(f"{shown}: the fraction of early deaths is below 1; write {_EXAMPLES}")
    return StatedLifetime(name, (*numbers, *times_h))


def checked_lifetime(text: str) -> str:
    """Returns the text of a law without spaces around it; an empty one states none. Raises ValueError."""
    if text.strip():
        parse_lifetime(text)
    return text.strip()


#: The name of a machine that the scheduler knows.
NodeId = NewType("NodeId", str)
#: The id of a pool: (machine shape, market, zone).
PoolId = NewType("PoolId", str)

#: Part of a billing step below which it is rounding of floating-point sums.
_BILLING_TOLERANCE = 1e-9


class Market(StrEnum):
    """How a machine is paid for."""

    OWNED = "owned"
    ON_DEMAND = "on_demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of machine: an instance type, or a class of identical owned machines."""

    name: str
    #: Canonical accelerator name (`a100-40gb`), or `cpu` for a machine without one.
    accelerator: str
    #: Accelerators on one machine.
    accelerators: int
    cpus: float
    memory_bytes: int
    #: Nominal speed of one accelerator against the others: the prior for a throughput that was not measured yet.
    nominal_speed: float = 1.0
    #: Whether an agent paces real steps to a speed table instead of owning such an accelerator.
    emulated: bool = False
    #: Memory of one accelerator, in bytes; 0: unknown, so that no two jobs share one.
    accelerator_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """Machines that are interchangeable to a policy: one shape, one market, one zone."""

    pool_id: PoolId
    shape: Shape
    market: Market = Market.OWNED
    zone: str = "default"
    #: Market price of one machine, USD per hour. Owned machines usually cost 0 at the margin.
    usd_per_h: float = 0.0
    #: Largest number of machines that may be rented; 0 for owned pools.
    quota: int = 0
    #: Seconds of warning before a revocation (spot).
    notice_s: float = 0.0
    #: Estimated time from the request for a machine until it takes jobs, seconds.
    boot_s: float = 0.0
    #: Minimum time that a rented machine is billed for, seconds.
    minimum_billing_s: float = 0.0
    #: Rented time is billed in whole steps of this length, seconds; 0: by the second.
    billing_step_s: float = 0.0
    #: The provider that rents out its machines, on a server; empty: none, or a pool of the simulator.
    provider: str = ""
    #: Of a rented pool: whether a server's cluster file declares it; else it was added while the server ran.
    from_file: bool = False
    #: Whether an administrator drains it: its machines take no new jobs, and none is rented.
    drained: bool = False
    #: Whether it was removed from the cluster: no job fits it.
    removed: bool = False
    #: Machines that are held rented whether or not they are worth their price.
    least: int = 0
    #: The law of its machines' lifetimes, as text (`walras.cluster`); empty: none is stated.
    lifetime: str = ""
    #: The switches that join its machines; None: all are equally near.
    topology: Topology | None = None


def usd_of(usd_per_h: float, seconds: float) -> float:
    """Returns what `seconds` cost at this price, USD."""
    return usd_per_h * seconds / SECONDS_PER_HOUR


def gang_usd_per_h(pool: Pool, accelerators: int, sharers: int = 1, most_usd_per_h: float = inf) -> float:
    """Returns what a gang pays an hour for accelerators of this pool, USD.

    The price of machines is split over their accelerators, and evenly over jobs that are co-located on the same ones.
    `most_usd_per_h`: an accelerator-hour of a rented machine costs this gang no more.
    """
    usd_per_h = pool.usd_per_h * (accelerators / pool.shape.accelerators / sharers)
    if most_usd_per_h < inf and pool.market is not Market.OWNED:
        return min(usd_per_h, most_usd_per_h * (accelerators / sharers))
    return usd_per_h


def billed_until(pool: Pool, since_at: float, at: float) -> float:
    """Returns until when a rented machine is paid that is billed from `since_at` and given back at `at`.

    The minimum, and every billing step that has begun; a step begins the moment after the one before has ended.
    """
    at = max(at, since_at + pool.minimum_billing_s)
    if pool.billing_step_s <= 0:
        return at
    return max(at, since_at + pool.billing_step_s * ceil((at - since_at) / pool.billing_step_s - _BILLING_TOLERANCE))


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The part of one machine that an attempt holds."""

    node_id: NodeId
    #: Indices of the accelerators on that machine, ascending.
    devices: tuple[int, ...]
    #: The pool of the machine, if it differs from the placement's.
    pool_id: PoolId | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an attempt runs: machines in node-rank order, all of one pool unless the gang is mixed or forked."""

    #: Pool of the first machine, and of all parts that name no other.
    pool_id: PoolId
    parts: tuple[NodeShare, ...]

    @property
    def accelerators(self) -> int:
        """Accelerators held, over all machines."""
        return sum(len(part.devices) for part in self.parts)

    @property
    def by_pool(self) -> dict[PoolId, int]:
        """Accelerators held in each pool, in the order of the machines."""
        found: dict[PoolId, int] = {}
        for part in self.parts:
            pool_id = part.pool_id or self.pool_id
            found[pool_id] = found.get(pool_id, 0) + len(part.devices)
        return found


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a gang meet: the address and port that the first machine bound for them."""

    address: str
    port: int


#: The most types that one machine may have, and the most accelerators of one type.
MOST_TYPES = 16
MOST_OF_TYPE = 1024
#: Hexadecimal digits of each half of an agent's name.
_HALF = 32
#: The most characters of the name of a machine, a part or a shape.
_NAME_MOST = 100
_EXAMPLE = "write it as a100:2,t4:1"


@dataclass(frozen=True)
class TypeCount:
    """A number of accelerators of one type."""

    accelerator: str
    count: int


def parse_type_counts(text: str) -> tuple[TypeCount, ...]:
    """Returns the types of `a100:2,t4:1`, in its order. Raises ValueError, with a fix behind a semicolon."""
    words = text.split(",") if len(text) <= MOST_TYPES * 200 else []
    if not 0 < len(words) <= MOST_TYPES:
        raise ValueError(f"a machine has 1 to {MOST_TYPES} types of accelerators; {_EXAMPLE}")
    found = tuple(_type_count(word) for word in words)
    names = [each.accelerator for each in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]} is named twice; name each type once, with all its accelerators")
    return found


def _type_count(word: str) -> TypeCount:
    name, colon, number = word.rpartition(":")
    if not colon:
        raise ValueError(f"{word[:60]!r} is no type with a count; {_EXAMPLE}")
    # Only ASCII digits, and few of them: int() accepts other scripts, and is slow on long words.
    count = int(number) if re.fullmatch(r"[0-9]{1,10}", number.strip(), re.ASCII) else 0
    if not 1 <= count <= MOST_OF_TYPE:
        raise ValueError(f"{number[:60]!r} is no number of accelerators; write one from 1 to {MOST_OF_TYPE}")
    return TypeCount(canonical_accelerator(name), count)


def part_name(machine: str, accelerator: str) -> str:
    """Returns the name of the part of a machine that has this type. Raises ValueError where that is too long."""
    name = f"{machine}.{re.sub(r'[^A-Za-z0-9._-]', '-', accelerator).lstrip('.')}"
    if len(name) > _NAME_MOST:
        raise ValueError(f"{name!r} is longer than {_NAME_MOST} characters; choose a shorter --node")
    return name


def part_shape(types: Sequence[TypeCount], own: int, shape: str) -> str:
    """Returns the shape of the part with the type at position `own`.

    Parts share their machine's processors with the others, so their pool is not that of machines of this type alone.
    Raises ValueError where the stated shape is too long.
    """
    accelerator, count = types[own].accelerator, types[own].count
    if shape:
        if len(name := f"{shape}-{accelerator}") > _NAME_MOST:
            raise ValueError(f"{name!r} is longer than {_NAME_MOST} characters; choose a shorter --shape")
        return name
    others = "+".join(f"{each.accelerator}x{each.count}" for at, each in enumerate(types) if at != own)
    name = f"{accelerator}x{count}-beside-{others}"
    return name if len(name) <= _NAME_MOST else f"{accelerator}x{count}-beside-{len(types) - 1}-types"


def agent_of_part(machine_agent: str, part_agent: str) -> str:
    """Returns the name of the agent of a part, from those of the two folders that it remembers with."""
    return machine_agent[:_HALF] + part_agent[:_HALF]


def is_same_machine_agent(one: str, other: str) -> bool:
    """Returns whether two agents of parts are of one machine, by their names."""
    return bool(one) and one[:_HALF] == other[:_HALF]
