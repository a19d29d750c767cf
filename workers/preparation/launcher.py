"""The program as which a rank starts if its job needs preparation: it prepares the machine, then becomes the rank.

So preparation counts as part of the job: its output is in the rank's log, a stop ends it, its limits apply to it, and
it survives the agent. Ranks of one machine prepare one after another, and all but the first find the result. A failure
that a retry cannot change ends the rank with `EXIT_NOT_PREPARED`, after which the job is not retried; a failure that
time may cure ends it with the code that requests a restart; the want of a tool that the machine should have ends it
with `EXIT_MACHINE_UNABLE`, after which the job goes elsewhere.

In an image, the rank runs with apptainer, podman or docker: the first of these that this machine has. It keeps what it
has without an image: the user, the network, shared memory, its variables, its devices, and under the same paths its
working folder, checkpoints, inputs and the agent's socket. Variables are passed by name, so that no value appears on a
command line.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from walras.contract import EXIT_CHECKPOINTED, EXIT_MACHINE_UNABLE, EXIT_NOT_PREPARED
from walras.errors import ConfigError, UserError
from walras.job_needs import JobNeeds
from walras.machines.machine_facts import RUNTIMES
from workers.preparation.environments import (
    CODE_BOUNDS,
    ENVIRONMENT_BOUNDS,
    SETUP_BOUNDS,
    active_environment,
    bring_commit,
    bring_python,
    find_tool,
    run_setup,
    works_here,
)
from workers.preparation.folder_cache import CacheBounds, FolderCache, cache_key
from workers.preparation.inputs import (
    INPUT_BOUNDS,
    CannotFetch,
    MachineUnable,
    bring_inputs,
    is_of_machine,
    tool_failed,
)
from workers.processes import CONTAINER_VARIABLE, COOKIE_VARIABLE, cookies
from workers.ranks import EXIT_NOT_FOUND, EXIT_NOT_RUNNABLE
from workers.supervisor_protocol import read_ranks_file, write_atomically, write_durably

NEEDS_FILE = "needs.json"
#: Variables that preparation added, for sessions beside the job.
ENVIRONMENT_FILE = "prepared.env.json"
_NEEDS_BYTES = 4 * 1024 * 1024
#: In an attempt's folder: lock of the preparing rank, and the result.
_LOCK_FILE, _FAILED_FILE = "preparing.lock", "preparing.failed"
#: Number of tries for errors that may pass, and the seconds before each further one.
_TRIES, _PAUSE_S = 3, 5.0
#: The most seconds that a machine is prepared for; they do not count as running.
_MOST_S = 6 * 3600


def write_needs(folder: Path, needs: JobNeeds) -> None:
    """Stores the job's needs, if any, beside its plan, for its ranks and for an agent that is started later."""
    if needs != JobNeeds():
        write_atomically(folder / NEEDS_FILE, needs.model_dump(mode="json"), is_synced=bool(needs.outputs))


def read_needs(folder: Path) -> JobNeeds:
    """Returns the stored needs; empty if there are none."""
    kept = read_ranks_file(folder / NEEDS_FILE, 0, _NEEDS_BYTES)
    try:
        return JobNeeds.model_validate_json(kept)
    except ValueError:
        return JobNeeds()


def prepared_argv(folder: Path, caches: Path, needs: JobNeeds, argv: list[str]) -> list[str]:
    """Returns the command as which a rank starts: its own, or this program in front of it.

    `folder` has the job's needs and gets what is kept of preparing; it and `caches` belong to the rank's account.
    """
    if not needs.is_prepared_first:
        return argv
    root = str(Path(__file__).resolve().parents[2])
    # Isolated, so that neither the job's PYTHONPATH nor its folder can hide our imports.
    begin = (
        f"import sys; sys.path.insert(0, {root!r}); from workers.preparation.launcher import become_rank; become_rank()"
    )
    return [sys.executable, "-I", "-c", begin, str(folder), str(caches), *argv]


def become_rank() -> None:
    """Prepares the machine, and becomes the rank. Never returns."""
    folder, caches, env, argv = Path(sys.argv[1]), Path(sys.argv[2]), dict(os.environ), sys.argv[3:]
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_MOST_S)
    with open(folder / _LOCK_FILE, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _FAILED_FILE).exists():
            sys.exit(int((folder / _FAILED_FILE).read_text()))
        if not (folder / ENVIRONMENT_FILE).exists():
            _tell(f"brings what the job needs: {', '.join(read_needs(folder).kinds)}")
        code, env, argv = _prepare_patiently(caches, folder, env, argv)
        if code:
            with contextlib.suppress(OSError):
                write_atomically(folder / _FAILED_FILE, code)
            sys.exit(code)
    signal.alarm(0)
    try:
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError:
        _tell(f"{argv[0]}: not found")
        sys.exit(EXIT_NOT_FOUND)
    except OSError as error:
        _tell(f"{argv[0]}: {error.strerror}")
        sys.exit(EXIT_NOT_RUNNABLE)


