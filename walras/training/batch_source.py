"""Batches of an epoch that can begin in the middle, without reading what was already done.

What can be resumed depends on what the script iterates over:

* something with `state_dict` and `load_state_dict` (a stateful loader): by its own state;
* a torch DataLoader over a map-style dataset: its sampler is asked for the same order, a function of (seed, epoch), and
  the indices already used are skipped before any sample is read;
* a sequence (list, range): by position;
* anything else (an IterableDataset, a generator): not at all. The epoch begins again, and the script is told.

The script's own objects are left as they are; a loader is iterated through a shallow copy of it.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any


class BatchSource:
    """A sequence of batches, in the same order in every epoch."""

    can_skip = True
    #: Samples in each batch; None if unknown.
    batch_size: int | None = None
    #: Whether parts are chosen before they are read: then other parts need a new iterator.
    is_cut_ahead = False

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    @property
    def count(self) -> int | None:
        """Batches of an epoch; None if an epoch cannot begin in the middle."""
        return len(self._batches)

    def begin(self, epoch: int, skip: int) -> Iterator[Any]:
        """Returns the batches of the epoch after the first `skip`. Where `can_skip` is false, it returns
        all of them.
        """
        return islice(iter(self._batches), skip, None)

    def parts(self, epoch: int, skip: int, own: Callable[[int], range]) -> Iterator[tuple[Any, int]]:
        """Yields (part, batch size): of each batch the samples in `own(batch size)`, and how many the batch has.

        Raises:
            TypeError: the number of samples in a batch is unknown.
        """
        for batch in self.begin(epoch, skip):
            whole = samples_in(batch)
            if whole is None and isinstance(batch, list | tuple):
                whole = len(batch)
            if whole is None:
                raise TypeError(f"a batch that is a {type(batch).__name__} cannot be shared: it holds no tensor")
            part = own(whole)
            yield batch if len(part) == whole else slice_batch(batch, whole, part), whole

    def state(self) -> Any:
        """Returns the source's own state for the checkpoint; None if it keeps none."""
        return None

    def load_state(self, state: Any) -> None:
        assert state is None

    def resize(self, batch_size: int) -> bool:
        """Uses batches of this size from the next `begin` on. Returns False if the source cannot."""
        return batch_size == self.batch_size


class UnskippableSource(BatchSource):
    can_skip = False
    count = None

    def begin(self, epoch: int, skip: int) -> Iterator[Any]:
        _set_epoch(self._batches, epoch)
        return iter(self._batches)


class StatefulSource(BatchSource):
    """Resumes from the data loader's own saved state, which already skips the completed batches."""

    count = None

    def begin(self, epoch: int, skip: int) -> Iterator[Any]:
        _set_epoch(self._batches, epoch)
        return iter(self._batches)

    def state(self) -> Any:
        return self._batches.state_dict()

    def load_state(self, state: Any) -> None:
        self._batches.load_state_dict(state)


class LoaderSource(BatchSource):
    """A torch DataLoader over a map-style dataset."""

    def __init__(self, loader: Any, seed: int) -> None:
        torch: Any = sys.modules["torch"]
        self._seed = seed
        self.batch_size = loader.batch_size
        self._view = copy.copy(loader)
        # The loader draws the seeds of its worker processes from here: resuming leaves the global generator alone.
        self._view.generator = torch.Generator()
        # Which of the two a loader iterates over depends on whether it makes batches itself.
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        self._sampler, self._shuffler = _with_own_shuffle(getattr(loader, name), torch)
        self._skipping = _SkippingSampler(self._sampler)
        # DataLoader guards these two names, in the interest of its worker processes, which do not exist yet.
        object.__setattr__(self._view, name, self._skipping)

    @property
    def count(self) -> int | None:
        return len(self._view)

    def resize(self, batch_size: int) -> bool:
        torch: Any = sys.modules["torch"]
        if type(self._sampler) is not torch.utils.data.BatchSampler:
            return super().resize(batch_size)
        self._sampler = copy.copy(self._sampler)  # The sampler may be the script's own.
        self._sampler.batch_size = self.batch_size = batch_size
        self._skipping = _SkippingSampler(self._sampler)
        object.__setattr__(self._view, "batch_sampler", self._skipping)
        self._view._iterator = None  # Persistent worker processes would go on with the old sampler.
        return True

    @property
    def is_cut_ahead(self) -> bool:  # type: ignore[override]
        return self._view.batch_sampler is not None

    def parts(self, epoch: int, skip: int, own: Callable[[int], range]) -> Iterator[tuple[Any, int]]:
        """Yields parts of batches; only the samples of the parts are read."""
        if not self.is_cut_ahead:
            yield from super().parts(epoch, skip, own)
            return
        drawn: deque[int] = deque()

        def cut(indices: Any) -> list[Any]:
            drawn.append(len(indices))
            return [indices[place] for place in own(len(indices))]

        self._skipping.cut = cut
        whole = self.batch_size or 0
        for batch in self.begin(epoch, skip):
            # A profiling run gives batches again without drawing them.
            whole = drawn.popleft() if drawn else whole
            yield batch, whole

    def begin(self, epoch: int, skip: int) -> Iterator[Any]:
        self._view.generator.manual_seed(_derive_seed(self._seed, epoch, "workers"))
        if self._shuffler is not None:
            self._shuffler.manual_seed(_derive_seed(self._seed, epoch, "order"))
        _set_epoch(self._sampler, epoch)
        _set_epoch(getattr(self._sampler, "sampler", None), epoch)
        self._skipping.skip = skip
        return iter(self._view)


