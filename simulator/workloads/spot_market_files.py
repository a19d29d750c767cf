"""Files about spot markets: when machines were available.

CSV with a header, plain or gzip, read with the same bounds and errors as a trace of jobs.
"""

from collections.abc import Callable
from math import ceil, isclose
from pathlib import Path

from simulator.workloads.trace_source import ReadOptions, TraceRow, TraceSource, header_row_format
from walras.errors import ConfigError
from walras.units import MAX_LENGTH_S

#: Largest number of slots of one file, over all its traces.
_MOST_SLOTS = 1_000_000


def read_spot_availability(
    path: str | Path, slot_s: float, chosen: Callable[[str], bool] = lambda _: True
) -> dict[str, tuple[bool, ...]]:
    """Reads whether spot machines were available at the start of each slot, by trace (a zone), sorted by name.

    Columns: `end_s` (until when), `available_nodes`; if there are several traces `trace_id`, each one's rows in order;
    `start_s`, if it is there, has to be the end of the row before. `chosen`: the traces that are wanted, by name.

    Raises:
        ConfigError: naming the file, the line and the column of what is wrong.
    """
    source, found, ends_s, slots = TraceSource(path, ReadOptions()), dict[str, list[bool]](), dict[str, float](), 0
    alone = Path(path).name.split(".")[0]
    lines = source.lines()
    table = header_row_format(source, lines, ("end_s", "available_nodes"))
    for row in source.rows(lines, table):
        name = row.name("trace_id", alone)
        if not chosen(name):
            continue
        since_s, trace = ends_s.get(name, 0.0), found.setdefault(name, [])
        ends_s[name] = _end_s(row, since_s)
        # A slot has the availability of its first instant.
        more = ceil(ends_s[name] / slot_s - 1e-9) - len(trace)
        slots += more
        if slots > _MOST_SLOTS:
            raise row.error("end_s", f"makes more than {_MOST_SLOTS:,} slots", "give a shorter trace, or longer slots")
        trace.extend([row.whole("available_nodes", least=0) > 0] * more)
    if not found:
        raise ConfigError(f"{path}: no row of the traces asked for", fix="check the names, and that there are rows")
    return {name: tuple(found[name]) for name in sorted(found)}


def _end_s(row: TraceRow, since_s: float) -> float:
    if row.text("start_s") and not isclose(row.number("start_s"), since_s, rel_tol=1e-9, abs_tol=1e-6):
        raise row.error("start_s", f"is {row.text('start_s')}, the row before ends at {since_s:g}", "leave no gap")
    return row.number("end_s", above=since_s, most=MAX_LENGTH_S)
