"""The environment of a rank: its variables, and the folder with the in-job client.

The variables are a whitelist of the agent's, plus the job's, plus Walras's own: the agent's secrets (tokens, cloud
credentials, passwords in URLs) must not reach a job. A job's `python` is the agent's, unless its own PATH, setup or
image says otherwise. The client folder has only `walras/__init__.py` and `walras.training`: never the
source tree or the agent's site-packages, because users have modules named `scheduler` and `optimizer` of their own.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import walras
import walras.training
from walras.wire import StartCommand
from workers.processes import COOKIE_VARIABLE
from workers.ranks import launcher_environment


def build_client_folder(state: Path) -> Path:
    """Copies the client below the agent's state folder, once per version; safe against other agents doing the same."""
    sources, digest = _client_sources()
    folder = state / "client" / digest[:16]
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    partial.chmod(0o755)
    for relative, content in sources:
        target = partial / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
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


@cache
def _client_sources() -> tuple[list[tuple[Path, bytes]], str]:
    """Returns path and content of each file, and the digest of all."""
    package = Path(str(walras.__file__)).parent
    training = Path(str(walras.training.__file__)).parent
    files = [package / "__init__.py", *sorted(training.glob("*.py"))]
    sources = [(Path("walras") / file.relative_to(package), file.read_bytes()) for file in files]
    hashed = hashlib.sha256(b"".join(str(path).encode() + b"\0" + content for path, content in sources))
    return sources, hashed.hexdigest()


INHERITED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "HF_HUB_CACHE"),
        *("HF_DATASETS_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_CACHE"),
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CERT"),
        *("PIP_CONFIG_FILE", "PIP_CONSTRAINT", "PIP_PROXY", "PIP_CACHE_DIR", "UV_INDEX", "UV_INDEX_URL"),
        *("UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX", "UV_INDEX_STRATEGY"),
        *("UV_INSECURE_HOST", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_CONFIG_FILE", "UV_CONSTRAINT", "UV_CACHE_DIR"),
    }
)
INHERITED_PREFIXES = ("LC_", "NCCL_", "GLOO_", "NVIDIA_", "FI_", "UCX_")
#: Ends of the names of proxies, of which both cases are in use: `https_proxy`, `NO_PROXY`.
_PROXY = "_proxy"
#: What only a name on `--pass-env` gives to jobs: a name that speaks of a secret, a URL with a user or a key in it.
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|_KEY$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/?#\s]*@|[?&][\w-]*(token|secret|key|sig|signature|passw\w*)=", re.IGNORECASE)
#: The word with which a job asks for its devices by UUID instead of by number.
_BY_UUID = "uuid"


@dataclass(frozen=True)
class RankSettings:
    """What a machine adds to a start command: facts of its own that the environments of ranks state."""

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
    #: The devices' UUIDs, by which a job may name them; empty if they are not real GPUs.
    device_names: tuple[str, ...] = ()
    #: Names of further variables of the agent that jobs get.
    pass_env: frozenset[str] = frozenset()
    #: Pipes of NVIDIA's multi-process service; empty: it does not run here.
    mps_folder: str = ""


def rank_environment(inherited: Mapping[str, str], command: StartCommand, settings: RankSettings) -> dict[str, str]:
    """Returns all variables except RANK, LOCAL_RANK and the ports, which the supervisor adds."""
    env = {name: value for name, value in inherited.items() if is_inherited(name, value, settings.pass_env)}
    env = with_own_python(env)
    # Output shows up at once. All of these a job may set otherwise.
    env |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(settings.threads)}
    env |= launcher_environment(command, settings.device_numbers)
    env |= command.env
    # The job's own modules come first; the client hides nothing of the job's (walras/__init__.py extends its path).
    own_path = command.env.get("PYTHONPATH", "")
    env["PYTHONPATH"] = ":".join(part for part in (own_path, str(settings.client_folder)) if part)
    return env | _walras_variables(command, settings)


def is_inherited(name: str, value: str, pass_env: Collection[str] = ()) -> bool:
    """Returns whether jobs get this variable of the agent. `pass_env`: names that its operator added."""
    if name.startswith("WALRAS_"):
        return False
    if name in pass_env:
        return True
    is_proxy = name.lower().endswith(_PROXY)
    is_listed = name in INHERITED or name.startswith(INHERITED_PREFIXES) or is_proxy
    is_secret = _SECRET_NAME.search(name) or _SECRET_VALUE.search(value) or (is_proxy and "@" in value)
    return is_listed and not is_secret


def with_own_python(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which `python` is that of the agent, whose environment has what jobs need here."""
    own, path = os.path.dirname(sys.executable), env.get("PATH", os.defpath)
    found = [shutil.which(name, path=path) for name in ("python", "python3") if os.path.exists(os.path.join(own, name))]
    if any(place is None or os.path.dirname(place) != own for place in found):
        path = f"{own}{os.pathsep}{path}"
    # Of the agent's shell these may speak of another environment.
    said = {"VIRTUAL_ENV": sys.prefix} if sys.prefix != sys.base_prefix else {}
    kept = {name: value for name, value in env.items() if name != "VIRTUAL_ENV"}
    return {**kept, **said, "PATH": path}


def narrowed_devices(settings: RankSettings, asked: str | None) -> tuple[str, str]:
    """Returns CUDA_VISIBLE_DEVICES, and what to tell the job of its own; empty: nothing.

    A job may narrow what it holds: to none (empty, or -1), to some by their places among them (`0` is the first), or to
    some by UUID. `uuid` means all that it holds, by UUID. Emulated accelerators hide the GPUs of the machine.
    """
    held, names = settings.visible_devices.split(","), settings.device_names
    if asked is None or not names:
        return settings.visible_devices, ""
    words = [word.strip() for word in asked.split(",") if word.strip()]
    if not words or words[0] == "-1":
        return asked.strip(), ""
    if words == [_BY_UUID]:
        return ",".join(names), ""
    # CUDA takes no numbers beside UUIDs.
    shown = held if all(word.isdecimal() for word in words) else names
    found = [
        (word, [at for at, name in enumerate(names) if word == str(at) or (len(word) > 4 and name.startswith(word))])
        for word in words
    ]
    chosen = dict.fromkeys(shown[at] for _, places in found for at in places)
    unknown = ", ".join(word for word, places in found if not places)
    last = f" to {len(names) - 1}" if len(names) > 1 else ""
    note = f"CUDA_VISIBLE_DEVICES names {unknown[:200]}, which the job does not hold: it has 0{last}"
    return ",".join(chosen) or settings.visible_devices, note if unknown else ""


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
        "CUDA_VISIBLE_DEVICES": narrowed_devices(settings, command.env.get("CUDA_VISIBLE_DEVICES"))[0],
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
