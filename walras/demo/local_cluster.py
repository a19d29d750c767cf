"""The demo's cluster: its folder and configuration, a server and agents as separate processes, tokens for the users.

It talks to the server through the client, as anybody would. Supervisors outlive agents on purpose, so ending the direct
children is not enough: on Linux the demo becomes the subreaper of everything below it, and at the end whatever is still
there is ended.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil

from walras.client import Client
from walras.errors import ClusterError, ConfigError, WalrasError
from walras.spec.cluster_file import ClusterConfig, PoolEntry
from walras.spec.file_model import load_yaml
from walras.spec.job_groups import CodeSpec
from walras.spec.job_spec import JobSpec
from walras.spec.shipped_files import SHIPPED_CONFIGS
from walras.spec.workload_file import ArrivalEntry, WorkloadFile
from walras.storage.code_snapshot import code_fields, snapshot_folder
from walras.storage.content import ContentTree


def configs_folder() -> Path:
    """Returns the `configs` folder that belongs to this `walras`, in a checkout and in an installation alike."""
    folder = SHIPPED_CONFIGS
    if not (folder / "workloads" / "demo.yaml").exists():
        raise ConfigError(f"the demo's files are not at {folder}", fix="reinstall walras, or run from a checkout")
    return folder


@dataclass(frozen=True, slots=True)
class DemoSetup:
    """The files and folders of one run."""

    configs: Path
    folder: Path
    cluster_path: Path
    cluster: ClusterConfig
    workload: WorkloadFile
    #: The files of each folder that jobs start in, by its `workdir`.
    code: Mapping[str, ContentTree] = field(default_factory=dict)

    @property
    def policy_path(self) -> Path:
        return self.configs / "policies" / "demo.yaml"

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def picture(self) -> Path:
        return self.folder / "timeline.png"

    @property
    def measured_path(self) -> Path:
        return self.folder / "measured.json"

    @property
    def users(self) -> dict[str, str]:
        """Returns the project of each user."""
        return {arrival.user: arrival.project or "default" for arrival in self.workload.jobs}

    @property
    def machines(self) -> dict[str, PoolEntry]:
        """Returns the pool of each owned machine, by the machine's name."""
        owned = [entry for entry in self.cluster.pools for _ in range(entry.machines)]
        return {f"{entry.accelerator}-{number}": entry for number, entry in enumerate(owned, start=1)}

    def state_of(self, machine: str) -> Path:
        """Returns the folder of an owned machine's agent."""
        return self.folder / "machines" / machine

    def code_folder(self, workdir: str) -> Path:
        return self.configs.parent / workdir

    def spec(self, arrival: ArrivalEntry) -> JobSpec:
        """Returns the job as it is submitted: with a snapshot of its folder, one thread for each rank."""
        spec = arrival.job
        changes: dict[str, object] = {"project": arrival.project, "envs": {"OMP_NUM_THREADS": "1", **spec.envs}}
        if spec.workdir is not None and spec.workdir in self.code:
            fields = code_fields(self.code[spec.workdir], self.code_folder(spec.workdir))
            changes |= {"workdir": None, "code": CodeSpec(**fields)}
        return spec.model_copy(update=changes)


def prepare_demo(folder: Path | None) -> DemoSetup:
    """Reads the files and makes the folder of this run. Raises ConfigError if the folder is not empty."""
    configs = configs_folder()
    if folder is None:
        folder = Path("demo-run") / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{os.getpid()}"
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty", fix="give --data a new folder: every demo starts afresh")
    cluster_path = configs / "clusters" / "demo.yaml"
    workload = load_yaml(configs / "workloads" / "demo.yaml", WorkloadFile)
    workdirs = sorted({arrival.job.workdir for arrival in workload.jobs if arrival.job.workdir is not None})
    code = {workdir: snapshot_folder(configs.parent / workdir) for workdir in workdirs}
    stage = DemoSetup(configs, folder, cluster_path, load_yaml(cluster_path, ClusterConfig), workload, code)
    for made in (stage.server, stage.logs):
        made.mkdir(parents=True)
    return stage


