"""Python environments by uv, the job's own setup, and commits of a repository: made once per machine and content.

An environment stays where it was made, because its scripts name their interpreter by its path. It sees the packages of
the agent's Python unless the job says otherwise, so that a torch built for the machine need not be installed again;
packages that the job requests come before them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from walras.errors import ConfigError
from walras.job_needs import GitNeed, PythonNeed
from walras.machines.machine_facts import PACKAGES, PROGRAMS, RUNTIMES
from workers.preparation.folder_cache import CacheBounds, FolderCache, cache_key, make_read_only
from workers.preparation.inputs import MachineUnable, is_of_machine, tool_failed

ENVIRONMENT_BOUNDS = CacheBounds(entries=20, size_bytes=100 * 1000**3, is_sealed=False)
CODE_BOUNDS = CacheBounds(entries=50, size_bytes=20 * 1000**3)
SETUP_BOUNDS = CacheBounds(entries=50, size_bytes=50 * 1000**3)
_GIT_TIMEOUT_S = 1800.0
#: How long docker's daemon may take to answer; agents ask it between heartbeats.
_DAEMON_TIMEOUT_S = 3.0
_FILE_MOST = 16 * 1024 * 1024


def find_tool(name: str) -> str:
    """Returns the path of a program beside the agent's Python or on the PATH; empty if this machine has none."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name) or ""


