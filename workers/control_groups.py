"""The limits of an attempt on this machine, enforced by a control group or by looking. Standard library only.

Where this machine lets the agent create a control group (cgroup v2) for the ranks of each attempt, the kernel enforces
the memory limit at once, shares processors in proportion to its accelerators, and kills it as a whole: `cgroup.kill`
also reaches processes that left its session and cleared their environment. Only ranks are in the group; supervisor and
guardian, which report their end, stay outside.

Everywhere, the use of memory and disk is compared with the limits once a second (`ResourceWatch`), which needs no
privileges and works in a container. Faster growth meets the machine's out-of-memory killer first.
"""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
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


# ------------------------------------------------------------------------------------------ limits by looking


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Unit of `st_blocks`, whatever the file system's own block size is.
_BLOCK_BYTES = 512
#: Largest number of files per check: about ten milliseconds of work.
_FILES_AT_ONCE = 5_000


@dataclass(frozen=True)
class ExceededLimit:
    """An attempt uses more of `what` ("memory" or "disk") than its limit."""

    what: str
    used_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        used, limit = self.used_bytes / 2**20, self.limit_bytes / 2**20
        return f"it uses {used:,.0f} MiB of {self.what}, its limit here is {limit:,.0f} MiB"


@dataclass
class ResourceWatch:
    """The limits of one attempt's part on a machine. 0 means no limit."""

    memory_bytes: int
    disk_bytes: int
    #: The attempt's folder, whose content counts towards `disk_bytes`.
    folder: str
    _sizes: Iterator[int] | None = field(default=None, init=False)
    _counted_bytes: int = field(default=0, init=False)

    def look(self, pids: list[int]) -> ExceededLimit | None:
        """Returns the limit that these processes and the folder exceed; None if there is none.

        A folder with many files is measured over several checks.
        """
        if self.memory_bytes and (used := _memory_used(pids, self.memory_bytes)) > self.memory_bytes:
            return ExceededLimit("memory", used, self.memory_bytes)
        if self.disk_bytes and (used := self._disk_used()) > self.disk_bytes:
            return ExceededLimit("disk", used, self.disk_bytes)
        return None

    def _disk_used(self) -> int:
        """Returns the bytes found so far in this walk through the folder."""
        if self._sizes is None:
            self._sizes, self._counted_bytes = _file_sizes(self.folder), 0
        for _ in range(_FILES_AT_ONCE):
            size = next(self._sizes, None)
            if size is None:
                self._sizes = None
                break
            self._counted_bytes += size
        return self._counted_bytes


def _memory_used(pids: list[int], limit_bytes: int) -> int:
    """Returns the processes' bytes of main memory; shared memory is counted once where that may matter.

    The resident sizes are cheap to read, and count shared pages for each process: they are an upper bound.
    """
    resident = sum(_resident_bytes(pid) for pid in pids)
    if resident <= limit_bytes:
        return resident
    used = sum(_proportional_bytes(pid) for pid in pids)
    if used <= limit_bytes:
        return used
    # While it was read, a page may have moved from one process's part to another's and been counted in both: as where
    # one forks and its child reads what they share. Read in the other order, it is then counted in neither.
    return min(used, sum(_proportional_bytes(pid) for pid in reversed(pids)))


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0  # it has ended


def _proportional_bytes(pid: int) -> int:
    """Returns the process's own bytes and its part of each shared page; the resident size if the kernel lacks that
    figure.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return _resident_bytes(pid)


def _file_sizes(folder: str) -> Iterator[int]:
    """Generates the disk bytes of each file below a folder. Links are not followed; files that vanish do not count."""
    to_visit = [folder]
    while to_visit:
        try:
            entries = os.scandir(to_visit.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        to_visit.append(entry.path)
                    yield entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                except OSError:
                    continue