def walras_command() -> str:
    """Returns the `walras` console script of this Python."""
    beside = Path(sys.executable).parent / "walras"
    found = str(beside) if beside.exists() else shutil.which("walras")
    if found is None:
        raise ConfigError("the `walras` command is not installed for this Python", fix="pip install -e '.[all]'")
    return found


def child_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the demo's daemons: this Python comes first, and no other server is named."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("WALRAS_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', os.defpath)}"}


def remove_run_state(stage: DemoSetup) -> None:
    """Removes what only this run needed (database, checkpoints, agents' state); picture, logs and figures stay."""
    for entry in stage.folder.iterdir():
        if entry.is_dir() and entry != stage.logs:
            shutil.rmtree(entry, ignore_errors=True)


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Becomes the parent of descendants whose parents end (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_parent() -> None:
    """Makes this child process receive SIGTERM when the demo itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class ChildProcesses:
    """The processes that the demo started, by name."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts a process with its output in `<logs>/<name>.log`, out of reach of the terminal's Ctrl-C."""
        with (self._logs / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def died(self) -> str | None:
        """Returns which process has ended, with the end of its log; None while all run."""
        for name, process in self._started.items():
            if process.poll() is not None:
                return f"{name} ended with code {process.returncode}:\n{self.log_tail(name)}"
        return None

    def log_tail(self, name: str, lines: int = 15) -> str:
        path = self._logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def stop(self, patience_s: float = 10.0) -> list[str]:
        """Ends everything below this process: SIGTERM, then SIGKILL. Returns what had to be killed."""
        for process in reversed(self._started.values()):
            if process.poll() is None:
                process.terminate()
        for process in self._started.values():
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(patience_s)
        return end_descendants(patience_s)


def end_descendants(patience_s: float) -> list[str]:
    """Ends whatever still runs below this process; returns the command lines that SIGTERM did not end."""
    stubborn: list[str] = []
    left = _ask_to_end(_running_below(), patience_s)
    # Killing a supervisor may hand us ranks that were not below us before: look again, a bounded number of times.
    for _ in range(3):
        if not left:
            break
        for process in left:
            stubborn.append(_command_line(process))
            _signal_if_alive(psutil.Process.kill, process)
        psutil.wait_procs(left, timeout=patience_s)
        left = _running_below()
    _reap_children()
    return stubborn


def _running_below() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def _ask_to_end(processes: list[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Sends SIGTERM; returns the processes that still run after `patience_s`."""
    for process in processes:
        _signal_if_alive(psutil.Process.terminate, process)
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    return list(alive)


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())[:200]
    return f"process {process.pid}"


def _reap_children() -> None:
    """Collects the exit codes of ended children, adopted ones included."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def _signal_if_alive(action: Callable[[psutil.Process], None], process: psutil.Process) -> None:
    """Signals a process that may have ended in the meantime."""
    with contextlib.suppress(psutil.NoSuchProcess):
        action(process)


#: A fresh server imports its solvers and makes its database first.
SERVER_READY_S = 60.0
AGENTS_READY_S = 60.0
_POLL_EVERY_S = 0.2


class LocalCluster:
    """A server and agents as processes of this machine. Clients live in the exit stack that is handed in."""

    def __init__(
        self, stage: DemoSetup, processes: ChildProcesses, clients: AsyncExitStack, inherited: Mapping[str, str]
    ):
        self._stage = stage
        self._processes = processes
        self._clients = clients
        self._environment = child_environment(inherited)
        self._walras = walras_command()
        self.url = ""
        self.admin: Client
        self.users: dict[str, Client] = {}

    async def start(self) -> None:
        """Starts the server, the machines and the users. Raises ClusterError, with the end of the log, if a part does
        not start.
        """
        stage = self._stage
        files = ["--cluster", stage.cluster_path, "--policy", stage.policy_path]
        self._run("server", "server", "--data", stage.server, "--host", "127.0.0.1", "--port", "0", *files)
        address = stage.server / "server.json"
        await self._until(lambda: asyncio.to_thread(address.exists), SERVER_READY_S)
        self.url = url = str(json.loads(address.read_text())["url"])
        token = (stage.server / "admin.token").read_text().strip()
        self.admin = await self._clients.enter_async_context(Client(url, token))
        await self._until(self._is_ready, SERVER_READY_S)
        for name in stage.machines:
            self._start_machine(name)
        # One of their jobs is urgent, which elsewhere is an operator's to ask for.
        await self.admin.change_role("user", {"caps": {"max_priority": 100}})
        for user, project in stage.users.items():
            created = await self.admin.create_token(user, "user", [project])
            client = self.users[user] = await self._clients.enter_async_context(Client(url, created.token))
            for workdir, tree in stage.code.items():
                await client.send_folder(stage.code_folder(workdir), tree)
        await self._until(self._have_joined, AGENTS_READY_S)

    def _run(self, name: str, *arguments: object) -> None:
        self._processes.start(name, [self._walras, *map(str, arguments)], self._environment)

    def _start_machine(self, name: str) -> None:
        """Starts the agent of an owned machine."""
        entry = self._stage.machines[name]
        shape = ["--shape", entry.shape, "--accelerator", entry.accelerator, "--accelerators", entry.accelerators]
        size = ["--cpus", f"{entry.cpus:g}", "--memory", str(entry.memory), "--zone", entry.zone]
        emulation = ["--emulated", "--speeds", self._speeds_file(), "--nominal-speed", f"{entry.nominal_speed:g}"]
        place = ["--state", self._stage.state_of(name), "--node", name]
        join = ["--server", self.url, "--join-token-file", self._stage.server / "join.token"]
        self._run(name, "agent", *join, *place, *shape, *size, *(emulation if entry.emulated else []))

    def _speeds_file(self) -> Path:
        """Returns the file of the cluster's speed table, as agents read it (JSON is YAML)."""
        path = self._stage.folder / "speeds.yaml"
        if not path.exists():
            path.write_text(json.dumps(self._stage.cluster.speeds, indent=1))
        return path

    async def _until(self, holds: Callable[[], Awaitable[bool]], within_s: float) -> None:
        """Waits until it holds. Raises TimeoutError, or what `check_alive` raises."""
        async with asyncio.timeout(within_s):
            while not await holds():
                self.check_alive()
                await asyncio.sleep(_POLL_EVERY_S)

    async def _is_ready(self) -> bool:
        try:
            return (await self.admin.health()).ok
        except WalrasError:
            return False

    async def _have_joined(self) -> bool:
        return sum(node.state == "up" for node in await self.admin.nodes()) >= len(self._stage.machines)

    def check_alive(self) -> None:
        """Raises ClusterError if the server or an owned machine's agent has ended."""
        if (death := self._processes.died()) is not None:
            raise ClusterError(death)

    async def log_of(self, job_id: int, most_bytes: int = 100_000) -> str:
        """Returns what the job printed in all its attempts; empty if the log cannot be read."""
        text = b""
        try:
            for attempt in await self.admin.attempts(job_id):
                async for piece in self.admin.logs(job_id, attempt=attempt.attempt):
                    text = (text + piece)[-most_bytes:]
        except WalrasError:
            return text.decode(errors="replace")
        return text.decode(errors="replace")


@contextlib.asynccontextmanager
async def running_cluster(
    stage: DemoSetup, processes: ChildProcesses, say: Callable[[str], None]
) -> AsyncIterator[LocalCluster]:
    """Yields a started server with the owned machines' agents, until the block ends; SIGTERM cancels it, as Ctrl-C
    does.

    Raises what `LocalCluster.start` raises. `say`: told what is being done.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncExitStack() as clients:
        cluster = LocalCluster(stage, processes, clients, os.environ)
        say("starting a server and the owned machines' agents ...")
        await cluster.start()
        yield cluster
