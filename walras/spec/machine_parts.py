"""A machine with accelerators of several types: one agent, and a part of the machine for each type.

A part is what the server and the scheduler know as a machine of one type: `gpu-1.a100` and `gpu-1.t4` are the parts of
`gpu-1`. Each has devices, processors and memory of its own, so nothing is promised twice. The agent's name has two
halves: the first names the state folder of the whole machine, the second that of the part. So an agent that lost
either folder counts as another one, and parts of one machine are told from those of another machine that took its
name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from walras.spec.accelerator_names import canonical_accelerator

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
