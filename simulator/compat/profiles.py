"""Reading profiles in the format of the Pollux artifact (OSDI 2021), which Sia shares.

A folder per application: `placements.csv` (`placement` has a digit per machine), `scalability.csv`, and
`validation-B.csv` for every batch B that was run, a row per epoch. Columns are checked, and what is wrong is named by
file and line.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from simulator.goodput.application import StepTimes
from simulator.goodput.learning import Recorded, RecordedLearning
from simulator.goodput.placement import Placement
from simulator.goodput.step_tables import Curve, MeasuredSteps, Point
from simulator.workloads.source import Reading, Row, Source, header_table
from walras.errors import ConfigError

_DIGITS = re.compile(r"[1-9]{1,64}")
_RUN = re.compile(r"validation-([1-9]\d{0,8})\.csv")
_MOST = 10**9
#: Squared gradients of large models are large.
_MOST_NOISE = 1e30


def read_steps(name: str, placements: Path, scalability: Path) -> MeasuredSteps:
    """Step times on one type of accelerator. Raises ConfigError."""
    rows: dict[Placement, list[tuple[int, float, float]]] = {}
    for row in _rows(placements, ("placement", "local_bsz", "step_time", "sync_time")):
        digits = row.text("placement")
        if not _DIGITS.fullmatch(digits):
            raise row.error("placement", f"is {digits[:40]!r}", "give a digit from 1 to 9 per machine")
        placement = Placement(tuple(map(int, digits))).in_ring()
        rows.setdefault(placement, []).append((row.whole("local_bsz", most=_MOST), *_times(row)))
    curves = {}
    for placement, measured in rows.items():
        measured.sort()
        local, step_s, sync_s = zip(*measured, strict=True)
        if len(set(local)) < len(local):
            raise ConfigError(f"{placements}: two rows of placement {placement.parts} have the same local_bsz")
        curves[placement] = Curve(local, step_s, sync_s)
    columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    scaling = [(_point(row), StepTimes(*_times(row))) for row in _rows(scalability, columns)]
    return MeasuredSteps(name, curves, scaling)


def read_learning(name: str, folder: Path, epochs: int) -> RecordedLearning:
    """What `validation-*.csv` say about the first so many epochs. Raises ConfigError."""
    columns = ("progress", "iteration", "grad_sqr", "grad_var")
    runs: dict[int, Recorded] = {}
    for path in sorted(folder.glob("validation-*.csv")):
        named = _RUN.fullmatch(path.name)
        if named is None:
            raise ConfigError(f"{path}: a name such as validation-128.csv is expected")
        cells = [
            tuple(row.number(column, least=0.0, most=_MOST_NOISE) for column in columns) for row in _rows(path, columns)
        ]
        if len(cells) < epochs:
            raise ConfigError(f"{path}: {len(cells)} epochs, {epochs} expected", fix="record the rest of the run")
        progress = [row[0] for row in cells]
        if progress[0] <= 0 or any(b <= a for a, b in pairwise(progress)):
            raise ConfigError(f"{path}: progress does not grow from epoch to epoch", field="progress")
        runs[int(named[1])] = Recorded(*zip(*cells, strict=True))
    if not runs:
        raise ConfigError(f"{folder}: no validation-*.csv", fix="check the path")
    return RecordedLearning(name, runs, epochs)


def local_range(placements: Path) -> tuple[int, int]:
    """Smallest and largest local batch that was measured on any placement. Raises ConfigError."""
    local = [row.whole("local_bsz", most=_MOST) for row in _rows(placements, ("local_bsz",))]
    if not local:
        raise ConfigError(f"{placements}: no row", fix="check the path")
    return min(local), max(local)


def _rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    source = Source(path, Reading())
    lines = source.lines()
    return source.rows(lines, header_table(source, lines, columns))


def _point(row: Row) -> Point:
    machines, accelerators, local = (row.whole(name, most=_MOST) for name in ("num_nodes", "num_replicas", "local_bsz"))
    return machines, accelerators, local


def _times(row: Row) -> tuple[float, float]:
    step_s = row.number("step_time", above=0.0)
    sync_s = row.number("sync_time", least=0.0)
    if sync_s > step_s:
        raise row.error("sync_time", f"is {sync_s:g}, above step_time ({step_s:g})", "it is a part of it")
    return step_s, sync_s
