"""Starts an agent: from options to a running loop. SIGTERM ends the agent and leaves its supervisors running.

The accelerators are those of the options and the machine. A machine of one type is registered as it is. A machine of
several types is registered in parts (`walras.cluster`), each with its own folder below `parts/` in the
agent's state folder and a share of the processors and the memory in proportion to its accelerators. All parts share one
cache of inputs and environments.
"""

import asyncio
import logging
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import aiohttp

from walras import __version__
from walras.cluster import MOST_TYPES, TypeCount, agent_of_part, part_name, part_shape
from walras.connection.transport import accepted_certificate
from walras.contract import PROTOCOL
from walras.errors import ConfigError, Forbidden
from walras.wire import Register, ShapeFacts
from workers import processes
from workers.agent.agent import Agent
from workers.agent.launch import AgentMachine, load_emulated_speeds, socket_folder
from workers.agent.machine_notices import SpotNoticeWatcher
from workers.agent.report_store import AgentStore
from workers.agent.run_as import load_run_as, open_the_way
from workers.agent.server_client import Enrolment, ServerClient, ServerRefusal, kept_pin
from workers.control_groups import GroupParent, find_group_parent
from workers.devices import CPU, Accelerators, Host, detect_host, detect_types, own_address
from workers.preparation.environments import tools_here
from workers.preparation.folder_cache import PREPARED_FOLDER

PARTS_FOLDER = "parts"


@dataclass(frozen=True)
class AgentOptions:
    #: Addresses of the same server, tried in turn.
    servers: tuple[str, ...]
    #: Folder of the credential, the attempts and their logs. One agent at a time uses it.
    state: Path
    node_id: str
    #: Empty: named after the accelerators, such as `a100-40gbx4`.
    shape: str
    #: Read if the agent has no credential yet.
    join_token_file: Path | None = None
    #: None: detect GPUs; without any the machine is a `cpu` machine.
    accelerator: str | None = None
    accelerators: int | None = None
    #: For a machine with several types: the number of each. Empty: detected, or the two fields above.
    types: tuple[TypeCount, ...] = ()
    #: None: all that this host has.
    cpus: float | None = None
    memory_bytes: int | None = None
    market: Literal["owned", "on_demand", "spot"] = "owned"
    zone: str = "default"
    nominal_speed: float = 1.0
    emulated: bool = False
    #: Speed table of emulated accelerators (YAML).
    speeds: Path | None = None
    rent_token_file: Path | None = None
    #: Whether to poll EC2's metadata service for notices that this machine will be gone.
    spot_notices: bool = False
    metadata_url: str = "http://169.254.169.254"
    #: Address at which other machines of a gang reach this one. None: the local address that reaches the server.
    address: str | None = None
    #: Bytes that an attempt may write into its own folder; 0: no limit.
    attempt_disk_bytes: int = 0
    #: File of the accounts of ranks (`workers/agent/run_as.py`). None: the agent's own account.
    runs_as: Path | None = None
    #: Names of variables of the agent that jobs get beside the usual ones (`workers/rank_environment.py`).
    pass_env: tuple[str, ...] = ()
    #: Whether jobs are told UUIDs of their GPUs instead of numbers.
    gpu_uuids: bool = False
    #: Whether attempts run in transient scopes of systemd, and not in the service of the agent.
    scopes: bool = False


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


def own_accelerators(options: AgentOptions, found: Sequence[Accelerators]) -> tuple[Accelerators, ...]:
    """Returns the accelerators of each type, checked against those that were `found` unless they are emulated.

    Raises ConfigError where the options contradict each other or the machine.
    """
    if options.types and options.accelerator is not None:
        raise ConfigError(
            "--accelerators names the types already", field="--accelerator", fix="leave --accelerator out"
        )
    if options.emulated:
        return _emulated(options)
    if options.types:
        return tuple(_checked(each.accelerator, each.count, found) for each in options.types)
    if options.accelerator is None and options.accelerators is None and len(found) > 1:
        if len(found) > MOST_TYPES:
            raise ConfigError(
                f"{len(found)} types of accelerators are found, and an agent takes {MOST_TYPES} at most",
                field="--accelerators",
                fix="name those to use: --accelerators a100:2,t4:1",
            )
        return tuple(found)
    if options.accelerator is None and len(found) > 1:
        raise ConfigError(
            f"{options.accelerators} accelerators of which type? {', '.join(each.name for each in found)} are found",
            field="--accelerators",
            fix=f"write --accelerators {','.join(f'{each.name}:{each.count}' for each in found[:MOST_TYPES])}",
        )
    own = next((each for each in found if each.name == options.accelerator), None)
    if own is None and len(found) > 1:
        raise _not_found(str(options.accelerator), found)
    chosen = own or found[0]
    name, count = options.accelerator or chosen.name, options.accelerators or chosen.count
    if name != CPU and not chosen.cuda_names:
        raise _not_found(name, ())
    if chosen.cuda_names and count > chosen.count:
        raise ConfigError(f"{count} accelerators asked for, {chosen.count} found", field="--accelerators")
    return (Accelerators(name, count, chosen.cuda_names[:count], chosen.numbers[:count]),)


