"""Making this host forget files, so that reading them again costs what it costs the first time. Needs no privileges."""

import os
import time
from collections.abc import Callable, Sequence

#: How many files, evenly taken, are looked at to see whether it worked.
LOOKED_AT = 20
#: Looking starts reading; what was read that way is forgotten again after so long.
_SETTLE_S = 0.05


def evict(files: Sequence[str]) -> tuple[int, int]:
    """Drop the files from the page cache. Returns how many were looked at, and how many of those stayed in it."""
    for name in files:
        _with_file(name, _drop)
    looked_at = [files[at * len(files) // LOOKED_AT] for at in range(LOOKED_AT)] if len(files) > LOOKED_AT else files
    stayed = sum(_with_file(name, _is_cached) for name in looked_at)
    time.sleep(_SETTLE_S)
    for name in looked_at:
        _with_file(name, _drop)
    return len(looked_at), stayed


def _with_file(name: str, what: Callable[[int], bool]) -> bool:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # gone meanwhile: nothing of it is cached for anybody
    try:
        return what(handle)
    finally:
        os.close(handle)


def _drop(handle: int) -> bool:
    os.fsync(handle)  # pages that are not written yet cannot be dropped
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _is_cached(handle: int) -> bool:
    """Whether the beginning of a file can be read without waiting for a device. Asking may start reading it."""
    try:
        return os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except OSError:
        return False
