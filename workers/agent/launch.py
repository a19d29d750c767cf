"""From a start command to a running supervisor: checks, the attempt's plan, folder and sockets, the emulated pace.

Sockets are below the agent's state folder, or in /tmp where that path is too long for a Unix socket. A folder in /tmp
links to its state folder; once that is deleted, and no process listens there any more, the next agent that needs such a
folder removes it. The speed table of emulated accelerators is a YAML file, `kind: {accelerator: steps_per_s}`.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

import workers
from walras.clocks import SYSTEM_CLOCKS, Clocks, random_hex
from walras.contract import SIGKILL
from walras.errors import ConfigError
from walras.spec.accelerator_names import named_type
from walras.wire import StartCommand
from workers import processes
from workers.accounts import Account
from workers.agent.run_as import OWN_FOLDER, RunAs, account_caches
from workers.control_groups import GroupParent, remove_group
from workers.devices import Accelerators, AttemptKey, Host, mps_folder
from workers.preparation.folder_cache import PREPARED_FOLDER
from workers.preparation.launcher import prepared_argv
from workers.rank_environment import RankSettings, build_client_folder, narrowed_devices, rank_environment
from workers.supervisor_protocol import (
    SUPERVISOR_LOG,
    AttemptPlan,
    find_supervisor,
    forget_environment,
    forget_plan,
    write_plan,
)

#: The kernel's limit for the path of a Unix socket is 107 bytes.
MAX_SOCKET_FOLDER_BYTES = 80
TEMPORARY = Path("/tmp")
_PREFIX = "walras-"
#: Name of the link to the state folder, in a folder of /tmp.
_SERVES = "state"
#: Largest number of folders that are checked, and of sockets in each.
_LOOKED_AT = 1000
#: A folder used after this time may belong to a living agent whose state is not visible from here (in a container).
_UNUSED_S = 3600.0


def socket_folder(state: Path) -> Path:
    """Returns the folder of this agent's sockets; the same as long as the state folder exists."""
    folder = state / "s"
    if len(os.fsencode(folder)) <= MAX_SOCKET_FOLDER_BYTES:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder
    link = state / "socket-folder"
    if not link.is_dir():
        link.unlink(missing_ok=True)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=TEMPORARY))
        (made / _SERVES).symlink_to(state.absolute())
        link.symlink_to(made)
        remove_orphans(TEMPORARY, made.stat().st_mtime - _UNUSED_S)
    found = Path(os.readlink(link))
    os.utime(found)
    return found


def remove_orphans(temporary: Path, unused_since: float) -> None:
    """Removes this user's folders whose agents' state is gone, and that no agent has used since then (Unix seconds)."""
    for folder in islice(temporary.glob(f"{_PREFIX}*"), _LOOKED_AT):
        with contextlib.suppress(FileNotFoundError):  # another agent has removed it meanwhile
            if _is_orphan(folder, unused_since):
                shutil.rmtree(folder, ignore_errors=True)


def _is_orphan(folder: Path, unused_since: float) -> bool:
    serves = folder / _SERVES
    if folder.is_symlink() or not serves.is_symlink() or serves.exists():
        return False
    about = folder.stat()
    if about.st_uid != os.getuid() or about.st_mtime > unused_since:
        return False
    return not any(map(_is_listened_to, islice(folder.iterdir(), _LOOKED_AT)))