def _emulated(options: AgentOptions) -> tuple[Accelerators, ...]:
    if options.types:
        return tuple(Accelerators(each.accelerator, each.count) for each in options.types)
    if options.accelerator is None:
        raise ConfigError("--emulated needs --accelerator", field="--accelerator", fix="name the type to emulate")
    return (Accelerators(options.accelerator, options.accelerators or 1),)


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


log = logging.getLogger(__name__)

#: sysexits' EX_CONFIG: the server belongs to another cluster, or its release is too far from the agent's.
EXIT_OTHER_CLUSTER = 78
_LONGEST_TOKEN_BYTES = 4096


def run_agent(options: AgentOptions) -> int:
    """Runs until SIGTERM or SIGINT. Returns the exit code.

    It is 0 after a signal; 1 for a join token that the server does not accept, or a folder in use; 78 for a server of
    another cluster, or of a release too far from this one, where restarting the agent does not help.

    Raises:
        UserError: contradictory options.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    _check_passed(options.pass_env, os.environ)
    if options.scopes:
        find_systemd_run()
    parts = own_parts(options, os.environ)
    try:
        whole = AgentStore(options.state)
    except BlockingIOError:
        raise ConfigError(f"another agent uses {options.state}", field="--state", fix="one folder per agent") from None
    stores = [whole]
    try:
        options = replace(options, join_token_file=_lasting_token_file(options))
        if len(parts) > 1:
            make_part_folders(parts, options.state.absolute())
            stores += [AgentStore(part.state) for part in parts]
            for store in stores[1:]:
                store.agent = agent_of_part(whole.agent, store.agent)
        return asyncio.run(_run(options, list(zip(parts, stores[-len(parts) :], strict=True))))
    finally:
        for store in stores:
            store.flush()
            store.close()


def _check_passed(names: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raises ConfigError for a name that no job may get; warns of one that the agent itself does not have."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", name, re.ASCII) or name.startswith("WALRAS_"):
            raise ConfigError(
                f"{name[:60]!r} cannot be passed to jobs",
                field="--pass-env",
                fix="give the name of a variable; those that begin with WALRAS_ are the agent's own",
            )
        if name not in environ:
            log.warning("--pass-env %s: the agent has no such variable", name)


def _lasting_token_file(options: AgentOptions) -> Path | None:
    """Returns the file of the join token; a pipe (`<(ssh …)`), which can be read only once, is copied to the state
    folder.

    Raises ConfigError for an empty pipe.
    """
    given = options.join_token_file
    if given is None or not given.is_fifo():
        return given
    with given.open("rb") as pipe:
        token = pipe.read(_LONGEST_TOKEN_BYTES)
    if not token.strip():
        raise ConfigError(f"{given} brought no token", field="--join-token-file", fix="run its command by itself")
    kept = options.state.absolute() / "join.token"
    with open(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(token)
    return kept


async def _run(options: AgentOptions, parts: Sequence[tuple[MachinePart, AgentStore]]) -> int:
    pin = kept_pin(options.state, options.join_token_file)
    for server in options.servers:
        tls = accepted_certificate(pin, server)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
        groups = None if options.scopes else _group_parent()
        if options.runs_as is not None:
            states = [part.state for part, _ in parts]
            open_the_way(options.state.absolute(), states, map(socket_folder, states))
        agents = [_agent(options, session, pin, groups, *each) for each in parts]
        running = [asyncio.create_task(agent.run()) for agent in agents]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: [each.cancel() for each in running])
        # The machine has one agent: if a part cannot continue, none does.
        await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        for each in running:
            each.cancel()
        ends = await asyncio.gather(*running, return_exceptions=True)
    errors = [end for end in ends if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError)]
    for error in errors:
        if not isinstance(error, Forbidden):
            raise error
        log.error("the server does not accept this machine: %s%s", error, f"; {error.fix}" if error.fix else "")
    is_final = any(isinstance(error, ServerRefusal) and error.is_final for error in errors)
    return EXIT_OTHER_CLUSTER if is_final else int(bool(errors))


def _agent(
    options: AgentOptions,
    session: aiohttp.ClientSession,
    pin: str,
    groups: GroupParent | None,
    part: MachinePart,
    store: AgentStore,
) -> Agent:
    client = ServerClient(session, options.servers, pin)
    spot = SpotNoticeWatcher(session, options.metadata_url) if options.spot_notices else None
    return Agent(_machine(options, part, groups), store, client, _enrolment(options, part, store.agent), spot)


def _group_parent() -> GroupParent | None:
    """Returns the parent of attempts' control groups, once for all parts of the machine; logs it, or why not."""
    groups, problem = find_group_parent()
    if groups is None:
        log.info("no control groups for attempts (%s): their memory is looked at once a second", problem)
    else:
        log.info("attempts run in control groups below %s%s", groups.folder, f", {problem}" if problem else "")
    return groups


