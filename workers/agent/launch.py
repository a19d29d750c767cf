"""From a start command to a running supervisor: the attempt's folder, its plan, and the checks before either."""

import asyncio
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import workers
from walras.wire import StartCommand
from workers import processes
from workers.agent.socket_folder import socket_folder
from workers.agent.speeds import Speeds, pace_of
from workers.client_folder import build_client_folder
from workers.environment import RankSettings, rank_environment
from workers.gpus import Accelerators, Host
from workers.plan import SUPERVISOR_LOG, Plan, write_plan

LOG_CAP_BYTES = 64 * 1024**2
#: Below this much free space no attempt starts: it could neither log nor checkpoint.
MIN_FREE_BYTES = 256 * 1024**2
LAUNCH_TIMEOUT_S = 30.0
#: Characters of a failed supervisor's last line that go with the refusal.
LAST_WORDS = 500


@dataclass(frozen=True)
class Machine:
    """What attempts find here."""

    state: Path
    accelerators: Accelerators
    host: Host
    is_emulated: bool
    speeds: Speeds
    #: The agent's own environment; ranks see a whitelist of it.
    environ: Mapping[str, str]

    def attempt_folder(self, job_id: int, attempt: int) -> Path:
        return self.state / "attempts" / f"{job_id}-{attempt}"


def refusal(machine: Machine, command: StartCommand, lease_until: float) -> str:
    """Why the attempt cannot start here; empty if it can."""
    late_s = processes.boottime() - lease_until
    if late_s >= 0:
        return f"the start arrived {late_s:.1f} s after its lease of {command.lease_s:g} s had run out"
    if command.workdir and not os.path.isdir(command.workdir):
        return f"workdir {command.workdir!r} is no folder on this machine: create it there, or mount what holds it"
    free = shutil.disk_usage(machine.state).free
    if free < MIN_FREE_BYTES:
        return f"disk full: {free // 1024**2} MiB free at {machine.state}, {MIN_FREE_BYTES // 1024**2} MiB needed"
    try:
        os.makedirs(command.checkpoint_dir, exist_ok=True)
    except OSError as error:
        return f"cannot make the checkpoint folder {command.checkpoint_dir!r}: {error.strerror}"
    can_write = os.access(command.checkpoint_dir, os.W_OK)
    return "" if can_write else f"cannot write to the checkpoint folder {command.checkpoint_dir!r}"


def make_plan(machine: Machine, command: StartCommand, lease_until: float) -> Plan:
    """Everything the supervisor needs; makes the attempt's socket folder."""
    sockets = socket_folder(machine.state)
    stem = f"{command.job_id}-{command.attempt}"
    rank_socket = str(sockets / f"{stem}.r")
    cookie = secrets.token_hex(16)
    count = max(1, machine.accelerators.count)
    settings = RankSettings(
        client_folder=build_client_folder(machine.state),
        rank_socket=rank_socket,
        cookie=cookie,
        visible_devices=machine.accelerators.visible_devices(command.devices),
        pace=pace_of(machine.speeds, command.kind, command.accelerator) if machine.is_emulated else None,
        threads=1 if machine.is_emulated else max(1, int(machine.host.cpus) // count),
    )
    return Plan(
        job_id=command.job_id,
        attempt=command.attempt,
        argv=command.argv,
        env=rank_environment(machine.environ, command, settings),
        # A job without a folder of its own gets a fresh one with every attempt.
        workdir=command.workdir or str(machine.attempt_folder(command.job_id, command.attempt) / "work"),
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
    )


async def launch(folder: Path, plan: Plan) -> str:
    """Write the plan and start its supervisor. Returns why that failed, with nothing left running; empty on success."""
    await asyncio.to_thread(_write_folder, folder, plan)
    root = str(Path(str(workers.__file__)).parent.parent)
    launcher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "workers.supervisor", str(folder)),
        env={"PYTHONPATH": root, "PATH": os.defpath},
        cwd="/",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(LAUNCH_TIMEOUT_S):
            code = await launcher.wait()
    except TimeoutError:
        launcher.kill()
        await launcher.wait()
        code = -1
    if code == 0:
        return ""
    await asyncio.to_thread(processes.kill_carriers, plan.cookie, 5.0)
    return f"the supervisor did not start (code {code}): {_last_words(folder)} (all of it: {folder / SUPERVISOR_LOG})"


def _last_words(folder: Path) -> str:
    """The last line that a supervisor wrote: the error, if it was one of Python's."""
    path = folder / SUPERVISOR_LOG
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1][:LAST_WORDS] if lines else "it said nothing"


def _write_folder(folder: Path, plan: Plan) -> None:
    folder.mkdir(parents=True, mode=0o700)
    (folder / "work").mkdir()
    write_plan(folder, plan)
