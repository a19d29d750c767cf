"""Arena's table of places: speed of a model with a batch on a number of machines of a type, under the best known plan.

CSV with a header: `model`, `params`, `batch_size`, `gpu_type`, `nodes`, `gpus_per_node`, `seconds_per_iteration` (of
the whole batch), `status`: `ok`; `oom` (does not fit) and `over_300s` (too slow for a round), which no job may use;
`absent` (not measured), for which the simulator has the following rules:

* A place that is not the best of its size has the throughput of the best one, less a tenth for each halving of the
accelerators per machine.
* A best place has the throughput of the next larger measured model of the family there, times 1.8 for each step between
the two models.

Throughputs are samples per second, rounded to three decimals; iteration times follow from them, with three decimals.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simulator.ground_truth import SpeedSegment
from simulator.workloads.trace_source import ReadOptions, TraceRow, TraceSource, header_row_format
from walras.errors import ConfigError

#: Families of models, with their parameters from small to large.
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "wide_resnet": ("500M", "1B", "2B", "4B", "6.8B", "13B"),
    "bert": ("760M", "1.3B", "2.6B", "6.7B", "15B", "39B"),
    "moe": ("690M", "1.3B", "2.4B", "10B", "27B", "70B"),
}
_COLUMNS = (
    "model", "params", "batch_size", "gpu_type", "nodes", "gpus_per_node", "seconds_per_iteration", "status",
)  # fmt: skip
_STATUSES = ("ok", "oom", "over_300s", "absent")
#: Factor on a gang's throughput for each halving of its accelerators per machine.
_SPREAD = 0.9
#: Throughput of a model relative to the next larger one, where only the larger one was measured.
_SMALLER_MODEL = 1.8
#: Accelerators of a gang: a power of two up to this number.
GANG_MAX = 16


@dataclass(frozen=True, slots=True)
class ArenaModel:
    """A model with its batch size."""

    model: str
    params: str
    batch: int

    @property
    def kind(self) -> str:
        """Returns the name of the kind in a trace."""
        return f"{self.model} {self.params} (batch size {self.batch})"


@dataclass(frozen=True, slots=True)
class ArenaPlace:
    """A number of machines of one type, with equally many accelerators used on each."""

    accelerator: str
    machines: int
    each: int

    @property
    def accelerators(self) -> int:
        """Number of accelerators on all machines."""
        return self.machines * self.each


#: Seconds per iteration; None: the model cannot run there.
_Measured = Mapping[tuple[ArenaModel, ArenaPlace], float | None]


@dataclass(frozen=True, slots=True, eq=False)
class PlaceTable:
    """Speeds by model and place."""

    measured: _Measured
    #: Accelerators per machine, by type.
    machine_size: Mapping[str, int]
    _throughputs: dict[tuple[ArenaModel, ArenaPlace], float] = field(default_factory=dict)

    def models(self) -> dict[str, ArenaModel]:
        """Returns all models that have a row, by the name of their kind."""
        return {model.kind: model for model, _ in self.measured}

    def best_place(self, accelerator: str, count: int) -> ArenaPlace:
        """Returns the densest place for `count` accelerators: a part of one machine, or whole machines."""
        size = self.machine_size[accelerator]
        return ArenaPlace(accelerator, 1, count) if count <= size else ArenaPlace(accelerator, count // size, size)

    def throughput(self, model: ArenaModel, place: ArenaPlace) -> float:
        """Returns samples per second; 0 where the model cannot run or the speed is unknown."""
        found = self._throughputs.get((model, place))
        if found is None:
            found = self._throughputs[model, place] = self._throughput(model, place)
        return found

    def seconds_per_iteration(self, model: ArenaModel, place: ArenaPlace) -> float:
        """Returns the seconds of an iteration over the whole batch. The model must be able to run there."""
        return round(model.batch / self.throughput(model, place), 3)

    def place_of(self, accelerator: str, parts: tuple[int, ...]) -> ArenaPlace:
        """Returns the place whose speed a gang with `parts` accelerators on its machines has.

        A gang with uneven parts counts as evenly spread, with a power of two on each machine that is at most its
        smallest part.
        """
        count, least = sum(parts), min(parts)
        each = 1 << (least.bit_length() - 1)
        while count % each:
            each //= 2
        return ArenaPlace(accelerator, count // each, each)

    def _throughput(self, model: ArenaModel, place: ArenaPlace) -> float:
        if (model, place) in self.measured:
            return _samples_per_s(model, self.measured[model, place])
        best = self.best_place(place.accelerator, place.accelerators)
        if place != best:
            halvings = (best.each // place.each).bit_length() - 1
            return self.throughput(model, best) * _SPREAD**halvings
        family = _FAMILIES.get(model.model, ())
        larger = family[family.index(model.params) + 1 :] if model.params in family else ()
        for steps, params in enumerate(larger, start=1):
            other = ArenaModel(model.model, params, model.batch)
            if (other, place) in self.measured:
                return _samples_per_s(other, self.measured[other, place]) * _SMALLER_MODEL**steps
        return 0.0


def _samples_per_s(model: ArenaModel, seconds: float | None) -> float:
    return 0.0 if seconds is None else round(model.batch / seconds, 3)


@dataclass(frozen=True, slots=True)
class PlaceLaw:
    """A `simulator.ground_truth.SpeedLaw`: iterations per second of one model, by place."""

    table: PlaceTable
    model: ArenaModel

    def speed_segment(self, accelerator: str, parts: tuple[int, ...], steps: float) -> SpeedSegment:
        """Returns iterations per second, independent of progress; 0 where the model cannot run."""
        place = self.table.place_of(accelerator, parts)
        if self.table.throughput(self.model, place) <= 0:
            return SpeedSegment(0.0)
        return SpeedSegment(1.0 / self.table.seconds_per_iteration(self.model, place))


def read_places(path: str | Path, machine_size: Mapping[str, int]) -> PlaceTable:
    """Reads a table for machines of these sizes. Raises ConfigError that names file, line and column."""
    source = TraceSource(path, ReadOptions())
    lines = source.lines()
    measured: dict[tuple[ArenaModel, ArenaPlace], float | None] = {}
    for row in source.rows(lines, header_row_format(source, lines, _COLUMNS)):
        key, status = _row_key(row), row.name("status")
        if status not in _STATUSES:
            raise row.error("status", f"is {status!r}", f"name one of {', '.join(_STATUSES)}")
        if key in measured:
            raise row.error("model", "has this place twice", "remove one of the rows")
        if status != "absent":
            measured[key] = row.number("seconds_per_iteration", above=0.0) if status == "ok" else None
    if not measured:
        raise ConfigError(f"{path}: no place was measured", fix="check the path")
    return PlaceTable(measured, dict(machine_size))


def _row_key(row: TraceRow) -> tuple[ArenaModel, ArenaPlace]:
    types = row.types("gpu_type")
    if len(types) != 1:
        raise row.error("gpu_type", f"names {len(types)} types", "name one")
    place = ArenaPlace(types[0], row.gang("nodes"), row.gang("gpus_per_node"))
    return ArenaModel(row.name("model"), row.name("params"), row.whole("batch_size")), place
