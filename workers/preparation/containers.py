"""Runs a rank inside an image, with apptainer, podman or docker: the first of these that this machine has.

The rank keeps what it has without an image: the user, the network, shared memory, its variables, its devices, and under
the same paths its working folder, checkpoints, inputs and the agent's socket. Variables are passed by name, so that no
value appears on a command line.
"""

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from walras.errors import ConfigError
from walras.machine_tools import RUNTIMES
from workers.preparation.environments import find_tool, works_here
from workers.preparation.folder_cache import CacheBounds, FolderCache
from workers.preparation.inputs import MachineUnable

IMAGE_BOUNDS = CacheBounds(entries=20, size_bytes=200 * 1000**3)
#: Variables that belong to the machine or to the image; a rank in an image gets the image's.
_OF_THE_MACHINE = frozenset({"PATH", "HOME", "LD_LIBRARY_PATH", "SHELL", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR"})
_PULL_TIMEOUT_S = 3600.0
_SCHEME = "docker://"


@dataclass(frozen=True)
class ContainerPlace:
    """What a rank keeps inside an image."""

    work: str
    #: Folders that it can write, and folders that it can only read, under the same paths.
    writable: tuple[str, ...]
    readable: tuple[str, ...]
    uid: int
    gid: int
    has_nvidia: bool = False
    has_rocm: bool = False


def container_place(work: Path, folder: Path, caches: Path, env: Mapping[str, str]) -> ContainerPlace:
    """Returns what the rank with these variables keeps."""
    socket = os.path.dirname(env.get("WALRAS_SOCKET", ""))
    writable = [str(work), env.get("WALRAS_CHECKPOINT_DIR", ""), env.get("WALRAS_SETUP", ""), socket]
    readable = [str(folder), str(caches), *env.get("PYTHONPATH", "").split(os.pathsep)]
    return ContainerPlace(
        work=str(work),
        writable=tuple(dict.fromkeys(path for path in writable if path.startswith("/"))),
        readable=tuple(dict.fromkeys(path for path in readable if path.startswith("/") and os.path.isdir(path))),
        uid=os.getuid(),
        gid=os.getgid(),
        has_nvidia=bool(env.get("CUDA_VISIBLE_DEVICES")) and os.path.exists("/dev/nvidiactl"),
        has_rocm=os.path.exists("/dev/kfd"),
    )


def container_argv(
    runtime: str, program: str, image: str, place: ContainerPlace, names: Sequence[str], argv: Sequence[str]
) -> list[str]:
    """Returns the command that runs `argv` inside the image. `names`: the variables that it gets.

    The rank's own variables restrict its devices, as without an image.
    """
    if runtime == "apptainer":
        gpu = [*(["--nv"] if place.has_nvidia else []), *(["--rocm"] if place.has_rocm else [])]
        mounts = [f"{path}:{path}:ro" for path in place.readable] + [f"{path}:{path}" for path in place.writable]
        bound = [word for mount in mounts for word in ("--bind", mount)]
        return [program, "exec", "--no-eval", "--writable-tmpfs", *gpu, *bound, "--pwd", place.work, image, *argv]
    if runtime == "podman":
        gpu = ["--device", "nvidia.com/gpu=all"] if place.has_nvidia else []
        # Only unprivileged users have a user namespace to map.
        own = ["--userns", "keep-id"] if place.uid else []
    else:
        gpu, own = (["--gpus", "all"] if place.has_nvidia else []), []
    if place.has_rocm:
        gpu += ["--device", "/dev/kfd", "--device", "/dev/dri"]
    mounts = [f"type=bind,source={path},target={path},readonly" for path in place.readable]
    mounts += [f"type=bind,source={path},target={path}" for path in place.writable]
    bound = [word for mount in mounts for word in ("--mount", mount)]
    told = [word for name in sorted(names) if name not in _OF_THE_MACHINE for word in ("--env", name)]
    shared = ["--network", "host", "--ipc", "host", "--pid", "host", "--entrypoint", ""]
    user = ["--user", f"{place.uid}:{place.gid}"]
    return [
        *(program, "run", "--rm", "--interactive", *shared, *own, *user, *gpu, *bound, "--workdir", place.work),
        *(*told, image.removeprefix(_SCHEME), *argv),
    ]


def find_runtime() -> tuple[str, str]:
    """Returns the name and path of the first runtime that works here. Raises MachineUnable if none does."""
    for name in RUNTIMES:
        if (program := find_tool(name)) and works_here(name, program):
            return name, program
    raise MachineUnable(f"this machine has none of {', '.join(RUNTIMES)} that works to run an image with")


def bring_image(cache: FolderCache, runtime: str, program: str, image: str, env: dict[str, str]) -> str:
    """Fetches the image to this machine; returns its name, or the path of its file.

    Raises ConfigError where the image is not available.
    """
    if image.startswith("/"):
        if not os.path.exists(image):
            raise ConfigError(f"there is no image {image} on this machine", field="image")
        if runtime != "apptainer":
            raise ConfigError(f"{runtime} takes no image from a file; name one in a registry", field="image")
        return image
    if runtime == "apptainer":
        named = image if "://" in image else f"{_SCHEME}{image}"
        key = hashlib.sha256(named.encode()).hexdigest()
        folder = cache.get(key, lambda place: _pull([program, "pull", str(place / "image.sif"), named], image, env))
        return str(folder / "image.sif")
    plain = image.removeprefix(_SCHEME)
    known = subprocess.run([program, "image", "inspect", plain], env=env, capture_output=True, check=False)
    if known.returncode != 0:
        _pull([program, "pull", "--quiet", plain], image, env)
    return plain


def _pull(argv: list[str], image: str, env: dict[str, str]) -> None:
    done = subprocess.run(argv, env=env, capture_output=True, timeout=_PULL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise ConfigError(f"the image {image} cannot be had: {said}", field="image")
