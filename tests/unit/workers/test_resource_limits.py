"""What an attempt's processes use is compared with its limits."""

from collections.abc import Iterator

import pytest

from workers import control_groups
from workers.control_groups import ExceededLimit, ResourceWatch

MIB = 1 << 20
PARENT, CHILD = 11, 12


class Processes:
    """Two that come to share 160 MiB while the parts of each are read, one read after the other."""

    def __init__(self, parts: Iterator[dict[int, int]], resident: dict[int, int]) -> None:
        self._parts, self._resident = parts, resident

    def part(self, pid: int) -> int:
        return next(self._parts)[pid] * MIB

    def resident(self, pid: int) -> int:
        return self._resident[pid] * MIB


def looked_at(monkeypatch: pytest.MonkeyPatch, *parts: dict[int, int], resident: int = 160) -> ExceededLimit | None:
    """What a watch with a limit of 200 MiB finds; `parts`: of each process, in MiB, at each of the reads."""
    processes = Processes(iter(parts), {PARENT: resident, CHILD: resident})
    monkeypatch.setattr(control_groups, "_proportional_bytes", processes.part)
    monkeypatch.setattr(control_groups, "_resident_bytes", processes.resident)
    return ResourceWatch(200 * MIB, 0, "/nowhere").look([PARENT, CHILD])


def test_memory_that_comes_to_be_shared_while_it_is_read_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child reads its parent's memory between the read of the parent's part and that of its own."""
    alone, shared = {PARENT: 160, CHILD: 0}, {PARENT: 80, CHILD: 80}
    assert looked_at(monkeypatch, alone, shared, shared, shared) is None


def test_what_is_over_the_limit_however_it_is_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the smaller of what was read."""
    more, most = {PARENT: 110, CHILD: 110}, {PARENT: 110, CHILD: 130}
    assert looked_at(monkeypatch, most, most, more, more) == ExceededLimit("memory", 220 * MIB, 200 * MIB)


def test_little_memory_is_not_read_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the limit with shared pages counted for each process, they are not asked for their parts."""
    assert looked_at(monkeypatch, resident=90) is None
