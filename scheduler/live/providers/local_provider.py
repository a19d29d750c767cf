"""A cloud on this machine: every rented machine is an agent process with a folder of its own.

DIR/machines/<node> is the machine's disk: state of the agent, its log, the notice. An agent that dies alone is started
again, as a machine would do; a machine that is taken away loses agent, supervisors and ranks at once.

The agent, its supervisors and their ranks all carry the folder's path in their command line or environment. That finds
them again after the server itself was killed, and finds what has left its process group or lost its parent.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

from scheduler.live.providers.live_provider import ProviderContext, ReportGone
from scheduler.live.providers.machine_boot import agent_command_line
from scheduler.live.store.data_folder import write_private
from scheduler.providers.provider import MachineState, ProviderProblem, ProviderProblemKind, RentalOffer, RentedMachine
from walras.cluster import NodeId, Pool, PoolId
from walras.contract import RESTARTS_MAX, restarts_in_a_row
from walras.states import Reason

#: How often the processes are listed again, because one that is being killed may still fork; and the pause, seconds.
_PASSES = 20
_PAUSE_S = 0.05


def find_agent_process(folder: Path) -> psutil.Process | None:
    """Returns the running agent of the machine, whichever server started it; None if there is none."""
    for process in _processes_of_folder(folder):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "agent" in command and str(folder) in command:
                return process
    return None


def kill_machine_processes(folder: Path) -> bool:
    """Kill every process of the machine. Returns True once none is left, False if some survive."""
    own = os.getpid()
    for _ in range(_PASSES):
        found = {process.pid: process for process in _processes_of_folder(folder)}
        for process in list(found.values()):
            with contextlib.suppress(psutil.Error):
                found.update((child.pid, child) for child in process.children(recursive=True))
        found.pop(own, None)
        if not found:
            return True
        for process in found.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_PAUSE_S)
    return False


def _processes_of_folder(folder: Path) -> Iterator[psutil.Process]:
    """Yields running processes with the folder, or a path inside it, in their command line or environment."""
    own = os.getpid()
    for process in psutil.process_iter():
        if process.pid != own and _mentions_folder(process, str(folder)):
            yield process


def _mentions_folder(process: psutil.Process, folder: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        words = [*process.cmdline(), *process.environ().values()]
    except psutil.Error:
        return False  # it has ended, or belongs to another user
    return any(word == folder or f"{folder}/" in word for word in words)


log = logging.getLogger(__name__)

_WATCH_S = 0.5
_START_AGAIN_S = 5.0
#: The variables of the server's environment that an agent needs; never its tokens.
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class LocalPool:
    """A pool that this provider rents out."""

    pool: Pool
    boot_s: float = 0.0


@dataclass(slots=True)
class _LocalMachine:
    machine: RentedMachine
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    #: In a row (`restarts_in_a_row`).
    restarts: int = 0
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class AgentLauncher:
    """How an agent is started: the command, the join token, the speeds to emulate, the environment."""

    #: The `walras` command line.
    command: tuple[str, ...]
    join_token_file: Path
    #: A file with the speeds of emulated accelerators; None: nothing is emulated.
    speeds_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def start(self, server_url: str, machine: RentedMachine, pool: Pool, folder: Path) -> "subprocess.Popen[bytes]":
        """Start the agent in a session of its own, so that it survives the server, and the next server finds it."""
        (folder / "rent.token").write_text(machine.token, encoding="utf-8")
        line = agent_command_line(self.command, server_url, pool, state=folder, join_token_file=self.join_token_file)
        line += ["--node", machine.node_id]
        if pool.shape.emulated and self.speeds_file is not None:
            line += ["--speeds", str(self.speeds_file)]
        with open(folder / "agent.log", "ab") as output:
            return subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={name: self.environment[name] for name in _INHERITED if name in self.environment},
                start_new_session=True,
                close_fds=True,
            )


class LocalProvider:
    """`CloudProvider`, and revocable, over agent processes."""

    def __init__(
        self,
        folder: Path,
        pools: Mapping[PoolId, LocalPool],
        launcher: AgentLauncher,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._monotonic = monotonic
        self.pools = dict(pools)
        self._launcher = launcher
        self._machines: dict[NodeId, _LocalMachine] = {}
        self._server_url = ""
        self._report_gone: ReportGone | None = None

    def take_up(self, pool: Pool) -> None:
        self.pools[pool.pool_id] = LocalPool(pool, pool.boot_s)

    # ---------------------------------------------------------------- CloudProvider

    async def offers(self) -> tuple[RentalOffer, ...]:
        return tuple(RentalOffer(pool_id, each.pool.usd_per_h, each.pool.quota) for pool_id, each in self.pools.items())

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[RentedMachine, ...]:
        known = [each.machine for each in self._machines.values() if each.machine.token == token]
        if known:
            return tuple(known)
        held = sum(each.machine.pool_id == pool.pool_id for each in self._machines.values())
        if held + machines > pool.quota:
            problem = f"the quota of {pool.pool_id} is {pool.quota} machines, {held} are held"
            raise ProviderProblem(ProviderProblemKind.QUOTA, problem)
        found = []
        for index in range(machines):
            # The request's token may not be a valid name, and a machine's name must never be used again.
            serial = hashlib.sha256(token.encode()).hexdigest()[:8]
            node_id = NodeId(f"{pool.shape.name}-{pool.market.value}-{serial}-{index}")
            machine = RentedMachine(node_id, pool.pool_id, token, MachineState.BOOTING)
            self._machines[node_id] = _LocalMachine(machine, self._folder / node_id)
            found.append(machine)
        await asyncio.sleep(self.pools[pool.pool_id].boot_s)
        try:
            for machine in found:
                if machine.node_id in self._machines:
                    await self._boot(self._machines[machine.node_id], pool, fresh=True)
        except ProviderProblem:
            for machine in found:
                await self.terminate(machine.node_id)
            raise
        return tuple(found)

    async def describe(self) -> tuple[RentedMachine, ...]:
        """Returns the machines held, those included that an earlier server started and that still run."""
        loop = asyncio.get_running_loop()
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else []:
            node_id = NodeId(folder.name)
            if node_id in self._machines or not (folder / "rent.token").is_file():
                continue
            if await loop.run_in_executor(None, find_agent_process, folder) is not None:
                token = (folder / "rent.token").read_text(encoding="utf-8")
                pool_id = PoolId((folder / "pool").read_text(encoding="utf-8"))
                machine = RentedMachine(node_id, pool_id, token, MachineState.RUNNING)
                self._machines[node_id] = _LocalMachine(machine, folder)
            else:
                # The agent is gone, so what is left of the machine goes too.
                await loop.run_in_executor(None, self._wipe, folder)
        return tuple(each.machine for each in self._machines.values())

    async def terminate(self, node_id: NodeId) -> None:
        machine = self._machines.pop(node_id, None)
        if machine is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._end, machine)

    # ---------------------------------------------------------------- drills, watch, stop

    async def revoke(self, node_id: NodeId, notice_s: float) -> None:
        """Write the notice, wait `notice_s`, and kill all processes of the machine."""
        machine = self._machines.get(node_id)
        if machine is None or machine.leaving:
            return
        machine.leaving = True
        _write_atomically(machine.folder / "notice", f"{notice_s:g}\n")
        await asyncio.sleep(notice_s)
        await self.terminate(node_id)

    def attach(self, server_url: str, report_gone: ReportGone) -> None:
        """Keep the server's address for the agents, and the function that reports lost machines."""
        self._server_url, self._report_gone = server_url, report_gone

    async def watch(self) -> None:
        """Restart agents that died by themselves, for ever; give a machine up whose agent keeps dying.

        One that cannot be started now is tried until it can.
        """
        while True:
            await asyncio.sleep(_WATCH_S)
            await self.look()

    async def look(self) -> None:
        """Look after each machine once, as `watch` does."""
        for node_id, machine in list(self._machines.items()):
            if machine.process is None or machine.process.poll() is None or machine.leaving:
                continue
            machine.restarts = restarts_in_a_row(machine.restarts, self._monotonic() - machine.started_at)
            if machine.restarts < RESTARTS_MAX:
                log.warning("agent %s ended with %s: it is started again", node_id, machine.process.returncode)
                try:
                    await self._boot(machine, self.pools[machine.machine.pool_id].pool, fresh=False)
                    machine.restarts += 1
                except ProviderProblem as problem:  # its jobs run on, and the disk may have room again soon
                    log.warning("%s", problem)
                    await asyncio.sleep(_START_AGAIN_S)
            else:
                log.error("agent %s does not stay up: the machine is given up", node_id)
                await self.terminate(node_id)
                if self._report_gone is not None:
                    await self._report_gone(node_id, Reason.INFRA_NODE_LOST, machine.machine.token)

    async def close(self) -> None:
        """Kill all processes of all machines: the provider ends with its server."""
        for node_id in list(self._machines):
            await self.terminate(node_id)

    async def _boot(self, machine: _LocalMachine, pool: Pool, *, fresh: bool) -> None:
        def boot() -> "subprocess.Popen[bytes]":
            if fresh:
                shutil.rmtree(machine.folder, ignore_errors=True)
            machine.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (machine.folder / "pool").write_text(pool.pool_id, encoding="utf-8")
            return self._launcher.start(self._server_url, machine.machine, pool, machine.folder)

        try:
            machine.process = await asyncio.get_running_loop().run_in_executor(None, boot)
            machine.started_at = self._monotonic()
        except OSError as error:
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, f"cannot start an agent: {error}") from error

    def _end(self, machine: _LocalMachine) -> None:
        if not kill_machine_processes(machine.folder):
            log.error("processes of %s survive", machine.machine.node_id)
        if machine.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                machine.process.wait(5.0)
        _forget(machine.folder)

    def _wipe(self, folder: Path) -> None:
        kill_machine_processes(folder)
        _forget(folder)


