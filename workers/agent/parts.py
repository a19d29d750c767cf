"""The accelerators of an agent, by its options and the machine, and the share of other resources for each type.

A machine of one type is registered as it is. A machine of several types is registered in parts
(`walras.machine_parts`), each with its own folder below `parts/` in the agent's state folder and a share of the
processors and the memory in proportion to its accelerators. All parts share one cache of inputs and environments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from walras.errors import ConfigError
from walras.machine_parts import MOST_TYPES, TypeCount, part_name, part_shape
from workers.devices import CPU, Accelerators, Host
from workers.preparation.folder_cache import PREPARED_FOLDER

PARTS_FOLDER = "parts"


@dataclass(frozen=True)
class StatedAccelerators:
    """The options. Empty, None: they leave it to the machine."""

    #: For a machine of one type.
    accelerator: str | None = None
    accelerators: int | None = None
    #: For a machine of several types.
    types: tuple[TypeCount, ...] = ()
    is_emulated: bool = False


@dataclass(frozen=True)
class MachinePart:
    """A type of accelerators with its share of the machine, as it is registered."""

    accelerators: Accelerators
    host: Host
    node_id: str
    shape: str
    state: Path
    #: Name of the whole machine; empty: this is all of it.
    machine: str = ""


def own_accelerators(stated: StatedAccelerators, found: Sequence[Accelerators]) -> tuple[Accelerators, ...]:
    """Returns the accelerators of each type, checked against those that were `found` unless they are emulated.

    Raises ConfigError where the options contradict each other or the machine.
    """
    if stated.types and stated.accelerator is not None:
        raise ConfigError(
            "--accelerators names the types already", field="--accelerator", fix="leave --accelerator out"
        )
    if stated.is_emulated:
        return _emulated(stated)
    if stated.types:
        return tuple(_checked(each.accelerator, each.count, found) for each in stated.types)
    if stated.accelerator is None and stated.accelerators is None and len(found) > 1:
        if len(found) > MOST_TYPES:
            raise ConfigError(
                f"{len(found)} types of accelerators are found, and an agent takes {MOST_TYPES} at most",
                field="--accelerators",
                fix="name those to use: --accelerators a100:2,t4:1",
            )
        return tuple(found)
    if stated.accelerator is None and len(found) > 1:
        raise ConfigError(
            f"{stated.accelerators} accelerators of which type? {', '.join(each.name for each in found)} are found",
            field="--accelerators",
            fix=f"write --accelerators {','.join(f'{each.name}:{each.count}' for each in found[:MOST_TYPES])}",
        )
    own = next((each for each in found if each.name == stated.accelerator), None)
    if own is None and len(found) > 1:
        raise _not_found(str(stated.accelerator), found)
    chosen = own or found[0]
    name, count = stated.accelerator or chosen.name, stated.accelerators or chosen.count
    if name != CPU and not chosen.cuda_names:
        raise _not_found(name, ())
    if chosen.cuda_names and count > chosen.count:
        raise ConfigError(f"{count} accelerators asked for, {chosen.count} found", field="--accelerators")
    return (Accelerators(name, count, chosen.cuda_names[:count], chosen.numbers[:count]),)


def _emulated(stated: StatedAccelerators) -> tuple[Accelerators, ...]:
    if stated.types:
        return tuple(Accelerators(each.accelerator, each.count) for each in stated.types)
    if stated.accelerator is None:
        raise ConfigError("--emulated needs --accelerator", field="--accelerator", fix="name the type to emulate")
    return (Accelerators(stated.accelerator, stated.accelerators or 1),)


def _checked(name: str, count: int, found: Sequence[Accelerators]) -> Accelerators:
    """Returns the first devices of a type that the options name among others."""
    own = next((each for each in found if each.name == name and each.cuda_names), None)
    if own is None:
        raise _not_found(name, found)
    if count > own.count:
        raise ConfigError(f"{count} {name} asked for, {own.count} found", field="--accelerators")
    return Accelerators(name, count, own.cuda_names[:count], own.numbers[:count])


def _not_found(name: str, found: Sequence[Accelerators]) -> ConfigError:
    there = ", ".join(f"{each.name}:{each.count}" for each in found if each.cuda_names)
    what = f"found are {there}" if there else "neither NVML nor AMD SMI shows a GPU that this agent may use"
    return ConfigError(
        f"no {name} is found on this machine: {what}",
        field="--accelerator",
        fix="check `nvidia-smi` (or `amd-smi list`) and CUDA_VISIBLE_DEVICES, or add --emulated",
    )


def machine_parts(
    accelerators: Sequence[Accelerators], host: Host, node_id: str, shape: str, state: Path
) -> tuple[MachinePart, ...]:
    """Returns the parts in which a machine is registered, one for each type.

    Raises ConfigError for too long a name.
    """
    if len(accelerators) == 1:
        (own,) = accelerators
        return (MachinePart(own, host, node_id, shape or f"{own.name}x{own.count}", state),)
    types = [TypeCount(each.name, each.count) for each in accelerators]
    in_all = sum(each.count for each in types)
    parts = []
    for at, own in enumerate(accelerators):
        # Rounded down, so that the parts never have more than their machine.
        part = Host(cpus=host.cpus * own.count / in_all, memory_bytes=host.memory_bytes * own.count // in_all)
        try:
            name, own_shape = part_name(node_id, own.name), part_shape(types, at, shape)
        except ValueError as error:
            message, _, fix = str(error).partition("; ")
            raise ConfigError(message, field="--node / --shape", fix=fix) from None
        folder = state / PARTS_FOLDER / name.removeprefix(f"{node_id}.")
        parts.append(MachinePart(own, part, name, own_shape, folder, node_id))
    return tuple(parts)


def make_part_folders(parts: Sequence[MachinePart], state: Path) -> None:
    """Creates the folders of a machine's parts; the cache of inputs is in the folder of the whole machine."""
    shared = state / PREPARED_FOLDER
    shared.mkdir(parents=True, exist_ok=True, mode=0o700)
    for part in parts:
        part.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        link = part.state / PREPARED_FOLDER
        if not link.is_symlink() and not link.exists():
            link.symlink_to(shared, target_is_directory=True)
