"""Energy and carbon of a simulated run: board power x time held, at the carbon intensity of the grid at that time.

Upper bounds of what the accelerators take: every one that a job holds counts with the power of its data sheet for as
long as it is held, starting and saving included. Idle accelerators, processors and networks do not count; cooling
does by a stated factor alone (power usage effectiveness). Where two jobs share an accelerator, each has half.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from optimizer.planning.price_moves import StepFunction
from scheduler.core.commands import AttemptTransitioned, Command
from scheduler.core.events import Event, NodeLost
from simulator.workloads.carbon_intensity import GridIntensity, read_carbon_intensity
from simulator.workloads.trace_source import epoch_seconds
from walras.cluster import NodeId, Pool, PoolId
from walras.contract import SECONDS_PER_HOUR
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.spec.accelerator_names import canonical_accelerator, sheet_names
from walras.units import format_length

#: Watts of one accelerator: the board power of the makers' data sheets (TDP, of AMD the board power), of the SXM or OAM
#: module where the type has one; of k80 and m60 half the board, because each of its two chips counts as one.
#: AWS's a10g has no data sheet of its own.
BOARD_WATTS: Mapping[str, float] = {
    "k80": 150, "m60": 150, "p4": 75, "p100": 300, "v100": 300, "t4": 70, "rtx-2080-ti": 260, "rtx-6000": 295,
    "a10": 150, "a40": 300, "a100": 400, "l4": 72, "l40s": 350, "h100": 700, "h100-94gb": 400, "h200": 700,
    "b200": 1000, "mi300x": 750,
}  # fmt: skip
_MOST_WATTS = 100_000.0
_MOST_PUE = 10.0
_W_PER_KW = 1000.0
_G_PER_KG = 1000.0


@dataclass(frozen=True, slots=True)
class CarbonOptions:
    """The carbon intensity of a run's grid, and the power of its accelerators."""

    file: str
    #: Zones of the file: (zone of the cluster's pools, "" for all others; zone of the file). Empty: its only zone.
    zones: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    #: Seconds since 1970 at which the run begins; None: the first instant of the file.
    begins_at: float | None = None
    #: Power usage effectiveness of the building.
    pue: float = 1.0
    #: Watts by accelerator type, in place of the data sheets'.
    watts: tuple[tuple[str, float], ...] = ()


def parse_carbon_options(
    file: str, zones: Sequence[str], columns: Sequence[str], begins: str | None, pue: float, watts: Sequence[str]
) -> CarbonOptions:
    """Parses what the command line says. Raises ConfigError that names the option."""
    begins_at = None
    if begins is not None:
        try:
            begins_at = float(begins) if begins.isdecimal() and begins.isascii() else epoch_seconds(begins)
        except ValueError:
            fix = "write an instant such as 2026-11-05T18:00:00Z, or seconds since 1970"
            raise ConfigError(f"carbon-from {begins[:60]!r}", field="carbon-from", fix=fix) from None
    if not 1.0 <= pue <= _MOST_PUE:
        raise ConfigError(f"pue {pue:g}", field="pue", fix=f"give a factor from 1 to {_MOST_PUE:g}")
    pairs = [each.rpartition("=") for each in zones]
    if any(not theirs for _, _, theirs in pairs) or len({ours for ours, _, _ in pairs}) < len(pairs):
        fix = "write ZONE, or once for each zone of the cluster POOLZONE=ZONE"
        raise ConfigError(f"carbon-zone {', '.join(zones)[:60]!r}", field="carbon-zone", fix=fix)
    places = tuple((ours, theirs) for ours, _, theirs in pairs)
    return CarbonOptions(file, places, tuple(columns), begins_at, pue, tuple(_parse_watts(each) for each in watts))


