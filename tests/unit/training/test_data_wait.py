"""Data of a loop: how long it waits for them, and what a profile counts."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from walras.training import Loop
from walras.training import loop as loop_module
from walras.training.batch_source import samples_in
from walras.training.measurements import DATA_WAIT_LEAST, DataWaitMeter, DeviceWork
from walras.training.probe import HELD_BATCHES, LoaderWatch


def run(meter: DataWaitMeter, at: float, steps: int, wait_s: float, work_s: float, *, is_hidden: bool = False) -> float:
    for _ in range(steps):
        meter.asked(at)
        meter.got(at + wait_s, is_hidden=is_hidden)
        at += wait_s + work_s
    return at


def test_the_part_of_waiting_is_that_of_the_steps_that_nothing_disturbed() -> None:
    """The newest ones; nothing is said of a few, nor where the accelerator still works meanwhile."""
    meter = DataWaitMeter()
    meter.begin()
    at = run(meter, 0.0, 2, 5.0, 0.1)
    at = run(meter, at, 30, 0.03, 0.07)
    meter.disturb()
    at = run(meter, at + 3.0, 30, 0.03, 0.07)
    at = run(meter, at + 60.0, 30, 0.03, 0.07)
    assert meter.share == pytest.approx(0.3)
    meter = DataWaitMeter()
    run(meter, 0.0, DATA_WAIT_LEAST + 2, 0.03, 0.07)
    assert meter.share is None
    run(meter, 10.0, 4, 0.03, 0.07)
    meter = DataWaitMeter()
    run(meter, 0.0, 60, 0.05, 0.05, is_hidden=True)
    assert meter.share == 0.0
    meter = DataWaitMeter()
    at = run(meter, 0.0, 300, 0.09, 0.01)
    run(meter, at, 300, 0.01, 0.09)
    assert meter.share == pytest.approx(0.1)


class Event:
    """Stands for a CUDA event; done when the test says so."""

    is_done = False

    def record(self) -> None:
        """Nothing to do."""

    def query(self) -> bool:
        return self.is_done


def test_the_accelerator_is_asked_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CUDA, or before a script uses it, nothing is under way."""
    work = DeviceWork()
    is_initialized = False
    cuda = SimpleNamespace(is_initialized=lambda: is_initialized, Event=Event)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    work.mark()
    assert not work.is_under_way
    is_initialized = True
    work.mark()
    assert work.is_under_way
    Event.is_done = True
    assert not work.is_under_way


@pytest.mark.parametrize(("load_s", "work_s", "share"), [(4.0, 1.0, 0.8), (0.0, 4.0, 0.0), (0.01, 0.03, 0.25)])
def test_a_loop_measures_how_slow_a_loader_is(
    monkeypatch: pytest.MonkeyPatch, load_s: float, work_s: float, share: float
) -> None:
    """The script does nothing for it."""
    now = 0.0
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: now))

    def batches() -> Iterator[int]:
        nonlocal now
        for number in range(40):
            now += load_s
            yield number

    loop = Loop()
    for _ in loop.steps(batches()):
        now += work_s
    assert loop._data_wait.share == pytest.approx(share, abs=1e-6)


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


def test_data_pass_through_and_are_counted() -> None:
    """Real ones all come through; of made-up ones the first few are read; the first tensor tells the samples."""
    kind = loader_class()
    watch = LoaderWatch(kind, made_up=False)
    loader = kind(5)
    assert len(list(loader)) == loader.read == watch.batches == 5
    assert watch.samples == 4
    assert watch.waited_s > 0
    kind = loader_class()
    watch = LoaderWatch(kind, made_up=True)
    loader = kind(5)
    assert [len(list(loader)) for _ in range(3)] == [5, 5, 5]
    assert loader.read == HELD_BATCHES
    assert watch.batches == 15
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
