"""Which part of its steps a loop waits for its data: measured from outside the script, and told to the scheduler."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from walras.training import Loop
from walras.training import loop as loop_module
from walras.training.measurements import DATA_WAIT_LEAST, DataWaitMeter, DeviceWork


def run(meter: DataWaitMeter, at: float, steps: int, wait_s: float, work_s: float, *, is_hidden: bool = False) -> float:
    for _ in range(steps):
        meter.asked(at)
        meter.got(at + wait_s, is_hidden=is_hidden)
        at += wait_s + work_s
    return at


def test_the_part_of_waiting_is_that_of_the_steps_that_nothing_disturbed() -> None:
    """The first steps of a pass, a checkpoint and a suspension of a minute are left out."""
    meter = DataWaitMeter()
    meter.begin()
    at = run(meter, 0.0, 2, 5.0, 0.1)
    at = run(meter, at, 30, 0.03, 0.07)
    meter.disturb()
    at = run(meter, at + 3.0, 30, 0.03, 0.07)
    at = run(meter, at + 60.0, 30, 0.03, 0.07)
    assert meter.share == pytest.approx(0.3)


def test_nothing_is_said_of_a_few_steps() -> None:
    meter = DataWaitMeter()
    run(meter, 0.0, DATA_WAIT_LEAST + 2, 0.03, 0.07)
    assert meter.share is None
    run(meter, 10.0, 4, 0.03, 0.07)
    assert meter.share is not None


def test_a_wait_behind_which_the_accelerator_still_works_is_none() -> None:
    meter = DataWaitMeter()
    run(meter, 0.0, 60, 0.05, 0.05, is_hidden=True)
    assert meter.share == 0.0


def test_the_newest_steps_count() -> None:
    """A loader that became faster is believed."""
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