class _SkippingSampler:
    """A sampler that skips its first `skip` items and passes the others through `cut`, if given.

    However often it is asked for an iterator: a loader with worker processes asks twice, and goes on with the second.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.skip = 0
        self.cut: Callable[[Any], Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        rest = islice(iter(self._sampler), self.skip, None)
        return rest if self.cut is None else map(self.cut, rest)

    def __len__(self) -> int:
        return len(self._sampler)


def resumable_source(batches: Any, seed: int) -> BatchSource:
    """Returns a source for what the script iterates over. `seed` fixes the order of samplers that shuffle by a torch
    generator.
    """
    if hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict"):
        return StatefulSource(batches)
    if _is_map_style_loader(batches):
        return LoaderSource(batches, seed)
    is_sequence = hasattr(batches, "__getitem__") and hasattr(batches, "__len__") and not hasattr(batches, "keys")
    return BatchSource(batches) if is_sequence else UnskippableSource(batches)


class BatchSources:
    """The sources of the last few objects that the script iterated over."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, BatchSource]] = []

    @property
    def last(self) -> BatchSource | None:
        """The newest source; None before the first."""
        return self._known[-1][1] if self._known else None

    def of(self, batches: Any, seed: int) -> BatchSource:
        """Returns the same source for the same object."""
        for known, source in self._known:
            if known is batches:
                return source
        source = resumable_source(batches, seed)
        self._known = [*self._known[-7:], (batches, source)]
        return source


def rescale_position(batch: int, saved_by: tuple[int, int | None], read_by: tuple[int, int | None]) -> int:
    """Converts a position in batches to other ranks and batch sizes, given as (ranks, samples in a rank's batch)."""
    (ranks_then, size_then), (ranks, size) = saved_by, read_by
    if size_then is None or size is None:
        size_then = size = 1  # batches count as equally large as they were
    return batch * ranks_then * size_then // (ranks * size)


def default_seed() -> int:
    """Returns the seed that the script gave torch; 0 without torch."""
    torch: Any = sys.modules.get("torch")
    return int(torch.initial_seed()) if torch is not None else 0


def samples_in(batch: Any) -> int | None:
    """Length of the first tensor in a batch; None if the batch holds no tensor."""
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else None
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((found for part in parts if (found := samples_in(part)) is not None), None)


def slice_batch(batch: Any, whole: int, own: range) -> Any:
    """Returns the samples `own` of a batch: rows of every tensor, and items of every list, that has one for each
    sample.
    """
    if hasattr(batch, "shape"):
        return batch[own.start : own.stop] if len(batch.shape) and batch.shape[0] == whole else batch
    if isinstance(batch, dict):
        return {name: slice_batch(part, whole, own) for name, part in batch.items()}
    if not isinstance(batch, list | tuple):
        return batch
    if samples_in(batch) is None:
        return batch[own.start : own.stop] if len(batch) == whole else batch
    parts = [slice_batch(part, whole, own) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def _is_map_style_loader(batches: Any) -> bool:
    data: Any = sys.modules.get("torch.utils.data")
    return (
        data is not None
        and isinstance(batches, data.DataLoader)
        and not isinstance(batches.dataset, data.IterableDataset)
    )


def _with_own_shuffle(sampler: Any, torch: Any) -> tuple[Any, Any]:
    """Returns a copy of the sampler and the generator of ours that it shuffles by; None if it uses no generator."""
    inner: Any = getattr(sampler, "sampler", None)
    shuffling: Any = inner if hasattr(inner, "generator") else sampler
    if not hasattr(shuffling, "generator"):
        return sampler, None
    shuffling = copy.copy(shuffling)
    shuffling.generator = torch.Generator()
    if hasattr(inner, "generator"):
        sampler = copy.copy(sampler)
        sampler.sampler = shuffling
        return sampler, shuffling.generator
    return shuffling, shuffling.generator


def _set_epoch(thing: Any, epoch: int) -> None:
    if hasattr(thing, "set_epoch"):
        thing.set_epoch(epoch)


def _derive_seed(seed: int, epoch: int, use: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}/{use}".encode()).digest()[:7], "big")
