"""Traces and throughput tables in the format of Gavel (OSDI 2020).

A trace has ten tab-separated columns and no header: job type, command, folder, name of the steps argument, whether it
needs data, steps, scale factor, weight, SLO (a multiple of the time on a V100; -1: none), arrival in seconds. A table
is JSON: accelerator -> "('type', scale factor)" -> "null" -> steps per second of the gang. Tables of pairs that share
an accelerator are not read yet. Speed 0 means that the job cannot run there.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import TextIO

from simulator.job import SimulatedJob
from simulator.truth import SpeedKey, Truth
from walras.errors import ConfigError
from walras.ids import JobId, Kind
from walras.request import Demand, JobRequest

_COLUMNS = 10
_MAX_LINE = 64 * 1024
_TABLE_KEY = re.compile(r"^\('([^']*)', (\d{1,6})\)$")
#: The accelerator that a trace's SLOs are multiples of.
_SLO_ACCELERATOR = "v100"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One job of a trace, with the place it was read from."""

    where: str
    job_type: str
    steps: int
    scale_factor: int
    weight: float
    slo: float
    arrival_at: float


def read_trace(path: str | Path) -> Iterator[TraceRow]:
    """The rows in order. Raises ConfigError with file and line for a row that is not what it should be."""
    arrived_at = 0.0
    with _opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), ""), start=1):
            where = f"{path}:{number}"
            if not line.strip():
                raise ConfigError(f"{where}: an empty line", fix="remove it")
            row = _row(line.rstrip("\n").split("\t"), where)
            if row.arrival_at < arrived_at:
                raise ConfigError(
                    f"{where}: arrives at {row.arrival_at:g} s, before the row above it ({arrived_at:g} s)",
                    field="arrival_time",
                    fix="sort the trace by arrival",
                )
            arrived_at = row.arrival_at
            yield row


def _row(cells: list[str], where: str) -> TraceRow:
    if len(cells) != _COLUMNS:
        raise ConfigError(f"{where}: {len(cells)} columns, {_COLUMNS} expected", fix="separate columns by tabs")
    if not cells[0]:
        raise ConfigError(f"{where}: no job type", field="job_type")
    return TraceRow(
        where,
        cells[0],
        steps=_whole(cells[5], where, "total_steps"),
        scale_factor=_whole(cells[6], where, "scale_factor"),
        weight=_number(cells[7], where, "priority_weight", least=0.0, open_below=True),
        slo=_number(cells[8], where, "SLO", least=-inf),
        arrival_at=_number(cells[9], where, "arrival_time", least=0.0),
    )


def _whole(text: str, where: str, field: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) or int(text) < 1:
        raise ConfigError(f"{where}: {field} is {text[:40]!r}", field=field, fix="give a whole number of at least 1")
    return int(text)


def _number(text: str, where: str, field: str, *, least: float, open_below: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = inf
    if not isfinite(value) or value < least or (open_below and value == least):
        bound = "above" if open_below else "not below"
        raise ConfigError(f"{where}: {field} is {text[:40]!r}", field=field, fix=f"give a number {bound} {least:g}")
    return value


def read_throughputs(path: str | Path) -> dict[SpeedKey, float]:
    """Steps per second of gangs that run alone. Raises ConfigError naming the entry that is wrong."""
    with _opened(path) as file:
        try:
            table = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: a table of accelerators is expected")
    speeds: dict[SpeedKey, float] = {}
    for accelerator, rows in table.items():
        for name, entries in _mapping(rows, f"{path}: {accelerator}").items():
            where = f"{path}: {accelerator}: {name}"
            matched = _TABLE_KEY.match(name)
            alone = _mapping(entries, where).get("null")
            if matched is None or not isinstance(alone, int | float) or not isfinite(alone) or alone < 0:
                raise ConfigError(f'{where}: "(\'type\', scale factor)" with a speed under "null" is expected')
            speeds[SpeedKey(Kind(matched[1]), accelerator, int(matched[2]))] = float(alone)
    return speeds


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: an object is expected")
    return value


def _opened(path: str | Path) -> TextIO:
    try:
        return Path(path).open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", fix="check the path") from None


def gavel_jobs(rows: Iterable[TraceRow], truth: Truth, fleet: Iterable[str]) -> Iterator[SimulatedJob]:
    """The rows as jobs that accept every accelerator of the fleet on which they have a speed; numbered from 1.

    Raises ConfigError for a row that runs nowhere in this fleet.
    """
    types = sorted(set(fleet))
    for number, row in enumerate(rows, start=1):
        kind, count = Kind(row.job_type), row.scale_factor
        demands = tuple(
            Demand(name, count) for name in types if truth.speeds.get(SpeedKey(kind, name, count), 0.0) > 0.0
        )
        if not demands:
            raise ConfigError(
                f"{row.where}: {row.job_type!r} x {count} has no speed on {', '.join(types)}",
                field="job_type",
                fix="give a throughput table that has it",
            )
        slo_speed = truth.speeds.get(SpeedKey(kind, _SLO_ACCELERATOR, count), 0.0)
        has_slo = row.slo > 0 and slo_speed > 0
        request = JobRequest(
            JobId(number),
            kind,
            demands,
            weight=row.weight,
            steps=float(row.steps),
            deadline_at=row.arrival_at + row.slo * row.steps / slo_speed if has_slo else inf,
        )
        yield SimulatedJob(row.arrival_at, request, float(row.steps), name=row.job_type)