def _give_up(*_: object) -> None:
    _tell(f"not prepared within {_MOST_S // 3600} h")
    os._exit(EXIT_NOT_PREPARED)


def _prepare_patiently(
    caches: Path, folder: Path, env: dict[str, str], argv: list[str]
) -> tuple[int, dict[str, str], list[str]]:
    """Returns 0 with the variables and the command of the rank, or the code with which to end."""
    for left in reversed(range(_TRIES)):
        try:
            own, inside = prepare(caches.resolve(), folder, Path.cwd(), env)
            argv = inside(argv, own)
            changed = {name: value for name, value in own.items() if os.environ.get(name) != value}
            write_durably(folder / ENVIRONMENT_FILE, changed)
            return 0, own, argv
        except (CannotFetch, subprocess.TimeoutExpired) as error:
            _tell(f"not prepared: {error}" + ("; trying again" if left else "; the job is queued again"))
        except (MachineUnable, UserError, OSError) as error:
            if isinstance(error, MachineUnable) or (isinstance(error, OSError) and is_of_machine(error)):
                _tell(f"not prepared: {error}; the job goes to another machine")
                return EXIT_MACHINE_UNABLE, env, argv
            _tell(f"not prepared: {error}")
            return EXIT_NOT_PREPARED, env, argv
        if left:
            time.sleep(_PAUSE_S)
    return EXIT_CHECKPOINTED, env, argv


def prepare(
    caches: Path, folder: Path, work: Path, env: dict[str, str]
) -> tuple[dict[str, str], Callable[[list[str], Mapping[str, str]], list[str]]]:
    """Fetches and makes what the attempt of this folder needs.

    Returns the variables of its ranks, and a function that turns a command into one that runs where they do.

    Raises CannotFetch for errors that may pass, ConfigError and OSError for others.
    """
    needs = read_needs(folder)
    done = folder / "prepared.code"
    if needs.git is not None and not done.exists():
        bring_commit(FolderCache(caches / "git", CODE_BOUNDS), needs.git, needs.owner, work, env)
        done.touch()
    if needs.inputs:
        bring_inputs(FolderCache(caches / "inputs", INPUT_BOUNDS), needs.inputs, folder / "inputs", env, needs.owner)
        env = env | {"WALRAS_INPUTS": str(folder / "inputs")}
    identity = [needs.owner, repr(needs.git), needs.code, ""]
    if needs.python is not None:
        cache = FolderCache(caches / "python", ENVIRONMENT_BOUNDS)
        place = bring_python(cache, needs.python, needs.setup, "".join(identity), needs.owner, work, env)
        env, identity[-1] = active_environment(place, env), place.name
    inside = _entrance(needs, caches, folder, work, env)
    if needs.setup:
        identity.append(needs.image)
        made = run_setup(FolderCache(caches / "setup", SETUP_BOUNDS), needs.setup, identity, work, env, inside)
        env = env | {"WALRAS_SETUP": str(made)}
    return env, inside


def _entrance(
    needs: JobNeeds, caches: Path, folder: Path, work: Path, env: dict[str, str]
) -> Callable[[list[str], Mapping[str, str]], list[str]]:
    """Returns a function that turns a command with its variables into one that runs where the ranks do."""
    if not needs.image:
        return lambda argv, told: argv
    runtime, program = find_runtime()
    if runtime == "podman":
        remove_left_containers(program, env)
    image = bring_image(FolderCache(caches / "images", IMAGE_BOUNDS), runtime, program, needs.image, env)

    def enter(argv: list[str], told: Mapping[str, str]) -> list[str]:
        place = container_place(work, folder, told)
        return container_argv(runtime, program, image, place, list(told), argv)

    return enter


