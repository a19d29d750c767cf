"""The environment of a rank: its variables, and the folder with the in-job client.

The variables are a whitelist of the agent's, plus the job's, plus Walras's own: the agent's secrets (tokens, cloud
credentials) must not reach a job. The client folder has only `walras/__init__.py` and `walras.training`: never the
source tree or the agent's site-packages, because users have modules named `scheduler` and `optimizer` of their own.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import walras
import walras.training
from walras.wire import StartCommand
from workers.launchers import launcher_environment
from workers.processes import COOKIE_VARIABLE


def build_client_folder(state: Path) -> Path:
    """Copies the client below the agent's state folder, once per version; safe against other agents doing the same."""
    sources = _client_sources()
    hashed = hashlib.sha256()
    for relative, source in sources:
        hashed.update(str(relative).encode() + b"\0" + source.read_bytes())
    folder = state / "client" / hashed.hexdigest()[:16]
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    partial.chmod(0o755)
    for relative, source in sources:
        target = partial / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        # Ranks of other accounts read it, too.
        for place, mode in ((target, 0o644), (target.parent, 0o755)):
            place.chmod(mode)
    try:
        os.rename(partial, folder)
    except OSError:
        shutil.rmtree(partial)
        if not folder.exists():
            raise
    return folder


def _client_sources() -> list[tuple[Path, Path]]:
    package = Path(str(walras.__file__)).parent
    training = Path(str(walras.training.__file__)).parent
    files = [package / "__init__.py", *sorted(training.glob("*.py"))]
    return [(Path("walras") / file.relative_to(package), file) for file in files]


INHERITED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    }
)
INHERITED_PREFIXES = ("LC_", "NCCL_", "GLOO_", "NVIDIA_")


@dataclass(frozen=True)
class RankSettings:
    """The machine's additions to a start command."""

    #: A folder that contains only the in-job client: see `build_client_folder`.
    client_folder: Path
    rank_socket: str
    cookie: str
    #: Value of CUDA_VISIBLE_DEVICES; empty if the devices are not real GPUs.
    visible_devices: str
    #: Steps per second of the gang on an emulated accelerator; None: not emulated, or unknown.
    pace: float | None
    threads: int
    #: The devices' numbers for programs that need numbers; empty: they have none.
    device_numbers: str = ""
    #: Pipes of NVIDIA's multi-process service; empty: it does not run here.
    mps_folder: str = ""


def rank_environment(inherited: Mapping[str, str], command: StartCommand, settings: RankSettings) -> dict[str, str]:
    """Returns all variables except RANK, LOCAL_RANK and the ports, which the supervisor adds."""
    env = {name: value for name, value in inherited.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)}
    # Output shows up at once. All of these a job may set otherwise.
    env |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(settings.threads)}
    env |= launcher_environment(command, settings.device_numbers)
    env |= command.env
    # The job's own modules come first; the client hides nothing of the job's (walras/__init__.py extends its path).
    own_path = command.env.get("PYTHONPATH", "")
    env["PYTHONPATH"] = ":".join(part for part in (own_path, str(settings.client_folder)) if part)
    return env | _walras_variables(command, settings)


def _walras_variables(command: StartCommand, settings: RankSettings) -> dict[str, str]:
    per_node = len(command.devices)
    address = command.master_address or "127.0.0.1"
    env = {
        "WALRAS_JOB_ID": str(command.job_id),
        "WALRAS_JOB_NAME": command.name,
        "WALRAS_ATTEMPT": str(command.attempt),
        "WALRAS_NODE_RANK": str(command.node_rank),
        "WALRAS_NUM_NODES": str(command.num_nodes),
        "WALRAS_GPUS_PER_NODE": str(per_node),
        "WALRAS_MASTER_ADDR": address,
        "WALRAS_CHECKPOINT_DIR": command.checkpoint_dir,
        "WALRAS_SOCKET": settings.rank_socket,
        "WALRAS_TOKEN": command.job_token,
        # What is installed beside the agent, for jobs that measure the machine for it.
        "WALRAS_AGENT_PYTHON": sys.executable,
        COOKIE_VARIABLE: settings.cookie,
        "WALRAS_WORLD_SIZE": str(command.world_size),
        "MASTER_ADDR": address,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": settings.visible_devices,
    }
    if not command.is_launcher:
        env |= {"WORLD_SIZE": str(command.world_size), "LOCAL_WORLD_SIZE": str(per_node)}
    if command.incarnation:
        env["WALRAS_INCARNATION"] = command.incarnation
    if command.resume is not None:
        env["WALRAS_RESUME"] = json.dumps(command.resume.model_dump())
    if command.store:
        env["WALRAS_CHECKPOINT_STORE"] = command.store
    if command.steps is not None:
        env["WALRAS_STEPS"] = str(command.steps)
    if command.checkpoint_every_s is not None:
        env["WALRAS_CHECKPOINT_EVERY"] = str(command.checkpoint_every_s)
    if settings.mps_folder:
        env["CUDA_MPS_PIPE_DIRECTORY"] = settings.mps_folder
    if settings.pace is not None:
        env["WALRAS_PACE"] = str(settings.pace)
    return env
