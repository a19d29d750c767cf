"""Profiles of training applications in the format of the Pollux artifact (OSDI 2021), which Sia shares.

A folder for each application: `placements.csv` (`placement` has a digit for each machine), `scalability.csv`, and
`validation-B.csv` for every batch B that was run, a row for each epoch. Columns are checked; errors name file and line.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from simulator.goodput.application import (
    AcceleratorProfile,
    Application,
    GangLayout,
    LayoutPoint,
    MeasuredStepTimes,
    RecordedLearningCurve,
    RecordedTraining,
    StepTimeCurve,
    StepTimes,
)
from simulator.workloads.trace_source import ReadOptions, TraceRow, TraceSource, header_row_format
from walras.errors import ConfigError

_DIGITS = re.compile(r"[1-9]{1,64}")
_RUN = re.compile(r"validation-([1-9]\d{0,8})\.csv")
_LARGEST_COUNT = 10**9
#: Largest value of a cell: squared gradients of large models are large.
_LARGEST_NOISE = 1e30


def read_step_times(name: str, placements: Path, scalability: Path) -> MeasuredStepTimes:
    """Reads step times on one type of accelerator. Raises ConfigError."""
    rows: dict[GangLayout, list[tuple[int, float, float]]] = {}
    for row in _profile_rows(placements, ("placement", "local_bsz", "step_time", "sync_time")):
        digits = row.text("placement")
        if not _DIGITS.fullmatch(digits):
            raise row.error("placement", f"is {digits[:40]!r}", "give a digit from 1 to 9 per machine")
        placement = GangLayout(tuple(map(int, digits))).in_ring()
        rows.setdefault(placement, []).append((row.whole("local_bsz", most=_LARGEST_COUNT), *_row_times(row)))
    curves = {}
    for placement, measured in rows.items():
        measured.sort()
        local, step_s, sync_s = zip(*measured, strict=True)
        if len(set(local)) < len(local):
            raise ConfigError(f"{placements}: two rows of placement {placement.parts} have the same local_bsz")
        curves[placement] = StepTimeCurve(local, step_s, sync_s)
    columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    scaling = [(_layout_point(row), StepTimes(*_row_times(row))) for row in _profile_rows(scalability, columns)]
    return MeasuredStepTimes(name, curves, scaling)


def read_learning_curve(name: str, folder: Path, epochs: int) -> RecordedLearningCurve:
    """Reads the first `epochs` epochs of every `validation-*.csv`. Raises ConfigError."""
    columns = ("progress", "iteration", "grad_sqr", "grad_var")
    runs: dict[int, RecordedTraining] = {}
    for path in sorted(folder.glob("validation-*.csv")):
        named = _RUN.fullmatch(path.name)
        if named is None:
            raise ConfigError(f"{path}: a name such as validation-128.csv is expected")
        cells = [
            tuple(row.number(column, least=0.0, most=_LARGEST_NOISE) for column in columns)
            for row in _profile_rows(path, columns)
        ]
        if len(cells) < epochs:
            raise ConfigError(f"{path}: {len(cells)} epochs, {epochs} expected", fix="record the rest of the run")
        progress = [row[0] for row in cells]
        if progress[0] <= 0 or any(b <= a for a, b in pairwise(progress)):
            raise ConfigError(f"{path}: progress does not grow from epoch to epoch", field="progress")
        runs[int(named[1])] = RecordedTraining(*zip(*cells, strict=True))
    if not runs:
        raise ConfigError(f"{folder}: no validation-*.csv", fix="check the path")
    return RecordedLearningCurve(name, runs, epochs)


def local_batch_range(placements: Path) -> tuple[int, int]:
    """Reads the smallest and largest local batch measured on any layout. Raises ConfigError."""
    local = [row.whole("local_bsz", most=_LARGEST_COUNT) for row in _profile_rows(placements, ("local_bsz",))]
    if not local:
        raise ConfigError(f"{placements}: no row", fix="check the path")
    return min(local), max(local)


def _profile_rows(path: Path, columns: Sequence[str]) -> Iterator[TraceRow]:
    source = TraceSource(path, ReadOptions())
    lines = source.lines()
    return source.rows(lines, header_row_format(source, lines, columns))


def _layout_point(row: TraceRow) -> LayoutPoint:
    machines, accelerators, local = (
        row.whole(name, most=_LARGEST_COUNT) for name in ("num_nodes", "num_replicas", "local_bsz")
    )
    return machines, accelerators, local


def _row_times(row: TraceRow) -> tuple[float, float]:
    step_s = row.number("step_time", above=0.0)
    sync_s = row.number("sync_time", least=0.0)
    if sync_s > step_s:
        raise row.error("sync_time", f"is {sync_s:g}, above step_time ({step_s:g})", "it is a part of it")
    return step_s, sync_s


#: Epochs of each application: a job is done after them, whatever its validation shows.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
#: Largest batch per accelerator, where it is not the largest that was measured.
_LOCAL_MOST = {"yolov3": 8}


def applications_in(folder: str | Path) -> list[str]:
    """Returns the names of the applications that have a folder there. Raises ConfigError if none has."""
    names = [name for name in EPOCHS if (Path(folder) / name).is_dir()]
    if not names:
        raise ConfigError(f"{folder}: no application's profile; known are {', '.join(EPOCHS)}", fix="check the path")
    return names


def read_pollux_applications(folder: str | Path) -> dict[str, Application]:
    """Reads the applications whose profiles are in the folder, by name. Raises ConfigError."""
    return {name: _read_application(name, Path(folder) / name) for name in applications_in(folder)}


def _read_application(name: str, folder: Path) -> Application:
    placements = folder / "placements.csv"
    learning = read_learning_curve(name, folder, EPOCHS[name])
    least, most = local_batch_range(placements)
    profile = AcceleratorProfile(
        read_step_times(name, placements, folder / "scalability.csv"), least, min(most, _LOCAL_MOST.get(name, most))
    )
    return Application(name, learning.batches[0], learning.batches[-1], learning, {"t4": profile})