def _tell(text: str) -> None:
    print(f"[walras] {text}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------ images


IMAGE_BOUNDS = CacheBounds(entries=20, size_bytes=200 * 1000**3)
#: Variables that belong to the machine or to the image; a rank in an image gets the image's.
_OF_THE_MACHINE = frozenset({"PATH", "HOME", "LD_LIBRARY_PATH", "SHELL", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR"})
_PULL_TIMEOUT_S = 3600.0
#: A label of our containers under podman, whose value names the attempt; and the seconds that removing them may take.
_LABEL, _REMOVAL_S = "walras.attempt", 60.0
_SCHEME = "docker://"


@dataclass(frozen=True)
class ContainerPlace:
    """What a rank keeps inside an image."""

    work: str
    #: Folders that it can write, and folders and files that it can only read, under the same paths.
    writable: tuple[str, ...]
    readable: tuple[str, ...]
    uid: int
    gid: int
    has_nvidia: bool = False
    has_rocm: bool = False


def container_place(work: Path, folder: Path, env: Mapping[str, str]) -> ContainerPlace:
    """Returns what the rank with these variables keeps: of the caches, what was brought for it."""
    socket, setup = os.path.dirname(env.get("WALRAS_SOCKET", "")), env.get("WALRAS_SETUP", "")
    writable = [str(work), env.get("WALRAS_CHECKPOINT_DIR", ""), socket]
    if not os.path.exists(f"{setup}.done"):  # it is being made: afterwards it is only read
        writable.append(setup)
    brought = [os.path.realpath(link) for link in (folder / "inputs").glob("*")]
    readable = [str(folder), setup, *brought, *env.get("PYTHONPATH", "").split(os.pathsep)]
    return ContainerPlace(
        work=str(work),
        writable=tuple(dict.fromkeys(path for path in writable if path.startswith("/"))),
        readable=tuple(dict.fromkeys(path for path in readable if path.startswith("/") and os.path.exists(path))),
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
        own += ["--label", f"{_LABEL}={_label_of(os.environ.get(COOKIE_VARIABLE, ''))}"]
    else:
        gpu, own = (["--gpus", "all"] if place.has_nvidia else []), []
    if place.has_rocm:
        gpu += ["--device", "/dev/kfd", "--device", "/dev/dri"]
    mounts = [f"type=bind,source={path},target={path},readonly" for path in place.readable]
    mounts += [f"type=bind,source={path},target={path}" for path in place.writable]
    bound = [word for mount in mounts for word in ("--mount", mount)]
    told = [word for name in sorted(names) if name not in _OF_THE_MACHINE for word in ("--env", name)]
    shared = ["--network", "host", "--ipc", "host", "--pid", "host", "--entrypoint", ""]
    user = ["--user", f"{place.uid}:{place.gid}", "--env", f"{CONTAINER_VARIABLE}=1"]
    return [
        *(program, "run", "--rm", "--interactive", *shared, *own, *user, *gpu, *bound, "--workdir", place.work),
        *(*told, image.removeprefix(_SCHEME), *argv),
    ]


def remove_left_containers(program: str, env: dict[str, str]) -> None:
    """Removes the containers that podman keeps of attempts that are gone: what kills an attempt whole kills the process
    that would have removed its container, whose files then stay. As long as anything of an attempt lives, its own stay.
    """
    asked = [program, "ps", "--all", "--filter", f"label={_LABEL}", "--format", "json"]
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, subprocess.TimeoutExpired):
        said = subprocess.run(asked, env=env, capture_output=True, timeout=_REMOVAL_S, check=False).stdout
        living = {_label_of(cookie) for cookie in cookies()}
        left = [str(each["Id"]) for each in json.loads(said or b"[]") if each["Labels"][_LABEL] not in living]
        if left:
            remove = [program, "rm", "--force", *left]
            subprocess.run(remove, env=env, capture_output=True, timeout=_REMOVAL_S, check=False)


def _label_of(cookie: str) -> str:
    """Returns what names an attempt on a command line, which everybody can read."""
    return hashlib.sha256(cookie.encode()).hexdigest()[:16]


def find_runtime() -> tuple[str, str]:
    """Returns the name and path of the first runtime that works here. Raises MachineUnable if none does."""
    for name in RUNTIMES:
        if (program := find_tool(name)) and works_here(name, program):
            return name, program
    raise MachineUnable(f"this machine has none of {', '.join(RUNTIMES)} that works to run an image with")


def bring_image(cache: FolderCache, runtime: str, program: str, image: str, env: dict[str, str]) -> str:
    """Fetches the image to this machine; returns its name, or the path of its file.

    Raises ConfigError where the image is not available, CannotFetch or MachineUnable where the image is not at fault.
    """
    if image.startswith("/"):
        if not os.path.exists(image):
            raise ConfigError(f"there is no image {image} on this machine", field="image")
        if runtime != "apptainer":
            raise ConfigError(f"{runtime} takes no image from a file; name one in a registry", field="image")
        return image
    if runtime == "apptainer":
        named = image if "://" in image else f"{_SCHEME}{image}"
        folder = cache.get(
            cache_key(named), lambda place: _pull([program, "pull", str(place / "image.sif"), named], image, env)
        )
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
        raise tool_failed(f"the image {image} cannot be had: {said}", said, "image")
