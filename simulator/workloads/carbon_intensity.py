"""Files about the carbon intensity of the power grid: gCO2 per kWh over time, of one zone or of several.

CSV with a header, plain or gzip, read with the same bounds and errors as a trace of jobs.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from statistics import median_low

from simulator.workloads.trace_source import ReadOptions, TraceSource, header_row_format, parse_columns
from walras.errors import ConfigError
from walras.units import format_length

#: Largest number of rows of one file, over all its zones.
_MOST_ROWS = 1_000_000
#: Above what a grid can emit; coal plants make about 1,000.
_MOST_G_PER_KWH = 10_000.0
#: The year 5138: later instants are milliseconds.
_LAST_AT = 1e11
#: A step may be this much longer than the usual one.
_GAP = 1.5
_COLUMNS = ("at", "g_per_kwh", "zone")


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A step function of time: each value holds until the next instant, and the first value also before its instant."""

    #: Seconds, strictly ascending.
    starts_at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts_at or len(self.starts_at) != len(self.values):
            raise ValueError("a step function needs as many values as instants, and at least one")
        if any(later <= earlier for earlier, later in pairwise(self.starts_at)):
            raise ValueError("the instants of a step function must ascend")

    def at(self, at: float) -> float:
        """Returns the value at an instant."""
        return self.values[max(bisect_right(self.starts_at, at) - 1, 0)]

    def integral(self, since_at: float, until_at: float) -> float:
        """Integrates over a span in seconds: 3600 times the cost if the value is a price per hour."""
        inner = self.starts_at[bisect_right(self.starts_at, since_at) : bisect_left(self.starts_at, until_at)]
        edges = [since_at, *inner, until_at]
        return sum((end - start) * self.at(start) for start, end in pairwise(edges))


@dataclass(frozen=True, slots=True)
class GridIntensity:
    """The carbon intensity of one zone of the grid, known from `begins_at` to `ends_at`, seconds since 1970.

    A row's value holds until the next row, and the last one as long as the rows are usually apart. The value of a
    file's only row holds always: nothing is known then of an end.
    """

    g_per_kwh: StepFunction
    ends_at: float

    @property
    def begins_at(self) -> float:
        """The first instant that is known."""
        return self.g_per_kwh.starts_at[0]


@dataclass(slots=True)
class _Rows:
    """The rows of one zone, compactly, because a file may have a million."""

    lines: "array[int]"
    at: "array[float]"
    g_per_kwh: "array[float]"


def read_carbon_intensity(
    path: str | Path, zones: Collection[str] = (), columns: Sequence[str] = ()
) -> dict[str, GridIntensity]:
    """Reads the carbon intensity of the given zones; of the file's only zone, under the name "", where none is given.

    Columns: `at` (ISO 8601, in UTC without a time zone, or seconds since 1970), `g_per_kwh`, and `zone` if there are
    several. `columns` maps them to the file's titles, such as `at=Datetime (UTC)`.

    Raises:
        ConfigError: naming the file, the line and the column of what is wrong: a value that is no intensity, instants
            that do not ascend within a zone, a gap, a zone that is not there.
    """
    source = TraceSource(path, ReadOptions(columns=_mapped(columns)))
    with closing(source.lines()) as lines:
        found, others = _rows_by_zone(source, lines, zones)
    missing = [zone for zone in zones if zone not in found]
    if missing or not found:
        there = f"; there are {', '.join([*found, *others])}" if found or others else ""
        what = f"no row of zone {missing[0]!r}" if missing else "no row below the header"
        raise ConfigError(f"{path}: {what}{there}"[:1000], field="zone", fix="check the file and --carbon-zone")
    return {zone if zones else "": _intensity(rows, str(path)) for zone, rows in found.items()}


def _rows_by_zone(
    source: TraceSource, lines: Iterator[tuple[int, str]], zones: Collection[str]
) -> tuple[dict[str, _Rows], dict[str, None]]:
    """Returns the rows of the zones, and the first names of other zones."""
    found, others = dict[str, _Rows](), dict[str, None]()
    try:
        table = header_row_format(source, lines, [*_COLUMNS[:2], *(_COLUMNS[2:] if zones else ())])
    except ConfigError as error:
        fix = "say what the file calls them, such as --carbon-column 'at=Datetime (UTC)'"
        raise ConfigError(str(error), field=error.field, fix=fix if error.field else error.fix) from None
    has_zones = "zone" in table.columns
    for many, row in enumerate(source.rows(lines, table), 1):
        if many > _MOST_ROWS:
            raise row.error("at", f"is of one of more than {_MOST_ROWS:,} rows", "cut the file into parts")
        zone = row.name("zone") if has_zones else ""
        if zones and zone not in zones:
            if len(others) < 10:
                others[zone] = None
            continue
        rows = found.setdefault(zone, _Rows(array("q"), array("d"), array("d")))
        if not zones and len(found) > 1:
            raise row.error("zone", f"is {zone!r}, above it {next(iter(found))!r}", "choose one: --carbon-zone ZONE")
        at = row.instant("at", least=0.0)
        if at > _LAST_AT:
            raise row.error("at", f"is {row.text('at')[:40]!r}", "write seconds since 1970, not milliseconds")
        if rows.at and at <= rows.at[-1]:
            problem = "is the instant of a row above" if at in rows.at else "is before the row above of its zone"
            raise row.error("at", problem, "sort the rows, each instant once; local times need their offset")
        rows.lines.append(row.line)
        rows.at.append(at)
        rows.g_per_kwh.append(row.number("g_per_kwh", least=0.0, most=_MOST_G_PER_KWH))
    return found, others


def _mapped(columns: Sequence[str]) -> tuple[tuple[str, str], ...]:
    try:
        pairs = parse_columns(columns)
    except ConfigError as error:
        fix = "write --carbon-column 'at=Datetime (UTC)', each once"
        raise ConfigError(str(error), field="carbon-column", fix=fix) from None
    for ours, _ in pairs:
        if ours not in _COLUMNS:
            fix = f"columns are {', '.join(_COLUMNS)}"
            raise ConfigError(f"no column {ours[:60]!r} is asked for", field="carbon-column", fix=fix)
    return pairs


def _intensity(rows: _Rows, path: str) -> GridIntensity:
    """Builds the function. Raises ConfigError for a gap between two rows."""
    apart = [later - earlier for earlier, later in zip(rows.at, rows.at[1:], strict=False)]
    usual_s = median_low(apart) if apart else inf
    for line, step_s in zip(rows.lines[1:], apart, strict=True):
        if step_s > _GAP * usual_s:
            usual = format_length(usual_s)
            problem = f"at is {format_length(step_s)} after the row before; rows are {usual} apart"
            raise ConfigError(f"{path}:{line}: {problem}", field="at", fix="fill the gap: a row for each instant")
    ends_at = rows.at[-1] + usual_s
    first_at = rows.at[0] if isfinite(ends_at) else -inf
    return GridIntensity(StepFunction((first_at, *rows.at[1:]), tuple(rows.g_per_kwh)), ends_at)
