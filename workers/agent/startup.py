"""Starts an agent: from options to a running loop. SIGTERM ends the agent and leaves its supervisors running."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import aiohttp

from walras import __version__
from walras.errors import ConfigError, Forbidden
from walras.protocol import PROTOCOL
from walras.transport import accepted_certificate
from walras.wire import Register, ShapeFacts
from workers import processes
from workers.agent.agent import Agent
from workers.agent.launch import AgentMachine, load_emulated_speeds
from workers.agent.machine_notices import SpotNoticeWatcher
from workers.agent.report_store import AgentStore
from workers.agent.server_client import Enrolment, ServerClient, ServerRefusal, kept_pin
from workers.control_groups import find_group_parent
from workers.devices import CPU, Accelerators, Host, detect_accelerators, detect_host, own_address
from workers.preparation.environments import tools_here


@dataclass(frozen=True)
class AgentOptions:
    #: Addresses of the one server, tried in turn.
    servers: tuple[str, ...]
    #: Keeps the credential, the attempts and their logs. One agent at a time.
    state: Path
    node_id: str
    #: Empty: named after the accelerators, such as `a100-40gbx4`.
    shape: str
    #: Read when the agent has no credential yet.
    join_token_file: Path | None = None
    #: None: detect GPUs; without any the machine is a `cpu` machine.
    accelerator: str | None = None
    accelerators: int | None = None
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
    #: Ask the metadata service of EC2 whether this machine is to be taken away.
    spot_notices: bool = False
    metadata_url: str = "http://169.254.169.254"
    #: Address at which other machines of a gang reach this one. None: the local address that reaches the server.
    address: str | None = None
    #: Bytes that an attempt may write into its own folder; 0: as many as there is room for.
    attempt_disk_bytes: int = 0


log = logging.getLogger(__name__)

#: sysexits' EX_CONFIG: the agent belongs to another cluster than its server, or to another age.
EXIT_OTHER_CLUSTER = 78
_LONGEST_TOKEN_BYTES = 4096


def run_agent(options: AgentOptions) -> int:
    """Run until SIGTERM or SIGINT: 0. A join token that the server does not accept, or a folder in use: 1. A server of
    another cluster, or of a release too far from this one: 78, and starting the agent again does not help.

    Raises:
        UserError: options that do not hold together.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    machine = _machine(options, os.environ)
    try:
        store = AgentStore(options.state)
    except BlockingIOError:
        raise ConfigError(f"another agent uses {options.state}", field="--state", fix="one folder per agent") from None
    try:
        options = replace(options, join_token_file=_lasting_token_file(options))
        return asyncio.run(_run(options, machine, store))
    finally:
        store.close()


def _lasting_token_file(options: AgentOptions) -> Path | None:
    """Returns the file of the join token; a pipe (`<(ssh …)`), which can be read once, is copied into the state folder.

    Raises ConfigError for a pipe that brings nothing.
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


async def _run(options: AgentOptions, machine: AgentMachine, store: AgentStore) -> int:
    pin = kept_pin(options.state, options.join_token_file)
    for server in options.servers:
        tls = accepted_certificate(pin, server)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
        client = ServerClient(session, options.servers, pin)
        spot = SpotNoticeWatcher(session, options.metadata_url) if options.spot_notices else None
        agent = Agent(machine, store, client, _enrolment(options, machine, store.agent), spot)
        running = asyncio.create_task(agent.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, running.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await running
        except Forbidden as error:
            log.error("the server does not accept this machine: %s%s", error, f"; {error.fix}" if error.fix else "")
            return EXIT_OTHER_CLUSTER if isinstance(error, ServerRefusal) and error.is_final else 1
    return 0


def _machine(options: AgentOptions, environ: Mapping[str, str]) -> AgentMachine:
    host = detect_host()
    groups, problem = find_group_parent()
    if groups is None:
        log.info("no control groups for attempts (%s): their memory is looked at once a second", problem)
    else:
        log.info("attempts run in control groups below %s%s", groups.folder, f", {problem}" if problem else "")
    return AgentMachine(
        state=options.state.absolute(),
        accelerators=own_accelerators(options, environ),
        host=Host(
            cpus=options.cpus if options.cpus is not None else host.cpus,
            memory_bytes=options.memory_bytes if options.memory_bytes is not None else host.memory_bytes,
        ),
        is_emulated=options.emulated,
        speeds=load_emulated_speeds(options.speeds) if options.speeds is not None else {},
        environ=dict(environ),
        attempt_disk_bytes=options.attempt_disk_bytes,
        groups=groups,
    )


def own_accelerators(options: AgentOptions, environ: Mapping[str, str]) -> Accelerators:
    """Returns the accelerators of the options, checked against those of the machine unless emulated."""
    if options.emulated:
        if options.accelerator is None:
            raise ConfigError("--emulated needs --accelerator", field="--accelerator", fix="name the type to emulate")
        return Accelerators(options.accelerator, options.accelerators or 1)
    try:
        found = detect_accelerators(environ)
    except ValueError as error:
        raise ConfigError(str(error), field="--accelerator") from None
    name, count = options.accelerator or found.name, options.accelerators or found.count
    if name != CPU and not found.cuda_names:
        raise ConfigError(
            f"no {name} is found on this machine: neither NVML nor AMD SMI shows a GPU that this agent may use",
            field="--accelerator",
            fix="check `nvidia-smi` (or `amd-smi list`) and CUDA_VISIBLE_DEVICES, or add --emulated",
        )
    if found.cuda_names and count > found.count:
        raise ConfigError(f"{count} accelerators asked for, {found.count} found", field="--accelerators")
    return Accelerators(name, count, found.cuda_names[:count], found.numbers[:count])


def _enrolment(options: AgentOptions, machine: AgentMachine, agent: str) -> Enrolment:
    facts = ShapeFacts(
        shape=options.shape or f"{machine.accelerators.name}x{machine.accelerators.count}",
        accelerator=machine.accelerators.name,
        accelerators=machine.accelerators.count,
        cpus=machine.host.cpus,
        memory_bytes=machine.host.memory_bytes,
        nominal_speed=options.nominal_speed,
        emulated=options.emulated,
        market=options.market,
        zone=options.zone,
    )
    rent_token = options.rent_token_file.read_text().strip() if options.rent_token_file is not None else ""
    return Enrolment(
        state=options.state,
        message=Register(
            node_id=options.node_id,
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
