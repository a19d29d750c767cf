"""Folders that many attempts on a machine share: made once for each key, kept within bounds, never taken from a user.

Several processes use one cache at once. A key is made under a lock, and counts once its marker is there, so that what
was cut is made anew. Whoever uses an entry holds a shared lock on a file, which its process keeps through `exec` and
the kernel lets go of with its last descendant; an entry that is locked so is never removed. Standard library only.
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from workers.supervisor_protocol import read_ranks_file

#: Below an agent's state folder: the caches of what is brought or made for jobs.
PREPARED_FOLDER = "prepared"
#: Markers that are looked at, and bytes that are read of one.
_MARKERS_MOST, _MARKER_BYTES = 10_000, 4096
#: More of either is nothing that was measured.
_LARGEST, _LONGEST_S = 2**53, 1e9
#: Left free on the disk for logs and checkpoints of all attempts.
FREE_LEAST_BYTES = 1024**3


@dataclass(frozen=True)
class CacheBounds:
    """Entries of a cache, and bytes of all of them. The least recently used go first."""

    entries: int
    size_bytes: int


class FolderCache:
    """Entries in a folder: KEY/ with its content, and beside it KEY.done, KEY.lock and KEY.used."""

    def __init__(self, folder: Path, bounds: CacheBounds) -> None:
        self._folder = folder
        self._bounds = bounds
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get(self, key: str, make: Callable[[Path], None], name: str = "") -> Path:
        """Returns the folder of a key, which stays while this process or a descendant lives; makes it first if needed.

        `make` gets an empty folder to fill. What it raises is raised, and nothing is kept. `name`: kept with it, for
        `names`.
        """
        place, done = self._folder / key, self._folder / f"{key}.done"
        with self._locked(f"{key}.lock"):
            self._use(key)
            if not done.exists():
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir(mode=0o755)
                began = time.monotonic()
                try:
                    make(place)
                except BaseException:
                    remove_folder(place)
                    raise
                told = {"size_bytes": folder_size(place), "seconds": time.monotonic() - began, "name": name}
                done.write_text(json.dumps(told))
            os.utime(done)
        self._remove_least_used()
        return place

    def has(self, key: str) -> bool:
        """Whether the key is made already."""
        return (self._folder / f"{key}.done").exists()

    def named(self) -> dict[str, tuple[int, float]]:
        """Entries by the names that they were given, the least recently used last: bytes, and the seconds that making
        them took; 0: not known. Of several under a name the newest.

        Jobs can write here: whatever lies there in place of a marker is left out, and costs no more than a marker.
        """
        found: dict[str, tuple[int, float]] = {}
        for done in self._newest_first()[: 2 * self._bounds.entries]:
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                told = json.loads(read_ranks_file(done, 0, _MARKER_BYTES))
                name = str(told["name"])
                found.setdefault(name, (0, 0.0))
                size_bytes, seconds = int(told["size_bytes"]), float(told["seconds"])
                if found[name] == (0, 0.0) and 0 <= size_bytes <= _LARGEST and 0 <= seconds <= _LONGEST_S:
                    found[name] = size_bytes, seconds
        return {name: told for name, told in found.items() if name}

    def _newest_first(self) -> list[Path]:
        """The markers of its entries; one that another process takes away meanwhile is left out."""
        used = {}
        for path in islice(self._folder.glob("*.done"), _MARKERS_MOST):
            with contextlib.suppress(FileNotFoundError):
                used[path] = path.stat().st_mtime
        return sorted(used, key=lambda path: -used[path])

    def _use(self, key: str) -> None:
        """Hold the entry for as long as this process and what it starts live: the descriptor is inherited."""
        file = os.open(self._folder / f"{key}.used", os.O_RDWR | os.O_CREAT, 0o600)
        os.set_inheritable(file, True)
        fcntl.flock(file, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with open(self._folder / name, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _remove_least_used(self) -> None:
        with self._locked("removal.lock"):
            size = 0
            for entries, done in enumerate(self._newest_first(), 1):
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    size += int(json.loads(done.read_bytes())["size_bytes"])
                if entries > self._bounds.entries or size > self._bounds.size_bytes:
                    self._remove_unused(done.name.removesuffix(".done"))

    def _remove_unused(self, key: str) -> None:
        """Remove an entry, unless somebody uses it or makes it."""
        with (
            open(self._folder / f"{key}.lock", "ab") as lock,
            open(self._folder / f"{key}.used", "ab") as used,
            contextlib.suppress(BlockingIOError),
        ):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self._folder / f"{key}.done").unlink(missing_ok=True)
            remove_folder(self._folder / key)


def folder_size(folder: Path) -> int:
    """Returns the bytes of all files below a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def remove_folder(folder: Path) -> None:
    """Remove a folder, also one whose files were made read-only."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def make_read_only(folder: Path) -> None:
    """Take the permission to write from everything below a folder, so that no job changes what others read."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            with contextlib.suppress(OSError):
                path.chmod(path.stat().st_mode & ~0o222)
