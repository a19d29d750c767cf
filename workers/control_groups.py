"""A control group (cgroup v2) for the ranks of each attempt, where this machine lets the agent create one.

In its group the kernel enforces an attempt's memory limit at once, shares processors in proportion to its accelerators,
and kills it as a whole: `cgroup.kill` also reaches processes that left its session and cleared their environment. Only
ranks are in the group; supervisor and guardian, which report their end, stay outside. Standard library only.
"""

import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Folder of the attempts' groups, below the agent's own group.
_ATTEMPTS = "walras-attempts"
#: Group to which the agent moves where the kernel passes controllers on only from groups without processes.
_AGENT = "walras-agent"
_WANTED = ("memory", "cpu")
#: The kernel's default weight, and its largest.
_WEIGHT, _MOST_WEIGHT = 100, 10_000
_PAUSE_S = 0.02


@dataclass(frozen=True)
class GroupParent:
    """The parent of attempts' groups, and the controllers ("memory", "cpu") that are enforced in them."""

    folder: Path
    controllers: tuple[str, ...]

    def group_for(self, name: str) -> str:
        """Returns the folder of an attempt's group, which is not created yet."""
        return str(self.folder / name)


def find_group_parent(proc: Path = Path("/proc/self")) -> tuple[GroupParent | None, str]:
    """Prepares the parent of groups. Returns it and what is not enforced there; or None and why groups cannot be
    created.
    """
    try:
        own = _own_group(proc)
        if own is None:
            return None, "no cgroup v2 is mounted"
        folder = own / _ATTEMPTS
        folder.mkdir(exist_ok=True)
        _hand_down(own)
        _hand_down(folder)
        held = tuple(name for name in _WANTED if name in _words(folder / "cgroup.subtree_control"))
        if not (folder / "cgroup.procs").exists():
            return None, f"{own} is no cgroup v2"
    except OSError as error:
        return None, f"{error.filename or 'cgroup'}: {error.strerror}"
    missing = [name for name in _WANTED if name not in held]
    return GroupParent(folder, held), f"without the controllers {', '.join(missing)}" if missing else ""


def _own_group(proc: Path) -> Path | None:
    """Returns the folder of this process's group, or its parent if this is the agent's place."""
    mounts = (line.split() for line in (proc / "mounts").read_text().splitlines())
    mount = next((fields[1] for fields in mounts if len(fields) > 2 and fields[2] == "cgroup2"), None)
    paths = (line[3:] for line in (proc / "cgroup").read_text().splitlines() if line.startswith("0::"))
    path = next(paths, None)
    if mount is None or path is None:
        return None
    unescaped = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount)
    own = Path(unescaped) / path.lstrip("/")
    return own.parent if own.name == _AGENT else own


def _hand_down(folder: Path) -> None:
    """Enables the wanted controllers in the groups below, as far as this group has them."""
    for name in _WANTED:
        if name not in _words(folder / "cgroup.controllers") or name in _words(folder / "cgroup.subtree_control"):
            continue
        try:
            (folder / "cgroup.subtree_control").write_text(f"+{name}")
        except OSError:
            # A group with processes hands nothing down: this process makes room, others may stand in the way.
            with suppress(OSError):
                (folder / _AGENT).mkdir(exist_ok=True)
                (folder / _AGENT / "cgroup.procs").write_text(str(os.getpid()))
                (folder / "cgroup.subtree_control").write_text(f"+{name}")


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


class ControlGroup:
    """The group of one attempt. Without a folder, or where it cannot be created, its methods do nothing."""

    def __init__(self, folder: str, memory_bytes: int = 0, accelerators: int = 1) -> None:
        """Creates the group. `memory_bytes`: 0 sets no limit."""
        self._folder = Path(folder)
        self._procs = -1
        self.problem = ""
        if not folder:
            return
        try:
            self._folder.mkdir()
            self._procs = os.open(self._folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            self.problem = f"no control group: {error.strerror}"
            return
        if memory_bytes:
            self._limit("memory.max", memory_bytes)
            self._limit("memory.swap.max", 0)
            self._limit("memory.oom.group", 1)
        self._limit("cpu.weight", min(_MOST_WEIGHT, _WEIGHT * max(1, accelerators)))

    def enter(self) -> None:
        """Moves the calling process into the group: for a child, between fork and exec."""
        if self._procs >= 0:
            os.write(self._procs, b"0")

    @property
    def had_no_memory_left(self) -> bool:
        """Returns whether the kernel killed processes of the group because it was at its limit."""
        words = [] if self._procs < 0 else _words(self._folder / "memory.events")
        counts = dict(zip(words[::2], words[1::2], strict=False))
        return int(counts.get("oom_kill", 0)) > 0

    def kill(self) -> None:
        """Sends SIGKILL to every process of the group."""
        if self._procs >= 0:
            _kill(self._folder)

    def close(self) -> None:
        """Kills the remaining processes, and removes the group."""
        if self._procs >= 0:
            os.close(self._procs)
            self._procs = -1
            remove_group(str(self._folder))

    def _limit(self, name: str, value: int) -> None:
        with suppress(OSError):  # a controller that does not hold here: memory is looked at once a second all the same
            if (self._folder / name).exists():
                (self._folder / name).write_text(str(value))


def enter_group(folder: str) -> None:
    """Moves the calling process into the group of an attempt, if the attempt has one. For a child, before exec."""
    if folder and os.path.isdir(folder):
        with open(os.path.join(folder, "cgroup.procs"), "wb", buffering=0) as procs:
            procs.write(b"0")


def remove_group(folder: str, within_s: float = 5.0) -> bool:
    """Kills every process of a group, and removes it. Returns True once it is gone, or if there is none."""
    until = time.monotonic() + within_s
    while folder and os.path.isdir(folder):
        _kill(Path(folder))
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(_PAUSE_S)
    return True


def _kill(folder: Path) -> None:
    with suppress(OSError):
        if (folder / "cgroup.kill").exists():
            (folder / "cgroup.kill").write_text("1")
            return
        for pid in _words(folder / "cgroup.procs"):  # kernels before 5.14
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
