"""A grid of runs: what is crossed with what, as a file (YAML) or as options, and the cells that follow."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from simulator.compat.worlds import WALRAS
from simulator.study.bounds import BoundsAsked
from simulator.study.cell import Cell, Made, Source
from simulator.workloads.source import Reading
from walras.checking import FileModel
from walras.errors import ConfigError

CELLS_MAX = 100_000
_SEED_MAX = 2**31 - 1
_Name = Annotated[str, Field(min_length=1, max_length=4096)]
_Names = Annotated[tuple[_Name, ...], Field(min_length=1, max_length=1000)]


class Grid(FileModel):
    """Every workload x cluster x policy x rate x seed is one run."""

    workloads: _Names
    clusters: _Names
    policies: _Names
    #: `0-4`, `1,3,5`, or a list.
    seeds: tuple[int, ...] = (0,)
    #: Arrivals per hour of generated workloads; empty: as the generator does it by itself.
    rates: Annotated[tuple[float, ...], Field(max_length=1000)] = ()
    #: Of generated workloads.
    trace_jobs: Annotated[int, Field(ge=1)] | None = None
    gangs: bool | None = None
    priorities: bool = False
    slos: bool = False
    stretch: Annotated[float, Field(gt=0)] = 1.0
    #: Of files.
    format: str | None = None
    skip_bad_rows: bool = False
    sort: bool = False
    only: str = ""
    speeds: str | None = None
    measured: str | None = None
    learning: str | None = None
    #: A file of conditions, the same for every run.
    conditions: str | None = None
    #: Whose rules and physics, the same for every run.
    world: str = WALRAS
    #: `1001-2000`: figures over jobs are over those, in order of arrival.
    window: str | None = None
    bounds: BoundsAsked = BoundsAsked.CHEAP
    fairness: bool = False

    other_words: ClassVar[dict[str, str]] = {
        "workload": "workloads", "cluster": "clusters", "policy": "policies", "seed": "seeds", "rate": "rates",
        "jobs": "trace_jobs",
    }  # fmt: skip

    @field_validator("workloads", "clusters", "policies", "rates", "seeds")
    @classmethod
    def _each_once(cls, value: tuple[object, ...]) -> tuple[object, ...]:
        """A run that counts twice would make means look surer than they are."""
        seen: set[object] = set()
        for item in value:
            if item in seen:
                raise ValueError(f"{item!r} is there twice; name each once")
            seen.add(item)
        return value

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds_in_words(cls, value: object) -> object:
        if isinstance(value, str):
            return parse_seeds(value)
        return (value,) if isinstance(value, int) else value


def parse_seeds(text: str) -> tuple[int, ...]:
    """`0-4`, `7`, `1,3,5-8`: in that order, each once. Raises ConfigError (a ValueError would hide the fix)."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise ConfigError(f"seeds {text!r}", field="seeds", fix="write 0-4 or 1,3,5")
        low, high = int(first), int(last) if dash else int(first)
        if not low <= high <= _SEED_MAX or high - low >= CELLS_MAX:
            raise ConfigError(f"seeds {text!r}", field="seeds", fix="write a range of few seeds, the lower one first")
        seeds.update(dict.fromkeys(range(low, high + 1)))
    return tuple(seeds)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the grid a cell stands: the words by which people know it."""

    workload: str
    cluster: str
    policy: str
    rate_per_h: float | None
    seed: int

    @property
    def setting(self) -> tuple[str, str, float | None, str]:
        """All but the seed."""
        return self.workload, self.cluster, self.rate_per_h, self.policy


def cells_of(grid: Grid) -> list[tuple[Place, Cell]]:
    """The runs, in a fixed order. Raises ConfigError for a grid that is too large, or rates without a generator."""
    rates: tuple[float | None, ...] = grid.rates or (None,)
    sizes = (len(grid.workloads), len(grid.clusters), len(grid.policies), len(rates), len(grid.seeds))
    runs = 1
    for size in sizes:
        runs *= size
    if not 1 <= runs <= CELLS_MAX:
        raise ConfigError(f"the grid has {runs:,} runs", field="seeds", fix=f"at most {CELLS_MAX:,}, at least one")
    _refuse_idle(grid)
    cells = []
    for workload, cluster, rate, policy, seed in product(
        grid.workloads, grid.clusters, rates, grid.policies, grid.seeds
    ):
        source = _source(grid, workload)
        if source.generator is None and rate is not None:
            raise ConfigError(
                f"{workload} arrives as it is written", field="rates", fix="give rates to generated workloads alone"
            )
        source = replace(source, made=replace(source.made, rate_per_h=rate))
        place = Place(workload, cluster, policy, rate, seed)
        asked = (grid.bounds, grid.fairness, grid.conditions, grid.world, grid.window)
        cells.append((place, Cell(source, cluster, policy, seed, *asked)))
    return cells


def _refuse_idle(grid: Grid) -> None:
    """Raises ConfigError for what is about generated jobs where there are none, and about files likewise."""
    generated = [Source(workload).generator is not None for workload in grid.workloads]
    for there, names, what in (
        (any(generated), ("trace_jobs", "gangs", "priorities", "slos", "stretch"), "no workload is generated"),
        (not all(generated), ("format", "skip_bad_rows", "sort", "only"), "every workload is generated"),
    ):
        for name in names:
            if not there and getattr(grid, name) != Grid.model_fields[name].default:
                raise ConfigError(f"{what}: `{name}` would do nothing", field=name, fix="leave it out")


def _source(grid: Grid, workload: str) -> Source:
    """What is about files goes to files, what is about generated jobs to those: a grid may have both."""
    speeds = (grid.speeds, grid.measured, grid.learning)
    if Source(workload).generator is not None:
        made = Made(grid.trace_jobs, None, grid.gangs, grid.priorities, grid.slos, grid.stretch)
        return Source(workload, None, Reading(), *speeds, made)
    reading = Reading(skip_bad_rows=grid.skip_bad_rows, sort=grid.sort, only=grid.only)
    return Source(workload, grid.format, reading, *speeds)