def _forget(folder: Path) -> None:
    """Without its token the folder is no machine any more; the agent's log stays for diagnosis."""
    try:
        (folder / "rent.token").unlink(missing_ok=True)
    except OSError as error:  # the next server sees that no agent is there
        log.error("%s", error)


def _write_atomically(path: Path, text: str) -> None:
    """Readers see all of it or nothing."""
    draft = path.with_suffix(".draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def build_local_provider(context: ProviderContext) -> LocalProvider:
    """Rents out the pools with `provider: local`. Speeds of emulated accelerators go into a file of the data folder."""
    cluster, folder = context.cluster, context.folder
    pools = {entry.pool_id: LocalPool(entry.pool(), entry.boot) for entry in context.entries_of("local")}
    speeds_file: Path | None = None
    if cluster is not None and cluster.speeds:
        speeds_file = folder.path / "speeds.yaml"
        write_private(speeds_file, yaml.safe_dump(cluster.speeds))
    launcher = AgentLauncher((_walras_command(),), folder.join_token_file.absolute(), speeds_file)
    return LocalProvider(folder.machines.absolute(), pools, launcher)


def _walras_command() -> str:
    """Returns the console script beside the running interpreter, or else the one on the path."""
    beside = Path(sys.executable).parent / "walras"
    return str(beside) if beside.is_file() else (shutil.which("walras") or str(beside))
