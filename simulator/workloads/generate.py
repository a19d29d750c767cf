"""The generators by name, and what each one makes when nothing more is asked."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.gavel import read_throughputs
from simulator.truth import SpeedKey
from simulator.workloads.arrivals import burst, diurnal, poisson
from simulator.workloads.gavel_jobs import gavel
from simulator.workloads.hadar import hadar_60
from simulator.workloads.job import TraceJob
from simulator.workloads.mix import Asked
from simulator.workloads.source import MAX_JOBS
from walras.checking import nearest
from walras.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Generator:
    """One way to make jobs up."""

    about: str
    make: Callable[[Asked], Iterator[TraceJob]]
    jobs: int
    rate_per_h: float
    #: Whether jobs take several accelerators if nobody says.
    gangs: bool = True


GENERATORS: dict[str, Generator] = {
    "poisson": Generator("jobs that know nothing of each other", poisson, jobs=500, rate_per_h=10.0),
    "diurnal": Generator("busy afternoons, quiet nights and weekends", diurnal, jobs=500, rate_per_h=10.0),
    "burst": Generator("users who submit ten alike within minutes", burst, jobs=500, rate_per_h=10.0),
    "gavel": Generator("Gavel's generated jobs, draw for draw", gavel, jobs=500, rate_per_h=3.0, gangs=False),
    "hadar-60": Generator("the mix of Hadar's simulations", hadar_60, jobs=480, rate_per_h=0.0),
}


def asked_of(
    name: str,
    *,
    jobs: int | None = None,
    rate_per_h: float | None = None,
    seed: int = 0,
    gangs: bool | None = None,
    priorities: bool = False,
    slos: bool = False,
    stretch: float = 1.0,
) -> Asked:
    """The request, with the generator's own values for what was not said. Raises ConfigError for one out of bounds."""
    generator = _named(name)
    jobs = generator.jobs if jobs is None else jobs
    rate_per_h = generator.rate_per_h if rate_per_h is None else rate_per_h
    if not 1 <= jobs <= MAX_JOBS:
        raise ConfigError(f"{jobs} jobs", field="jobs", fix=f"ask for 1 to {MAX_JOBS:,}")
    if not (rate_per_h == 0 or 1e-3 <= rate_per_h <= 1e7):
        raise ConfigError(
            f"{rate_per_h} jobs per hour", field="rate", fix="give 0 (all at once) or a rate from 0.001 to 10,000,000"
        )
    if not 1e-6 <= stretch <= 1e6:
        raise ConfigError(f"durations times {stretch}", field="stretch", fix="give a factor from 0.000001 to 1,000,000")
    return Asked(jobs, rate_per_h, seed, generator.gangs if gangs is None else gangs, priorities, slos, stretch)


def generate(name: str, asked: Asked, speeds_path: str | Path | None = None) -> Iterator[TraceJob]:
    """The jobs, one by one, in order of arrival. A throughput table turns the durations of `gavel` into steps."""
    if speeds_path is None:
        return _named(name).make(asked)
    if name != "gavel":
        raise ConfigError(
            f"{name} makes durations, not steps",
            field="speeds",
            fix="give the table to `walras simulate run`; only the generator `gavel` takes one",
        )
    table: Mapping[SpeedKey, float] = read_throughputs(speeds_path)
    return gavel(asked, table)


def _named(name: str) -> Generator:
    if name not in GENERATORS:
        meant = nearest(name, GENERATORS)
        raise ConfigError(
            f"no generator {name!r}",
            field="name",
            fix=f"did you mean {meant!r}?" if meant else f"known: {', '.join(GENERATORS)}",
        )
    return GENERATORS[name]