def _is_listened_to(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        return caller.connect_ex(os.fspath(path)) == 0


Pace = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Speeds = dict[str, dict[str, Pace]]

_SPEEDS_ADAPTER = TypeAdapter(Speeds)


def load_emulated_speeds(path: Path) -> Speeds:
    try:
        return _SPEEDS_ADAPTER.validate_python(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: {error}", fix="give a YAML file of the form kind: {accelerator: steps_per_s}"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}", field=where) from None


def pace_of(speeds: Speeds, kind: str, accelerator: str) -> float | None:
    """Returns the steps per second of a gang of this kind; None: no limit."""
    own = speeds.get(kind, {})
    return own.get(named_type(own, accelerator) or accelerator)


LOG_CAP_BYTES = 64 * 1024**2
#: File descriptors that are left for the attempts that run.
_DESCRIPTORS_LEAST = 32
#: Least free bytes with which an attempt starts: without them it could neither log nor checkpoint.
MIN_FREE_BYTES = 256 * 1024**2
LAUNCH_TIMEOUT_S = 30.0
_AGAIN_S = 0.05
#: How long the end of what forks supervisors is waited for.
_CLOSE_S = 2.0
#: Digits of an incarnation in names of folders and sockets: enough to distinguish a cluster's incarnations.
_INCARNATION_SHOWN = 8
#: Characters of a failed supervisor's last line that the refusal includes.
LAST_WORDS = 500


def attempt_stem(job_id: int, attempt: int, incarnation: str) -> str:
    """Returns the attempt's name among the files of this agent; short, because socket paths are."""
    return f"{job_id}-{attempt}-{incarnation[:_INCARNATION_SHOWN]}" if incarnation else f"{job_id}-{attempt}"


@dataclass(frozen=True)
class AgentMachine:
    """The machine in which attempts run."""

    state: Path
    accelerators: Accelerators
    host: Host
    is_emulated: bool
    speeds: Speeds
    #: The agent's own environment; ranks get a whitelist of it.
    environ: Mapping[str, str]
    clocks: Clocks = SYSTEM_CLOCKS
    #: Source of random numbers; None: unpredictable ones.
    chance: Random | None = None
    #: Bytes that an attempt may write into its own folder. 0: no limit.
    attempt_disk_bytes: int = 0
    #: Folder of the whole machine, where this is one of its parts; None: `state`.
    whole: Path | None = None
    #: The parent of attempts' control groups; None: they get none.
    groups: GroupParent | None = None
    #: The program `systemd-run`, if attempts run in transient scopes of systemd; empty: they do not.
    systemd_run: str = ""
    #: The accounts of ranks, by the user of the job; None: the agent's own.
    run_as: RunAs | None = None
    #: Whether jobs are told UUIDs of their devices instead of numbers.
    devices_by_uuid: bool = False
    #: Names of further variables of `environ` that jobs get.
    pass_env: frozenset[str] = frozenset()

    @property
    def notices(self) -> Path:
        """Returns the folder of notices that the machine will be gone."""
        return self.whole or self.state

    def attempt_folder(self, job_id: int, attempt: int, incarnation: str = "") -> Path:
        return self.state / "attempts" / attempt_stem(job_id, attempt, incarnation)


def start_refusal(machine: AgentMachine, command: StartCommand, lease_until: float) -> str:
    """Returns why the attempt cannot start here; empty if it can."""
    late_s = machine.clocks.boottime() - lease_until
    if late_s >= 0:
        return f"the start arrived {late_s:.1f} s after its lease of {command.lease_s:g} s had run out"
    if machine.run_as is not None and (problem := machine.run_as.refusal(command)):
        return problem
    with _eyes_of(machine, command):
        if command.workdir and not os.path.isdir(os.path.join(command.workdir, ".")):
            return f"workdir {command.workdir!r} is no folder on this machine: create it there, or mount what holds it"
    if problem := disk_problem(machine):
        return problem
    resume = command.resume
    if resume is not None and not resume.content and not os.path.isdir(os.path.dirname(resume.path)):
        return f"the job's checkpoint {resume.path!r} is not on this machine: mount the disk that holds it"
    # A folder of this machine alone is handed over later; one that machines share is the account's from the start.
    with contextlib.nullcontext() if command.store else _eyes_of(machine, command):
        try:
            os.makedirs(command.checkpoint_dir, exist_ok=True)
        except OSError as error:
            return f"cannot make the checkpoint folder {command.checkpoint_dir!r}: {error.strerror}"
        can_write = _can_write(command.checkpoint_dir)
    return "" if can_write else f"cannot write to the checkpoint folder {command.checkpoint_dir!r}"


def _eyes_of(machine: AgentMachine, command: StartCommand) -> AbstractContextManager[None]:
    return contextlib.nullcontext() if machine.run_as is None else machine.run_as.files_of(command)


def _can_write(folder: str) -> bool:
    """Tries to write: a permission check would apply to the process, whose rights may be lent."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def descriptor_problem() -> str:
    """Returns why no attempt may start for lack of file descriptors; empty if there are enough."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        open_now = len(os.listdir("/proc/self/fd"))
    except OSError:
        open_now = limit
    if open_now + _DESCRIPTORS_LEAST <= limit:
        return ""
    return f"out of file descriptors: {open_now} of {limit} are open; start the agent with more (LimitNOFILE=)"


def disk_problem(machine: AgentMachine) -> str:
    """Returns why no attempt may start for lack of disk space; empty if there is enough."""
    free = shutil.disk_usage(machine.state).free
    if free >= MIN_FREE_BYTES:
        return ""
    return f"disk full: {free // 1024**2} MiB free at {machine.state}, {MIN_FREE_BYTES // 1024**2} MiB needed"


def make_attempt_plan(
    machine: AgentMachine, command: StartCommand, lease_until: float, served_dir: str = ""
) -> AttemptPlan:
    """Returns the supervisor's plan; creates the attempt's socket folder.

    `served_dir`: the server's name of the command's checkpoint folder, where that is on this machine alone.
    """
    sockets = socket_folder(machine.state)
    folder = machine.attempt_folder(*AttemptKey.of(command))
    stem = folder.name
    rank_socket = str(sockets / f"{stem}.r")
    cookie = random_hex(machine.chance, 32)
    count = max(1, machine.accelerators.count)
    account = None if machine.run_as is None else machine.run_as.account_of(command.user)
    environ = {**machine.environ, **({} if account is None else account.environment)}
    settings = RankSettings(
        client_folder=build_client_folder(machine.state),
        rank_socket=rank_socket,
        cookie=cookie,
        visible_devices=machine.accelerators.visible_devices(command.devices, by_uuid=machine.devices_by_uuid),
        device_names=machine.accelerators.names_of(command.devices),
        device_numbers=machine.accelerators.numbers_of(command.devices),
        pace=pace_of(machine.speeds, command.kind, command.accelerator) if machine.is_emulated else None,
        mps_folder=mps_folder(machine.environ) if machine.accelerators.cuda_names else "",
        threads=1 if machine.is_emulated else max(1, int(machine.host.cpus) // count),
        pass_env=machine.pass_env,
    )
    _, note = narrowed_devices(settings, command.env.get("CUDA_VISIBLE_DEVICES"))
    return AttemptPlan(
        job_id=command.job_id,
        attempt=command.attempt,
        argv=prepared_argv(*_preparing(machine, folder, account), command.needs, command.argv),
        env=rank_environment(environ, command, settings),
        # A job without a folder of its own gets a fresh one with every attempt.
        workdir=command.workdir or str(folder / "work"),
        devices=command.devices,
        node_rank=command.node_rank,
        first_rank=command.first_rank,
        world_size=command.world_size,
        master_port=command.master_port,
        lease_s=command.lease_s,
        lease_until=lease_until,
        grace_s=command.grace_s,
        checkpoint_dir=command.checkpoint_dir,
        cookie=cookie,
        rank_socket=rank_socket,
        control_socket=str(sockets / f"{stem}.a"),
        log_cap_bytes=LOG_CAP_BYTES,
        incarnation=command.incarnation,
        store=command.store,
        served_dir=served_dir,
        is_launcher=command.is_launcher,
        has_image=bool(command.needs.image),
        memory_bytes=command.memory_bytes,
        disk_bytes=machine.attempt_disk_bytes,
        group="" if machine.groups is None else machine.groups.group_for(f"{stem}-{cookie[:8]}"),
        uid=0 if account is None else account.uid,
        gid=0 if account is None else account.gid,
        groups=[] if account is None else list(account.groups),
        notes=[note] if note else [],
    )


def _preparing(machine: AgentMachine, folder: Path, account: Account | None) -> tuple[Path, Path]:
    """Returns the folders that ranks of the attempt prepare in: their own, and that of the caches."""
    if account is None:
        return folder, machine.state / PREPARED_FOLDER
    return folder / OWN_FOLDER, account_caches(machine.whole or machine.state, account)


def scope_words(systemd_run: str, name: str, uid: int) -> list[str]:
    """Returns the words before a supervisor's command that put it into a transient scope of systemd."""
    manager = [] if uid == 0 else ["--user"]
    return [systemd_run, *manager, "--scope", "--quiet", "--collect", f"--unit=walras-attempt-{name}", "--"]


@dataclass(frozen=True)
class _Starter:
    """A process that forks supervisors; it ends once the socket is closed."""

    process: asyncio.subprocess.Process
    requests: socket.socket

    async def request(self, folder: Path, ready: int) -> None:
        """Raises OSError: it has ended."""
        while True:
            with contextlib.suppress(BlockingIOError):  # a few hundred are unread
                socket.send_fds(self.requests, [os.fsencode(folder)], [ready])
                return
            await asyncio.sleep(_AGAIN_S)

    def kill(self) -> None:
        """Kills it, so that no request that waits is fulfilled later."""
        self.requests.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class SupervisorStarter:
    """Starts supervisors through a process that forks them (`workers/supervisor.py`), replaced once it has ended.

    With a `systemd_run` each attempt has such a process of its own, in a scope: a fork is in the scope of its parent.
    """

    def __init__(self, systemd_run: str = "") -> None:
        self._systemd_run = systemd_run
        self._shared: _Starter | None = None
        #: Processes that were started, until they have ended.
        self._processes: list[asyncio.subprocess.Process] = []
        self._spawning = asyncio.Lock()

    async def start(self, folder: Path, plan: AttemptPlan) -> str:
        """Writes the plan into the attempt's folder and starts its supervisor.

        Returns why that failed, with no process left; empty on success.
        """
        await asyncio.to_thread(write_plan, folder, plan)
        if await self.fork(folder, plan):
            return ""
        # First of all, because a fork that hung would start ranks by these.
        await asyncio.to_thread(forget_plan, folder)
        supervisor = find_supervisor(folder)
        if supervisor is not None and supervisor.is_alive:  # its ranks may have stopped it before it said that it runs
            processes.send_signal([supervisor.pid], SIGKILL)
        await asyncio.to_thread(processes.kill_carriers, plan.cookie, 5.0)
        await asyncio.to_thread(remove_group, plan.group)
        return f"the supervisor did not start: {_last_words(folder)} (all of it: {folder / SUPERVISOR_LOG})"

    async def close(self) -> None:
        """Ends the process once it has done what it was asked for; one that hangs is not waited for."""
        if self._shared is not None:
            self._shared.requests.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                for process in self._processes:
                    await process.wait()
        await asyncio.sleep(0)  # what is left of their transports is closed

    async def fork(self, folder: Path, plan: AttemptPlan) -> bool:
        """Returns whether the ranks of the attempt are started, once that is known."""
        started, ready = os.pipe2(os.O_CLOEXEC)
        loop, told, starter = asyncio.get_running_loop(), asyncio.Event(), None
        loop.add_reader(started, told.set)
        try:
            async with asyncio.timeout(LAUNCH_TIMEOUT_S):
                try:
                    starter = await self._request(folder, plan, ready)
                finally:
                    os.close(ready)
                await told.wait()
            return os.read(started, 1) == b"+"
        except TimeoutError:
            if starter is not None:
                starter.kill()
            return False
        finally:
            loop.remove_reader(started)
            os.close(started)

    async def _request(self, folder: Path, plan: AttemptPlan, ready: int) -> _Starter:
        if self._systemd_run:
            scope = scope_words(self._systemd_run, f"{folder.name}-{plan.cookie[:8]}", os.geteuid())
            starter = await self._spawned(scope)
            with starter.requests:
                await starter.request(folder, ready)
            return starter
        async with self._spawning:
            if self._shared is not None:
                with contextlib.suppress(OSError):  # it has ended, or was killed here
                    await self._shared.request(folder, ready)
                    return self._shared
                self._shared.kill()
            self._shared = await self._spawned([])
            await self._shared.request(folder, ready)
            return self._shared

    async def _spawned(self, scope: list[str]) -> _Starter:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        root = str(Path(str(workers.__file__)).parent.parent)
        names = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
        manager = {name: os.environ[name] for name in names if name in os.environ}
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(*scope, sys.executable, "-P", "-m", "workers.supervisor"),
                env={"PYTHONPATH": root, "PATH": os.defpath} | (manager if scope else {}),
                cwd="/",
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes = [each for each in self._processes if each.returncode is None] + [process]
        return _Starter(process, ours)


async def kill_supervisor(folder: Path) -> None:
    """Kills the supervisor of this folder, and returns once it is dead and what it knew of secrets is gone."""
    supervisor = find_supervisor(folder)
    while supervisor is not None and supervisor.is_alive:
        processes.send_signal([supervisor.pid], SIGKILL)
        await asyncio.sleep(_AGAIN_S)
    forget_environment(folder)


def _last_words(folder: Path) -> str:
    """Returns the last line that a supervisor wrote: the error, if it was a Python error."""
    path = folder / SUPERVISOR_LOG
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1][:LAST_WORDS] if lines else "it said nothing"


def make_attempt_folder(folder: Path) -> None:
    """Creates the folder of an attempt. Raises OSError; FileExistsError if an attempt of this name had one."""
    folder.mkdir(parents=True, mode=0o700)
    (folder / "work").mkdir()


def forget_ended(attempts: Path, running: Iterable[Path]) -> None:
    """Removes the secrets of attempts that ended while no agent was here, be it in a crash of the machine."""
    for folder in set(attempts.glob("*")).difference(running):
        forget_environment(folder)


def remove_old_folders(attempts: Path, open_keys: list[AttemptKey], kept_folders: int) -> None:
    """Deletes the folders of ended attempts except the newest ones; a folder that is gone already is no error."""
    kept = {attempt_stem(*key) for key in open_keys}
    with contextlib.suppress(OSError):  # one of them is gone already
        over = (path for path in attempts.iterdir() if path.name not in kept)
        oldest_first = sorted(over, key=lambda path: path.lstat().st_mtime)
        for path in oldest_first[: max(0, len(oldest_first) - kept_folders)]:
            shutil.rmtree(path, ignore_errors=True)