def find_systemd_run(booted: Path = Path("/run/systemd/system")) -> str:
    """Returns the path of `systemd-run`. Raises ConfigError where systemd does not run, or lacks it."""
    found = shutil.which("systemd-run")
    if found is None or not booted.is_dir():
        why = "there is no systemd-run" if found is None else "systemd does not run"
        raise ConfigError(f"{why} on this machine", field="--scopes", fix="start the agent without it")
    return found


def own_parts(options: AgentOptions, environ: Mapping[str, str]) -> tuple[MachinePart, ...]:
    """Returns how the machine is registered: as a whole, or in a part for each type of its accelerators.

    Raises ConfigError where the options contradict each other or the machine.
    """
    try:
        found = () if options.emulated else detect_types(environ)
    except ValueError as error:
        raise ConfigError(str(error), field="--accelerator") from None
    accelerators = own_accelerators(options, found)
    if len(accelerators) > 1 and options.rent_token_file is not None:
        raise ConfigError(
            "a rented machine is of one type: its request asked for one",
            field="--accelerators",
            fix="name one type, or let the machine join as an owned one",
        )
    host = detect_host()
    if options.cpus is not None:
        host = replace(host, cpus=options.cpus)
    if options.memory_bytes is not None:
        host = replace(host, memory_bytes=options.memory_bytes)
    return machine_parts(accelerators, host, options.node_id, options.shape, options.state.absolute())


def _machine(options: AgentOptions, part: MachinePart, groups: GroupParent | None) -> AgentMachine:
    return AgentMachine(
        state=part.state,
        accelerators=part.accelerators,
        host=part.host,
        is_emulated=options.emulated,
        speeds=load_emulated_speeds(options.speeds) if options.speeds is not None else {},
        environ=dict(os.environ),
        groups=groups,
        attempt_disk_bytes=options.attempt_disk_bytes,
        run_as=load_run_as(options.runs_as) if options.runs_as is not None else None,
        whole=options.state.absolute() if part.machine else None,
        devices_by_uuid=options.gpu_uuids,
        pass_env=frozenset(options.pass_env),
        systemd_run=find_systemd_run() if options.scopes else "",
    )


def _enrolment(options: AgentOptions, part: MachinePart, agent: str) -> Enrolment:
    facts = ShapeFacts(
        shape=part.shape,
        accelerator=part.accelerators.name,
        accelerators=part.accelerators.count,
        cpus=part.host.cpus,
        memory_bytes=part.host.memory_bytes,
        nominal_speed=options.nominal_speed,
        emulated=options.emulated,
        market=options.market,
        zone=options.zone,
        machine=part.machine,
    )
    rent_token = options.rent_token_file.read_text().strip() if options.rent_token_file is not None else ""
    return Enrolment(
        state=part.state,
        message=Register(
            node_id=part.node_id,
            facts=facts,
            rent_token=rent_token,
            version=__version__,
            protocol=PROTOCOL,
            agent=agent,
            boot_id=processes.boot_id(),
            tools=tools_here(),
        ),
        join_token_file=options.join_token_file,
        address=options.address or own_address(options.servers[0]),
    )
