"""What stands between a profiled script and its data loader."""

import os
from collections.abc import Iterator
from pathlib import Path

from walras.training.batch_source import samples_in
from walras.training.probe import HELD_BATCHES, LoaderWatch


class Tensor:
    shape = (4, 2)


def loader_class() -> type:
    class Loader:
        """As much of a DataLoader as matters here."""

        batch_size = 4

        def __init__(self, many: int) -> None:
            self.dataset = object()
            self.many = many
            self.read = 0

        def __len__(self) -> int:
            return self.many

        def __iter__(self) -> Iterator[list[Tensor]]:
            for _ in range(self.many):
                self.read += 1
                yield [Tensor()]

    return Loader


def test_real_data_pass_through_and_are_counted() -> None:
    """Every batch comes through, and its wait is added up."""
    kind = loader_class()
    watch = LoaderWatch(kind, made_up=False)
    loader = kind(5)
    assert len(list(loader)) == loader.read == watch.batches == 5
    assert watch.samples == 4
    assert watch.waited_s > 0


def test_made_up_data_are_read_once() -> None:
    """Epochs keep their number of batches, and only the first few batches are ever read."""
    kind = loader_class()
    watch = LoaderWatch(kind, made_up=True)
    loader = kind(5)
    assert [len(list(loader)) for _ in range(3)] == [5, 5, 5]
    assert loader.read == HELD_BATCHES
    assert watch.batches == 15


def test_samples_of_nested_batches() -> None:
    """The first tensor found tells, in lists and dictionaries; no tensor, no number."""
    assert samples_in({"x": ("name", Tensor())}) == 4
    assert samples_in("text") is None


def test_forgotten_files_are_read_from_the_device(tmp_path: Path) -> None:
    """A file that was evicted is not in memory any more, where the file system lets go of it at all."""
    from workers.trials.profile_job import evict_from_page_cache

    names = []
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(os.urandom(5000))
        names.append(str(tmp_path / f"{number}"))
    looked_at, stayed = evict_from_page_cache([*names, str(tmp_path / "gone")])
    assert looked_at == 4
    assert stayed in (0, 3), "all of them stay on a file system in memory, else none"
