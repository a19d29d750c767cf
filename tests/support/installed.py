"""Walras as people have it: the built wheel in an environment of its own, apart from any checkout."""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.support.not_here import not_here

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("walras", "optimizer", "scheduler", "workers", "simulator", "configs")


def tracked_sources() -> set[str]:
    """Files of the shipped folders: tracked ones, and new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *SHIPPED], cwd=ROOT, capture_output=True
    )
    if listed.returncode != 0:
        not_here("git", "not a git checkout")
    return {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()}


def copy_sources(tree: Path) -> Path:
    """Returns `tree` with what a build reads: a build leaves folders behind, and what lies about must not reach it."""
    for name in [*tracked_sources(), "pyproject.toml", "README.md", "LICENSE"]:
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    return tree


def build_wheel(folder: Path, sources: Path | None = None) -> Path:
    """Returns the wheel of the sources in a folder, by default of a copy of ours."""
    tree = sources or copy_sources(folder / "tree")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    built = subprocess.run(
        [*pip, "--wheel-dir", folder / "out", "."], cwd=tree, capture_output=True, text=True, timeout=300
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "out").glob("walras-*.whl")
    return wheel


def install_wheel(wheel: Path, folder: Path) -> Path:
    """Returns the `bin` folder of a new environment with the wheel; what it depends on is that of the tests."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-index", str(wheel)], capture_output=True, text=True, timeout=300, env=clean_environment(folder)
    )
    assert done.returncode == 0, done.stderr
    # After the wheel's own packages on the path: an editable install there is not seen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def installed_once(folder: Path) -> Path:
    """Returns the `bin` folder of the environment with our wheel that this folder has; the first that asks makes it.

    What Walras compiles at its first large problem, half a minute of work, is compiled once there.
    """
    environment, is_done = folder / "installed", folder / "installed.done"
    with (folder / "installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_done.exists():
            shutil.rmtree(environment, ignore_errors=True)
            install_wheel(build_wheel(environment), environment / "venv")
            is_done.touch()
    return environment / "venv/bin"


def clean_environment(home: Path, *first_on_path: Path) -> dict[str, str]:
    """Returns what a new shell of somebody has: no PYTHONPATH, no server, a home of their own."""
    path = os.pathsep.join([*map(str, first_on_path), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    return {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}
