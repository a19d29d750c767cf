"""What a probed rank reads: the time it waits for its data loaders, made-up batches in their place, and which files.

Made-up data are a loader's own first batches, held in memory and given again and again: of the right shapes, and
neither read nor prepared. An epoch keeps its number of batches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from walras.training.data import samples_in

#: Batches that made-up data consist of.
HELD = 2
#: Files beyond this number are not written down.
FILES_MAX = 100_000
#: What lies here is no job's data.
_SYSTEM = ("/proc/", "/dev/", "/sys/", "/etc/", "/usr/lib", "/lib")
_PACKAGES = ("/site-packages/", "/dist-packages/")


class LoaderWatch:
    """Stands between a script and every DataLoader that it iterates over."""

    def __init__(self, loader_class: Any, made_up: bool) -> None:
        #: Seconds that the script waited for batches so far, batches it got, and samples in one of them.
        self.waited_s = 0.0
        self.batches = 0
        self.samples: int | None = None
        self._begin = loader_class.__iter__
        #: By dataset and batch size. The dataset is kept too: its identity must not be given to another.
        self._held: dict[tuple[int, Any], tuple[Any, list[Any]]] = {}

        def begin(loader: Any) -> Iterator[Any]:
            return _Watched(self, self._made_up(loader) if made_up else self._begin(loader))

        loader_class.__iter__ = begin

    def _made_up(self, loader: Any) -> Iterator[Any]:
        key = (id(loader.dataset), loader.batch_size)
        if key not in self._held:
            self._held[key] = (loader.dataset, list(islice(self._begin(loader), HELD)))
        batches = self._held[key][1]
        try:
            many = len(loader)
        except TypeError:
            return cycle(batches)
        return islice(cycle(batches), many)

    def took(self, seconds: float, batch: Any) -> None:
        """The script waited so long for this batch."""
        self.waited_s += seconds
        self.batches += 1
        if self.samples is None:
            self.samples = samples_in(batch)


class _Watched:
    """An iterator that tells how long each batch took; in all else the loader's own."""

    def __init__(self, watch: LoaderWatch, batches: Iterator[Any]) -> None:
        self._watch = watch
        self._batches = batches

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        began_at = time.perf_counter()
        batch = next(self._batches)
        self._watch.took(time.perf_counter() - began_at, batch)
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class OpenedFiles:
    """Writes down the files that this process and its loader workers open to read, once each.

    What a library opens behind Python's back is seen only while it is open at the end.
    """

    def __init__(self, folder: Path) -> None:
        self._list = os.open(folder / "files.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._seen: set[str] = set()
        places = (sys.prefix, os.__file__.rsplit("/", 1)[0], folder)
        self._not_data = tuple({os.path.realpath(place) for place in places})
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            is_read = isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY
            if is_read and isinstance(path, str | bytes | os.PathLike):
                self._note(os.fsdecode(path))

    def note_open_ones(self) -> None:
        """Add what is open now."""
        for number in os.listdir("/proc/self/fd"):
            try:
                self._note(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                continue

    def _note(self, path: str) -> None:
        if path in self._seen or len(self._seen) >= FILES_MAX:
            return
        self._seen.add(path)
        whole = os.path.realpath(path)
        if whole.startswith((*_SYSTEM, *self._not_data)) or any(name in whole for name in _PACKAGES):
            return
        if whole.endswith((".py", ".pyc", ".so")):
            return
        if "\n" not in whole and os.path.isfile(whole):
            os.write(self._list, os.fsencode(whole) + b"\n")