def works_here(name: str, program: str) -> bool:
    """Returns whether a tool can do its work: docker is only a client of a daemon, which must answer."""
    if name != "docker":
        return True
    asked = [program, "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DAEMON_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def tools_here() -> list[str]:
    """Returns the tools for jobs that this machine has."""
    found = {name: find_tool(name) for name in (*RUNTIMES, *PROGRAMS)}
    programs = [name for name, program in found.items() if program and works_here(name, program)]
    return programs + [name for name in PACKAGES if find_spec(name) is not None]


# ------------------------------------------------------------------------------------------------ python


def bring_python(
    cache: FolderCache, need: PythonNeed, setup: str, code: str, owner: str, work: Path, env: dict[str, str]
) -> Path:
    """Returns the environment's folder, which is made if it does not exist.

    It belongs to the `owner` of the job: packages come with their rights, and run code as they are made. One into
    which a setup may install packages is not shared with other setups; one that contains files of the job's folder is
    made anew for other `code`. Raises ConfigError where it cannot be made: uv or a file is missing,
    or a package cannot be installed.
    """
    uv = find_tool("uv")
    if not uv:
        raise MachineUnable("this machine has no uv to make a Python environment with")
    files = [_read(work, name) for name in _files_of(need)]
    if _names_local_files([*need.packages, *"\n".join(files).splitlines()]):
        files.append(code)
    base = sys.base_prefix if need.system_packages else ""
    key = cache_key(owner, repr(need.model_dump()), setup, sys.version, base, *files)

    def make(place: Path) -> None:
        python = need.version or sys.executable
        seen = ["--system-site-packages"] if need.system_packages else []
        _run([uv, "venv", "--quiet", "--allow-existing", *seen, "--python", python, str(place)], work, env)
        if need.system_packages and not need.version and sys.prefix != sys.base_prefix:
            _see_packages_of_agent(place)
        if need.lock:
            project = [str((work / need.lock).parent), "--frozen", "--no-install-project", "--inexact"]
            own = env | {"UV_PROJECT_ENVIRONMENT": str(place), "VIRTUAL_ENV": str(place)}
            _run([uv, "sync", "--quiet", "--project", *project], work, own)
            return
        wanted = [*(["-r", need.requirements] if need.requirements else []), *need.packages]
        _run([uv, "pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *wanted], work, env)

    return cache.get(key, make)


def _names_local_files(lines: Sequence[str]) -> bool:
    """Returns whether a requirement, or an option among them, may name a path in the working folder."""
    return any(line.strip().startswith((".", "-")) or ("/" in line and "://" not in line) for line in lines)


def _files_of(need: PythonNeed) -> list[str]:
    if need.lock:
        return [need.lock, str(Path(need.lock).parent / "pyproject.toml")]
    return [need.requirements] if need.requirements else []


def _read(work: Path, name: str) -> str:
    """Returns the text of a small file below the working folder."""
    place = work / name
    if not place.resolve().is_relative_to(work.resolve()) or not place.is_file():
        raise ConfigError(f"{name} is not in the job's working folder", field="python", fix="`workdir: .` sends it")
    if place.stat().st_size > _FILE_MOST:
        raise ConfigError(f"{name} has more than {_FILE_MOST:,} bytes", field="python")
    return place.read_text(errors="replace")


def _see_packages_of_agent(place: Path) -> None:
    """Adds the agent's packages to the path: a venv sees only packages of its base, and the agent runs in another."""
    packages = next((path for path in sys.path if path.startswith(sys.prefix) and path.endswith("site-packages")), "")
    for inner in place.glob("lib/python*/site-packages"):
        if packages:
            (inner / "of_the_machine.pth").write_text(packages + "\n")


def active_environment(place: Path, env: dict[str, str]) -> dict[str, str]:
    """Returns the variables with the environment active, as its `activate` would."""
    path = f"{place / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
    return {name: value for name, value in env.items() if name != "PYTHONHOME"} | {
        "VIRTUAL_ENV": str(place),
        "PATH": path,
    }


# ------------------------------------------------------------------------------------------------ setup


def run_setup(
    cache: FolderCache,
    setup: str,
    identity: Sequence[str],
    work: Path,
    env: dict[str, str],
    inside: Callable[[list[str], Mapping[str, str]], list[str]],
) -> Path:
    """Runs a job's setup unless it ran here for the same text and `identity`; returns the folder that it may fill.

    `inside` turns a command into one that runs in the ranks' environment. Raises ConfigError with the setup's exit
    code.
    """

    def make(place: Path) -> None:
        print("[walras] setup runs, once on this machine", file=sys.stderr, flush=True)
        told = env | {"WALRAS_SETUP": str(place)}
        _run(inside(["bash", "-euo", "pipefail", "-c", setup], told), work, told, "setup")
        make_read_only(place)

    return cache.get(cache_key(setup, *identity), make)


def _run(argv: Sequence[str], work: Path, env: dict[str, str], name: str = "") -> None:
    """Runs a program whose output goes to the rank's log. Raises ConfigError with its exit code.

    One without a name is ours, and fetches: raises CannotFetch or MachineUnable where it says so.
    """
    errors = None if name else subprocess.PIPE
    try:
        done = subprocess.run(
            list(argv), cwd=work, env=env, stdin=subprocess.DEVNULL, stderr=errors, check=False, errors="replace"
        )
    except OSError as error:
        if is_of_machine(error):
            raise
        raise ConfigError(f"{name or argv[0]}: {error.strerror}") from None
    said = done.stderr or ""
    print(said, end="", file=sys.stderr, flush=True)
    if done.returncode != 0:
        told = f"{name or ' '.join(argv[:3])} ended with code {done.returncode}"
        raise ConfigError(told) if name else tool_failed(told, said, "python")


# ------------------------------------------------------------------------------------------------ git


def bring_commit(cache: FolderCache, need: GitNeed, owner: str, work: Path, env: dict[str, str]) -> None:
    """Fills the working folder with the files of a commit.

    Raises ConfigError for a commit that does not exist, CannotFetch for a repository that does not answer.
    """
    git = find_tool("git")
    if not git:
        raise MachineUnable("this machine has no git")
    asking = env | {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file"}

    def make(place: Path) -> None:
        inner = [git, "-C", str(place), "-c", "core.hooksPath=/dev/null", "-c", "core.symlinks=true"]
        for arguments in (
            ["init", "--quiet"],
            ["fetch", "--quiet", "--depth", "1", "--no-recurse-submodules", "--", need.url, need.commit],
            ["checkout", "--quiet", "--detach", need.commit],
        ):
            done = subprocess.run([*inner, *arguments], env=asking, capture_output=True, timeout=_GIT_TIMEOUT_S)
            if done.returncode != 0:
                said = done.stderr.decode(errors="replace").strip()[-500:]
                told = f"git {arguments[0]} {need.url} {need.commit[:12]}: {said}"
                raise tool_failed(told, said, "workdir.git")

    commit = cache.get(cache_key(owner, need.url, need.commit), make)
    shutil.copytree(commit, work, symlinks=True, dirs_exist_ok=True)
