"""Throughput tables in the format of Gavel (OSDI 2020), which Shockwave shares.

A table is JSON: accelerator -> "('type', scale factor)" -> "null" -> steps per second of the gang. Entries of pairs
that share an accelerator are not read yet. Speed 0 means that the job cannot run there. Traces are read by
`simulator.workloads.gavel`.
"""

import json
import re
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from simulator.truth import SpeedKey
from simulator.workloads.source import opened_text
from walras.errors import ConfigError
from walras.ids import Kind

#: Characters; a longer table is cut off here, and then no JSON.
_MAX_TABLE = 256 * 1024 * 1024
_TABLE_KEY = re.compile(r"^\('([^']*)', (\d{1,6})\)$")


def read_throughputs(path: str | Path) -> dict[SpeedKey, float]:
    """Steps per second of gangs that run alone. Raises ConfigError naming the entry that is wrong."""
    with opened_text(path) as file:
        try:
            table = json.loads(file.read(_MAX_TABLE))
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
