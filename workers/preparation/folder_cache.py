"""A cache of folders that attempts on a machine share: made once per key, bounded, and never removed while in use.

Several processes use one cache at once. A key is made under a lock, and counts once its marker exists, so that an
interrupted one is made anew. A user of an entry holds a shared lock on a file, which its process keeps through `exec`
and the kernel releases with its last descendant; a locked entry is never removed. Standard library only.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from workers.supervisor_protocol import read_ranks_file

#: Folder of all caches, below an agent's state folder.
PREPARED_FOLDER = "prepared"
#: Largest number of markers that are read, and of bytes read of one.
_MARKERS_MOST, _MARKER_BYTES = 10_000, 4096
#: Larger values in a marker are not plausible measurements.
_LARGEST, _LONGEST_S = 2**53, 1e9
#: Bytes left free on the disk for logs and checkpoints of all attempts.
FREE_LEAST_BYTES = 1024**3


class NoRoom(OSError):
    """The disk has no room for an entry."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {what}")


@dataclass(frozen=True)
class CacheBounds:
    """Largest number of entries of a cache, and of bytes of all. The least recently used are removed first."""

    entries: int
    size_bytes: int
    #: Whether an entry that was changed since is made anew. False for those that programs add to as they run.
    is_sealed: bool = True


class FolderCache:
    """Entries in a folder: KEY/ with its content, and beside it KEY.done, KEY.lock and KEY.used."""

    def __init__(self, folder: Path, bounds: CacheBounds) -> None:
        self._folder = folder
        self._bounds = bounds
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get(self, key: str, make: Callable[[Path], None], name: str = "") -> Path:
        """Returns the folder of a key, made if needed, which stays while this process or a descendant lives.

        `make` gets an empty folder to fill; if it raises, nothing is kept. `name` is stored with the entry, for
        `named`.
        """
        place, done = self._folder / key, self._folder / f"{key}.done"
        with self._locked(f"{key}.lock"):
            self._use(key)
            if not done.exists() or self._is_changed(place, done):
                done.unlink(missing_ok=True)
                remove_folder(place)
                began = time.monotonic()
                try:
                    _make_in(place, make)
                except Exception as error:
                    if os.strerror(errno.ENOSPC) not in str(error) or not self._make_room():
                        raise
                    _make_in(place, make)
                told = {"size_bytes": folder_size(place), "seconds": time.monotonic() - began, "name": name}
                told["seal"] = seal(place)
                done.write_text(json.dumps(told))
            os.utime(done)
        self._remove_least_used()
        return place

    def _is_changed(self, place: Path, done: Path) -> bool:
        """Returns whether somebody wrote to an entry that only its making may fill."""
        if not self._bounds.is_sealed:
            return False
        try:
            return bool(json.loads(read_ranks_file(done, 0, _MARKER_BYTES))["seal"] != seal(place))
        except (ValueError, KeyError, TypeError):
            return True

    def named(self) -> dict[str, tuple[int, float]]:
        """Returns bytes, and the seconds of making them (0: unknown), by entry name, the least recently used last.

        Of several entries with a name the newest counts. Jobs can write here, so anything in place of a marker is left
        out, and read only up to a marker's size.
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
        """Returns the markers of its entries; one that another process removes meanwhile is left out."""
        used = {}
        for path in islice(self._folder.glob("*.done"), _MARKERS_MOST):
            with contextlib.suppress(FileNotFoundError):
                used[path] = path.stat().st_mtime
        return sorted(used, key=lambda path: -used[path])

    def _use(self, key: str) -> None:
        """Holds the entry while this process and its descendants live: the file descriptor is inherited."""
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

    def _make_room(self) -> bool:
        """Removes what no process uses or makes, of all caches on the disk; returns whether anything was there."""
        removed = False
        for removal in self._folder.parent.glob("*/removal.lock"):
            cache = FolderCache(removal.parent, self._bounds)
            for lock in removal.parent.glob("*.lock"):
                removed |= cache._remove_unused(lock.stem)
        return removed

    def _remove_unused(self, key: str) -> bool:
        """Removes an entry, or what is left of a killed process that made one, unless a process uses or makes it.
        Returns whether it is removed.
        """
        with (
            open(self._folder / f"{key}.lock", "ab") as lock,
            open(self._folder / f"{key}.used", "ab") as used,
            contextlib.suppress(BlockingIOError),
        ):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self._folder / f"{key}.done").unlink(missing_ok=True)
            was_there = (self._folder / key).exists()
            remove_folder(self._folder / key)
            return was_there
        return False


def _make_in(place: Path, make: Callable[[Path], None]) -> None:
    place.mkdir(mode=0o755)
    try:
        make(place)
    except BaseException:
        remove_folder(place)
        raise


def cache_key(*parts: str) -> str:
    """Returns the key of an entry that these words describe."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def seal(folder: Path) -> str:
    """Returns a hash of what lies below a folder and when each file was last changed, which no program can set back.

    Bytecode, which Python adds when it imports, is left out.
    """
    hashed = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found = path.lstat()
        changes = () if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_ctime_ns)
        told = (found.st_mode, found.st_ino, *changes)
        if "__pycache__" not in path.parts:
            hashed.update(f"{os.fsencode(path.relative_to(folder))!r} {told}".encode())
    return hashed.hexdigest()


def folder_size(folder: Path) -> int:
    """Returns the bytes of all files below a folder; files that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def remove_folder(folder: Path) -> None:
    """Removes a folder, even if its files were made read-only."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def make_read_only(folder: Path) -> None:
    """Removes write permission from everything below a folder, so that no job changes what others read."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            with contextlib.suppress(OSError):
                path.chmod(path.stat().st_mode & ~0o222)
