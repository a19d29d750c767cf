"""The folder of a sweep: a file per run, named by the hash of its description, and the levels of some runs beside it.

Files are written atomically. A file that is truncated, changed, or of another run is rejected.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import nan
from pathlib import Path
from typing import Any, TextIO

from pydantic import TypeAdapter

from simulator.reports.repeated_runs import RunMetrics
from simulator.reports.run_detail import SPREADS, RunLevels
from simulator.reports.run_summary import RUN_METRICS, TIME_METRICS, nonfinite_to_none
from walras.errors import ConfigError

_CELLS = "cells"
_CELL_BYTES_MAX = 1024 * 1024
_LEVELS_BYTES_MAX = 64 * 1024 * 1024
_LEVELS = TypeAdapter(RunLevels)


class SweepStore:
    """The stored results of one sweep."""

    def __init__(self, folder: Path) -> None:
        """Creates the folder. Raises ConfigError if that fails."""
        self._folder = folder
        self._cells = folder / _CELLS
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{folder}: {error.strerror or error}", field="out", fix="choose another folder"
            ) from None

    def read(self, key: str, described: Mapping[str, Any], rejected: list[str]) -> RunMetrics | None:
        """Returns the stored metrics of a run; None if the file is missing or unsound."""
        path = self._cells / f"{key}.json"
        content = _read(path, _CELL_BYTES_MAX)
        row = None if content is None else _parse_result(content, described)
        if row is None and content is not None:
            rejected.append(str(path))
        return row

    def read_levels(self, key: str, rejected: list[str]) -> RunLevels | None:
        """Returns the stored levels of a run; None if the file is missing or unsound."""
        path = self._levels_path(key)
        content = _read(path, _LEVELS_BYTES_MAX)
        levels = None if content is None else _parse_levels(content, key)
        if levels is None and content is not None:
            rejected.append(str(path))
        return levels

    def write(self, key: str, described: Mapping[str, Any], row: RunMetrics) -> None:
        """Writes the metrics of a run, and first its levels if they were kept."""
        if row.detail is not None and row.detail.levels is not None:
            kept: dict[str, Any] = nonfinite_to_none(asdict(row.detail.levels))
            levels = json.dumps({"levels": kept, "sha256": _result_digest({"run": key}, kept)})
            self._put(self._levels_path(key), lambda file: file.write(levels))
        metrics = {name: getattr(row, name) for name in ("values", "costs", "outcome", "violations", "spreads")}
        body = nonfinite_to_none(metrics)
        text = json.dumps({"description": described, "row": body, "sha256": _result_digest(described, body)}, indent=1)
        self._put(self._cells / f"{key}.json", lambda file: file.write(text))

    def write_table(self, name: str, write: Callable[[TextIO], object]) -> None:
        """Writes a file of the whole sweep into the folder."""
        self._put(self._folder / name, write)

    def _levels_path(self, key: str) -> Path:
        return self._cells / f"{key}.levels.json"

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


def _read(path: Path, most: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        return None


def _parse_levels(content: bytes, key: str) -> RunLevels | None:
    try:
        data = json.loads(content)
        if data["sha256"] != _result_digest({"run": key}, data["levels"]):
            return None
        return _LEVELS.validate_python(data["levels"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _result_digest(described: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    text = json.dumps([described, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _parse_result(content: bytes, described: Mapping[str, Any]) -> RunMetrics | None:
    try:
        data = json.loads(content)
        body = data["row"]
        # Compared as JSON, because tuples have become lists.
        same = data["description"] == json.loads(json.dumps(described))
        if not same or data["sha256"] != _result_digest(described, body):
            return None
        values, costs = (_numbers(body[name]) for name in ("values", "costs"))
        spreads = {name: tuple(float(value) for value in body["spreads"][name]) for name in SPREADS}
        broken = tuple(str(each) for each in body["violations"])
        row = RunMetrics(values, costs, str(body["outcome"]), broken, spreads=spreads)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    values_known = row.values.keys() == {measure.name for measure in RUN_METRICS}
    costs_known = row.costs.keys() == {measure.name for measure in TIME_METRICS}
    return row if values_known and costs_known else None


def _numbers(data: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): nan if value is None else float(value) for name, value in data.items()}
