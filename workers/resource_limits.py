"""Compares an attempt's use of this machine's memory and disk with its limits.

Processes are examined once a second, which needs no privileges and works in a container without control groups. Faster
growth meets the machine's out-of-memory killer first. Standard library only.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

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
