"""Speeds for the kinds of a trace: Gavel's throughput tables, or speeds drawn from a seed by one stated rule.

**Throughput table** in the format of Gavel (OSDI 2020), which Shockwave shares. A table is JSON: accelerator ->
"('type', scale factor)" -> "null" -> steps per second of the gang. In the place of "null", another such name gives the
speeds of both where they share accelerators. Speed 0 means that the job cannot run there.

**Seeded speeds**, for a trace that states none. A kind has a sensitivity s ~ U(0.3, 1.7). On a type of nominal speed n
it makes n^s x e^z steps a second, with z ~ N(0, 0.15), to four digits: ratios of types differ between kinds, and
sometimes even their order. Jobs without a kind are assigned at random to a given number of kinds. Everything is drawn
from named streams of one seed.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TypeGuard

from simulator.engine import RandomStreams
from simulator.ground_truth import SpeedKey
from simulator.workloads.trace import TraceJob
from simulator.workloads.trace_source import complete_file, open_text
from walras.errors import ConfigError
from walras.job_request import Kind

#: Largest number of characters; a longer table is cut off here and is then no valid JSON.
_MAX_TABLE = 256 * 1024 * 1024
_TABLE_KEY = re.compile(r"^\('([^']*)', (\d{1,6})\)$")


def read_throughput_table(path: str | Path) -> dict[SpeedKey, float]:
    """Returns steps per second of gangs that run alone. Raises ConfigError naming the entry that is wrong."""
    speeds: dict[SpeedKey, float] = {}
    for key, entries, where in _table_entries(path):
        alone = entries.get("null")
        if not _is_speed(alone):
            raise ConfigError(f'{where}: a speed under "null" is expected')
        speeds[key] = float(alone)
    return speeds


def read_pair_speeds(path: str | Path, accelerators: Collection[str]) -> dict[tuple[SpeedKey, Kind], float]:
    """Returns steps per second of gangs co-located with another of the same size, on these accelerators.

    A pair occurs twice in the table, once under each member; each member's own entry gives its own speed.
    Raises ConfigError naming the entry that is wrong.
    """
    speeds: dict[tuple[SpeedKey, Kind], float] = {}
    for key, entries, where in _table_entries(path):
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


def _table_entries(path: str | Path) -> Iterator[tuple[SpeedKey, Mapping[str, object], str]]:
    """Yields the entries of every kind and gang on every accelerator type, each with its place in the file."""
    with open_text(path) as file, complete_file(f"{path}: broken off"):
        text = file.read(_MAX_TABLE)
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: a table of accelerators is expected")
    for accelerator, rows in table.items():
        for name, entries in _as_mapping(rows, f"{path}: {accelerator}").items():
            where = f"{path}: {accelerator}: {name}"
            matched = _TABLE_KEY.match(name)
            if matched is None:
                raise ConfigError(f"{where}: a name such as \"('type', scale factor)\" is expected")
            yield SpeedKey(Kind(matched[1]), accelerator, int(matched[2])), _as_mapping(entries, where), where


def _as_mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: an object is expected")
    return value


#: The kind of a job whose trace names none.
NO_KIND = "any"
_SENSITIVITY = (0.3, 1.7)
_NOISE = 0.15


def with_seeded_speeds(
    jobs: Iterable[TraceJob], nominal: Mapping[str, float], *, kinds: int = 26, seed: int = 0
) -> Iterator[TraceJob]:
    """Yields the jobs with a speed on every type of `nominal` (name to nominal speed).

    A duration on a type that is not among them becomes one on the fastest that is.
    """
    streams = RandomStreams(seed)
    dealing = streams.stream("dealing")
    names = [f"kind-{number:02}" for number in range(1, kinds + 1)]
    speeds: dict[str, tuple[tuple[str, float], ...]] = {}
    for job in jobs:
        kind = dealing.choice(names) if job.kind == NO_KIND else job.kind
        if kind not in speeds:
            speeds[kind] = _draw_speeds(streams, kind, nominal)
        on = job.duration_on if job.duration_on in nominal else ""
        yield replace(job, kind=kind, speeds=speeds[kind], duration_on=on)


def _draw_speeds(streams: RandomStreams, kind: str, nominal: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    random = streams.stream(f"speeds of {kind}")
    sensitivity = random.uniform(*_SENSITIVITY)
    return tuple(
        (name, float(f"{nominal[name] ** sensitivity * random.lognormvariate(0.0, _NOISE):.4g}"))
        for name in sorted(nominal)
    )
