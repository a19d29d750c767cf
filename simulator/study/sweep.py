"""Grids of runs that can be broken off and taken up again: what was run is not run twice.

Every cell's figures are one file in a folder, named by the hash of the cell's description and written whole or not at
all. A file that is cut off, changed, or of another cell is not believed: its cell is run again.
"""

import csv
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import Any, TextIO

from simulator.report import finite
from simulator.study.cell import description, key_of
from simulator.study.grid import Grid, Place, cells_of
from simulator.study.measures import COST_MEASURES, MEASURES
from simulator.study.parallel import Row, Workers, run_rows
from walras.errors import ConfigError

TABLE = "sweep.csv"
_CELLS = "cells"
_CELL_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class Sweep:
    """What a sweep came to."""

    places: list[Place]
    rows: list[Row]
    #: Cells that were run now, and cells whose file was there but could not be believed.
    ran: int = 0
    rejected: list[str] = field(default_factory=list)


def sweep(
    grid: Grid, folder: Path, workers: Workers, told: Callable[[int, int], None] = lambda done, runs: None
) -> Sweep:
    """Run what is missing, write `sweep.csv`. `told(done, all)` is called at first and after each run.

    Raises ConfigError before anything runs where a file or a name is wrong, and whatever a run raises; runs that had
    ended by then are kept.
    """
    cells = cells_of(grid)
    store, outcome = _Store(folder), Sweep([place for place, _ in cells], [])
    # Cells of one key (two names of one file) are one run.
    found: dict[str, Row | None] = {}
    keys, missing = [], []
    for _, cell in cells:
        described = description(cell)
        key = key_of(described)
        keys.append(key)
        if key not in found:
            found[key] = store.read(key, described, outcome.rejected)
            if found[key] is None:
                missing.append((key, described, cell))
    told(len(found) - len(missing), len(found))
    for position, row in run_rows([cell for _, _, cell in missing], workers):
        key, described, _ = missing[position]
        store.write(key, described, row)
        found[key] = row
        outcome.ran += 1
        told(len(found) - len(missing) + outcome.ran, len(found))
    outcome.rows = [each for key in keys if (each := found[key]) is not None]
    store.table(outcome)
    return outcome


class _Store:
    """The folder of one sweep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cells = folder / _CELLS
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{folder}: {error.strerror or error}", field="out", fix="choose another folder"
            ) from None

    def read(self, key: str, described: Mapping[str, Any], rejected: list[str]) -> Row | None:
        """The row, if its file is there and sound."""
        path = self._cells / f"{key}.json"
        try:
            with path.open("rb") as file:
                content = file.read(_CELL_BYTES_MAX)
        except FileNotFoundError:
            return None
        row = _row_of(content, described)
        if row is None:
            rejected.append(str(path))
        return row

    def write(self, key: str, described: Mapping[str, Any], row: Row) -> None:
        """Whole, or not at all."""
        body = finite(asdict(row))
        text = json.dumps({"description": described, "row": body, "sha256": _digest(described, body)}, indent=1)
        self._put(self._cells / f"{key}.json", lambda file: file.write(text))

    def table(self, swept: Sweep) -> None:
        """All rows as CSV, one run per line."""
        self._put(self._folder / TABLE, lambda file: _write_table(file, swept))

    def _put(self, path: Path, write: Callable[[TextIO], object]) -> None:
        half = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with half.open("w", encoding="utf-8", newline="") as file:
                write(file)
            half.replace(path)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}", field="out", fix="check the folder") from None
        finally:
            half.unlink(missing_ok=True)


def _digest(described: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    text = json.dumps([described, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _row_of(content: bytes, described: Mapping[str, Any]) -> Row | None:
    try:
        data = json.loads(content)
        body = data["row"]
        # Compared as JSON: tuples have become lists.
        same = data["description"] == json.loads(json.dumps(described))
        if not same or data["sha256"] != _digest(described, body):
            return None
        values, costs = (_numbers(body[name]) for name in ("values", "costs"))
        row = Row(values, costs, str(body["outcome"]), tuple(str(each) for each in body["violations"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    values_known = row.values.keys() == {measure.name for measure in MEASURES}
    costs_known = row.costs.keys() == {measure.name for measure in COST_MEASURES}
    return row if values_known and costs_known else None


def _numbers(data: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): nan if value is None else float(value) for name, value in data.items()}


def _write_table(file: TextIO, swept: Sweep) -> None:
    writer = csv.writer(file, lineterminator="\n")
    measures = [measure.name for measure in (*MEASURES, *COST_MEASURES)]
    writer.writerow(["workload", "cluster", "policy", "rate_per_h", "seed", "outcome", *measures])
    for place, row in zip(swept.places, swept.rows, strict=True):
        values = {**row.values, **row.costs}
        rate = "" if place.rate_per_h is None else repr(place.rate_per_h)
        figures = [repr(values[name]) if isfinite(values[name]) else "" for name in measures]
        writer.writerow([place.workload, place.cluster, place.policy, rate, place.seed, row.outcome, *figures])


def settings(swept: Sweep) -> dict[tuple[str, str, float | None, str], list[Row]]:
    """Rows by all but their seed, in the order of the grid."""
    by_setting: dict[tuple[str, str, float | None, str], list[Row]] = {}
    for place, row in zip(swept.places, swept.rows, strict=True):
        by_setting.setdefault(place.setting, []).append(row)
    return by_setting


def violations(swept: Sequence[Row]) -> list[str]:
    """Every conservation law that did not hold in any of the runs."""
    return [violation for row in swept for violation in row.violations]