def _parse_watts(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        accelerator, watts = canonical_accelerator(name), float(number)
    except ValueError:
        accelerator, watts = "", 0.0
    if not 0.0 < watts <= _MOST_WATTS:
        raise ConfigError(f"watts {text[:60]!r}", field="watts", fix="write the watts of one accelerator: a10g=150")
    return accelerator, watts


def board_watts(accelerator: str, stated: Mapping[str, float]) -> float | None:
    """Returns the watts of one accelerator of a type, also one named with its memory; None if they are unknown."""
    for name in sheet_names(accelerator):
        if (watts := stated.get(name, BOARD_WATTS.get(name))) is not None:
            return watts
    return None


@dataclass(slots=True)
class CarbonSum:
    """Accelerator-hours held, and their energy and carbon."""

    held_h: float = 0.0
    kwh: float = 0.0
    kg_co2: float = 0.0
    #: Accelerator-hours of types without known power, which the other figures leave out.
    left_out_h: float = 0.0

    def add(self, other: "CarbonSum") -> None:
        """Adds another sum to this one."""
        self.held_h += other.held_h
        self.kwh += other.kwh
        self.kg_co2 += other.kg_co2
        self.left_out_h += other.left_out_h


@dataclass(frozen=True, slots=True)
class RunCarbon:
    """Energy and carbon of a run, by pool and by job."""

    total: CarbonSum = field(default_factory=CarbonSum)
    pools: dict[PoolId, CarbonSum] = field(default_factory=dict)
    jobs: dict[JobId, CarbonSum] = field(default_factory=dict)
    #: Types that jobs held and whose power is unknown, in the order in which they were.
    left_out: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Supply:
    """How one pool is supplied: watts of an accelerator, cooling included, and the grid on the clock of the run."""

    accelerator: str
    watts: float | None
    g_per_kwh: StepFunction
    ends_at: float


@dataclass(slots=True)
class _Holding:
    """What a live attempt holds: its machines with pool and accelerators, counted until `since_at`."""

    parts: dict[NodeId, tuple[PoolId, int]]
    place: tuple[NodeId, tuple[int, ...]]
    since_at: float


class CarbonMeter:
    """A recorder of a simulation (`record`) that sums up the carbon of what jobs hold.

    `slices`: accelerators of the cluster that stand for one board. `then`: another recorder, called after this one.
    Raises ConfigError for a grid that is unknown for a pool, or not known until the end of the run.
    """

    def __init__(
        self,
        options: CarbonOptions,
        pools: Iterable[Pool],
        slices: int = 1,
        then: Callable[[Event, list[Command]], None] | None = None,
    ) -> None:
        self.carbon = RunCarbon()
        self._file = options.file
        self._supplies = _supplies(options, list(pools), slices)
        self._then = then
        self._open: dict[JobId, _Holding] = {}
        #: Jobs by place: co-located ones share all their accelerators.
        self._sharers: dict[tuple[NodeId, tuple[int, ...]], list[JobId]] = {}

    def record(self, event: Event, commands: list[Command]) -> None:
        """Takes one event and the scheduler's commands."""
        if isinstance(event, NodeLost):
            for job_id, holding in self._open.items():
                if event.node_id in holding.parts:
                    self._settle(event.at, job_id)
                    del holding.parts[event.node_id]
        for command in commands:
            if isinstance(command, AttemptTransitioned):
                self._attempt(event.at, command)
        if self._then is not None:
            self._then(event, commands)

    def finish(self, at: float) -> RunCarbon:
        """Returns the sums of a run that ended at this instant, attempts that were still open included."""
        self._settle(at, *self._open)
        return self.carbon

    def _attempt(self, at: float, command: AttemptTransitioned) -> None:
        job_id, placement = command.job_id, command.placement
        if placement is not None:
            first = placement.parts[0]
            parts = {each.node_id: (each.pool_id or placement.pool_id, len(each.devices)) for each in placement.parts}
            holding = _Holding(parts, (first.node_id, first.devices), at)
            sharers = self._sharers.setdefault(holding.place, [])
            self._settle(at, *sharers)
            self._open[job_id] = holding
            sharers.append(job_id)
        elif command.state.is_final and job_id in self._open:
            place = self._open[job_id].place
            self._settle(at, *self._sharers[place])
            self._sharers[place].remove(job_id)
            if not self._sharers[place]:
                del self._sharers[place]
            del self._open[job_id]

    def _settle(self, at: float, *job_ids: JobId) -> None:
        """Counts what jobs have held since they were counted last."""
        for job_id in job_ids:
            holding = self._open[job_id]
            since_at, holding.since_at = holding.since_at, at
            sharers = len(self._sharers[holding.place])
            for pool_id, accelerators in holding.parts.values() if at > since_at else ():
                more = self._sum(pool_id, accelerators / sharers, since_at, at)
                self.carbon.total.add(more)
                self.carbon.pools.setdefault(pool_id, CarbonSum()).add(more)
                self.carbon.jobs.setdefault(job_id, CarbonSum()).add(more)

    def _sum(self, pool_id: PoolId, accelerators: float, since_at: float, until_at: float) -> CarbonSum:
        supply = self._supplies[pool_id]
        held_h = accelerators * (until_at - since_at) / SECONDS_PER_HOUR
        if supply.watts is None:
            self.carbon.left_out[supply.accelerator] = None
            return CarbonSum(left_out_h=held_h)
        if until_at > supply.ends_at:
            late = format_length(until_at - supply.ends_at)
            problem = f"{self._file}: ends {late} before the run has come to {format_length(until_at)}"
            raise ConfigError(problem, field="carbon", fix="give a longer file, or an earlier --carbon-from")
        kw = accelerators * supply.watts / _W_PER_KW
        g = kw * supply.g_per_kwh.integral(since_at, until_at) / SECONDS_PER_HOUR
        return CarbonSum(held_h, kw * (until_at - since_at) / SECONDS_PER_HOUR, g / _G_PER_KG)


def _supplies(options: CarbonOptions, pools: Sequence[Pool], slices: int) -> dict[PoolId, _Supply]:
    known = _grids(options)
    zones, stated = dict(options.zones) or {"": ""}, dict(options.watts)
    problem = ""
    if unused := sorted(zones.keys() - {"", *(pool.zone for pool in pools)}):
        problem = f"no pool of the cluster is in zone {unused[0]!r}"
    elif "" not in zones and (missing := sorted({pool.zone for pool in pools} - zones.keys())):
        problem = f"the grid of the cluster's zone {missing[0]!r} is not named"
    if problem:
        there = ", ".join(sorted({pool.zone for pool in pools}))
        raise ConfigError(f"{problem}; it has {there}", field="carbon-zone", fix="write --carbon-zone POOLZONE=ZONE")
    types = {pool.shape.accelerator for pool in pools}
    if idle := sorted(stated.keys() - {name for each in types for name in sheet_names(each)}):
        there = f"no pool has accelerators {idle[0]!r}; there are {', '.join(sorted(types))}"
        raise ConfigError(there, field="watts", fix="state the power of one of these")
    found = {}
    for pool in pools:
        grid = known[zones.get(pool.zone, zones.get("", ""))]
        begins_at = options.begins_at
        if begins_at is None:
            begins_at = max((each.begins_at for each in known.values() if isfinite(each.begins_at)), default=0.0)
        if not grid.begins_at <= begins_at < grid.ends_at:
            fix = "choose an instant of the file, or give a longer file"
            raise ConfigError(f"{options.file}: says nothing of the instant at which the run begins",
                              field="carbon-from", fix=fix)  # fmt: skip
        watts = board_watts(pool.shape.accelerator, stated)
        clock = StepFunction(tuple(at - begins_at for at in grid.g_per_kwh.starts_at), grid.g_per_kwh.values)
        drawn = None if watts is None else watts * options.pue / slices
        found[pool.pool_id] = _Supply(pool.shape.accelerator, drawn, clock, grid.ends_at - begins_at)
    return found


def _grids(options: CarbonOptions) -> dict[str, GridIntensity]:
    path = Path(options.file)
    try:
        now = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", field="carbon", fix="check the path") from None
    zones = tuple(sorted({theirs for _, theirs in options.zones}))
    return _grids_in(path, zones, options.columns, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=8)
def _grids_in(
    path: Path, zones: tuple[str, ...], columns: tuple[str, ...], _mtime_ns: int, _size: int
) -> dict[str, GridIntensity]:
    """Cached for the many runs of a comparison; read again when the file has changed."""
    return read_carbon_intensity(path, zones, columns)


def carbon_table(carbon: RunCarbon) -> Table:
    """Returns energy and carbon by pool, and of all."""
    table = Table("pool", "held h", "kWh", "kg CO2", "left out h", title="energy (board power x time held) and carbon")
    for name, each in (*sorted(carbon.pools.items()), ("all", carbon.total)):
        figures = (f"{each.held_h:.1f}", f"{each.kwh:.4g}", f"{each.kg_co2:.4g}", f"{each.left_out_h:.1f}")
        table.add_row(Text(name), *figures)
    return table


def document_with_carbon(document: Mapping[str, Any], carbon: RunCarbon) -> dict[str, Any]:
    """Returns a run's JSON document with its carbon, and with that of each job."""
    pools = {pool_id: asdict(each) for pool_id, each in sorted(carbon.pools.items())}
    body = {**asdict(carbon.total), "left_out": list(carbon.left_out), "pools": pools}
    jobs, none = document.get("per_job", ()), CarbonSum()
    per_job = ({**job, "carbon": asdict(carbon.jobs.get(job["job_id"], none))} for job in jobs)
    return {**document, "carbon": body, "per_job": per_job}
