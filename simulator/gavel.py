"""Throughput tables in the format of Gavel (OSDI 2020), which Shockwave shares.

A table is JSON: accelerator -> "('type', scale factor)" -> "null" -> steps per second of the gang. In the place of
"null", another such name: the speeds of both where they share accelerators. Speed 0 means that the job cannot run
there. Traces are read by `simulator.workloads.gavel`.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TypeGuard

from simulator.truth import SpeedKey
from simulator.workloads.source import opened_text, whole
from walras.errors import ConfigError
from walras.ids import Kind

#: Characters; a longer table is cut off here, and then no JSON.
_MAX_TABLE = 256 * 1024 * 1024
_TABLE_KEY = re.compile(r"^\('([^']*)', (\d{1,6})\)$")


def read_throughputs(path: str | Path) -> dict[SpeedKey, float]:
    """Steps per second of gangs that run alone. Raises ConfigError naming the entry that is wrong."""
    speeds: dict[SpeedKey, float] = {}
    for key, entries, where in _table(path):
        alone = entries.get("null")
        if not _is_speed(alone):
            raise ConfigError(f'{where}: a speed under "null" is expected')
        speeds[key] = float(alone)
    return speeds


def read_pairs(path: str | Path, accelerators: Collection[str]) -> dict[tuple[SpeedKey, Kind], float]:
    """Steps per second of a gang beside another of the same size, on these accelerators.

    A pair stands twice in the table, once under each member; read is what the member's own entry says of itself.
    Raises ConfigError naming the entry that is wrong.
    """
    speeds: dict[tuple[SpeedKey, Kind], float] = {}
    for key, entries, where in _table(path):
        if key.accelerator not in accelerators:
            continue
        for name, both in entries.items():
            other = _TABLE_KEY.match(name)
            if other is None or int(other[2]) != key.count:
                continue
            if not (isinstance(both, Sequence) and len(both) == 2 and all(map(_is_speed, both))):
                raise ConfigError(f"{where}: {name}: the speeds of both are expected")
            speeds[key, Kind(other[1])] = float(both[0])
    return speeds


def _is_speed(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and isfinite(value) and value >= 0


def _table(path: str | Path) -> Iterator[tuple[SpeedKey, Mapping[str, object], str]]:
    """The entries of every kind and gang on every accelerator, with the place they were read from."""
    with opened_text(path) as file, whole(f"{path}: broken off"):
        text = file.read(_MAX_TABLE)
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: a table of accelerators is expected")
    for accelerator, rows in table.items():
        for name, entries in _mapping(rows, f"{path}: {accelerator}").items():
            where = f"{path}: {accelerator}: {name}"
            matched = _TABLE_KEY.match(name)
            if matched is None:
                raise ConfigError(f"{where}: a name such as \"('type', scale factor)\" is expected")
            yield SpeedKey(Kind(matched[1]), accelerator, int(matched[2])), _mapping(entries, where), where


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: an object is expected")
    return value
