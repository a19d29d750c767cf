"""The environment of a rank: what it inherits of the agent's, what the job says, what we add, and nothing else.

A whitelist, because what an agent was started with (tokens, credentials of a cloud) is none of a job's business.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from walras.wire import StartCommand
from workers.processes import COOKIE_VARIABLE

INHERITED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    }
)
INHERITED_PREFIXES = ("LC_", "NCCL_", "GLOO_", "NVIDIA_")


@dataclass(frozen=True)
class RankSettings:
    """What the machine adds to a start command."""

    #: A folder with `walras/__init__.py` and `walras/training` alone.
    client_folder: Path
    rank_socket: str
    cookie: str
    #: For CUDA_VISIBLE_DEVICES; empty where the devices are no real GPUs.
    visible_devices: str
    #: Gang steps/s, where the accelerator is emulated and the pace is known.
    pace: float | None
    threads: int


def rank_environment(inherited: Mapping[str, str], command: StartCommand, settings: RankSettings) -> dict[str, str]:
    """Everything but RANK, LOCAL_RANK and MASTER_PORT, which the supervisor adds."""
    env = {name: value for name, value in inherited.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)}
    # Output shows up at once. Both of these a job may set otherwise.
    env |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(settings.threads)}
    env |= command.env
    # The job's own modules come first; the client hides nothing of the job's (walras/__init__.py extends its path).
    own_path = command.env.get("PYTHONPATH", "")
    env["PYTHONPATH"] = ":".join(part for part in (own_path, str(settings.client_folder)) if part)
    return env | _ours(command, settings)


def _ours(command: StartCommand, settings: RankSettings) -> dict[str, str]:
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
        COOKIE_VARIABLE: settings.cookie,
        "WORLD_SIZE": str(command.world_size),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": address,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": settings.visible_devices,
    }
    if command.resume is not None:
        env["WALRAS_RESUME"] = json.dumps(command.resume.model_dump())
    if command.steps is not None:
        env["WALRAS_STEPS"] = str(command.steps)
    if settings.pace is not None:
        env["WALRAS_PACE"] = str(settings.pace)
    return env
