"""The one rule by which holders share what a server has only so much of.

Each holder may have half of what the others leave, so that whoever comes next finds room. A part of everything is kept
for machines and administrators: others take the rest only.
"""

import os
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path

from walras.errors import UserError

#: Bytes of the disk that are left free for the database and the logs.
FREE_LEAST_BYTES = 256 * 1024 * 1024
#: The part of a thing that is kept for machines and administrators, where one is.
_RESERVED = 8


class ShareTaken(UserError):
    """A holder asks for more than its share."""


class HolderShares:
    """What holders have of one thing."""

    def __init__(self, what: str, most: int, *, has_reserve: bool = False, fix: str = "") -> None:
        self.what, self.most = what, most
        self._has_reserve, self._fix = has_reserve, fix
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> dict[str, int]:
        """Returns how many each holder has."""
        return dict(self._held)

    def share_of(self, holder: str, *, is_reserved: bool = False) -> int:
        """Returns the most that the holder may have by now."""
        open_to_it = self.most - (self.most // _RESERVED if self._has_reserve and not is_reserved else 0)
        return max(0, open_to_it - (self._held.total() - self._held[holder]) + 1) // 2

    @property
    def is_nearly_taken(self) -> bool:
        """Returns whether what holders without a reserve may still take is less than the reserve itself."""
        reserve = self.most // _RESERVED
        return self.most - reserve - self._held.total() < reserve

    def check(self, holder: str, more: int = 1, *, is_reserved: bool = False) -> None:
        """Raise ShareTaken where the holder would have more than its share."""
        check_share(self.what, self._held[holder], more, self.share_of(holder, is_reserved=is_reserved), self._fix)

    def take(self, holder: str, *, is_reserved: bool = False) -> None:
        """Count one more. Raises ShareTaken."""
        self.check(holder, is_reserved=is_reserved)
        self._held[holder] += 1

    def put_back(self, holder: str, more: int = 1) -> None:
        """Count more, whatever the share: it was lent to something else for a moment, or was held before."""
        self._held[holder] += more

    def give_back(self, holder: str, less: int = 1) -> None:
        """Count less."""
        self._held[holder] -= less
        if not self._held[holder]:
            del self._held[holder]


class DiskShares(HolderShares):
    """What holders have of the bytes of a folder: the most is what its disk has left, and what they hold.

    `measure` looks at the disk; `left` bytes of it are left to others. Hold `lock` around what belongs together.
    """

    def __init__(self, what: str, folder: Path, left: int, *, has_reserve: bool = False, fix: str = "") -> None:
        super().__init__(what, 0, has_reserve=has_reserve, fix=fix)
        self._folder, self._left = folder, left
        self.lock = threading.RLock()

    def measure(self) -> int:
        """Note how much may be held in all; returns the bytes that are free for it."""
        folder = self._folder if self._folder.exists() else self._folder.parent
        free = self._free_of(folder) - self._left
        self.most = max(0, free) + self._held.total()
        return free

    @staticmethod
    def _free_of(folder: Path) -> int:
        return shutil.disk_usage(folder).free

    def count(self, more: Counter[str]) -> None:
        """Count these bytes of each holder, fewer where they are negative."""
        for holder, size in more.items():
            if size > 0:
                self.put_back(holder, size)
            elif size:
                self.give_back(holder, -size)

    def standing(self) -> str:
        """Returns "ok", or how full the folder is, by whom, and what frees it."""
        with self.lock:
            if self.measure() > 0 and not self.is_nearly_taken:
                return "ok"
            held = self.held or {"nobody": 0}
        holder = max(held, key=held.__getitem__)
        full = f"{sum(held.values()):,} of {self.most:,} {self.what} are held, {held[holder]:,} by {holder}"
        return f"{full}; {self._fix}"


class FileShares(DiskShares):
    """As DiskShares, of the files and folders of a folder: many small ones fill a disk that has bytes left."""

    @staticmethod
    def _free_of(folder: Path) -> int:
        disk = os.statvfs(folder)
        return disk.f_favail if disk.f_files else sys.maxsize  # some file systems have no bound


def check_share(what: str, held: int, more: int, share: int, fix: str) -> None:
    """Raise ShareTaken where a holder with `held` would have more than its share."""
    if held + more > share:
        raise ShareTaken(f"{held:,} {what} of yours are held already, your share is {share:,}", fix=fix)
